"""Metrics computed inside a program, without gradients."""

from functools import partial

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Int, op


@op("accuracy", ins=("Out", "Indices", "Label"), outs=("Accuracy", "Correct", "Total"), grad=False, rows="mask")
def accuracy(out: Array, indices: Array, label: Array, *, rows: RowMask | None = None) -> tuple[Array, Array, Array]:
    """Return the fraction of rows that have the label among the row's indices."""
    if label.shape != (indices.shape[0], 1):
        raise errors.ShapeError(
            f"accuracy: expected labels of shape [{indices.shape[0]}, 1], found {list(label.shape)}"
        )
    hit = (indices == label).any(1)
    correct = (hit if rows is None else hit & rows.mask).sum(dtype=jnp.int32)
    total = jnp.asarray(label.shape[0] if rows is None else rows.count, jnp.int32)
    return (correct / total).astype(jnp.float32).reshape(1), correct.reshape(1), total.reshape(1)


def _auc_area(positive: Array, negative: Array) -> Array:
    """Return the area under the ROC curve of two histograms over thresholds, by the trapezoid rule."""
    positive, negative = positive[::-1].astype(jnp.float64), negative[::-1].astype(jnp.float64)
    true = jnp.cumsum(positive)
    area = (negative * (true - positive / 2)).sum()
    total = positive.sum() * negative.sum()
    return jnp.where(total > 0, area / jnp.where(total > 0, total, 1), 0)


def _slide(state: Array, batch: Array, slide_steps: int) -> tuple[Array, Array]:
    """Push a batch's histogram into `slide_steps` stored ones: [steps histograms | their sum | count of batches]."""
    buckets = batch.size
    history, total, count = state[: -1 - buckets], state[-1 - buckets : -1], state[-1]
    history = history.reshape(slide_steps, buckets)
    slot = count % slide_steps
    total = total - history[slot] + batch
    return jnp.concatenate([history.at[slot].set(batch).reshape(-1), total, (count + 1).reshape(1)]), total


def _accumulate(state: Array, batch: Array) -> tuple[Array, Array]:
    """Add a batch's histogram to the total histogram."""
    state = state.at[: batch.size].add(batch)
    return state, state[: batch.size]


@op(
    "auc",
    ins=("Predict", "Label", "StatPos", "StatNeg"),
    outs=("AUC", "StatPosOut", "StatNegOut"),
    grad=False,
    inplace={"StatPosOut": "StatPos", "StatNegOut": "StatNeg"},
    rows="mask",
    declared_wrong=("StatPos", "StatNeg"),
)
def auc(
    predict: Array,
    label: Array,
    stat_pos: Array,
    stat_neg: Array,
    *,
    curve: str = "ROC",
    num_thresholds: int = 8191,
    slide_steps: int = 1,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Return the area under the ROC curve of the last `slide_steps` batches; 0 means all batches.

    As in Fluid, `curve="PR"` gives the ROC curve too. The score is the last column of `predict`. A score
    outside [0, 1] makes the area NaN.
    """
    buckets = num_thresholds + 1
    length = (slide_steps + 1) * buckets + 1 if slide_steps else buckets
    # Fluid's layer gives a total without sliding one element more than it uses.
    if stat_pos.shape != stat_neg.shape or stat_pos.size not in (length, length + (slide_steps == 0)):
        raise errors.ShapeError(
            f"auc: expected {length} elements in StatPos and StatNeg for {num_thresholds} "
            f"thresholds and {slide_steps} slide steps, found shapes {list(stat_pos.shape)} "
            f"and {list(stat_neg.shape)}"
        )
    score, label = predict[:, -1], label.reshape(-1)
    counted = jnp.ones(score.shape, bool) if rows is None else rows.mask
    wrong = jnp.any(counted & ~((score >= 0) & (score <= 1)))
    bucket = jnp.clip(score * num_thresholds, 0, num_thresholds).astype(jnp.int32)
    hits = (
        jnp.zeros((2, buckets), stat_pos.dtype)
        .at[(label != 0).astype(jnp.int32), bucket]
        .add(counted.astype(stat_pos.dtype))
    )
    push = partial(_slide, slide_steps=slide_steps) if slide_steps else _accumulate
    pos_out, positive = push(jnp.ravel(stat_pos), hits[1])
    neg_out, negative = push(jnp.ravel(stat_neg), hits[0])
    area = jnp.where(wrong, jnp.nan, _auc_area(positive, negative))
    return area.reshape(1), pos_out.reshape(stat_pos.shape), neg_out.reshape(stat_neg.shape)


def _share(part: Array, rest: Array) -> Array:
    """Return part / (part + rest), and 1 if both are 0."""
    total = part + rest
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1), 1.0)


def _precision_recall_f1(states: Array) -> Array:
    """Return macro, then micro averages of precision, recall and F1, from [class, (TP, FP, TN, FN)]."""

    def with_f1(precision: Array, recall: Array) -> tuple[Array, Array, Array]:
        both = precision + recall
        return (precision, recall, jnp.where(both > 0, 2 * precision * recall / jnp.where(both > 0, both, 1), 0))

    true, false, _, missed = states.T
    macro = with_f1(_share(true, false).mean(), _share(true, missed).mean())
    micro = with_f1(_share(true.sum(), false.sum()), _share(true.sum(), missed.sum()))
    return jnp.stack(macro + micro)


@op(
    "precision_recall",
    ins=("MaxProbs", "Indices", "Labels", "Weights?", "StatesInfo?"),
    outs=("BatchMetrics", "AccumMetrics", "AccumStatesInfo"),
    grad=False,
    rows="mask",
)
def precision_recall(
    max_probs: Array,
    indices: Array,
    labels: Array,
    weights: Array | None,
    states: Array | None,
    *,
    class_number: Int,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Return macro and micro precision, recall and F1 of the batch and of all batches so far."""
    classes = jnp.arange(class_number)
    found, wanted = indices.reshape(-1, 1) == classes, labels.reshape(-1, 1) == classes
    weight = jnp.ones((found.shape[0],), jnp.float64) if weights is None else weights.reshape(-1).astype(jnp.float64)
    weight = weight if rows is None else rows.zero(weight)
    cells = (found & wanted, found & ~wanted, ~found & ~wanted, ~found & wanted)
    batch = jnp.stack([jnp.where(cell, weight[:, None], 0).sum(0) for cell in cells], 1)
    total = batch if states is None else batch + states
    return _precision_recall_f1(batch), _precision_recall_f1(total), total.astype(max_probs.dtype)


@op(
    "mean_iou",
    ins=("Predictions", "Labels", "InWrongs*?", "InCorrects*?", "InMeanIou*?"),
    outs=("OutMeanIou", "OutWrong", "OutCorrect"),
    grad=False,
    rows="mask",
)
def mean_iou(
    predictions: Array,
    labels: Array,
    in_wrongs: list[Array] | None,
    in_corrects: list[Array] | None,
    in_means: list[Array] | None,
    *,
    num_classes: Int,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Return the mean over the classes that occur of correct / (correct + wrong), plus the means given."""
    if rows is not None:  # a negative class is not counted
        predictions, labels = rows.zero(predictions, -1), rows.zero(labels, -1)
    predicted, label = (predictions.reshape(-1).astype(jnp.int32), labels.reshape(-1).astype(jnp.int32))
    hit = predicted == label

    def count(ids: Array, mask: Array) -> Array:
        counted = jnp.where(mask & (ids >= 0), ids, num_classes)
        return jnp.zeros((num_classes,), jnp.int32).at[counted].add(1, mode="drop")

    correct = sum(in_corrects or [], count(label, hit))
    wrong = sum(in_wrongs or [], count(label, ~hit) + count(predicted, ~hit))
    union = (correct + wrong).astype(jnp.float32)
    share = jnp.where(union > 0, correct / jnp.maximum(union, 1), 0).sum() / jnp.maximum((union > 0).sum(), 1)
    return sum(in_means or [], share.astype(jnp.float32).reshape(1)), wrong, correct


@op(
    "positive_negative_pair",
    ins=(
        "Score",
        "Label",
        "QueryID",
        "AccumulatePositivePair?",
        "AccumulateNegativePair?",
        "AccumulateNeutralPair?",
        "Weight?",
    ),
    outs=("PositivePair", "NegativePair", "NeutralPair?"),
    grad=False,
    rows="mask",
)
def positive_negative_pair(
    score: Array,
    label: Array,
    query: Array,
    positive: Array | None,
    negative: Array | None,
    neutral: Array | None,
    weight: Array | None,
    *,
    column: int = 0,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array]:
    """Count concordant, discordant and tied pairs of rows with different labels within each query.

    A pair counts with the mean of its rows' weights. As in Fluid, a pair of equal scores is also discordant.
    `column` selects the score of a row; -1 is the last column.
    """
    width = score.shape[1]
    if not -width <= column < width:
        raise errors.AttributeTypeError(f"positive_negative_pair: Score has {width} columns, found column {column}")
    score, label, query = score[:, column], label.reshape(-1), query.reshape(-1)
    weight = jnp.ones_like(score) if weight is None else weight.reshape(-1)
    if rows is not None:
        weight = rows.zero(weight)
    place = jnp.arange(score.shape[0], dtype=jnp.int32)
    counts = (query[:, None] == query) & (label[:, None] != label) & (place[:, None] < place)
    if rows is not None:
        counts &= rows.mask[:, None] & rows.mask
    pairs = jnp.where(counts, (weight[:, None] + weight) / 2, 0)
    by_score, by_label = score[:, None] - score, label[:, None] - label
    ordered = by_score * by_label > 0

    def total(which: Array, before: Array | None) -> Array:
        found = jnp.sum(jnp.where(which, pairs, 0)).reshape(1)
        return found if before is None else found + before.reshape(1)

    return total(ordered, positive), total(~ordered, negative), total(by_score == 0, neutral)
