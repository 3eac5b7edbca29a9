"""Layers that stand for two."""

from collections.abc import Sequence

from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["fused_elemwise_activation"]


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: str | Sequence[str],
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """Apply a binary operator, and a unary operator to its result or to `y`.

    Args:
        x: any shape; y: its shape, or a stretch of its dimensions.
        functor_list: ["relu", "elementwise_add"] is relu(x + y), ["elementwise_add", "relu"] is
            x + relu(y); or the same joined by a comma. Of "elementwise_add", "elementwise_mul" and
            "scale", "relu", "tanh", "sigmoid".
        axis: the dimension of `x` that the first of `y` belongs to; -1 for the last ones.
        scale: the factor of "scale".
        save_intermediate_out: True if the program has a variable for the intermediate result.

    Returns:
        A Variable of the shape of `x`.

    Raises ValueError unless two operators are named.
    """
    functors = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    if len(functors) != 2:
        raise ValueError(f"fused_elemwise_activation, functor_list: expected two operators, found {functors}")
    attrs = {
        "axis": axis,
        "scale": scale,
        "save_intermediate_out": save_intermediate_out,
        "functor_list": functors,
    }
    out, _ = emit("fused_elemwise_activation", {"X": x, "Y": y}, attrs, outs=("Out", "IntermediateOut"))
    return out
