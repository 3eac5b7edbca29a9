"""Optimizers with adaptive step sizes."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jfluid.clip import GradientClipBase
from jfluid.ir.block import Block
from jfluid.ir.program import name_scope
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer, ParamGrad
from jfluid.regularizer import WeightDecayRegularizer


class AdagradOptimizer(Optimizer):
    """moment += grad ** 2; param -= learning_rate * grad / (sqrt(moment) + epsilon) (Duchi et al., 2011).

    Args:
        epsilon: keeps the divisor from zero.
        initial_accumulator_value: initial value of the moment.

    For the other arguments see `Optimizer`.
    """

    type = "adagrad"
    accumulators: ClassVar = {"moment": ("Moment", "MomentOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon = epsilon
        self.initial_accumulator_value = initial_accumulator_value

    def _first_value(self, accumulator: str) -> float:
        return self.initial_accumulator_value

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon}


class DecayedAdagradOptimizer(Optimizer):
    """Adagrad with moment = decay * moment + (1 - decay) * grad ** 2.

    Args:
        decay: the factor on the old moment.
        epsilon: keeps the divisor from zero.

    For the other arguments see `Optimizer`.
    """

    type = "decayed_adagrad"
    accumulators: ClassVar = {"moment": ("Moment", "MomentOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        decay: float = 0.95,
        epsilon: float = 1.0e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._decay = decay
        self._epsilon = epsilon

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"decay": self._decay, "epsilon": self._epsilon}


class _BetaPowers(Optimizer):
    """Base class of optimizers with accumulated powers of their betas, one element each."""

    _beta1: float | Variable
    _beta2: float | Variable
    _epsilon: float

    def _first_value(self, accumulator: str) -> float:
        if accumulator == "beta1_pow_acc":
            return 0.9 if isinstance(self._beta1, Variable) else self._beta1
        if accumulator == "beta2_pow_acc":
            return 0.999 if isinstance(self._beta2, Variable) else self._beta2
        return 0.0

    def _accumulator_shape(self, accumulator: str, param: Parameter) -> Sequence[int] | None:
        return [1] if accumulator.endswith("_pow_acc") else None

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        given = {"beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon}
        return {name: value for name, value in given.items() if not isinstance(value, Variable)}


class AdamOptimizer(_BetaPowers):
    """Adam (Kingma and Ba, 2014), with epsilon outside of the bias correction.

    param -= learning_rate * sqrt(1 - beta2 ** t) / (1 - beta1 ** t) * moment1 / (sqrt(moment2) + epsilon).

    Args:
        beta1: the factor on the first moment; a number or a variable with one element.
        beta2: the factor on the second moment; a number or a variable with one element.
        epsilon: added to the divisor.
        lazy_mode: with sparse gradients, moments of rows without a gradient stay unchanged.

    For the other arguments see `Optimizer`.
    """

    type = "adam"
    accumulators: ClassVar = {
        "moment1": ("Moment1", "Moment1Out"),
        "moment2": ("Moment2", "Moment2Out"),
        "beta1_pow_acc": ("Beta1Pow", "Beta1PowOut"),
        "beta2_pow_acc": ("Beta2Pow", "Beta2PowOut"),
    }

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._lazy_mode = lazy_mode

    def _extra_inputs(self) -> dict[str, Variable]:
        tensors = {"Beta1Tensor": self._beta1, "Beta2Tensor": self._beta2}
        return {slot: beta for slot, beta in tensors.items() if isinstance(beta, Variable)}

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return super()._attributes(param) | {"lazy_mode": self._lazy_mode, "min_row_size_to_use_multithread": 1000}


class AdamaxOptimizer(_BetaPowers):
    """Adam with the decaying maximum of |grad| in place of the second moment (Kingma and Ba, 2014).

    Args:
        beta1: the factor on the moment.
        beta2: the factor on the maximum.
        epsilon: keeps the divisor from zero.

    For the other arguments see `Optimizer`.
    """

    type = "adamax"
    accumulators: ClassVar = {
        "moment": ("Moment", "MomentOut"),
        "inf_norm": ("InfNorm", "InfNormOut"),
        "beta1_pow_acc": ("Beta1Pow", None),
    }

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon

    def _finish_update(self, block: Block, params_grads: Sequence[ParamGrad]) -> None:
        """Update the powers of beta1, which the operator does not update."""
        for param, grad in params_grads:
            if grad is None or not param.trainable:
                continue
            with block.program._optimized_guard([param, grad]), name_scope("adamx"):
                power = self._get_accumulator("beta1_pow_acc", param)
                block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self._beta1})


class LambOptimizer(_BetaPowers):
    """Adam's step plus weight decay, scaled by norm(param) / norm(step), parameter by parameter (You et al., 2019).

    As in Fluid 1.8, moments are not corrected for starting at zero.

    Args:
        lamb_weight_decay: the coefficient of the weight decay.
        beta1: the factor on the first moment.
        beta2: the factor on the second moment.
        epsilon: keeps the divisor from zero.
        exclude_from_weight_decay_fn: tells of a parameter whether it is spared the weight decay.

    For the other arguments see `Optimizer`.
    """

    type = "lamb"
    accumulators: ClassVar = {
        "moment1": ("Moment1", "Moment1Out"),
        "moment2": ("Moment2", "Moment2Out"),
        "beta1_pow_acc": ("Beta1Pow", None),
        "beta2_pow_acc": ("Beta2Pow", None),
    }

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._weight_decay = lamb_weight_decay
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._exclude_from_weight_decay_fn = exclude_from_weight_decay_fn

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        spared = self._exclude_from_weight_decay_fn is not None and self._exclude_from_weight_decay_fn(param)
        return super()._attributes(param) | {"weight_decay": 0.0 if spared else self._weight_decay}


class AdadeltaOptimizer(Optimizer):
    """Adadelta (Zeiler, 2012): step sizes from running averages; `learning_rate` has no effect, as in Fluid.

    Args:
        epsilon: added to both averages.
        rho: the factor on the old averages.

    For the other arguments see `Optimizer`.
    """

    type = "adadelta"
    accumulators: ClassVar = {
        "_avg_squared_grad": ("AvgSquaredGrad", "AvgSquaredGradOut"),
        "_avg_squared_update": ("AvgSquaredUpdate", "AvgSquaredUpdateOut"),
    }
    uses_learning_rate: ClassVar = False

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        rho: float = 0.95,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._epsilon = epsilon
        self._rho = rho

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "rho": self._rho}


class RMSPropOptimizer(Optimizer):
    """moment = momentum * moment + learning_rate * grad / sqrt(mean_square + epsilon); param -= moment.

    Args:
        rho: the factor on the old averages.
        epsilon: keeps the divisor from zero.
        momentum: the factor on the old moment.
        centered: subtract the square of the average gradient from the average square.

    For the other arguments see `Optimizer`.
    """

    type = "rmsprop"
    accumulators: ClassVar = {
        "momentum": ("Moment", "MomentOut"),
        "mean_square": ("MeanSquare", "MeanSquareOut"),
        "mean_grad": ("MeanGrad", "MeanGradOut"),
    }

    def __init__(
        self,
        learning_rate: float | Variable,
        rho: float = 0.95,
        epsilon: float = 1.0e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._rho = rho
        self._epsilon = epsilon
        self._momentum = momentum
        self._centered = centered

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"epsilon": self._epsilon, "decay": self._rho, "momentum": self._momentum, "centered": self._centered}


class FtrlOptimizer(Optimizer):
    """Follow the regularized leader (McMahan et al., 2013): sparse weights through `l1`.

    Fluid 1.8 takes `l1` as the coefficient of both penalties, and so does this class: a warning
    says so where `l2` differs.

    Args:
        l1: the coefficient of the L1 penalty, and of the L2 penalty.
        l2: the coefficient of the L2 penalty in Fluid's documentation.
        lr_power: the exponent of the squared gradients' sum in the rate.

    For the other arguments see `Optimizer`.
    """

    type = "ftrl"
    accumulators: ClassVar = {
        "squared": ("SquaredAccumulator", "SquaredAccumOut"),
        "linear": ("LinearAccumulator", "LinearAccumOut"),
    }

    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        if l1 != l2:
            warnings.warn(f"Ftrl: l1={l1} replaces l2={l2}, as in Fluid 1.8", stacklevel=2)
        self._l1 = l1
        self._lr_power = lr_power

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"l1": self._l1, "l2": self._l1, "lr_power": self._lr_power}
