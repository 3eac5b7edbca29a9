"""What the layers of `nn` share: a bias, an activation."""

from jfluid.dygraph.layers import Layer
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["with_activation", "with_bias"]


def with_bias(layer: Layer, x: Variable, bias: Variable | None, axis: int) -> Variable:
    """Return x plus a bias that stands along its dimension `axis`; x itself without a bias."""
    if bias is None:
        return x
    return emit("elementwise_add", {"X": x, "Y": bias}, {"axis": axis}, name=layer.full_name())


def with_activation(layer: Layer, x: Variable, act: str | None) -> Variable:
    """Return the activation of x that `act` names; x itself where it is None."""
    if act is None:
        return x
    if not isinstance(act, str):
        raise TypeError(f"{layer.full_name()}: act is the name of an activation, found {act!r}")
    return emit(act, {"X": x}, name=layer.full_name())
