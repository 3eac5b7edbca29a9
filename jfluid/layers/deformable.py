"""Deformable convolution."""

import math
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.initializer import Normal
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.windows import each

__all__ = ["deformable_conv"]

Size = int | Sequence[int]


def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Apply a deformable convolution: filter taps move by computed offsets, and a bias is added.

    Args:
        input: float [N, C, H, W]; C must be known.
        offset: [N, 2 * deformable_groups * height * width of the filter, H', W']: the shift of each tap down
            and across, in pixels. Between pixels values are interpolated; outside they are zero.
        mask: [N, deformable_groups * height * width of the filter, H', W'], factors of the taps; None with
            `modulated=False`.
        num_filters: the number of output channels.
        filter_size: one number, or one for each of height and width.
        stride: see `filter_size`.
        padding: see `filter_size`.
        dilation: see `filter_size`.
        groups: number of groups of channels, each convolved separately; 1 when None.
        deformable_groups: number of groups of channels with equal offsets; 1 when None.
        im2col_step: no effect: XLA computes the whole batch.
        param_attr: ParamAttr of the filters, [num_filters, C / groups, height, width].
        bias_attr: ParamAttr of the bias, [num_filters]; False for none.
        modulated: True to use `mask` (version 2).
        name: prefix of the names of the parameters.

    Returns:
        [N, num_filters, H', W'], of the size that `conv2d` gives.

    Raises ShapeError for wrong shapes; ProgramError for a missing mask. Source: Dai et al.,
    Deformable Convolutional Networks (arXiv:1703.06211); Zhu et al., version 2 (arXiv:1811.11168).
    """
    for what, value in (("input", input), ("offset", offset), ("mask", mask)):
        check_variable(value, "deformable_conv", what)
    if param_attr is False:
        raise errors.ProgramError("layers.deformable_conv: the filters cannot be left out")
    if modulated and mask is None:
        raise errors.ProgramError("layers.deformable_conv: give mask, or modulated=False")
    if len(input.shape) != 4 or input.shape[1] < 1 or input.shape[1] % (groups or 1):
        raise errors.ShapeError(
            "layers.deformable_conv: input is [N, C, H, W] with known C, divisible by groups "
            f"{groups or 1}, found {list(input.shape)}"
        )
    channels, kernel = input.shape[1], each(filter_size, 2, "deformable_conv", "filter_size")
    helper = LayerHelper("deformable_conv", param_attr=param_attr, bias_attr=bias_attr, name=name, input=input)
    deviation = (2.0 / (math.prod(kernel) * channels)) ** 0.5
    weight = helper.create_parameter(
        helper.param_attr,
        [num_filters, channels // (groups or 1), *kernel],
        input.dtype,
        default_initializer=Normal(0.0, deviation),
    )
    out = helper.create_variable_for_type_inference(input.dtype)
    optional = {"groups": groups, "deformable_groups": deformable_groups, "im2col_step": im2col_step}
    helper.append_op(
        type="deformable_conv" if modulated else "deformable_conv_v1",
        inputs={"Input": input, "Filter": weight, "Offset": offset} | ({"Mask": mask} if modulated else {}),
        outputs={"Output": out},
        attrs={
            "strides": each(stride, 2, "deformable_conv", "stride"),
            "paddings": each(padding, 2, "deformable_conv", "padding"),
            "dilations": each(dilation, 2, "deformable_conv", "dilation"),
        }
        | {n: v for n, v in optional.items() if v is not None},
    )
    return helper.append_bias_op(out, dim_start=1, dim_end=2)
