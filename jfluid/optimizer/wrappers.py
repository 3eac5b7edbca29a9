"""Optimizers around optimizers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from jfluid import errors
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program, default_startup_program, program_guard
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.blocks import conditional
from jfluid.layers.creation import assign
from jfluid.layers.helper import emit
from jfluid.optimizer.base import Optimizer, ParamGrad, global_variable
from jfluid.optimizer.dygraph_mode import refuse_eagerly


class LookaheadOptimizer:
    """k steps forward, one step back (Zhang et al., 2019).

    The inner optimizer moves the parameters; every k-th step slow copies follow them, slow += alpha
    * (param - slow), and the parameters start again from there. The copies are called
    `<parameter>@SLOW`.

    Args:
        inner_optimizer: takes the steps.
        alpha: how far the slow copies follow, from 0 to 1.
        k: how many steps lie between two exchanges.
    """

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5):
        refuse_eagerly("LookaheadOptimizer", "use its inner optimizer, or build a Program")
        if inner_optimizer is None:
            raise TypeError("LookaheadOptimizer, inner_optimizer: expected an optimizer, found None")
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"LookaheadOptimizer, alpha: expected a number from 0 to 1, found {alpha}")
        if not isinstance(k, int) or k <= 0:
            raise ValueError(f"LookaheadOptimizer, k: expected a positive integer, found {k!r}")
        self.inner_optimizer = inner_optimizer
        self.alpha = alpha
        self.k = k
        self.type = "lookahead"

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Call the inner optimizer's `minimize`, append the exchange with the slow copies, and return its result."""
        result = self.inner_optimizer.minimize(loss, startup_program=startup_program)
        main, startup = loss.block.program, startup_program or default_startup_program()
        pairs = [(p, self._slow_copy(p, startup.global_block())) for p in main.global_block().all_parameters()]
        with program_guard(main, startup), main.role_guard(OpRole.Optimize):
            every = global_variable("lookahead_k", [1], VarType.INT32, self.k)
            alpha = global_variable("lookahead_alpha", [1], VarType.FP32, self.alpha)
            step = global_variable("lookahead_step", [1], VarType.INT32, 0)
            main.current_block().append_op("increment", {"X": step}, {"Out": step}, {"step": 1.0})
            with conditional(emit("elementwise_mod", {"X": step, "Y": every}) == 0):
                for fast, slow in pairs:
                    met = fast * alpha + slow * (1.0 - alpha)
                    assign(met, slow)
                    assign(met, fast)
        return result

    def _slow_copy(self, param: Parameter, startup: Block) -> Variable:
        slow = {"name": f"{param.name}@SLOW", "shape": param.shape, "dtype": param.dtype, "persistable": True}
        startup.append_op("assign", {"X": param.name}, {"Out": startup.create_var(**slow)})
        return param.block.create_var(**slow)


class RecomputeOptimizer(Optimizer):
    """Optimizer that keeps only checkpoints of the forward pass and recomputes the rest for gradients.

        optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.Adam(0.001))
        optimizer._set_checkpoints([hidden_1, hidden_2])
        optimizer.minimize(loss)

    Args:
        optimizer: takes the steps.
    """

    def __init__(self, optimizer: Optimizer):
        refuse_eagerly("RecomputeOptimizer", "use its inner optimizer, or build a Program")
        self._optimizer = optimizer
        self._checkpoints: list[Variable] | None = None
        self._learning_rate = optimizer._learning_rate
        self._learning_rate_map = optimizer._learning_rate_map

    def _set_checkpoints(self, checkpoints: Sequence[Variable]) -> None:
        """Set the variables to keep; values between two kept variables are recomputed."""
        if not isinstance(checkpoints, (list, tuple)):
            raise TypeError(f"checkpoints: expected a list of Variables, found {type(checkpoints).__name__}")
        self._checkpoints = list(checkpoints)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[ParamGrad]:
        """Append the gradient operators, and copies of the forward operators that are recomputed.

        Raises ProgramError before `_set_checkpoints`.
        """
        if self._checkpoints is None:
            raise errors.ProgramError("RecomputeOptimizer: call _set_checkpoints([variables to keep]) first")
        return self._optimizer._backward(
            loss, startup_program, parameter_list, no_grad_set, callbacks, self._checkpoints
        )

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Return the inner optimizer's `apply_gradients`."""
        return self._optimizer.apply_gradients(params_grads)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[ParamGrad]
    ) -> list[Operator]:
        """Return the inner optimizer's `apply_optimize`."""
        return self._optimizer.apply_optimize(loss, startup_program, params_grads)

    def get_opti_var_name_list(self) -> list[str]:
        """Return names of the inner optimizer's accumulators."""
        return self._optimizer.get_opti_var_name_list()

    def load(self, stat_dict: Any) -> NoReturn:
        """Raise UnsupportedError, as in Fluid; use `fluid.load`."""
        raise errors.UnsupportedError("RecomputeOptimizer.load is not supported; use fluid.load(program, path)")
