"""Loops in the text of `fluid_text.py`: `while` and `for` become `fluid.layers.while_loop`, jumps become flags."""

import ast
from collections.abc import Iterator
from typing import Any

from jfluid.dygraph.dygraph_to_static.fluid_flow import WrongInFluid, function, named
from jfluid.dygraph.dygraph_to_static.node_kinds import NodeVarType
from jfluid.dygraph.dygraph_to_static.tensor_tests import DYGRAPH_TO_STATIC, TensorTests, expression, is_range, source
from jfluid.ir import unique_name

_BASIC = frozenset({NodeVarType.BOOLEAN, NodeVarType.INT, NodeVarType.FLOAT, NodeVarType.STRING})
_TRANSLATED = f"{DYGRAPH_TO_STATIC}.variable_trans_func"


def statement(text: str) -> ast.stmt:
    """Return the syntax tree of a statement."""
    return ast.parse(text).body[0]


def jumps(definition: ast.FunctionDef) -> None:
    """Replace each `break` and `continue` by a flag that later statements and the condition of the loop ask for."""
    while (path := _jump(definition, [])) is not None:
        _replace_jump(path)


def _jump(node: ast.AST, above: list[Any]) -> list[Any] | None:
    """Return the first jump of a tree, with the nodes above it from the root on."""
    path = [*above, node]
    if isinstance(node, ast.Break | ast.Continue):
        return path
    for child in ast.iter_child_nodes(node):
        if (found := _jump(child, path)) is not None:
            return found
    return None


def _block(parent: Any, child: ast.AST) -> list[ast.stmt]:
    """Return the list of statements of a node that has a child."""
    lists = (getattr(parent, field, []) for field in ("body", "orelse"))
    return next(found for found in lists if isinstance(found, list) and child in found)


def _replace_jump(path: list[Any]) -> None:
    jump, first = path[-1], len(path) - 2
    at = max(i for i, node in enumerate(path) if isinstance(node, ast.For | ast.While))
    loop = path[at]
    if loop.orelse or (isinstance(loop, ast.For) and not is_range(loop)):
        raise WrongInFluid
    is_break = isinstance(jump, ast.Break)
    flag = unique_name.generate("__break" if is_break else "__continue")
    block = _block(path[first], jump)
    block[block.index(jump) :] = [_flag(flag, True)]
    for parent, child in zip(path[first - 1 : at - 1 : -1] if at else path[first - 1 :: -1], path[first:at:-1]):
        block = _block(parent, child)
        rest = block[block.index(child) + 1 :]
        if rest:
            block[-len(rest) :] = [ast.If(expression(f"not {flag}"), rest, [])]
    if not is_break:
        loop.body.insert(0, _flag(flag, False))
        return
    around = _block(path[at - 1], loop)
    place = around.index(loop)
    if isinstance(loop, ast.While):
        loop.test = ast.BoolOp(ast.And(), [loop.test, expression(f"not {flag}")])
        around.insert(place, _flag(flag, False))
        return
    start, test, step = _range(loop)
    test = ast.BoolOp(ast.And(), [test, expression(f"not {flag}")])
    around[place : place + 1] = [_flag(flag, False), start, ast.While(test, [*loop.body, step], [])]


def _flag(name: str, value: bool) -> ast.stmt:
    return statement(f"{name} = fluid.layers.fill_constant(shape=[1], dtype='bool', value={value})")


def _range(loop: Any) -> tuple[ast.stmt, ast.expr, ast.stmt]:
    """Return the start, the condition and the step of a loop over a range."""
    name, given = loop.target.id, [source(a) for a in loop.iter.args]
    if len(given) == 1:
        start = statement(f"{name} = fluid.layers.fill_constant([1], 'int64', 0)")
    else:
        start = statement(f"{name} = {given[0]}")
    end, step = given[min(len(given) - 1, 1)], given[2] if len(given) == 3 else "1"
    return start, expression(f"{name} + {step} <= {end}"), statement(f"{name} += {step}")


def loops(definition: ast.FunctionDef) -> None:
    """Convert the loops that tensors decide, inner loops first."""
    names = _LoopNames(definition)
    _convert(definition, names)


def _convert(node: Any, names: "_LoopNames") -> None:
    for child in ast.iter_child_nodes(node):
        _convert(child, names)
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            block[:] = [made for child in block for made in _converted(child, names)]


def _converted(node: ast.stmt, names: "_LoopNames") -> Iterator[ast.stmt]:
    if not isinstance(node, ast.For | ast.While) or not names.tests.is_converted(node):
        yield node
        return
    if node.orelse or any(isinstance(n, ast.Return) for n in node.body):
        raise WrongInFluid
    variables, created = names.of_loop(node)
    prefix, body = "while", list(node.body)
    for name in created:
        yield statement(f"{name} = {_TRANSLATED}.data_layer_not_check(name='{name}', shape=[-1], dtype='float32')")
    if isinstance(node, ast.For):
        prefix = "for_loop"
        start, test, step = _range(node)
        body.append(step)
        yield start
    else:
        test = _Logical().visit(node.test)
    for name in variables:
        yield statement(f"{name} = {_TRANSLATED}.to_static_variable({name})")
    condition = function(unique_name.generate(f"{prefix}_condition"), variables, [ast.Return(test)])
    body.append(ast.Return(named(variables, ast.Load())))
    made = function(unique_name.generate(f"{prefix}_body"), variables, body)
    yield condition
    yield made
    listed = ", ".join(variables)
    target = f"{listed}," if len(variables) == 1 else listed
    yield statement(f"{target} = fluid.layers.while_loop({condition.name}, {made.name}, [{listed}])")


class _Logical(ast.NodeTransformer):
    """Replaces `not`, `and` and `or` by Fluid's operators."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return expression(f"fluid.layers.logical_not({source(node.operand)})") if isinstance(node.op, ast.Not) else node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        word = "and" if isinstance(node.op, ast.And) else "or"
        joined = node.values[0]
        for value in node.values[1:]:
            joined = expression(f"fluid.layers.logical_{word}(x={source(joined)}, y={source(value)})")
        return joined


class _LoopNames:
    """The names that each loop of a function reads and writes, and the names seen before and after the loop."""

    def __init__(self, definition: ast.FunctionDef):
        self.tests = TensorTests(definition)
        self._seen: dict[ast.AST, str] = {}  # uses of names so far, in order
        self._before: dict[ast.AST, set[ast.AST]] = {}
        self._inside: dict[ast.AST, dict[ast.AST, str]] = {}
        self._conditions: dict[ast.AST, set[str]] = {}
        self._loops: list[Any] = []
        self._in_condition = False
        self._visit(definition, False)

    def _visit(self, node: Any, called: bool) -> None:
        if isinstance(node, ast.arg):
            self._use(node, node.arg)
        elif isinstance(node, ast.Name):
            if not called:
                self._use(node, node.id)
        elif isinstance(node, ast.Attribute):
            if not called and not source(node).startswith("self."):
                self._use(node, source(node))
        elif isinstance(node, ast.Call):
            self._visit(node.func, True)
            for part in (*node.args, *node.keywords):
                self._visit(part, False)
        elif isinstance(node, ast.For | ast.While):
            self._loop(node)
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child, False)

    def _use(self, node: ast.AST, name: str) -> None:
        self._seen[node] = name
        for loop in self._loops:
            self._inside[loop][node] = name
            if self._in_condition:
                self._conditions[loop].add(name)

    def _loop(self, node: Any) -> None:
        self._loops.append(node)
        self._inside[node], self._conditions[node] = {}, set()
        self._in_condition = True
        for part in [node.target, node.iter] if isinstance(node, ast.For) else [node.test]:
            self._visit(part, False)
        self._in_condition = False
        self._before[node] = set(self._seen)
        for part in node.body:
            self._visit(part, False)
        self._loops.pop()

    def of_loop(self, node: Any) -> tuple[list[str], list[str]]:
        """Return the variables of a loop in the order of their uses, and the variables that the loop creates.

        The order of Fluid's text is that of a set of Python, and differs from process to process.
        """
        inside, before = self._inside[node], {self._seen[n] for n in self._before[node]}
        later = {self._seen[n] for n in self._seen.keys() - inside.keys() - self._before[node] if _is_read(n)}
        written = {name for n, name in inside.items() if isinstance(getattr(n, "ctx", None), ast.Store | ast.Del)}
        kinds = {name: self.tests.kinds(n) for n, name in inside.items()}
        variables, created = [], []
        for name in dict.fromkeys(inside.values()):
            if name in before:
                fixed = name not in self._conditions[node] and name not in written
                if not (fixed and kinds[name] & _BASIC):
                    variables.append(name)
            elif name in later:
                variables.append(name)
                created.append(name)
        if any("." in name for name in variables):
            raise WrongInFluid
        return variables, created


def _is_read(node: Any) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)
