"""Tables of a server's program: the spec that its optimizer, and the values that its startup program, say."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid.distributed.programs.server_program import UpdateBlock
from jfluid.distributed.tables.row_updates import RowUpdate, row_update_of
from jfluid.files.tensor_format import load_rows
from jfluid.ir.operator import Operator
from jfluid.ps_server import kernels, specs
from jfluid.ps_server.optimizers import RULES
from jfluid.ps_server.table import SparseTable
from jfluid.scope import Scope

Array = np.ndarray[Any, Any]

_MANY_STEPS = 1 << 20
_READ_BYTES = 16 << 20
# A float32 power of a constant below this is too small to tell the number of steps.
_SMALL_POWER = 1e-30


class ProgramTable(SparseTable):
    """A table of a server's program.

    Attributes:
        rate: the variable of the learning rate; empty if trainers send differences.
        variables: of each slot.
        powers: the variables that hold powers of constants, which follow from the number of steps.
    """

    rate = ""

    def __init__(self, spec: specs.TableSpec):
        super().__init__(spec)
        self.variables: dict[str, str] = {}
        self.powers: dict[str, float] = {}

    def name_variables(self, op: Operator) -> None:
        """Take the variables' names from the operator that the table's rule stands for."""
        rule = RULES.get(op.type)
        if rule is not None:
            self.variables = {slot.name: op.input(slot.input)[0] for slot in rule.slots if op.input(slot.input)}
            self.powers = {
                op.input(slot)[0]: op.attr(rule.attributes[setting]) for slot, setting in rule.powers.items()
            }

    def empty(self) -> "ProgramTable":
        """Return a table like this one, without rows."""
        twin = ProgramTable(self.spec)
        twin.rate, twin.variables, twin.powers = self.rate, self.variables, self.powers
        return twin

    def slots(self, ids: Array) -> dict[str, Array]:
        """Return float32 [n, width] by the name of each variable of the optimizer's state."""
        found = super().slots(ids)
        unused = {
            name: np.zeros((len(ids), self.spec.width), np.float32)
            for slot, name in self.variables.items()
            if slot not in found
        }
        return {self.variables.get(slot, slot): values for slot, values in found.items()} | unused

    def power(self, name: str) -> Array:
        """Return float32 [1]: the value of Fluid's variable of `powers` after the same number of steps."""
        return np.full(1, np.float32(self.powers[name]) ** (self.step + 1), np.float32)

    def begin(self, tensor: Callable[[str], Any]) -> None:
        """Take over the number of steps that the powers in the scope tell."""
        told = [
            (float(np.array(tensor(name)).reshape(-1)[0]), float(np.float32(beta)))
            for name, beta in self.powers.items()
        ]
        counts = [
            round(math.log(value) / math.log(beta)) - 1 for value, beta in told if value > _SMALL_POWER and 0 < beta < 1
        ]
        # Where all powers have vanished the rate no longer depends on the count.
        step = counts[0] if counts else _MANY_STEPS if told else 0
        if step > 0:
            self.restore_clock(step, self.learning_rate)


def make_table(
    update: UpdateBlock,
    scope: Scope,
    tensor: Callable[[str], Any],
    seed: int,
    device: Callable[[], Any],
    options: Mapping[str, Any] | None = None,
) -> tuple[ProgramTable, RowUpdate]:
    """Return the table that a block of a server's program updates, and its update.

    The table gets its first values from the scope, which no longer keeps the values then.
    """
    row_update, parts = row_update_of(update, lambda name: _first_value(name, scope, tensor), tensor, seed, device)
    found = scope.find_var(update.param)
    initializer, first = (found.row_initializer if found is not None else None) or (specs.Constant(), 0)
    table = ProgramTable(
        specs.TableSpec(
            name=update.param,
            width=parts.shape[1],
            initializer=initializer,
            seed=first,
            optimizer=row_update.optimizer,
            shards=_shards(),
            **(options or {}),
        )
    )
    table.rate = row_update.rate
    if isinstance(row_update.optimizer, specs.Program):
        table.variables = {name: name for name in parts.slots}
    elif update.ops:
        table.name_variables(update.ops[-1])
        table.begin(tensor)
    if found is None or found.row_initializer is None:
        _fill(table, tensor)
        for name in (update.param, *parts.slots):
            tensor(name)._value = None
    return table, row_update


def _shards() -> Any:
    """Enough that threads seldom wait for each other; every one more costs each call."""
    return min(2 ** (os.cpu_count() or 1).bit_length(), 16)


def _fill(table: ProgramTable, tensor: Callable[[str], Any]) -> None:
    """Put the values in the scope, and the optimizer's state where it differs from that of new rows, into a table."""
    width = table.spec.width
    values = np.array(tensor(table.spec.name), np.float32).reshape(-1, width)
    ids = np.arange(len(values), dtype=np.int64)
    table.assign(ids, values)
    for slot, name in table.variables.items():
        if slot not in table.rule.names:
            continue  # of an optimizer that does not use it
        state = np.array(tensor(name), np.float32).reshape(-1, width)
        if (state != table.rule.slots[table.rule.names.index(slot)]).any():
            table.assign_slots(ids, {slot: state})


def fill_owned(table: SparseTable, path: str, shape: Sequence[int], server: int, servers: int) -> None:
    """Put this server's rows of a file of the whole table into a table."""
    step = max(_READ_BYTES // (4 * table.spec.width), 1)
    for first in range(0, shape[0], step):
        ids = np.arange(first, min(first + step, shape[0]), dtype=np.int64)
        values = load_rows(path, table.spec.name, np.float32, shape, first, len(ids)).reshape(len(ids), -1)
        mine = kernels.owners_of(ids, servers) == server
        table.assign(ids[mine], values[mine])


def _first_value(name: str, scope: Scope, tensor: Callable[[str], Any]) -> float:
    """Return the first value of an optimizer state in a new row; 0 in a table that has all rows."""
    found = scope.find_var(name)
    if found is not None and found.row_initializer is not None:
        return float(found.row_initializer[0].value)
    values = np.array(tensor(name))
    return float(values.flat[0]) if values.min() == values.max() else 0.0
