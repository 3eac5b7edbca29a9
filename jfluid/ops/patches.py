"""Patches of images and other arrangements of their pixels."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import unrolled, windows
from jfluid.ops.pool import pool2d
from jfluid.ops.registry import Ints, Long, String, op

_MOST_LEVELS = 16  # of a pyramid: the last has 4 ** 15 bins


@op("unfold", ins=("X",), outs=("Y",), rows="map")
def unfold(x: Array, *, kernel_sizes: Ints, strides: Ints, paddings: Ints, dilations: Ints) -> Array:
    """Return the windows of an image as columns: [N, C * height * width of a window, windows] (im2col).

    Paddings are top, left, bottom, right.
    """
    windows.check_lengths("unfold", x.ndim - 2, kernel_sizes=kernel_sizes, strides=strides, dilations=dilations)
    if x.ndim != 4 or len(paddings) != 4:
        raise errors.ShapeError(
            "unfold: expected X [N, C, H, W] and four paddings (top, left, bottom, right), found "
            f"{list(x.shape)} and {list(paddings)}"
        )
    pads = tuple(zip(paddings[:2], paddings[2:]))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel_sizes, dilations)]
    out = windows.output_sizes("unfold", x.shape[2:], spans, strides, pads)
    padded = windows.pad(x, (2, 3), pads, 0)
    rows, columns = kernel_sizes

    def tap(place: Any) -> Array:
        found = padded
        for axis, at, d, s, n in zip((2, 3), divmod(place, columns), dilations, strides, out):
            found = unrolled.part(found, at * d, s * (n - 1) + 1, axis)
        return found[:, :, None, :: strides[0], :: strides[1]]

    return unrolled.joined(rows * columns, tap, axis=2).reshape(x.shape[0], -1, math.prod(out))


@jax.custom_vjp
def _placed(x: Array, index: Array, empty: Array) -> Array:
    """Scatter x [N, C, elements] at `index` into copies of `empty`; the gradient gathers at `index`."""
    image, channel = jnp.arange(x.shape[0])[:, None, None], jnp.arange(x.shape[1])[:, None]
    return empty.at[image, channel, index].set(x, mode="drop")


def _placed_forward(x: Array, index: Array, empty: Array) -> tuple[Array, tuple[Array, Array]]:
    return _placed(x, index, empty), (index, empty)


def _placed_backward(kept: tuple[Array, Array], grad: Array) -> tuple[Array, None, Array]:
    index, empty = kept
    return jnp.take_along_axis(grad, index, 2, mode="fill", fill_value=0), None, empty


_placed.defvjp(_placed_forward, _placed_backward)


@op("unpool", ins=("X", "Indices"), outs=("Out",), nograd=("Indices",), rows="map")
def unpool(
    x: Array, indices: Array, *, unpooling_type: String, ksize: Ints, strides: Ints = (1, 1), paddings: Ints = (0, 0)
) -> Array:
    """Scatter each element to the index of the maximum (the mask of `max_pool2d_with_index`), zeros elsewhere.

    An index outside the plane puts nothing.
    """
    if unpooling_type != "max":
        raise errors.AttributeTypeError(f'unpool: unpooling_type {unpooling_type!r}, expected "max"')
    if x.ndim != 4 or indices.shape != x.shape:
        raise errors.ShapeError(
            "unpool: expected X [N, C, H, W] and Indices of the same shape, found "
            f"{list(x.shape)} and {list(indices.shape)}"
        )
    windows.check_lengths("unpool", 2, ksize=ksize, strides=strides, paddings=paddings)
    out = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(x.shape[2:], strides, paddings, ksize)]
    flat = indices.reshape(*x.shape[:2], -1)
    flat = jnp.where(flat < 0, math.prod(out), flat)
    empty = jnp.zeros((*x.shape[:2], math.prod(out)), x.dtype)
    return _placed(x.reshape(flat.shape), flat, empty).reshape(*x.shape[:2], *out)


@op("spp", ins=("X",), outs=("Out",), rows="map")
def spp(x: Array, *, pyramid_height: int, pooling_type: String) -> Array:
    """Pool into 1, 4, 16 ... bins, concatenated: [N, C * (4 ** pyramid_height - 1) / 3].

    This is spatial pyramid pooling (arXiv:1406.4729).
    """
    if x.ndim != 4 or pyramid_height < 1:
        raise errors.ShapeError(
            f"spp: expected X [N, C, H, W] and a positive pyramid_height, found {list(x.shape)} and {pyramid_height}"
        )
    levels = []
    unrolled.times("spp", "pyramid_height", pyramid_height, _MOST_LEVELS)
    for level in range(pyramid_height):
        bins = 2**level
        sizes = tuple(-(-n // bins) for n in x.shape[2:])
        pads = tuple((k * bins - n + 1) // 2 for k, n in zip(sizes, x.shape[2:]))
        found = pool2d(x, pooling_type=pooling_type, ksize=sizes, strides=sizes, paddings=pads)
        levels.append(found.reshape(x.shape[0], -1))
    return jnp.concatenate(levels, 1)


@op("space_to_depth", ins=("X",), outs=("Out",), rows="map")
def space_to_depth(x: Array, *, blocksize: Long) -> Array:
    """Rearrange [N, C, H, W] to [N, C * blocksize ** 2, H / blocksize, W / blocksize] as Fluid does.

    Blocks of channels become blocks of pixels, and the result is read in the new shape (the "reorg" of YOLOv2).
    """
    area = blocksize * blocksize
    if x.ndim != 4 or blocksize < 2 or x.shape[1] % area or any(n % blocksize for n in x.shape[2:]):
        raise errors.ShapeError(
            f"space_to_depth: expected X [N, C, H, W] with C divisible by {area} and H and W by "
            f"blocksize {blocksize}, which is at least 2, found {list(x.shape)}"
        )
    n, c, h, w = x.shape
    parts = x.reshape(n, blocksize, blocksize, c // area, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c * area, h // blocksize, w // blocksize)
