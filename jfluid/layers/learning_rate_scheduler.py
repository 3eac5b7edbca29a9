"""Learning rates that change with the step.

Each function returns a float32 Variable [1] for an optimizer's `learning_rate`. The variable
`@LR_DECAY_COUNTER@` counts the steps, from 0 (from 1 in `noam_decay`); all schedules of a program
share it. An argument `learning_rate` is a number or a Variable of one element. With `staircase` the
rate changes only every `decay_steps` steps.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.layers.control_flow import Switch
from jfluid.layers.creation import assign, cast, fill_constant
from jfluid.layers.helper import emit
from jfluid.layers.tensor import autoincreased_step_counter, create_global_var

__all__ = [
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]


F = TypeVar("F", bound=Callable[..., Any])
# What the functions make in dygraph mode, by their names: `jfluid.dygraph.learning_rate_scheduler`
# says it.
IN_DYGRAPH_MODE: dict[str, Callable[..., Any]] = {}


def _schedule(function: F) -> F:
    """Wrap a function to return a schedule of `fluid.dygraph` in dygraph mode."""

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if default_main_program().eager:
            return IN_DYGRAPH_MODE[function.__name__](*args, **kwargs)
        return function(*args, **kwargs)

    return made  # type: ignore[return-value]


def _decay_step_counter(begin: int = 0) -> Variable:
    return cast(autoincreased_step_counter("@LR_DECAY_COUNTER@", begin, 1), "float32")


def _periods(decay_steps: int, staircase: bool) -> Variable:
    """Return the number of past periods of `decay_steps` steps, rounded down with `staircase`."""
    periods = _decay_step_counter() / decay_steps
    return emit("floor", {"X": periods}) if staircase else periods


@_schedule
def exponential_decay(
    learning_rate: float | Variable, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """Decay exponentially: learning_rate * decay_rate ** (step / decay_steps).

    With `staircase` the exponent is rounded down.
    """
    with default_main_program()._lr_schedule_guard():
        return learning_rate * (decay_rate ** _periods(decay_steps, staircase))


@_schedule
def natural_exp_decay(
    learning_rate: float | Variable, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """Decay exponentially: learning_rate * exp(-decay_rate * step / decay_steps).

    With `staircase` step / decay_steps is rounded down.
    """
    with default_main_program()._lr_schedule_guard():
        return learning_rate * emit("exp", {"X": -1 * decay_rate * _periods(decay_steps, staircase)})


@_schedule
def inverse_time_decay(
    learning_rate: float | Variable, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """Decay by learning_rate / (1 + decay_rate * step / decay_steps).

    With `staircase` step / decay_steps is rounded down.
    """
    with default_main_program()._lr_schedule_guard():
        return learning_rate / (1 + decay_rate * _periods(decay_steps, staircase))


@_schedule
def polynomial_decay(
    learning_rate: float | Variable,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """Decay by (learning_rate - end_learning_rate) * (1 - step / decay_steps) ** power + end_learning_rate.

    Args:
        learning_rate: the initial rate.
        decay_steps: the number of steps after which the rate stays at `end_learning_rate`.
        end_learning_rate: the final rate.
        power: the exponent.
        cycle: instead of that, start again with twice, three times ... as many `decay_steps`.
    """
    with default_main_program()._lr_schedule_guard():
        step = _decay_step_counter()
        span: float | Variable = decay_steps
        if cycle:
            rounds = emit("ceil", {"X": step / decay_steps})
            zero, one = fill_constant([1], "float32", 0.0), fill_constant([1], "float32", 1.0)
            with Switch() as switch, switch.case(step == zero):
                assign(one, rounds)
            span = decay_steps * rounds
        else:
            step = emit("elementwise_min", {"X": step, "Y": fill_constant([1], "float32", float(decay_steps))})
        return (learning_rate - end_learning_rate) * ((1 - step / span) ** power) + end_learning_rate


@_schedule
def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """Use a constant rate in each range of steps: values[i] for steps from boundaries[i - 1] to boundaries[i].

    Step boundaries[i] belongs to the next range; values[-1] follows the last boundary.

    Args:
        boundaries: numbers of steps, in rising order.
        values: the rates, one more than boundaries.

    Raises ValueError for a wrong number of rates.
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"piecewise_decay: expected one value more than boundaries, found {len(values)} values "
            f"and {len(boundaries)} boundaries"
        )
    with default_main_program()._lr_schedule_guard():
        step = _decay_step_counter()
        rate = create_global_var([1], 0.0, "float32", persistable=True, name="learning_rate")
        with Switch() as switch:
            for boundary, value in zip(boundaries, values[:-1], strict=True):
                limit = fill_constant([1], "float32", float(boundary), force_cpu=True)
                chosen = fill_constant([1], "float32", float(value))
                with switch.case(step < limit):
                    assign(chosen, rate)
            last = fill_constant([1], "float32", float(values[-1]))
            with switch.default():
                assign(last, rate)
        return rate


@_schedule
def noam_decay(
    d_model: float | Variable, warmup_steps: float | Variable, learning_rate: float | Variable = 1.0
) -> Variable:
    """Increase the rate linearly, then decrease it with the inverse square root of the step.

    The rate is learning_rate * d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5) (Vaswani et
    al., 2017).

    Args:
        d_model: the width of the model.
        warmup_steps: the number of steps of the increase.
        learning_rate: factor of the rate.
    """
    with default_main_program()._lr_schedule_guard():
        step = _decay_step_counter(begin=1)
        falling, rising = step**-0.5, (warmup_steps**-1.5) * step
        return learning_rate * (d_model**-0.5) * emit("elementwise_min", {"X": falling, "Y": rising})


@_schedule
def cosine_decay(learning_rate: float | Variable, step_each_epoch: int, epochs: int) -> Variable:
    """Decay by learning_rate * 0.5 * (cos(epoch * pi / epochs) + 1) for epoch = floor(step / step_each_epoch)."""
    with default_main_program()._lr_schedule_guard():
        epoch = emit("floor", {"X": _decay_step_counter() / step_each_epoch})
        return learning_rate * 0.5 * (emit("cos", {"X": epoch * math.pi / epochs}) + 1)


@_schedule
def linear_lr_warmup(learning_rate: float | Variable, warmup_steps: int, start_lr: float, end_lr: float) -> Variable:
    """Interpolate from `start_lr` to `end_lr` in `warmup_steps` steps, then use `learning_rate`.

    `learning_rate` may be a schedule.

    Raises TypeError if `learning_rate` is neither a number nor a Variable, ProgramError if `warmup_steps` is
    not positive.
    """
    if not isinstance(learning_rate, (int, float, Variable)):
        raise TypeError(
            f"linear_lr_warmup, learning_rate: expected a number or a Variable, found {type(learning_rate).__name__}"
        )
    if warmup_steps <= 0:
        raise errors.ProgramError(f"linear_lr_warmup: warmup_steps must be positive, found {warmup_steps}")
    with default_main_program()._lr_schedule_guard():
        rate = create_global_var([1], 0.0, "float32", persistable=True, name="learning_rate_warmup")
        step = _decay_step_counter()
        with Switch() as switch:
            with switch.case(step < warmup_steps):
                assign(start_lr + (end_lr - start_lr) * (step / float(warmup_steps)), rate)
            with switch.default():
                if not isinstance(learning_rate, Variable):
                    learning_rate = fill_constant([1], "float32", float(learning_rate))
                assign(learning_rate, rate)
        return rate
