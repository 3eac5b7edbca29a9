"""Branches in the text of `fluid_text.py`: `if` becomes `fluid.layers.cond` of two functions."""

import ast
from collections.abc import Sequence
from typing import Any

from jfluid.dygraph.dygraph_to_static.node_kinds import NodeVarType
from jfluid.dygraph.dygraph_to_static.syntax_trees import get_name_ids
from jfluid.dygraph.dygraph_to_static.tensor_tests import TensorTests, compares_none, expression, source
from jfluid.ir import unique_name


class WrongInFluid(Exception):
    """Fluid's text of a statement is no Python, or computes a different result than the statement."""


def named(names: Sequence[str], ctx: ast.expr_context) -> ast.expr:
    """Return a name, or a tuple of names."""
    parts: list[ast.expr] = [ast.Name(n, ctx) for n in names]
    return parts[0] if len(parts) == 1 else ast.Tuple(parts, ctx)


def function(name: str, parameters: Sequence[str], body: Sequence[ast.stmt]) -> ast.FunctionDef:
    """Return the definition of a function with positional parameters."""
    arguments = ast.arguments([], [ast.arg(n) for n in parameters], None, [], [], None, [])
    return ast.FunctionDef(name, arguments, list(body), [])


def branches(definition: ast.FunctionDef) -> None:
    """Convert the `if` statements that tensors decide, and drop `.numpy()`."""
    found = _Branches(definition)
    found.visit(definition)
    _insert(definition, found.before)


def _insert(node: Any, before: dict[ast.AST, list[ast.stmt]]) -> None:
    """Insert statements before the statements that need them."""
    for _, value in ast.iter_fields(node):
        if isinstance(value, list):
            value[:] = [part for child in value for part in (*before.pop(child, ()), child)]
            for child in value:
                if isinstance(child, ast.AST):
                    _insert(child, before)
        elif isinstance(value, ast.AST):
            _insert(value, before)


class _Branches(ast.NodeTransformer):
    """Converts branches of a function, inner branches first.

    Attributes:
        before: statements that the converted branches need before them.
    """

    def __init__(self, definition: ast.FunctionDef):
        self._root, self._tests = definition, TensorTests(definition)
        self.before: dict[ast.AST, list[ast.stmt]] = {}

    def visit_If(self, node: ast.If) -> ast.stmt:
        test = node.test
        converted = self._tests.is_converted(node)
        self.generic_visit(node)
        if not converted:
            return node
        if any(isinstance(n, ast.Return) for part in node.body + node.orelse for n in _own(part)):
            raise WrongInFluid
        condition = _Condition(self._tests)
        predicate = condition.of(test)
        parent = get_name_ids([self._root], end_node=node)
        uses = [get_name_ids(part) for part in (node.body, node.orelse)]
        bound = [{n for n, contexts in found.items() if any(_is_bound(c) for c in contexts)} for found in uses]
        modified = {n for names in bound for n in names if n in parent}
        results = sorted(modified | {n for n in bound[0] & bound[1] if n not in parent})
        made, calls = [], []
        for prefix, part, found in zip(("true_fn", "false_fn"), (node.body, node.orelse), uses):
            first = {n for n, contexts in found.items() if isinstance(contexts[0], ast.Load)}
            parameters = sorted(first | modified)
            end = ast.Return(named(results, ast.Load()) if results else None)
            made.append(function(unique_name.generate(prefix), parameters, [*part, end]))
            calls.append(expression(f"lambda: {made[-1].name}({', '.join(parameters)})"))
        cond = ast.Call(expression("fluid.layers.cond"), [predicate, *calls], [])
        statement = ast.Assign([named(results, ast.Store())], cond) if results else ast.Expr(cond)
        self.before[statement] = [*made, *condition.assigned]
        return statement

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        if self._tests.of_tensors(node.test):
            raise WrongInFluid
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Drop `.numpy()`."""
        made: ast.expr = node
        if isinstance(node.func, ast.Attribute) and node.func.attr == "numpy":
            made = node.func.value
        self.generic_visit(made)
        return made


def _own(node: ast.AST) -> list[ast.AST]:
    """Return a statement and its parts, without parts of functions defined there."""
    found = [node]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            found += _own(child)
    return found


def _is_bound(context: Any) -> bool:
    return isinstance(context, ast.Store | ast.Param)


class _Condition:
    """The condition of a branch as tensors.

    Attributes:
        assigned: the assignments that make the tensors, in order.
    """

    def __init__(self, tests: TensorTests):
        self._tests = tests
        self.assigned: list[ast.stmt] = []

    def of(self, test: ast.expr) -> ast.expr:
        """Return the expression for a condition."""
        return self._converted(test) if _is_candidate(test) else self._cast(test)

    def _assign(self, prefix: str, text: str) -> ast.expr:
        name = unique_name.generate(prefix)
        target = ast.Name(name, ast.Store())
        self.assigned.append(ast.Assign([target], expression(text)))
        return target  # as in Fluid: a name that is bound here is no parameter of the branch around it

    def _cast(self, node: ast.expr) -> ast.expr:
        return self._assign("bool_tensor", f"fluid.layers.cast(x={source(node)}, dtype='bool')")

    def _constant(self, node: ast.expr) -> ast.expr:
        text = f"fluid.layers.fill_constant(shape=[1], dtype='bool', value=bool({source(node)}))"
        return self._assign("bool_tensor", text)

    def _converted(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._assign("logic_not", f"fluid.layers.logical_not({source(self._converted(node.operand))})")
        if isinstance(node, ast.Compare):
            tensors = node in self._tests.comparisons and not compares_none(node)
            return node if tensors else self._constant(node)
        if not isinstance(node, ast.BoolOp):
            return node
        values = [v if _is_candidate(v) else self._of_kind(v) for v in node.values]
        values = [self._converted(v) for v in values]
        word = "and" if isinstance(node.op, ast.And) else "or"
        joined = values[0]
        for value in values[1:]:
            joined = self._assign(
                f"logic_{word}", f"fluid.layers.logical_{word}(x={source(joined)}, y={source(value)})"
            )
        return joined

    def _of_kind(self, node: ast.expr) -> ast.expr:
        tensor = self._tests.kinds(node) & NodeVarType.TENSOR_TYPES
        return self._cast(node) if tensor else self._constant(node)


def _is_candidate(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp) or ".numpy()" in source(node)
