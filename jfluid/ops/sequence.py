"""Operators within sequences: each sequence is pooled, normalised, convolved or searched by itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops import refusals, static_values, unrolled
from jfluid.ops.ragged import Level, Ragged, Value, column, grouped, moved, need, offsets_of, positions, rows_of, totals
from jfluid.ops.registry import Bool, Int, Ints, op

_MOST_ROWS = 1 << 24  # of a window over rows: the index of a row and the window's size fit in 32 bits


@op("sequence_pool", ins=("X",), outs=("Out", "MaxIndex~"), rows="sequence", counts=True)
def sequence_pool(
    x: Value, *, pooltype: str = "AVERAGE", pad_value: float = 0.0, is_test: bool = False
) -> tuple[Value, Value | None]:
    """Reduce each sequence to one row: its sum, mean, sum / sqrt(length), maximum, first or last row."""
    x = need(x, "sequence_pool", "X")
    level, index = x.last, None
    ndim = x.ndim
    lengths = column(jnp.maximum(level.lengths, 1).astype(x.dtype), ndim)
    if pooltype == "SUM":
        out = totals(x)
    elif pooltype == "AVERAGE":
        out = totals(x) / lengths
    elif pooltype == "SQRT":
        out = totals(x) / jnp.sqrt(lengths)
    elif pooltype == "MAX":
        out, index = _maximum(x)
    elif pooltype in ("FIRST", "LAST"):
        at = level.starts if pooltype == "FIRST" else level.offsets[1:] - 1
        out = jnp.take(x.values, at, axis=0, mode="clip")
    else:
        raise errors.AttributeTypeError(
            f"sequence_pool: pooltype is SUM, AVERAGE, SQRT, MAX, FIRST or LAST, found {pooltype!r}"
        )
    if not level.uniform:
        out = jnp.where(column(level.lengths > 0, ndim), out, jnp.asarray(pad_value, x.dtype))
    return grouped(x, out), None if index is None else grouped(x, index)


def _maximum(x: Ragged) -> tuple[Array, Array]:
    """Return the maximum of each column and its row. Of equal values the first gets the gradient.

    NaN is the largest value.
    """
    level, values = x.last, jax.lax.stop_gradient(x.values)
    _, position, _ = positions(level, x.capacity)
    if level.number * level.longest <= 4 * x.capacity:
        mask = level.mask().reshape(level.number, level.longest, *[1] * (x.ndim - 1))
        out, first = _first_maximum(jnp.where(mask, x.pad(), _lowest(values.dtype)))
    else:
        segments = x.segments()
        best = jax.ops.segment_max(values, segments, level.number + 1, indices_are_sorted=True)
        keys = _places(values, best[segments], column(position, x.ndim), level.longest)
        first = jax.ops.segment_min(keys, segments, level.number + 1, indices_are_sorted=True)
        first = jnp.where(first < 0, first + level.longest, first)
        hit = column(position, x.ndim) == first[segments]
        out, first = totals(x.like(jnp.where(hit, x.values, 0))), first[:-1]
    row = jnp.where(column(level.lengths > 0, x.ndim), column(level.starts, x.ndim) + first, -1)
    return out, row.astype(jnp.int32)


@jax.custom_vjp
def _first_maximum(dense: Array) -> tuple[Array, Array]:
    """Return the maximum over the second dimension and its first index.

    It uses two plain reductions, because XLA:CPU is slow at argmax.
    """
    best, longest = jnp.max(dense, axis=1), dense.shape[1]
    times = jnp.arange(longest, dtype=jnp.int32).reshape(1, -1, *[1] * (dense.ndim - 2))
    first = jnp.min(_places(dense, best[:, None], times, longest), axis=1)
    if not jnp.issubdtype(dense.dtype, jnp.inexact):
        return best, jnp.minimum(first, longest - 1)
    best = jnp.where(first < 0, jnp.nan, best)
    return best, jnp.where(first < 0, first + longest, jnp.minimum(first, longest - 1))


def _places(values: Array, best: Array, times: Array, longest: int) -> Array:
    """Return the time of each value equal to the maximum, and `longest` for all smaller values.

    NaN gets `longest` less, since XLA's maximum on CPUs may ignore NaN.
    """
    places = jnp.where(values == best, times, longest)
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return places
    return jnp.where(values != values, times - longest, places)


def _first_maximum_forward(dense: Array) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    best, first = _first_maximum(dense)
    return (best, first), (first, jnp.zeros((0, dense.shape[1]), jnp.int8))


def _first_maximum_backward(kept: tuple[Any, ...], grads: tuple[Any, ...]) -> tuple[Array]:
    first, like = kept
    times = jnp.arange(like.shape[1], dtype=jnp.int32).reshape(1, -1, *[1] * (first.ndim - 1))
    return (jnp.where(times == first[:, None], grads[0][:, None], 0),)


_first_maximum.defvjp(_first_maximum_forward, _first_maximum_backward)


def _lowest(dtype: Any) -> float:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


@op("sequence_softmax", ins=("X",), outs=("Out",), rows="sequence", counts=True)
def sequence_softmax(x: Value, *, data_format: str = "AnyLayout") -> Value:
    """Apply softmax over the rows of each sequence; a row has one number."""
    x = need(x, "sequence_softmax", "X")
    if x.ndim > 1 and any(d != 1 and not static_values.placeholder() for d in x.shape[1:]):
        raise errors.ShapeError(f"sequence_softmax: expected rows of one number, found shape {list(x.shape)}")
    mask = x.last.mask().reshape(x.last.number, x.last.longest, *[1] * (x.ndim - 1))
    dense = x.pad()
    highest = jax.lax.stop_gradient(jnp.max(dense, axis=1, keepdims=True, where=mask, initial=_lowest(x.dtype)))
    powers = jnp.where(mask, jnp.exp(jnp.where(mask, dense - highest, 0)), 0)
    total = powers.sum(axis=1, keepdims=True)
    return x.unpad(powers / jnp.where(total == 0, 1, total))  # a sequence without rows has no powers


def shifted(x: Ragged, by: Any) -> Array:
    """Shift rows within each sequence: row j becomes row j + by, or zeros outside. `by` may be traced."""
    _, position, _ = positions(x.last, x.capacity)
    capacity = x.capacity
    rolled = jnp.zeros_like(x.values)
    if not isinstance(by, int):
        rolled = jnp.roll(x.values, -by, axis=0)
    elif 0 <= by < capacity:
        rolled = jnp.concatenate([x.values[by:], rolled[:by]])
    elif -capacity < by < 0:
        rolled = jnp.concatenate([rolled[:-by], x.values[:by]])
    lengths = spread_lengths(x)
    inside = (position + by >= 0) & (position + by < lengths)
    return jnp.where(column(inside, x.ndim), rolled, 0)


def spread_lengths(x: Ragged) -> Array:
    """Return the length of each row's sequence: int32 [capacity]."""
    sequence, _, _ = positions(x.last, x.capacity)
    return x.last.lengths[sequence]


@op("sequence_conv", ins=("X", "PaddingData?", "Filter"), outs=("Out",), rows="sequence", counts=True)
def sequence_conv(
    x: Value,
    padding: Value | None,
    weight: Value,
    *,
    contextLength: Int,
    contextStart: Int = 0,
    contextStride: Int = 1,
    paddingTrainable: Bool = False,
) -> Value:
    """Multiply each row, side by side with its neighbours in the sequence, by the filter.

    Rows before and after a sequence are zero, or with `paddingTrainable` the rows of PaddingData.
    """
    x = need(x, "sequence_conv", "X")
    if not paddingTrainable:
        padding = None
    elif padding is None:
        raise errors.ProgramError("sequence_conv: paddingTrainable needs the input PaddingData")
    if contextStride != 1:
        raise errors.UnsupportedError(f"sequence_conv: expected contextStride 1, found {contextStride}")
    if not 1 <= contextLength <= _MOST_ROWS or abs(contextStart) > _MOST_ROWS:
        raise errors.AttributeTypeError(
            f"sequence_conv: expected contextLength from 1 to {_MOST_ROWS} and contextStart from -{_MOST_ROWS} to "
            f"{_MOST_ROWS}, found {contextLength} and {contextStart}"
        )
    if weight.shape[0] != contextLength * x.shape[1] and not static_values.placeholder():
        raise errors.ShapeError(
            f"sequence_conv: a filter of {contextLength * x.shape[1]} rows is needed for rows of "
            f"{x.shape[1]} and {contextLength} neighbours, found {list(weight.shape)}"
        )
    before, after = max(-contextStart, 0), max(contextStart + contextLength - 1, 0)
    if padding is not None:
        _check_padding(rows_of(padding), before + after, x)

    def neighbour(k: Any) -> Array:
        by = contextStart + k
        return shifted(x, by) if padding is None else _with_padding(x, shifted(x, by), by, rows_of(padding), before)

    return _real(x, unrolled.joined(contextLength, neighbour, axis=1) @ weight)


def _check_padding(padding: Array, count: int, x: Ragged) -> None:
    if padding.shape != (count, x.shape[1]) and not static_values.placeholder():
        raise errors.ShapeError(
            f"sequence_conv: PaddingData must be [{count}, {x.shape[1]}], a row for each row before and after a "
            f"sequence that it reads, found {list(padding.shape)}"
        )


def _with_padding(x: Ragged, rows: Array, by: Any, padding: Array, before: int) -> Array:
    """Return `rows`, the rows of x shifted by `by`, with rows of `padding` outside of their sequence.

    The first `before` padding rows stand before a sequence, all further rows after it.
    """
    _, position, _ = positions(x.last, x.capacity)
    at = position + by
    lengths = spread_lengths(x)
    outside = (at < 0) | (at >= lengths)
    place = before + jnp.where(at < 0, at, at - lengths)
    taken = jnp.take(padding, place, axis=0, mode="clip")
    return jnp.where(column(outside, rows.ndim), taken, rows)


def _real(x: Ragged, values: Array) -> Ragged:
    """Return the rows of x with other values; padding rows become copies of the first."""
    return x.like(values).refilled()


@op("row_conv", ins=("X", "Filter"), outs=("Out",), rows="sequence", counts=True)
def row_conv(x: Value, weight: Value) -> Value:
    """Return the lookahead convolution: row t is the sum of rows t, t + 1, ..., each times a filter row."""
    if weight.shape[0] < 1:
        raise errors.ShapeError(f"row_conv: expected a Filter of at least one row, found {list(weight.shape)}")
    if not isinstance(x, Ragged) and x.ndim == 3:
        padded, steps = jnp.pad(x, ((0, 0), (0, weight.shape[0] - 1), (0, 0))), x.shape[1]
        return unrolled.total(weight.shape[0], lambda k: unrolled.part(padded, k, steps, axis=1) * weight[k])
    sequences = need(x, "row_conv", "X")
    return _real(sequences, unrolled.total(weight.shape[0], lambda k: shifted(sequences, k) * weight[k]))


@op("sequence_enumerate", ins=("X",), outs=("Out",), grad=False, rows="sequence", counts=True)
def sequence_enumerate(x: Value, *, win_size: Int, pad_value: Int = 0) -> Value:
    """Return for each id the `win_size` ids from there on, with `pad_value` after the end."""
    x = need(x, "sequence_enumerate", "X")
    if not 1 <= win_size <= _MOST_ROWS:
        raise errors.AttributeTypeError(
            f"sequence_enumerate: expected win_size from 1 to {_MOST_ROWS}, found {win_size}"
        )
    ids = x.like(x.values.reshape(x.capacity, 1))
    _, position, _ = positions(x.last, x.capacity)
    left = spread_lengths(x) - position

    def following(k: Any) -> Array:
        return jnp.where(left[:, None] > k, shifted(ids, k), jnp.asarray(pad_value, x.dtype))

    return _real(x, unrolled.joined(win_size, following, axis=1))


@op(
    "sequence_scatter",
    ins=("X", "Ids", "Updates"),
    outs=("Out",),
    nograd=("Ids",),
    rows="sequence",
    counts=True,
    refuses=(
        refusals.RefusalRule(
            "Ids",
            lambda ins, attrs: refusals.outside(ins["Ids"], ins["X"].shape[1] - 1),
            "expected columns of X from 0 to {limit}, found {found}",
        ),
    ),
)
def sequence_scatter(x: Value, ids: Value, updates: Value) -> Value:
    """Add the updates of sequence i to row i of x, at the columns that its ids name."""
    ids, updates = (need(ids, "sequence_scatter", "Ids"), need(updates, "sequence_scatter", "Updates"))
    if ids.last.number != x.shape[0] and not static_values.placeholder():
        raise errors.ShapeError(f"sequence_scatter: X has {x.shape[0]} rows, Ids {ids.last.number} sequences")
    if static_values.placeholder():
        return x
    rows, columns = rows_of(x), ids.values.reshape(-1)
    out = rows.at[ids.segments(), columns].add(updates.values.reshape(-1).astype(x.dtype), mode="drop")
    return x.like(out).refilled() if isinstance(x, Ragged) else out


@op(
    "sequence_mask",
    ins=("X", "MaxLenTensor?"),
    outs=("Y",),
    grad=False,
    rows="map",
    host_when=lambda op: op.attr("maxlen") < 0 and not op.input("MaxLenTensor"),
)
def sequence_mask(x: Array, longest: Array | None, *, maxlen: Int = -1, out_dtype: Int = 3) -> Array:
    """Return the mask [..., maxlen] with 1 at the first x positions of each row.

    Without maxlen it is the largest x.
    """
    if longest is not None:
        maxlen = static_values.sizes(longest, "sequence_mask's maxlen")[0]
    elif maxlen < 0:
        maxlen = static_values.placeholder() or (int(np.asarray(x).max()) if x.size else 0)
        static_values.check_elements((*x.shape, maxlen), "the mask of sequence_mask")
    return (jnp.arange(maxlen, dtype=x.dtype) < x[..., None]).astype(np_dtype(out_dtype))


@op("add_position_encoding", ins=("X",), outs=("Out",), rows="sequence", counts=True)
def add_position_encoding(x: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """Return alpha x + beta (sines and cosines of the position).

    x is [batch, time, width] or ragged rows [rows, width].

    Vaswani et al., "Attention Is All You Need", 2017, section 3.5, with the sines in the first half
    of the width.
    """
    if isinstance(x, Ragged):
        _, position, _ = positions(x.last, x.capacity)
    else:
        position = jnp.arange(x.shape[1], dtype=jnp.int32)
    half = x.shape[-1] // 2
    powers = jnp.arange(half) / (half - 1) if half > 1 else jnp.ones(1)
    angle = position[:, None] / jnp.power(10000.0, powers)
    code = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1).astype(x.dtype)
    out = alpha * rows_of(x) + beta * code
    return x.like(out) if isinstance(x, Ragged) else out


@op(
    "sequence_topk_avg_pooling",
    ins=("X", "ROW", "COLUMN"),
    outs=("Out", "pos~"),
    nograd=("ROW", "COLUMN"),
    rows="sequence",
    counts=True,
    refuses=(refusals.pictures("channel_num"),),
)
def sequence_topk_avg_pooling(
    x: Value, row: Value, column_: Value, *, topks: Ints, channel_num: Int
) -> tuple[Value, Value | None]:
    """Return the sum of the k largest entries of each row, divided by k, for all k of topks.

    A row is a row of the matrix of a sequence and channel.

    A sequence of X holds [channel, row, column] in one column; ROW and COLUMN tell the sizes.
    """
    x, row, columns = (
        need(v, "sequence_topk_avg_pooling", s) for v, s in ((x, "X"), (row, "ROW"), (column_, "COLUMN"))
    )
    most, widest = max(topks), max(columns.last.longest, max(topks))
    sequence, position, _ = positions(row.last, row.capacity)
    heights, widths = row.last.lengths[sequence], columns.last.lengths[sequence]
    channels, at = jnp.arange(channel_num, dtype=jnp.int32), jnp.arange(widest, dtype=jnp.int32)
    line = channels * heights[:, None] + position[:, None]
    index = x.last.starts[sequence][:, None, None] + line[..., None] * widths[:, None, None] + at
    inside = jnp.broadcast_to(at < widths[:, None, None], index.shape)
    entries = jnp.where(inside, jnp.take(x.values.reshape(-1), index, mode="clip"), -jnp.inf)
    best = jax.lax.top_k(entries, most)[0]
    sums = jnp.cumsum(jnp.where(jnp.isfinite(best), best, 0), axis=-1)
    out = jnp.stack([sums[..., k - 1] / k for k in topks], axis=-1)
    return _real(row, out.reshape(row.capacity, channel_num * len(topks))), None


@op("im2sequence", ins=("X", "Y?"), outs=("Out",), nograd=("Y",), rows="sequence")
def im2sequence(
    x: Value,
    sizes: Value | None,
    *,
    kernels: Ints,
    strides: Ints = (1, 1),
    paddings: Ints = (0, 0, 0, 0),
    out_stride: Ints = (1, 1),
) -> Value:
    """Return the patches of each image as a sequence of rows [channels * height * width of the kernel]."""
    top, left, bottom, right = paddings
    patches = jax.lax.conv_general_dilated_patches(x, kernels, strides, ((top, bottom), (left, right)))
    n, width, height, across = patches.shape
    rows = patches.reshape(n, width, height * across).swapaxes(1, 2).reshape(n * height * across, width)
    if sizes is None:
        return Ragged(rows, (Level(None, height * across, n),), exact=True)
    return _real_patches(rows, sizes, (height, across), kernels, strides, paddings, out_stride)


def _real_patches(
    rows: Array,
    sizes: Array,
    full: tuple[int, int],
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> Ragged:
    """Keep the patches [number * height * width, ...] that lie inside each unpadded image of the given size."""
    real = jnp.ceil(sizes / jnp.asarray(out_stride, sizes.dtype)).astype(jnp.int32)
    room = jnp.asarray([paddings[0] + paddings[2], paddings[1] + paddings[3]], jnp.int32) - jnp.asarray(
        kernels, jnp.int32
    )
    count = jnp.clip((real + room) // jnp.asarray(strides, jnp.int32) + 1, 0, jnp.asarray(full, jnp.int32))
    level = Level(offsets_of(count[:, 0] * count[:, 1]), full[0] * full[1])
    sequence, position, _ = positions(level, rows.shape[0])
    width = jnp.maximum(count[sequence, 1], 1)
    source = sequence * (full[0] * full[1]) + position // width * full[1] + position % width
    place = jnp.arange(rows.shape[0], dtype=jnp.int32)
    image, down, across = place // (full[0] * full[1]), place // full[1] % full[0], place % full[1]
    inside = (down < count[image, 0]) & (across < count[image, 1])
    return Ragged(moved(rows, source, level.starts[image] + down * count[image, 1] + across, inside), (level,))
