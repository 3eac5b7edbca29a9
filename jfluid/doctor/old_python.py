"""Uses of Python 2, of old NumPy, and of libraries that are gone or not installed."""

import ast
import builtins
import functools
import importlib.util
import re
import sys
from collections.abc import Container, Iterable, Sequence

from jfluid import errors
from jfluid.doctor import conditions, parsing, python2, python3, rules
from jfluid.doctor.findings import Severity
from jfluid.doctor.names import NamedModule
from jfluid.doctor.script import Script
from jfluid.doctor.walking import Walker


def readable(text: str) -> ast.Module | None:
    """Return the tree of a script of Python 2 as Python 3 would have it; None where it cannot be had."""
    try:
        return parsing.tree_of(python2.converted(text, "script"))
    except (parsing.Unreadable, errors.JFluidError):
        return None


def examine(script: Script, trees: Sequence[tuple[int, ast.Module]], text: str) -> None:
    """Add findings for removed names in all trees of a source with the text `text`."""
    table = rules.python()
    plain = _any_of("names").search(text) is not None  # few sources have such
    dotted = _any_of("methods", "numpy", "attributes").search(text) is not None
    bound = {name for _, tree in trees for name in _bound(tree)}
    for cell, tree in trees if plain or dotted else ():
        walker = _Walker(script, table, bound)
        script.at_cell(cell)
        walker.visit(tree)
    python3.examine(script, trees, bound)


def examine_imports(script: Script, local: Container[str], followed: bool) -> None:
    """Note modules that a source imports and that are gone, or not installed.

    Args:
        local: names of the project's own modules.
        followed: whether these are all that it may find.
    """
    for cell, node, guarded in script.imported:
        script.at_cell(cell)
        _check_import(script, node, guarded, rules.python(), local, followed)


@functools.cache
def _any_of(*kinds: str) -> re.Pattern[str]:
    """Return a pattern of removed names of some tables: plain names, or the last part of dotted names."""
    names = {name for kind in kinds for name in rules.python()[kind]}
    endings = "|".join(sorted({re.escape(name.rpartition(".")[2]) for name in names}))
    plain = kinds == ("names",)
    return re.compile(rf"\b(?:{endings})\b" if plain else rf"(?:\.|\bimport\s.*)\b(?:{endings})\b")


def _bound(tree: ast.Module) -> Iterable[str]:
    """Return the names that a source binds anywhere; "*" for a star import."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.asname or alias.name


class _Walker(Walker):
    """Visitor that finds names of Python 2 and attributes that NumPy and the standard library have dropped."""

    def __init__(self, script: Script, table: dict[str, dict[str, str]], bound: set[str]):
        super().__init__()
        self._script, self._table, self._bound = script, table, bound
        self._guarded = 0

    def visit_Name(self, node: ast.Name) -> None:
        instead = self._table["names"].get(node.id)
        if instead and isinstance(node.ctx, ast.Load):
            if node.id not in self._bound and not hasattr(builtins, node.id):
                self._note(node, node.id, f"{node.id} is a name of Python 2", instead)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        value = self._script.value(node)
        if isinstance(value, NamedModule) and not value.of_fluid:
            if instead := self._table["numpy"].get(value.path):
                happens = f"{value.path} was dropped by NumPy"
                self._supplied(node, "old-numpy", value.path, happens, instead)
            elif instead := self._table["supplied"].get(value.path):
                happens = f"{value.path} is no longer there"
                self._supplied(node, "old-python", value.path, happens, instead)
            elif instead := self._table["attributes"].get(value.path):
                self._note(node, value.path, f"{value.path} is no longer there", instead)
        elif (instead := self._table["methods"].get(node.attr)) and (
            node.attr not in self._bound  # else a method of the script's own
        ):
            self._note(node, f".{node.attr}", f".{node.attr} is a method of Python 2", instead)
        self.generic_visit(node)

    def _supplied(self, node: ast.Attribute, rule: str, path: str, happens: str, instead: str) -> None:
        """Note a name that `import paddle` gives back, where the script imports it."""
        note = self._script.imports_paddle
        self._script.add(
            Severity.NOTE if note else Severity.CHANGE,
            node,
            rule,
            path,
            happens + (": the launcher supplies it" if note else ""),
            instead,
        )

    def _note(self, node: ast.expr, subject: str, happens: str, instead: str) -> None:
        if not self._guarded:
            self._script.add(Severity.CHANGE, node, "old-python", subject, happens, instead)

    def visit_Try(self, node: ast.Try) -> None:
        self._guarded += 1
        self.generic_visit(node)
        self._guarded -= 1

    def visit_If(self, node: ast.If) -> None:
        holds = conditions.of_python(node.test)
        if holds is not None:
            for statement in node.body if holds else node.orelse:
                self.visit(statement)
            return
        asks = conditions.asks_first(node.test)
        self._guarded += asks
        self.generic_visit(node)
        self._guarded -= asks


def _check_import(
    script: Script,
    node: ast.Import | ast.ImportFrom,
    guarded: bool,
    table: dict[str, dict[str, str]],
    local: Container[str],
    followed: bool,
) -> None:
    """Add findings for removed modules and for modules that are not installed."""
    if isinstance(node, ast.Import):
        paths = [alias.name for alias in node.names]
    else:
        paths = [] if node.level else [node.module or ""]
        for alias in node.names if paths and not guarded else ():
            gone = f"{node.module}.{alias.name}"
            if instead := table["attributes"].get(gone) or table["supplied"].get(gone):
                # Others are given back when paddle is imported, and may be taken before that.
                note = script.imports_paddle and node.module == "collections"
                script.add(
                    Severity.NOTE if note else Severity.CHANGE,
                    node,
                    "old-python",
                    gone,
                    f"{gone} is no longer there" + (": the launcher supplies it" if note else ""),
                    instead,
                )
    for path in paths if not guarded else ():
        top = path.partition(".")[0]
        if instead := table["modules"].get(path) or table["modules"].get(top):
            if top not in local and not _is_installed(top):  # distutils and imp are, before 3.12
                happens = f"Python no longer has the module {path}"
                script.add(Severity.CHANGE, node, "old-python", path, happens, instead)
        elif top not in local and not script.is_fluid(path) and not _is_installed(top):
            name = table["packages"].get(top, top)
            happens = f"the module {top} is not installed here"
            if not followed:
                happens += ", unless it is in a folder that the script adds to sys.path"
            severity = Severity.CHANGE if followed else Severity.NOTE
            script.add(severity, node, "not-installed", top, happens, f"pip install {name}")


@functools.cache
def _is_installed(top: str) -> bool:
    """Return True if Python finds a module, without importing it."""
    if top in sys.stdlib_module_names:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False
