"""An optimizer that trains in 16 bits, with loss scaling (Micikevicius et al. 2018, arXiv:1710.03740)."""

from collections.abc import Iterable, Sequence
from typing import Any

from jfluid import errors, layers
from jfluid.clip import ParamGrad
from jfluid.contrib.mixed_precision.lists import AutoMixedPrecisionLists
from jfluid.contrib.mixed_precision.rewrite import rewrite
from jfluid.ir import unique_name
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program, default_startup_program, program_guard
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Parameter, Variable
from jfluid.layers.blocks import conditional
from jfluid.optimizer.dygraph_mode import refuse_eagerly


class OptimizerWithMixedPrecision:
    """Wrapper that trains with an optimizer in 16 bits; `decorate` creates it."""

    def __init__(
        self,
        optimizer: Any,
        amp_lists: AutoMixedPrecisionLists,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int,
        incr_ratio: float,
        decr_ratio: float,
        dtype: VarType,
    ):
        self._optimizer, self._amp_lists, self._dtype = optimizer, amp_lists, dtype
        self._init_loss_scaling, self._dynamic = float(init_loss_scaling), use_dynamic_loss_scaling
        self._incr_every_n_steps, self._incr_ratio = incr_every_n_steps, incr_ratio
        self._decr_every_n_nan_or_inf, self._decr_ratio = decr_every_n_nan_or_inf, decr_ratio
        self._loss_scaling: Variable | None = None
        self._scaled_loss: Variable | None = None

    def get_loss_scaling(self) -> Variable | None:
        """Return the Variable [1] with the loss scaling; None before `minimize`."""
        return self._loss_scaling

    def get_scaled_loss(self) -> Variable | None:
        """Return the loss times the scaling; None before `minimize`."""
        return self._scaled_loss

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> list[ParamGrad]:
        """Rewrite the program of `loss` to 16 bits, and append its gradients.

        Gradients are divided by the loss scaling, and zero if any gradient overflowed.
        """
        refuse_eagerly("mixed_precision.decorate", "use the optimizer without it")
        program, startup = loss.block.program, startup_program or default_startup_program()
        with program_guard(program, startup):
            rewrite(program, self._amp_lists, self._dtype)
            self._loss_scaling = layers.create_global_var(
                [1],
                self._init_loss_scaling,
                "float32",
                persistable=True,
                name=unique_name.generate("loss_scaling"),
            )
            if loss.dtype != VarType.FP32:
                loss = layers.cast(loss, "float32")
            self._scaled_loss = loss * self._loss_scaling
            pairs = self._optimizer.backward(self._scaled_loss, startup, parameter_list, no_grad_set, callbacks)
            result = []
            for param, grad in pairs:
                with program._optimized_guard([param, grad]):
                    result.append((param, grad / self._loss_scaling))
            if self._dynamic:
                with program._optimized_guard([]):
                    self._watch([g for _, g in result])
        return result

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Append the inner optimizer's updates."""
        updates: list[Operator] = self._optimizer.apply_gradients(params_grads)
        return updates

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[ParamGrad]
    ) -> list[Operator]:
        """Append updates, as `apply_gradients` does, to the program of `loss`."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """Append gradients and updates; returns (update operators, parameters with their gradients)."""
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, pairs), pairs

    def _watch(self, grads: list[Variable]) -> None:
        """Append operators that depend on finite gradients: counters, scaling, zeroed gradients."""
        good, bad = (
            layers.create_global_var([1], 0, "int32", persistable=True, name=unique_name.generate(name))
            for name in ("num_good_steps", "num_bad_steps")
        )
        sums = layers.concat([layers.reshape(layers.reduce_sum(_values(g)), [1]) for g in grads])
        finite = layers.isfinite(layers.reduce_sum(sums))
        zero, one = layers.fill_constant([1], "int32", 0), layers.fill_constant([1], "float32", 1.0)
        scaling = self._loss_scaling
        assert scaling is not None  # it is made before the gradients
        with conditional(finite):
            layers.increment(good)
            layers.assign(zero, bad)
            with conditional(layers.less_than(layers.fill_constant([1], "int32", self._incr_every_n_steps), good)):
                grown = layers.scale(scaling, self._incr_ratio)
                with conditional(layers.isfinite(grown)):
                    layers.assign(grown, scaling)
                layers.assign(zero, good)
        with conditional(layers.logical_not(finite)):
            layers.increment(bad)
            layers.assign(zero, good)
            with conditional(layers.less_than(layers.fill_constant([1], "int32", self._decr_every_n_nan_or_inf), bad)):
                layers.assign(layers.elementwise_max(layers.scale(scaling, self._decr_ratio), one), scaling)
                layers.assign(zero, bad)
            for grad in grads:
                layers.assign(layers.zeros_like(grad), grad)


def decorate(
    optimizer: Any,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 32768,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
    dtype: str = "bfloat16",
) -> OptimizerWithMixedPrecision:
    """Return an optimizer that computes suitable operators in 16 bits; parameters and updates stay in float32.

    The loss is multiplied by a scaling before the backward pass, and gradients are divided by it.
    With dynamic scaling, a step with gradients that are not finite updates with zeros. After several
    such steps the scaling shrinks; after many good steps it grows.

    Args:
        optimizer: any optimizer of `fluid.optimizer`.
        amp_lists: which operators run in 16 bits; AutoMixedPrecisionLists() when None.
        init_loss_scaling: the first scaling.
        incr_every_n_steps, incr_ratio: after more than so many good steps in a row the scaling is
            multiplied by the ratio.
        decr_every_n_nan_or_inf, decr_ratio: after more than so many overflows in a row the scaling
            is multiplied by the ratio; it never falls below 1.
        use_dynamic_loss_scaling: False keeps the first scaling and lets infinite gradients through.
        dtype: "bfloat16", which has the range of float32, or "float16", as in Fluid.

    Raises ProgramError for a different dtype or settings out of range.
    """
    if dtype not in ("bfloat16", "float16"):
        raise errors.ProgramError(f'mixed precision: dtype {dtype!r}, expected "bfloat16" or "float16"')
    if init_loss_scaling <= 0 or incr_ratio <= 1 or not 0 < decr_ratio < 1:
        raise errors.ProgramError(
            "mixed precision: init_loss_scaling must be positive, incr_ratio above 1, decr_ratio "
            f"between 0 and 1; found {init_loss_scaling}, {incr_ratio}, {decr_ratio}"
        )
    if min(incr_every_n_steps, decr_every_n_nan_or_inf) < 1:
        raise errors.ProgramError(
            "mixed precision: incr_every_n_steps and decr_every_n_nan_or_inf must be at least 1; "
            f"found {incr_every_n_steps}, {decr_every_n_nan_or_inf}"
        )
    return OptimizerWithMixedPrecision(
        optimizer,
        amp_lists or AutoMixedPrecisionLists(),
        init_loss_scaling,
        use_dynamic_loss_scaling,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
        var_type(dtype),
    )


def _values(grad: Variable) -> Variable:
    """Return a gradient as a dense tensor that is finite where it is: of sparse rows their values."""
    return layers.get_tensor_from_selected_rows(grad) if grad.type == VarType.SELECTED_ROWS else grad
