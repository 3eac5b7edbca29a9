"""Boxes laid over the cells of a feature map: priors of SSD, anchors of Faster R-CNN.

They depend on the shapes of the inputs only. A cell's boxes are given as offsets of their sides
from its centre, in pixels of the image.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import unrolled
from jfluid.ops.registry import Floats, Ints, op

_MOST_BOXES = 1 << 14  # of a cell: Python computes each


def _feature_map(op_type: str, slot: str, x: Array) -> tuple[int, int]:
    """Return the height and width of x [N, C, H, W], or raise ShapeError."""
    if x.ndim != 4:
        raise errors.ShapeError(f"{op_type}: expected {slot} [N, C, H, W], found {list(x.shape)}")
    return x.shape[2], x.shape[3]


def _four_variances(op_type: str, variances: Sequence[float]) -> None:
    if len(variances) != 4 or any(v <= 0 for v in variances):
        raise errors.AttributeTypeError(
            f"{op_type}: variances: expected four positive numbers, found {list(variances)}"
        )


def _over_cells(
    sizes: Sequence[tuple[float, float, float, float]], x: Array, y: Array
) -> tuple[Array, Array, Array, Array]:
    """Return the sides (left, top, right, bottom) of boxes in all cells, each [H, W, boxes].

    `sizes` are the distances of the sides from the cells' centres x [W], y [H].
    """
    left, top, right, bottom = (jnp.asarray(s, x.dtype) for s in zip(*sizes))
    shape = (y.shape[0], x.shape[0], len(sizes))
    x, y = x[None, :, None], y[:, None, None]
    return tuple(  # type: ignore[return-value]
        jnp.broadcast_to(side, shape) for side in (x + left, y + top, x + right, y + bottom)
    )


def _with_variances(boxes: Array, variances: Sequence[float]) -> tuple[Array, Array]:
    return boxes, jnp.broadcast_to(jnp.asarray(variances, boxes.dtype), boxes.shape)


def _all_ratios(ratios: Sequence[float], flip: bool) -> list[float]:
    """Return 1 and the distinct ratios, each followed by its inverse with `flip`."""
    found = [1.0]
    for ratio in ratios:
        if all(abs(ratio - other) >= 1e-6 for other in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return found


def _prior_sizes(
    min_sizes: Sequence[float], max_sizes: Sequence[float], ratios: Sequence[float], by_size: bool
) -> list[tuple[float, float]]:
    """Return (width, height) of the priors of a cell, in pixels.

    `by_size` puts that between minimum and maximum second, not last.
    """
    found = []
    for i, size in enumerate(min_sizes):
        between = [(math.sqrt(size * max_sizes[i]),) * 2] if max_sizes else []
        shaped = [(size * math.sqrt(r), size / math.sqrt(r)) for r in ratios]
        found += shaped[:1] + between + shaped[1:] if by_size else shaped + between
    return found


@op(
    "prior_box", ins=("Input", "Image"), outs=("Boxes", "Variances"), grad=False, rows="mask"
)  # ragged images do not change the boxes
def prior_box(
    x: Array,
    image: Array,
    *,
    min_sizes: Floats,
    max_sizes: Floats = (),
    aspect_ratios: Floats,
    variances: Floats,
    flip: bool = True,
    clip: bool = True,
    step_w: float = 0.0,
    step_h: float = 0.0,
    offset: float = 0.5,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Array, Array]:
    """Return prior boxes [H, W, priors, 4] of a feature map's cells, and their variances.

    Coordinates are fractions of the image's width and height (Liu et al., SSD, 2016).
    """
    (height, width), (image_h, image_w) = (_feature_map("prior_box", s, v) for s, v in (("Input", x), ("Image", image)))
    _four_variances("prior_box", variances)
    ratios = unrolled.times("prior_box", "number of aspect_ratios", len(aspect_ratios))
    unrolled.times("prior_box", "number of boxes of a cell", (ratios + 1) * len(min_sizes), _MOST_BOXES)
    if max_sizes and len(max_sizes) != len(min_sizes):
        raise errors.AttributeTypeError(
            f"prior_box, max_sizes: expected none or {len(min_sizes)}, as in min_sizes, found {len(max_sizes)}"
        )
    if any(high <= low for low, high in zip(min_sizes, max_sizes)) or any(s <= 0 for s in min_sizes):
        raise errors.AttributeTypeError(
            f"prior_box: expected 0 < min_sizes < max_sizes, found {list(min_sizes)} and {list(max_sizes)}"
        )
    if not (step_w and step_h):
        step_w, step_h = image_w / width, image_h / height
    sizes = _prior_sizes(min_sizes, max_sizes, _all_ratios(aspect_ratios, flip), min_max_aspect_ratios_order)
    left, top, right, bottom = _over_cells(
        [(-w / 2, -h / 2, w / 2, h / 2) for w, h in sizes],
        (jnp.arange(width, dtype=x.dtype) + offset) * step_w,
        (jnp.arange(height, dtype=x.dtype) + offset) * step_h,
    )
    boxes = jnp.stack([left / image_w, top / image_h, right / image_w, bottom / image_h], axis=-1)
    return _with_variances(jnp.clip(boxes, 0, 1) if clip else boxes, variances)


@op("density_prior_box", ins=("Input", "Image"), outs=("Boxes", "Variances"), grad=False, rows="mask")
def density_prior_box(
    x: Array,
    image: Array,
    *,
    variances: Floats,
    clip: bool = True,
    flatten_to_2d: bool = False,
    step_w: float = 0.0,
    step_h: float = 0.0,
    offset: float = 0.5,
    fixed_sizes: Floats = (),
    fixed_ratios: Floats = (),
    densities: Ints = (),
) -> tuple[Array, Array]:
    """Return density prior boxes: densities[i] x densities[i] shifted boxes of fixed_sizes[i] in a cell.

    The result is [H * W * priors, 4] with `flatten_to_2d` (Zhang et al., FaceBoxes, 2017).
    """
    (height, width), (image_h, image_w) = (
        _feature_map("density_prior_box", s, v) for s, v in (("Input", x), ("Image", image))
    )
    _four_variances("density_prior_box", variances)
    if len(fixed_sizes) != len(densities) or not densities or not fixed_ratios:
        raise errors.AttributeTypeError(
            "density_prior_box: expected a density for each of fixed_sizes, and a fixed ratio, found "
            f"{list(densities)}, {list(fixed_sizes)} and {list(fixed_ratios)}"
        )
    if any(d <= 0 for d in densities):
        raise errors.AttributeTypeError(
            f"density_prior_box: densities: expected positive numbers, found {list(densities)}"
        )
    boxes_of_a_cell = len(fixed_ratios) * sum(d * d for d in densities)
    unrolled.times("density_prior_box", "number of boxes of a cell", boxes_of_a_cell, _MOST_BOXES)
    if not (step_w and step_h):
        step_w, step_h = image_w / width, image_h / height
    step = int((step_w + step_h) / 2)
    sizes = []
    for size, density in zip(fixed_sizes, densities):
        shift = step // density
        centres = [(k + 0.5) * shift - step / 2 for k in range(density)]
        for ratio in fixed_ratios:
            w, h = size * math.sqrt(ratio) / 2, size / math.sqrt(ratio) / 2
            sizes += [(cx - w, cy - h, cx + w, cy + h) for cy in centres for cx in centres]
    left, top, right, bottom = _over_cells(
        sizes,
        (jnp.arange(width, dtype=x.dtype) + offset) * step_w,
        (jnp.arange(height, dtype=x.dtype) + offset) * step_h,
    )
    boxes = jnp.stack(
        [
            jnp.maximum(left / image_w, 0),
            jnp.maximum(top / image_h, 0),
            jnp.minimum(right / image_w, 1),
            jnp.minimum(bottom / image_h, 1),
        ],
        axis=-1,
    )
    boxes = jnp.clip(boxes, 0, 1) if clip else boxes
    return _with_variances(boxes.reshape(-1, 4) if flatten_to_2d else boxes, variances)


@op("anchor_generator", ins=("Input",), outs=("Anchors", "Variances"), grad=False, rows="mask")
def anchor_generator(
    x: Array, *, anchor_sizes: Floats, aspect_ratios: Floats, variances: Floats, stride: Floats, offset: float = 0.5
) -> tuple[Array, Array]:
    """Return anchors [H, W, ratios * sizes, 4] in pixels, and their variances.

    Sides are whole numbers of strides at each aspect ratio (Ren et al., Faster R-CNN, 2015).
    """
    height, width = _feature_map("anchor_generator", "Input", x)
    _four_variances("anchor_generator", variances)
    boxes_of_a_cell = len(anchor_sizes) * len(aspect_ratios)
    unrolled.times("anchor_generator", "number of boxes of a cell", boxes_of_a_cell, _MOST_BOXES)
    if len(stride) != 2 or not anchor_sizes or not aspect_ratios:
        raise errors.AttributeTypeError(
            "anchor_generator: expected anchor_sizes, aspect_ratios and stride (width, height), found "
            f"{list(anchor_sizes)}, {list(aspect_ratios)} and {list(stride)}"
        )
    sizes = []
    for ratio in aspect_ratios:
        base_w = math.floor(math.sqrt(stride[0] * stride[1] / ratio) + 0.5)
        base_h = math.floor(base_w * ratio + 0.5)
        for size in anchor_sizes:
            w, h = (size / stride[0] * base_w - 1) / 2, (size / stride[1] * base_h - 1) / 2
            sizes.append((-w, -h, w, h))
    sides = _over_cells(
        sizes,
        jnp.arange(width, dtype=x.dtype) * stride[0] + offset * (stride[0] - 1),
        jnp.arange(height, dtype=x.dtype) * stride[1] + offset * (stride[1] - 1),
    )
    return _with_variances(jnp.stack(sides, axis=-1), variances)
