"""Sampling of anchors and proposals for detectors, and their training targets.

Sources: Ren et al., Faster R-CNN, 2015; Lin et al., Focal Loss for Dense Object Detection, 2017.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops.detection.pixel_boxes import (
    check_boxes,
    check_images,
    deltas,
    first_true,
    info_of_images,
    joined,
    overlaps,
    per_image,
    per_object,
    rows_of_images,
    sampled,
)
from jfluid.ops.ragged import Value, rows_of
from jfluid.ops.registry import Bool, Float, Floats, Int, op

_ALIKE = 1e-5  # overlaps that differ by less count as equal


def share(number: int, fraction: float) -> int:
    """Return a part of a number, rounded down from float32, as Fluid does."""
    return int(np.float32(number) * np.float32(fraction))


def _objects(op_type: str, gt_boxes: Value, is_crowd: Value, im_info: Value) -> tuple[Array, Array, Array]:
    """Return each image's objects in scaled pixels [images, most, 4], the mask of non-crowd objects, and ImInfo."""
    boxes, real = per_image(gt_boxes, op_type, "GtBoxes")
    im_info = info_of_images(im_info, len(boxes))
    check_images(op_type, GtBoxes=len(boxes), ImInfo=len(im_info))
    single = real & (per_object(is_crowd, op_type, "IsCrowd", real) == 0)
    return boxes * im_info[:, 2, None, None].astype(boxes.dtype), single, im_info


def _shared(anchors: Array, inside: Array, boxes: Array, real: Array) -> tuple[Array, Array]:
    """Return the overlaps of objects and anchors [most, n], and the mask of each object's best anchors.

    An overlap is -1 if the object or the anchor is ignored.
    """
    shared = jnp.where(real[:, None] & inside, overlaps(boxes, anchors), -1)
    best = jnp.where(real, jnp.max(shared, 1), 2)[:, None]
    return shared, jnp.any(jnp.abs(shared - best) < _ALIKE, 0) & inside


def _assigned(
    objects: Array,
    real: Array,
    inside: Array,
    key: Array | None,
    *,
    anchors: Array,
    positive: float,
    negative: float,
    batch: int,
    foreground: int,
) -> dict[str, Array]:
    """Return the training targets of one image's anchors, in rows of fixed number.

    `located` is the number of valid rows of places and box targets, `scored` of labels. `batch` anchors are
    drawn, at most `foreground` of them for objects; 0 takes all. An anchor that is drawn for an object and for
    the background counts as background. Its box row stays, with weight 0, in front.
    """
    number = anchors.shape[0]
    shared, closest = _shared(anchors, inside, objects, real)
    overlap = jnp.max(shared, 0)
    candidates = inside & (closest | (overlap >= positive))
    keys = [None, None] if key is None else jax.random.split(key)
    chosen = sampled(candidates, foreground, foreground, keys[0]) if batch else candidates
    drawn = jnp.sum(chosen, dtype=jnp.int32)
    empty = inside & (overlap < negative)
    empty = sampled(empty, batch - drawn, batch, keys[1]) if batch else empty
    both = jnp.sum(chosen & empty, dtype=jnp.int32)
    positives = chosen & ~empty
    most = min(batch, number) if batch else number
    boxes_most = max(min(foreground, number), 1) if batch else number
    first = jnp.broadcast_to(first_true(chosen, 1), (boxes_most,))
    location = joined(first, both, first_true(positives, boxes_most), boxes_most)
    counted = jnp.arange(boxes_most) < drawn
    location = jnp.where(counted, location, location[0])
    nearest = jnp.argmax(shared[:, location], 0)
    wanted = deltas(anchors[location], objects[nearest])
    scored = drawn - both
    score = joined(first_true(positives, most), scored, first_true(empty, most), most)
    return {
        "location": location,
        "box": jnp.where((counted & (drawn > 0))[:, None], wanted, 0),
        "weight": (jnp.arange(boxes_most) >= both).astype(anchors.dtype),
        "located": drawn,
        "score": score,
        "positive": jnp.arange(most) < scored,
        "nearest": jnp.argmax(shared[:, score], 0),
        "scored": scored + jnp.sum(empty, dtype=jnp.int32),
    }


def _rows(found: dict[str, Array], labels: Array, number: int) -> tuple[Value, ...]:
    """Return the outputs of target assignment, for `number` anchors of an image."""
    first = (jnp.arange(len(labels), dtype=jnp.int32) * number)[:, None]
    weights = jnp.broadcast_to(found["weight"][..., None], found["box"].shape)
    location, box, weight = rows_of_images(found["located"], found["location"] + first, found["box"], weights)
    score, label = rows_of_images(found["scored"], found["score"] + first, labels[..., None])
    return location, score, box, label, weight


@op(
    "rpn_target_assign",
    ins=("Anchor", "GtBoxes", "IsCrowd", "ImInfo"),
    outs=("LocationIndex", "ScoreIndex", "TargetBBox", "TargetLabel", "BBoxInsideWeight"),
    grad=False,
    rng=True,
    rows="sequence",
)
def rpn_target_assign(
    anchors: Value,
    gt_boxes: Value,
    is_crowd: Value,
    im_info: Value,
    *,
    rpn_batch_size_per_im: Int = 256,
    rpn_straddle_thresh: Float = 0.0,
    rpn_positive_overlap: Float = 0.7,
    rpn_negative_overlap: Float = 0.3,
    rpn_fg_fraction: Float = 0.25,
    use_random: Bool = True,
    key: Array,
) -> tuple[Value, ...]:
    """Sample anchors of objects (label 1) and of the background (0).

    Returns their rows among all images' anchors, the regression targets to their objects, and the labels.
    """
    if rpn_batch_size_per_im < 1 or not 0 < rpn_fg_fraction <= 1:
        raise errors.AttributeTypeError(
            "rpn_target_assign: expected rpn_batch_size_per_im of at least 1 and rpn_fg_fraction in (0, 1], "
            f"found {rpn_batch_size_per_im} and {rpn_fg_fraction}"
        )
    anchors = rows_of(anchors)
    check_boxes("rpn_target_assign", Anchor=anchors, GtBoxes=rows_of(gt_boxes))
    objects, real, im_info = _objects("rpn_target_assign", gt_boxes, is_crowd, im_info)
    one = functools.partial(
        _assigned,
        anchors=anchors,
        positive=rpn_positive_overlap,
        negative=rpn_negative_overlap,
        batch=rpn_batch_size_per_im,
        foreground=share(rpn_batch_size_per_im, rpn_fg_fraction),
    )
    inside = jax.vmap(lambda size: _inside(anchors, size, rpn_straddle_thresh))(im_info)
    found = (
        jax.vmap(one)(objects, real, inside, jax.random.split(key, len(objects)))
        if use_random
        else jax.vmap(functools.partial(one, key=None))(objects, real, inside)
    )
    return _rows(found, found["positive"].astype(jnp.int32), anchors.shape[0])


def _inside(anchors: Array, im_info: Array, beyond: float) -> Array:
    """Return the mask [n] of anchors that exceed the image by at most `beyond` pixels; all if that is negative."""
    if beyond < 0:
        return jnp.ones(anchors.shape[0], bool)
    size = im_info[1::-1].astype(anchors.dtype)
    return jnp.all((anchors[:, :2] >= -beyond) & (anchors[:, 2:] < size + beyond), -1)


@op(
    "retinanet_target_assign",
    ins=("Anchor", "GtBoxes", "GtLabels", "IsCrowd", "ImInfo"),
    outs=("LocationIndex", "ScoreIndex", "TargetBBox", "TargetLabel", "BBoxInsideWeight", "ForegroundNumber"),
    grad=False,
    rows="sequence",
)
def retinanet_target_assign(
    anchors: Value,
    gt_boxes: Value,
    gt_labels: Value,
    is_crowd: Value,
    im_info: Value,
    *,
    positive_overlap: Float = 0.5,
    negative_overlap: Float = 0.4,
) -> tuple[Value, ...]:
    """Assign anchors like rpn_target_assign without sampling, with class labels for objects (0: background).

    Also return each image's number of object anchors plus one.
    """
    anchors = rows_of(anchors)
    check_boxes("retinanet_target_assign", Anchor=anchors, GtBoxes=rows_of(gt_boxes))
    objects, real, _ = _objects("retinanet_target_assign", gt_boxes, is_crowd, im_info)
    classes = per_object(gt_labels, "retinanet_target_assign", "GtLabels", real)
    one = functools.partial(
        _assigned,
        inside=jnp.ones(anchors.shape[0], bool),
        key=None,
        anchors=anchors,
        positive=positive_overlap,
        negative=negative_overlap,
        batch=0,
        foreground=0,
    )
    found = jax.vmap(one)(objects, real)
    classes = jnp.take_along_axis(classes, found["nearest"], 1)
    labels = jnp.where(found["positive"], classes, 0).astype(jnp.int32)
    more = (found["located"] + 1)[:, None, None]
    return (*_rows(found, labels, anchors.shape[0]), *rows_of_images(jnp.ones(len(objects), jnp.int32), more))


@op(
    "generate_proposal_labels",
    ins=("RpnRois", "GtClasses", "IsCrowd", "GtBoxes", "ImInfo"),
    outs=("Rois", "LabelsInt32", "BboxTargets", "BboxInsideWeights", "BboxOutsideWeights"),
    grad=False,
    rng=True,
    rows="sequence",
)
def generate_proposal_labels(
    rois: Value,
    gt_classes: Value,
    is_crowd: Value,
    gt_boxes: Value,
    im_info: Value,
    *,
    batch_size_per_im: Int,
    fg_fraction: Float,
    fg_thresh: Float,
    bg_thresh_hi: Float,
    bg_thresh_lo: Float,
    bbox_reg_weights: Floats,
    class_nums: Int,
    use_random: Bool = True,
    is_cls_agnostic: Bool = False,
    is_cascade_rcnn: Bool = False,
    key: Array,
) -> tuple[Value, ...]:
    """Sample proposals of objects and of the background.

    Returns the proposals, their classes, and regression targets in the columns of each proposal's class.
    """
    check_boxes("generate_proposal_labels", RpnRois=rows_of(rois), GtBoxes=rows_of(gt_boxes))
    if batch_size_per_im < 1 or class_nums < 2 or len(bbox_reg_weights) != 4:
        raise errors.AttributeTypeError(
            "generate_proposal_labels: expected batch_size_per_im of at least 1, class_nums of at least 2 (the "
            f"background is one) and 4 bbox_reg_weights, found {batch_size_per_im}, {class_nums} and "
            f"{list(bbox_reg_weights)}"
        )
    proposals, there = per_image(rois, "generate_proposal_labels", "RpnRois")
    objects, real = per_image(gt_boxes, "generate_proposal_labels", "GtBoxes")
    classes = per_object(gt_classes, "generate_proposal_labels", "GtClasses", real)
    crowd = real & (per_object(is_crowd, "generate_proposal_labels", "IsCrowd", real) != 0)
    im_info = info_of_images(im_info, len(proposals))
    check_images("generate_proposal_labels", RpnRois=len(proposals), GtBoxes=len(objects), ImInfo=len(im_info))
    scale = im_info[:, 2].astype(proposals.dtype)[:, None, None]
    boxes, usable = (_cascaded if is_cascade_rcnn else _with_objects)(
        proposals, there, objects.astype(proposals.dtype), real, crowd, scale
    )
    every = boxes.shape[1]
    one = functools.partial(
        _drawn,
        foreground=share(batch_size_per_im, fg_fraction),
        most=every if is_cascade_rcnn else min(batch_size_per_im, every),
        all_of_them=is_cascade_rcnn,
        thresholds=(fg_thresh, bg_thresh_lo, bg_thresh_hi),
        weights=bbox_reg_weights,
    )
    arguments = boxes, usable, objects.astype(boxes.dtype), real, classes
    found = (
        jax.vmap(one)(*arguments, jax.random.split(key, len(boxes)))
        if use_random and not is_cascade_rcnn
        else jax.vmap(functools.partial(one, key=None))(*arguments)
    )
    chosen, labels, targets, counts = found
    column = jnp.minimum(labels, 1) if is_cls_agnostic else labels
    of_class = jnp.arange(class_nums, dtype=jnp.int32) == column[..., None]
    of_class = (of_class & (labels > 0)[..., None])[..., None]
    wide = (*labels.shape, 4 * class_nums)
    spread = jnp.where(of_class, targets[:, :, None], 0).reshape(wide)
    weights = jnp.broadcast_to(of_class, (*of_class.shape[:-1], 4)).reshape(wide)
    weights = weights.astype(boxes.dtype)
    rows = rows_of_images(counts, chosen * scale, labels[..., None], spread, weights)
    return *rows, rows[-1]


def _with_objects(
    proposals: Array, there: Array, objects: Array, real: Array, crowd: Array, scale: Array
) -> tuple[Array, Array]:
    """Return each image's objects and proposals in unscaled pixels, and their state.

    A state is 1 for no crowd, 0 for crowd, -1 for no box.
    """
    boxes = jnp.concatenate([objects, proposals / scale], 1)
    state = jnp.concatenate([jnp.where(crowd, 0, 1), jnp.ones_like(there, jnp.int32)], 1)
    return boxes, jnp.where(jnp.concatenate([real, there], 1), state, -1)


def _cascaded(
    proposals: Array, there: Array, objects: Array, real: Array, crowd: Array, scale: Array
) -> tuple[Array, Array]:
    """Compute `_with_objects` for a later stage of Cascade R-CNN.

    The first proposals are the objects, unscaled, and empty boxes are dropped.
    """
    rows = jnp.arange(proposals.shape[1])
    first = rows < jnp.sum(real, 1, keepdims=True)
    boxes = jnp.where(first[..., None], proposals, proposals / scale)
    flags = jnp.take_along_axis(crowd, jnp.minimum(rows, crowd.shape[1] - 1)[None], 1)
    large = jnp.all(proposals[..., 2:] - proposals[..., :2] + 1 > 0, -1)
    return boxes, jnp.where(there & large, jnp.where(first & flags, 0, 1), -1)


def _drawn(
    boxes: Array,
    state: Array,
    objects: Array,
    real: Array,
    classes: Array,
    key: Array | None,
    *,
    foreground: int,
    most: int,
    all_of_them: bool,
    thresholds: tuple[float, float, float],
    weights: Any,
) -> tuple[Array, ...]:
    """Return one image's boxes [most, 4], objects first, their classes, regression targets and count."""
    fg_thresh, low, high = thresholds
    shared = jnp.where(real, overlaps(boxes, objects), -1)
    overlap = jnp.max(shared, 1, initial=0)
    nearest = jnp.argmax(jnp.abs(shared - overlap[:, None]) < _ALIKE, 1)
    overlap = jnp.where(state == 0, -1, overlap)
    state = jnp.where(jnp.all(jnp.isfinite(boxes), -1), state, -1)
    positive = (state >= 0) & (overlap >= fg_thresh)
    negative = (state >= 0) & (overlap >= low) & (overlap < high) & ~positive
    if not all_of_them:
        keys = [None, None] if key is None else jax.random.split(key)
        positive = sampled(positive, min(foreground, most), min(foreground, most), keys[0])
        negative = sampled(negative, most - jnp.sum(positive), most, keys[1])
    count = jnp.sum(positive, dtype=jnp.int32)
    places = joined(first_true(positive, most), count, first_true(negative, most), most)
    of_object = jnp.arange(most) < count
    total = count + jnp.sum(negative, dtype=jnp.int32)
    places = jnp.where(jnp.arange(most) < total, places, places[0])
    chosen, near = boxes[places], nearest[places]
    labels = jnp.where(of_object, classes[near], 0).astype(jnp.int32)
    targets = deltas(chosen, objects[near]) / jnp.asarray(weights, boxes.dtype)
    return chosen, labels, jnp.where(of_object[:, None], targets, 0), total
