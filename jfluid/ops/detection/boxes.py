"""Boxes [..., 4] (left, top, right, bottom): overlaps, codes against priors, clipping.

"Normalized" boxes are given as shares of the image's width and height. Others are in pixels, and
include the pixels that their sides lie on: a box is one wider than the difference of its sides.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Ragged, Value, need, rows_of
from jfluid.ops.ragged_dispatch import NeedsExactRows
from jfluid.ops.registry import Floats, op


def need_boxes(op_type: str, slot: str, x: Array, rank: int = 2) -> None:
    """Raise ShapeError if x is not [..., 4] of that rank."""
    if x.ndim != rank or x.shape[-1] != 4:
        wanted = ", ".join(["rows", "columns"][: rank - 1] + ["4"])
        raise errors.ShapeError(f"{op_type}: expected {slot} [{wanted}], found {list(x.shape)}")


def overlaps(a: Array, b: Array, normalized: bool) -> Array:
    """Return the IoU of boxes a [..., 4] and b [..., 4], broadcast; 0 if both are empty."""
    more = 0 if normalized else 1
    width = jnp.minimum(a[..., 2], b[..., 2]) - jnp.maximum(a[..., 0], b[..., 0]) + more
    height = jnp.minimum(a[..., 3], b[..., 3]) - jnp.maximum(a[..., 1], b[..., 1]) + more
    common = jnp.maximum(width, 0) * jnp.maximum(height, 0)
    area_a, area_b = ((x[..., 2] - x[..., 0] + more) * (x[..., 3] - x[..., 1] + more) for x in (a, b))
    union = area_a + area_b - common
    return jnp.where(union == 0, 0, common / jnp.where(union == 0, 1, union)).astype(a.dtype)


def _exact_rows(op_type: str, slot: str, x: Value) -> Array:
    """Return the rows of a slot that every output row reads in full.

    Raises NeedsExactRows if some rows may be padding.
    """
    if isinstance(x, Ragged) and not x.exact and static_values.placeholder() is None:
        raise NeedsExactRows(f"{op_type} reads all rows of {slot} for each row of its result")
    return rows_of(x)


@op("iou_similarity", ins=("X", "Y"), outs=("Out",), grad=False, rows="sequence")
def iou_similarity(x: Value, y: Value, *, box_normalized: bool = True) -> Value:
    """Return [rows of X, rows of Y], the intersection over union of each pair of boxes."""
    boxes, others = rows_of(x), _exact_rows("iou_similarity", "Y", y)
    need_boxes("iou_similarity", "X", boxes)
    need_boxes("iou_similarity", "Y", others)
    found = overlaps(boxes[:, None], others, box_normalized)
    return x.like(found) if isinstance(x, Ragged) else found


def centres(boxes: Array, normalized: bool) -> tuple[Array, Array, Array, Array]:
    """Return (x of the centre, y of it, width, height) of boxes [..., 4]."""
    more = 0 if normalized else 1
    width, height = boxes[..., 2] - boxes[..., 0] + more, boxes[..., 3] - boxes[..., 1] + more
    return boxes[..., 0] + width / 2, boxes[..., 1] + height / 2, width, height


def from_centres(x: Array, y: Array, width: Array, height: Array, normalized: bool) -> Array:
    """Return boxes [..., 4] from centres, widths and heights, the inverse of `centres`."""
    less = 0 if normalized else 1
    return jnp.stack([x - width / 2, y - height / 2, x + width / 2 - less, y + height / 2 - less], axis=-1)


def encode(boxes: Array, priors: Array, normalized: bool) -> Array:
    """Encode boxes [..., 4] relative to priors, the inverse of `decode`."""
    # For encoding, Fluid takes the mean of the sides as the centre, for boxes in pixels too.
    x, y = (boxes[..., 0] + boxes[..., 2]) / 2, (boxes[..., 1] + boxes[..., 3]) / 2
    _, _, width, height = centres(boxes, normalized)
    prior_x, prior_y, prior_w, prior_h = centres(priors, normalized)
    return jnp.stack(
        [
            (x - prior_x) / prior_w,
            (y - prior_y) / prior_h,
            jnp.log(jnp.abs(width / prior_w)),
            jnp.log(jnp.abs(height / prior_h)),
        ],
        axis=-1,
    )


def decode(codes: Array, priors: Array, normalized: bool, limit: float | None = None) -> Array:
    """Decode boxes [..., 4] from codes relative to priors.

    Codes are shifts of the centre in widths and heights of the prior, and logarithms of the ratios of widths
    and heights, which `limit` bounds.
    """
    prior_x, prior_y, prior_w, prior_h = centres(priors, normalized)
    scale = codes[..., 2:] if limit is None else jnp.minimum(codes[..., 2:], limit)
    return from_centres(
        codes[..., 0] * prior_w + prior_x,
        codes[..., 1] * prior_h + prior_y,
        jnp.exp(scale[..., 0]) * prior_w,
        jnp.exp(scale[..., 1]) * prior_h,
        normalized,
    )


@op("box_coder", ins=("PriorBox", "PriorBoxVar?", "TargetBox"), outs=("OutputBox",), grad=False, rows="sequence")
def box_coder(
    prior: Value,
    prior_variances: Value | None,
    target: Value,
    *,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    axis: int = 0,
    variance: Floats = (),
) -> Value:
    """Encode target boxes [rows, 4] against each prior, or decode codes [rows, columns, 4].

    Encoding returns [rows, priors, 4]. Decoding takes priors by columns (axis 0) or by rows (axis 1).
    """
    encodes = _is_encoder(code_type)
    by_rows = not encodes and axis == 1
    read = rows_of if by_rows else functools.partial(_exact_rows, "box_coder", "PriorBox")
    priors = read(prior)
    variances = None if prior_variances is None else read(prior_variances)
    rows = rows_of(target)
    _check_coder(rows, priors, variances, variance, axis, encodes)
    scale = jnp.asarray(variance or 1.0, rows.dtype) if variances is None else variances
    if by_rows:
        priors, scale = priors[:, None], scale[:, None] if scale.ndim > 1 else scale
    found = (
        encode(rows[:, None], priors, box_normalized) / scale
        if encodes
        else decode(rows * scale, priors, box_normalized)
    )
    return target.like(found) if isinstance(target, Ragged) else found


def _is_encoder(code_type: str) -> bool:
    kinds = {"encode_center_size": True, "decode_center_size": False}
    if code_type.lower() not in kinds:
        raise errors.AttributeTypeError(f"box_coder: code_type: expected one of {list(kinds)}, found {code_type!r}")
    return kinds[code_type.lower()]


def _check_coder(
    rows: Array, priors: Array, variances: Array | None, variance: Sequence[float], axis: int, encodes: bool
) -> None:
    need_boxes("box_coder", "PriorBox", priors)
    need_boxes("box_coder", "TargetBox", rows, 2 if encodes else 3)
    if axis not in (0, 1):
        raise errors.AttributeTypeError(f"box_coder: axis: expected 0 or 1, found {axis}")
    if variance and len(variance) != 4:
        raise errors.AttributeTypeError(f"box_coder: variance: expected four numbers, found {list(variance)}")
    if variance and variances is not None:
        raise errors.AttributeTypeError("box_coder: give PriorBoxVar or variance, not both")
    if variances is not None and variances.shape != priors.shape:
        raise errors.ShapeError(
            f"box_coder: expected PriorBoxVar of the shape of PriorBox, {list(priors.shape)}, found "
            f"{list(variances.shape)}"
        )
    unknown = static_values.placeholder() is not None  # rows that are not known stand for any number
    if not encodes and rows.shape[1 - axis] != priors.shape[0] and not unknown:
        raise errors.ShapeError(
            f"box_coder: expected TargetBox with {priors.shape[0]} codes along dimension {1 - axis}, one for each "
            f"prior, found {list(rows.shape)}"
        )


@op("box_clip", ins=("Input", "ImInfo"), outs=("Output",), grad=False, rows="sequence")
def box_clip(x: Value, info: Value) -> Value:
    """Clip boxes [rows, ..., 4] to their images.

    ImInfo [images, 3] has the scaled height and width, and the scale.
    """
    rows, info = rows_of(x), rows_of(info)
    if rows.shape[-1] != 4 or info.ndim != 2 or info.shape[1] != 3:
        raise errors.ShapeError(
            "box_clip: expected Input [rows, 4] and ImInfo [images, 3], "
            f"found {list(rows.shape)} and {list(info.shape)}"
        )
    size = jnp.floor(info[:, :2] / info[:, 2:] + 0.5).astype(rows.dtype) - 1
    most = jnp.stack([size[:, 1], size[:, 0]] * 2, axis=-1)
    ragged = need(x, "box_clip", "Input")
    most = jnp.take(most, ragged.segments(), axis=0, mode="clip")
    most = most.reshape(most.shape[:1] + (1,) * (rows.ndim - 2) + (4,))
    return ragged.like(jnp.maximum(jnp.minimum(rows, most), 0))


@op("polygon_box_transform", ins=("Input",), outs=("Output",), grad=False, rows="map")
def polygon_box_transform(x: Array) -> Array:
    """Convert corner offsets [N, 2 * corners, H, W] on a quarter-size map to image coordinates.

    Even channels hold x, odd channels y (Zhou et al., EAST, 2017).
    """
    if x.ndim != 4 or x.shape[1] % 2:
        raise errors.ShapeError(
            f"polygon_box_transform: expected Input [N, an even number, H, W], found {list(x.shape)}"
        )
    _, channels, height, width = x.shape
    across = jnp.arange(width, dtype=x.dtype) * 4
    down = jnp.arange(height, dtype=x.dtype)[:, None] * 4
    even = (jnp.arange(channels) % 2 == 0)[:, None, None]
    return jnp.where(even, across, down) - x


@op(
    "box_decoder_and_assign",
    ins=("PriorBox", "PriorBoxVar?", "TargetBox", "BoxScore"),
    outs=("DecodeBox", "OutputAssignBox"),
    grad=False,
    rows="map",
)
def box_decoder_and_assign(
    prior: Array, variances: Array | None, target: Array, score: Array, *, box_clip: float = 4.135000228881836
) -> tuple[Array, Array]:
    """Decode the boxes of each class [rows, classes * 4], and select the box of the best class [rows, 4].

    The best class has the highest score above -1 and is not class 0. Without a best class, the box is the
    prior.
    """
    need_boxes("box_decoder_and_assign", "PriorBox", prior)
    rows, classes = score.shape
    if target.shape != (rows, classes * 4) or (variances is not None and variances.size != 4):
        raise errors.ShapeError(
            "box_decoder_and_assign: expected TargetBox [rows, classes * 4], BoxScore [rows, classes] and "
            f"PriorBoxVar [4], found {list(target.shape)}, {list(score.shape)} and "
            f"{None if variances is None else list(variances.shape)}"
        )
    codes = target.reshape(rows, classes, 4)
    if variances is not None:
        codes = codes * variances.reshape(4)
    boxes = decode(codes, prior[:, None], False, box_clip)
    if classes == 1:
        return boxes.reshape(rows, 4), prior
    best = 1 + jnp.argmax(score[:, 1:], axis=1)
    assigned = jnp.take_along_axis(boxes, best[:, None, None], axis=1)[:, 0]
    # Scores are probabilities to Fluid, which starts its search at -1.
    found = score[:, 1:].max(axis=1) > -1
    return boxes.reshape(rows, classes * 4), jnp.where(found[:, None], assigned, prior)
