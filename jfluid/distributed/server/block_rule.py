"""Compiled rules for pieces of parameters with a single optimizer: a call of XLA costs more than such an update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid.distributed.programs.server_program import UpdateBlock
from jfluid.ps_server import dense
from jfluid.ps_server.optimizers import RULES
from jfluid.ps_server.update_rule import UpdateRule, rule_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BlockRule:
    """The update of one piece.

    Attributes:
        rule: of the optimizer.
        names: the parameter, and the optimizer's state in the order of the rule's slots.
        rate: the variable of the learning rate.
        shape: shape of each piece.
    """

    rule: UpdateRule
    names: tuple[str, ...]
    rate: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> Any:
        """Key of the pieces that one call of a kernel updates."""
        return self.rule.settings, self.rate


class BlockRules:
    """The updates of pieces of one kind, by one call of a kernel.

    The variables stay in the server's scope, as parts of one array. Each update makes a new array, so that
    readers of the old array keep their values.

    Args:
        rules: of the pieces.
        tensor: a variable of the scope.
    """

    def __init__(self, rules: Sequence[BlockRule], tensor: Callable[[str], Any]):
        self._rule, self.rate, self._tensor = rules[0].rule, rules[0].rate, tensor
        self._names = [name for rule in rules for name in rule.names]
        self._shapes = [rule.shape for rule in rules for _ in rule.names]
        self._every = len(rules[0].names)
        self._widths = np.array([np.prod(rule.shape) for rule in rules], np.int64)
        ends = np.cumsum(np.repeat(self._widths, self._every)).tolist()
        self._places = [slice(a, b) for a, b in zip([0, *ends], ends)]
        self._numbers = np.empty(0, np.float32)
        self._values: list[Any] = [None] * len(self._names)

    def update(self, gradients: Sequence[Array], learning_rate: np.float32) -> list[Array]:
        """Update by gradients of the parameters' shapes; returns the parameters' new values."""
        tensors = [self._tensor(name) for name in self._names]
        if any(t.value is not v for t, v in zip(tensors, self._values)):  # set by a load or a snapshot
            self._numbers = np.concatenate([np.ravel(t.value) for t in tensors])
        self._numbers = dense.updated(self._rule, self._numbers, gradients, learning_rate, self._widths)
        numbers = self._numbers.view()
        numbers.flags.writeable = False
        self._values = [numbers[place].reshape(shape) for place, shape in zip(self._places, self._shapes)]
        for tensor, value in zip(tensors, self._values):
            tensor.value = value
        return self._values[:: self._every]


def block_rule_of(update: UpdateBlock, tensor: Callable[[str], Any]) -> BlockRule | None:
    """Return the rule of a piece's update; None for any other update."""
    op = update.ops[0] if len(update.ops) == 1 else None
    rule = RULES.get(op.type) if op is not None else None
    if op is None or rule is None or rule.powers or op.input("Grad") != [update.grad]:
        return None
    if any(op.input(slot) and slot not in rule.inputs for slot in op.input_names):
        return None
    made = rule_of(rule.settings_of(op.attr))
    inputs = {slot.name: slot.input for slot in rule.slots}
    names = (update.param, *(op.input(inputs[name])[0] for name in made.names))
    shape = tuple(tensor(update.param).shape())
    for name in names:
        value = tensor(name).value
        if value.dtype != np.float32 or tuple(value.shape) != shape:
            return None
    return BlockRule(made, names, op.input("LearningRate")[0], shape)
