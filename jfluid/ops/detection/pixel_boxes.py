"""Helpers for boxes in pixels: a box [x0, y0, x1, y1] includes its last row and column.

Its width is x1 - x0 + 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Level, Ragged, Value, column, need, offsets_of, rows_of, segments

_BLOCK = 256


def areas(boxes: Array) -> Array:
    """Return the areas of boxes [..., 4] in pixels; 0 for swapped corners."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return jnp.where(jnp.all(sides >= 0, -1), jnp.prod(sides + 1, -1), 0)


def overlaps(a: Array, b: Array) -> Array:
    """Return the overlap, intersection over union, of boxes a [n, 4] with boxes b [m, 4]: [n, m].

    It is fastest where b are more.
    """
    # column by column: XLA does not vectorise over a last dimension of 2
    left, top, right, bottom = (a[:, i, None] for i in range(4))
    x0, y0, x1, y1 = (b[:, i] for i in range(4))
    width = jnp.minimum(right, x1) - jnp.maximum(left, x0) + 1
    height = jnp.minimum(bottom, y1) - jnp.maximum(top, y0) + 1
    common = jnp.maximum(width, 0) * jnp.maximum(height, 0)
    union = (right - left + 1) * (bottom - top + 1) + (x1 - x0 + 1) * (y1 - y0 + 1) - common
    return jnp.where(common == 0, 0, common / jnp.where(union == 0, 1, union))


def deltas(boxes: Array, targets: Array) -> Array:
    """Return the regression targets from boxes [n, 4] to targets [n, 4].

    These are centre shifts in widths and heights, and logarithms of the ratios of the sides (Girshick, 2014).
    """
    sides, wanted = (x[:, 2:] - x[:, :2] + 1 for x in (boxes, targets))
    way = targets[:, :2] + 0.5 * wanted - (boxes[:, :2] + 0.5 * sides)
    return jnp.concatenate([way / sides, jnp.log(wanted / sides)], -1)


def per_image(x: Value, op_type: str, slot: str, most: int | None = None) -> tuple[Array, Array]:
    """Pad rows with a LoD of one level to [images, most, ...], and return the mask [images, most].

    `most` is at least 1; by default it is the bound of the level.
    """
    x = need(x, op_type, slot)
    if len(x.levels) != 1:
        raise errors.ShapeError(
            f"{op_type}: {slot}: a LoD of one level is needed (which rows are of which image), "
            f"found {len(x.levels)} levels"
        )
    most = max(x.last.longest, 1) if most is None else most
    if x.last.longest == 0:
        number = x.last.number
        return jnp.zeros((number, most, *x.shape[1:]), x.dtype), jnp.zeros((number, most), bool)
    missing = max(most - x.last.longest, 0)
    dense = jnp.pad(x.pad()[:, :most], ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 1))
    return dense, jnp.pad(x.last.mask()[:, :most], ((0, 0), (0, missing)))


def per_object(x: Value, op_type: str, slot: str, like: Array) -> Array:
    """Pad one number per object, from rows [objects] or [objects, 1] with a LoD, to the shape of `like`.

    `like` is [images, most].
    """
    values, _ = per_image(x, op_type, slot, like.shape[1])
    if len(values) != len(like) or values.size != like.size:
        raise errors.ShapeError(
            f"{op_type}: {slot}: one number for each object of {len(like)} images is needed, found "
            f"rows {list(x.shape)} of {len(values)} images"
        )
    return values.reshape(like.shape)


def check_images(op_type: str, **numbers: int) -> None:
    """Raise ShapeError unless all inputs are of one number of images."""
    if len(set(numbers.values())) > 1:
        found = ", ".join(f"{slot} {number}" for slot, number in numbers.items())
        raise errors.ShapeError(f"{op_type}: inputs of different numbers of images: {found}")


def info_of_images(x: Value, images: int) -> Array:
    """Return the rows of `x`, one for each image. A declared number of rows does not bind the number of images."""
    rows = rows_of(x)
    if static_values.inference() is not None and len(rows) != images:
        return jnp.broadcast_to(rows[:1], (images, *rows.shape[1:]))
    return rows


def check_boxes(op_type: str, **boxes: Any) -> None:
    """Raise ShapeError unless each input is [rows, 4], and DtypeError unless it is of floats."""
    for slot, value in boxes.items():
        floats = jnp.issubdtype(value.dtype, jnp.floating)
        if value.ndim != 2 or value.shape[1] != 4 or not floats:
            raise (errors.ShapeError if floats else errors.DtypeError)(
                f"{op_type}: {slot}: boxes [rows, 4] of floats are needed, found {list(value.shape)} of {value.dtype}"
            )


def running_count(mask: Array) -> Array:
    """Return int32 [n]: how many of `mask` [n] are true up to each place, itself included."""
    # A matrix of ones counts within blocks, exactly in float32; XLA's cumulative sums are slow on CPUs.
    number = mask.shape[0]
    blocks = -(-number // _BLOCK)
    padded = jnp.pad(mask, (0, blocks * _BLOCK - number)).reshape(blocks, _BLOCK)
    upper = jnp.triu(jnp.ones((_BLOCK, _BLOCK), jnp.float32))
    within = (padded.astype(jnp.float32) @ upper).astype(jnp.int32)
    before = jnp.cumsum(within[:, -1], dtype=jnp.int32) - within[:, -1]
    return (within + before[:, None]).reshape(-1)[:number]


def first_true(mask: Array, size: int) -> Array:
    """Return the indices of true entries of `mask` [n] in order, padded with n - 1: int32 [size]."""
    number = mask.shape[0]
    if 4 * size < number < 1 << 24:  # few of many: places as floats, which XLA ranks fast
        places = lax.top_k(jnp.where(mask, -jnp.arange(number, dtype=jnp.float32), -number), size)[0]
        return jnp.minimum(-places, number - 1).astype(jnp.int32)
    order = jnp.where(mask, running_count(mask) - 1, size)
    places = jnp.full(size, number - 1, jnp.int32)
    return places.at[order].set(jnp.arange(number, dtype=jnp.int32), mode="drop")


def joined(first: Array, count: Array, second: Array, size: int) -> Array:
    """Return [size, ...]: the first `count` rows of `first`, then the rows of `second`."""
    rows = jnp.arange(size, dtype=jnp.int32)
    a = jnp.take(first, rows, axis=0, mode="clip")
    b = jnp.take(second, rows - count, axis=0, mode="clip")
    return jnp.where(column(rows < count, a.ndim), a, b)


def sampled(mask: Array, number: Array | int, most: int, key: Array | None) -> Array:
    """Subsample `mask` [n] to at most `number` true entries (at most `most`).

    The entries are the first ones, or with `key` a random sample.
    """
    if key is None:
        return mask & (running_count(mask) <= number)
    chances = jnp.where(mask, jax.random.uniform(key, mask.shape, jnp.float32), -1)
    values, places = lax.top_k(chances, min(most, mask.shape[0]))
    chosen = (values >= 0) & (jnp.arange(values.shape[0]) < number)
    return jnp.zeros_like(mask).at[places].set(chosen)


def rows_of_images(counts: Array, *values: Array) -> tuple[Ragged, ...]:
    """Return the first `counts[i]` rows of each image of values [images, most, ...], as rows with a LoD.

    The rows are finite for images without any.
    """
    number, most = values[0].shape[:2]
    level = Level(offsets_of(counts), most)
    rows = jnp.arange(number * most, dtype=jnp.int32)
    image = jnp.minimum(segments(level, number * most), number - 1)
    places = image * most + rows - level.starts[image]
    places = jnp.where(rows < level.offsets[-1], places, places[0])
    return tuple(inferred_rows(Ragged(v.reshape(number * most, *v.shape[2:])[places], (level,))) for v in values)


def inferred_rows(x: Ragged) -> Ragged:
    """Return `x`, or rows of placeholder length while shapes are inferred."""
    unknown = static_values.placeholder()
    return x if unknown is None else x.like(jnp.zeros((unknown, *x.shape[1:]), x.dtype))
