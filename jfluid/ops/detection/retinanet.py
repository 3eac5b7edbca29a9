"""RetinaNet's box decoding and suppression."""

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.detection.suppress import best, greedy, in_sequences
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.registry import Float, Int, op


@op(
    "retinanet_detection_output",
    ins=("BBoxes*", "Scores*", "Anchors*", "ImInfo"),
    outs=("Out",),
    grad=False,
    rows="sequence",
)
def retinanet_detection_output(
    deltas: list[Array],
    scores: list[Array],
    anchors: list[Array],
    image_info: Value,
    *,
    score_threshold: Float,
    nms_top_k: Int,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
    keep_top_k: Int,
) -> Ragged:
    """Return the detected objects of each image: rows [rows, 6], the best first (Lin et al., 2017).

    A row is (class from 1 on, score, box in pixels of the original image).

    `nms_top_k` candidates of each level are decoded; on the last level, of any score above 0.
    """
    image_info = rows_of(image_info)[: scores[0].shape[0]]  # with a lod perhaps, as Fluid's tests
    _check(deltas, scores, anchors, image_info)
    found = []
    for level, parts in enumerate(zip(deltas, scores, anchors)):
        least = score_threshold if level < len(scores) - 1 else 0.0
        found.append(_candidates(*parts, image_info, least, nms_top_k))
    score, kind, box = (jnp.concatenate(v, axis=1) for v in zip(*found))
    classes = scores[0].shape[2]
    score, order, candidate = best(score, -jnp.inf, -1)
    kind = jnp.take_along_axis(kind, order, 1)
    box = jnp.take_along_axis(box, order[..., None], 1)
    kept = greedy(jnp.moveaxis(box, 2, 0), candidate, nms_threshold, nms_eta, False, kind, classes)
    score, place, real = best(jnp.where(kept, score, jnp.nan), -jnp.inf, keep_top_k)
    columns = (
        (jnp.take_along_axis(kind, place, 1) + 1).astype(box.dtype)[..., None],
        score[..., None],
        jnp.take_along_axis(box, place[..., None], 1),
    )
    return in_sequences(jnp.concatenate(columns, -1), real)


def _check(deltas: list[Array], scores: list[Array], anchors: list[Array], image_info: Array) -> None:
    """Raise ShapeError if the levels do not match each other."""
    if not len(deltas) == len(scores) == len(anchors):
        raise errors.ShapeError(
            "retinanet_detection_output: expected the same number of BBoxes, Scores and Anchors, found "
            f"{len(deltas)}, {len(scores)} and {len(anchors)}"
        )
    images, classes = scores[0].shape[0], scores[0].shape[-1]
    for delta, score, anchor in zip(deltas, scores, anchors):
        number = anchor.shape[0]
        want = [images, number, 4], [images, number, classes], [number, 4]
        shapes = [list(v.shape) for v in (delta, score, anchor)]
        if shapes != list(want):
            raise errors.ShapeError(
                f"retinanet_detection_output: expected BBoxes, Scores and Anchors {list(want)}, found {shapes}"
            )
    if image_info.shape != (images, 3):
        raise errors.ShapeError(
            f"retinanet_detection_output: expected ImInfo [{images}, 3] (height, width, scale), "
            f"found {list(image_info.shape)}"
        )


def _candidates(
    delta: Array, scores: Array, anchors: Array, image_info: Array, least: float, most: int
) -> tuple[Array, Array, Array]:
    """Return the best candidates of one level: scores (NaN for none), classes and boxes.

    Scores and classes are [images, most], boxes [images, most, 4].
    """
    images, _, classes = scores.shape
    score, order, candidate = best(scores.reshape(images, -1), least, most)
    number = order // classes
    anchor = anchors[number]
    moved = jnp.take_along_axis(delta, number[..., None], 1)
    size = anchor[..., 2:] - anchor[..., :2] + 1
    centre = anchor[..., :2] + size / 2 + moved[..., :2] * size
    half = jnp.exp(moved[..., 2:]) * size / 2
    height, width, scale = (image_info[:, i, None, None] for i in range(3))
    corners = jnp.concatenate([centre - half, centre + half - 1], -1) / scale
    limits = jnp.round(jnp.concatenate([width, height, width, height], -1) / scale) - 1
    box = jnp.maximum(jnp.minimum(corners, limits), 0)
    return jnp.where(candidate, score, jnp.nan), order % classes, box
