"""Overlap (IoU) of boxes and polygons, as Fluid's suppression measures it.

Coordinates come first here, [size, ...], so that each coordinate is a separate array in loops.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from jfluid import errors

# How many numbers describe a box: its corners, or the points of a polygon of 4, 8, 12 or 16.
WIDTHS = (4, 8, 16, 24, 32)


def check_boxes(op_type: str, boxes: Any) -> None:
    """Raise ShapeError if the last dimension describes neither boxes nor polygons."""
    if boxes.shape[-1] not in WIDTHS:
        raise errors.ShapeError(
            f"{op_type}: the last dimension of BBoxes must be 4 (corners) or 8, 16, 24 or 32 (points "
            f"of a polygon), found {list(boxes.shape)}"
        )


def overlap(a: Array, b: Array, normalized: bool) -> Array:
    """Return the intersection over union of boxes (xmin, ymin, xmax, ymax) or polygons [size, ...]: [...].

    Of two boxes without area it is not a number, which is no overlap that a threshold allows.
    Corners that are not normalized are pixels, the last of which belongs to the box.
    """
    return _boxes(a, b, 0 if normalized else 1) if a.shape[0] == 4 else _polygons(a, b)


def _area(boxes: Array, extra: int) -> Array:
    """Return the areas [...] of boxes [4, ...]; 0 for inverted boxes."""
    width, height = boxes[2] - boxes[0], boxes[3] - boxes[1]
    return jnp.where((width < 0) | (height < 0), 0, (width + extra) * (height + extra))


def _boxes(a: Array, b: Array, extra: int) -> Array:
    width = jnp.minimum(a[2], b[2]) - jnp.maximum(a[0], b[0])
    height = jnp.minimum(a[3], b[3]) - jnp.maximum(a[1], b[1])
    common = (width + extra) * (height + extra)
    union = _area(a, extra) + _area(b, extra) - common
    return jnp.where((width < 0) | (height < 0), 0, common / union)


def _polygons(a: Array, b: Array) -> Array:
    """Return the IoU of simple polygons [2 * points, ...]; 0 if a polygon has no area.

    The region below each edge, down to a base line, counts positively or negatively by the
    direction of the edge; so do the regions below pairs of edges, whose sum is the common area.
    """
    p, q = (x.reshape(-1, 2, *x.shape[1:]) for x in (a, b))
    centre = p.mean(axis=0)
    p, q = p - centre, q - centre  # near the origin, where differences keep their digits
    signed_a, signed_b = _signed_area(p), _signed_area(q)
    common = _common_area(p, q) * jnp.sign(signed_a) * jnp.sign(signed_b)
    union = jnp.abs(signed_a) + jnp.abs(signed_b) - common
    void = (signed_a == 0) | (signed_b == 0) | (common < 0)
    return jnp.where(void, 0, common / jnp.where(void, 1, union))


def _signed_area(points: Array) -> Array:
    """Return the area of polygons [points, 2, ...]: [...]; negative for one direction."""
    after = jnp.roll(points, -1, axis=0)
    return 0.5 * jnp.sum(points[:, 0] * after[:, 1] - after[:, 0] * points[:, 1], axis=0)


def _common_area(p: Array, q: Array) -> Array:
    """Return the signed areas that polygons [points, 2, ...] have in common: [...]."""
    base = jnp.minimum(p[:, 1].min(axis=0), q[:, 1].min(axis=0))
    left_p, right_p, slope_p, start_p, sign_p = (x[:, None] for x in _edges(p))
    left_q, right_q, slope_q, start_q, sign_q = (x[None] for x in _edges(q))
    left, right = jnp.maximum(left_p, left_q), jnp.minimum(right_p, right_q)
    width = jnp.maximum(right - left, 0)

    def heights(x: Array) -> tuple[Array, Array]:
        first = start_p + slope_p * (x - left_p) - base
        return first, start_q + slope_q * (x - left_q) - base

    (p_left, q_left), (p_right, q_right) = heights(left), heights(right)
    at_left, at_right = p_left - q_left, p_right - q_right
    # The mean of |difference| over the interval, in which the lines may cross once.
    size = jnp.abs(at_left) + jnp.abs(at_right)
    crossing = at_left * at_right < 0
    apart = jnp.where(crossing, (at_left**2 + at_right**2) / jnp.where(crossing, 2 * size, 1), size / 2)
    below = ((p_left + p_right + q_left + q_right) / 2 - apart) / 2
    return jnp.sum(jnp.where(width > 0, sign_p * sign_q * below * width, 0), axis=(0, 1))


def _edges(points: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return the least and greatest x, slope, y at the least x, and direction of each edge: [points, ...] each."""
    after = jnp.roll(points, -1, axis=0)
    x0, y0, x1, y1 = points[:, 0], points[:, 1], after[:, 0], after[:, 1]
    run = x1 - x0
    slope = jnp.where(run == 0, 0, (y1 - y0) / jnp.where(run == 0, 1, run))
    least, greatest = jnp.minimum(x0, x1), jnp.maximum(x0, x1)
    return least, greatest, slope, jnp.where(x0 <= x1, y0, y1), jnp.sign(run)
