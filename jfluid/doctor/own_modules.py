"""Modules of a project: their import paths and files."""

import ast
import functools
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jfluid.doctor.sources import Source

_DEEPEST = 20  # names that a path is made of


@dataclass
class SearchPath:
    """Folders in which a script's imports are looked for.

    Attributes:
        folders: its own, and those that it adds to `sys.path`.
        followed: whether all that it adds is known.
    """

    folders: list[str] = field(default_factory=list)
    followed: bool = True


def search_path(file: str, trees: Iterable[ast.Module], above: Sequence[str] = ()) -> SearchPath:
    """Return where a script's imports are looked for.

    Args:
        above: folders of the script that imports this one, which hold for it too.
    """
    folder = os.path.dirname(os.path.abspath(file))
    found = SearchPath([folder, *above])
    for tree in trees:
        assigned = _assigned(tree)
        for node in ast.walk(tree):
            added = _added(node)
            if added is None:
                continue
            path = _path(added, os.path.abspath(file), assigned, _DEEPEST)
            if path is None:
                found.followed = False
            else:  # where the script is started is not known: its folder is likely
                found.folders.append(os.path.normpath(os.path.join(folder, path)))
    found.folders = list(dict.fromkeys(found.folders))
    return found


def _added(node: ast.AST) -> ast.expr | None:
    """Return the path that a node adds to `sys.path`; an unresolvable name if it is computed."""
    match node:
        case ast.Call(func=ast.Attribute(attr="append", value=holder), args=[path]) if _is(holder):
            return path
        case ast.Call(func=ast.Attribute(attr="insert", value=holder), args=[_, path]) if _is(holder):
            return path
        case ast.Call(func=ast.Attribute(attr="extend", value=holder)) if _is(holder):
            return ast.Name("")
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) if _is(target):
            return ast.Name("")
    return None


def _is(node: ast.expr) -> bool:
    """Return True if an expression is `sys.path`."""
    match node:
        case ast.Attribute(attr="path", value=ast.Name(id="sys")):
            return True
        case ast.Subscript(value=value):
            return _is(value)
    return False


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that a module binds to one expression."""
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = None if name in found else value
    return {name: value for name, value in found.items() if value is not None}


def _path(node: ast.expr, file: str, names: dict[str, ast.expr], depth: int) -> str | None:
    """Evaluate an expression of constants, `__file__`, `os.path` and `pathlib` as a path, or return None."""

    def of(part: ast.expr) -> str | None:
        return _path(part, file, names, depth - 1) if depth else None

    text: str | None
    match node:
        case ast.Constant(value=str() as constant):
            return constant
        case ast.Name(id="__file__"):
            return file
        case ast.Name(id=name) if name in names:
            return of(names[name])
        case ast.Call(func=ast.Attribute(attr="join"), args=[_, *_] as parts):
            found = [text for part in parts if (text := of(part)) is not None]
            return posixpath.join(*found) if len(found) == len(parts) else None
        case ast.Call(func=ast.Attribute(attr="dirname"), args=[part]):
            return None if (text := of(part)) is None else os.path.dirname(text) or "."
        case ast.Call(func=ast.Attribute(attr="abspath" | "realpath" | "normpath"), args=[part]):
            return None if (text := of(part)) is None else os.path.normpath(text)
        case ast.Call(func=ast.Name(id="str" | "Path") | ast.Attribute(attr="Path"), args=[part]):
            return of(part)
        case ast.Call(func=ast.Attribute(attr="resolve" | "absolute", value=part), args=[]):
            return of(part)
        case ast.Attribute(attr="parent", value=part):
            return None if (text := of(part)) is None else os.path.dirname(text) or "."
        case ast.Subscript(value=ast.Attribute(attr="parents", value=part), slice=ast.Constant(int(n))):
            text = of(part)
            return None if text is None or n > _DEEPEST else str(Path(text, *[".."] * (n + 1)))
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            pair = of(left), of(right)
            return None if None in pair else posixpath.join(*filter(None, pair))
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            pair = of(left), of(right)
            return None if None in pair else "".join(filter(None, pair))
    return None


def imported_files(node: ast.Import | ast.ImportFrom, file: str, folders: Sequence[str]) -> Iterator[str]:
    """Return the files of a project's own that an import reads, packages' `__init__.py` included."""
    if isinstance(node, ast.ImportFrom):
        where: Sequence[str] = folders
        if node.level:
            where = [os.path.join(os.path.dirname(file), *[os.pardir] * (node.level - 1))]
        module = node.module.split(".") if node.module else []
        paths = [[*module, alias.name] for alias in node.names]
    else:
        where, paths = folders, [alias.name.split(".") for alias in node.names]
    for parts in paths:
        for folder in where:
            files = list(_files(os.path.normpath(folder), parts))
            if files:
                yield from files
                break


def _files(folder: str, parts: Sequence[str]) -> Iterator[str]:
    for end in range(1, len(parts) + 1):
        path = os.path.join(folder, *parts[:end])
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                yield file


def names_beside(found: Iterable[Source]) -> frozenset[str]:
    """Return names that imports may find among the sources themselves."""
    names: set[str] = set()
    for kind, path in found:
        if kind == "script":
            folder, name = os.path.split(os.path.abspath(path))
            names.add(os.path.splitext(name)[0])
            names.update(folder.split(os.sep)[-4:])
            names.update(names_in(folder))
    return frozenset(names)


@functools.cache
def names_in(folder: str) -> tuple[str, ...]:
    """Return the modules and packages in a folder, where only the script was named."""
    try:
        return tuple(name.removesuffix(".py") for name in os.listdir(folder))
    except OSError:
        return ()
