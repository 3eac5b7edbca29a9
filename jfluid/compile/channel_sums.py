"""Sums over images with channels last, for each channel and each group of rows, on CPUs by machine code of our own
(`channel_kernels.py`), for the shapes that it is faster for than XLA's reductions.

XLA writes down what a channel is above its mean to sum its squares, and reads images once for each sum.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.compile import channel_kernels, machine_code
from jfluid.compile.channel_kernels import GEOMETRY, WIDTHS

_CHUNK = 256 << 10  # bytes that a core's cache holds beside other things
_FEWEST = 1 << 16  # numbers: fewer are summed sooner than threads wake up


def moments(x: Array, groups: int) -> tuple[Array, Array]:
    """Return the mean and the biased variance of each channel of x, [..., channels], in each group of
    rows: [groups, channels].
    """
    found = _call("moments", x, x, groups)
    rows, count = math.prod(x.shape[:-1]) // groups, found.shape[1]
    ends = np.arange(count + 1) * rows // count
    weights = (ends[1:] - ends[:-1])[:, None].astype(np.float32) / np.float32(rows)
    means, squares = found[:, :, 0], found[:, :, 1]
    mean = jnp.sum(means * weights, 1)
    between = jnp.sum(jnp.square(means - mean[:, None]) * weights, 1)
    return mean, jnp.sum(squares, 1) / rows + between


def products(grad: Array, x: Array, mean: Array, groups: int) -> tuple[Array, Array]:
    """Return the sums of `grad`, and of `grad` times what x is above `mean`, of each channel in each
    group of rows: [groups, channels].

    Args:
        grad, x: [..., channels].
        mean: of each channel of each group.
    """
    found = jnp.sum(_call("products", x, grad, groups, mean), 1)
    return found[:, 0], found[:, 1]


def suits(x: Array) -> bool:
    """Return whether sums over x, [..., channels], should be computed here."""
    return (
        x.dtype == np.float32
        and x.shape[-1] >= min(WIDTHS)
        and x.size >= _FEWEST
        and machine_code.registered()
    )


def _call(kind: str, x: Array, y: Array, groups: int, mean: Array | None = None) -> Array:
    """Call a function; gives [groups, chunks of each, 2, channels]."""
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
    numbers = jnp.asarray([geometry[number] for number in GEOMETRY], np.int32)
    if mean is not None:
        means = lax.bitcast_convert_type(mean, np.int32)
        numbers = jnp.concatenate([numbers, means.reshape(-1)])
    width = next(width for width in WIDTHS if width <= channels)
    shape = jax.ShapeDtypeStruct((groups, chunks, 2, channels), np.float32)
    function = jax.ffi.ffi_call(channel_kernels.name(kind, width), shape)
    out: Array = function(x.reshape(rows, channels), y.reshape(rows, channels), numbers)
    return out
