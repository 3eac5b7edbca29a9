"""State that the checks of a script share: findings, and the meanings of names."""

import ast
from collections.abc import Iterator
from typing import Any

from jfluid.doctor.findings import Finding, Severity
from jfluid.doctor.fluid_api import Api
from jfluid.doctor.names import Named, NameScope, Resolver, Value
from jfluid.doctor.rules import RulesByUse, UseRule
from jfluid.doctor.walking import Walker


class Examination(Walker):
    """Examination of a source: a script, or the cells of a notebook.

    Attributes:
        findings: what was found so far.
        api: Fluid's names.
    """

    def __init__(self, file: str, api: Api, rules: RulesByUse):
        super().__init__()
        self.findings: list[Finding] = []
        self.api = api
        self._file, self._rules = file, rules
        self._cell = 0
        self._resolver = Resolver(api)
        self._scope = NameScope()
        self._selves: dict[int, dict[str, Value]] = {}  # what attributes of self stand for, by class
        self._branches = 0  # conditions around the node
        # of expressions, since a name was bound last; with the scope that they stand in
        self._values: dict[int, tuple[ast.expr, NameScope, Value]] = {}

    def at_cell(self, cell: int) -> None:
        """Attribute the next findings to a cell of a notebook."""
        self._cell = cell

    def add(self, severity: Severity, node: ast.AST, code: str, subject: str, happens: str, do: str = "") -> None:
        """Add a finding at a node, once for a line."""
        line = getattr(node, "lineno", 0)
        found = Finding(severity, self._file, line, code, subject, happens, do, self._cell)
        if found not in self.findings[-20:]:
            self.findings.append(found)

    def add_rule(self, rule: UseRule, node: ast.AST, subject: str, call: str = "") -> None:
        """Add the finding of a rule; the finding of a refused value names the call."""
        if not rule.certain or not self._branches:
            happens = call + rule.happens if rule.code == "refused-value" else rule.happens
            self.add(rule.severity, node, rule.code, subject, happens, rule.do)

    def rules_of(self, named: Named, arguments: dict[str, Any]) -> Iterator[UseRule]:
        """Return the rules that a call meets."""
        yield from self._rules.of_call(named.entry, arguments)

    def is_fluid(self, path: str) -> bool:
        """Return True if a module belongs to Fluid."""
        return self._resolver.module(path).of_fluid

    def value(self, node: ast.expr) -> Value:
        """Return the object that an expression stands for, attributes of `self` included."""
        known = self._values.get(id(node))
        if known is not None and known[0] is node and known[1] is self._scope:
            return known[2]
        found = self._value(node)
        self._values[id(node)] = node, self._scope, found
        return found

    def forget(self) -> None:
        """Drop the syntax tree and keep the findings."""
        self._values.clear()

    def _bind(self, name: str, value: Value, maybe: bool = False) -> None:
        """Let a name of this scope stand for a value; see `NameScope.bind`."""
        self._scope.bind(name, value, maybe)
        self._values.clear()

    def _value(self, node: ast.expr) -> Value:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and self._scope.parent is not None
        ):
            return self._selves.get(id(self._scope.parent), {}).get(node.attr)
        if isinstance(node, ast.Attribute):
            return self._resolver.member(self.value(node.value), node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = self.value(node.func)
            if isinstance(called, Named) and called.entry.kind != "missing":
                return self._resolver.made_by(called.entry)
        return self._resolver.value(node, self._scope, self.value)
