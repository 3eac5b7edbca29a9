"""Convolution layers."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jfluid import errors
from jfluid.initializer import Normal
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable
from jfluid.layers.windows import each, paddings_of

__all__ = ["conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose"]

Size = int | Sequence[int]


class _Windows(NamedTuple):
    """Arguments of a layer that say how its filters move over an image of `rank` dimensions."""

    layer: str
    rank: int
    stride: Size
    padding: Any
    dilation: Size
    groups: int | None
    use_cudnn: bool
    data_format: str

    def check(self, x: Variable) -> tuple[int, int, bool]:
        """Return (the number of channels of x, the number of groups, True if channels are the last dimension).

        Raises ShapeError for a wrong rank, an unknown number of channels or a number of groups below 1; ProgramError
        for a wrong format.
        """
        layer, data_format = self.layer, self.data_format
        check_variable(x, layer, "input")
        formats = ("NCHW", "NHWC") if self.rank == 2 else ("NCDHW", "NDHWC")
        if data_format not in formats:
            raise errors.ProgramError(f"layers.{layer}: data_format {data_format!r}, expected {' or '.join(formats)}")
        if len(x.shape) != self.rank + 2:
            raise errors.ShapeError(
                f"layers.{layer}: input has {self.rank + 2} dimensions ({data_format}), found {list(x.shape)}"
            )
        last = data_format == formats[1]
        channels = x.shape[-1 if last else 1]
        if channels < 1:
            raise errors.ShapeError(f"layers.{layer}: the channels of the input must be known, found {list(x.shape)}")
        if self.groups is not None and self.groups < 1:
            raise errors.ShapeError(f"layers.{layer}: groups {self.groups}, expected at least 1 (None is one group)")
        return channels, self.groups or 1, last

    def op_type(self, channels: int, depthwise: bool) -> str:
        """Return the operator: Fluid names a depthwise operator if `groups` is given and `use_cudnn` is False."""
        by_channel = self.rank == 2 and self.groups == channels and not self.use_cudnn
        return f"depthwise_{self.layer}" if by_channel and depthwise else self.layer

    def each(self, value: Size, name: str) -> list[int]:
        """Return an argument as a number for each dimension of the image."""
        return each(value, self.rank, self.layer, name)

    def attributes(self, last: bool) -> dict[str, Any]:
        """Return the attributes of the operator that convolutions and transposed convolutions have in common."""
        pads, algorithm = paddings_of(self.padding, self.rank, last, self.layer)
        return {
            "strides": self.each(self.stride, "stride"),
            "paddings": pads,
            "padding_algorithm": algorithm,
            "dilations": self.each(self.dilation, "dilation"),
            "groups": self.groups or 1,
            "use_cudnn": self.use_cudnn,
        }


def _filtered(helper: LayerHelper, input: Variable, weight: Any, last: bool, attrs: dict[str, Any]) -> Variable:
    """Append the operator of `helper`, a bias for each channel, and the activation."""
    out = helper.create_variable_for_type_inference(input.dtype)
    inputs = {"Input": input, "Filter": weight}
    helper.append_op(type=helper.layer_type, inputs=inputs, outputs={"Output": out}, attrs=attrs)
    axis = len(input.shape) - 1 if last else 1
    return helper.append_activation(helper.append_bias_op(out, dim_start=axis, dim_end=axis + 1))


def _conv(windows: _Windows, input: Variable, num_filters: int, filter_size: Size, **parameters: Any) -> Variable:
    channels, groups, last = windows.check(input)
    if channels % groups or num_filters % groups:
        raise errors.ShapeError(
            f"layers.{windows.layer}: groups {groups} must divide the {channels} channels of the input "
            f"and the {num_filters} filters"
        )
    helper = LayerHelper(windows.op_type(channels, num_filters % channels == 0), **parameters)
    kernel = windows.each(filter_size, "filter_size")
    attrs = windows.attributes(last)
    deviation = (2.0 / (math.prod(kernel) * channels)) ** 0.5
    weight = helper.create_parameter(
        helper.param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=Normal(0.0, deviation),
    )
    attrs |= {"use_mkldnn": False, "data_format": windows.data_format}
    return _filtered(helper, input, weight, last, attrs)


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
    windows = _Windows("conv2d", 2, stride, padding, dilation, groups, use_cudnn, data_format)
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act, "name": name}
    return _conv(windows, input, num_filters, filter_size, **parameters)


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
    windows = _Windows("conv3d", 3, stride, padding, dilation, groups, use_cudnn, data_format)
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act, "name": name}
    return _conv(windows, input, num_filters, filter_size, **parameters)


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
    windows: _Windows, input: Variable, num_filters: int, filter_size: Any, output_size: Any, **parameters: Any
) -> Variable:
    channels, groups, last = windows.check(input)
    helper = LayerHelper(windows.op_type(channels, num_filters == channels), **parameters)
    attrs = windows.attributes(last)
    wanted = [] if output_size is None else windows.each(output_size, "output_size")
    if filter_size is not None:
        kernel = windows.each(filter_size, "filter_size")
    elif wanted:
        sizes = input.shape[1:-1] if last else input.shape[2:]
        kernel = _kernel_for_output(wanted, sizes, attrs["strides"], attrs["dilations"], attrs["paddings"])
    else:
        raise errors.ProgramError(f"layers.{windows.layer}: give filter_size or output_size")
    weight = helper.create_parameter(helper.param_attr, [channels, num_filters // groups, *kernel], input.dtype)
    # Fluid's three-dimensional operator knows the formats by their two-dimensional names.
    attrs |= {"output_size": wanted, "data_format": "NHWC" if last else "NCHW"}
    return _filtered(helper, input, weight, last, attrs)


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
    windows = _Windows("conv2d_transpose", 2, stride, padding, dilation, groups, use_cudnn, data_format)
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act, "name": name}
    return _conv_transpose(windows, input, num_filters, filter_size, output_size, **parameters)


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
    windows = _Windows("conv3d_transpose", 3, stride, padding, dilation, groups, use_cudnn, data_format)
    parameters = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act, "name": name}
    return _conv_transpose(windows, input, num_filters, filter_size, output_size, **parameters)
