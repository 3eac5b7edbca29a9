"""The source that Fluid's translator makes of a function, for `ProgramTranslator.get_code`.

It is text to read: jfluid runs the conversion of `rewriting.py`. The passes run in Fluid's order: `to_variable`,
shapes of tensors, lists of tensors, jumps, loops, branches, further calls. Numbers of generated names count up from
text to text, as in Fluid.
"""

import ast
import builtins
from typing import Any

from jfluid.dygraph.dygraph_to_static import fluid_flow, fluid_loops
from jfluid.dygraph.dygraph_to_static.node_kinds import NodeVarType, StaticAnalysisVisitor
from jfluid.dygraph.dygraph_to_static.syntax_trees import ast_to_source_code, called_function
from jfluid.dygraph.dygraph_to_static.tensor_tests import (
    DYGRAPH_TO_STATIC,
    TensorTests,
    expression,
    is_of_fluid,
    source,
)

_DECORATORS = ("declarative", "dygraph_to_static_func")


def text(definition: ast.FunctionDef) -> str | None:
    """Return Fluid's text of a function definition, or None where Fluid's text is wrong.

    Fluid's text is wrong for a `return` in a converted branch or loop, a converted `a if x else b`, a schedule of
    `fluid.dygraph`, and a loop with jumps over anything but a `range`.
    """
    definition.decorator_list = [d for d in definition.decorator_list if source(d).split(".")[-1] not in _DECORATORS]
    try:
        for convert in (_dygraph_calls, _shapes, _lists, fluid_loops.jumps, fluid_loops.loops, fluid_flow.branches):
            convert(definition)
    except fluid_flow.WrongInFluid:
        return None
    _Calls().visit(definition)
    return ast_to_source_code(definition)


def _dygraph_calls(definition: ast.FunctionDef) -> None:
    """Replace `to_variable` by `fluid.layers.assign` in assigned and in bare expressions."""

    class Statements(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> ast.Assign:
            if isinstance(node.value, ast.Call) and _is_schedule(called_function(node.value)):
                raise fluid_flow.WrongInFluid
            _assigned(node.value)
            return node

        def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
            calls = [n for n in ast.walk(node.value) if isinstance(n, ast.Call)]
            if any((getattr(called_function(n), "__module__", "") or "").startswith("jfluid.dygraph") for n in calls):
                return None  # Fluid drops the statement
            return node

    Statements().visit(definition)


def _is_schedule(function: Any) -> bool:
    return getattr(function, "__module__", None) == "jfluid.dygraph.learning_rate_scheduler"


def _assigned(value: ast.expr) -> None:
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        function = called_function(node)
        if getattr(function, "__module__", None) != "jfluid.dygraph.base" or function.__name__ != "to_variable":
            continue
        node.func = expression("fluid.layers.assign")
        if node.args:
            node.args, node.keywords = node.args[:1], []
        else:
            node.keywords = [ast.keyword("input", k.value) for k in node.keywords if k.arg == "value"]


def _kinds(definition: ast.FunctionDef) -> dict[str, set[int]]:
    """Return the kinds of the values of the names that a function assigns."""
    env = StaticAnalysisVisitor(ast.Module([definition], [])).get_var_env()
    env.cur_scope = env.cur_scope.sub_scopes[0]
    return {name: set(kinds) for name, kinds in env.get_scope_var_type().items()}


def _is_tensor(kinds: set[int] | None) -> bool:
    return kinds is not None and NodeVarType.NUMPY_NDARRAY not in kinds and bool(kinds & NodeVarType.TENSOR_TYPES)


class _Shapes(ast.NodeTransformer):
    """Replaces `x.shape` by `fluid.layers.shape(x)` in arguments of Fluid's functions and in conditions."""

    def __init__(self, kinds: dict[str, set[int]]):
        self._kinds, self._inside = kinds, False
        self._aliases: dict[str, ast.expr] = {}  # names of shapes, and of sizes

    def _is_shape(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "shape"
            and isinstance(node.value, ast.Name)
            and (node.value.id in self._aliases or _is_tensor(self._kinds.get(node.value.id)))
        )

    def visit_Assign(self, node: ast.Assign) -> Any:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Name) and value.id in self._aliases:
                self._aliases[target.id] = self._aliases[value.id]
                return node
            if self._is_shape(value) or (isinstance(value, ast.Subscript) and self._is_shape(value.value)):
                self._aliases[target.id] = value
                return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if is_of_fluid(node):
            before, self._inside = self._inside, True
            self.generic_visit(node)
            self._inside = before
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _shape_call(node) if self._inside and self._is_shape(node) else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _shape_call(self._aliases[node.id]) if self._inside and node.id in self._aliases else node

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        self._condition(node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        self._condition(node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        self._condition(node.iter)
        if isinstance(node.iter, ast.Call) and source(node.iter.func) == "range":
            node.iter.args = [
                _shape_call(self._aliases[a.id]) if isinstance(a, ast.Name) and a.id in self._aliases else a
                for a in node.iter.args
            ]
        return node

    def _condition(self, test: ast.expr) -> None:
        for parent in list(ast.walk(test)):
            for field, child in ast.iter_fields(parent):
                if isinstance(child, ast.AST) and self._is_shape(child):
                    setattr(parent, field, _shape_call(child))
                elif isinstance(child, ast.Name) and child.id in self._aliases:
                    setattr(parent, field, _shape_call(self._aliases[child.id]))


def _shape_call(node: Any) -> ast.expr:
    if isinstance(node, ast.Subscript):
        return ast.Subscript(_shape_call(node.value), node.slice, ast.Load())
    return ast.Call(expression("fluid.layers.shape"), [node.value], [])


def _shapes(definition: ast.FunctionDef) -> None:
    _Shapes(_kinds(definition)).visit(definition)


class _Lists(ast.NodeTransformer):
    """Turns a list to which a converted branch or loop appends tensors into an array of tensors."""

    def __init__(self, definition: ast.FunctionDef):
        self._kinds, self._tests = _kinds(definition), TensorTests(definition)
        self._lists: dict[str, ast.Assign] = {}
        self._arrays: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            if isinstance(node.value, ast.List):
                self._lists[target.id] = node
            elif target.id not in self._arrays:
                self._lists.pop(target.id, None)
        elif isinstance(target, ast.Subscript) and source(target.value) in self._arrays:
            name, at = source(target.value), source(target.slice)
            return ast.parse(
                f"{name} = fluid.layers.array_write(x={source(node.value)}, i=fluid.layers.cast("
                f"x={DYGRAPH_TO_STATIC}.variable_trans_func.to_static_variable({at}), dtype='int64'), array={name})"
            ).body[0]
        return node

    def _controlled(self, node: Any) -> Any:
        self.generic_visit(node)
        if self._tests.is_converted(node, self._kinds):
            for child in ast.walk(node):
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call) and self._appends(child.value):
                    name = source(child.value.func.value)  # type: ignore[attr-defined]
                    child.value = expression(
                        f"fluid.layers.array_write(x={source(child.value.args[0])}, "
                        f"i=fluid.layers.array_length({name}), array={name})"
                    )
        return node

    visit_If = visit_While = visit_For = _controlled

    def _appends(self, node: ast.Call) -> bool:
        """Return True for a call that appends a tensor to a list."""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "append" or len(node.args) != 1:
            return False
        name, given = source(node.func.value), node.args[0]
        if name not in self._lists or (isinstance(given, ast.Name) and not _is_tensor(self._kinds.get(given.id))):
            return False
        self._arrays.add(name)
        return True

    def finish(self) -> None:
        for name in self._arrays:
            self._lists[name].value = expression("fluid.layers.create_array(dtype='float32')")


def _lists(definition: ast.FunctionDef) -> None:
    found = _Lists(definition)
    found.visit(definition)
    found.finish()


class _Calls(ast.NodeTransformer):
    """Wraps called functions in `convert_call`, but Fluid's and Python's."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        called = node.func
        root = called.value if isinstance(called, ast.Attribute) else None
        if not (
            is_of_fluid(node)
            or (isinstance(called, ast.Name) and hasattr(builtins, called.id))
            or isinstance(root, ast.Constant)
        ):
            node.func = ast.Call(expression(f"{DYGRAPH_TO_STATIC}.convert_call"), [called], [])
        return node
