"""Shared code of the layers of `nn`: operator, bias, activation."""

from collections.abc import Mapping
from typing import Any

from jfluid.dygraph.layers import Layer
from jfluid.ir.program import default_main_program
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["computed", "with_activation"]


def computed(
    layer: Layer,
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    out: str = "Out",
    bias: Variable | None = None,
    axis: int = 1,
    act: str | None = None,
) -> Variable:
    """Return act(operator(inputs) + bias); None leaves out bias or activation.

    Args:
        layer: gives the variables their names.
        op_type: type of the operator.
        inputs, attrs: inputs and attributes of the operator.
        out: the output slot.
        bias: bias variable.
        axis: dimension of the bias.
        act: the name of an activation.

    Raises TypeError for an activation that is no name.
    """

    def call() -> Variable:
        name = layer.full_name()
        made = emit(op_type, inputs, attrs, outs=(out,), name=name)
        if bias is not None:
            made = emit("elementwise_add", {"X": made, "Y": bias}, {"axis": axis}, name=name)
        return with_activation(layer, made, act)

    block: Any = default_main_program().current_block()
    if not block.program.eager or not (isinstance(act, str) or (act is None and bias is not None)):
        return call()
    variables, token = [*inputs.values(), bias], (op_type, *inputs, out, axis, act)
    return block.append_chain(token, attrs, variables, call, layer.full_name())  # type: ignore[no-any-return]


def with_activation(layer: Layer, x: Variable, act: str | None) -> Variable:
    """Return the activation of x, or x itself if `act` is None."""
    if act is None:
        return x
    if not isinstance(act, str):
        raise TypeError(f"{layer.full_name()}: act is the name of an activation, found {act!r}")
    return emit(act, {"X": x}, name=layer.full_name())
