"""Weight decay: penalties that are added to gradients."""

import logging
from collections.abc import Sequence

from jfluid.ir.block import Block
from jfluid.ir.program import name_scope
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable

__all__ = ["L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer"]

_log = logging.getLogger(__name__)
ParamGrad = tuple[Parameter, Variable | None]


class WeightDecayRegularizer:
    """Base class of regularizers: `regularizer(param, grad, block)` returns the gradient of the penalty."""

    def __init__(self, regularization_coeff: float = 0.0):
        self._regularization_coeff = float(regularization_coeff)

    def __call__(self, param: Variable, grad: Variable, block: Block) -> Variable:
        raise NotImplementedError

    def _scaled(self, source: Variable, out: Variable, block: Block) -> Variable:
        block.append_op("scale", {"X": source}, {"Out": out}, {"scale": self._regularization_coeff})
        return out

    def __str__(self) -> str:
        return f"{type(self).__name__.removesuffix('Regularizer')}, regularization_coeff={self._regularization_coeff:f}"


class L2DecayRegularizer(WeightDecayRegularizer):
    """L2 penalty coeff / 2 * sum(param²): coeff * param is added to the gradient.

    Args:
        regularization_coeff: the coefficient.
    """

    def __call__(self, param: Variable, grad: Variable, block: Block) -> Variable:
        return self._scaled(param, block.create_var(dtype=param.dtype, shape=param.shape), block)


class L1DecayRegularizer(WeightDecayRegularizer):
    """L1 penalty coeff * sum(|param|): coeff * sign(param) is added to the gradient.

    Args:
        regularization_coeff: the coefficient.
    """

    def __call__(self, param: Variable, grad: Variable, block: Block) -> Variable:
        decay = block.create_var(dtype=param.dtype, shape=param.shape)
        block.append_op("sign", {"X": param}, {"Out": decay})
        return self._scaled(decay, decay, block)


def append_regularization_ops(
    parameters_and_grads: Sequence[ParamGrad], regularization: WeightDecayRegularizer | None = None
) -> list[ParamGrad]:
    """Add each parameter's penalty to its gradient: in place, or beside a sparse gradient, as the sum is dense.

    Args:
        parameters_and_grads: pairs of a parameter and its gradient (or None).
        regularization: for the parameters that have no regularizer of their own.

    Returns:
        The pairs, with the variables that hold the gradients afterwards.
    """
    if not (regularization or any(getattr(p, "regularizer", 0) for p, _ in parameters_and_grads)):
        return list(parameters_and_grads)
    own = [p.name for p, _ in parameters_and_grads if regularization is not None and getattr(p, "regularizer", None)]
    if own:
        _log.info("these parameters keep their own regularizer, not the optimizer's: %s", ", ".join(own))
    result = []
    with name_scope("regularization"):
        for param, grad in parameters_and_grads:
            decay = getattr(param, "regularizer", None) or regularization
            if grad is not None and decay is not None:
                with param.block.program._optimized_guard([param, grad]):
                    penalty = decay(param, grad, grad.block)
                    total = _holder(grad)
                    grad.block.append_op("sum", {"X": [grad, penalty]}, {"Out": total})
                grad = total
            result.append((param, grad))
    return result


def _holder(grad: Variable) -> Variable:
    """Return the variable for the sum of a gradient and a penalty, with Fluid's name for a sparse gradient."""
    if grad.type != VarType.SELECTED_ROWS:
        return grad
    return grad.block.create_var(name=f"{grad.name}@NEWGRAD@", shape=grad.shape, dtype=grad.dtype)


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
