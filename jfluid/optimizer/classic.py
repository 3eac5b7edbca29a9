"""Gradient descent, with and without momentum."""

from collections.abc import Sequence
from typing import Any, ClassVar

from jfluid.clip import GradientClipBase
from jfluid.ir.variable import Parameter, Variable
from jfluid.optimizer.base import Optimizer
from jfluid.regularizer import WeightDecayRegularizer


class SGDOptimizer(Optimizer):
    """Stochastic gradient descent: param -= learning_rate * grad; for the arguments see `Optimizer`."""

    type = "sgd"


class MomentumOptimizer(Optimizer):
    """velocity = momentum * velocity + grad; param -= learning_rate * velocity.

    Args:
        momentum: the factor on the old velocity.
        use_nesterov: step along grad + momentum * velocity instead.

    For the other arguments see `Optimizer`.
    """

    type = "momentum"
    accumulators: ClassVar = {"velocity": ("Velocity", "VelocityOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        parameter_list: Sequence[Parameter | str] | None = None,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum = momentum
        self._use_nesterov = bool(use_nesterov)

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"mu": self._momentum, "use_nesterov": self._use_nesterov}


class LarsMomentumOptimizer(Optimizer):
    """Momentum with layer-wise adaptive learning rates (LARS, You et al., 2017).

    rate = learning_rate * lars_coeff * norm(param) / (norm(grad) + lars_weight_decay * norm(param));
    velocity = momentum * velocity + rate * (grad + lars_weight_decay * param); param -= velocity.

    Args:
        momentum: the factor on the old velocity.
        lars_coeff: bound on the step of a parameter, relative to its norm.
        lars_weight_decay: the coefficient of the weight decay.

    For the other arguments see `Optimizer`.
    """

    type = "lars_momentum"
    accumulators: ClassVar = {"velocity": ("Velocity", "VelocityOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: Sequence[Parameter | str] | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name)
        self._momentum = momentum
        self._lars_coeff = float(lars_coeff)
        self._lars_weight_decay = float(lars_weight_decay)

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"mu": self._momentum, "lars_coeff": self._lars_coeff, "lars_weight_decay": self._lars_weight_decay}


class DpsgdOptimizer(Optimizer):
    """Differentially private gradient descent (Abadi et al., 2016): clipped gradients plus Gaussian noise.

    Args:
        clip: the greatest norm of a gradient.
        batch_size: divisor of the noise.
        sigma: the noise's standard deviation, relative to `clip`.
    """

    type = "dpsgd"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: Sequence[Parameter | str] | None = None,
    ):
        super().__init__(learning_rate, parameter_list)
        self._clip = clip
        self._batch_size = batch_size
        self._sigma = sigma
        self._seed: int | None = None

    def _attributes(self, param: Parameter) -> dict[str, Any]:
        return {"clip": self._clip, "batch_size": self._batch_size, "sigma": self._sigma, "seed": self._seed}
