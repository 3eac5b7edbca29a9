"""Losses on class labels: cross entropies and the negative log likelihood.

A label that is neither a class nor `ignore_index` gives NaN: a compiled program cannot raise, and a
clamped label would train the wrong class.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import dependency, row_rules
from jfluid.ops.axes import dimension
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Long, op

# Fluid bounds logarithms of zero by this number.
LOG_BOUND = 1e20


@jax.custom_jvp
def bounded_log(x: Array) -> Array:
    """Return log(x), and -LOG_BOUND at 0; its derivative stays 1/x, as in Fluid."""
    y = jnp.log(x)
    return jnp.where(jnp.isneginf(y), jnp.asarray(-LOG_BOUND, x.dtype), y)


@bounded_log.defjvp
def _bounded_log_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    return bounded_log(primals[0]), tangents[0] / primals[0]


def class_labels(label: Array, shape: Sequence[int], axis: int, name: str) -> Array:
    """Return labels for scores of `shape`, with size 1 at `axis`; the last such dimension may be left out."""
    if not jnp.issubdtype(label.dtype, jnp.integer):
        raise errors.DtypeError(f"{name}: expected labels of an integer type, found {label.dtype}")
    one_class = tuple(1 if i == axis else d for i, d in enumerate(shape))
    if label.ndim == len(shape) - 1 and axis == len(shape) - 1:
        label = jnp.expand_dims(label, axis)
    if label.shape != one_class:
        raise errors.ShapeError(
            f"{name}: expected labels of shape {list(one_class)} for scores of shape "
            f"{list(shape)}, found {list(label.shape)}"
        )
    return label


def is_label(label: Array, shape: Sequence[int], axis: int) -> Array:
    """Return a one-hot bool mask of `shape`: True where the class along `axis` is the label."""
    # 32-bit comparisons are vectorized; no label that fits no class may wrap into one.
    narrow = jnp.where((label >= 0) & (label < shape[axis]), label, -1).astype(jnp.int32)
    return narrow == jax.lax.broadcasted_iota(jnp.int32, shape, axis % len(shape))


def take_class(scores: Array, label: Array, axis: int) -> Array:
    """Return the scores at the labels; NaN for a label that is no class.

    The gradient is a comparison, not a scatter.
    """
    shape = scores.shape

    @jax.custom_vjp
    def take(scores: Array, label: Array) -> Array:
        valid = (label >= 0) & (label < shape[axis])
        picked = jnp.take_along_axis(scores, jnp.where(valid, label, 0).astype(jnp.int32), axis, mode="clip")
        return jnp.where(valid, picked, jnp.asarray(jnp.nan, scores.dtype))

    def backward(label: Array, cotangent: Array) -> tuple[Array, np.ndarray]:
        grad = jnp.where(is_label(label, shape, axis), cotangent, jnp.zeros((), cotangent.dtype))
        return grad, np.zeros(label.shape, jax.dtypes.float0)

    take.defvjp(lambda scores, label: (take(scores, label), label), backward)
    return take(scores, label)


def at_label(scores: Array, label: Array, ignore_index: int | Array, axis: int, ignored: int) -> tuple[Array, Array]:
    """Return the scores at the labels, and the mask of ignored labels, where the score is `ignored`."""
    skip = label == ignore_index
    return jnp.where(skip, jnp.asarray(ignored, scores.dtype), take_class(scores, label, axis)), skip


def soft_labels(label: Array, shape: Sequence[int], name: str) -> Array:
    """Raise ShapeError unless soft labels have the shape of the scores."""
    if label.shape != shape:
        raise errors.ShapeError(f"{name}: expected soft labels of shape {list(shape)}, found {list(label.shape)}")
    return label


@op("cross_entropy", ins=("X", "Label"), outs=("Y",), nograd=("Label",), rows="map")
def cross_entropy(x: Array, label: Array, *, soft_label: bool = False, ignore_index: int = -100) -> Array:
    """Return -log of the probability of the label, or -sum(label * log(x)) for soft labels, along the last axis."""
    if soft_label:
        return -jnp.sum(soft_labels(label, x.shape, "cross_entropy") * bounded_log(x), -1, keepdims=True)
    labels = class_labels(label, x.shape, x.ndim - 1, "cross_entropy")
    match, _ = at_label(x, labels, ignore_index, -1, 1)
    return (-bounded_log(match)).reshape(label.shape)


@op("cross_entropy2", ins=("X", "Label"), outs=("Y", "XShape", "MatchX"), nograd=("Label",), rows="map")
def cross_entropy2(x: Array, label: Array, *, ignore_index: int = -100) -> tuple[Array, Array, Array]:
    """Return the cross entropy of hard labels, and the probability of the label (0 for ignored labels)."""
    labels = class_labels(label, x.shape, x.ndim - 1, "cross_entropy2")
    match, skip = at_label(x, labels, ignore_index, -1, 1)
    return (
        (-bounded_log(match)).reshape(label.shape),
        jnp.zeros((*x.shape, 0), x.dtype),
        jax.lax.stop_gradient(jnp.where(skip, jnp.zeros((), x.dtype), match)),
    )


@op("cross_entropy_grad2", ins=("Y@GRAD", "MatchX", "XShape", "Label"), outs=("X@GRAD",), grad=False, rows="map")
def cross_entropy_grad2(
    y_grad: Array, match: Array, x_shape: Array, label: Array, *, ignore_index: int = -100
) -> Array:
    """Return the gradient of cross_entropy2, under the name that Fluid saves it with."""
    classes = x_shape.shape[-2]
    labels = label.reshape(match.shape)
    skip = labels == ignore_index
    slope = jnp.where(skip, 0, -y_grad.reshape(match.shape) / jnp.where(skip, 1, match))
    hit = labels == jnp.arange(classes, dtype=label.dtype)
    return jnp.where(hit, slope, jnp.zeros((), match.dtype)).astype(match.dtype)


def _wide(x: Array) -> Array:
    """Return half precision as float32, for sums."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _exponents(x: Array) -> Array:
    """Return exponents of a softmax, none below -64: as in Fluid a loss is at most 64 above the log of the sum."""
    return jnp.where(x < -64, -64, x)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _softmax_loss(logits: Array, label: Array, axis: int, soft_label: Array, ignore_index: Array) -> tuple[Any, ...]:
    return _softmax_loss_forward(logits, label, axis, soft_label, ignore_index)[0]


def _softmax_loss_forward(
    logits: Array, label: Array, axis: int, soft_label: Array, ignore_index: Array
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    wide = _wide(logits)
    top = wide.max(axis, keepdims=True)
    log_sum = jnp.log(jnp.exp(wide - top).sum(axis, keepdims=True))
    top = dependency.after(top, log_sum)  # XLA need not hold differences for both sums at once
    if soft_label:
        loss = -jnp.sum(dependency.after(label, log_sum) * (_exponents(wide - top) - log_sum), axis, keepdims=True)
    else:
        picked, skip = at_label(wide, label, ignore_index, axis, 0)
        loss = jnp.where(skip, 0, log_sum - _exponents(picked - top))
    softmax = jnp.exp(_exponents(wide - top) - log_sum)
    log_sum = dependency.after(log_sum + top, loss)
    return (softmax.astype(logits.dtype), loss.astype(logits.dtype)), (logits, log_sum, label)


def _softmax_loss_backward(
    axis: int, soft_label: Array, ignore_index: Array, kept: tuple[Any, ...], cotangents: tuple[Any, ...]
) -> tuple[Array, Array] | tuple[Array, np.ndarray]:
    # Fluid lets no gradient through Softmax, and subtracts soft labels that do not sum to 1 just
    # the same.
    logits, log_sum, label = kept
    slope = _wide(cotangents[1])
    softmax = jnp.exp(_wide(logits) - log_sum)
    if soft_label:
        return (slope * (softmax - label)).astype(logits.dtype), jnp.zeros_like(label)
    hit = is_label(label, logits.shape, axis)
    grad = jnp.where(label == ignore_index, 0, slope * (softmax - hit))
    return grad.astype(logits.dtype), np.zeros(label.shape, jax.dtypes.float0)


_softmax_loss.defvjp(_softmax_loss_forward, _softmax_loss_backward)


@op(
    "softmax_with_cross_entropy",
    ins=("Logits", "Label"),
    outs=("Softmax~", "Loss"),
    nograd=("Label",),
    rows=row_rules.by_axis("axis", slot="Logits"),
)
def softmax_with_cross_entropy(
    logits: Array,
    label: Array,
    *,
    soft_label: bool = False,
    numeric_stable_mode: bool = True,
    ignore_index: int = -100,
    axis: int = -1,
) -> tuple[Any, ...]:
    """Return the softmax along `axis`, and the cross entropy with it, always by the stable formula."""
    axis = dimension(axis, logits.ndim, "softmax_with_cross_entropy")
    if soft_label:
        soft_labels(label, logits.shape, "softmax_with_cross_entropy")
    else:
        label = class_labels(label, logits.shape, axis, "softmax_with_cross_entropy")
    return _softmax_loss(logits, label, axis, soft_label, ignore_index)


@op(
    "nll_loss",
    ins=("X", "Label", "Weight?"),
    outs=("Out", "Total_weight"),
    nograd=("Label", "Weight"),
    rows=row_rules.by_reduction,
)
def nll_loss(
    x: Array,
    label: Array,
    weight: Array | None,
    *,
    ignore_index: Long = -100,
    reduction: str = "mean",
    rows: RowMask | None = None,
) -> tuple[Array, Array]:
    """Return the negative of the log probabilities x [N, C, ...] at the labels [N, ...], weighted by class."""
    labels = class_labels(jnp.expand_dims(label, 1), x.shape, 1, "nll_loss")
    picked, skip = at_label(x, labels, ignore_index, 1, 0)
    classes = jnp.ones((x.shape[1],), x.dtype) if weight is None else weight
    weights = jnp.where(skip, 0, classes[jnp.clip(labels, 0, x.shape[1] - 1)])
    losses = -picked * weights
    if reduction == "none":
        return losses.reshape(label.shape), jnp.zeros((1,), x.dtype)
    if rows is not None:
        weights, losses = rows.zero(weights), rows.zero(losses)
    total = weights.sum()
    loss = losses.sum()
    if reduction == "mean":
        loss = jnp.where(total == 0, 0, loss / jnp.where(total == 0, 1, total))
    elif reduction != "sum":
        raise errors.ShapeError(f"nll_loss: reduction: expected none, mean or sum, found {reduction!r}")
    return loss.reshape(1), total.reshape(1)
