"""Sums over images with channels last, for each channel, on CPUs by machine code of our own
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


def moments(x: Array) -> tuple[Array, Array]:
    """Return the mean and the biased variance of each channel of x, [..., channels]."""
    found, count = _call("moments", x, x)
    rows = math.prod(x.shape[:-1])
    ends = np.arange(count + 1) * rows // count
    lengths = (ends[1:] - ends[:-1])[:, None].astype(np.float32)
    means, squares = found[:, 0], found[:, 1]
    mean = jnp.sum(means * (lengths / rows), 0)
    between = jnp.sum(jnp.square(means - mean) * (lengths / rows), 0)
    return mean, jnp.sum(squares, 0) / rows + between


def products(grad: Array, x: Array, mean: Array) -> tuple[Array, Array]:
    """Return the sums of `grad`, and of `grad` times what x is above `mean`, of each channel.

    Args:
        grad, x: [..., channels].
    """
    found = jnp.sum(_call("products", x, grad, mean)[0], 0)
    return found[0], found[1]


def suits(x: Array) -> bool:
    """Return whether sums over x, [..., channels], should be computed here."""
    return (
        x.dtype == np.float32
        and x.shape[-1] >= min(WIDTHS)
        and x.size >= _FEWEST
        and machine_code.registered()
    )


def _call(kind: str, x: Array, y: Array, mean: Array | None = None) -> tuple[Array, int]:
    """Call a function; gives [chunks, 2, channels], and how many chunks there are."""
    channels = x.shape[-1]
    rows = x.size // channels
    chunks = min(rows, -(-x.size * 4 // _CHUNK))
    geometry = {"chunks": chunks, "memory": 0, "rows": rows, "channels": channels}
    numbers = jnp.asarray([geometry[number] for number in GEOMETRY], np.int32)
    if mean is not None:
        numbers = jnp.concatenate([numbers, lax.bitcast_convert_type(mean, np.int32)])
    width = next(width for width in WIDTHS if width <= channels)
    shape = jax.ShapeDtypeStruct((chunks, 2, channels), np.float32)
    function = jax.ffi.ffi_call(channel_kernels.name(kind, width), shape)
    out: Array = function(x.reshape(rows, channels), y.reshape(rows, channels), numbers)
    return out, chunks
