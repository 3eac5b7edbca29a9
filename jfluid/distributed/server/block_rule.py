"""Pieces of parameters whose update is one optimizer that has a compiled rule: they are updated by that
rather than by XLA, whose call costs more than the update.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.distributed.programs.server_program import Update
from jfluid.ps_server import dense
from jfluid.ps_server.optimizers import RULES
from jfluid.ps_server.update_rule import Rule, rule_of

Array = np.ndarray[Any, Any]


class BlockRule:
    """The update of one piece. Its variables stay in the server's scope: as parts of one array, a new
    one after each update, so that who reads the old one keeps it.

    Args:
        names: the parameter, and the optimizer's state in the order of the rule's slots.
        rate: the variable of the learning rate.
        tensor: a variable of the scope.
    """

    def __init__(self, rule: Rule, names: list[str], rate: str, tensor: Callable[[str], Any]):
        self._rule, self._names, self.rate, self._tensor = rule, names, rate, tensor
        self._numbers = np.empty(0, np.float32)
        self._values: list[Array] = []

    def update(self, gradient: Array, learning_rate: np.float32) -> Array:
        """Update by a gradient of the parameter's shape; returns the parameter's new value."""
        tensors = [self._tensor(name) for name in self._names]
        if [id(t.value) for t in tensors] != [id(v) for v in self._values]:  # others have set them
            self._numbers = np.concatenate([np.ravel(t.value) for t in tensors])
        self._numbers = dense.updated(self._rule, self._numbers, gradient, learning_rate)
        self._values = list(self._numbers.reshape(len(tensors), *gradient.shape))
        for tensor, value in zip(tensors, self._values, strict=True):
            value.flags.writeable = False
            tensor.value = value
        return self._values[0]


def block_rule_of(update: Update, tensor: Callable[[str], Any]) -> BlockRule | None:
    """Return the rule of a piece's update; None where the update is more, or something else."""
    op = update.ops[0] if len(update.ops) == 1 else None
    rule = RULES.get(op.type) if op is not None else None
    if op is None or rule is None or rule.powers or op.input("Grad") != [update.grad]:
        return None
    if any(op.input(slot) and slot not in rule.inputs for slot in op.input_names):
        return None
    made = rule_of(rule.settings_of(op.attr))
    inputs = {slot.name: slot.input for slot in rule.slots}
    names = [update.param, *(op.input(inputs[name])[0] for name in made.names)]
    shape = tuple(tensor(update.param).shape())
    for name in names:
        value = tensor(name).value
        if value.dtype != np.float32 or tuple(value.shape) != shape:
            return None
    return BlockRule(made, names, op.input("LearningRate")[0], tensor)
