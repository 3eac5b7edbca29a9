"""Learning rates that change with the step, or with the epoch, in dygraph mode.

A schedule is given to an optimizer as its `learning_rate`. Those by steps move on with each
`minimize`; those by epochs (`StepDecay`, `MultiStepDecay`, `LambdaDecay`) when their `epoch` is
called; `ReduceLROnPlateau` when its `step` is given a loss. An argument `learning_rate` is a
number. With `staircase` the rate changes only every `decay_steps` steps.

The schedules by steps count from `begin`, and by `step` in each step.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dygraph.base import real_variable
from jfluid.ir.types import np_dtype
from jfluid.ir.variable import Variable
from jfluid.layers.learning_rate_scheduler import IN_DYGRAPH_MODE

__all__ = [
    "CosineDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LambdaDecay",
    "LearningRateDecay",
    "LinearLrWarmup",
    "MultiStepDecay",
    "NaturalExpDecay",
    "NoamDecay",
    "PiecewiseDecay",
    "PolynomialDecay",
    "ReduceLROnPlateau",
    "StepDecay",
]


class LearningRateDecay:
    """The base of all schedules; a subclass defines `step`.

    Args:
        begin: the number of the first step.
        step: how much the number grows in each step.
        dtype: element type of the rate's variable.

    Attributes:
        step_num: the number of the next step.
    """

    _keys: Sequence[str] = ("step_num",)  # keys of a state

    def __init__(self, begin: int = 0, step: int = 1, dtype: Any = "float32"):
        self.step_num, self.step_size, self.dtype = begin, step, dtype

    def __call__(self) -> Variable:
        """Return the rate of this step as a variable [1], and go on to the next."""
        rate = self.step()
        if not isinstance(rate, Variable):
            rate = self.create_lr_var(rate)
        self.step_num += self.step_size
        return rate

    def step(self) -> float | Variable:
        """Return the rate of this step as a number or as a variable [1]."""
        raise NotImplementedError(f"{type(self).__name__} defines no step")

    def create_lr_var(self, lr: float) -> Variable:
        """Return a variable [1] that holds a rate."""
        return real_variable(np.full([1], float(lr), np_dtype(self.dtype)))

    def _rounded(self, value: Any) -> Any:
        """Round a number to the element type of the rate: Fluid's operators round each intermediate result."""
        return np_dtype(self.dtype).type(value)

    def _scaled(self, factor: float, value: Any, added: float = 0.0) -> Any:
        """Return `factor * value + added` as Fluid's operator `scale` rounds the result."""
        return self._rounded(self._rounded(factor) * self._rounded(value) + self._rounded(added))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `set_dict`."""
        return {key: getattr(self, key) for key in self._keys}

    def set_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises UninitializedError for a missing key, before any change.
        """
        missing = [key for key in self._keys if key not in state_dict]
        if missing:
            raise errors.UninitializedError(
                f"{type(self).__name__}.set_dict: the state has no {', '.join(missing)}, but "
                f"{', '.join(state_dict) or 'nothing'}"
            )
        for key in self._keys:
            setattr(self, key, state_dict[key])


class PiecewiseDecay(LearningRateDecay):
    """Schedule of constant rates between given steps.

    The rate is values[i] while step < boundaries[i], for the first such i, and values[-1] after the last boundary.

    Args:
        boundaries: numbers of steps, in rising order.
        values: the rates, one more than boundaries.

    Raises ValueError for a wrong number of rates.
    """

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        begin: int,
        step: int = 1,
        dtype: Any = "float32",
    ):
        super().__init__(begin, step, dtype)
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"PiecewiseDecay: expected one value more than boundaries, found {len(values)} "
                f"values and {len(boundaries)} boundaries"
            )
        self.boundaries, self.values = list(boundaries), list(values)

    def step(self) -> float:
        """Return the rate of this step."""
        for boundary, value in zip(self.boundaries, self.values):
            if self.step_num < boundary:
                return float(value)
        return float(self.values[-1])


class _Decay(LearningRateDecay):
    """Base class of schedules that fall by `decay_rate`."""

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ):
        super().__init__(begin, step, dtype)
        self.learning_rate = _number(self, "learning_rate", learning_rate)
        self.decay_steps, self.decay_rate, self.staircase = decay_steps, decay_rate, staircase

    def _periods(self) -> Any:
        periods = self._rounded(self.step_num / self.decay_steps)
        return np.floor(periods) if self.staircase else periods


class NaturalExpDecay(_Decay):
    """Decays by learning_rate * exp(-decay_rate * step / decay_steps)."""

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        fallen = self._rounded(math.exp(self._scaled(-self.decay_rate, self._periods())))
        return self.create_lr_var(self._scaled(self.learning_rate, fallen))


class ExponentialDecay(_Decay):
    """Decays by learning_rate * decay_rate ** (step / decay_steps)."""

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        fallen = math.pow(self._rounded(self.decay_rate), self._periods())
        return self.create_lr_var(self._scaled(self.learning_rate, fallen))


class InverseTimeDecay(_Decay):
    """Decays by learning_rate / (1 + decay_rate * step / decay_steps)."""

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        divisor = self._scaled(1, self._scaled(self.decay_rate, self._periods()), 1)
        return self.create_lr_var(self._rounded(self.learning_rate) / divisor)


class PolynomialDecay(LearningRateDecay):
    """Decays by (learning_rate - end_learning_rate) * (1 - step / decay_steps) ** power + end_learning_rate.

    Args:
        decay_steps: number of steps until the rate stays at `end_learning_rate`.
        cycle: restart at the end, with 2, 3, ... times `decay_steps`.
    """

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ):
        super().__init__(begin, step, dtype)
        self.learning_rate = _number(self, "learning_rate", learning_rate)
        self.decay_steps, self.end_learning_rate = decay_steps, end_learning_rate
        self.power, self.cycle = power, cycle

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        if self.cycle:
            rounds = max(np.ceil(self._rounded(self.step_num / self.decay_steps)), 1)
            passed = self._rounded(self.step_num) / self._scaled(self.decay_steps, rounds)
        else:
            passed = self._scaled(1 / self.decay_steps, min(self.step_num, self.decay_steps))
        left = math.pow(self._scaled(-1, passed, 1), self._rounded(self.power))
        fallen = self._scaled(self.learning_rate - self.end_learning_rate, left)
        return self.create_lr_var(self._scaled(1, fallen, self.end_learning_rate))


class CosineDecay(LearningRateDecay):
    """Decays by learning_rate * 0.5 * (cos(epoch * pi / epochs) + 1), where epoch = floor(step / step_each_epoch)."""

    def __init__(
        self,
        learning_rate: float,
        step_each_epoch: int,
        epochs: int,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ):
        super().__init__(begin, step, dtype)
        self.learning_rate = _number(self, "learning_rate", learning_rate)
        self.step_each_epoch, self.epochs = step_each_epoch, epochs

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        epoch = np.floor(self._rounded(self.step_num / self.step_each_epoch))
        angle = self._scaled(1 / self.epochs, self._scaled(math.pi, epoch))
        raised = self._scaled(1, math.cos(angle), 1)
        return self.create_lr_var(self._scaled(self.learning_rate * 0.5, raised))


class NoamDecay(LearningRateDecay):
    """Schedule that rises and falls as in Vaswani et al. (2017).

    The rate is learning_rate * d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5).

    Args:
        d_model: the width of the model.
        warmup_steps: number of steps with a rising rate.
    """

    def __init__(
        self,
        d_model: float,
        warmup_steps: float,
        begin: int = 1,
        step: int = 1,
        dtype: Any = "float32",
        learning_rate: float = 1.0,
    ):
        super().__init__(begin, step, dtype)
        self.learning_rate = _number(self, "learning_rate", learning_rate)
        self.d_model, self.warmup_steps = d_model, warmup_steps

    def step(self) -> Variable:
        """Return the rate of this step as a variable [1]."""
        falling = float(self.step_num) ** -0.5 if self.step_num else math.inf
        rising = self.step_num * float(self.warmup_steps) ** -1.5
        return self.create_lr_var(self._scaled(self.learning_rate * float(self.d_model) ** -0.5, min(falling, rising)))


class LinearLrWarmup(LearningRateDecay):
    """Warm-up by (end_lr - start_lr) / warmup_steps in each step, then `learning_rate`.

    `learning_rate` may be a schedule. As in Fluid 1.8.5 the rise begins at 0 whatever `start_lr` is, and each call of
    `step` advances the schedule, `current_step_lr()` before the first `minimize` included.

    Raises TypeError if `learning_rate` is neither a number nor a schedule, ValueError unless `end_lr` is above
    `start_lr`.
    """

    def __init__(
        self,
        learning_rate: "float | LearningRateDecay",
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        begin: int = 1,
        step: int = 1,
        dtype: Any = "float32",
    ):
        super().__init__(begin, step, dtype)
        if not isinstance(learning_rate, (int, float, LearningRateDecay)):
            raise TypeError(
                "LinearLrWarmup, learning_rate: expected a number or a LearningRateDecay, "
                f"found {type(learning_rate).__name__}"
            )
        if end_lr <= start_lr:
            raise ValueError(f"LinearLrWarmup: end_lr must be above start_lr, found {end_lr} and {start_lr}")
        if start_lr:
            warnings.warn(
                f"LinearLrWarmup: the rise begins at 0 and not at start_lr {start_lr}, as in Fluid 1.8.5's "
                "dygraph mode",
                stacklevel=2,
            )
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.lr_ratio_before_warmup = (float(end_lr) - float(start_lr)) / float(warmup_steps)

    def step(self) -> float | Variable:
        """Return the rate of this step; a schedule that follows goes on to its next.

        The rate is a variable [1] once the warm-up has ended and a schedule follows.
        """
        after = self.learning_rate() if isinstance(self.learning_rate, LearningRateDecay) else self.learning_rate
        if self.step_num < self.warmup_steps:
            return self.lr_ratio_before_warmup * self.step_num
        return after


class ReduceLROnPlateau(LearningRateDecay):
    """Reduces the rate when a loss has stopped getting better.

    Args:
        learning_rate: the first rate.
        mode: "min" where a smaller loss is better, "max" where a greater one is.
        decay_rate: factor of a reduction, below 1.
        patience: for how many calls of `step` the loss may be no better.
        verbose: print each reduction.
        threshold: how much better counts as better: with threshold_mode "rel" as a part of the best
            loss, with "abs" as it is.
        cooldown: for how many calls after a reduction nothing is counted.
        min_lr: the rate does not fall below it.
        eps: the smallest reduction that is done.

    Raises ValueError for an unknown mode, or a `decay_rate` of 1 or more.
    """

    _keys = ("cooldown_counter", "best_loss", "num_bad_epochs", "epoch_num", "learning_rate")

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        decay_rate: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        threshold: float = 0.0001,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        eps: float = 1e-08,
        dtype: Any = "float32",
    ):
        super().__init__(dtype=dtype)
        self.mode, self.threshold_mode = mode.lower(), threshold_mode.lower()
        if self.mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau, mode: expected min or max, found {mode!r}")
        if self.threshold_mode not in ("rel", "abs"):
            raise ValueError(f"ReduceLROnPlateau, threshold_mode: expected rel or abs, found {threshold_mode!r}")
        _check_falling(self, decay_rate)
        self.learning_rate = _number(self, "learning_rate", learning_rate)
        self.decay_rate, self.patience, self.verbose = decay_rate, patience, verbose
        self.threshold, self.cooldown, self.min_lr, self.eps = threshold, cooldown, min_lr, eps
        self.cooldown_counter, self.num_bad_epochs, self.epoch_num = 0, 0, 0
        self.best_loss: float | None = None

    def __call__(self) -> Variable:
        """Return the rate as a variable [1]."""
        return self.create_lr_var(self.learning_rate)

    def step(self, loss: Any = None) -> float:
        """Take a loss into account, a variable or array of one element; return the rate.

        Without a loss only the rate is returned.

        Raises ShapeError for more than one element.
        """
        if loss is None:
            return self.learning_rate
        values = np.asarray(loss.numpy() if isinstance(loss, Variable) else loss)
        if values.size != 1:
            raise errors.ShapeError(
                f"ReduceLROnPlateau.step, loss: expected one element, found {list(values.shape)}: "
                "take its layers.mean first"
            )
        self._count(float(values.reshape(())))
        return self.learning_rate

    def _count(self, loss: float) -> None:
        self.epoch_num += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best_loss is None or self._is_better(loss, self.best_loss):
            self.best_loss, self.num_bad_epochs = loss, 0
            return
        self.num_bad_epochs += 1
        if self.num_bad_epochs <= self.patience:
            return
        self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        reduced = float(max(self._scaled(self.decay_rate, self.learning_rate), self._rounded(self.min_lr)))
        if self.learning_rate - reduced > self.eps:
            if self.verbose:
                print(f"Epoch {self.epoch_num}: reducing learning rate from {self.learning_rate} to {reduced}.")
            self.learning_rate = reduced

    def _is_better(self, loss: float, best: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1)
        better: bool = sign * loss > sign * best + margin
        return better


class _LearningRateEpochDecay(LearningRateDecay):
    """Base class of schedules by epochs; a subclass defines `get_lr`.

    Attributes:
        base_lr: the first rate.
        epoch_num: the epoch, from 0.
        learning_rate: rate of the epoch.
    """

    _keys = ("epoch_num", "learning_rate")

    def __init__(self, learning_rate: float, dtype: Any = None):
        super().__init__(dtype=dtype or "float32")
        self.base_lr = _number(self, "learning_rate", learning_rate)
        self.epoch_num = -1
        self.epoch()

    def __call__(self) -> Variable:
        """Return the epoch's rate as a variable [1]."""
        return self.create_lr_var(self.learning_rate)

    def step(self) -> float:
        """Return the epoch's rate."""
        return self.learning_rate

    def epoch(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to a given epoch."""
        self.epoch_num = self.epoch_num + 1 if epoch is None else epoch
        self.learning_rate = self.get_lr()

    def get_lr(self) -> float:
        """Return the rate of the epoch `epoch_num`."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr")

    def _reduced(self, factor: float, times: int) -> float:
        """Return the first rate times a power of a factor."""
        return float(self._scaled(self.base_lr, math.pow(self._rounded(factor), times)))


class StepDecay(_LearningRateEpochDecay):
    """Multiplies the rate by `decay_rate` every `step_size` epochs.

    Raises TypeError for a `step_size` that is no integer, ValueError for a `decay_rate` of 1 or
    more.
    """

    def __init__(self, learning_rate: float, step_size: int, decay_rate: float = 0.1):
        if not isinstance(step_size, int):
            raise TypeError(f"StepDecay, step_size: expected an integer, found {step_size!r}")
        _check_falling(self, decay_rate)
        self._epochs, self.decay_rate = step_size, decay_rate
        super().__init__(learning_rate)
        self.step_size = step_size

    def get_lr(self) -> float:
        """Return the rate of the epoch `epoch_num`."""
        return self._reduced(self.decay_rate, self.epoch_num // self._epochs)


class MultiStepDecay(_LearningRateEpochDecay):
    """Multiplies the rate by `decay_rate` at each of some epochs.

    Raises TypeError where `milestones` is no list, ValueError where it does not rise, and for a
    `decay_rate` of 1 or more.
    """

    def __init__(self, learning_rate: float, milestones: Sequence[int], decay_rate: float = 0.1):
        if not isinstance(milestones, (tuple, list)):
            raise TypeError(f"MultiStepDecay, milestones: expected a list, found {milestones!r}")
        if any(a >= b for a, b in zip(milestones, milestones[1:])):
            raise ValueError(f"MultiStepDecay, milestones: expected rising numbers, found {milestones}")
        _check_falling(self, decay_rate)
        self.milestones, self.decay_rate = milestones, decay_rate
        super().__init__(learning_rate)

    def get_lr(self) -> float:
        """Return the rate of the epoch `epoch_num`."""
        passed = sum(milestone <= self.epoch_num for milestone in self.milestones)
        return self._reduced(self.decay_rate, passed)


class LambdaDecay(_LearningRateEpochDecay):
    """Schedule of the first rate times a function of the epoch.

    Raises TypeError if `lr_lambda` is no function.
    """

    def __init__(self, learning_rate: float, lr_lambda: Callable[[int], float]):
        if not callable(lr_lambda):
            raise TypeError(f"LambdaDecay, lr_lambda: expected a function, found {lr_lambda!r}")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate)

    def get_lr(self) -> float:
        """Return the rate of the epoch `epoch_num`."""
        return self.base_lr * self.lr_lambda(self.epoch_num)


def _number(schedule: LearningRateDecay, what: str, value: Any) -> float:
    """Return a rate that is given as a number, or as a variable of one element."""
    if isinstance(value, Variable):
        value = float(value.numpy().reshape(()))
    if not isinstance(value, (int, float)):
        raise TypeError(f"{type(schedule).__name__}, {what}: expected a number, found {type(value).__name__}")
    return float(value)


def _check_falling(schedule: LearningRateDecay, decay_rate: float) -> None:
    if decay_rate >= 1.0:
        raise ValueError(f"{type(schedule).__name__}, decay_rate: expected a number below 1, found {decay_rate}")


def _piecewise(boundaries: Sequence[int], values: Sequence[float]) -> PiecewiseDecay:
    return PiecewiseDecay(boundaries, values, 0)


def _noam(d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> NoamDecay:
    return NoamDecay(d_model, warmup_steps, learning_rate=learning_rate)


IN_DYGRAPH_MODE.update(
    cosine_decay=CosineDecay,
    exponential_decay=ExponentialDecay,
    inverse_time_decay=InverseTimeDecay,
    linear_lr_warmup=LinearLrWarmup,
    natural_exp_decay=NaturalExpDecay,
    noam_decay=_noam,
    piecewise_decay=_piecewise,
    polynomial_decay=PolynomialDecay,
)
