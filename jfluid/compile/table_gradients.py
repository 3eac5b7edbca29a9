"""Gradients of tables that nothing but an update by gradient descent reads: rows take their place, so that a
step needs no second table.

Each row of such a gradient is the sum of its occurrences, in their order, and all other rows are zero, which
leaves the table as it is: the numbers are those of the whole gradient.
"""

from collections.abc import Container, Iterable, Set

from jfluid.compile.plan import Item
from jfluid.ir.block import reads_of, writes_of
from jfluid.ir.operator import Operator

_GRADIENTS = ("lookup_table_grad", "lookup_table_v2_grad")
_UPDATE = "sgd"  # of the others each moves all rows, by what they keep of earlier gradients
LEAST = 1 << 22  # numbers of a table from which on a whole gradient costs more than sorting rows


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
