"""Tables of a server's program: the spec that its optimizer, and the values that its startup program, say."""
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors
from jfluid.files.tensor_format import load_rows
from jfluid.ir.operator import Operator
from jfluid.ps_server import kernels, specs
from jfluid.ps_server.table import SparseTable
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.distributed.program_store import Update

Array = np.ndarray[Any, Any]

# Of each optimizer: the spec of an operator of it.
_RULES: dict[str, Callable[[Operator], specs.Optimizer]] = {
    "sgd": lambda op: specs.Sgd(learning_rate=0.0),
    "momentum": lambda op: specs.Momentum(learning_rate=0.0, mu=op.attr("mu"), use_nesterov=op.attr("use_nesterov")),
    "adagrad": lambda op: specs.Adagrad(learning_rate=0.0, epsilon=op.attr("epsilon")),
    "adam": lambda op: specs.Adam(learning_rate=0.0, beta1=op.attr("beta1"), beta2=op.attr("beta2"),
                                  epsilon=op.attr("epsilon"), lazy_mode=op.attr("lazy_mode")),
    "rmsprop": lambda op: specs.RMSProp(learning_rate=0.0, rho=op.attr("decay"), epsilon=op.attr("epsilon"),
                                        momentum=op.attr("momentum"), centered=op.attr("centered")),
}


# Of each optimizer with slots: the operator's input for each of the table's slots.
_SLOTS: dict[str, dict[str, str]] = {
    "momentum": {"velocity": "Velocity"},
    "adagrad": {"moment": "Moment"},
    "adam": {"moment1": "Moment1", "moment2": "Moment2"},
    "rmsprop": {"mean_square": "MeanSquare", "momentum": "Moment", "mean_grad": "MeanGrad"},
}
_MANY_STEPS = 1 << 20
_READ_BYTES = 16 << 20
# A float32 power of Adam below this is too small to tell the number of steps.
_SMALL_POWER = 1e-30


class ProgramTable(SparseTable):
    """A table of a server's program.

    Attributes:
        rate: the variable of its learning rate; empty where trainers send differences.
        variables: of each slot.
        powers: of Adam: the variables that hold powers of constants, which follow from the number of steps.
    """

    rate = ""

    def __init__(self, spec: specs.TableSpec):
        super().__init__(spec)
        self.variables: dict[str, str] = {}
        self.powers: dict[str, float] = {}

    def empty(self) -> "ProgramTable":
        """A table like this one, without rows."""
        twin = ProgramTable(self.spec)
        twin.rate, twin.variables, twin.powers = self.rate, self.variables, self.powers
        return twin

    def slots(self, ids: Array) -> dict[str, Array]:
        """float32 [n, width] by the name of each variable of the optimizer's state."""
        found = super().slots(ids)
        unused = {name: np.zeros((len(ids), self.spec.width), np.float32)
                  for slot, name in self.variables.items() if slot not in found}
        return {self.variables.get(slot, slot): values for slot, values in found.items()} | unused

    def power(self, name: str) -> Array:
        """float32 [1]: what Fluid would have in a variable of `powers` after as many steps."""
        return np.full(1, np.float32(self.powers[name]) ** (self.step + 1), np.float32)

    def begin(self, tensor: Callable[[str], Any]) -> None:
        """Take over the number of steps that the powers in the scope tell."""
        told = [(float(np.array(tensor(name)).reshape(-1)[0]), float(np.float32(beta))) for name, beta in self.powers.items()]
        counts = [round(math.log(value) / math.log(beta)) - 1 for value, beta in told
                  if value > _SMALL_POWER and 0 < beta < 1]
        # Where all powers have vanished the rate no longer depends on the count.
        step = counts[0] if counts else _MANY_STEPS if told else 0
        if step > 0:
            self.restore_clock(step, self.learning_rate)


def make_table(update: "Update", scope: Scope, tensor: Callable[[str], Any]) -> ProgramTable:
    """The table that a block of a server's program updates, with its first values from the scope, where they are no longer
    needed then.

    Raises UnsupportedError for updates that no table can make.
    """
    var = update.block.var_recursive(update.param)
    rule: specs.Optimizer = specs.Sgd(learning_rate=0.0)
    rate, slots = "", list[str]()
    op = next((op for op in update.ops if op.input("Param")), None)
    if op is not None:
        if len(update.ops) > 1 or op.type not in _RULES:
            raise errors.UnsupportedError(f"table {update.param}: rows cannot be updated by "
                                          f"{', '.join(o.type for o in update.ops)}; expected one of {', '.join(_RULES)}")
        rule, rate = _RULES[op.type](op), op.input("LearningRate")[0]
        slots = [n for n in update.state if update.block.var_recursive(n).shape == var.shape and n != update.param]
    found = scope.find_var(update.param)
    if isinstance(rule, specs.Adagrad):
        rule = rule.model_copy(update={"initial_accumulator_value": _first_value(slots[0], scope, tensor)})
    law, seed = (found.law if found is not None else None) or (specs.Constant(), 0)
    width = int(np.prod(var.shape[1:]))
    table = ProgramTable(specs.TableSpec(name=update.param, width=width, initializer=law, seed=seed, optimizer=rule))
    table.rate = rate
    if op is not None:
        table.variables = {slot: op.input(name)[0] for slot, name in _SLOTS.get(op.type, {}).items() if op.input(name)}
        table.powers = {op.input(f"Beta{i}Pow")[0]: op.attr(f"beta{i}") for i in (1, 2)} if op.type == "adam" else {}
        table.begin(tensor)
    if found is None or found.law is None:
        _fill(table, tensor)
        for name in (update.param, *slots):
            tensor(name)._value = None
    return table


def _fill(table: ProgramTable, tensor: Callable[[str], Any]) -> None:
    """Put the values in the scope, and the optimizer's state where it is not as rows are born, into a table."""
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
    """Put those rows of a file of the whole table that fall to this server into a table."""
    step = max(_READ_BYTES // (4 * table.spec.width), 1)
    for first in range(0, shape[0], step):
        ids = np.arange(first, min(first + step, shape[0]), dtype=np.int64)
        values = load_rows(path, table.spec.name, np.float32, shape, first, len(ids)).reshape(len(ids), -1)
        mine = kernels.owners_of(ids, servers) == server
        table.assign(ids[mine], values[mine])


def _first_value(name: str, scope: Scope, tensor: Callable[[str], Any]) -> float:
    """The value that an optimizer's state of a new row begins with; 0 in a table whose rows are all there."""
    found = scope.find_var(name)
    if found is not None and found.law is not None:
        return float(found.law[0].value)
    values = np.array(tensor(name))
    return float(values.flat[0]) if values.min() == values.max() else 0.0
