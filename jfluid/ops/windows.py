"""The windows of convolutions and poolings: padding, output sizes, slices."""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jfluid import errors

Pairs = tuple[tuple[int, int], ...]


def channels_last(data_format: str) -> bool:
    """Return True if channels are the last dimension: "NHWC" or "NDHWC".

    Raises ProgramError for an unknown format.
    """
    if data_format not in ("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"):
        raise errors.ProgramError(
            f"data format {data_format!r} is unknown: expected NCHW, NHWC, NCDHW, NDHWC or AnyLayout"
        )
    return data_format in ("NHWC", "NDHWC")


def spatial_axes(ndim: int, data_format: str) -> tuple[int, ...]:
    """Return the axes that windows move over."""
    return tuple(range(1, ndim - 1)) if channels_last(data_format) else tuple(range(2, ndim))


def check_lengths(op_type: str, count: int, **attrs: Sequence[int]) -> None:
    """Raise ShapeError unless each attribute has one number for each spatial dimension."""
    for name, value in attrs.items():
        if len(value) != count:
            raise errors.ShapeError(
                f"{op_type}: {name} needs {count} numbers for an input of {count + 2} dimensions, found {list(value)}"
            )


def padding_pairs(
    op_type: str,
    paddings: Sequence[int],
    algorithm: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
) -> Pairs:
    """Return the padding before and after each spatial dimension.

    `paddings` has one number or two for each of them.
    """
    count = len(sizes)
    if algorithm == "VALID":
        return ((0, 0),) * count
    if algorithm == "SAME":
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(sizes, kernel, strides)]
        return tuple((t // 2, t - t // 2) for t in total)
    if algorithm != "EXPLICIT":
        raise errors.ProgramError(f"{op_type}: padding_algorithm {algorithm!r}, expected EXPLICIT, SAME or VALID")
    if len(paddings) == count:
        return tuple((int(p), int(p)) for p in paddings)
    if len(paddings) == 2 * count:
        return tuple((int(low), int(high)) for low, high in zip(paddings[::2], paddings[1::2]))
    raise errors.ShapeError(f"{op_type}: paddings needs {count} or {2 * count} numbers, found {list(paddings)}")


def output_sizes(
    op_type: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pairs,
    ceil_mode: bool = False,
) -> tuple[int, ...]:
    """Return how many windows fit into each dimension; with `ceil_mode` a last one may reach beyond the input."""
    out = []
    for n, k, s, (low, high) in zip(sizes, kernel, strides, pads):
        count = (n + low + high - k + (s - 1 if ceil_mode else 0)) // s + 1
        if count <= 0:
            raise errors.ShapeError(
                f"{op_type}: a window of {list(kernel)} is larger than an input of {list(sizes)} "
                f"padded by {[list(p) for p in pads]}"
            )
        out.append(count)
    return tuple(out)


def pad(x: jax.Array, axes: Sequence[int], pads: Pairs, value: float) -> jax.Array:
    """Pad `x` at both ends of `axes`; a negative number crops."""
    config = [(0, 0, 0)] * x.ndim
    for axis, (low, high) in zip(axes, pads):
        config[axis] = (low, high, 0)
    return lax.pad(x, jnp.asarray(value, x.dtype), config) if any(c != (0, 0, 0) for c in config) else x


def spread(x: jax.Array, axes: Sequence[int], between: Sequence[int]) -> jax.Array:
    """Put zeros between the elements of `x`: `between` numbers along each of `axes`."""
    config = [(0, 0, 0)] * x.ndim
    for axis, count in zip(axes, between):
        config[axis] = (0, 0, count)
    return lax.pad(x, jnp.zeros((), x.dtype), config) if any(between) else x


def taps(
    x: jax.Array,
    axes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out: Sequence[int],
    dilations: Sequence[int] | None = None,
) -> list[jax.Array]:
    """Return, for each place in a window in row-major order, the elements that all windows have there."""
    dilations = dilations or (1,) * len(axes)
    return [tap(x, axes, place, strides, out, dilations) for place in itertools.product(*map(range, kernel))]


def tap(
    x: jax.Array,
    axes: Sequence[int],
    place: Sequence[int],
    strides: Sequence[int],
    out: Sequence[int],
    dilations: Sequence[int],
) -> jax.Array:
    """Return the elements that all windows have at a place."""
    index = [slice(None)] * x.ndim
    for axis, i, d, s, n in zip(axes, place, dilations, strides, out):
        index[axis] = slice(i * d, i * d + s * (n - 1) + 1, s)
    return x[tuple(index)]


def window_sum(
    x: jax.Array, axes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], out: Sequence[int]
) -> jax.Array:
    """Return the sum over each window of an already padded `x`, one axis after the other.

    Sums of strided slices fuse into one pass; `lax.reduce_window` and above all its gradient are
    slower.
    """
    for axis, k, s, n in zip(axes, kernel, strides, out):
        if k > 32:
            x = _reduce_window(x, axis, k, s, n)
        else:
            x = functools.reduce(jnp.add, taps(x, (axis,), (k,), (s,), (n,)))
    return x


def _reduce_window(x: jax.Array, axis: int, kernel: int, stride: int, out: int) -> jax.Array:
    x = lax.slice_in_dim(x, 0, (out - 1) * stride + kernel, axis=axis)

    def at_axis(n: int) -> tuple[int, ...]:
        return tuple(n if i == axis else 1 for i in range(x.ndim))

    return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, at_axis(kernel), at_axis(stride), "VALID")
