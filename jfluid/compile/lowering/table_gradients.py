"""Sparse gradients of tables: rows replace a dense gradient that only an SGD update reads.

A step then needs no second table. Each row of a dense gradient is the sum of its occurrences, in order. All other rows
are zero and leave the table unchanged: the numbers are those of the dense gradient.
"""

from collections.abc import Container, Iterable, Set
from typing import Any

import numpy as np

from jfluid.compile.lowering.plan import Item
from jfluid.ir.block import reads_of, writes_of
from jfluid.ir.operator import Operator
from jfluid.ops.ragged import rows_of

_GRADIENTS = ("lookup_table_grad", "lookup_table_v2_grad")
_UPDATE = "sgd"  # every other optimizer changes all rows, by its state
# A dense gradient costs more than sorted rows from LEAST elements of a table on, if these are at least _ROWS times the
# elements of the looked-up rows and _IDS times the ids.
LEAST, _ROWS, _IDS = 1 << 22, 4, 128


def pays(table: Any, ids: Any, grad: Any) -> bool:
    """Return whether rows cost less than the whole gradient of a table does."""
    rows, looked_up = rows_of(grad), rows_of(ids)
    return int(np.size(table)) >= max(LEAST, _ROWS * np.size(rows), _IDS * np.size(looked_up))


def only_updated(items: Iterable[Item], wanted: Container[str]) -> Set[int]:
    """Return the places of the operators that give such gradients.

    Args:
        wanted: names of the values that are read after the operators.
    """
    readers: dict[str, list[Operator]] = {}
    writers: dict[str, int] = {}
    found: dict[int, Operator] = {}
    for at, (_, op, _) in enumerate(items):
        for name in {*reads_of(op), *op.input_arg_names}:
            readers.setdefault(name, []).append(op)
        for name in writes_of(op):
            writers[name] = writers.get(name, 0) + 1
        if op.type in _GRADIENTS and not op.attrs.get("is_sparse"):
            found[at] = op
    return {at for at, op in found.items() if _is_only_updated(op, readers, writers, wanted)}


def _is_only_updated(
    op: Operator,
    readers: dict[str, list[Operator]],
    writers: dict[str, int],
    wanted: Container[str],
) -> bool:
    (grad,) = op.output("W@GRAD") or [""]
    reading = readers.get(grad, [])
    return (
        len(reading) == 1
        and reading[0].type == _UPDATE
        and reading[0].input("Grad") == [grad]
        and reading[0].input("Param") == op.input("W")
        and writers[grad] == 1
        and grad not in wanted
    )
