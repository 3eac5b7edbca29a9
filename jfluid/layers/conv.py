"""Convolution layers."""

import math
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.initializer import Normal
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.windows import each, paddings_of

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

Size = int | Sequence[int]


def _groups(layer: str, groups: int | None) -> int:
    """Return the number of groups; 1 for None. Raises ShapeError for one below 1."""
    if groups is not None and groups < 1:
        raise errors.ShapeError(f"layers.{layer}: groups {groups}, expected at least 1 (None is one group)")
    return groups or 1


def _channels(layer: str, x: Variable, data_format: str, rank: int) -> tuple[int, bool]:
    """Return (the number of channels of x, True if channels are the last dimension).

    Raises ShapeError for a wrong rank or an unknown number of channels, ProgramError for a wrong format.
    """
    check_variable(x, layer, "input")
    formats = ("NCHW", "NHWC") if rank == 2 else ("NCDHW", "NDHWC")
    if data_format not in formats:
        raise errors.ProgramError(f"layers.{layer}: data_format {data_format!r}, expected {' or '.join(formats)}")
    if len(x.shape) != rank + 2:
        raise errors.ShapeError(
            f"layers.{layer}: input has {rank + 2} dimensions ({data_format}), found {list(x.shape)}"
        )
    last = data_format == formats[1]
    channels = x.shape[-1 if last else 1]
    if channels < 1:
        raise errors.ShapeError(f"layers.{layer}: the channels of the input must be known, found {list(x.shape)}")
    return channels, last


def _conv(
    rank: int,
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size,
    padding: Any,
    dilation: Size,
    groups: int | None,
    param_attr: Any,
    bias_attr: Any,
    use_cudnn: bool,
    act: str | None,
    name: str | None,
    data_format: str,
) -> Variable:
    layer = f"conv{rank}d"
    channels, last = _channels(layer, input, data_format, rank)
    by_channel = groups is not None  # Fluid asks before it fills in 1
    groups = _groups(layer, groups)
    if channels % groups or num_filters % groups:
        raise errors.ShapeError(
            f"layers.{layer}: groups {groups} must divide the {channels} channels of the input "
            f"and the {num_filters} filters"
        )
    op_type = layer
    by_channel = by_channel and rank == 2 and channels == groups and not use_cudnn
    if by_channel and num_filters % channels == 0:
        op_type = "depthwise_conv2d"
    helper = LayerHelper(op_type, param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    kernel = each(filter_size, rank, layer, "filter_size")
    pads, algorithm = paddings_of(padding, rank, last, layer)
    deviation = (2.0 / (math.prod(kernel) * channels)) ** 0.5
    weight = helper.create_parameter(
        helper.param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=Normal(0.0, deviation),
    )
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type=op_type,
        inputs={"Input": input, "Filter": weight},
        outputs={"Output": out},
        attrs={
            "strides": each(stride, rank, layer, "stride"),
            "paddings": pads,
            "padding_algorithm": algorithm,
            "dilations": each(dilation, rank, layer, "dilation"),
            "groups": groups,
            "use_cudnn": use_cudnn,
            "use_mkldnn": False,
            "data_format": data_format,
        },
    )
    axis = rank + 1 if last else 1
    return helper.append_activation(helper.append_bias_op(out, dim_start=axis, dim_end=axis + 1))


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Apply a two-dimensional convolution (cross-correlation), add a bias to each channel, and apply an activation.

    Args:
        input: [N, C, H, W], or [N, H, W, C] with data_format "NHWC"; C must be known.
        num_filters: the number of output channels.
        filter_size: one number, or one for each of height and width.
        stride: see `filter_size`.
        padding: a number, one for each of height and width, [top, bottom, left, right], a pair for each of the
            four dimensions, "SAME" or "VALID".
        dilation: see `filter_size`.
        groups: the number of groups of channels, each convolved separately; 1 when None.
        param_attr: ParamAttr of the filters, [num_filters, C / groups, height, width].
        bias_attr: ParamAttr of the bias, [num_filters]; False for none.
        use_cudnn: XLA chooses the kernel. False with `groups` = C names the operator depthwise_conv2d, as Fluid
            does.
        act: the name of an activation; None for none.
        name: prefix of the names of the parameters.
        data_format: "NCHW" or "NHWC", of input and output.

    Returns:
        [N, num_filters, H', W'] in the same format, where H' = (H + top + bottom - dilation *
            (height - 1) - 1) // stride + 1, and W' likewise.

    Raises ShapeError if the input has another rank, its channels are unknown, or `groups` does
    not divide channels and filters; ProgramError for another format or padding.
    """
    return _conv(
        2,
        input,
        num_filters,
        filter_size,
        stride,
        padding,
        dilation,
        groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
        name,
        data_format,
    )


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Apply a three-dimensional convolution to [N, C, D, H, W], or to [N, D, H, W, C] with data_format "NDHWC".

    Otherwise it is as `conv2d`.
    """
    return _conv(
        3,
        input,
        num_filters,
        filter_size,
        stride,
        padding,
        dilation,
        groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
        name,
        data_format,
    )


def _kernel_for_output(
    wanted: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> list[int]:
    """Return the filter sizes by which a transposed convolution makes an image of the `wanted` sizes."""
    pairs = pads if len(pads) == 2 * len(wanted) else [p for p in pads for _ in (0, 1)]
    return [
        (o - (i - 1) * s + pairs[2 * k] + pairs[2 * k + 1] - 1) // d + 1
        for k, (o, i, s, d) in enumerate(zip(wanted, sizes, strides, dilations))
    ]


def _conv_transpose(
    rank: int,
    input: Variable,
    num_filters: int,
    output_size: Any,
    filter_size: Any,
    padding: Any,
    stride: Size,
    dilation: Size,
    groups: int | None,
    param_attr: Any,
    bias_attr: Any,
    use_cudnn: bool,
    act: str | None,
    name: str | None,
    data_format: str,
) -> Variable:
    layer = f"conv{rank}d_transpose"
    channels, last = _channels(layer, input, data_format, rank)
    by_channel = groups is not None  # as for a convolution
    groups = _groups(layer, groups)
    op_type = layer
    by_channel = by_channel and rank == 2 and channels == groups and not use_cudnn
    if by_channel and num_filters == channels:
        op_type = "depthwise_conv2d_transpose"
    helper = LayerHelper(op_type, param_attr=param_attr, bias_attr=bias_attr, act=act, name=name)
    strides, dilations = (each(stride, rank, layer, "stride"), each(dilation, rank, layer, "dilation"))
    pads, algorithm = paddings_of(padding, rank, last, layer)
    wanted = [] if output_size is None else each(output_size, rank, layer, "output_size")
    if filter_size is not None:
        kernel = each(filter_size, rank, layer, "filter_size")
    elif wanted:
        sizes = input.shape[1:-1] if last else input.shape[2:]
        kernel = _kernel_for_output(wanted, sizes, strides, dilations, pads)
    else:
        raise errors.ProgramError(f"layers.{layer}: give filter_size or output_size")
    weight = helper.create_parameter(helper.param_attr, [channels, num_filters // groups, *kernel], input.dtype)
    out = helper.create_variable_for_type_inference(input.dtype)
    # Fluid's three-dimensional operator knows the formats by their two-dimensional names.
    data_format = "NHWC" if last else "NCHW"
    helper.append_op(
        type=op_type,
        inputs={"Input": input, "Filter": weight},
        outputs={"Output": out},
        attrs={
            "output_size": wanted,
            "strides": strides,
            "paddings": pads,
            "padding_algorithm": algorithm,
            "dilations": dilations,
            "groups": groups,
            "use_cudnn": use_cudnn,
            "data_format": data_format,
        },
    )
    axis = rank + 1 if last else 1
    return helper.append_activation(helper.append_bias_op(out, dim_start=axis, dim_end=axis + 1))


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Any = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Apply a two-dimensional transposed convolution, the gradient of `conv2d` for its input.

    Args:
        input: [N, C, H, W], or [N, H, W, C] with data_format "NHWC"; C must be known.
        num_filters: the number of output channels.
        output_size: height and width of the output; without `filter_size` the filter's size follows from it.
        filter_size: one number, or one for each of height and width.
        padding: see `conv2d`.
        stride: see `filter_size`.
        dilation: see `filter_size`.
        groups: see `conv2d`.
        param_attr: ParamAttr of the filters, [C, num_filters / groups, height, width].
        bias_attr: see `conv2d`.
        use_cudnn: see `conv2d`.
        act: see `conv2d`.
        name: see `conv2d`.
        data_format: see `conv2d`.

    Returns:
        [N, num_filters, H', W'] in the same format. H' is `output_size`, or without it (H - 1) * stride -
            top - bottom + dilation * (height - 1) + 1, and W' likewise.

    Raises ProgramError without `output_size` and `filter_size`; for further errors see `conv2d`.
    """
    return _conv_transpose(
        2,
        input,
        num_filters,
        output_size,
        filter_size,
        padding,
        stride,
        dilation,
        groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
        name,
        data_format,
    )


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Any = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Apply a three-dimensional transposed convolution; see `conv2d_transpose`.

    The input is [N, C, D, H, W], or [N, D, H, W, C] with data_format "NDHWC".
    """
    return _conv_transpose(
        3,
        input,
        num_filters,
        output_size,
        filter_size,
        padding,
        stride,
        dilation,
        groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
        name,
        data_format,
    )
