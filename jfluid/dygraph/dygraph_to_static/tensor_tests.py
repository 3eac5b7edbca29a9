"""Which conditions and loops of a syntax tree Fluid's translator converts: those that tensors decide."""

import ast
from typing import Any

from jfluid.dygraph.dygraph_to_static.node_kinds import NodeVarType, StaticAnalysisVisitor
from jfluid.dygraph.dygraph_to_static.syntax_trees import called_function

DYGRAPH_TO_STATIC = "fluid.dygraph.dygraph_to_static"


def source(node: ast.AST) -> str:
    """Return the source of a node."""
    return ast.unparse(node)


def expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression."""
    return ast.parse(text, mode="eval").body


def is_of_fluid(node: ast.Call) -> bool:
    """Return True for a call of a function of Fluid."""
    if source(node.func).startswith(f"{DYGRAPH_TO_STATIC}."):
        return True
    return (getattr(called_function(node), "__module__", None) or "").startswith("jfluid.")


def is_range(node: ast.For) -> bool:
    """Return True for a loop with one name over a range."""
    return isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call) and source(node.iter.func) == "range"


def compares_none(node: ast.Compare) -> bool:
    """Return True for a comparison with None."""
    return any(isinstance(n, ast.Constant) and n.value is None for n in (node.left, node.comparators[0]))


class TensorTests:
    """The conditions of a syntax tree that tensors decide, by the kinds of the tree's values."""

    def __init__(self, definition: ast.FunctionDef):
        self._wrappers = StaticAnalysisVisitor(ast.Module([definition], [])).get_node_to_wrapper_map()
        self.comparisons: set[ast.AST] = set()  # comparisons of tensors, of the conditions so far

    def kinds(self, node: ast.AST) -> set[int]:
        """Return the kinds of a node's value; none for a node that was made later."""
        found = self._wrappers.get(node)
        return set() if found is None else found.node_var_type

    def is_converted(self, node: Any, known: dict[str, set[int]] | None = None) -> bool:
        """Return True for a branch or loop that Fluid converts.

        Args:
            node: an `if`, `while` or `for`.
            known: kinds of names that count beside those of the nodes.
        """
        if isinstance(node, ast.If):
            return self.of_tensors(node.test, known)
        if isinstance(node, ast.While):
            decided = any(self.of_tensors(n, known) for n in ast.iter_child_nodes(node.test))
        elif is_range(node):
            decided = any(self.of_tensors(a, known) for a in node.iter.args)
        else:
            return False
        return decided or any(_is_own_jump(n) for n in node.body)

    def of_tensors(self, node: ast.AST, known: dict[str, set[int]] | None = None) -> bool:
        """Return True for an expression with a tensor, a call of Fluid's, or `.numpy()`."""
        if isinstance(node, ast.Name):
            kinds = self.kinds(node) | ((known or {}).get(node.id) or set())
            return bool(kinds & NodeVarType.TENSOR_TYPES)
        if isinstance(node, ast.Call):
            return _takes_value(node) or is_of_fluid(node)
        if isinstance(node, ast.Compare) and compares_none(node):
            return False
        parts = [self.of_tensors(n, known) for n in ast.iter_child_nodes(node)]  # each part may have comparisons
        if isinstance(node, ast.Compare) and any(parts):
            self.comparisons.add(node)
        return any(parts)


def _takes_value(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "numpy"


def _is_own_jump(node: ast.AST) -> bool:
    """Return True for a statement with a jump of the loop around it."""
    if isinstance(node, ast.Break | ast.Continue):
        return True
    if isinstance(node, ast.For | ast.While | ast.FunctionDef):
        return False
    return any(_is_own_jump(n) for n in ast.iter_child_nodes(node))
