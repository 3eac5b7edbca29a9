"""Tables of a server's program: the spec that its optimizer, and the values that its startup program, say."""
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import errors
from jfluid.ir.operator import Operator
from jfluid.ps_server import specs
from jfluid.ps_server.table import SparseTable
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.distributed.program_store import Update

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


class ProgramTable(SparseTable):
    """A table of a server's program.

    Attributes:
        rate: the variable of its learning rate; empty where trainers send differences.
    """

    rate = ""


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
    if isinstance(rule, specs.Adagrad):
        rule = rule.model_copy(update={"initial_accumulator_value": _only_value(slots[0], scope, tensor)})
    found = scope.find_var(update.param)
    law, seed = (found.law if found is not None else None) or (specs.Constant(), 0)
    width = int(np.prod(var.shape[1:]))
    table = ProgramTable(specs.TableSpec(name=update.param, width=width, initializer=law, seed=seed, optimizer=rule))
    table.rate = rate
    if found is None or found.law is None:
        values = np.array(tensor(update.param), np.float32).reshape(-1, width)
        table.assign(np.arange(len(values), dtype=np.int64), values)
        for name in (update.param, *slots):
            tensor(name)._value = None
    return table


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
