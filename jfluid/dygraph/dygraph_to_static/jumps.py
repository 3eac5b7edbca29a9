"""Rewrite functions without `break`, `continue` and early `return`: flags and branches take their place.

    if a:                         if a:
        return x                      return x
    y = x + 1           ->        else:
    return y                          y = x + 1
                                      return y

A loop with jumps gets flags. Statements after a possible jump run under `if not flag`, and the loop continues while its
flag is not set.
"""

import ast
import copy
from collections.abc import Sequence

from jfluid.dygraph.dygraph_to_static.scopes import has, inside

RETURNED = "_returned"  # True after a return in a loop
RESULT = "_result"  # the returned value
_LOOPS = (ast.For, ast.While)


def without_jumps(function: ast.FunctionDef) -> None:
    """Rewrite a function so that it returns at the ends of branches alone."""
    function.body = _Jumps().tail(function.body)


class _Jumps:
    def __init__(self) -> None:
        self._count = 0

    # Returns
    def tail(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Rewrite statements after which the function ends."""
        done: list[ast.stmt] = []
        for i, s in enumerate(body):
            rest = list(body[i + 1 :])
            if isinstance(s, ast.Return):
                return [*done, s]
            if isinstance(s, ast.If) and has(s, ast.Return):
                if not _ends(s.body) and not _ends(s.orelse):
                    return done + self._flagged(s, rest)
                return [*done, self._branches(s, rest)]
            if isinstance(s, (ast.With, ast.AsyncWith)) and has(s, ast.Return):
                if not _ends(s.body):
                    return done + self._flagged(s, rest)
                s.body = self.tail(s.body)
                return [*done, s]
            if isinstance(s, _LOOPS) and has(s, ast.Return):
                return done + self._flagged(s, rest)
            done += self._statement(s)
        return done

    def _branches(self, s: ast.If, rest: list[ast.stmt]) -> ast.If:
        """Move the statements after an `if` that returns into the branch that continues."""
        s.body = self.tail(s.body if _ends(s.body) else [*s.body, *rest])
        s.orelse = self.tail(s.orelse if _ends(s.orelse) else [*s.orelse, *rest])
        s.returns = True  # type: ignore[attr-defined]  # read by the rewriting of conditions
        return s

    def _flagged(self, s: ast.stmt, rest: list[ast.stmt]) -> list[ast.stmt]:
        """Replace returns in a statement by a flag, and return after the statement."""
        start = [_assign(RETURNED, ast.Constant(False), s)]
        endless = (
            isinstance(s, ast.While)
            and isinstance(s.test, ast.Constant)
            and bool(s.test.value)
            and not _jumps_of(s, ast.Break)
        )
        _Returns().visit(s)
        going = self._statements([s], RETURNED)
        end = ast.copy_location(ast.Return(_name(RESULT)), s)
        if endless:
            return [*start, *going, end]
        leave = ast.copy_location(ast.If(_name(RETURNED), [end], []), s)
        return [*start, *going, self._branches(leave, rest)]

    # Loops
    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        """Rewrite one statement that does not return."""
        return self._statements([s], None)

    def _statements(self, body: Sequence[ast.stmt], *flags: str | None) -> list[ast.stmt]:
        """Rewrite statements; after a statement that sets a flag, the rest runs if no flag is set."""
        known = [f for f in flags if f]
        done: list[ast.stmt] = []
        for i, s in enumerate(body):
            done += self._nested(s, known)
            set_here = [f for f in known if _sets(s, f)]
            if isinstance(s, (ast.Break, ast.Continue)):
                return done
            rest = body[i + 1 :]
            if set_here and rest:
                under = ast.If(none_of(set_here), self._statements(rest, *flags), [])
                return [*done, ast.copy_location(under, s)]
        return done

    def _nested(self, s: ast.stmt, flags: list[str]) -> list[ast.stmt]:
        if isinstance(s, _LOOPS):
            return self._loop(s, flags)
        if isinstance(s, ast.Try):
            for part in (s.body, s.orelse, s.finalbody, *(h.body for h in s.handlers)):
                part[:] = self._statements(part, *flags)
        elif isinstance(s, (ast.If, ast.With)):
            s.body = self._statements(s.body, *flags)
            if isinstance(s, ast.If):
                s.orelse = self._statements(s.orelse, *flags)
        return [s]

    def _loop(self, s: ast.For | ast.While, outer: list[str]) -> list[ast.stmt]:
        """Rewrite a loop with a flag for each kind of jump."""
        self._count += 1
        before: list[ast.stmt] = []
        inner: list[str] = [f for f in outer if f == RETURNED and _sets(s, f)]
        ending = list(inner)
        for kind in (ast.Break, ast.Continue):
            if any(_jumps_of(s, kind)):
                flag = f"_{kind.__name__.lower()}_{self._count}"
                _Flag(kind, flag).visit_loop(s)
                inner.append(flag)
                start = _assign(flag, ast.Constant(False), s)
                if kind is ast.Break:
                    ending.append(flag)
                    before.append(start)
                else:
                    s.body.insert(0, start)
        s.body = self._statements(s.body, *inner)
        after = self._statements(s.orelse, *outer)
        s.orelse = []
        if ending:
            s.until = ending  # type: ignore[union-attr]  # read by the rewriting of loops
            if after:
                after = [ast.copy_location(ast.If(none_of(ending), after, []), s)]
        return [*before, s, *after]


class _Returns(ast.NodeTransformer):
    """Replaces each return by an assignment of a flag."""

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        made: list[ast.stmt] = [_assign(RESULT, value, node)]
        made.append(_assign(RETURNED, ast.Constant(True), node))
        return made

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node


class _Flag(ast.NodeTransformer):
    """Replaces the jumps of a kind, in a loop, by an assignment of a flag."""

    def __init__(self, kind: type[ast.stmt], flag: str):
        self._kind, self._flag = kind, flag

    def visit_loop(self, loop: ast.For | ast.While) -> None:
        loop.body = [s for old in loop.body for s in _listed(self.visit(old))]

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, self._kind):
            return _assign(self._flag, ast.Constant(True), node)
        if isinstance(node, (*_LOOPS, ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            if isinstance(node, _LOOPS):  # a jump in `else` belongs to the loop around it
                node.orelse = [s for old in node.orelse for s in _listed(self.visit(old))]
            return node
        return self.generic_visit(node)


def _listed(found: ast.AST) -> list[ast.stmt]:
    return [found] if isinstance(found, ast.stmt) else []


def _jumps_of(loop: ast.For | ast.While, kind: type[ast.stmt]) -> list[ast.stmt]:
    """Return the jumps of a kind that belong to a loop, without the jumps of inner loops."""

    def of(nodes: Sequence[ast.AST]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for n in nodes:
            if isinstance(n, kind):
                found.append(n)
            elif isinstance(n, _LOOPS):
                found += of(n.orelse)
            elif not isinstance(n, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
                found += of(list(ast.iter_child_nodes(n)))
        return found

    return of(loop.body)


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Return True if the end of the statements is never reached."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    return isinstance(last, ast.With) and _ends(last.body)


def _sets(s: ast.AST, flag: str) -> bool:
    return any(
        isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Name)
        and n.targets[0].id == flag
        and isinstance(n.value, ast.Constant)
        and n.value.value is True
        for n in inside(s)
    )


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def none_of(flags: Sequence[str]) -> ast.expr:
    """Return the expression that is true if no flag is set."""
    tests: list[ast.expr] = [ast.UnaryOp(ast.Not(), _name(f)) for f in flags]
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)


def _assign(name: str, value: ast.expr, like: ast.AST) -> ast.stmt:
    made = ast.Assign([ast.Name(name, ast.Store())], copy.copy(value))
    return ast.fix_missing_locations(ast.copy_location(made, like))
