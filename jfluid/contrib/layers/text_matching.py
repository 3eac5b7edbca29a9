"""Layers that match the words of two texts with each other."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.windows import each

__all__ = ["match_matrix_tensor", "var_conv_2d"]


def match_matrix_tensor(
    x: Variable,
    y: Variable,
    channel_num: int,
    act: str | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return x W y for each pair of words of two texts, and each channel of a parameter W.

    Source: Wan et al., "A Deep Architecture for Semantic Matching with Multiple Positional Sentence
    Representations", 2016.

    Args:
        x, y: words of pairs of texts, rows [rows, width] with a LoD of one level.
        channel_num: of W, [width, channel_num, width].
        act: an activation of the result.
        param_attr: ParamAttr of W.
        dtype: of W.

    Returns:
        (rows [rows, 1] with a LoD, of each pair [channel_num, words of x, words of y]; x W of all
            words of x, flattened).

    Raises ShapeError where `x` and `y` have different widths.
    """
    check_variable(x, "match_matrix_tensor", "x")
    check_variable(y, "match_matrix_tensor", "y")
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[-1] != y.shape[-1]:
        raise errors.ShapeError(f"match_matrix_tensor: x and y are rows of one width, found {x.shape} and {y.shape}")
    helper = LayerHelper("match_matrix_tensor", param_attr=param_attr, act=act, name=name)
    shape = [x.shape[-1], channel_num, y.shape[-1]]
    weight = helper.create_parameter(attr=helper.param_attr, shape=shape, dtype=dtype)
    out = helper.create_variable_for_type_inference(dtype)
    projected = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    helper.append_op(
        type="match_matrix_tensor",
        inputs={"X": x, "Y": y, "W": weight},
        outputs={"Out": out, "Tmp": projected},
        attrs={"dim_t": channel_num},
    )
    return helper.append_activation(out), projected


def var_conv_2d(
    input: Variable,
    row: Variable,
    col: Variable,
    input_channel: int,
    output_channel: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    param_attr: Any = None,
    act: str | None = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Convolve pictures of different sizes, each with zeros around it.

    Args:
        input: rows [rows, 1] with a LoD: of each picture [input_channel, height, width].
        row, col: any rows with a LoD: the lengths of their sequences are the heights and widths of the
            pictures.
        output_channel: of the result.
        filter_size, stride: one number, or [by rows, by columns].
        param_attr: ParamAttr of the filters, [output_channel, input_channel * filter_size ** 2].
        act: an activation of the result.
        dtype: of the filters.

    Returns:
        rows [rows, 1] with a LoD: of each picture [output_channel, (height - 1) // stride + 1,
            (width - 1) // stride + 1].

    Raises ShapeError where `input` has not two dimensions.
    """
    check_variable(input, "var_conv_2d", "input")
    if len(input.shape) != 2:
        raise errors.ShapeError(f"var_conv_2d: input is [rows, 1], found {input.shape}")
    kernel = each(filter_size, 2, "var_conv_2d", "filter_size")
    strides = each(stride, 2, "var_conv_2d", "stride")
    helper = LayerHelper("var_conv_2d", param_attr=param_attr, act=act, name=name)
    shape = [int(output_channel), int(input_channel) * kernel[0] * kernel[1]]
    weight = helper.create_parameter(attr=helper.param_attr, shape=shape, dtype=dtype)
    out = helper.create_variable_for_type_inference(dtype)
    unfolded = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    helper.append_op(
        type="var_conv_2d",
        inputs={"X": input, "ROW": row, "COLUMN": col, "W": weight},
        outputs={"Out": out, "Col": unfolded},
        attrs={
            "InputChannel": input_channel,
            "OutputChannel": output_channel,
            "KernelH": kernel[0],
            "KernelW": kernel[1],
            "StrideH": strides[0],
            "StrideW": strides[1],
        },
    )
    return helper.append_activation(out)
