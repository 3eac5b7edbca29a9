"""Pooling of regions of interest: each box becomes a small grid of bins.

In each of these operators a bin is a weighted sum over pixels. The weight of a pixel is the product of a weight of
its row and a weight of its column. So a box becomes two small matrices, weights of rows and of columns.
`_weighted` sums pixels of all bins at once, for each place in a bin, up to the size of the largest bin of the batch.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops import refusals, static_values
from jfluid.ops.ragged import Ragged, Value, need, rows_of
from jfluid.ops.refusals import Found, RefusalRule
from jfluid.ops.registry import op


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted(x: Array, down: Array, across: Array, image: Array, learn_boxes: bool) -> Array:
    """Sum the pixels of each bin, times their weights.

    Args:
        x: [images, height, width, bins, channels]; bins is 1, or that of a box where each of its bins has
            channels of its own.
        down: [boxes, rows of bins, height] and [boxes, columns of bins, width]: weights.
        across: see `down`.
        image: int32 [boxes].
        learn_boxes: True if weights have gradients.

    Returns [boxes, rows of bins, columns of bins, channels].
    """
    pixels = x.reshape(-1, x.shape[-1])
    visit = _Visit(x, down, across, image)

    def add(step: Any, total: Array) -> Array:
        index, weight, _ = visit(step)
        weight = weight[..., None]  # pixels without a weight may be NaN
        return total + jnp.where(weight != 0, pixels[index] * weight, 0)

    shape = (*down.shape[:2], across.shape[1], x.shape[-1])
    return lax.fori_loop(0, visit.steps, add, jnp.zeros(shape, x.dtype))


class _Visit:
    """Iterator over the pixels of all bins, one pixel of each bin per step."""

    def __init__(self, x: Array, down: Array, across: Array, image: Array):
        self.x, self.down, self.across, self.image = x, down, across, image
        (self.top, self.rows), (self.left, self.columns) = _extent(down), _extent(across)
        self.wide = jnp.max(self.columns, initial=0)
        self.steps = jnp.max(self.rows, initial=0) * self.wide

    def __call__(self, step: Any) -> tuple[Array, Array, tuple[Array, ...]]:
        """Return the pixel of each bin, its weight, and of that the factors and their places."""
        _, height, width, bins, _ = self.x.shape
        i, j = step // self.wide, step % self.wide
        y, x = jnp.minimum(self.top + i, height - 1), jnp.minimum(self.left + j, width - 1)
        row = jnp.where(i < self.rows, _at(self.down, y), 0)
        column = jnp.where(j < self.columns, _at(self.across, x), 0)
        index = (self.image[:, None, None] * height + y[:, :, None]) * width + x[:, None, :]
        if bins > 1:
            index = index * bins + jnp.arange(bins, dtype=index.dtype).reshape(index.shape[1:])
        return index, row[:, :, None] * column[:, None, :], (row, y, column, x)


def _numbers(weights: Array) -> Array:
    return jnp.arange(weights.shape[1])


def _at(weights: Array, place: Array) -> Array:
    return jnp.take_along_axis(weights, place[..., None], axis=-1)[..., 0]


def _extent(weights: Array) -> tuple[Array, Array]:
    """Return the first pixel with a weight of each bin, and the length up to the last: int32 [boxes, bins]."""
    some = weights != 0
    first = jnp.argmax(some, -1).astype(jnp.int32)
    last = weights.shape[-1] - jnp.argmax(some[..., ::-1], -1).astype(jnp.int32)
    return first, jnp.where(some.any(-1), last - first, 0)


def _weighted_forward(
    x: Array, down: Array, across: Array, image: Array, learn_boxes: bool
) -> tuple[Array, tuple[Array, ...]]:
    return _weighted(x, down, across, image, learn_boxes), (x, down, across, image)


def _weighted_backward(learn_boxes: bool, kept: tuple[Array, ...], grad: Array) -> tuple[Array | None, ...]:
    x, down, across, image = kept
    visit = _Visit(x, down, across, image)
    pixels = x.reshape(-1, x.shape[-1])
    box, rows, columns = jnp.arange(down.shape[0])[:, None], *map(_numbers, (down, across))

    def add(step: Any, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        index, weight, (row, y, column, x) = visit(step)
        pixel_grad = totals[0].at[index].add(grad * weight[..., None])
        if not learn_boxes:
            return (pixel_grad,)
        each = jnp.where(weight != 0, (pixels[index] * grad).sum(-1), 0)
        by_row = jnp.where(row != 0, (each * column[:, None, :]).sum(2), 0)
        by_column = jnp.where(column != 0, (each * row[:, :, None]).sum(1), 0)
        return (pixel_grad, totals[1].at[box, rows, y].add(by_row), totals[2].at[box, columns, x].add(by_column))

    totals: tuple[Array, ...] = (jnp.zeros_like(pixels),)
    if learn_boxes:
        totals += (jnp.zeros_like(down), jnp.zeros_like(across))
    found = lax.fori_loop(0, visit.steps, add, totals)
    return (found[0].reshape(x.shape), *(found[1:] if learn_boxes else (None, None)), None)


_weighted.defvjp(_weighted_forward, _weighted_backward)


def images_of(op_type: str, x: Array, boxes: Value, offsets: Any, counts: Any = None) -> Array:
    """Return int32 [boxes]: the image of each box, from the LoD of the boxes or from a tensor of offsets or of counts.

    Raises ShapeError if they are not as many as the images.
    """
    if offsets is None and counts is None:
        level = need(boxes, op_type, "ROIs").last
        number, offsets = level.number if level.count is None else x.shape[0], level.offsets
    elif counts is not None:
        number = counts.size
        offsets = jnp.concatenate([jnp.zeros(1, counts.dtype), jnp.cumsum(counts.reshape(-1))])
    else:
        number, offsets = offsets.size - 1, offsets.reshape(-1)
    if number != x.shape[0] and not static_values.placeholder():
        raise errors.ShapeError(
            f"{op_type}: the boxes are of {number} images, but X has {x.shape[0]} (the LoD of ROIs "
            "has one sequence of boxes for each image)"
        )
    rows = jnp.arange(rows_of(boxes).shape[0], dtype=jnp.int32)
    found = jnp.searchsorted(offsets[1:], rows, side="right").astype(jnp.int32)
    return jnp.minimum(found, x.shape[0] - 1)


def check_boxes(op_type: str, x: Array, boxes: Value, height: int, width: int, scale: float) -> Array:
    """Return the corners [boxes, 4] in the dtype of x; raise ShapeError or DtypeError for bad input."""
    corners = rows_of(boxes)
    if x.ndim != 4 or corners.ndim != 2 or corners.shape[1] != 4:
        raise errors.ShapeError(
            f"{op_type}: expected X [N, C, H, W] and ROIs [boxes, 4], found {list(x.shape)} and {list(corners.shape)}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise errors.DtypeError(f"{op_type}: X must be float32 or float64, found {x.dtype}")
    if min(height, width) < 1 or scale <= 0:
        raise errors.AttributeTypeError(
            f"{op_type}: pooled_height, pooled_width and spatial_scale must be positive, found "
            f"{height}, {width} and {scale}"
        )
    return corners.astype(x.dtype)


def of_boxes(boxes: Value, out: Array) -> Value:
    """Return `out`, one row for each box, with the row count of `boxes`."""
    if isinstance(boxes, Ragged) and not boxes.exact:
        return Ragged(out, (), boxes.count())
    return out


def by_channel(out: Array) -> Array:
    """Return [boxes, channels, rows, columns] from [boxes, rows, columns, channels]."""
    return out.transpose(0, 3, 1, 2)


def _pixels(x: Array, bins: int = 1) -> Array:
    """Return [images, height, width, bins, channels] from X [images, channels * bins, height, width]."""
    parts = x.reshape(x.shape[0], -1, bins, *x.shape[2:])
    return parts.transpose(0, 3, 4, 2, 1)


def _as_kernels_round(x: Array, dtype: Any) -> Array:
    """Return float64 numbers rounded to `dtype`.

    XLA fuses products with sums, and divides by a constant through its inverse. Where rounding
    decides which pixels a bin has, it must be that of Fluid's kernels, which round every result.
    """
    info = jnp.finfo(dtype)
    return lax.reduce_precision(x, info.nexp, info.nmant).astype(dtype)


def _product(a: Array, b: Any) -> Array:
    return _as_kernels_round(a.astype(jnp.float64) * b, a.dtype)


def _share(length: Array, bins: int) -> Array:
    """Return the length of a bin: `length` divided by `bins`, rounded as Fluid's kernels round."""
    return _as_kernels_round(length.astype(jnp.float64) / bins, length.dtype)


def _scaled(corners: Array, scale: float) -> tuple[Array, ...]:
    """Return left, top, right, bottom, each [boxes], in pixels of the feature map."""
    return tuple(_product(corners, np.float64(np.float32(scale))).T)


def _sampled(start: Array, length: Array, bins: int, ratio: int, size: int) -> Array:
    """Return weights [boxes, bins, size] of the mean over bilinear samples.

    Each of the equal bins has `ratio` samples, or one for each pixel begun where that is not
    positive. Samples up to one pixel outside take the pixel at the edge; those beyond are zero.
    Samples between two pixels are counted and summed by formula, so that their number needs no
    bound.
    """
    bin_length = _share(length, bins)[:, None, None]
    number = jnp.full_like(bin_length, ratio) if ratio > 0 else jnp.ceil(bin_length)
    step = bin_length / number
    first = start[:, None, None] + jnp.arange(bins, dtype=start.dtype)[:, None] * bin_length

    def sample(k: Array) -> Array:
        return first + (k + 0.5) * step

    edges = jnp.arange(-1, size + 1, dtype=start.dtype)
    ends = edges.at[0].set(jnp.nextafter(edges[0], -jnp.inf))  # a sample at -1 counts, too
    below = jnp.clip(jnp.floor((ends - first) / step + 0.5), 0, number)
    below += (below < number) & (sample(below) <= ends)
    below -= (below > 0) & (sample(below - 1) > ends)
    count = jnp.diff(below)
    rise = count * (sample(below[..., :-1]) - edges[:-1]) + step * count * (count - 1) / 2
    fall = count - rise
    up = jnp.concatenate([count[..., :1], rise[..., 1:-1]], -1)
    down = jnp.concatenate([fall[..., 1:-1], count[..., -1:]], -1)
    return (up + down) / number


# Offsets of images in boxes, as a tensor.
_OFFSETS = RefusalRule(
    "RoisLod",
    lambda ins, attrs: refusals.offsets(rows_of(ins["RoisLod"]), refusals.count_of(ins["ROIs"])),
    "expected offsets that start at 0, never fall and end at the {limit} boxes, found {found}",
)


def _wrong_counts(ins: Mapping[str, Any], attrs: Mapping[str, Any]) -> Found:
    counts = rows_of(ins["BatchRoINums"]).reshape(-1).astype(jnp.int64)
    boxes = refusals.count_of(ins["ROIs"])
    return Found((counts < 0) | (counts.sum() != boxes), counts, boxes)


@op(
    "roi_align",
    ins=("X", "ROIs", "RoisLod?"),
    outs=("Out",),
    nograd=("ROIs", "RoisLod"),
    rows="sequence",
    refuses=(_OFFSETS,),
)
def roi_align(
    x: Value,
    boxes: Value,
    offsets: Value,
    *,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    sampling_ratio: int = -1,
) -> Value:
    """Average interpolated samples over the bins of each box (Mask R-CNN, arXiv:1703.06870)."""
    x, image = rows_of(x), rows_of(offsets)
    corners = check_boxes("roi_align", x, boxes, pooled_height, pooled_width, spatial_scale)
    image = images_of("roi_align", x, boxes, image)
    left, top, right, bottom = _scaled(corners, spatial_scale)
    down, across = (
        _sampled(start, jnp.maximum(end - start, 1), bins, sampling_ratio, size)
        for start, end, bins, size in (
            (top, bottom, pooled_height, x.shape[2]),
            (left, right, pooled_width, x.shape[3]),
        )
    )
    out = _weighted(_pixels(x), down, across, image, False)
    return of_boxes(boxes, by_channel(out))


def _overlap(begin: Array, end: Array) -> Array:
    """Integrate the triangle max(1 - |t|, 0) from begin to end, each half by its mean."""
    left, right = jnp.clip(begin, -1, 0), jnp.clip(end, -1, 0)
    rising = (right - left) * (1 + (left + right) / 2)
    left, right = jnp.clip(begin, 0, 1), jnp.clip(end, 0, 1)
    return rising + (right - left) * (1 - (left + right) / 2)


def _integrated(start: Array, length: Array, bins: int, size: int) -> Array:
    """Return weights [boxes, bins, size] of the integral of the bilinear image, which is zero outside."""
    bin_length = _share(length, bins)[:, None, None]
    begin = start[:, None, None] + jnp.arange(bins, dtype=start.dtype)[:, None] * bin_length
    pixel = jnp.arange(size, dtype=start.dtype)
    filled = bin_length > 0
    weight = _overlap(begin - pixel, begin + bin_length - pixel)
    return jnp.where(filled, weight / jnp.where(filled, bin_length, 1), 0)


@op(
    "prroi_pool",
    ins=("X", "ROIs", "BatchRoINums?"),
    outs=("Out",),
    nograd=("BatchRoINums",),
    rows="sequence",
    refuses=(
        RefusalRule(
            "BatchRoINums", _wrong_counts, "expected for each image a number of boxes, {limit} together, found {found}"
        ),
    ),
)
def prroi_pool(
    x: Value, boxes: Value, counts: Value, *, spatial_scale: float = 1.0, pooled_height: int = 1, pooled_width: int = 1
) -> Value:
    """Average the interpolated image over the bins of each box by its integral (IoU-Net, arXiv:1807.11590).

    Boxes have gradients, too.
    """
    x = rows_of(x)
    corners = check_boxes("prroi_pool", x, boxes, pooled_height, pooled_width, spatial_scale)
    image = images_of("prroi_pool", x, boxes, None, rows_of(counts))
    left, top, right, bottom = _scaled(corners, spatial_scale)
    down = _integrated(top, jnp.maximum(bottom - top, 0), pooled_height, x.shape[2])
    across = _integrated(left, jnp.maximum(right - left, 0), pooled_width, x.shape[3])
    out = _weighted(_pixels(x), down, across, image, True)
    return of_boxes(boxes, by_channel(out))


def rounded(x: Array) -> Array:
    """To the nearest integer, halves away from zero, as C does."""
    return jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5)


def _within(begin: Array, end: Array, size: int) -> Array:
    """Bool [boxes, bins, size]: the pixels from `begin` up to, without it, `end`."""
    pixel = jnp.arange(size, dtype=begin.dtype)
    return (pixel >= begin[..., None]) & (pixel < end[..., None])


@op("psroi_pool", ins=("X", "ROIs"), outs=("Out",), nograd=("ROIs",), rows="sequence")
def psroi_pool(
    x: Value,
    boxes: Value,
    *,
    output_channels: int,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
) -> Value:
    """Average pixels over the bins of each box; each bin reads separate channels (R-FCN, arXiv:1605.06409)."""
    x, bins = rows_of(x), pooled_height * pooled_width
    corners = check_boxes("psroi_pool", x, boxes, pooled_height, pooled_width, spatial_scale)
    if x.shape[1] != output_channels * bins:
        raise errors.ShapeError(
            f"psroi_pool: {output_channels} output channels in {pooled_height} x {pooled_width} bins "
            f"need {output_channels * bins} channels of X, found {x.shape[1]}"
        )
    image = images_of("psroi_pool", x, boxes, None)

    def mean(start: Array, end: Array, bins: int, size: int) -> Array:
        length = _share(jnp.maximum(end - start, 0.1), bins)[:, None]
        edges = _product(length, np.arange(bins + 1)) + start[:, None]
        inside = _within(jnp.floor(edges[:, :-1]), jnp.ceil(edges[:, 1:]), size)
        return inside / jnp.maximum(inside.sum(-1, keepdims=True), 1).astype(start.dtype)

    corners = rounded(corners) + jnp.asarray([0, 0, 1, 1], x.dtype)
    left, top, right, bottom = _scaled(corners, spatial_scale)
    down = mean(top, bottom, pooled_height, x.shape[2])
    across = mean(left, right, pooled_width, x.shape[3])
    out = _weighted(_pixels(x, bins), down, across, image, False)
    return of_boxes(boxes, by_channel(out))


@op(
    "roi_pool",
    ins=("X", "ROIs", "RoisLod?"),
    outs=("Out", "Argmax~"),
    nograd=("ROIs", "RoisLod"),
    rows="sequence",
    refuses=(_OFFSETS,),
)
def roi_pool(
    x: Value, boxes: Value, offsets: Value, *, spatial_scale: float = 1.0, pooled_height: int = 1, pooled_width: int = 1
) -> tuple[Value, Value]:
    """Return the maximum of each bin of each box, and its index y * width + x; an empty bin gives 0 and -1."""
    x, offsets = rows_of(x), rows_of(offsets)
    corners = check_boxes("roi_pool", x, boxes, pooled_height, pooled_width, spatial_scale)
    image = images_of("roi_pool", x, boxes, offsets)
    left, top, right, bottom = (rounded(c).astype(jnp.int32) for c in _scaled(corners, spatial_scale))

    def inside(start: Array, end: Array, bins: int, size: int) -> Array:
        length = jnp.maximum(end - start + 1, 1)[:, None]
        places = jnp.arange(bins, dtype=start.dtype)
        begin = places * length // bins + start[:, None]
        return _within(begin, -(-(places + 1) * length // bins) + start[:, None], size)

    down = inside(top, bottom, pooled_height, x.shape[2])
    across = inside(left, right, pooled_width, x.shape[3])
    best, place = _maxima(_pixels(x), down.astype(x.dtype), across.astype(x.dtype), image)
    empty = ~(down.any(-1)[:, :, None, None] & across.any(-1)[:, None, :, None])
    out = jnp.where(empty, 0, best)
    return (of_boxes(boxes, by_channel(out)), of_boxes(boxes, by_channel(place).astype(jnp.int64)))


@jax.custom_vjp
def _maxima(x: Array, down: Array, across: Array, image: Array) -> tuple[Array, Array]:
    """Return the maximum of each bin [boxes, rows, columns, channels], and its first index in the plane.

    A bin without a value above the lowest number gives the lowest number and -1.
    """
    visit = _Visit(x, down, across, image)
    pixels = x.reshape(-1, x.shape[-1])
    area = x.shape[1] * x.shape[2]

    def compare(step: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
        index, weight, _ = visit(step)
        value = pixels[index]
        larger = (value > found[0]) & (weight[..., None] > 0)
        here = (index % area)[..., None]
        return jnp.where(larger, value, found[0]), jnp.where(larger, here, found[1])

    shape = (*down.shape[:2], across.shape[1], x.shape[-1])
    start = jnp.full(shape, jnp.finfo(x.dtype).min, x.dtype), jnp.full(shape, -1, jnp.int32)
    return lax.fori_loop(0, visit.steps, compare, start)


def _maxima_forward(
    x: Array, down: Array, across: Array, image: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    found = _maxima(x, down, across, image)
    return found, (x, image, found[1])


def _maxima_backward(kept: tuple[Array, ...], grads: tuple[Array, Any]) -> tuple[Any, ...]:
    x, image, place = kept
    images, channels = x.shape[0], x.shape[-1]
    box = jnp.where(place < 0, images, image[:, None, None, None])  # nothing goes outside
    planes = jnp.zeros((images, x.shape[1] * x.shape[2], channels), x.dtype)
    planes = planes.at[box, place, jnp.arange(channels)].add(grads[0], mode="drop")
    return planes.reshape(x.shape), None, None, None


_maxima.defvjp(_maxima_forward, _maxima_backward)
