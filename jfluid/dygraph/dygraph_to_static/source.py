"""Functions made anew from rewritten syntax trees.

Their lines stay, so that errors and operators name the user's own.
"""

import ast
import functools
import inspect
import linecache
import textwrap
import types
import weakref
from collections.abc import Iterator
from typing import Any

from jfluid import errors
from jfluid.dygraph.dygraph_to_static import fluid_text
from jfluid.dygraph.dygraph_to_static.rewriting import RUNTIME, rewrite

_FUTURE = 0x1FF0000  # flags of code by `from __future__ import`


class NoSource(errors.UnsupportedError):
    """The source of a function cannot be read."""


def converted(function: types.FunctionType, runtime: types.ModuleType) -> types.FunctionType:
    """Return a function that does the same, and builds operators where tensors decide: it calls `runtime`.

    Raises NoSource where its source is not found, or is no `def`.
    """
    code = _code_of(function.__code__, function)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    cells[RUNTIME] = types.CellType(runtime)
    closure = tuple(cells.get(n) or types.CellType() for n in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    functools.update_wrapper(made, function)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def code_text(function: types.FunctionType) -> str:
    """Return Fluid's text of a function; where that is wrong, the source that `converted` compiles."""
    found = fluid_text.text(_definition(function))
    return ast.unparse(_rewritten(function)) + "\n" if found is None else found


def _rewritten(function: types.FunctionType) -> ast.FunctionDef:
    node = _definition(function)
    rewrite(node)
    return node


_codes: "weakref.WeakKeyDictionary[types.CodeType, types.CodeType]" = weakref.WeakKeyDictionary()


def _code_of(code: types.CodeType, function: types.FunctionType) -> types.CodeType:
    found = _codes.get(code)
    if found is None:
        found = _codes[code] = _compiled(function)
    return found


def _compiled(function: types.FunctionType) -> types.CodeType:
    code = function.__code__
    node = _rewritten(function)
    # Within a class of its name, so that `__private` names and `super()` keep their meaning.
    *_, around, _ = ["<locals>", *function.__qualname__.split(".")]
    inner: ast.stmt = node
    if around != "<locals>":
        inner = ast.ClassDef(around, [], [], [inner], [])
        inner.type_params = []  # type: ignore[attr-defined]
    outside = [n for n in (RUNTIME, *code.co_freevars) if n != "__class__"]
    names: list[ast.expr] = [ast.Name(n, ast.Store()) for n in outside]
    body: list[ast.stmt] = [ast.Assign(names, ast.Constant(None)), inner]
    if inner is node and node.name not in outside:
        body.insert(0, ast.Global([node.name]))  # a function of a module may call itself
    args = ast.arguments([], [], None, [], [], None, [])
    outer: Any = ast.FunctionDef("_around", args, body, [])
    outer.type_params = []
    tree = ast.fix_missing_locations(ast.Module([outer], []))
    made = compile(tree, code.co_filename, "exec", code.co_flags & _FUTURE, True)
    functions = (c for c in _codes_in(made) if c.co_flags & inspect.CO_OPTIMIZED)
    return next(c for c in functions if c.co_name == code.co_name)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)


def _definition(function: types.FunctionType) -> ast.FunctionDef:
    """Parse the definition of a function anew."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise NoSource(
            f"{function.__qualname__}: its source ({code.co_filename}) cannot be read, which is "
            "needed to turn it into a Program: define it in a file"
        )
    for node in ast.walk(_tree(lines, code.co_firstlineno)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    raise NoSource(
        f"{function.__qualname__}: {code.co_filename} has no `def {code.co_name}` at line "
        f"{code.co_firstlineno}; lambdas and functions of changed files cannot be turned into a Program"
    )


def _tree(lines: list[str], first: int) -> ast.Module:
    """Return the syntax tree of a file.

    If a file is not all Python, like a page with examples, return the tree of the function at line `first`.
    """
    try:
        return ast.parse("".join(lines))
    except SyntaxError:
        block = textwrap.dedent("".join(inspect.getblock(lines[first - 1 :])))
        tree = ast.parse(block)
        ast.increment_lineno(tree, first - 1)
        return tree


def is_convertible(function: Any) -> bool:
    """Return True for a Python function that can be rewritten."""
    return (
        isinstance(function, types.FunctionType)
        and not inspect.isgeneratorfunction(function)
        and not inspect.iscoroutinefunction(function)
        and not inspect.isasyncgenfunction(function)
        and function.__name__ != "<lambda>"
    )
