"""Optimizers in dygraph mode: eager updates from existing gradients, and state as a dict."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Parameter, Variable

# Names in a state dict beside accumulators.
_SCHEDULE, _STEPS = "LR_Scheduler", "global_step"


class DygraphMode:
    """Methods of `Optimizer` for dygraph mode; outside of it each raises DygraphError."""

    _parameter_list: Sequence[Parameter | str] | None
    _learning_rate: Any
    _accumulators: dict[str, dict[str, Variable]]
    _loaded: Mapping[str, Any] | None = None  # a state that was set before there are accumulators

    def state_dict(self) -> dict[str, Any]:
        """Return the accumulators by name, and the state of the learning rate's schedule.

        Dygraph mode only; for programs there is `fluid.save`.
        """
        _check_mode("state_dict", "Use fluid.save(program, path).")
        state: dict[str, Any] = {var.name: var for known in self._accumulators.values() for var in known.values()}
        if is_schedule(self._learning_rate):
            from jfluid.dygraph.base import real_variable

            state[_SCHEDULE] = self._learning_rate.state_dict()
            if not hasattr(self._learning_rate, "epoch"):  # it counts epochs alone
                steps = np.array([self._learning_rate.step_num], np.int32)
                state[_STEPS] = real_variable(steps, _STEPS)
        return state

    def set_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, or from a file of one.

        Accumulators that the first `minimize` makes later find their values, too.

        Dygraph mode only; for programs there is `fluid.load`.

        Raises DygraphError if it lacks an accumulator or the schedule's state, or where a value
        has a different shape or dtype.
        """
        _check_mode("set_dict", "Use fluid.load(program, path).")
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"{type(self).__name__}.set_dict: expected a dict by name, found "
                f"{type(state_dict).__name__} (load_dygraph gives None where there is no .pdopt file)"
            )
        accumulators: list[Any] = [var for known in self._accumulators.values() for var in known.values()]
        wanted = [var.name for var in accumulators]
        if is_schedule(self._learning_rate):
            wanted.append(_SCHEDULE)
        for name in wanted:
            if name not in state_dict:
                raise errors.DygraphError(
                    f"{type(self).__name__}.set_dict: the state has no {name}" + errors.close_to(name, state_dict)
                )
        if is_schedule(self._learning_rate):
            self._learning_rate.set_dict(state_dict[_SCHEDULE])
        for var in accumulators:
            var.set_value(state_dict[var.name])
        self._loaded = {n: v for n, v in state_dict.items() if n not in (_SCHEDULE, _STEPS)}

    def _restore(self, accumulator: Any) -> None:
        """Give an accumulator that was just made its value of a state that was set before."""
        if not self._loaded:
            return
        if accumulator.name not in self._loaded:
            raise errors.DygraphError(
                f"{type(self).__name__}: the state that was set has no {accumulator.name}"
                + errors.close_to(accumulator.name, self._loaded)
                + ": names count up with each optimizer over the same parameters"
            )
        accumulator.set_value(self._loaded[accumulator.name])

    def clear_gradients(self) -> None:
        """Set the gradients of all trainable parameters of the optimizer to zero.

        Dygraph mode only; each run of a program computes its gradients anew.
        """
        _check_mode("clear_gradients", "Every run of a program computes its gradients anew.")
        param: Any
        for param in self._parameter_list or ():
            if param.trainable:
                param.clear_gradient()

    def current_step_lr(self) -> float | np.floating[Any]:
        """Return the learning rate of the last `minimize`, or of the first one to come, as a NumPy number.

        The number prints with its own digits. Dygraph mode only; in programs, fetch the learning rate's variable.
        """
        _check_mode("current_step_lr", "Fetch the learning rate's variable (learning_rate_0, or your schedule).")
        used: Any = self._global_learning_rate()
        if used is not None:
            return used.numpy().reshape(())[()]  # type: ignore[no-any-return]
        rate = self._learning_rate
        found = rate.step() if is_schedule(rate) else rate
        return found.numpy().reshape(())[()] if isinstance(found, Variable) else float(found)

    def _global_learning_rate(self) -> Variable | None:
        raise NotImplementedError

    def _eager_gradients(
        self,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> list[Any]:
        """Return the pairs (parameter, gradient) of parameters that have a gradient."""
        left_out = {v if isinstance(v, str) else v.name for v in no_grad_set or ()}
        found = []
        param: Any
        for param in parameter_list or self._parameter_list or ():
            if isinstance(param, str):
                raise TypeError(
                    f"{type(self).__name__}, parameter_list: dygraph mode needs the parameters "
                    f"themselves, found the name {param!r}"
                )
            if param.trainable and param.name not in left_out:
                gradient = param._grad_ivar()
                if gradient is not None:
                    found.append((param, gradient))
        return found

    def _check_eagerly(self, learning_rate: Any, parameter_list: Any) -> None:
        """Raise TypeError or AttributeError for arguments that dygraph mode cannot work with."""
        if not isinstance(learning_rate, (int, float)) and not is_schedule(learning_rate):
            raise TypeError(
                f"{type(self).__name__}, learning_rate: in dygraph mode expected a float or a "
                f"schedule of fluid.dygraph, found {type(learning_rate).__name__}"
            )
        if parameter_list is None:
            raise AttributeError(
                f"{type(self).__name__}: dygraph mode needs the parameters to update: give the "
                "optimizer parameter_list=layer.parameters()"
            )


def is_schedule(rate: Any) -> bool:
    """Return True if a learning rate is a dygraph schedule."""
    if isinstance(rate, (int, float, Variable)):
        return False
    from jfluid.dygraph.learning_rate_scheduler import LearningRateDecay

    return isinstance(rate, LearningRateDecay)


def refuse_eagerly(what: str, instead: str) -> None:
    """Raise UnsupportedError in dygraph mode, for an optimizer that works on programs only.

    Its text is Fluid's, which old programs compare; a note explains the remedy.
    """
    if default_main_program().eager:
        error = errors.UnsupportedError(f"In dygraph, don't support {what}.")
        error.add_note(f"{what} works on programs, in Fluid too: {instead}")
        raise error


def _check_mode(what: str, instead: str) -> None:
    if not default_main_program().eager:
        raise errors.DygraphError(
            f"Optimizer.{what} is part of dygraph mode: call it within fluid.dygraph.guard(). For a program: {instead}"
        )
