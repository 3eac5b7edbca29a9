"""Syntax trees of functions, rewritten so that control flow asks at run time whether tensors decide.

    if x > 0:                 def _body_1():
        y = x                     nonlocal y
    else:            ->           y = x
        y = -x                def _orelse_1(): ...
                              _jf.branch(x > 0, _body_1, _orelse_1, _jf.State(...))

`_jf` is `jfluid.dygraph.dygraph_to_static.runtime`.
"""

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from jfluid.dygraph.dygraph_to_static import scopes
from jfluid.dygraph.dygraph_to_static.jumps import none_of, without_jumps

RUNTIME = "_jf"
_LAZY_BREAKERS = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)  # not for a lambda


def rewrite(function: ast.FunctionDef) -> None:
    """Rewrite a function in place."""
    declared = [n for n in scopes.inside(function.body) if isinstance(n, (ast.Global, ast.Nonlocal))]
    outer = {name: type(n) for n in declared for name in n.names}
    function.decorator_list = []
    function.body = [_Containers(function, outer).visit(s) for s in function.body]
    without_jumps(function)
    for s in scopes.inside(function.body):  # moved to the top: branches become functions
        if isinstance(s, (ast.Global, ast.Nonlocal)):
            s.__class__ = ast.Pass  # type: ignore[assignment]
    lowering = _Rewriter(function, outer)
    body = lowering.statements(function.body)
    start: list[ast.stmt] = [kind([name]) for name, kind in outer.items()]
    known = {*scopes.parameters(function), *outer}
    for name in sorted(lowering.states - known):
        start.append(_assign(name, _call("Undefined", ast.Constant(name))))
    if ast.get_docstring(function, clean=False) is not None:
        start.insert(0, body.pop(0))
    function.body = [*start, *body]
    ast.fix_missing_locations(function)


class _Containers(ast.NodeTransformer):
    """Changes of a local list become assignments: `a.append(x)`, `a[i] = x`, `del a`."""

    def __init__(self, function: ast.FunctionDef, outer: Iterable[str]):
        self._locals = (scopes.bound(function.body) | set(scopes.parameters(function))) - set(outer)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(ast.Attribute(ast.Name(name), "append"), [value], []) if (
                name in self._locals and not isinstance(value, ast.Starred)
            ):
                return _placed(_assign(name, _call("append", _load(name), value)), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node.targets:
            case [ast.Subscript(ast.Name(name), index)] if self._indexes(name, index):
                return _placed(_assign(name, _call("put", _load(name), index, node.value)), node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        match node.target:
            case ast.Subscript(ast.Name(name), (ast.Name() | ast.Constant()) as index) if self._indexes(name, index):
                value = ast.BinOp(_call("item", _load(name), index), node.op, node.value)
                return _placed(_assign(name, _call("put", _load(name), index, value)), node)
        return node

    def visit_Delete(self, node: ast.Delete) -> Any:
        if all(isinstance(t, ast.Name) for t in node.targets):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            return [_placed(_assign(n, _call("Undefined", ast.Constant(n))), node) for n in names]
        return node

    def _indexes(self, name: str, index: ast.expr) -> bool:
        return name in self._locals and not any(isinstance(n, ast.Slice) for n in ast.walk(index))


class _Parts:
    """Names in the function around a condition or loop."""

    def __init__(self, function: ast.FunctionDef, node: ast.If | ast.For | ast.While):
        bodies: list[ast.AST] = [*node.body, *node.orelse]
        if isinstance(node, ast.For):
            bodies.append(node.target)
        self.names = sorted(scopes.bound(bodies))
        self.read = scopes.reads_outside(function, node)
        if scopes.in_loop(function, node):
            self.read |= scopes.read(node)  # by the next iteration
        if isinstance(node, ast.If) and scopes.has(node, ast.Return):
            self.read = set()  # the function ends
        self.lists = sorted(
            s.targets[0].id
            for s in scopes.inside(bodies)
            if isinstance(s, ast.Assign)
            and isinstance(s.targets[0], ast.Name)
            and isinstance(s.value, ast.Call)
            and isinstance(s.value.func, ast.Attribute)
            and isinstance(s.value.func.value, ast.Name)
            and (s.value.func.value.id, s.value.func.attr) == (RUNTIME, "append")
        )


class _Rewriter(ast.NodeTransformer):
    """Conditions, loops, calls and tests become calls of the runtime."""

    def __init__(self, function: ast.FunctionDef, outer: dict[str, type[Any]]):
        self._outer = outer
        self._parts = {
            id(n): _Parts(function, n)
            for n in scopes.inside(function.body)
            if isinstance(n, (ast.If, ast.For, ast.While))
        }
        first = scopes.parameters(function)
        self._first = first[0] if first else None
        self._count = 0
        self.states: set[str] = set()

    def statements(self, body: Iterable[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for s in body:
            found = self.visit(s)
            done += found if isinstance(found, list) else [] if found is None else [found]
        return done or [ast.Pass()]

    # Conditions and loops
    def visit_If(self, node: ast.If) -> Any:
        returns = scopes.has(node, ast.Return)
        if returns and not getattr(node, "returns", False):
            node.test = _placed(_call("python_bool", self.visit(node.test)), node)  # within `try`
            node.body = self.statements(node.body)
            node.orelse = self.statements(node.orelse) if node.orelse else []
            return node
        parts, n = self._parts[id(node)], self._number()
        test = self.visit(node.test)
        made = [
            self._function(f"_body_{n}", self.statements(node.body), parts),
            self._function(f"_orelse_{n}", self.statements(node.orelse), parts),
            *self._state(n, parts),
        ]
        call = _call("branch", test, _load(f"_body_{n}"), _load(f"_orelse_{n}"), _load(f"_state_{n}"))
        end: ast.stmt = ast.Return(call) if returns else ast.Expr(call)
        return [_placed(s, node) for s in (*made, end)]

    def visit_While(self, node: ast.While) -> Any:
        parts, n = self._parts[id(node)], self._number()
        test = node.test
        until = getattr(node, "until", [])
        if until:
            test = ast.BoolOp(ast.And(), [none_of(until), test])
        made = [
            self._function(f"_test_{n}", [ast.Return(self.visit(test))], parts),
            self._function(f"_body_{n}", self.statements(node.body), parts),
            *self._state(n, parts),
        ]
        call = _call("while_loop", _load(f"_test_{n}"), _load(f"_body_{n}"), _load(f"_state_{n}"))
        return [_placed(s, node) for s in (*made, ast.Expr(call), *self._else(node))]

    def visit_For(self, node: ast.For) -> Any:
        parts, n = self._parts[id(node)], self._number()
        take = ast.Assign([node.target], _load("_item"))
        until = getattr(node, "until", [])
        more = ast.Return(self.visit(none_of(until) if until else ast.Constant(True)))
        iterable = self.visit(node.iter)
        made = [
            self._function(f"_take_{n}", [take], parts, "_item"),
            self._function(f"_test_{n}", [more], parts),
            self._function(f"_body_{n}", self.statements(node.body), parts),
            *self._state(n, parts),
        ]
        given = [_load(f"{p}_{n}") for p in ("_take", "_test", "_body", "_state")]
        call = ast.Expr(_call("for_loop", iterable, *given))
        return [_placed(s, node) for s in (*made, call, *self._else(node))]

    def _else(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """Rewrite the `else` of a loop without `break`, which always runs."""
        return self.statements(node.orelse) if node.orelse else []

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _function(self, name: str, body: list[ast.stmt], parts: _Parts, *parameters: str) -> ast.stmt:
        """Return an inner function that binds names of the enclosing function."""
        start: list[ast.stmt] = [
            kind(names)
            for kind in (ast.Nonlocal, ast.Global)
            if (names := [n for n in parts.names if self._outer.get(n, ast.Nonlocal) is kind])
        ]
        args = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
        made: Any = ast.FunctionDef(name, args, [*start, *body], [], None, None)
        made.type_params = []
        return made  # type: ignore[no-any-return]

    def _state(self, n: int, parts: _Parts) -> list[ast.stmt]:
        """Return the statements that create `_state_n`."""
        self.states |= set(parts.names)
        names = parts.names
        get = self._function(f"_get_{n}", [ast.Return(_tuple(names, ast.Load()))], parts)
        take: ast.stmt = ast.Pass()
        if names:
            take = ast.Assign([_tuple(names, ast.Store())], _load("_values"))
        put = self._function(f"_set_{n}", [take], parts, "_values")
        read = [x for x in names if x in parts.read or x in self._outer]
        state = _call(
            "State",
            _constants(names),
            _load(f"_get_{n}"),
            _load(f"_set_{n}"),
            _constants(read),
            _constants(parts.lists),
        )
        return [get, put, _assign(f"_state_{n}", state)]

    # Other statements
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node  # is rewritten when it is called

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = ast.Constant(None) if node.msg is None else self.visit(node.msg)
        call = _call("check", self.visit(node.test), _lazy(message))
        return _placed(ast.Expr(call), node)

    # Expressions
    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        if scopes.has(node, *_LAZY_BREAKERS):
            return node
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return _placed(_call(name, *(_lazy(self.visit(v)) for v in node.values)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return _placed(_call("logical_not", node.operand), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) == 1 or scopes.has(node, *_LAZY_BREAKERS):
            return self.generic_visit(node)
        left = [node.left, *node.comparators[:-1]]
        if not all(isinstance(v, (ast.Name, ast.Constant)) for v in left[1:]):
            return self.generic_visit(node)  # the middle is computed once
        pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(left, node.ops, node.comparators)]
        return _placed(_call("logical_and", *(_lazy(self.visit(p)) for p in pairs)), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        if scopes.has(node, *_LAZY_BREAKERS):
            return self.generic_visit(node)
        test, body, orelse = map(self.visit, (node.test, node.body, node.orelse))
        return _placed(_call("choose", test, _lazy(body), _lazy(orelse)), node)

    def visit_Call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Name("super") if not node.args and self._first:
                node.args = [_load("__class__"), _load(self._first)]
                return _placed(node, node)
            case ast.Attribute(ast.Name(name)) if name == RUNTIME:
                return self.generic_visit(node)
        self.generic_visit(node)
        node.func = _placed(_call("call", node.func), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if node.attr == "shape" and isinstance(node.ctx, ast.Load):
            return _placed(_call("shape", node.value), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        sliced = any(isinstance(n, (ast.Slice, ast.Starred)) for n in ast.walk(node.slice))
        if isinstance(node.ctx, ast.Load) and not sliced:
            return _placed(_call("item", node.value, node.slice), node)
        return node


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _tuple(names: Sequence[str], ctx: ast.expr_context) -> ast.Tuple:
    return ast.Tuple([ast.Name(n, ctx) for n in names], ctx)


def _constants(names: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(n) for n in names], ast.Load())


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_load(RUNTIME), name, ast.Load()), list(args), [])


def _lazy(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _placed(node: Any, like: ast.AST) -> Any:
    """Copy the line numbers of the replaced node to a new node."""
    return ast.fix_missing_locations(ast.copy_location(node, like))
