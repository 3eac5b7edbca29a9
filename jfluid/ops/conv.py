"""Convolutions and transposed convolutions."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import dependency, windows
from jfluid.ops.registry import Ints, op

# Largest window for which a depthwise convolution is written out as shifted products on CPUs.
_MAX_TAPS = 128


def _layout(ndim: int, data_format: str, kernel: str) -> tuple[str, str, str]:
    """Return the dimension numbers of `lax` for images in `data_format` and filters in `kernel` order."""
    space = "DHW"[5 - ndim :]
    image = f"N{space}C" if windows.channels_last(data_format) else f"NC{space}"
    return image, kernel + space, image


def _check(op_type: str, x: jax.Array, w: jax.Array, channels: int, groups: int, data_format: str) -> None:
    """Raise ShapeError if x and w do not match; `channels` is the number of input channels of the filter."""
    if x.ndim != w.ndim or x.ndim not in (4, 5):
        raise errors.ShapeError(
            f"{op_type}: expected Input and Filter of the same rank (4 or 5), "
            f"found shapes {list(x.shape)} and {list(w.shape)}"
        )
    found = x.shape[-1] if windows.channels_last(data_format) else x.shape[1]
    if groups < 1 or found != channels:
        raise errors.ShapeError(
            f"{op_type}: a filter of shape {list(w.shape)} with {groups} groups is for {channels} input channels, "
            f"found {found} (Input {list(x.shape)}, {data_format})"
        )


class _Form(NamedTuple):
    """Attributes of a convolution."""

    op_type: str
    strides: Sequence[int]
    paddings: Sequence[int]
    dilations: Sequence[int]
    groups: int
    padding_algorithm: str
    data_format: str

    def geometry(
        self, x: jax.Array, w: jax.Array
    ) -> tuple[Sequence[int], list[int], list[int], windows.Pairs, Sequence[int]]:
        """Return axes of the image, and along these axes: sizes, sizes of dilated filters, padding and dilation."""
        axes = windows.spatial_axes(x.ndim, self.data_format)
        windows.check_lengths(self.op_type, len(axes), strides=self.strides, dilations=self.dilations)
        sizes = [x.shape[a] for a in axes]
        # Fluid drops the dilation of "SAME".
        dilations = (1,) * len(axes) if self.padding_algorithm == "SAME" else self.dilations
        kernel = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations)]
        pads = windows.padding_pairs(self.op_type, self.paddings, self.padding_algorithm, sizes, kernel, self.strides)
        return axes, sizes, kernel, pads, dilations


def _convolve(x: jax.Array, w: jax.Array, form: _Form) -> jax.Array:
    op_type, strides, _, _, groups, _, data_format = form
    _check(op_type, x, w, w.shape[1] * groups, groups, data_format)
    if w.shape[0] % groups:
        raise errors.ShapeError(f"{op_type}: {w.shape[0]} filters cannot be divided into {groups} groups")
    if w.dtype == jnp.int8:  # of a quantized model, with images of integers stored as floats
        w = w.astype(x.dtype)
    axes, sizes, kernel, pads, dilations = form.geometry(x, w)
    out = windows.output_sizes(op_type, sizes, kernel, strides, pads)

    def library(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            w,
            tuple(strides),
            pads,
            rhs_dilation=tuple(dilations),
            feature_group_count=groups,
            dimension_numbers=_layout(x.ndim, data_format, "OI"),
        )

    def shifted(x: jax.Array, w: jax.Array) -> jax.Array:
        channel = 1 if axes[0] == 2 else x.ndim - 1
        if w.shape[0] != x.shape[channel]:
            x = jnp.repeat(x, w.shape[0] // x.shape[channel], axis=channel)
        return _depthwise(x, w, _Windows(tuple(axes), pads, tuple(strides), tuple(out), tuple(dilations)))

    # XLA's grouped convolution on CPUs is ten to thirty times slower than shifted products (3x3, 64
    # channels).
    if groups > 1 and w.shape[1] == 1 and math.prod(w.shape[2:]) <= _MAX_TAPS:
        return lax.platform_dependent(x, w, cpu=shifted, default=library)
    return library(x, w)


class _Windows(NamedTuple):
    """Windows of a depthwise convolution: numbers for each of `axes`."""

    axes: tuple[int, ...]
    pads: windows.Pairs
    strides: tuple[int, ...]
    out: tuple[int, ...]
    dilations: tuple[int, ...]

    def padded(self, x: Array) -> Array:
        """Return a padded image."""
        return windows.pad(x, self.axes, self.pads, 0)

    def tap(self, x: Array, place: Sequence[int]) -> Array:
        """Return the elements of a padded image that all windows have at a place."""
        return windows.tap(x, self.axes, place, self.strides, self.out, self.dilations)

    def taps(self, x: Array, kernel: Sequence[int]) -> list[Array]:
        """Return, for each place in a window, the elements of an image that all windows have there."""
        return windows.taps(self.padded(x), self.axes, kernel, self.strides, self.out, self.dilations)

    def mirrored(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple["_Windows", tuple[int, ...]]:
        """Return the windows, one step apart, that gather an image's gradient, and the zeros between its elements.

        Args:
            sizes: sizes of the image along `axes`.
        """
        low = [(k - 1) * d - before for k, d, (before, _) in zip(kernel, self.dilations, self.pads)]
        spread = [s * (n - 1) + 1 for s, n in zip(self.strides, self.out)]
        high = [n + (k - 1) * d - p - m for n, k, d, p, m in zip(sizes, kernel, self.dilations, low, spread)]
        ones = (1,) * len(self.axes)
        gathers = _Windows(self.axes, tuple(zip(low, high)), ones, tuple(sizes), self.dilations)
        return gathers, tuple(s - 1 for s in self.strides)


def _weights(w: Array, ndim: int, axes: Sequence[int]) -> list[Array]:
    """Return the weights of each place in a window, to multiply images with."""
    shape = [1] * ndim
    shape[1 if axes[0] == 2 else ndim - 1] = -1
    flat = w.reshape(w.shape[0], -1)
    return [flat[:, i].reshape(shape) for i in range(flat.shape[1])]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _depthwise(x: Array, w: Array, at: _Windows) -> Array:
    """Apply a depthwise convolution to an image: the sum of each tap times its weight.

    The gradient of the image is such a sum, too. JAX would hold an array as large as the image for each tap.
    """
    parts = zip(at.taps(x, w.shape[2:]), _weights(w, x.ndim, at.axes))
    return functools.reduce(jnp.add, [part * weight for part, weight in parts])


def _depthwise_forward(x: Array, w: Array, at: _Windows) -> tuple[Array, tuple[Array, Array]]:
    return _depthwise(x, w, at), (x, w)


def _depthwise_backward(at: _Windows, kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, w = kept
    kernel = w.shape[2:]
    others = tuple(i for i in range(x.ndim) if i != (1 if at.axes[0] == 2 else x.ndim - 1))
    sums: list[Array] = []
    for place in itertools.product(*map(range, kernel)):  # XLA copies the elements of each tap: one after the other
        later = dependency.after(x, sums[-1] if sums else grad)
        sums.append((at.tap(at.padded(later), place) * grad).sum(others))
    gathers, between = at.mirrored([x.shape[a] for a in at.axes], kernel)
    spread = windows.spread(dependency.after(grad, sums[-1]), at.axes, between)
    found = zip(gathers.taps(spread, kernel), reversed(_weights(w, x.ndim, at.axes)))
    grad_x = functools.reduce(jnp.add, [part * weight for part, weight in found])
    return grad_x, jnp.stack(sums, axis=-1).reshape(w.shape)


_depthwise.defvjp(_depthwise_forward, _depthwise_backward)


def _add(y: jax.Array, bias: jax.Array | None, residual: jax.Array | None, data_format: str) -> jax.Array:
    if bias is not None:
        y = y + (bias if windows.channels_last(data_format) else bias.reshape((-1,) + (1,) * (y.ndim - 2)))
    return y if residual is None else y + residual


# What Fluid's inference passes for oneDNN append to a convolution; each takes `fuse_alpha`.
_FUSED: dict[str, Callable[[Array, float], Array]] = {
    "": lambda y, _: y,
    "relu": lambda y, _: jax.nn.relu(y),
    "leaky_relu": lambda y, slope: jnp.where(y > 0, y, y * slope),
    "relu6": lambda y, highest: jnp.clip(y, 0, highest),
    "swish": lambda y, beta: y * jax.nn.sigmoid(beta * y),
}


def _finished(
    y: jax.Array,
    bias: jax.Array | None,
    residual: jax.Array | None,
    data_format: str,
    activation: str,
    alpha: float,
    needs_residual: bool = False,
) -> jax.Array:
    """Add the bias and the residual, and apply the fused activation."""
    if needs_residual and residual is None:
        raise errors.OpError("fuse_residual_connection: the input ResidualData is missing")
    if activation not in _FUSED:
        raise errors.AttributeTypeError(
            f"fuse_activation: expected one of {', '.join(filter(None, _FUSED))}, found {activation!r}"
        )
    return _FUSED[activation](_add(y, bias, residual, data_format), alpha)


_CONV2D: dict[str, Any] = {
    "ins": ("Input", "Filter", "Bias?", "ResidualData?"),
    "outs": ("Output",),
    "examples": ("Input", "ResidualData"),
    "convolves": True,
}


@op("conv2d", **_CONV2D)
def conv2d(
    x: Array,
    w: Array,
    bias: Array | None,
    residual: Array | None,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
    padding_algorithm: str = "EXPLICIT",
    data_format: str = "NCHW",
    fuse_activation: str = "",
    fuse_alpha: float = 0.0,
    fuse_beta: float = 0.0,
    fuse_residual_connection: bool = False,
) -> Array:
    """Apply a two-dimensional convolution (cross-correlation) with filters [out, in / groups, height, width]."""
    y = _convolve(x, w, _Form("conv2d", strides, paddings, dilations, groups, padding_algorithm, data_format))
    return _finished(y, bias, residual, data_format, fuse_activation, fuse_alpha, fuse_residual_connection)


op("depthwise_conv2d", **_CONV2D)(conv2d)


@op(
    "conv3d",
    ins=("Input", "Filter", "ResidualData?"),
    outs=("Output",),
    examples=("Input", "ResidualData"),
    convolves=True,
)
def conv3d(
    x: Array,
    w: Array,
    residual: Array | None,
    *,
    strides: Ints = (1, 1, 1),
    paddings: Ints = (0, 0, 0),
    dilations: Ints = (1, 1, 1),
    groups: int = 1,
    padding_algorithm: str = "EXPLICIT",
    data_format: str = "NCDHW",
    fuse_activation: str = "",
    fuse_alpha: float = 0.0,
    fuse_beta: float = 0.0,
    fuse_residual_connection: bool = False,
) -> Array:
    """Apply a three-dimensional convolution with filters [out, in / groups, depth, height, width]."""
    y = _convolve(x, w, _Form("conv3d", strides, paddings, dilations, groups, padding_algorithm, data_format))
    return _finished(y, None, residual, data_format, fuse_activation, fuse_alpha, fuse_residual_connection)


def _transpose(x: jax.Array, w: jax.Array, form: _Form, output_size: Sequence[int]) -> jax.Array:
    """Compute a transposed convolution as a forward operator.

    Filters are [in, out / groups, ...], the layout of the convolution that is transposed.
    """
    op_type, strides, _, _, groups, _, data_format = form
    _check(op_type, x, w, w.shape[0], groups, data_format)
    if w.shape[0] % groups:
        raise errors.ShapeError(f"{op_type}: {w.shape[0]} input channels cannot be divided into {groups} groups")
    axes, sizes, kernel, pads, dilations = form.geometry(x, w)
    smallest = [(n - 1) * s - low - high + k for n, s, k, (low, high) in zip(sizes, strides, kernel, pads)]
    wanted = list(output_size) or smallest
    for size, least, s in zip(wanted, smallest, strides):
        if not least <= size < least + s or len(wanted) != len(axes):
            raise errors.ShapeError(
                f"{op_type}: output_size {wanted} cannot come from an input of {sizes}; expected "
                f"at least {smallest} and less than {[n + t for n, t in zip(smallest, strides)]}"
            )
    around = tuple(
        (k - 1 - low, k - 1 - high + size - least)
        for k, (low, high), size, least in zip(kernel, pads, wanted, smallest)
    )
    return _dilated(x, _swap(w, groups), axes, around, form._replace(dilations=dilations))


def _dilated(x: jax.Array, w: jax.Array, axes: Sequence[int], pads: windows.Pairs, form: _Form) -> jax.Array:
    """Convolve an image dilated by `strides`: zeros fill the space between its pixels."""
    ones, apart, groups = (1,) * len(axes), tuple(form.strides), form.groups
    layout = _layout(x.ndim, form.data_format, "OI")

    def convolve(x: jax.Array, w: jax.Array, apart: tuple[int, ...]) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            w,
            ones,
            pads,
            lhs_dilation=apart,
            rhs_dilation=tuple(form.dilations),
            feature_group_count=groups,
            dimension_numbers=layout,
        )

    if groups == 1:
        return convolve(x, w, apart)

    @jax.custom_vjp
    def convolve_groups(x: jax.Array, w: jax.Array) -> jax.Array:
        return convolve(x, w, apart)

    def backward(saved: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        # XLA forgets the groups in the gradient of filters over dilated images, and cuDNN then
        # refuses it: that gradient has its zeros in memory.
        x, w = saved
        between = dict(zip(axes, apart))
        holes = [(0, 0, between.get(axis, 1) - 1) for axis in range(x.ndim)]
        spread = lax.pad(x, jnp.zeros((), x.dtype), holes)
        _, of_x = jax.vjp(lambda x: convolve(x, w, apart), x)
        _, of_w = jax.vjp(lambda w: convolve(spread, w, ones), w)
        return *of_x(cotangent), *of_w(cotangent)

    convolve_groups.defvjp(lambda x, w: (convolve_groups(x, w), (x, w)), backward)
    return convolve_groups(x, w)


def _swap(w: jax.Array, groups: int) -> jax.Array:
    """Turn filters [in, out / groups, ...] into [out, in / groups, ...], mirrored in space."""
    w = jnp.flip(w, tuple(range(2, w.ndim))).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    w = jnp.swapaxes(w, 1, 2)
    return w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])


_TRANSPOSE2D: dict[str, Any] = {
    "ins": ("Input", "Filter", "Bias?"),
    "outs": ("Output",),
    "examples": ("Input",),
    "convolves": True,
}


@op("conv2d_transpose", **_TRANSPOSE2D)
def conv2d_transpose(
    x: Array,
    w: Array,
    bias: Array | None,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
    padding_algorithm: str = "EXPLICIT",
    data_format: str = "NCHW",
    output_size: Ints = (),
    fuse_activation: str = "",
    fuse_alpha: float = 0.0,
    fuse_beta: float = 0.0,
) -> Array:
    """Apply a two-dimensional transposed convolution with filters [in, out / groups, height, width]."""
    form = _Form("conv2d_transpose", strides, paddings, dilations, groups, padding_algorithm, data_format)
    y = _transpose(x, w, form, output_size)
    return _finished(y, bias, None, data_format, fuse_activation, fuse_alpha)


op("depthwise_conv2d_transpose", **_TRANSPOSE2D)(conv2d_transpose)


@op("conv3d_transpose", ins=("Input", "Filter"), outs=("Output",), examples=("Input",), convolves=True)
def conv3d_transpose(
    x: Array,
    w: Array,
    *,
    strides: Ints = (1, 1, 1),
    paddings: Ints = (0, 0, 0),
    dilations: Ints = (1, 1, 1),
    groups: int = 1,
    padding_algorithm: str = "EXPLICIT",
    data_format: str = "NCHW",
    output_size: Ints = (),
) -> Array:
    """Apply a three-dimensional transposed convolution with filters [in, out / groups, depth, height, width]."""
    form = _Form("conv3d_transpose", strides, paddings, dilations, groups, padding_algorithm, data_format)
    return _transpose(x, w, form, output_size)
