"""One update of rows, for each optimizer that takes sparse rows in Fluid and needs nothing but the row, and for FTRL.

Fluid's momentum, Adam and RMSProp also move the rows that a step has no gradient for. A table cannot touch all its rows at
every step; `idle` makes up for what a row has missed when it is next touched, from the rates of the missed steps, so that
the rows are those of Fluid. With `lazy_mode` rows without a gradient stay as they are.

Constants are 32-bit floats, as Fluid's attributes are, and `1 - beta` is taken from the rounded value.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.extending import register_jitable

from jfluid.ps_server import specs
from jfluid.ps_server.kernels import body_of, head_of, kernel

Array = np.ndarray[Any, Any]
# A movement that has decayed by this factor adds nothing to a float32 any more.
_NEGLIGIBLE = 1e-10
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_MOST_CONSTANTS = 4


# ---- one element ---------------------------------------------------------------------------------------------------
# An optimizer is what it does to element j of a row: `numbers` are the row's values and slots, group after group of `width`.

_per_element = register_jitable(error_model="numpy")


@_per_element
def _sgd(numbers, gradient, j, width, rate, hyper):
    numbers[j] -= rate * gradient[j]


@_per_element
def _momentum(numbers, gradient, j, width, rate, hyper):
    mu, nesterov = hyper[0], hyper[1] != 0
    velocity = mu * numbers[width + j] + gradient[j]
    numbers[width + j] = velocity
    numbers[j] -= rate * (gradient[j] + mu * velocity if nesterov else velocity)


@_per_element
def _adagrad(numbers, gradient, j, width, rate, hyper):
    epsilon, g = hyper[0], gradient[j]
    moment = numbers[width + j] + g * g
    numbers[width + j] = moment
    numbers[j] -= rate * g / (np.sqrt(moment) + epsilon)


@_per_element
def _adam(numbers, gradient, j, width, rate, hyper):
    beta1, beta2, epsilon, g = hyper[0], hyper[1], hyper[2], gradient[j]
    first = beta1 * numbers[width + j] + (_ONE - beta1) * g
    second = beta2 * numbers[2 * width + j] + (_ONE - beta2) * g * g
    numbers[width + j], numbers[2 * width + j] = first, second
    numbers[j] -= rate * (first / (np.sqrt(second) + epsilon))


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


@_per_element
def _ftrl(numbers, gradient, j, width, rate, hyper):
    l1, twice_l2, power, g = hyper[0], hyper[1], hyper[2], gradient[j]
    before = numbers[width + j]
    squared = before + g * g
    root, root_before = (np.sqrt(squared), np.sqrt(before)) if power == _HALF else (squared**power, before**power)
    linear = numbers[2 * width + j] + g - (root - root_before) / rate * numbers[j]
    numbers[width + j], numbers[2 * width + j] = squared, linear
    numbers[j] = (np.copysign(l1, linear) - linear) / (root / rate + twice_l2) if abs(linear) > l1 else _ZERO


def _over_rows(element: Callable[..., None]) -> Callable[..., None]:
    """The kernel of one update: `element` on all elements of row i, with gradients[order[i]]; rows of -1 are left out."""
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


_SGD, _MOMENTUM, _ADAGRAD, _ADAM, _RMSPROP, _FTRL = (
    _over_rows(element) for element in (_sgd, _momentum, _adagrad, _adam, _rmsprop, _ftrl))


# ---- steps without a gradient ------------------------------------------------------------------------------------

@kernel
def _segment(steps, count, step):
    """Which segment of the history of rates holds `step`: the last that does not begin after it."""
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

    From now on it has seen them, so that a row which occurs twice moves once.
    """
    if row < 0:
        return np.int64(now), np.int64(0)
    head = head_of(heads, page_bits, row)
    last = (head[1] >> 32) & np.int64(0xFFFFFFFF)
    if last < now:
        head[1] = (head[1] & np.int64(0xFFFFFFFF)) | (np.int64(now) << 32)
    return last, now - last


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


# ---- the rules ---------------------------------------------------------------------------------------------------

class Rates:
    """The learning rates of all steps so far, as segments of equal rate: what `idle` needs.

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
                self.steps, self.rates = np.resize(self.steps, 2 * self.count), np.resize(self.rates, 2 * self.count)
            self.steps[self.count] = step
            self.count += 1
        self.rates[self.count - 1] = rate

    def restore(self, steps: Array, rates: Array) -> None:
        """Take over segments that `steps[:count]` and `rates[:count]` gave."""
        self.count = len(steps)
        self.steps = np.concatenate([steps, np.ones(16, np.int64)]).astype(np.int64)
        self.rates = np.concatenate([rates, np.zeros(16, np.float32)]).astype(np.float32)


@dataclass(frozen=True)
class Rule:
    """How an optimizer updates rows.

    Attributes:
        update: the kernel of one update of rows with gradients; None where the caller of the table brings a function.
        names: of the slots, as Fluid names the accumulators.
        slots: the first value of every group of `width` slots.
        hyper: the constants that the kernels take, float32 [4].
        idle: the kernel for the steps that rows have missed; None where such steps change nothing.
        horizon: after so many steps without a gradient a row stands still.
        betas: of Adam, whose rate depends on the step.
    """

    update: Callable[..., None] | None
    names: tuple[str, ...]
    slots: Array
    hyper: Array
    idle: Callable[..., None] | None = None
    horizon: int = 0
    betas: tuple[float, float] | None = None

    def rate(self, learning_rate: float, step: int, sparse: bool = True) -> np.float32:
        """The rate of update number `step` (from 1). As in Fluid, sparse rows use the powers of the step after it."""
        if self.betas is None:
            return np.float32(learning_rate)
        power = step + 1 if sparse else step
        beta1, beta2 = self.betas
        return np.float32(learning_rate * math.sqrt(1 - beta2**power) / (1 - beta1**power))

    def catch_up(self, heads: Array, bodies: Array, page_bits: int, stride: int, width: int, rows: Array, until: int,
                 rates: Rates) -> None:
        """Move rows (in pages at the addresses `heads` and `bodies`) by the steps up to `until` that they have missed."""
        if self.idle is not None:
            # The count first: arrays only grow.
            count = rates.count
            self.idle(heads, bodies, page_bits, stride, width, rows, until, rates.steps, rates.rates, count, self.hyper,
                      self.horizon)


def _horizon(decay: float) -> int:
    return math.ceil(math.log(_NEGLIGIBLE) / math.log(decay)) if decay > 0 else 1


def _rule(update: Callable[..., None] | None, slots: dict[str, float], *hyper: float, **more: Any) -> Rule:
    constants = np.zeros(_MOST_CONSTANTS, np.float32)
    constants[:len(hyper)] = hyper
    return Rule(update, tuple(slots), np.array([*slots.values()], np.float32), constants, **more)


def rule_of(optimizer: specs.Spec) -> Rule:
    """The rule of an optimizer's description."""
    match optimizer:
        case specs.Sgd():
            return _rule(_SGD, {})
        case specs.Adagrad():
            return _rule(_ADAGRAD, {"moment": optimizer.initial_accumulator_value}, optimizer.epsilon)
        case specs.Momentum(mu=mu):
            more = {} if optimizer.lazy_mode else {"idle": _idle_momentum, "horizon": _horizon(mu)}
            return _rule(_MOMENTUM, {"velocity": 0.0}, mu, optimizer.use_nesterov, **more)
        case specs.Adam(beta1=beta1, beta2=beta2):
            ratio = beta1 / math.sqrt(beta2) if beta2 > beta1**2 else 0.9999
            more = {} if optimizer.lazy_mode else {"idle": _idle_adam, "horizon": _horizon(ratio)}
            betas = (float(np.float32(beta1)), float(np.float32(beta2)))
            return _rule(_ADAM, {"moment1": 0.0, "moment2": 0.0}, beta1, beta2, optimizer.epsilon, betas=betas, **more)
        case specs.RMSProp(rho=rho, centered=centered):
            more = {} if optimizer.lazy_mode else {"idle": _idle_rmsprop}
            slots = {"mean_square": 0.0, "momentum": 0.0} | ({"mean_grad": 0.0} if centered else {})
            return _rule(_RMSPROP, slots, rho, optimizer.epsilon, optimizer.momentum, centered, **more)
        case specs.Ftrl(l1=l1, l2=l2):
            # Fluid adds the small number; none of its constants may be zero.
            return _rule(_FTRL, {"squared": 0.0, "linear": 0.0}, l1 + 1e-10, 2 * (l2 + 1e-10), -optimizer.lr_power)
        case specs.Program():
            return _rule(None, {slot.name: slot.initial for slot in optimizer.slots})
    raise TypeError(f"expected an optimizer of jfluid.ps_server.specs, found {optimizer!r}")
