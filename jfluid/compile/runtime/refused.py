"""Checks of operands before a segment runs: a refused step leaves all values unchanged.

The operators that the checks depend on run by themselves, and XLA removes computations that only other values need:
hardly anything remains for offsets that are fed, or for a fed LoD.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jfluid import errors
from jfluid.compile.lowering.plan import Item, before, live_ops
from jfluid.ir.block import reads_of
from jfluid.ir.operator import Operator
from jfluid.ops.refusals import RefusalRule

# By the identity of an operator: its first row in the table of refusals, and its rules.
Rows = dict[int, tuple[int, list[RefusalRule]]]


def refuses(items: Sequence[Item]) -> bool:
    """Return True if operators, or operators in their blocks, may refuse values."""
    return any(
        rule.applies(op) for item in items for _, op, definition in _with_inner(item) for rule in definition.refuses
    )


class Refusals:
    """Checks of a segment's operators and of the operators in their blocks.

    Attributes:
        rows: the rows of each operator in the table.
        items: the operators that the checks depend on.
        reads: the names that those operators read.
    """

    def __init__(self, items: Sequence[Item]):
        self.rows: Rows = {}
        self._asked: list[tuple[int, Operator, RefusalRule]] = []
        needed: dict[int, Item] = {}
        for item in items:
            position, op, _ = item
            before_it = len(self._asked)
            self._ask(item)
            if len(self._asked) > before_it:
                needed.update({i[0]: i for i in before(items, position, _reads(op))})
                needed[position] = item
        self.items = [needed[position] for position in sorted(needed)]
        self.reads = {n for _, op, _ in self.items for n in _reads(op)}

    def __len__(self) -> int:
        return len(self._asked)

    def _ask(self, item: Item) -> None:
        for position, op, definition in _with_inner(item):
            rules = [rule for rule in definition.refuses if rule.applies(op)]
            if rules:
                self.rows[id(op)] = len(self._asked), rules
                self._asked += [(position, op, rule) for rule in rules]

    def check(self, tables: np.ndarray) -> None:
        """Raise OperandError for the first operator with a row in a table.

        Args:
            tables: [parts, refusals, WIDTH].
        """
        wrong = tables[:, :, 0].any(axis=0)
        if not wrong.any():
            return
        at = int(wrong.argmax())
        row = next(table[at] for table in tables if table[at, 0])
        position, op, rule = self._asked[at]
        error = errors.OperandError(
            f"operator {op.type} (position {position} of its block) failed: {rule.error(row.tolist())}"
            + (f"\n  made at: {op.callsite}" if op.callsite else "")
        )
        error.located = True
        raise error


def _reads(op: Operator) -> set[str]:
    return reads_of(op) | set(op.input_arg_names)


def _with_inner(item: Item) -> Iterator[Item]:
    yield item
    for block in item[1].sub_blocks():
        for inner in live_ops(block):
            yield from _with_inner(inner)
