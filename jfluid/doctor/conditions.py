"""Conditions of scripts that guard code: Python versions, `try`, `hasattr`."""

import ast
import sys
from types import SimpleNamespace
from typing import Any

_PYTHON = SimpleNamespace(
    version=sys.version,
    version_info=tuple(sys.version_info),
    hexversion=sys.hexversion,
    major=sys.version_info[0],
    minor=sys.version_info[1],
)
# What a script may ask of Python's version: all of it is known here.
_KNOWN: dict[str, Any] = {
    "sys": _PYTHON,
    "six": SimpleNamespace(PY2=False, PY3=True),
    "PY2": False,
    "PY3": True,
    "IS_PY2": False,
    "IS_PY3": True,
    "int": int,
}
_ATTRIBUTES = frozenset({"version", "version_info", "hexversion", "major", "minor", "PY2", "PY3"})
_NODES = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Not, ast.USub, ast.And, ast.Or,
    ast.Subscript, ast.Slice, ast.Tuple, ast.Constant, ast.Load, ast.cmpop,
)  # fmt: skip
_LARGEST = 40  # nodes of a condition that is computed
_SHORT = 5  # statements of a `try` that tries one thing


def of_python(test: ast.expr) -> bool | None:
    """Return the value of a condition on Python's version; None for any other condition."""
    nodes = list(ast.walk(test))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    if not names - {"int"} or len(nodes) > _LARGEST or not all(map(_is_known, nodes)):
        return None
    try:
        code = compile(ast.Expression(test), "condition", "eval")
        return bool(eval(code, {"__builtins__": {}}, dict(_KNOWN)))
    except Exception:  # it compares what cannot be compared, say
        return None


def _is_known(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return name in _KNOWN
        case ast.Attribute(attr=name):
            return name in _ATTRIBUTES
        case ast.Call(func=ast.Name(id="int"), args=[_], keywords=[]):
            return True
    return isinstance(node, _NODES)


def asks_first(test: ast.expr) -> bool:
    """Return True if a condition tests for a feature: `hasattr`, or a version."""
    for node in ast.walk(test):
        match node:
            case ast.Name(id="hasattr" | "PY2" | "PY3"):
                return True
            case ast.Attribute(attr="PY2" | "PY3" | "version" | "version_info" | "__version__"):
                return True
    return False


def tries(node: ast.Try) -> bool:
    """Return whether a `try` is short, and goes on where a name or module is missing."""
    return len(node.body) <= _SHORT and any(
        _catches(handler.type) and not any(isinstance(s, ast.Raise) for s in handler.body) for handler in node.handlers
    )


def _catches(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    caught = {k.id for k in kinds if isinstance(k, ast.Name)}
    all_of_it = {"Exception", "BaseException", "AttributeError", "ImportError", "NameError"}
    return kind is None or bool(caught & (all_of_it | {"ModuleNotFoundError"}))
