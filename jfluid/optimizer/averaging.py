"""Averages of parameters over the steps, put in place for evaluation."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.program import Program, default_main_program, default_startup_program, name_scope, program_guard
from jfluid.ir.types import VarType, is_float
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.blocks import conditional
from jfluid.layers.control_flow import Switch
from jfluid.layers.creation import assign, cast
from jfluid.layers.helper import LayerHelper, emit
from jfluid.layers.tensor import autoincreased_step_counter
from jfluid.optimizer.base import Optimizer, global_variable
from jfluid.optimizer.dygraph_mode import refuse_eagerly
from jfluid.regularizer import WeightDecayRegularizer


def _averaged_parameters() -> list[Parameter]:
    return [p for p in default_main_program().global_block().all_parameters() if p.do_model_average is not False]


def _backup(param: Parameter, name: str) -> Variable:
    """Return a new variable for the trained value while the average replaces it."""
    return param.block.create_var(
        name=unique_name.generate(name), dtype=param.dtype, persistable=False, stop_gradient=True
    )


def _put_back(pairs: list[tuple[Parameter, Variable]]) -> Program:
    program = Program()
    block = program.global_block()
    for param, backup in pairs:
        block.append_op("assign", {"X": block.clone_variable(backup)}, {"Out": block.clone_variable(param)})
    return program


class _Applied:
    """Base class of parameter averages: `apply` and `restore`."""

    apply_program: Program
    restore_program: Program

    @contextlib.contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Iterator[None]:
        """Within this context the parameters in the current Scope are their averages.

        Args:
            executor: runs the exchange.
            need_restore: put the trained values back at the end; else call `restore` later.
        """
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Put the trained values back."""
        executor.run(self.restore_program)


class ModelAverage(_Applied, Optimizer):
    """Plain average of each parameter over a window of the last steps.

    Make it after `minimize`: it appends operators that sum up the parameters to the default main
    program. The window holds at least `min_average_window` and at most `max_average_window` steps,
    in between `average_window_rate` times the number of steps so far.

    Args:
        average_window_rate: the window's length relative to the number of steps.
        min_average_window: the shortest window.
        max_average_window: the longest window.
        regularization, name: see `Optimizer`.
    """

    type = "average_accumulates"

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
    ):
        refuse_eagerly("ModelAverage", "average the parameters' arrays, or build a Program")
        super().__init__(0.0, regularization=regularization, name=name)
        self.average_window = average_window_rate
        self.min_average_window = min_average_window
        self.max_average_window = max_average_window
        self.helper = LayerHelper(type(self).__name__)
        self.params_grads: list[tuple[Parameter, Variable]] = [
            (p, _backup(p, f"{p.name}.tmp")) for p in _averaged_parameters()
        ]
        for pair in self.params_grads:
            with pair[0].block.program._optimized_guard(pair), name_scope("move_average"):
                self._append_average_accumulate_op(pair[0])
        self.apply_program = self._average_program()
        self.restore_program = _put_back(self.params_grads)

    def _append_average_accumulate_op(self, param: Parameter) -> None:
        sums = {name: self._add_accumulator(name, param) for name in ("sum_1", "sum_2", "sum_3")}
        counts = {
            name: self._add_accumulator(name, param, dtype="int64", shape=[1])
            for name in ("num_accumulates", "old_num_accumulates", "num_updates")
        }
        accumulators = sums | counts
        param.block.append_op(
            self.type,
            {"param": param} | {f"in_{n}": v for n, v in accumulators.items()},
            {f"out_{n}": v for n, v in accumulators.items()},
            {
                "average_window": self.average_window,
                "min_average_window": self.min_average_window,
                "max_average_window": self.max_average_window,
            },
        )

    def _average_program(self) -> Program:
        program = Program()
        block = program.global_block()
        with program_guard(program):
            for param, backup in self.params_grads:
                target = block.clone_variable(param)
                block.append_op("assign", {"X": target}, {"Out": block.clone_variable(backup)})
                count = emit("sum", {"X": self._clones(block, param, "num_accumulates", "old_num_accumulates")})
                total = emit("sum", {"X": self._clones(block, param, "sum_1", "sum_2", "sum_3")})
                count, total = cast(count, param.dtype), cast(total, param.dtype)
                block.append_op("elementwise_div", {"X": total, "Y": count}, {"Out": target})
        return program

    def _clones(self, block: Block, param: Parameter, *names: str) -> list[Variable]:
        return [block.clone_variable(self._get_accumulator(name, param)) for name in names]


class ExponentialMovingAverage(_Applied):
    """Exponential moving average of parameters, with bias correction when it is applied.

    average = decay * average + (1 - decay) * param.

    Make it after `minimize` and call `update()` once. As in Fluid, `apply` leaves the corrected
    average behind: later values are averaged with it.

    Args:
        decay: the factor on the old average.
        thres_steps: a floating variable with one element that counts steps t; the decay is then
            min(decay, (1 + t) / (10 + t)). An integer variable divides to 0, as in Fluid: `decay`
            stays as it is.
        name: put before the names of the averages.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None):
        refuse_eagerly("ExponentialMovingAverage", "average the parameters' arrays, or build a Program")
        self._decay = decay
        self._name = name or ""
        self._step_counter_name = "@EMA_STEP_COUNTER@"
        self._decay_var = self._decay_variable(thres_steps)
        self._params_tmps = [(p, _backup(p, f"{self._name}{p.name}.ema_tmp")) for p in _averaged_parameters()]
        self._ema_vars: dict[str, Variable] = {}
        for param, backup in self._params_tmps:
            with param.block.program._optimized_guard([param, backup]), name_scope("moving_average"):
                self._ema_vars[param.name] = global_variable(
                    unique_name.generate(f"{self._name}{param.name}_ema"), param.shape, param.dtype, 0.0
                )
        default_startup_program().global_block().create_var(
            name=self._step_counter_name, shape=[1], dtype="int64", persistable=True, initializer=Constant(0)
        )
        self.apply_program = self._average_program()
        self.restore_program = _put_back(self._params_tmps)

    def _decay_variable(self, thres_steps: Variable | None) -> Variable:
        program = default_main_program()
        with program._lr_schedule_guard():
            rate = global_variable("scheduled_ema_decay_rate", [1], VarType.FP32, self._decay)
            if thres_steps is None:
                return rate
            if not is_float(thres_steps.dtype):
                warnings.warn(
                    "ExponentialMovingAverage: thres_steps holds integers, so the decay does not follow it; "
                    "cast it to float32",
                    stacklevel=3,
                )
                return rate
            limit = emit(
                "fill_constant",
                {},
                {"shape": [1], "dtype": int(VarType.FP32), "value": self._decay},
                stop_gradient=True,
            )
            scheduled = (thres_steps + 1.0) / (thres_steps + 10.0)
            with Switch() as switch:
                with switch.case(scheduled < self._decay):
                    assign(scheduled, rate)
                with switch.default():
                    assign(limit, rate)
            return rate

    def _average_program(self) -> Program:
        program = Program()
        block = program.global_block()
        with program_guard(program):
            step = block.create_var(name=self._step_counter_name, shape=[1], dtype="int64", persistable=True)
            steps = cast(step, "float32")
            power = emit("elementwise_pow", {"X": block.clone_variable(self._decay_var), "Y": steps})
            for param, backup in self._params_tmps:
                target, average = (block.clone_variable(param), block.clone_variable(self._ema_vars[param.name]))
                assign(target, block.clone_variable(backup))
                with conditional(steps > 0.0):
                    assign(average / (1.0 - power), average)
                assign(average, target)
        return program

    def update(self) -> None:
        """Append the operators that update the averages to the default main program; call it once."""
        autoincreased_step_counter(self._step_counter_name)
        for param, backup in self._params_tmps:
            with param.block.program._optimized_guard([param, backup]), name_scope("moving_average"):
                average = self._ema_vars[param.name]
                assign(average * self._decay_var + param * (1 - self._decay_var), average)
