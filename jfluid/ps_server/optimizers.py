"""Optimizers of tables and blocks.

All that there is to know of one stands in its `RuleDef`: a new one touches this file only. (`update_rule`
makes a rule of a definition and settings.)

A rule needs only a row and takes sparse rows in Fluid; FTRL is a rule, too. Fluid's momentum, Adam and
RMSProp also move rows without a gradient. A table cannot touch all its rows in every step. When a row is
next touched, `idle` applies the missed steps with the learning rates of these steps, so rows equal Fluid's
rows. With `lazy_mode` rows without a gradient do not change.

Constants are 32-bit floats, as Fluid's attributes are, and `1 - beta` is taken from the rounded
value.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numba.extending import register_jitable
from pydantic import Field, FiniteFloat, field_validator

from jfluid.ps_server.kernels import body_of, floats_at, head_of, kernel
from jfluid.ps_server.validation import NAME, Spec

# Names that `specs` exports, too.
__all__ = ["Adagrad", "Adam", "Ftrl", "Momentum", "Program", "RMSProp", "Sgd", "SlotSpec"]

Array = np.ndarray[Any, Any]
MOST_SLOTS = 16
# A movement that has decayed by this factor adds nothing to a float32 any more.
_NEGLIGIBLE = 1e-10
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
MOST_CONSTANTS = 4
# Numbers that are copied and then changed in the processor's first cache.
_IN_CACHE = 1024
Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[FiniteFloat, Field(gt=0)]


class OptimizerSpec(Spec):
    """The base: every optimizer has a learning rate, which a push may replace."""

    learning_rate: FiniteFloat
    type: str


# ---- parts of a rule -----------------------------------------------------------------------------

_per_element = register_jitable(error_model="numpy")


def _over_rows(element: Callable[..., None]) -> Callable[..., None]:
    """Return the kernel of one update: `element` on all elements of row i; rows of -1 are left out.

    The gradients of row i are gradients[order[i]].
    """

    @kernel
    def update(bodies, page_bits, stride, width, rows, order, gradients, rate, hyper):
        # Read once: the compiler cannot know that rows do not lie over the constants.
        constants = (hyper[0], hyper[1], hyper[2], hyper[3])
        for i in range(len(rows)):
            if rows[i] < 0:
                continue
            numbers, gradient = body_of(bodies, page_bits, stride, rows[i]), gradients[order[i]]
            for j in range(width):
                element(numbers, gradient, j, width, rate, constants)

    return update


def _over_blocks(element: Callable[..., None]) -> Callable[..., None]:
    """Return the kernel of one update of blocks that leaves the old numbers in place.

    `new` (float32 [n], by block the values, then the slots, each of widths[i]) becomes the result of an update
    of `old` by the gradients at these addresses.
    """

    @kernel
    def renew(old, new, groups, widths, gradients, rate, hyper):
        constants = (hyper[0], hyper[1], hyper[2], hyper[3])
        first = 0
        for i in range(len(widths)):
            width, gradient = widths[i], floats_at(gradients[i], widths[i])
            end = first + groups * width
            for begin in range(0, width, _IN_CACHE):
                count = min(_IN_CACHE, width - begin)
                for group in range(first + begin, end, width):
                    before, after = old[group : group + count], new[group : group + count]
                    for j in range(count):  # from 0, which the compiler turns into vectors
                        after[j] = before[j]
                numbers, own = new[first + begin : end], gradient[begin : begin + count]
                for j in range(count):
                    element(numbers, own, j, width, rate, constants)
            first = end

    return renew


@dataclass(frozen=True)
class SlotDef:
    """Slot of a rule: numbers beside the values of a row, in the same count.

    Attributes:
        name: the slot's name in snapshots and exports.
        input: the input of Fluid's operator that holds the slot.
        first: the setting with the initial value; without this setting the initial value is zero.
        needs: the setting that enables the slot; without this setting the slot always exists.
    """

    name: str
    input: str
    first: str = ""
    needs: str = ""


@dataclass(frozen=True)
class RuleDef:
    """Definition of an optimizer with compiled updates.

    Attributes:
        settings: class of the settings, as specs hold it; its `type` is the type of Fluid's operator.
        element: update of element j of a row. `numbers` are the row's values and
            slots, group after group of `width`, and `hyper` the constants.
        constants: the constants (at most 4) that `element` and `idle` get, of the settings.
        attributes: of each setting that Fluid's operator has, too, the attribute's name.
        slots: in the order of the slots in a row.
        powers: inputs of Fluid's operator that hold a power of a setting, which follows from the
            number of steps.
        rate: (settings, learning rate, number of a step) -> the rate of the step; without it that
            is the learning rate.
        idle: the kernel for the steps that rows have missed; None where such steps change nothing,
            as with `lazy_mode`.
        horizon: function of the settings: the number of steps without a gradient after which a row stands still.
        update: the kernel of one update of rows with gradients.
        renew: the kernel of one update of blocks, into other memory.
    """

    settings: type[OptimizerSpec]
    element: Callable[..., None]
    constants: Callable[[Any], tuple[float, ...]] = lambda settings: ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[SlotDef, ...] = ()
    powers: Mapping[str, str] = field(default_factory=dict)
    rate: Callable[[Any, float, int], float] | None = None
    idle: Callable[..., None] | None = None
    horizon: Callable[[Any], int] = lambda settings: 0
    update: Callable[..., None] = field(init=False)
    renew: Callable[..., None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "update", _over_rows(self.element))
        object.__setattr__(self, "renew", _over_blocks(self.element))

    @property
    def operator(self) -> str:
        """The type of Fluid's operator."""
        return str(self.settings.model_fields["type"].default)

    @property
    def inputs(self) -> set[str]:
        """The inputs of Fluid's operator that the rule stands for.

        An operator with further attributes computes a different update.
        """
        return {"Param", "Grad", "LearningRate", *(slot.input for slot in self.slots), *self.powers}

    def settings_of(self, attribute: Callable[[str], Any]) -> OptimizerSpec:
        """Return the settings of an operator with these attributes.

        Its learning rate, an input, may differ in each step.
        """
        return self.settings(learning_rate=0.0, **{name: attribute(its) for name, its in self.attributes.items()})


def _horizon(decay: float) -> int:
    return math.ceil(math.log(_NEGLIGIBLE) / math.log(decay)) if decay > 0 else 1


# ---- steps without a gradient --------------------------------------------------------------------


@kernel
def _segment(steps, count, step):
    """Return the segment of the rate history that holds `step`: the last one that does not begin after `step`."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if steps[middle] <= step:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def _rest(heads, page_bits, row, now):
    """(last, missed): the last step that a row has seen, and how many since, up to `now`; none for row -1.

    From now on the row has had these steps, so a row that occurs twice moves once.
    """
    if row < 0:
        return np.int64(now), np.int64(0)
    head = head_of(heads, page_bits, row)
    last = (head[1] >> 32) & np.int64(0xFFFFFFFF)
    if last < now:
        head[1] = (head[1] & np.int64(0xFFFFFFFF)) | (np.int64(now) << 32)
    return last, now - last


# ---- the rules -----------------------------------------------------------------------------------


class Sgd(OptimizerSpec):
    """value - learning_rate * gradient."""

    type: Literal["sgd"] = "sgd"


@_per_element
def _sgd(numbers, gradient, j, width, rate, hyper):
    numbers[j] -= rate * gradient[j]


_SGD = RuleDef(Sgd, _sgd)


class Momentum(OptimizerSpec):
    """Descent along a decaying sum of gradients.

    Rows without a gradient go on moving, unless `lazy_mode`.
    """

    type: Literal["momentum"] = "momentum"
    mu: Decay
    use_nesterov: bool = False
    lazy_mode: bool = False


@_per_element
def _momentum(numbers, gradient, j, width, rate, hyper):
    mu, nesterov = hyper[0], hyper[1] != 0
    velocity = mu * numbers[width + j] + gradient[j]
    numbers[width + j] = velocity
    numbers[j] -= rate * (gradient[j] + mu * velocity if nesterov else velocity)


@kernel
def _idle_momentum(heads, bodies, page_bits, stride, width, rows, now, steps, rates, count, hyper, horizon):
    mu, ahead = hyper[0], hyper[0] if hyper[1] != 0 else _ONE
    for i in range(len(rows)):
        last, missed = _rest(heads, page_bits, rows[i], now)
        if missed <= 0:
            continue
        body = body_of(bodies, page_bits, stride, rows[i])
        at = _segment(steps, count, last + 1)
        decay, moved = 1.0, 0.0
        for step in range(last + 1, last + 1 + min(missed, horizon)):
            while at + 1 < count and steps[at + 1] <= step:
                at += 1
            decay *= mu
            moved += decay * rates[at]
        factor, kept = np.float32(ahead * moved), np.float32(np.float64(mu) ** missed)
        for j in range(width):
            body[j] -= factor * body[width + j]
            body[width + j] *= kept


_MOMENTUM = RuleDef(
    Momentum,
    _momentum,
    lambda settings: (settings.mu, settings.use_nesterov),
    attributes={"mu": "mu", "use_nesterov": "use_nesterov"},
    slots=(SlotDef("velocity", "Velocity"),),
    idle=_idle_momentum,
    horizon=lambda settings: _horizon(settings.mu),
)


class Adagrad(OptimizerSpec):
    """Rates that shrink with the sum of squared gradients."""

    type: Literal["adagrad"] = "adagrad"
    epsilon: Positive = 1e-6
    initial_accumulator_value: Annotated[FiniteFloat, Field(ge=0)] = 0.0


@_per_element
def _adagrad(numbers, gradient, j, width, rate, hyper):
    epsilon, g = hyper[0], gradient[j]
    moment = numbers[width + j] + g * g
    numbers[width + j] = moment
    numbers[j] -= rate * g / (np.sqrt(moment) + epsilon)


_ADAGRAD = RuleDef(
    Adagrad,
    _adagrad,
    lambda settings: (settings.epsilon,),
    attributes={"epsilon": "epsilon"},
    slots=(SlotDef("moment", "Moment", first="initial_accumulator_value"),),
)


class Adam(OptimizerSpec):
    """Adam. Rows without a gradient go on moving, unless `lazy_mode`."""

    type: Literal["adam"] = "adam"
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: Positive = 1e-8
    lazy_mode: bool = False


@_per_element
def _adam(numbers, gradient, j, width, rate, hyper):
    beta1, beta2, epsilon, g = hyper[0], hyper[1], hyper[2], gradient[j]
    first = beta1 * numbers[width + j] + (_ONE - beta1) * g
    second = beta2 * numbers[2 * width + j] + (_ONE - beta2) * g * g
    numbers[width + j], numbers[2 * width + j] = first, second
    numbers[j] -= rate * (first / (np.sqrt(second) + epsilon))


@kernel
def _idle_adam(heads, bodies, page_bits, stride, width, rows, now, steps, rates, count, hyper, horizon):
    beta1, beta2, epsilon = np.float64(hyper[0]), np.float64(hyper[1]), hyper[2]
    for i in range(len(rows)):
        last, missed = _rest(heads, page_bits, rows[i], now)
        if missed <= 0:
            continue
        body = body_of(bodies, page_bits, stride, rows[i])
        at = _segment(steps, count, last + 1)
        for step in range(last + 1, last + 1 + min(missed, horizon)):
            while at + 1 < count and steps[at + 1] <= step:
                at += 1
            corrected = np.sqrt(1.0 - beta2 ** (step + 1)) / (1.0 - beta1 ** (step + 1))
            rate = np.float32(rates[at] * corrected * beta1 ** (step - last))
            root = np.float32(np.sqrt(beta2 ** (step - last)))
            for j in range(width):
                body[j] -= rate * body[width + j] / (root * np.sqrt(body[2 * width + j]) + epsilon)
        first, second = np.float32(beta1**missed), np.float32(beta2**missed)
        for j in range(width):
            body[width + j] *= first
            body[2 * width + j] *= second


def _adam_rate(settings: Adam, learning_rate: float, step: int) -> float:
    beta1, beta2 = float(np.float32(settings.beta1)), float(np.float32(settings.beta2))
    return learning_rate * math.sqrt(1 - beta2**step) / (1 - beta1**step)


def _adam_horizon(settings: Adam) -> int:
    beta1, beta2 = settings.beta1, settings.beta2
    return _horizon(beta1 / math.sqrt(beta2) if beta2 > beta1**2 else 0.9999)


_ADAM = RuleDef(
    Adam,
    _adam,
    lambda settings: (settings.beta1, settings.beta2, settings.epsilon),
    attributes={"beta1": "beta1", "beta2": "beta2", "epsilon": "epsilon", "lazy_mode": "lazy_mode"},
    slots=(SlotDef("moment1", "Moment1"), SlotDef("moment2", "Moment2")),
    powers={"Beta1Pow": "beta1", "Beta2Pow": "beta2"},
    rate=_adam_rate,
    idle=_idle_adam,
    horizon=_adam_horizon,
)


class RMSProp(OptimizerSpec):
    """Rates that shrink with an average of squared gradients.

    Rows without a gradient go on moving, unless `lazy_mode`.
    """

    type: Literal["rmsprop"] = "rmsprop"
    rho: Decay = 0.95
    epsilon: Positive = 1e-6
    momentum: Decay = 0.0
    centered: bool = False
    lazy_mode: bool = False


@_per_element
def _rmsprop(numbers, gradient, j, width, rate, hyper):
    rho, epsilon, momentum, centered, g = hyper[0], hyper[1], hyper[2], hyper[3] != 0, gradient[j]
    square = rho * numbers[width + j] + (_ONE - rho) * g * g
    numbers[width + j] = square
    if centered:
        mean = rho * numbers[3 * width + j] + (_ONE - rho) * g
        numbers[3 * width + j] = mean
        square -= mean * mean
    moment = momentum * numbers[2 * width + j] + rate * g / np.sqrt(square + epsilon)
    numbers[2 * width + j] = moment
    numbers[j] -= moment


@kernel
def _idle_rmsprop(heads, bodies, page_bits, stride, width, rows, now, steps, rates, count, hyper, horizon):
    rho, momentum, centered = np.float64(hyper[0]), np.float64(hyper[2]), hyper[3] != 0
    for i in range(len(rows)):
        _, missed = _rest(heads, page_bits, rows[i], now)
        if missed <= 0:
            continue
        body = body_of(bodies, page_bits, stride, rows[i])
        kept = np.float32(rho**missed)
        # The sum of momentum**1 ... momentum**missed.
        moved = np.float32(momentum * (1.0 - momentum**missed) / (1.0 - momentum))
        left = np.float32(momentum**missed)
        for j in range(width):
            body[j] -= moved * body[2 * width + j]
            body[2 * width + j] *= left
            body[width + j] *= kept
            if centered:
                body[3 * width + j] *= kept


_RMSPROP = RuleDef(
    RMSProp,
    _rmsprop,
    lambda settings: (settings.rho, settings.epsilon, settings.momentum, settings.centered),
    attributes={"rho": "decay", "epsilon": "epsilon", "momentum": "momentum", "centered": "centered"},
    slots=(
        SlotDef("mean_square", "MeanSquare"),
        SlotDef("momentum", "Moment"),
        SlotDef("mean_grad", "MeanGrad", needs="centered"),
    ),
    idle=_idle_rmsprop,
)


class Ftrl(OptimizerSpec):
    """Follow the regularized leader.

    A row's values follow from its slots: the first gradient overwrites the first values.

    Fluid 1.8.5 has FTRL for whole parameters only: a step sets rows to zero that never had a
    gradient. Here such rows do not change.
    """

    type: Literal["ftrl"] = "ftrl"
    l1: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    l2: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    lr_power: Annotated[FiniteFloat, Field(le=0)] = -0.5


@_per_element
def _ftrl(numbers, gradient, j, width, rate, hyper):
    l1, twice_l2, power, g = hyper[0], hyper[1], hyper[2], gradient[j]
    before = numbers[width + j]
    squared = before + g * g
    root, root_before = (np.sqrt(squared), np.sqrt(before)) if power == _HALF else (squared**power, before**power)
    linear = numbers[2 * width + j] + g - (root - root_before) / rate * numbers[j]
    numbers[width + j], numbers[2 * width + j] = squared, linear
    numbers[j] = (np.copysign(l1, linear) - linear) / (root / rate + twice_l2) if abs(linear) > l1 else _ZERO


_FTRL = RuleDef(
    # Fluid adds the small number; no constant of the rule may be zero.
    Ftrl,
    _ftrl,
    lambda settings: (settings.l1 + 1e-10, 2 * (settings.l2 + 1e-10), -settings.lr_power),
    attributes={"l1": "l1", "l2": "l2", "lr_power": "lr_power"},
    slots=(SlotDef("squared", "SquaredAccumulator"), SlotDef("linear", "LinearAccumulator")),
)

RULES = {rule.operator: rule for rule in (_SGD, _MOMENTUM, _ADAGRAD, _ADAM, _RMSPROP, _FTRL)}


# ---- an optimizer that the caller computes -------------------------------------------------------


class SlotSpec(Spec):
    """Slot of an optimizer: `width` numbers beside the values of a row, which begin as `initial`."""

    name: Annotated[str, Field(pattern=NAME)]
    initial: FiniteFloat = 0.0


class Program(OptimizerSpec):
    """An optimizer that the caller of a table computes: see `SparseTable.update`.

    Only tables have it.

    The table keeps `slots` with each row, in this order, and `learning_rate` for the caller to read
    and to set.
    """

    type: Literal["program"] = "program"
    slots: Annotated[tuple[SlotSpec, ...], Field(max_length=MOST_SLOTS)] = ()

    @field_validator("slots")
    @classmethod
    def _names_differ(cls, slots: tuple[SlotSpec, ...]) -> tuple[SlotSpec, ...]:
        names = [slot.name for slot in slots]
        if len(set(names)) < len(names):
            raise ValueError(f"two slots have one name: {', '.join(names)}")
        return slots


if TYPE_CHECKING:
    AnyOptimizer = OptimizerSpec
    TableOptimizer = OptimizerSpec
else:
    _ALL = [rule.settings for rule in RULES.values()]
    AnyOptimizer = Annotated[functools.reduce(operator.or_, _ALL), Field(discriminator="type")]
    TableOptimizer = Annotated[functools.reduce(operator.or_, [*_ALL, Program]), Field(discriminator="type")]
