"""Operators of click models: counts of shows and clicks as features, and features normalised by
running summaries.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.ragged import Ragged, Value, column, rows_of, spread
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
    return jnp.concatenate(
        [counts.astype(grad.dtype), grad[:, 2:] if use_cvm else grad], axis=1
    ), None


_counts.defvjp(_counts_forward, _counts_backward)


@op("cvm", ins=("X", "CVM"), outs=("Y",), nograd=("CVM",), rows="sequence")
def cvm(x: Value, counts: Value, *, use_cvm: bool = True) -> Value:
    """Replace the first two columns, counts of shows and clicks, by log(show + 1) and log(click +
    1) - log(show + 1); or leave them out.
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
def _summaries(
    x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float
) -> Array:
    return (x - total / size) * jnp.sqrt(size / squares) * mask


def _summaries_forward(
    x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float
) -> tuple[Array, tuple[Any, ...]]:
    return _summaries(x, size, total, squares, mask, epsilon), (x, size, total, squares, mask)


def _summaries_backward(
    epsilon: float, kept: tuple[Any, ...], grad: Array
) -> tuple[Any, Any, Any, Any, None]:
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
def _slot_summaries(
    x: Array, size: int, total: Array, squares: Array, mask: Array, epsilon: float
) -> Array:
    return _summaries(x, size, total, squares, mask, epsilon)


def _slot_backward(
    epsilon: float, kept: tuple[Any, ...], grad: Array
) -> tuple[Array, Array, Array, Array, None]:
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
    stays zero. sync_stats and summary_decay_rate concern training on several GPUs and the update of
    the summaries: they have no effect here.
    """
    mask = (
        jnp.ones(x.shape, x.dtype)
        if rows is None
        else jnp.broadcast_to(rows.mask[:, None], x.shape).astype(x.dtype)
    )
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
            raise errors.ProgramError(
                "data_norm: enable_scale_and_shift needs the inputs scale_w and bias"
            )
        y = (y * scale_w + bias) * mask
    return y if rows is None else rows.refill(y), means, scales
