"""Update rule of an optimizer with its settings, and the learning rates for rows that have missed steps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jfluid.ps_server.optimizers import MOST_CONSTANTS, RULES, OptimizerSpec, Program, RuleDef
from jfluid.ps_server.validation import Spec

Array = np.ndarray[Any, Any]


class Rates:
    """Learning rates of all steps so far, as segments of equal rate, for `idle`.

    `add` must be called under the table's lock; kernels read the arrays together with `count`.
    """

    def __init__(self) -> None:
        self.steps = np.ones(16, np.int64)
        self.rates = np.zeros(16, np.float32)
        self.count = 1

    def add(self, step: int, rate: float) -> None:
        """Step number `step`, one after the last added, had this rate."""
        if self.rates[self.count - 1] == np.float32(rate) and step > 1:
            return
        if step > 1:
            if self.count == len(self.steps):
                # New arrays, since a kernel may be reading the old ones.
                self.steps, self.rates = (np.resize(self.steps, 2 * self.count), np.resize(self.rates, 2 * self.count))
            self.steps[self.count] = step
            self.count += 1
        self.rates[self.count - 1] = rate

    def restore(self, steps: Array, rates: Array) -> None:
        """Take over segments that `steps[:count]` and `rates[:count]` gave."""
        self.count = len(steps)
        self.steps = np.concatenate([steps, np.ones(16, np.int64)]).astype(np.int64)
        self.rates = np.concatenate([rates, np.zeros(16, np.float32)]).astype(np.float32)


@dataclass(frozen=True)
class UpdateRule:
    """Update rule of an optimizer with its settings.

    Attributes:
        settings: of the optimizer.
        definition: of the rule; None where the caller of the table brings a function.
        names: of the slots.
        slots: the first value of every group of `width` slots.
        hyper: the constants that the kernels take, float32 [4].
        idle: the kernel for the steps that rows have missed; None where such steps change nothing.
        horizon: number of steps without a gradient after which a row stands still.
    """

    settings: OptimizerSpec
    definition: RuleDef | None
    names: tuple[str, ...]
    slots: Array
    hyper: Array = field(default_factory=lambda: np.zeros(MOST_CONSTANTS, np.float32))
    idle: Callable[..., None] | None = None
    horizon: int = 0

    @property
    def update(self) -> Callable[..., None] | None:
        """The kernel of one update of rows with gradients; None where the caller of the table brings a function."""
        return self.definition.update if self.definition is not None else None

    def rate(self, learning_rate: float, step: int, sparse: bool = True) -> np.float32:
        """Return the rate of update number `step` (from 1).

        As in Fluid, sparse rows take that of the step after it.
        """
        if self.definition is None or self.definition.rate is None:
            return np.float32(learning_rate)
        return np.float32(self.definition.rate(self.settings, learning_rate, step + 1 if sparse else step))

    def catch_up(
        self,
        heads: Array,
        bodies: Array,
        page_bits: int,
        stride: int,
        width: int,
        rows: Array,
        until: int,
        rates: Rates,
    ) -> None:
        """Apply the missed steps up to `until` to rows (in pages at the addresses `heads` and `bodies`)."""
        if self.idle is not None:
            # The count first: arrays only grow.
            count = rates.count
            self.idle(
                heads,
                bodies,
                page_bits,
                stride,
                width,
                rows,
                until,
                rates.steps,
                rates.rates,
                count,
                self.hyper,
                self.horizon,
            )


def rule_of(settings: Spec) -> UpdateRule:
    """Return the rule of an optimizer's settings. Raises TypeError for any other object."""
    if isinstance(settings, Program):
        return UpdateRule(
            settings,
            None,
            tuple(slot.name for slot in settings.slots),
            np.array([slot.initial for slot in settings.slots], np.float32),
        )
    if not isinstance(settings, OptimizerSpec) or settings.type not in RULES:
        raise TypeError(f"expected an optimizer of jfluid.ps_server.specs, found {settings!r}")
    definition = RULES[settings.type]
    slots = [slot for slot in definition.slots if not slot.needs or getattr(settings, slot.needs)]
    firsts = np.array([getattr(settings, slot.first) if slot.first else 0.0 for slot in slots], np.float32)
    hyper = np.zeros(MOST_CONSTANTS, np.float32)
    constants = definition.constants(settings)
    hyper[: len(constants)] = constants
    rule = UpdateRule(settings, definition, tuple(slot.name for slot in slots), firsts, hyper)
    if definition.idle is None or getattr(settings, "lazy_mode", False):
        return rule
    return replace(rule, idle=definition.idle, horizon=definition.horizon(settings))
