"""Dispatch of convolutions with channels last to LLVM kernels (`convolution_kernels.py`).

The dispatch takes the shapes for which a kernel is faster than XLA's library. The library copies windows of the
image (im2col) for a GEMM, and transposes images and gradients for the gradient of a filter. The kernels read
images in place.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid.machine_code import (
    calls,
    convolution_kernels,
    kernel_registry,
)
from jfluid.machine_code.convolution_kernels import TILE
from jfluid.machine_code.processor import LANES
from jfluid.ops import inlining

# A filter's gradient is the sum of those of so many parts of a batch, on any machine.
_PARTS = 8
# Rows of an image are copied with their borders, so many bytes at a time that a core's cache holds.
_COPIED = 128 << 10
# Larger filters are read again from far caches for each row: the library divides them.
_MOST_FILTERS = 320 << 10  # bytes
# The gradient of a filter is read and written once for each image: it has to be small for that, but
# costs less than turning images and gradients round.
_BYTES_A_POSITION = 2560


def forward(x: Array, w: Array, strides: Sequence[int], low: Sequence[int], out: Sequence[int]) -> Array:
    """Convolve images.

    Args:
        x: [batch, height, width, channels].
        w: [height, width, channels, filters].
        low: zeros before the first row and the first column.
        out: rows and columns of the result; the zeros behind are as many as they need.
    """
    images, filters = x.shape[0], w.shape[3]
    geometry = _geometry(x.shape, w.shape[:2], filters, strides, low, out)
    geometry["chunks"] = images * geometry["bands"]
    return _call(convolution_kernels.name("forward"), x, w, geometry, (images, *out, filters))


def gradient(x: Array, grad: Array, kernel: Sequence[int], strides: Sequence[int], low: Sequence[int]) -> Array:
    """Return the gradient of a convolution's filter, [height, width, channels, filters].

    Args:
        grad: [batch, rows, columns, filters], of the convolution's result.
        kernel: height and width of the filter.
    """
    channels, filters = x.shape[3], grad.shape[3]
    geometry = _geometry(x.shape, kernel, filters, strides, low, grad.shape[1:3])
    geometry["chunks"] = min(_PARTS, x.shape[0])
    shape = (geometry["chunks"], *kernel, channels, filters)
    return _call(convolution_kernels.name("gradient"), x, grad, geometry, shape, summed=True)


def of_images(grad: Array, w: Array, low: Sequence[int], sizes: Sequence[int]) -> Array:
    """Return the gradient of a convolution's images, of strides 1: [batch, height, width, channels].

    Args:
        grad: [batch, rows, columns, filters], of the convolution's result.
        w: [height, width, filters, channels].
        low: zeros before the first row and the first column of an image.
        sizes: of an image.
    """
    images, rows, columns, channels = grad.shape
    _, places, _, filters = w.shape
    geometry = _geometry(grad.shape, w.shape[:2], filters, (1, 1), low, sizes)
    held = -(-columns // TILE) * TILE
    geometry["chunks"] = images
    geometry["memory"] = rows * held * channels + (held + places - 1) * filters
    return _call(convolution_kernels.name("images"), grad, w, geometry, (images, *sizes, filters))


def suits(x: Array, w: Array, filters: int, size: int, columns: int) -> bool:
    """Return True if images should be convolved here.

    Args:
        x: [batch, height, width, channels].
        w: the filter; for a gradient, the gradient of the result.
        size: of the filter.
        columns: of the result.
    """
    return (
        x.ndim == 4
        and x.dtype == w.dtype == np.float32
        and min(x.shape[0], size) > 0
        and columns >= TILE
        and size * 4 <= _MOST_FILTERS
        and filters >= LANES
        and kernel_registry.is_on("convolution")
    )


def suits_gradient(x: Array, grad: Array, kernel: Sequence[int]) -> bool:
    """Return True if the gradient of a filter should be computed here.

    Args:
        x: [batch, height, width, channels].
        grad: [batch, rows, columns, filters].
        kernel: height and width of the filter.
    """
    size = math.prod(kernel) * x.shape[-1] * grad.shape[-1]
    return (
        suits(x, grad, grad.shape[-1], size, grad.shape[2])
        and size * 4 <= math.prod(grad.shape[1:3]) * _BYTES_A_POSITION
    )


def _geometry(
    x: Sequence[int],
    kernel: Sequence[int],
    filters: int,
    strides: Sequence[int],
    low: Sequence[int],
    out: Sequence[int],
) -> dict[str, int]:
    images, height, width, channels = x
    reach = [(n - 1) * s + k for n, s, k in zip(out, strides, kernel)]
    direct = not any(low) and reach[0] <= height and reach[1] <= width
    pitch = reach[1] * channels * 4
    rows = max(1, min(out[0], (_COPIED // pitch - kernel[0]) // strides[0] + 1))
    bands = -(-out[0] // rows)
    band = -(-out[0] // bands)
    copied = ((band - 1) * strides[0] + kernel[0]) * reach[1] * channels
    return {
        "memory": 0 if direct else copied,
        "images": images,
        "height": height,
        "width": width,
        "channels": channels,
        "rows": out[0],
        "columns": out[1],
        "filters": filters,
        "window_height": kernel[0],
        "window_width": kernel[1],
        "down": strides[0],
        "across": strides[1],
        "top": low[0],
        "left": low[1],
        "band": band,
        "bands": -(-out[0] // band),
        "direct": direct,
    }


def _call(
    name: str,
    x: Array,
    y: Array,
    geometry: Mapping[str, int],
    shape: Sequence[int],
    summed: bool = False,
) -> Array:
    numbers = tuple([(number, int(value)) for number, value in geometry.items()])
    out: Array = _called(name, x, y, numbers, tuple(map(int, shape)), summed)
    return out


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5), inline=inlining.EARLY)  # traced once for each geometry
def _called(
    name: str,
    x: Array,
    y: Array,
    numbers: tuple[tuple[str, int], ...],
    shape: tuple[int, ...],
    summed: bool,
) -> Array:
    """Call a kernel; `summed` adds up the parts along the first dimension."""
    out = calls.call(name, (x, y), dict(numbers), [(shape, np.float32)])[0]
    # Written out: XLA's reduction of few large parts takes ten times as long.
    return functools.reduce(jnp.add, list(out)) if summed else out


def expect(filters: Iterable[Sequence[int]]) -> None:
    """Register the kernels if convolutions with filters of these shapes may be dispatched here.

    Args:
        filters: shapes [filters, channels, height, width].
    """
    shapes = [shape for shape in filters if len(shape) == 4 and shape[0] >= LANES]
    if shapes:
        kernel_registry.is_on("convolution")
