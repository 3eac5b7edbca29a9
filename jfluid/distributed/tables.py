"""Tables of a server's program: the spec that its optimizer, and the values that its startup program, say."""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors
from jfluid.distributed.rows import Way, way_of
from jfluid.ps_server import specs
from jfluid.ps_server.table import SparseTable
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.distributed.program_store import Update


class ProgramTable(SparseTable):
    """A table of a server's program.

    Attributes:
        rate: the variable of its learning rate; empty where trainers send differences.
    """

    rate = ""


def make_table(update: "Update", scope: Scope, tensor: Callable[[str], Any], seed: int,
               device: Callable[[], Any]) -> tuple[ProgramTable, Way]:
    """The table that a block of a server's program updates, with its first values from the scope, where they are no longer
    needed then; and how it is updated.

    Args:
        tensor: a variable of the scope.
        seed: of the program's random numbers.
        device: where functions of the update run.

    Raises UnsupportedError for updates that no table can make.
    """
    way, parts = way_of(update, lambda name: _only_value(name, scope, tensor), tensor, seed, device)
    found = scope.find_var(update.param)
    law, first = (found.law if found is not None else None) or (specs.Constant(), 0)
    table = ProgramTable(specs.TableSpec(name=update.param, width=parts.shape[1], initializer=law, seed=first,
                                         optimizer=way.optimizer))
    table.rate = way.rate
    if found is None or found.law is None:
        values = np.array(tensor(update.param), np.float32)
        table.assign(np.arange(len(values), dtype=np.int64), values)
        for name in (update.param, *parts.slots):
            tensor(name)._value = None
    return table, way


def _only_value(name: str, scope: Scope, tensor: Callable[[str], Any]) -> float:
    """The value that all elements of an optimizer's state begin with."""
    found = scope.find_var(name)
    if found is not None and found.law is not None:
        return float(found.law[0].value)
    values = np.array(tensor(name))
    if values.min() != values.max():
        raise errors.UnsupportedError(f"{name}: rows of a table begin with one value of the optimizer's state, and this has "
                                      f"values from {values.min()} to {values.max()}")
    return float(values.flat[0])
