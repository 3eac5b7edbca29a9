"""Proposals of a region proposal network: the best regressed anchors (Ren et al., Faster R-CNN, 2015)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops.detection.pixel_boxes import areas, rows_of_images
from jfluid.ops.ragged import Value, rows_of
from jfluid.ops.registry import Float, Int, op

# The network may make a box at most 1000 / 16 times as large as its anchor.
_LARGEST_LOGARITHM = math.log(1000 / 16)
# the place of the next box to keep, how many are kept, largest overlaps, threshold, kept places
_State = tuple[Array, Array, Array, Array, Array]


@op(
    "generate_proposals",
    ins=("Scores", "BboxDeltas", "ImInfo", "Anchors", "Variances"),
    outs=("RpnRois", "RpnRoiProbs", "RpnRoisLod?"),
    grad=False,
    rows="sequence",
)
def generate_proposals(
    scores: Value,
    deltas: Value,
    im_info: Value,
    anchors: Value,
    variances: Value,
    *,
    pre_nms_topN: Int,
    post_nms_topN: Int,
    nms_thresh: Float,
    min_size: Float,
    eta: Float,
) -> tuple[Value, ...]:
    """Return the proposals of each image after suppression, best first, their scores, and row offsets."""
    scores, deltas, im_info = rows_of(scores), rows_of(deltas), rows_of(im_info)
    anchors, variances = (rows_of(x).reshape(-1, 4) for x in (anchors, variances))
    _check(scores, deltas, im_info, anchors, variances)
    images, _, height, width = scores.shape
    scores = scores.transpose(0, 2, 3, 1).reshape(images, -1)
    deltas = deltas.reshape(images, -1, 4, height, width).transpose(0, 3, 4, 1, 2)
    candidates = scores.shape[1]
    considered = min(pre_nms_topN, candidates) if pre_nms_topN > 0 else candidates
    kept = min(post_nms_topN, considered) if post_nms_topN > 0 else considered
    one = functools.partial(
        _of_image,
        anchors=anchors,
        variances=variances,
        considered=considered,
        kept=kept if nms_thresh > 0 else considered,
        threshold=nms_thresh,
        smallest=max(min_size, 1.0),
        eta=eta,
    )
    boxes, chances, counts = jax.vmap(one)(scores, deltas.reshape(images, -1, 4), im_info)
    ends = jnp.cumsum(counts, dtype=jnp.int64)
    return *rows_of_images(counts, boxes, chances[..., None]), ends


def _check(scores: Any, deltas: Any, im_info: Any, anchors: Any, variances: Any) -> None:
    if scores.ndim != 4 or deltas.shape != (scores.shape[0], 4 * scores.shape[1], *scores.shape[2:]):
        raise errors.ShapeError(
            "generate_proposals: expected Scores [N, A, H, W] and BboxDeltas [N, 4 * A, H, W], found "
            f"{list(scores.shape)} and {list(deltas.shape)}"
        )
    number = scores[0].size
    if anchors.shape[0] != number or variances.shape[0] != number:
        raise errors.ShapeError(
            f"generate_proposals: expected Anchors and Variances [H, W, A, 4] of {number} boxes, "
            f"one for each score of an image, found {anchors.shape[0]} and {variances.shape[0]}"
        )
    if im_info.shape != (scores.shape[0], 3):
        raise errors.ShapeError(
            f"generate_proposals: expected ImInfo [{scores.shape[0]}, 3] (height, width, scale), found "
            f"{list(im_info.shape)}"
        )


def _of_image(
    scores: Array,
    deltas: Array,
    im_info: Array,
    *,
    anchors: Array,
    variances: Array,
    considered: int,
    kept: int,
    threshold: float,
    smallest: float,
    eta: float,
) -> tuple[Array, Array, Array]:
    """Return an image's boxes [kept, 4], their scores [kept], and their count."""
    # Of equal scores Fluid's suppression takes the later one first.
    later_first = threshold > 0
    ranked = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    best, places = lax.top_k(ranked[::-1] if later_first else ranked, considered)
    places = scores.shape[0] - 1 - places if later_first else places
    boxes = _moved(anchors[places], deltas[places], variances[places])
    size = im_info[1::-1].astype(boxes.dtype)
    boxes = jnp.clip(boxes, 0, jnp.tile(size - 1, 2))
    usable = _large_enough(boxes, size, im_info[2], smallest) & (best > -jnp.inf)
    boxes = jnp.where(usable[:, None], boxes, 0)
    if later_first:
        picked, count = suppressed(boxes, usable, threshold, eta, kept)
    else:
        picked, count = jnp.argsort(~usable, stable=True), jnp.sum(usable, dtype=jnp.int32)
    return boxes[picked], jnp.where(usable, best, 0)[picked], count


def _moved(anchors: Array, deltas: Array, variances: Array) -> Array:
    """Move and scale anchors by the network's deltas: boxes [n, 4]."""
    sides = anchors[:, 2:] - anchors[:, :2] + 1
    steps = variances * deltas
    centres = anchors[:, :2] + 0.5 * sides + steps[:, :2] * sides
    sides = jnp.exp(jnp.minimum(steps[:, 2:], _LARGEST_LOGARITHM)) * sides
    return jnp.concatenate([centres - sides / 2, centres + sides / 2 - 1], -1)


def _large_enough(boxes: Array, size: Array, scale: Array, smallest: float) -> Array:
    """Return a mask [n] of boxes with sides of at least `smallest` unscaled pixels and a centre in the image."""
    sides = boxes[:, 2:] - boxes[:, :2]
    inside = boxes[:, :2] + (sides + 1) / 2 <= size
    return jnp.all((sides / scale + 1 >= smallest) & inside, -1)


def suppressed(boxes: Array, usable: Array, threshold: float, eta: float, most: int) -> tuple[Array, Array]:
    """Apply greedy suppression to boxes [n, 4] in order; return indices, int32 [most], and their count.

    A box is kept if it overlaps no kept box by more than the threshold. A threshold above 0.5 shrinks by the
    factor `eta` with each kept box.
    """
    number, sizes = boxes.shape[0], areas(boxes)
    order = jnp.arange(number, dtype=jnp.int32)

    def next_one(worst: Array, limit: Array, after: Array) -> Array:
        left = usable & (worst <= limit) & (order > after)
        return jnp.min(jnp.where(left, order, number))

    def more(state: _State) -> Array:
        return (state[0] < number) & (state[1] < most)

    def keep(state: _State) -> _State:
        current, count, worst, limit, picked = state
        box = boxes[current]
        gap = jnp.minimum(box[2:], boxes[:, 2:]) - jnp.maximum(box[:2], boxes[:, :2])
        common = jnp.where(jnp.all(gap >= 0, -1), jnp.prod(gap + 1, -1), 0)
        worst = jnp.maximum(worst, common / (sizes + sizes[current] - common))
        picked = picked.at[count].set(current)
        if eta < 1:
            limit = jnp.where(limit > 0.5, limit * eta, limit)
        return next_one(worst, limit, current), count + 1, worst, limit, picked

    worst = jnp.zeros(number, boxes.dtype)
    limit = jnp.asarray(threshold, boxes.dtype)
    none = jnp.zeros((), jnp.int32)
    start = (next_one(worst, limit, none - 1), none, worst, limit, jnp.zeros(most, jnp.int32))
    _, count, _, _, picked = lax.while_loop(more, keep, start)
    return picked, count
