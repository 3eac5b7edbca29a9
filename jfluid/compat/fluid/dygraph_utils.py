"""`fluid.dygraph_utils`: bias and activation of layers in imperative mode."""

from typing import Any

from jfluid.errors import DygraphError
from jfluid.ir.program import default_main_program
from jfluid.layers.helper import emit

__all__ = ["_append_activation_in_dygraph", "_append_bias_in_dygraph"]


def _append_activation_in_dygraph(
    input: Any,
    act: str | None = None,
    use_cudnn: bool | None = None,
    use_mkldnn: bool | None = None,
) -> Any:
    """Apply the activation of a name; return `input` itself without one.

    XLA chooses its own kernels, whatever `use_cudnn` and `use_mkldnn` say. Raises DygraphError outside of
    dygraph mode.
    """
    _check("_append_activation_in_dygraph")
    return input if act is None else emit(act, {"X": input})


def _append_bias_in_dygraph(input: Any, bias: Any = None, axis: int = 1) -> Any:
    """Add a bias along an axis; return `input` itself without one.

    Raises DygraphError outside of dygraph mode.
    """
    _check("_append_bias_in_dygraph")
    if bias is None:
        return input
    return emit("elementwise_add", {"X": input, "Y": bias}, attrs={"axis": axis})


def _check(what: str) -> None:
    if not default_main_program().eager:
        raise DygraphError(f"{what}: call it within fluid.dygraph.guard()")
