"""Losses on numbers, pairs and scores."""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import row_rules
from jfluid.ops.cross_entropy import class_labels, is_label, take_class
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Bool, Float, Int, op


def same_shape(type_: str, **tensors: Any) -> None:
    """Raise ShapeError unless all tensors have the same shape."""
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    if len({tuple(s) for s in shapes.values()}) > 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise errors.ShapeError(f"{type_}: expected tensors of one shape, found {found}")


@op(
    "sigmoid_cross_entropy_with_logits",
    ins=("X", "Label"),
    outs=("Out",),
    nograd=("Label",),
    rows="mask",
    row_outs=("Out",),
)
def sigmoid_cross_entropy_with_logits(
    x: Array, label: Array, *, normalize: bool = False, ignore_index: int = -100, rows: RowMask | None = None
) -> Array:
    """Return the elementwise binary cross entropy of sigmoid(x).

    With `normalize` it is divided by the number of labels that are not ignored.
    """
    same_shape("sigmoid_cross_entropy_with_logits", X=x, Label=label)
    counted = label != ignore_index
    loss = jnp.where(counted, jax.nn.softplus(x) - x * label, 0)
    if normalize:
        counted = counted if rows is None else rows.zero(counted)
        loss = loss / jnp.maximum(counted.sum(dtype=x.dtype), 1)
    return loss


@jax.custom_jvp
def _binary_cross_entropy(x: Array, label: Array) -> Array:
    return -(label * jnp.maximum(jnp.log(x), -100) + (1 - label) * jnp.maximum(jnp.log1p(-x), -100))


@_binary_cross_entropy.defjvp
def _binary_cross_entropy_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    (x, label), (dx, _) = primals, tangents
    return _binary_cross_entropy(x, label), (x - label) / jnp.maximum((1 - x) * x, 1e-12) * dx


@op("bce_loss", ins=("X", "Label"), outs=("Out",), nograd=("Label",), rows="map")
def bce_loss(x: Array, label: Array) -> Array:
    """Return the binary cross entropy of probabilities, with logarithms bounded by -100."""
    same_shape("bce_loss", X=x, Label=label)
    return _binary_cross_entropy(x, label)


@op("kldiv_loss", ins=("X", "Target"), outs=("Loss",), nograd=("Target",), rows=row_rules.by_reduction)
def kldiv_loss(x: Array, target: Array, *, reduction: str = "mean", rows: RowMask | None = None) -> Array:
    """Return the Kullback-Leibler divergence of log probabilities x from `target`; 0 for targets <= 0."""
    same_shape("kldiv_loss", X=x, Target=target)
    counted = target > 0
    loss = jnp.where(counted, target * (jnp.log(jnp.where(counted, target, 1)) - x), 0)
    if reduction == "none":
        return loss
    count: Any = x.shape[0]
    if rows is not None:
        loss, count = rows.zero(loss), jnp.maximum(rows.count, 1).astype(x.dtype)
    scale = {"sum": 1, "mean": count * prod(x.shape[1:]), "batchmean": count}
    if reduction not in scale:
        raise errors.ShapeError(f"kldiv_loss: reduction: expected none, mean, sum or batchmean, found {reduction!r}")
    return (loss.sum() / scale[reduction]).reshape(1)


@op("huber_loss", ins=("X", "Y"), outs=("Residual~", "Out"), rows="map")
def huber_loss(x: Array, y: Array, *, delta: Float) -> tuple[Array, Array]:
    """Return half the squared residual y - x up to `delta`, and a linear function above."""
    same_shape("huber_loss", X=x, Y=y)
    residual = y - x
    size = jnp.abs(residual)
    return residual, jnp.where(size <= delta, 0.5 * residual * residual, delta * (size - 0.5 * delta))


@op("modified_huber_loss", ins=("X", "Y"), outs=("IntermediateVal~", "Out"), nograd=("Y",), rows="map")
def modified_huber_loss(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the squared hinge of the margin x * (2y - 1), and a linear function below -1."""
    same_shape("modified_huber_loss", X=x, Y=y)
    margin = x * (2 * y - 1)
    return margin, jnp.where(margin < -1, -4 * margin, jnp.where(margin < 1, (1 - margin) ** 2, 0))


@op(
    "smooth_l1_loss",
    ins=("X", "Y", "InsideWeight?", "OutsideWeight?"),
    outs=("Diff~", "Out"),
    nograd=("InsideWeight", "OutsideWeight"),
    rows="map",
)
def smooth_l1_loss(
    x: Array, y: Array, inside: Array | None, outside: Array | None, *, sigma: float = 1.0
) -> tuple[Array, Array]:
    """Return the smooth L1 loss of each row, summed over all dimensions but the first."""
    same_shape("smooth_l1_loss", X=x, Y=y)
    diff = x - y if inside is None else (x - y) * inside
    squared = sigma * sigma
    size = jnp.abs(diff)
    loss = jnp.where(size < 1 / squared, 0.5 * squared * diff * diff, size - 0.5 / squared)
    loss = loss if outside is None else loss * outside
    return diff, loss.reshape(x.shape[0], -1).sum(1, keepdims=True)


@op("log_loss", ins=("Predicted", "Labels"), outs=("Loss",), nograd=("Labels",), rows="map")
def log_loss(predicted: Array, labels: Array, *, epsilon: Float) -> Array:
    """Return the binary cross entropy of probabilities, with `epsilon` added to each."""
    same_shape("log_loss", Predicted=predicted, Labels=labels)
    return -labels * jnp.log(predicted + epsilon) - (1 - labels) * jnp.log(1 - predicted + epsilon)


@op("hinge_loss", ins=("Logits", "Labels"), outs=("Loss",), nograd=("Labels",), rows="map")
def hinge_loss(logits: Array, labels: Array) -> Array:
    """Return max(0, 1 - logits * (2 labels - 1))."""
    same_shape("hinge_loss", Logits=logits, Labels=labels)
    return jax.nn.relu(1 - logits * (2 * labels - 1))


@op("rank_loss", ins=("Label", "Left", "Right"), outs=("Out",), nograd=("Label",), rows="map")
def rank_loss(label: Array, left: Array, right: Array) -> Array:
    """Return the RankNet loss: the cross entropy of sigmoid(left - right), in the shape of the label.

    As in Fluid, [n] and [n, 1] may be mixed.
    """
    if any(v.size != label.size or v.ndim > 2 for v in (label, left, right)):
        same_shape("rank_loss", Label=label, Left=left, Right=right)
    left, right = left.reshape(label.shape), right.reshape(label.shape)
    return jax.nn.softplus(left - right) - label * (left - right)


@op("margin_rank_loss", ins=("X1", "X2", "Label"), outs=("Activated~", "Out"), nograd=("Label",), rows="map")
def margin_rank_loss(x1: Array, x2: Array, label: Array, *, margin: float = 0.0) -> tuple[Array, Array]:
    """Return max(0, margin - label * (x1 - x2)), and the mask of the positive elements."""
    same_shape("margin_rank_loss", X1=x1, X2=x2, Label=label)
    out = jax.nn.relu(margin - label * (x1 - x2))
    return (out > 0).astype(out.dtype), out


@op("bpr_loss", ins=("X", "Label"), outs=("Y",), nograd=("Label",), rows="map")
def bpr_loss(x: Array, label: Array) -> Array:
    """Return the mean over the other classes of -log sigmoid(x[label] - x[other]): Bayesian personalized ranking."""
    label = class_labels(label, x.shape, x.ndim - 1, "bpr_loss")
    losses = jax.nn.softplus(x - take_class(x, label, -1))
    return jnp.where(is_label(label, x.shape, -1), 0, losses).sum(-1, keepdims=True) / (x.shape[-1] - 1)


@op("label_smooth", ins=("X", "PriorDist?"), outs=("Out",), nograd=("PriorDist",), rows="map")
def label_smooth(x: Array, prior: Array | None, *, epsilon: float = 0.0) -> Array:
    """Return (1 - epsilon) * x + epsilon * prior; without a prior the uniform one."""
    return (1 - epsilon) * x + epsilon * (1 / x.shape[-1] if prior is None else prior)


@op("teacher_student_sigmoid_loss", ins=("X", "Label"), outs=("Y",), nograd=("Label",), rows="map")
def teacher_student_sigmoid_loss(
    x: Array, label: Array, *, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Array:
    """Return the click loss plus, for labels from 0 on, the loss against the teacher's score that the label has.

    A label is -2 (no click), -1 (click), the score (no click) or 1 + the score (click). No gradient
    flows where x is at or beyond the bounds.
    """
    same_shape("teacher_student_sigmoid_loss", X=x, Label=label)
    inside = (x > soft_max_lower_bound) & (x < soft_max_up_bound)
    x = jnp.where(inside, x, jax.lax.stop_gradient(x))
    click = ((label >= -1) & (label < 0)) | (label >= 1)
    score = jnp.where(label >= 1, label - 1, label)
    loss = jax.nn.softplus(x)
    return loss - jnp.where(click, x, 0) + jnp.where(label >= 0, loss - x * score, 0)


@op(
    "sigmoid_focal_loss",
    ins=("X", "Label", "FgNum"),
    outs=("Out",),
    nograd=("Label", "FgNum"),
    rows=row_rules.unless("FgNum"),
)
def sigmoid_focal_loss(x: Array, label: Array, foreground: Array, *, gamma: float = 2.0, alpha: float = 0.25) -> Array:
    """Return the focal loss of x [N, C] with labels [N, 1].

    Label 0 is the background, label c the class of column c - 1; -1 is ignored.
    """
    if label.shape != (x.shape[0], 1):
        raise errors.ShapeError(
            f"sigmoid_focal_loss: expected labels of shape [{x.shape[0]}, 1], found {list(label.shape)}"
        )
    hit = label == jnp.arange(1, x.shape[1] + 1, dtype=label.dtype)
    count = jnp.maximum(foreground.ravel()[0], 1).astype(x.dtype)
    log_p, log_q = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
    positive = -alpha * jnp.exp(gamma * log_q) * log_p
    negative = -(1 - alpha) * jnp.exp(gamma * log_p) * log_q
    return jnp.where(hit, positive, jnp.where(label != -1, negative, 0)) / count


@op(
    "center_loss",
    ins=("X", "Label", "Centers", "CenterUpdateRate"),
    outs=("CentersOut", "SampleCenterDiff", "Loss"),
    nograd=("Label", "Centers", "CenterUpdateRate"),
    inplace={"CentersOut": "Centers"},
    rows="mask",
    row_outs=("SampleCenterDiff", "Loss"),
)
def center_loss(
    x: Array,
    label: Array,
    centers: Array,
    rate: Array,
    *,
    cluster_num: Int,
    need_update: Bool,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Return half the squared distance of each row to the centre of the row's class, and the updated centres."""
    if label.size != x.shape[0] or centers.shape != (cluster_num, x.shape[1]):
        raise errors.ShapeError(
            f"center_loss: expected {x.shape[0]} labels and centers of shape "
            f"{[cluster_num, x.shape[1]]}, found {label.size} and {list(centers.shape)}"
        )
    label = label.reshape(-1)
    index = jnp.where((label >= 0) & (label < cluster_num), label, cluster_num).astype(jnp.int32)
    diff = x - jax.lax.stop_gradient(jnp.take(centers, index, axis=0, mode="fill"))
    moved = centers
    index = index if rows is None else rows.zero(index, cluster_num)
    if need_update:
        total = jnp.zeros_like(centers).at[index].add(jax.lax.stop_gradient(diff), mode="drop")
        count = jnp.ones((cluster_num, 1), centers.dtype).at[index].add(1, mode="drop")
        moved = centers + rate.reshape(()) * total / count
    return moved, diff, 0.5 * (diff * diff).sum(1, keepdims=True)
