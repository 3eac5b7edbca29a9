"""Operators of click models: counts of shows and clicks as features, and features normalised by running summaries."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.axes import check_one_dtype
from jfluid.ops.ragged import Ragged, Value, column, moved, rows_of, spread
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import op


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _counts(x: Array, counts: Array, use_cvm: bool) -> Array:
    if not use_cvm:
        return x[:, 2:]
    show = jnp.log(x[:, :1] + 1)
    return jnp.concatenate([show, jnp.log(x[:, 1:2] + 1) - show, x[:, 2:]], axis=1)


def _counts_forward(x: Array, counts: Array, use_cvm: bool) -> tuple[Array, Array]:
    return _counts(x, counts, use_cvm), counts


def _counts_backward(use_cvm: bool, counts: Array, grad: Array) -> tuple[Array, None]:
    # The gradient of the two counts is the counts themselves: the parameter server keeps them
    # beside the embedding.
    return jnp.concatenate([counts.astype(grad.dtype), grad[:, 2:] if use_cvm else grad], axis=1), None


_counts.defvjp(_counts_forward, _counts_backward)


@op("cvm", ins=("X", "CVM"), outs=("Y",), nograd=("CVM",), rows="sequence", counts=True)
def cvm(x: Value, counts: Value, *, use_cvm: bool = True) -> Value:
    """Replace the first two columns, show and click counts, by log-show and log-click-rate.

    These are log(show + 1) and log(click + 1) - log(show + 1). Without `use_cvm` both columns are dropped.
    """
    counts = rows_of(counts)
    if not isinstance(x, Ragged):
        return _counts(x, counts, use_cvm)
    if x.levels:
        counts = spread(counts, x.last, x.capacity)
    if not x.exact:
        counts = jnp.where(column(x.mask(), 2), counts, 0)
    return x.like(_counts(x.values, counts, use_cvm))


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _summaries(x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float) -> Array:
    return (x - total / size) * jnp.sqrt(size / squares) * mask


def _summaries_forward(
    x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float
) -> tuple[Array, tuple[Any, ...]]:
    return _summaries(x, size, total, squares, mask, epsilon), (x, size, total, squares, mask)


def _summaries_backward(epsilon: float, kept: tuple[Any, ...], grad: Array) -> tuple[Any, Any, Any, Any, None]:
    # The "gradients" of the summaries are those of this batch, which the optimizer adds to the
    # running ones.
    x, size, total, squares, mask = kept
    count = mask.sum(0)
    away = jnp.square(x - total / size)
    return (
        grad * jnp.sqrt(size / squares) * mask,
        count,
        (x * mask).sum(0),
        (away * mask).sum(0) + count * epsilon,
        None,
    )


_summaries.defvjp(_summaries_forward, _summaries_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _slot_summaries(x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float) -> Array:
    return _summaries(x, size, total, squares, mask, epsilon)


def _slot_backward(epsilon: float, kept: tuple[Any, ...], grad: Array) -> tuple[Array, Array, Array, Array, None]:
    grad_x, count, sums, away, _ = _summaries_backward(epsilon, kept, grad)
    seen = jnp.maximum(count, 1)
    filled = (count > 0).astype(count.dtype)
    extra = count * epsilon  # not averaged, in Fluid either
    return grad_x, filled, sums / seen, (away - extra) / seen + extra, None


_slot_summaries.defvjp(_summaries_forward, _slot_backward)


@op(
    "data_norm",
    ins=("scale_w?", "bias?", "X", "BatchSize", "BatchSum", "BatchSquareSum"),
    outs=("Y", "Means~", "Scales~"),
    rows="mask",
    row_outs=("Y",),
)
def data_norm(
    scale_w: Array | None,
    bias: Array | None,
    x: Array,
    size: Array,
    total: Array,
    squares: Array,
    *,
    epsilon: float = 1e-4,
    data_layout: str = "NCHW",
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Normalise x by running summaries: (x - sum / size) * sqrt(size / sum of squares).

    With `slot_dim` each group of so many columns begins with a count; where that is zero the group
    stays zero. The gradients of the summaries are those of the batch, with which an optimizer
    trains them; sync_stats and summary_decay_rate are for the gradient operator of Fluid's build for
    GPUs, and have no effect here and in Fluid on the CPU (see `layers.data_norm`).
    """
    mask = jnp.ones(x.shape, x.dtype) if rows is None else jnp.broadcast_to(rows.mask[:, None], x.shape).astype(x.dtype)
    means, scales = total / size, jnp.sqrt(size / squares)
    if slot_dim > 0:
        groups = x.reshape(x.shape[0], -1, slot_dim)
        empty = jnp.abs(groups[:, :, :1]) < 1e-7
        mask = mask * (~jnp.broadcast_to(empty, groups.shape)).reshape(x.shape).astype(x.dtype)
        y = _slot_summaries(x, size, total, squares, mask, epsilon)
    else:
        y = _summaries(x, size, total, squares, mask, epsilon)
    if enable_scale_and_shift:
        if scale_w is None or bias is None:
            raise errors.ProgramError("data_norm: enable_scale_and_shift needs the inputs scale_w and bias")
        y = (y * scale_w + bias) * mask
    return y if rows is None else rows.refill(y), means, scales


def _columns(op_type: str, xs: list[Array], start: int, length: int) -> list[Array]:
    """Return the columns of each input that start_index and length say."""
    check_one_dtype(xs, op_type)
    if any(x.ndim != 2 for x in xs) or len({x.shape for x in xs}) != 1:
        raise errors.ShapeError(
            f"{op_type}: expected inputs of two dimensions and the same shape, found "
            + ", ".join(str(list(x.shape)) for x in xs)
        )
    width = xs[0].shape[1]
    begin = start + width if start < 0 else start
    end = width if length < 0 else begin + length
    if not 0 <= begin < width or end > width:
        raise errors.ShapeError(f"{op_type}: start_index {start} and length {length} reach beyond {width} columns")
    return [x[:, begin:end] for x in xs]


@op("partial_concat", ins=("X*",), outs=("Out",), rows="map")
def partial_concat(xs: list[Array], *, start_index: int = 0, length: int = -1) -> Array:
    """Join `length` columns of each input, from start_index on."""
    return jnp.concatenate(_columns("partial_concat", xs, start_index, length), axis=1)


@op("partial_sum", ins=("X*",), outs=("Out",), rows="map")
def partial_sum(xs: list[Array], *, start_index: int = 0, length: int = -1) -> Array:
    """Add up `length` columns of each input, from start_index on."""
    return functools.reduce(jnp.add, _columns("partial_sum", xs, start_index, length))


# Real rows name real rows in RankOffset, so that padding rows reach none of them.
@op("rank_attention", ins=("X", "RankOffset", "RankParam"), outs=("Out",), nograd=("X", "RankOffset"), rows="map")
def rank_attention(x: Array, offset: Array, weights: Array, *, MaxRank: int = 3) -> Array:
    """Return attention between the ads of a page view: features times the matrix of the pair's ranks, summed.

    The sum is over the ads shown with an ad. The result is [rows, columns of RankParam]. As in Fluid, X gets no
    gradient.

    RankOffset [rows, 2 * MaxRank + 1] has the rank of the row's ad, from 1, then for each place the
    rank and the row of the ad that is shown there; a rank of 0 stands for none.
    """
    ranks, width = MaxRank * MaxRank, x.shape[1]
    if offset.ndim != 2 or offset.shape[1] != 2 * MaxRank + 1:
        raise errors.ShapeError(
            f"rank_attention: expected a RankOffset [rows, {2 * MaxRank + 1}] for MaxRank {MaxRank}, "
            f"found {list(offset.shape)}"
        )
    if weights.ndim != 2 or weights.shape[0] != ranks * width:
        raise errors.ShapeError(
            f"rank_attention: expected a RankParam [{ranks} * {width}, columns] for X "
            f"{list(x.shape)} and MaxRank {MaxRank}, found {list(weights.shape)}"
        )
    own, others, rows = offset[:, :1] - 1, offset[:, 1::2] - 1, offset[:, 2::2]
    shown = (own >= 0) & (others >= 0)
    features = jnp.take(x, jnp.where(shown, rows, 0), axis=0, mode="fill")
    pair = jnp.where(shown, own * MaxRank + others, ranks)[..., None] == jnp.arange(ranks)
    # Features by pair of ranks, so that one product takes all matrices.
    by_pair = jnp.einsum("npr,npw->nrw", pair.astype(x.dtype), features)
    return by_pair.reshape(-1, ranks * width) @ weights


@op(
    "shuffle_batch",
    ins=("X", "Seed"),
    outs=("Out", "ShuffleIdx", "SeedOut"),
    nograd=("Seed",),
    rows="sequence",
    counts=True,
)
def shuffle_batch(x: Value, seed: Value, *, startup_seed: int = 0) -> tuple[Value, Value, Value]:
    """Shuffle the vectors of the last dimension.

    ShuffleIdx is the source index of each vector, SeedOut the next seed. The startup program writes
    `startup_seed` into Seed.
    """
    values = rows_of(x)
    vectors = values.reshape(-1, values.shape[-1])
    key = jax.random.key(seed.reshape(-1)[0])
    chance = jax.random.uniform(key, vectors.shape[:1])
    real = jnp.ones(vectors.shape[0], bool)
    if isinstance(x, Ragged):
        real = jnp.repeat(x.mask(), vectors.shape[0] // x.capacity)
    order = jnp.argsort(jnp.where(real, chance, 2))  # padding stays behind
    index = jnp.zeros(order.shape, jnp.int64).at[order].set(jnp.arange(order.shape[0]))
    mixed = moved(vectors, order, index, real).reshape(values.shape)
    next_seed = jax.random.randint(jax.random.fold_in(key, 1), seed.shape, 1, 2**31 - 1, seed.dtype)
    if not isinstance(x, Ragged):
        return mixed, index, next_seed
    if x.exact:
        return x.like(mixed), index, next_seed
    count = x.count() * (vectors.shape[0] // x.capacity)
    return x.like(mixed).refilled(), Ragged(index, (), count).refilled(), next_seed
