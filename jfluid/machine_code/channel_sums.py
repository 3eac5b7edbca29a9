"""Dispatch of reductions over images with channels last to LLVM kernels (`channel_kernels.py`).

A kernel reduces each channel of each group of rows. The dispatch takes the shapes for which the kernel is faster
than XLA's reduction: XLA writes the deviations to memory before it squares them, and reads images once for each sum.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid.machine_code import calls, channel_kernels, kernel_registry
from jfluid.machine_code.channel_kernels import WIDTHS
from jfluid.ops import inlining

_CHUNK = 256 << 10  # bytes that a core's cache holds beside other things
_FEWEST = 1 << 16  # numbers: fewer are summed sooner than threads wake up


@functools.partial(jax.jit, static_argnums=1, inline=inlining.EARLY)  # traced once for images of one shape
def moments(x: Array, groups: int) -> tuple[Array, Array]:
    """Return the mean and the biased variance of each channel in each group of rows: [groups, channels].

    Args:
        x: [..., channels].
        groups: number of groups of rows.
    """
    found = _call("moments", groups, x)
    rows, count = math.prod(x.shape[:-1]) // groups, found.shape[1]
    ends = np.arange(count + 1) * rows // count
    weights = (ends[1:] - ends[:-1])[:, None].astype(np.float32) / np.float32(rows)
    means, squares = found[:, :, 0], found[:, :, 1]
    mean = jnp.sum(means * weights, 1)
    return mean, jnp.sum(squares / rows + jnp.square(means - mean[:, None]) * weights, 1)


@functools.partial(jax.jit, static_argnums=3, inline=inlining.EARLY)
def products(grad: Array, x: Array, mean: Array, groups: int) -> tuple[Array, Array]:
    """Return the sums of `grad` and `grad * (x - mean)` of each channel in each group of rows: [groups, channels].

    Args:
        grad, x: [..., channels].
        mean: of each channel of each group.
    """
    found = jnp.sum(_call("products", groups, x, grad, mean), 1)
    return found[:, 0], found[:, 1]


def suits(x: Array) -> bool:
    """Return True if reductions over x, [..., channels], should run here."""
    return (
        x.dtype == np.float32 and x.shape[-1] >= min(WIDTHS) and x.size >= _FEWEST and kernel_registry.is_on("channel")
    )


def _call(kind: str, groups: int, x: Array, *others: Array) -> Array:
    """Call a kernel for images and further arrays; return [groups, chunks of each, 2, channels]."""
    channels = x.shape[-1]
    rows = x.size // channels
    chunks = min(rows // groups, -(-x.size * 4 // _CHUNK // groups))  # of each group
    geometry = {
        "chunks": groups * chunks,
        "memory": 0,
        "rows": rows,
        "channels": channels,
        "each": chunks,
    }
    width = next(width for width in WIDTHS if width <= channels)
    shape = (groups, chunks, 2, channels)
    matrices = [array.reshape(-1, channels) for array in (x, *others)]
    name = channel_kernels.name(kind, width)
    return calls.call(name, matrices, geometry, [(shape, np.float32)])[0]
