"""Masks that a detector learns from (He et al., Mask R-CNN, 2017): polygons drawn on small grids.

Polygons are drawn as by the COCO API: their outline on a grid five times as fine, where between two
columns it passes the middle of a pixel's column there is a crossing, and a pixel is inside where an
odd number of crossings lies above its middle.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.detection.pixel_boxes import (
    check_boxes,
    check_images,
    first_true,
    info_of_images,
    overlaps,
    per_image,
    per_object,
    rows_of_images,
)
from jfluid.ops.ragged import Ragged, Value, need, positions, rows_of, segments
from jfluid.ops.registry import Int, op

_FINER = 5
_IGNORED = -1  # label that the loss ignores


@op(
    "generate_mask_labels",
    ins=("ImInfo", "GtClasses", "IsCrowd", "GtSegms", "Rois", "LabelsInt32"),
    outs=("MaskRois", "RoiHasMaskInt32", "MaskInt32"),
    grad=False,
    rows="sequence",
)
def generate_mask_labels(
    im_info: Value,
    gt_classes: Value,
    is_crowd: Value,
    gt_segms: Value,
    rois: Value,
    labels: Value,
    *,
    num_classes: Int,
    resolution: Int,
) -> tuple[Value, ...]:
    """Return the foreground rois, their indices among the image's rois, and the object masks.

    An image without objects has its first roi and an ignored mask.
    """
    if num_classes < 1 or resolution < 1:
        raise errors.AttributeTypeError(
            "generate_mask_labels: expected num_classes and resolution of at least 1, found "
            f"{num_classes} and {resolution}"
        )
    name = "generate_mask_labels"
    check_boxes(name, Rois=rows_of(rois))
    boxes, there = per_image(rois, name, "Rois")
    classes = jnp.where(there, per_object(labels, name, "LabelsInt32", there), -1)
    known, real = per_image(gt_classes, name, "GtClasses")
    known = known.reshape(real.shape)
    drawn = real & (known > 0) & (per_object(is_crowd, name, "IsCrowd", real) == 0)
    im_info = info_of_images(im_info, len(boxes))
    outlines = need(gt_segms, name, "GtSegms", 3)
    check_images(name, Rois=len(boxes), GtClasses=len(real), ImInfo=len(im_info), GtSegms=outlines.levels[0].number)
    scale = im_info[:, 2].astype(boxes.dtype)[:, None, None]
    found, chosen, objects, counts = jax.vmap(_of_image)(boxes / scale, classes, drawn, _bounds(outlines, drawn))
    number = outlines.levels[0].starts[:, None] + objects
    pixels = _drawn(outlines, number.reshape(-1), found.reshape(-1, 4), resolution)
    pixels = pixels.reshape(*number.shape, -1)
    labels = jnp.take_along_axis(classes, chosen, 1)
    usable = jnp.any(drawn, 1)[:, None] & (labels > 0)
    of_class = (jnp.arange(num_classes) == labels[..., None]) & usable[..., None]
    masks = jnp.where(of_class[..., None], pixels[:, :, None], _IGNORED).astype(jnp.int32)
    masks = masks.reshape(*labels.shape, -1)
    return rows_of_images(counts, found * scale, chosen[..., None], masks)


def _of_image(boxes: Array, classes: Array, drawn: Array, bounds: Array) -> tuple[Array, Array, Array, Array]:
    """Return an image's boxes with masks, their indices, their most overlapping objects, and their count."""
    most = boxes.shape[0]
    objects = classes > 0
    count = jnp.sum(objects, dtype=jnp.int32)
    chosen = jnp.where(jnp.arange(most) < count, first_true(objects, most), 0)
    found = boxes[chosen]
    shared = jnp.where(drawn, overlaps(found, bounds), -1)
    return found, chosen, jnp.argmax(shared, 1).astype(jnp.int32), jnp.maximum(count, 1)


def _bounds(outlines: Ragged, like: Array) -> Array:
    """Return the bounding box of each object's polygons, [images, most, 4].

    The objects are ordered as in `like` [images, most].
    """
    _, objects, polygons = outlines.levels
    own = segments(objects, polygons.number)[jnp.minimum(segments(polygons, outlines.capacity), polygons.number - 1)]
    own = jnp.where(outlines.mask(), own, objects.number)
    low = jax.ops.segment_min(outlines.values, own, objects.number)
    high = jax.ops.segment_max(outlines.values, own, objects.number)
    boxes = jnp.concatenate([low, high], 1)
    level = outlines.levels[0]
    places = level.starts[:, None] + jnp.arange(like.shape[1], dtype=jnp.int32)
    boxes = jnp.take(boxes, places, axis=0, mode="clip")
    return jnp.where(jnp.isfinite(boxes), boxes, 0)


def _drawn(outlines: Ragged, objects: Array, boxes: Array, size: int) -> Array:
    """Rasterise the polygons of each box's object on a grid over the box [n, 4]: bool [n, size, size]."""
    polygons, points = outlines.levels[1:]
    most = min(polygons.longest * points.longest, outlines.capacity)
    start = points.offsets[polygons.offsets[objects]]
    end = points.offsets[polygons.offsets[objects + 1]]
    rows = start[:, None] + jnp.arange(most, dtype=jnp.int32)
    real = rows < end[:, None]
    rows = jnp.where(real, rows, start[:, None])
    own, place, _ = positions(points, outlines.capacity)
    following = jnp.arange(outlines.capacity, dtype=jnp.int32) + 1
    following = jnp.where(place + 1 < points.lengths[own], following, points.starts[own])
    which = own[rows] - polygons.starts[objects][:, None]
    here = outlines.values
    one = functools.partial(_inside, size=size, most=max(polygons.longest, 1))
    return jax.vmap(one)(here[rows], here[following[rows]], which, real, boxes)


def _inside(starts: Array, ends: Array, polygon: Array, real: Array, box: Array, *, size: int, most: int) -> Array:
    """Rasterise up to `most` polygons on a grid over a box: bool [size, size] (rows, columns).

    The polygons' edges go from starts [n, 2] to ends [n, 2].
    """
    sides = jnp.maximum(box[2:] - box[:2], 1)

    def on_grid(points: Array) -> Array:
        fine = _FINER * ((points - box[:2]) * size / sides).astype(jnp.float64)
        return jnp.trunc(fine + 0.5)

    crosses, row = _crossings(on_grid(starts), on_grid(ends), size)
    column = jnp.broadcast_to(jnp.arange(size), row.shape)
    number = jnp.zeros((most, size + 1, size), jnp.int32)
    number = number.at[polygon[:, None], row, column].add(crosses & real[:, None], mode="drop")
    above = jnp.cumsum(number, axis=1)[:, :size]
    return jnp.any(above % 2 == 1, 0)


def _crossings(start: Array, end: Array, size: int) -> tuple[Array, Array]:
    """Return the crossings of each edge [n] with the middle of each pixel column, and the first row below.

    Both are [n, size]; the first is a mask. An edge is stepped in whole steps along its longer side, from its
    left or upper end.
    """
    flat = jnp.abs(end - start)
    wide = flat[:, 0] >= flat[:, 1]
    swap = jnp.where(wide, start[:, 0] > end[:, 0], start[:, 1] > end[:, 1])[:, None]
    start, end = jnp.where(swap, end, start), jnp.where(swap, start, end)
    x, y = start[:, :1], start[:, 1:]
    length = jnp.max(flat, 1)[:, None]
    wide = wide[:, None]
    short = jnp.where(wide, end[:, 1:] - y, end[:, :1] - x)
    slope = short / jnp.where(length == 0, 1, length)
    left = (_FINER * jnp.arange(size) + _FINER // 2).astype(start.dtype)  # the last step before

    def across(step: Array) -> Array:
        """Return the position on the shorter side after `step` steps on the longer side."""
        return jnp.trunc(jnp.where(wide, y, x) + slope * step + 0.5)

    # On a steep edge: the last step on this side of the middle, found within one of the exact one.
    guess = jnp.floor((left + 0.5 - x) / jnp.where(slope == 0, 1, slope))
    steps = jnp.clip(guess[..., None] + jnp.arange(-1, 2), 0, length[..., None])
    rising = slope > 0
    place = jnp.trunc(x[..., None] + slope[..., None] * steps + 0.5)
    before = jnp.where(rising[..., None], place <= left[:, None], place > left[:, None])
    step = jnp.max(jnp.where(before, steps, -1), -1)
    far = jnp.trunc(x + slope * length + 0.5)
    steep = (jnp.trunc(x + 0.5) <= left) != (far <= left)
    crosses = jnp.where(wide, (x <= left) & (left < end[:, :1]), steep)
    level = jnp.where(wide, jnp.minimum(across(left - x), across(left + 1 - x)), y + step)
    # the first row whose middle is not above the crossing, in whole numbers: rounding would show
    row = (level.astype(jnp.int32) + _FINER // 2) // _FINER
    return crosses, jnp.clip(row, 0, size)
