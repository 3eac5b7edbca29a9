"""Layers that multiply two inputs with each other."""

from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["bilinear_tensor_product", "fsp_matrix"]


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:
    """Return act(x weight[i] y + bias[i]) for each i below `size`.

    Args:
        x: float [batch, M]; M must be known.
        y: float [batch, N]; N must be known.
        size: the number of outputs.
        act: the name of an activation; None for none.
        name: prefix of the names of the parameters.
        param_attr: ParamAttr of the weight, [size, M, N].
        bias_attr: ParamAttr of the bias, [1, size]; False for none.

    Returns:
        [batch, size].

    Raises ShapeError for other shapes.
    """
    for what, value in (("x", x), ("y", y)):
        check_variable(value, "bilinear_tensor_product", what)
        if len(value.shape) != 2 or value.shape[1] < 1:
            raise errors.ShapeError(
                f"layers.bilinear_tensor_product: {what} is [batch, known size], found {list(value.shape)}"
            )
    helper = LayerHelper("bilinear_tensor_product", param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    shape = [size, x.shape[1], y.shape[1]]
    weight = helper.create_parameter(helper.param_attr, shape, x.dtype)
    bias = helper.create_parameter(helper.bias_attr, [1, size], x.dtype, is_bias=True)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type="bilinear_tensor_product", inputs={"X": x, "Y": y, "Weight": weight, "Bias": bias}, outputs={"Out": out}
    )
    return helper.append_activation(out)


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """Return the flow of a solution procedure (FSP) between feature maps [N, A, H, W] and [N, B, H, W].

    The result [N, A, B] has the products of all channel pairs, averaged over the pixels. Raises ShapeError if
    height or width differ. Source: Yim et al., A Gift from Knowledge Distillation (CVPR 2017).
    """
    return emit("fsp", {"X": x, "Y": y}, layer="fsp_matrix")
