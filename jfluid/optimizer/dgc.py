"""Deep gradient compression: momentum with an exchange of only the largest gradient elements."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from jfluid.clip import GradientClipBase, GradientClipByNorm, append_gradient_clip_ops
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.program import Program, default_main_program, program_guard
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer, ParamGrad, global_variable
from jfluid.optimizer.dygraph_mode import refuse_eagerly
from jfluid.regularizer import L1DecayRegularizer, L2DecayRegularizer, WeightDecayRegularizer, append_regularization_ops

_LEAST = 16384  # least number of elements of a parameter with compressed gradients
# Fluid's names of variables that all compressed gradients share, and suffixes of each gradient's variables.
_STEP, _BEGIN, _RANKS = "__g_dgc_counter__", "__g_rampup_begin_step__", "__g_nranks__"
_COUNT, _ENCODED, _GATHERED = "__dgc_k__", "__dgc_encoded__", "__dgc_gather__"


class DGCMomentumOptimizer(Optimizer):
    """Momentum with deep gradient compression (Lin et al., 2018).

    From step `rampup_begin_step` on, each replica adds its gradient to a momentum of its own and
    that to a rest; of the rest it sends only the elements of the largest magnitude, and keeps the
    others for later steps. Replicas gather the elements that each has sent, and step by the mean of
    them. Before, they step as `Momentum` does. Parameters of fewer than 16384 elements, of a different
    type than float32, and those with sparse gradients are always updated as by `Momentum`.

    Each replica keeps its momentum and residual; the first replica's are saved. Data parallelism
    by ReduceStrategy.Reduce raises UnsupportedError.

    Args:
        momentum: the factor on the old momentum.
        rampup_begin_step: the first step with compression, counted from 0.
        rampup_step: the steps in which `sparsity` is gone through.
        sparsity: the shares of a gradient that stay behind, one after the other; the last one stays.
        use_nesterov: step along grad + momentum * velocity instead.
        num_trainers: the number of replicas; needed with `grad_clip`.
        grad_clip: a `GradientClipByNorm`. Each replica clips its own gradient, to a norm that is
            smaller by the square root of `num_trainers`.

    For the other arguments see `Optimizer`. Raises TypeError and ValueError where one does not
    fit.
    """

    type = "dgc_momentum"
    _u_velocity_acc_str, _v_velocity_acc_str = "_dgc_u_", "_dgc_v_"

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        parameter_list: Sequence[Parameter | str] | None = None,
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        refuse_eagerly("DGCMomentumOptimizer", "use Momentum, or build a Program")
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        if rampup_begin_step < 0 or rampup_step < 1:
            raise ValueError(
                "DGCMomentumOptimizer: expected rampup_begin_step from 0 and rampup_step from 1 on, "
                f"found {rampup_begin_step} and {rampup_step}"
            )
        if not sparsity or not all(0 <= s < 1 for s in sparsity):
            raise ValueError(
                f"DGCMomentumOptimizer, sparsity: expected numbers from 0 to less than 1, found {sparsity!r}"
            )
        self._momentum, self._use_nesterov = momentum, bool(use_nesterov)
        self._begin, self._ramp, self._sparsity = rampup_begin_step, rampup_step, tuple(sparsity)
        self._clip_norm: float | None = None
        if grad_clip is not None:
            if not isinstance(grad_clip, GradientClipByNorm):
                raise TypeError(
                    f"DGCMomentumOptimizer, grad_clip: expected a GradientClipByNorm, found {type(grad_clip).__name__}"
                )
            if not isinstance(num_trainers, int) or num_trainers < 1:
                raise ValueError(
                    "DGCMomentumOptimizer, num_trainers: expected how many replicas clip their "
                    f"gradients, found {num_trainers!r}"
                )
            self._clip_norm = grad_clip.clip_norm * num_trainers**-0.5
        _penalty(regularization)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Parameter | str] | None = None,
        no_grad_set: Iterable[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[ParamGrad]:
        """Append the gradient operators, and the operators that compress gradients."""
        pairs = super().backward(loss, startup_program, parameter_list, no_grad_set, callbacks)
        with program_guard(loss.block.program, startup_program):
            self._compress(loss.block.program, pairs)
        return pairs

    def _compress(self, program: Program, pairs: Sequence[ParamGrad]) -> None:
        block = program.global_block()
        self._step = _float_variable(_STEP, -1.0)
        self._ranks = _float_variable(_RANKS, -1.0)
        _float_variable(_BEGIN, float(self._begin))
        block.prepend_op("replica_count", {}, {"Out": self._ranks})
        block.prepend_op("increment", {"X": self._step}, {"Out": self._step}, {"step": 1.0})
        for param, grad in pairs:
            if grad is None:
                continue
            velocity = self._add_accumulator(self._u_velocity_acc_str, param)
            if not _is_compressed(param, grad):
                continue
            rest = self._add_accumulator(self._v_velocity_acc_str, param)
            _without_role(block, param, grad)
            with program._backward_role_guard():
                if self._clip_norm is not None:
                    attrs = {"max_norm": self._clip_norm, "rampup_begin_step": float(self._begin)}
                    ins = {"X": grad, "current_step": self._step}
                    block.append_op("dgc_clip_by_norm", ins, {"Out": grad}, attrs)
                self._append_dgc(block, param, grad, velocity, rest)

    def _append_dgc(self, block: Block, param: Parameter, grad: Variable, velocity: Variable, rest: Variable) -> None:
        kind, coefficient = _penalty(getattr(param, "regularizer", None) or self.regularization)
        count = global_variable(param.name + _COUNT, [1], VarType.FP32, 0.0)
        encoded, gathered = (  # Fluid's buffers, which XLA has by itself
            block.create_var(name=param.name + end, shape=[1], dtype=VarType.FP32) for end in (_ENCODED, _GATHERED)
        )
        block.append_op(
            "dgc",
            {"U": velocity, "V": rest, "Grad": grad, "Param": param, "current_step": self._step, "nranks": self._ranks},
            {
                "U_out": velocity,
                "V_out": rest,
                "EncodeGrad": encoded,
                "Grad_out": grad,
                "k": count,
                "GatherBuff": gathered,
            },
            {
                "m": self._momentum,
                "use_nesterov": self._use_nesterov,
                "sparsity": list(self._sparsity),
                "rampup_begin_step": float(self._begin),
                "rampup_step": float(self._ramp),
                "regular_coeff": coefficient,
                "regular_type": kind,
                "op_role": int(OpRole.Backward),
                "op_role_var": [param.name, grad.name],
            },
        )

    def apply_gradients(self, params_grads: Sequence[ParamGrad]) -> list[Operator]:
        """Append clips and penalties of the gradients that are not compressed, and all updates."""
        plain = [(p, g) for p, g in params_grads if g is None or not _is_compressed(p, g)]
        kept = [(p, g) for p, g in params_grads if g is not None and _is_compressed(p, g)]
        clip = self._grad_clip or append_gradient_clip_ops
        plain = append_regularization_ops(clip(sorted(plain, key=lambda pair: pair[0].name)), self.regularization)
        return self._create_optimization_pass(sorted([*plain, *kept], key=lambda pair: pair[0].name))

    def _append_optimize_op(self, block: Block, param_and_grad: ParamGrad) -> Operator:
        param, grad = param_and_grad
        assert grad is not None  # parameters without a gradient are left out before
        velocity = self._get_accumulator(self._u_velocity_acc_str, param)
        ins: dict[str, Any] = {
            "Param": param,
            "Grad": grad,
            "Velocity": velocity,
            "LearningRate": self._create_param_lr(param_and_grad),
        }
        outs: dict[str, Any] = {"ParamOut": param, "VelocityOut": velocity}
        attrs: dict[str, Any] = {"mu": self._momentum, "use_nesterov": self._use_nesterov}
        if not _is_compressed(param, grad):
            return block.append_op("momentum", ins, outs, attrs)
        ins |= {"current_step": self._step, "nranks": self._ranks}
        outs["Grad_out"] = grad
        attrs["rampup_begin_step"] = float(self._begin)
        return block.append_op("dgc_momentum", ins, outs, attrs)


def _is_compressed(param: Parameter, grad: Variable) -> bool:
    return prod(param.shape) >= _LEAST and param.dtype == VarType.FP32 and grad.type != VarType.SELECTED_ROWS


def _float_variable(name: str, value: float) -> Variable:
    """Return a variable with a number that the optimizers of a program share."""
    known = default_main_program().global_block().vars.get(name)
    return known or global_variable(name, [1], VarType.FP32, value)


def _penalty(regularizer: WeightDecayRegularizer | None) -> tuple[int, float]:
    """Return the attributes `regular_type` and `regular_coeff`."""
    if regularizer is None:
        return 0, 0.0
    if not isinstance(regularizer, L1DecayRegularizer | L2DecayRegularizer):
        raise TypeError(
            f"DGCMomentumOptimizer, regularization: expected L1Decay or L2Decay, found {type(regularizer).__name__}"
        )
    return 1 + isinstance(regularizer, L2DecayRegularizer), regularizer._regularization_coeff


def _without_role(block: Block, param: Parameter, grad: Variable) -> None:
    """Unmark `grad` as the gradient of `param`: replicas exchange the output of the `dgc` operator instead."""
    for op in block.ops:
        pairs = list(op.attrs.get("op_role_var", ()))
        if op.attrs.get("op_role", 0) == OpRole.Backward and param.name in pairs:
            kept = [n for n in pairs if n not in (param.name, grad.name)]
            op.attrs["op_role_var"] = kept
