"""Runs of operators that drawings show as one box, by name scope."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jfluid.ir.types import EMPTY_NAME


@dataclass
class OperatorRun:
    """Consecutive operators that are drawn as one box.

    Attributes:
        title: type of the only operator; else the name scope, or the first and the last type, with their number.
        operators: of the run.
    """

    title: str
    operators: Sequence[Any]

    @property
    def read(self) -> list[str]:
        """Names that operators of the run read and no earlier operator of the run writes."""
        made: set[str] = set()
        found: dict[str, None] = {}
        for op in self.operators:
            found |= dict.fromkeys(n for n in op.input_arg_names if n != EMPTY_NAME and n not in made)
            made.update(op.output_arg_names)
        return list(found)

    @property
    def written(self) -> list[str]:
        """Names that operators of the run write."""
        return list(dict.fromkeys(n for op in self.operators for n in op.output_arg_names if n != EMPTY_NAME))


def scope_of(op: Any) -> tuple[str, ...]:
    """Return the name scope of an operator, part by part."""
    return tuple(part for part in str(op.attrs.get("op_namescope", "/")).split("/") if part)


def runs(ops: Sequence[Any], most: int | None = None) -> list[OperatorRun]:
    """Return operators as runs: each alone where there are `most` at most, else folded by name scope.

    The deepest scopes are folded first. Operators without a scope, or of more scopes than `most`, are folded in runs of
    equal length.
    """
    if most is None or len(ops) <= most:
        return [OperatorRun(op.type, [op]) for op in ops]
    for depth in range(max(len(scope_of(op)) for op in ops), 0, -1):
        found = list(_by_scope(ops, depth))
        if len(found) <= most:
            return found
    length = -(-len(ops) // most)
    return [_run(ops[i : i + length], "") for i in range(0, len(ops), length)]


def _by_scope(ops: Sequence[Any], depth: int) -> Iterator[OperatorRun]:
    """Yield runs of one scope, cut at a depth; operators without a scope stay alone."""
    for scope, group in groupby(ops, lambda op: scope_of(op)[:depth]):
        members = list(group)
        if scope:
            yield _run(members, "/".join(scope))
        else:
            yield from (OperatorRun(op.type, [op]) for op in members)


def _run(ops: Sequence[Any], scope: str) -> OperatorRun:
    if len(ops) == 1:
        return OperatorRun(ops[0].type, ops)
    return OperatorRun(f"{scope or f'{ops[0].type} ... {ops[-1].type}'} ({len(ops)} operators)", ops)
