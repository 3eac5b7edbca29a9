"""Layers on boxes: priors and anchors, box coding, overlaps, matches and targets.

A box is four numbers: left, top, right, bottom. "Boxes with a LoD" are the boxes of all images, one
sequence for each image.
"""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.dtypes import FLOATS, hold
from jfluid.layers.helper import check_variable, emit

__all__ = [
    "anchor_generator",
    "bipartite_match",
    "box_clip",
    "box_coder",
    "box_decoder_and_assign",
    "density_prior_box",
    "iou_similarity",
    "polygon_box_transform",
    "prior_box",
    "target_assign",
]


def _numbers(value: Any) -> list[float]:
    """Return a number, or a sequence of numbers, as a list."""
    return [float(v) for v in (value if isinstance(value, (list, tuple)) else [value])]


def _pair(value: Any, layer: str, what: str) -> list[float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise errors.AttributeTypeError(
            f"layers.{layer}, {what}: expected two numbers (width, height), found {value!r}"
        )
    return _numbers(value)


def prior_box(
    input: Variable,
    image: Variable,
    min_sizes: float | Sequence[float],
    max_sizes: float | Sequence[float] | None = None,
    aspect_ratios: float | Sequence[float] = (1.0,),
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable]:
    """Return the prior boxes of SSD (Liu et al., 2016) and their variances: [height, width, priors, 4].

    Boxes are fractions of the image's width and height.

    Args:
        input: a feature map [N, C, height, width]; each cell gets the same priors.
        image: the images [N, C, image height, image width].
        min_sizes: the sides of priors of each aspect ratio, in pixels of the image.
        max_sizes: for each of `min_sizes` a larger size; a square prior of the size between gets
            sqrt(min * max).
        aspect_ratios: widths over heights; 1 is always included.
        variance: four numbers that codes are divided by.
        flip: True to include the inverse ratios.
        clip: True to clip priors to the image.
        steps: width and height of a cell in pixels; 0 for the image's size over the map's.
        offset: position of the centre in a cell.
        name: see `jfluid.layers`.
        min_max_aspect_ratios_order: True to put the square of `max_sizes` second, False to put it last.

    Raises:
        AttributeTypeError: wrong numbers of sizes, variances or steps.
        ShapeError: `input` or `image` is not of rank 4.
    """
    width, height = _pair(steps, "prior_box", "steps")
    largest = [] if max_sizes is None else _numbers(max_sizes)
    return emit(
        "prior_box",
        {"Input": hold(input, FLOATS, "prior_box", "input"), "Image": image},
        {
            "min_sizes": _numbers(min_sizes),
            "max_sizes": largest if largest and largest[0] > 0 else None,
            "aspect_ratios": _numbers(aspect_ratios),
            "variances": list(variance),
            "flip": flip,
            "clip": clip,
            "step_w": width,
            "step_h": height,
            "offset": offset,
            "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
        },
        outs=("Boxes", "Variances"),
        name=name,
        stop_gradient=True,
    )


def density_prior_box(
    input: Variable,
    image: Variable,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the prior boxes of FaceBoxes (Zhang et al., 2017) and their variances.

    Both are [height, width, priors, 4], or [height * width * priors, 4] with `flatten_to_2d`.

    Args:
        input: see `prior_box`.
        image: see `prior_box`.
        densities: for each of `fixed_sizes`, the number of rows and columns of priors in a cell.
        fixed_sizes: sides of priors, in pixels of the image.
        fixed_ratios: widths over heights, for all sizes.
        variance: see `prior_box`.
        clip: see `prior_box`.
        steps: see `prior_box`.
        offset: see `prior_box`.
        flatten_to_2d: True for a result of two dimensions.
        name: see `jfluid.layers`.

    Raises:
        AttributeTypeError: the densities, sizes or ratios are no lists, or of wrong lengths.
        ShapeError: `input` or `image` is not of rank 4.
    """
    lists = {"densities": densities, "fixed_sizes": fixed_sizes, "fixed_ratios": fixed_ratios}
    for what, value in lists.items():
        if not isinstance(value, (list, tuple)):
            raise errors.AttributeTypeError(
                f"layers.density_prior_box, {what}: expected a list of numbers, found {value!r}"
            )
    width, height = _pair(steps, "density_prior_box", "steps")
    return emit(
        "density_prior_box",
        {"Input": hold(input, FLOATS, "density_prior_box", "input"), "Image": image},
        {
            "densities": [int(d) for d in lists["densities"] or ()],
            "fixed_sizes": _numbers(fixed_sizes),
            "fixed_ratios": _numbers(fixed_ratios),
            "variances": list(variance),
            "clip": clip,
            "step_w": width,
            "step_h": height,
            "offset": offset,
            "flatten_to_2d": flatten_to_2d,
        },
        outs=("Boxes", "Variances"),
        name=name,
        stop_gradient=True,
    )


def anchor_generator(
    input: Variable,
    anchor_sizes: float | Sequence[float] | None = None,
    aspect_ratios: float | Sequence[float] | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the anchors of Faster R-CNN (Ren et al., 2015) and their variances: [height, width, anchors, 4].

    Anchors are in pixels of the image.

    Args:
        input: a feature map [N, C, height, width].
        anchor_sizes: the sides of square anchors, in pixels.
        aspect_ratios: heights over widths.
        variance: four numbers that codes are divided by.
        stride: width and height of a cell in pixels.
        offset: position of the centre in a cell.
        name: see `jfluid.layers`.

    Raises:
        AttributeTypeError: sizes or ratios are missing, or `stride` is no pair.
        ShapeError: `input` is not of rank 4.
    """
    return emit(
        "anchor_generator",
        {"Input": hold(input, FLOATS, "anchor_generator", "input")},
        {
            "anchor_sizes": _given(anchor_sizes, "anchor_sizes"),
            "aspect_ratios": _given(aspect_ratios, "aspect_ratios"),
            "variances": list(variance),
            "stride": _pair(stride, "anchor_generator", "stride"),
            "offset": offset,
        },
        outs=("Anchors", "Variances"),
        name=name,
        stop_gradient=True,
    )


def _given(value: Any, what: str) -> list[float]:
    if value is None:
        raise errors.AttributeTypeError(f"layers.anchor_generator: give {what}")
    return _numbers(value)


def box_coder(
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float],
    target_box: Variable,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Variable:
    """Encode boxes [rows, 4] against each prior to [rows, priors, 4], or decode codes [rows, columns, 4].

    Args:
        prior_box: priors [M, 4].
        prior_box_var: [M, 4], or four numbers: codes are divided by them.
        target_box: boxes, for "encode_center_size"; codes, for "decode_center_size".
        code_type: "encode_center_size" or "decode_center_size".
        box_normalized: True if boxes are fractions of the image, False if they are pixels.
        name: see `jfluid.layers`.
        axis: for decoding, 0 if priors go by columns, 1 if they go by rows.

    Raises:
        TypeError: `prior_box_var` is neither a Variable nor a list.
        ShapeError: the shapes do not match.
    """
    attrs = {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    inputs: dict[str, Any] = {
        "PriorBox": hold(prior_box, FLOATS, "box_coder", "prior_box"),
        "TargetBox": hold(target_box, FLOATS, "box_coder", "target_box"),
    }
    if isinstance(prior_box_var, (list, tuple)):
        attrs["variance"] = _numbers(prior_box_var)
    else:
        if prior_box_var is None:
            raise TypeError("layers.box_coder, prior_box_var: expected a Variable or four numbers, found None")
        inputs["PriorBoxVar"] = prior_box_var
    return emit("box_coder", inputs, attrs, outs=("OutputBox",), name=name)


def box_clip(input: Variable, im_info: Variable, name: str | None = None) -> Variable:
    """Return boxes with a LoD [rows, 4], clipped to their images.

    Args:
        input: boxes [rows, ..., 4] with a LoD.
        im_info: [images, 3]: height and width of the scaled image, and the scale; boxes are in pixels of the
            image before it was scaled.
        name: see `jfluid.layers`.
    """
    inputs = {"Input": hold(input, FLOATS, "box_clip", "input"), "ImInfo": hold(im_info, FLOATS, "box_clip", "im_info")}
    return emit("box_clip", inputs, outs=("Output",), name=name)


def box_decoder_and_assign(
    prior_box: Variable,
    prior_box_var: Variable,
    target_box: Variable,
    box_score: Variable,
    box_clip: float,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Decode the boxes of each class [rows, classes * 4], and select the best class's box [rows, 4].

    The best class has the highest score; class 0 is the background.

    Args:
        prior_box: [rows, 4] in pixels.
        prior_box_var: [4].
        target_box: codes [rows, classes * 4].
        box_score: [rows, classes].
        box_clip: a bound on the codes of width and height.
        name: see `jfluid.layers`.

    Raises:
        ShapeError: the shapes do not match.
    """
    return emit(
        "box_decoder_and_assign",
        {
            "PriorBox": hold(prior_box, FLOATS, "box_decoder_and_assign", "prior_box"),
            "PriorBoxVar": prior_box_var,
            "TargetBox": hold(target_box, FLOATS, "box_decoder_and_assign", "target_box"),
            "BoxScore": hold(box_score, FLOATS, "box_decoder_and_assign", "box_score"),
        },
        {"box_clip": box_clip},
        outs=("DecodeBox", "OutputAssignBox"),
        name=name,
    )


def iou_similarity(x: Variable, y: Variable, box_normalized: bool = True, name: str | None = None) -> Variable:
    """Return [rows of x, rows of y]: the intersection over union of each pair of boxes.

    Args:
        x: boxes [N, 4], may have a LoD, which the result gets.
        y: boxes [M, 4].
        box_normalized: True if boxes are shares of the image, not pixels.
        name: see `jfluid.layers`.
    """
    boxes = {s: hold(v, FLOATS, "iou_similarity", s.lower()) for s, v in (("X", x), ("Y", y))}
    return emit("iou_similarity", boxes, {"box_normalized": box_normalized}, name=name)


def polygon_box_transform(input: Variable, name: str | None = None) -> Variable:
    """Convert corner offsets [N, 2 * corners, height, width] on a quarter-size map to image coordinates.

    Even channels hold x, odd channels y (Zhou et al., EAST, 2017).
    """
    offsets = {"Input": hold(input, FLOATS, "polygon_box_transform", "input")}
    return emit("polygon_box_transform", offsets, outs=("Output",), name=name)


def bipartite_match(
    dist_matrix: Variable, match_type: str | None = None, dist_threshold: float | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Match each column of each image with a row, and return rows and distances.

    Rows are int32 [images, columns], -1 for none; the distance of an unmatched column is 0. Pairs are taken by
    falling distance, each row and column once.

    Args:
        dist_matrix: [rows, columns], larger is nearer; the rows of each image are a sequence.
        match_type: "bipartite" (None), or "per_prediction": unmatched columns get the row of the largest
            distance, if that is at least `dist_threshold`.
        dist_threshold: see `match_type`; 0.5 when None.
        name: see `jfluid.layers`.
    """
    return emit(
        "bipartite_match",
        {"DistMat": hold(dist_matrix, FLOATS, "bipartite_match", "dist_matrix")},
        {"match_type": match_type, "dist_threshold": dist_threshold},
        outs=("ColToRowMatchIndices", "ColToRowMatchDist"),
        name=name,
    )


def target_assign(
    input: Variable,
    matched_indices: Variable,
    negative_indices: Variable | None = None,
    mismatch_value: int | None = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the training target of each prior [images, priors, width], and its weight (0 or 1).

    Weights are float32 [images, priors, 1].

    Args:
        input: [rows, priors, width] or [rows, 1, width] with a LoD: the targets of each ground truth box.
        matched_indices: int32 [images, priors], from `bipartite_match`.
        negative_indices: int32 [rows, 1] with a LoD: priors of each image that have weight 1 although
            their target is `mismatch_value`.
        mismatch_value: the target of priors without a match; None for 0.
        name: see `jfluid.layers`.
    """
    check_variable(input, "target_assign", "input")
    return emit(
        "target_assign",
        {"X": input, "MatchIndices": matched_indices, "NegIndices": negative_indices},
        {"mismatch_value": mismatch_value},
        outs=("Out", "OutWeight"),
        name=name,
    )
