"""Deformable convolutions: filters sample the image at computed points (arXiv:1703.06211, arXiv:1811.11168)."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import windows
from jfluid.ops.bilinear import between_pixels
from jfluid.ops.registry import Ints, op


class _Form(NamedTuple):
    """Attributes of a deformable convolution."""

    op_type: str
    strides: Ints
    paddings: Ints
    dilations: Ints
    groups: int
    parts: int  # of the channels, each with offsets of its own


def _convolve(x: Array, offset: Array, mask: Array | None, weight: Array, form: _Form) -> Array:
    op_type, strides, paddings, dilations, groups, parts = form
    windows.check_lengths(op_type, 2, strides=strides, paddings=paddings, dilations=dilations)
    out = _check(x, offset, mask, weight, form)
    n, channels = x.shape[:2]
    taps = math.prod(weight.shape[2:])
    row, column = (
        axis.reshape(-1, 1, 1)
        for axis in jnp.meshgrid(
            *(jnp.arange(k, dtype=x.dtype) * d - p for k, d, p in zip(weight.shape[2:], dilations, paddings)),
            indexing="ij",
        )
    )
    down, across = (jnp.arange(m, dtype=x.dtype) * s for m, s in zip(out, strides))
    offset = offset.reshape(n, parts, taps, 2, *out)
    y = offset[:, :, :, 0] + row + down[:, None]
    at = offset[:, :, :, 1] + column + across
    images = x.reshape(n * parts, channels // parts, *x.shape[2:]).transpose(0, 2, 3, 1)
    image = jnp.arange(n * parts, dtype=jnp.int32).reshape(n, parts, 1, 1, 1)
    samples = between_pixels(images, image, y, at)  # [n, parts, taps, *out, channels of a part]
    if mask is not None:
        samples = samples * mask.reshape(n, parts, taps, *out, 1)
    columns = samples.transpose(0, 1, 5, 2, 3, 4).reshape(n, groups, -1, math.prod(out))
    filters = weight.reshape(groups, weight.shape[0] // groups, -1)
    found = jnp.einsum("gfk,ngkl->ngfl", filters, columns)
    return found.reshape(n, weight.shape[0], *out)


def _check(x: Array, offset: Array, mask: Array | None, weight: Array, form: _Form) -> tuple[int, ...]:
    """Return the height and width of the result, or raise ShapeError."""
    op_type, strides, paddings, dilations, groups, parts = form
    if x.ndim != 4 or weight.ndim != 4 or groups < 1 or x.shape[1] != weight.shape[1] * groups:
        raise errors.ShapeError(
            f"{op_type}: expected Input [N, C, H, W] and Filter [filters, C / groups, height, width], "
            f"found {list(x.shape)} and {list(weight.shape)} with {groups} groups"
        )
    if parts < 1 or x.shape[1] % parts or weight.shape[0] % groups:
        raise errors.ShapeError(
            f"{op_type}: deformable_groups {parts} must divide the {x.shape[1]} channels, and groups "
            f"{groups} the {weight.shape[0]} filters"
        )
    spans = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilations)]
    pads = tuple((p, p) for p in paddings)
    out = windows.output_sizes(op_type, x.shape[2:], spans, strides, pads)
    taps = math.prod(weight.shape[2:])
    for slot, value, each in (("Offset", offset, 2), ("Mask", mask, 1)):
        wanted = (x.shape[0], each * parts * taps, *out)
        if value is not None and value.shape != wanted:
            raise errors.ShapeError(f"{op_type}: expected {slot} of shape {list(wanted)}, found {list(value.shape)}")
    return out


@op("deformable_conv", ins=("Input", "Offset", "Mask", "Filter"), outs=("Output",), rows="map")
def deformable_conv(
    x: Array,
    offset: Array,
    mask: Array,
    weight: Array,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 64,
) -> Array:
    """Convolve with each filter tap moved by its offset and multiplied by its mask.

    `im2col_step` sets the block size of Fluid's kernel and does not change the result.
    """
    form = _Form("deformable_conv", strides, paddings, dilations, groups, deformable_groups)
    return _convolve(x, offset, mask, weight, form)


@op("deformable_conv_v1", ins=("Input", "Offset", "Filter"), outs=("Output",), rows="map")
def deformable_conv_v1(
    x: Array,
    offset: Array,
    weight: Array,
    *,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 64,
) -> Array:
    """Convolve with each tap moved by its offset; otherwise as `deformable_conv`."""
    form = _Form("deformable_conv_v1", strides, paddings, dilations, groups, deformable_groups)
    return _convolve(x, offset, None, weight, form)
