"""Losses as layers."""

from typing import Any

from jfluid import errors
from jfluid.dygraph.layers import Layer
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["BCELoss", "L1Loss", "MSELoss", "NLLLoss"]

_REDUCTIONS = ("mean", "sum", "none")


class _Loss(Layer):
    def __init__(self, reduction: str):
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"dygraph.{type(self).__name__}, reduction: expected one of "
                f"{', '.join(_REDUCTIONS)}, found {reduction!r}"
            )
        self.reduction = reduction

    def _reduced(self, loss: Variable) -> Variable:
        if self.reduction == "none":
            return loss
        return emit(f"reduce_{self.reduction}", {"X": loss}, {"reduce_all": True, "dim": [0]})


class MSELoss(_Loss):
    """The squared difference of two tensors of one shape.

    Args:
        reduction: "mean" or "sum" of all elements, or "none" for no reduction.

    Raises ValueError for an unknown reduction.
    """

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Return the loss of predictions and targets."""
        return self._reduced(emit("square", {"X": emit("elementwise_sub", {"X": input, "Y": label})}))


class L1Loss(_Loss):
    """The absolute difference of two tensors of one shape. The argument is `MSELoss`'s."""

    def __init__(self, reduction: str = "mean"):
        super().__init__(reduction)

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Return the loss of predictions and targets."""
        return self._reduced(emit("elementwise_sub", {"X": input, "Y": label}, act="abs"))


class BCELoss(_Loss):
    """The binary cross entropy of probabilities.

    Args:
        weight: factors of the losses of the elements, of a shape that broadcasts; None for ones.
        reduction: "mean" or "sum" of all elements, or "none" for no reduction.

    Raises ValueError for an unknown reduction.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean"):
        super().__init__(reduction)
        self.weight = weight

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Return the loss of probabilities and targets of one shape."""
        loss = emit("bce_loss", {"X": input, "Label": label}, name=self._full_name)
        if self.weight is not None:
            loss = emit("elementwise_mul", {"X": loss, "Y": self.weight})
        return self._reduced(loss)


class NLLLoss(_Loss):
    """The negative log likelihood of classes.

    Args:
        weight: a factor for each class, [C]; None for ones.
        reduction: "mean" (by the sum of the weights) or "sum" over all rows, or "none".
        ignore_index: rows with this label count nothing.

    Raises ValueError for an unknown reduction.
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", ignore_index: int = -100):
        super().__init__(reduction)
        self.weight, self.ignore_index = weight, ignore_index

    def forward(self, input: Variable, label: Variable) -> Variable:
        """Return the loss of log probabilities [N, C, ...] and class numbers [N, ...]."""
        shape = input.shape
        if len(shape) < 2:
            raise errors.ShapeError(f"dygraph.NLLLoss: expected an input [N, C, ...], found {list(shape)}")
        flat = len(shape) not in (2, 4)
        if flat:
            rows, classes = shape[:2]
            input = _reshaped(input, [rows, classes, 1, -1])
            label = _reshaped(label, [rows, 1, -1])
        loss = emit(
            "nll_loss",
            {"X": input, "Label": label, "Weight": self.weight},
            {"reduction": self.reduction, "ignore_index": self.ignore_index},
            outs=("Out", "Total_weight"),
            name=self._full_name,
        )[0]
        if flat and self.reduction == "none":
            loss = _reshaped(loss, [shape[0], *shape[2:]])
        return loss


def _reshaped(x: Variable, shape: list[int]) -> Variable:
    return emit("reshape2", {"X": x}, {"shape": shape}, outs=("Out", "XShape"))[0]
