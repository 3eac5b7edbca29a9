"""Quadrangles of images made rectangles by a perspective transformation."""

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.bilinear import between_pixels
from jfluid.ops.detection.rois import by_channel, images_of, of_boxes
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.registry import op

_NEAR = 1e-4  # tolerance for points on the sides of a quadrangle


def _matrix(x: Array, y: Array, height: int, width: int) -> Array:
    """Return [boxes, 9]: the matrices that lead from places in the result to points in the image.

    `x` and `y` are the corners [boxes, 4] in order.

    A box is transformed to its own ratio of width to height, as far as the width goes.
    """
    side = jnp.hypot(x - jnp.roll(x, -1, 1), y - jnp.roll(y, -1, 1))
    tall, wide = (side[:, 1] + side[:, 3]) / 2, (side[:, 0] + side[:, 2]) / 2
    rows = max(2, height)
    ratio = jnp.where(tall > 0, wide / jnp.where(tall > 0, tall, 1), 0)
    columns = jnp.floor(ratio * (rows - 1) + 0.5) + 1
    columns = jnp.maximum(2, jnp.minimum(columns, width))
    (x0, x1, x2, x3), (y0, y1, y2, y3) = x.T, y.T
    dx1, dx2, dx3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, dy3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    scale = dx1 * dy2 - dx2 * dy1 + 1e-5
    g = (dx3 * dy2 - dx2 * dy3) / scale / (columns - 1)
    h = (dx1 * dy3 - dx3 * dy1) / scale / (rows - 1)
    return jnp.stack(
        [
            (x1 - x0 + g * (columns - 1) * x1) / (columns - 1),
            (x3 - x0 + h * (rows - 1) * x3) / (rows - 1),
            x0,
            (y1 - y0 + g * (columns - 1) * y1) / (columns - 1),
            (y3 - y0 + h * (rows - 1) * y3) / (rows - 1),
            y0,
            g,
            h,
            jnp.ones_like(g),
        ],
        1,
    )


def _in_quadrangle(at: Array, down: Array, x: Array, y: Array) -> Array:
    """Return True for points [boxes, places] in or on quadrangles with corners [boxes, 4]."""
    edge, crossings = jnp.zeros(at.shape, bool), jnp.zeros(at.shape, jnp.int32)
    for i in range(4):
        (xs, ys), (xe, ye) = ([v[:, j, None] for v in (x, y)] for j in (i, (i + 1) % 4))
        level = jnp.abs(ys - ye) < _NEAR
        on_level = (
            (jnp.abs(down - ys) < _NEAR)
            & (jnp.abs(down - ye) < _NEAR)
            & (at >= jnp.minimum(xs, xe) - _NEAR)
            & (at <= jnp.maximum(xs, xe) + _NEAR)
        )
        cut = (down - ys) * (xe - xs) / jnp.where(level, 1, ye - ys) + xs
        between = (down >= jnp.minimum(ys, ye) - _NEAR) & (down <= jnp.maximum(ys, ye) + _NEAR)
        edge |= jnp.where(level, on_level, between & (jnp.abs(cut - at) < _NEAR))
        above_low = down > jnp.minimum(ys, ye) + _NEAR
        passes = ~level & above_low & (down < jnp.maximum(ys, ye) + _NEAR) & (cut > at + _NEAR)
        crossings += passes
    return edge | (crossings % 2 == 1)


@op(
    "roi_perspective_transform",
    ins=("X", "ROIs"),
    outs=("Out", "Mask", "TransformMatrix", "Out2InIdx~", "Out2InWeights~"),
    nograd=("ROIs",),
    rows="sequence",
)
def roi_perspective_transform(
    x: Value, boxes: Value, *, spatial_scale: float = 1.0, transformed_height: int = 1, transformed_width: int = 1
) -> tuple[Value, Value, Value, Value, Value]:
    """Warp each quadrangle [boxes, 8] of an image to [channels, transformed_height, transformed_width].

    Pixels outside of quadrangle or image are 0 in result and mask.
    """
    x, corners = rows_of(x), rows_of(boxes).astype(rows_of(x).dtype)
    if x.ndim != 4 or corners.ndim != 2 or corners.shape[1] != 8:
        raise errors.ShapeError(
            "roi_perspective_transform: expected X [N, C, H, W] and ROIs [boxes, 8], found "
            f"{list(x.shape)} and {list(corners.shape)}"
        )
    image = images_of("roi_perspective_transform", x, boxes, None)
    across, down = (corners[:, i::2] * spatial_scale for i in (0, 1))
    matrix = _matrix(across, down, transformed_height, transformed_width)
    row, column = (
        v.ravel()
        for v in jnp.meshgrid(
            *(jnp.arange(n, dtype=x.dtype) for n in (transformed_height, transformed_width)), indexing="ij"
        )
    )
    m = matrix[:, :, None]
    scale = m[:, 6] * column + m[:, 7] * row + m[:, 8]
    at = (m[:, 0] * column + m[:, 1] * row + m[:, 2]) / scale
    under = (m[:, 3] * column + m[:, 4] * row + m[:, 5]) / scale
    height, width = x.shape[2:]
    inside = _in_quadrangle(at, under, across, down)
    inside &= (at > -0.5) & (at < width - 0.5) & (under > -0.5) & (under < height - 0.5)
    y, at = jnp.clip(under, 0, height - 1), jnp.clip(at, 0, width - 1)
    found = between_pixels(x.transpose(0, 2, 3, 1), image[:, None], y, at)
    places = (corners.shape[0], transformed_height, transformed_width)
    out = jnp.where(inside[..., None], found, 0).reshape(*places, -1)
    # Only Fluid's CUDA kernel fills the last two, for its gradient.
    return (
        boxes.like(by_channel(out)) if isinstance(boxes, Ragged) else by_channel(out),
        of_boxes(boxes, inside.reshape(places)[:, None].astype(jnp.int32)),
        of_boxes(boxes, matrix),
        jnp.zeros(0, jnp.int32),
        jnp.zeros(0, x.dtype),
    )
