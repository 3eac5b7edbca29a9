"""Results that Python 3 returns in place of lists and integers: `zip`, `map`, views, `range`, divisions."""

import ast
import re
from collections.abc import Sequence
from typing import Any

from jfluid.doctor.findings import Severity
from jfluid.doctor.fluid_api import shown
from jfluid.doctor.names import Named
from jfluid.doctor.script import Script
from jfluid.doctor.walking import Walker

# Builtin functions and methods of dictionaries whose results were lists, with what the result
# still does: 0 nothing of a list, 1 its length, 2 its items as well.
_LISTS = {"zip": 0, "map": 0, "filter": 0, "range": 2}
_VIEWS = {"keys": 1, "values": 1, "items": 1}
_METHODS = frozenset({"append", "extend", "insert", "pop", "remove", "reverse", "sort"})
_ARRAYS = frozenset({"array", "asarray", "concatenate", "stack", "hstack", "vstack"})
# Arguments of layers in which a number that is not whole by its type is refused.
_WHOLE = frozenset(
    "shape size num_filters filter_size num_channels input_dim output_dim depth padding stride dilation pool_size "
    "pool_stride pool_padding num_or_sections expand_times".split()
)


def examine(script: Script, trees: Sequence[tuple[int, ast.Module]], bound: set[str]) -> None:
    """Note such uses in all trees of one source. `bound`: names that it binds itself."""
    for cell, tree in trees:
        script.at_cell(cell)
        _Walker(script, bound).visit(tree)


class _Walker(Walker):
    """Visitor that follows names bound to such results, through each function in line order."""

    def __init__(self, script: Script, bound: set[str]):
        super().__init__()
        self._script = script
        self._lists = {name: kind for name, kind in _LISTS.items() if name not in bound}
        self._names: dict[str, tuple[str, int] | None] = {}
        self._divided: set[str] = set()

    # ---- what names stand for

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self._names, self._divided
        self._names, self._divided = {}, set()
        self.generic_visit(node)
        self._names, self._divided = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        made, divided = self._made(node.value), _is_division(node.value)
        for target in node.targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    self._names[part.id] = made if part is target else None
                    (self._divided.add if divided and part is target else self._divided.discard)(part.id)
            if not isinstance(target, ast.Name):
                self.visit(target)

    def visit_For(self, node: ast.For) -> None:
        for part in ast.walk(node.target):
            if isinstance(part, ast.Name):
                self._names[part.id] = None
                self._divided.discard(part.id)
        self.generic_visit(node)

    def _made(self, node: ast.expr) -> tuple[str, int] | None:
        """Return the function that makes an expression, and the list operations that its result still has."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in self._lists:
                return name, self._lists[name]
            case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in _VIEWS:
                return f".{name}()", _VIEWS[name]
            case ast.Name(id=name):
                return self._names.get(name)
        return None

    # ---- uses as lists

    def visit_Subscript(self, node: ast.Subscript) -> None:
        made = self._made(node.value)
        if made and made[1] < 2 and isinstance(node.ctx, ast.Load):
            whole = isinstance(node.slice, ast.Slice) or isinstance(getattr(node.slice, "value", None), int)
            if made[1] == 0 or whole:
                self._note(node, made[0], "cannot be indexed")
        elif made and made[1] == 2 and isinstance(node.ctx, ast.Store):
            self._note(node, made[0], "cannot be changed")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add):
            for side in (node.left, node.right):
                if made := self._made(side):
                    self._note(node, made[0], "cannot be added to")
                    break
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        first: Any = self._made(node.args[0]) if node.args else None
        match node.func:
            case ast.Name(id="len") if first and first[1] == 0:
                self._note(node, first[0], "has no length")
            case ast.Attribute(attr="shuffle") if first:
                self._note(node, first[0], "cannot be shuffled")
            case ast.Attribute(attr=name, value=ast.Name(id="np" | "numpy")) if name in _ARRAYS:
                if first and first[1] < 2:
                    self._note(node, first[0], "makes an array of one object")
            case ast.Attribute(attr=name, value=holder) if name in _METHODS:
                made = self._made(holder)
                if made:
                    self._note(node, made[0], f"has no {name}")
        self._check_layer(node)
        self.generic_visit(node)

    def _note(self, node: ast.AST, made: str, what: str) -> None:
        self._script.add(
            Severity.CHANGE,
            node,
            "python-3",
            made,
            f"in Python 3 the result of {made} is no list, and {what}",
            f"list({made.strip('.()')}(...))" if made[0] != "." else f"list(d{made})",
        )

    # ---- divisions

    def _check_layer(self, node: ast.Call) -> None:
        """Note a quotient that a layer takes for a shape."""
        if not any(map(self._is_quotient, [*node.args, *(keyword.value for keyword in node.keywords)])):
            return
        called = self._script.value(node.func)
        if not isinstance(called, Named) or not re.search(r"\.(layers|dygraph)\.", called.path):
            return
        given = [*zip(called.entry.parameter_names, node.args), *((one.arg, one.value) for one in node.keywords)]
        for parameter, value in given:
            if parameter in _WHOLE and self._is_quotient(value):
                name = f"{shown(called.path)}({parameter}=)"
                self._script.add(
                    Severity.CHANGE,
                    value,
                    "python-3",
                    name,
                    f"{name}: in Python 3 / gives a number with a point, which is refused",
                    "divide with //",
                )

    def _is_quotient(self, node: ast.expr) -> bool:
        if isinstance(node, ast.List | ast.Tuple):
            return any(map(self._is_quotient, node.elts))
        if isinstance(node, ast.Name):
            return node.id in self._divided
        return _is_division(node)


def _is_division(node: ast.expr) -> bool:
    """Return True if a number is made by a division, or by sums and products of divisions."""
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Div):
        return True
    return isinstance(node.op, ast.Add | ast.Sub | ast.Mult) and (_is_division(node.left) or _is_division(node.right))
