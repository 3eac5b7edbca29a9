"""Non-maximum suppression: of boxes that overlap only the best are kept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.detection.overlap import check_boxes, overlap
from jfluid.ops.detection.suppress import best, chosen, decays, greedy, in_sequences, nothing
from jfluid.ops.ragged import Ragged, Value, need, rows_of
from jfluid.ops.registry import Float, Int, op

# Usually few boxes of a class pass the threshold: up to this number they are sorted separately.
_FEW = 256


class _Limits(NamedTuple):
    """Attributes of multiclass suppression."""

    background_label: int
    score_threshold: float
    nms_top_k: int
    nms_threshold: float
    nms_eta: float
    keep_top_k: int
    normalized: bool


def _check_dense(op_type: str, boxes: Array, scores: Array) -> None:
    check_boxes(op_type, boxes)
    if boxes.ndim != 3 or scores.ndim != 3 or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise errors.ShapeError(
            f"{op_type}: expected BBoxes [images, boxes, size] and Scores [images, classes, boxes], "
            f"found {list(boxes.shape)} and {list(scores.shape)}"
        )


def _by_class(op_type: str, boxes: Value, scores: Value) -> tuple[Array, Array, Array]:
    """Return boxes by class, scores by class, and the first row of each image; raise ShapeError.

    Boxes are [images, 1 or classes, boxes, size], scores [images, classes, boxes].
    """
    if scores.ndim != 2:
        boxes, scores = rows_of(boxes), rows_of(scores)
        _check_dense(op_type, boxes, scores)
        starts = jnp.arange(boxes.shape[0], dtype=jnp.int32) * boxes.shape[1]
        return boxes[:, None], scores, starts
    check_boxes(op_type, rows_of(boxes))
    if boxes.ndim != 3 or boxes.shape[:2] != scores.shape:
        raise errors.ShapeError(
            f"{op_type}: expected BBoxes [boxes, classes, size] for Scores [boxes, classes], "
            f"found {list(boxes.shape)} and {list(scores.shape)}"
        )
    given = need(scores, op_type, "Scores")
    found = given.like(rows_of(boxes)).pad().transpose(0, 2, 1, 3)
    by_class = jnp.where(given.last.mask()[..., None], given.pad(), jnp.nan).swapaxes(1, 2)
    return found, by_class, given.last.starts


def _multiclass(op_type: str, boxes: Value, scores: Value, at: _Limits) -> tuple[Ragged, Ragged]:
    """Return the rows (class, score, box) of each image that are kept, and the numbers of their boxes."""
    by_row = scores.ndim == 2
    found, by_class, starts = _by_class(op_type, boxes, scores)
    classes = by_class.shape[1]
    background = _background(at.background_label, classes)
    if background is not None and classes == 1:
        by_class = jnp.full_like(by_class, jnp.nan)
    elif background is not None:
        found = jnp.delete(found, background, axis=1) if by_row else found
        by_class = jnp.delete(by_class, background, axis=1)

    def detect(most: int) -> tuple[Array, Array, Array]:
        row, score, number, box, real = _kept(found, by_class, at._replace(nms_top_k=most), by_row)
        label = _label(row.astype(jnp.int32), background, classes)
        number = starts[:, None] + number
        if by_row:
            number = number * classes + label
        columns = label.astype(box.dtype)[..., None], score[..., None], box
        return jnp.concatenate(columns, -1), number[..., None], real

    most = by_class.shape[2] if at.nms_top_k < 0 else min(at.nms_top_k, by_class.shape[2])
    if 2 * _FEW < most and 0 <= at.keep_top_k <= _FEW * by_class.shape[1]:
        number = (by_class > at.score_threshold).sum(axis=2).max()
        entries, numbers, real = jax.lax.cond(number <= _FEW, lambda: detect(_FEW), lambda: detect(most))
    else:
        entries, numbers, real = detect(most)
    return in_sequences(entries, real), in_sequences(numbers, real)


def _background(label: int, classes: int) -> int | None:
    """Return the class of the background, or None where no class has that number."""
    return label if 0 <= label < classes else None


def _label(row: Array, background: int | None, classes: int) -> Array:
    """Return the class of a row of scores without the background's row."""
    return row if background is None or classes == 1 else row + (row >= background)


def _kept(found: Array, scores: Array, at: _Limits, by_row: bool) -> tuple[Array, Array, Array, Array, Array]:
    """Return the kept boxes of each image: row of `scores`, score, number, box, and mask; [images, most] each.

    Args:
        found: [images, 1 or classes, boxes, size].
        scores: [images, classes, boxes].
        at: thresholds and limits.
        by_row: True to order the boxes of a class by number, False to order them by score.
    """
    images, classes, _ = scores.shape
    values, order, candidate = best(scores, at.score_threshold, at.nms_top_k)
    most, size = order.shape[2], found.shape[3]
    ranked = jnp.take_along_axis(found, order[..., None], axis=2)
    kept = greedy(
        jnp.moveaxis(ranked.reshape(images * classes, most, size), 2, 0),
        candidate.reshape(images * classes, most),
        at.nms_threshold,
        at.nms_eta,
        at.normalized,
    ).reshape(order.shape)
    if by_row:
        place = jnp.argsort(order, axis=2)
        kept, values, order = (jnp.take_along_axis(v, place, 2) for v in (kept, values, order))
        ranked = jnp.take_along_axis(ranked, place[..., None], 2)
    flat = values.reshape(images, -1)
    place, real = chosen(kept.reshape(images, -1), flat, at.keep_top_k)
    box = jnp.take_along_axis(ranked.reshape(images, -1, size), place[..., None], 1)
    number = jnp.take_along_axis(order.reshape(images, -1), place, 1)
    return place // most, jnp.take_along_axis(flat, place, 1), number, box, real


def _register_multiclass(op_type: str, outs: tuple[str, ...]) -> None:
    """Register non-maximum suppression by class: rows [rows, 2 + size] (class, score, box) by image and class.

    With a second output, it is the index of each box in the batch, and there may be no rows. Without it, the result
    is a single -1 if no image has a box.
    """

    def multiclass_nms(
        boxes: Value,
        scores: Value,
        *,
        background_label: int = 0,
        score_threshold: Float,
        nms_top_k: Int,
        nms_threshold: float = 0.3,
        nms_eta: float = 1.0,
        keep_top_k: Int,
        normalized: bool = True,
    ) -> Ragged | tuple[Ragged, Ragged]:
        at = _Limits(background_label, score_threshold, nms_top_k, nms_threshold, nms_eta, keep_top_k, normalized)
        found = _multiclass(op_type, boxes, scores, at)
        return nothing(found[0]) if len(outs) == 1 else found

    op(op_type, ins=("BBoxes", "Scores"), outs=outs, grad=False, rows="sequence")(multiclass_nms)


_register_multiclass("multiclass_nms", ("Out",))
_register_multiclass("multiclass_nms2", ("Out", "Index~"))


@op("matrix_nms", ins=("BBoxes", "Scores"), outs=("Out", "Index"), grad=False, rows="sequence")
def matrix_nms(
    boxes: Value,
    scores: Value,
    *,
    background_label: int = 0,
    score_threshold: Float,
    post_threshold: float = 0.0,
    nms_top_k: Int,
    keep_top_k: Int,
    normalized: bool = True,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
) -> tuple[Ragged, Ragged]:
    """Apply matrix NMS: scores decay with the overlap of better boxes of the class.

    Returns rows [rows, 6] (class, score, box), the best first, and their indices in the batch.
    """
    boxes, scores = rows_of(boxes), rows_of(scores)
    _check_dense("matrix_nms", boxes, scores)
    images, classes, number = scores.shape
    foreground = jnp.arange(classes)[:, None] != background_label
    values, order, candidate = best(jnp.where(foreground, scores, jnp.nan), score_threshold, nms_top_k)
    most, size = order.shape[2], boxes.shape[2]
    ranked = jnp.take_along_axis(boxes[:, None], order[..., None], axis=2)
    decay = decays(
        jnp.moveaxis(ranked.reshape(images * classes, most, size), 2, 0),
        candidate.reshape(images * classes, most),
        gaussian_sigma if use_gaussian else None,
        normalized,
    ).reshape(order.shape)
    values = values * decay
    values = jnp.where(candidate & (values > post_threshold), values, jnp.nan).reshape(images, -1)
    score, place, real = best(values, -jnp.inf, keep_top_k)
    columns = (
        (place // most).astype(boxes.dtype)[..., None],
        score[..., None],
        jnp.take_along_axis(ranked.reshape(images, -1, size), place[..., None], 1),
    )
    index = jnp.take_along_axis(order.reshape(images, -1), place, 1)
    index += jnp.arange(images, dtype=jnp.int32)[:, None] * number
    return in_sequences(jnp.concatenate(columns, -1), real), in_sequences(index[..., None], real)


@op("locality_aware_nms", ins=("BBoxes", "Scores"), outs=("Out",), grad=False, rows="sequence")
def locality_aware_nms(
    boxes: Value,
    scores: Value,
    *,
    background_label: int = -1,
    score_threshold: Float,
    nms_top_k: Int,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
    keep_top_k: Int,
    normalized: bool = True,
) -> Ragged:
    """Merge overlapping neighbours, weighted by their scores, and apply `multiclass_nms`.

    Scores of merged boxes are summed (Zhou et al., EAST, 2017). As in Fluid, a class starts from the boxes
    merged by earlier classes, and the returned boxes are the boxes merged by the last class.
    """
    boxes, scores = rows_of(boxes), rows_of(scores)
    _check_dense("locality_aware_nms", boxes, scores)
    images, classes, _ = scores.shape
    background = _background(background_label, classes)
    least = score_threshold
    if background is not None and classes == 1:
        least = jnp.inf
    elif background is not None:
        scores = jnp.delete(scores, background, axis=1)

    def one_class(at: Array, own: Array) -> tuple[Array, tuple[Array, ...]]:
        at, merged = _merge_neighbours(at, own, nms_threshold, normalized)
        values, order, candidate = best(merged, least, nms_top_k)
        ranked = jnp.take_along_axis(at, order[None], axis=2)
        return at, (values, order, greedy(ranked, candidate, nms_threshold, nms_eta, normalized))

    moved = jnp.moveaxis(boxes, 2, 0)
    found, (values, order, kept) = jax.lax.scan(one_class, moved, scores.swapaxes(0, 1))
    most = order.shape[2]
    values, order, kept = (v.swapaxes(0, 1).reshape(images, -1) for v in (values, order, kept))
    place, real = chosen(kept, values, keep_top_k)
    number = jnp.take_along_axis(order, place, 1)
    columns = (
        _label(place // most, background, classes).astype(boxes.dtype)[None],
        jnp.take_along_axis(values, place, 1)[None],
        jnp.take_along_axis(found, number[None], 2),
    )
    return nothing(in_sequences(jnp.moveaxis(jnp.concatenate(columns), 0, 2), real))


def _merge_neighbours(boxes: Array, scores: Array, threshold: float, normalized: bool) -> tuple[Array, Array]:
    """Merge runs of overlapping neighbours: the first box of a run gets the mean box and the summed score.

    Boxes are [size, images, boxes], scores [images, boxes]; all further boxes of a run get the score NaN.
    """

    def step(state: tuple[Array, Array], own: tuple[Array, Array]) -> tuple[Any, Any]:
        box, score = state
        new_box, new_score = own
        joins = overlap(new_box, box, normalized) > threshold
        total = jnp.where(joins, score + new_score, new_score)
        box = jnp.where(joins, (new_box * new_score + box * score) / (new_score + score), new_box)
        return (box, total), (box, total, ~joins)

    by_box = jnp.moveaxis(boxes, 2, 0), scores.T
    start = jnp.full_like(boxes[..., 0], jnp.nan), jnp.zeros_like(scores[:, 0])
    _, (box, total, first) = jax.lax.scan(step, start, by_box)
    number = first.shape[0]
    place = jnp.where(first, jnp.arange(number, dtype=jnp.int32)[:, None], number)
    after = jax.lax.cummin(jnp.concatenate([place[1:], jnp.full_like(place[:1], number)]), 0, True)
    last = after - 1  # of the neighbours that a first one begins
    box = jnp.take_along_axis(box, last[:, None], 0)
    total = jnp.take_along_axis(total, last, 0)
    merged = jnp.moveaxis(jnp.where(first[:, None], box, by_box[0]), 0, 2)
    return merged, jnp.where(first, total, jnp.nan).T
