"""SSD (Liu et al., 2016): prediction heads over feature maps, loss and detections."""

import warnings
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.activation import softmax
from jfluid.layers.conv import conv2d
from jfluid.layers.creation import cast
from jfluid.layers.detection.boxes import bipartite_match, box_coder, iou_similarity, prior_box, target_assign
from jfluid.layers.helper import check_variable, emit
from jfluid.layers.indexing import slice
from jfluid.layers.loss import smooth_l1, softmax_with_cross_entropy
from jfluid.layers.math import reduce_sum
from jfluid.layers.shape import flatten, reshape, transpose
from jfluid.layers.tensor import concat, shape

__all__ = ["detection_output", "multi_box_head", "ssd_loss"]


def _of_each_map(value: Any, count: int, what: str) -> list[Any]:
    """Return a list with an entry for each feature map; entries are None if `value` is None."""
    if value is None:
        return [None] * count
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise errors.AttributeTypeError(
            f"layers.multi_box_head, {what}: expected a list with an entry for each of {count} feature maps, "
            f"found {value!r}"
        )
    return list(value)


def _sizes(base: float, least: int | None, most: int | None, maps: int) -> tuple[list[float], list[float]]:
    """Return the minimum and maximum sizes of the priors of each map.

    Sizes rise in equal steps between two percentages of the image's size; the first map has priors of 10 and 20
    percent.
    """
    if maps <= 2 or least is None or most is None:
        raise errors.AttributeTypeError(
            "layers.multi_box_head: give min_sizes and max_sizes, or, for more than two feature maps, min_ratio "
            f"and max_ratio; found {maps} maps and ratios {least} and {most}"
        )
    step = (most - least) // (maps - 2)
    if step < 1:
        raise errors.AttributeTypeError(
            f"layers.multi_box_head: min_ratio and max_ratio are {least} and {most}: expected ratios that are "
            f"{maps - 2} percent apart or more"
        )
    ratios = range(least, most + 1, step)
    return ([base * 0.1] + [base * r / 100 for r in ratios], [base * 0.2] + [base * (r + step) / 100 for r in ratios])


def multi_box_head(
    inputs: Sequence[Variable],
    image: Variable,
    base_size: float,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: int = 1,
    pad: int = 0,
    stride: int = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable, Variable, Variable]:
    """Return the SSD predictions of convolutions over each feature map, the priors and their variances.

    Predictions are box codes [N, priors, 4] and class scores [N, priors, num_classes]; priors and variances are
    [priors, 4].

    For a single feature map Fluid, and so this layer, returns all four unflattened: [N,
    numbers], [N, numbers], and [height, width, priors of a cell, 4] twice.

    Args:
        inputs: feature maps [N, C, height, width].
        image: the images [N, C, image height, image width].
        base_size: the image's size, to which ratios refer.
        num_classes: the number of classes, including the background.
        aspect_ratios: for each map, a width over height or several.
        min_ratio: the smallest size of priors in percent of `base_size`, for more than two maps and without
            `min_sizes`.
        max_ratio: the largest size, like `min_ratio`.
        min_sizes: for each map, a size of priors in pixels or several.
        max_sizes: like `min_sizes`.
        steps: for each map, the width and height of a cell in pixels.
        step_w: for each map, the width of a cell in pixels.
        step_h: for each map, the height of a cell in pixels.
        offset: see `prior_box`.
        variance: see `prior_box`.
        flip: see `prior_box`.
        clip: see `prior_box`.
        kernel_size: filter size of the convolutions, which have to keep the map's size.
        pad: padding of the convolutions.
        stride: stride of the convolutions.
        name: no effect, as in Fluid.
        min_max_aspect_ratios_order: see `prior_box`.

    Raises:
        AttributeTypeError: a list's length is not the number of maps, or sizes are missing.
    """
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise errors.AttributeTypeError(
            f"layers.multi_box_head, inputs: expected a list of feature maps, found {inputs!r:.60}"
        )
    count = len(inputs)
    if min_sizes is None and max_sizes is None:
        least, most = _sizes(base_size, min_ratio, max_ratio, count)
    else:
        least = _of_each_map(min_sizes, count, "min_sizes")
        most = _of_each_map(max_sizes, count, "max_sizes")
    if min_sizes is None and max_sizes is not None:
        raise errors.AttributeTypeError("layers.multi_box_head: max_sizes need min_sizes")
    ratios = _of_each_map(aspect_ratios or None, count, "aspect_ratios")
    widths = _of_each_map(step_w if steps is None else steps, count, "step_w")
    heights = _of_each_map(step_h if steps is None else steps, count, "step_h")
    places: list[Variable] = []
    scores: list[Variable] = []
    boxes, variances = [], []
    for i, x in enumerate(inputs):
        box, variances_of_box = prior_box(
            x,
            image,
            least[i],
            most[i],
            [] if ratios[i] is None else ratios[i],
            variance,
            flip,
            clip,
            [widths[i] or 0.0, heights[i] or 0.0],
            offset,
            min_max_aspect_ratios_order=min_max_aspect_ratios_order,
        )
        boxes.append(box)
        variances.append(variances_of_box)
        for width, found in ((4, places), (num_classes, scores)):
            filters = box.shape[2] * width
            y = conv2d(x, filters, kernel_size, stride=stride, padding=pad)
            found.append(flatten(transpose(y, [0, 2, 3, 1]), axis=1))
    if count == 1:
        return places[0], scores[0], boxes[0], variances[0]
    place = reshape(concat(places, axis=1), [0, -1, 4])
    score = reshape(concat(scores, axis=1), [0, -1, num_classes])
    box, variances_of_box = (concat([flatten(v, axis=3) for v in vs]) for vs in (boxes, variances))
    box.stop_gradient = variances_of_box.stop_gradient = True
    return place, score, box, variances_of_box


def _as_rows(x: Variable) -> Variable:
    """Return [images * priors, width] of x [images, priors, width]."""
    return flatten(x, axis=2)


def _constant(x: Variable) -> Variable:
    """Stop the gradient of x, and return x."""
    x.stop_gradient = True
    return x


def ssd_loss(
    location: Variable,
    confidence: Variable,
    gt_box: Variable,
    gt_label: Variable,
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float] | None = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Variable:
    """Return the SSD loss of each image [images, 1].

    It is the cross entropy of the classes of matched priors and of the hardest unmatched priors, plus smooth
    L1 of the codes of matched priors.

    Args:
        location: predicted codes [images, priors, 4].
        confidence: scores of classes [images, priors, classes].
        gt_box: the ground truth boxes [rows, 4] with a LoD, as fractions of the image.
        gt_label: their classes [rows, 1] with the same LoD.
        prior_box: [priors, 4].
        prior_box_var: their variances [priors, 4], or four numbers; must be given.
        background_label: the class of unmatched priors.
        overlap_threshold: the IoU from which a prior matches a box ("per_prediction").
        neg_pos_ratio: the number of negative priors for each matched prior.
        neg_overlap: the IoU below which priors may be negative.
        loc_loss_weight: factor of the loss of codes.
        conf_loss_weight: factor of the loss of classes.
        match_type: "per_prediction", or "bipartite" for one prior for each box.
        mining_type: must be "max_negative".
        normalize: True to divide the loss by the number of matches of the batch; without a match it is NaN.
        sample_size: no effect for "max_negative".

    Raises:
        AttributeTypeError: another `mining_type`.
        TypeError: `prior_box_var` is missing.
    """
    if mining_type != "max_negative":
        raise errors.AttributeTypeError(f"layers.ssd_loss, mining_type: expected max_negative, found {mining_type!r}")
    for what, value in (("location", location), ("confidence", confidence), ("gt_label", gt_label)):
        check_variable(value, "ssd_loss", what)
    if prior_box_var is None:
        raise TypeError("layers.ssd_loss, prior_box_var: expected a Variable or four numbers")
    by_image = _constant(slice(shape(confidence), axes=[0], starts=[0], ends=[2]))
    scores = _as_rows(confidence)
    labels = _constant(reshape(gt_label, [0] * (len(gt_label.shape) - 1) + [-1, 1]))

    overlap = iou_similarity(gt_box, prior_box)
    match, distance = bipartite_match(overlap, match_type, overlap_threshold)
    wanted, _ = target_assign(labels, match, mismatch_value=background_label)
    hardness = _cross_entropy(scores, cast(wanted, "int64"))
    negatives, match = emit(
        "mine_hard_examples",
        {
            "ClsLoss": _constant(reshape(hardness, [-1, 0], actual_shape=by_image)),
            "MatchIndices": match,
            "MatchDist": distance,
        },
        {
            "neg_pos_ratio": neg_pos_ratio,
            "neg_dist_threshold": neg_overlap,
            "mining_type": mining_type,
            "sample_size": sample_size,
        },
        outs=("NegIndices", "UpdatedMatchIndices"),
    )

    codes = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    codes, matched = target_assign(codes, match, mismatch_value=background_label)
    wanted, counted = target_assign(labels, match, negatives, mismatch_value=background_label)
    matched, counted = _constant(_as_rows(matched)), _constant(_as_rows(counted))
    class_loss = _cross_entropy(scores, cast(wanted, "int64")) * counted
    place_loss = smooth_l1(_as_rows(location), _constant(_as_rows(codes))) * matched
    loss = conf_loss_weight * class_loss + loc_loss_weight * place_loss
    loss = reduce_sum(reshape(loss, [-1, 0], actual_shape=by_image), dim=1, keep_dim=True)
    return loss / reduce_sum(matched) if normalize else loss


def _cross_entropy(scores: Variable, wanted: Variable) -> Variable:
    """Return [images * priors, 1] of scores [images * priors, classes] and classes [images, priors, 1]."""
    found = softmax_with_cross_entropy(scores, _constant(_as_rows(wanted)))
    assert isinstance(found, Variable)  # not the pair that return_softmax gives
    return found


def detection_output(
    loc: Variable,
    scores: Variable,
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float],
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Variable | tuple[Variable, Variable]:
    """Decode SSD's predictions and apply non-maximum suppression by class.

    Returns rows (class, score, left, top, right, bottom) with a LoD.

    Args:
        loc: predicted codes [images, priors, 4].
        scores: scores of classes [images, priors, classes], before the softmax.
        prior_box: [priors, 4].
        prior_box_var: their variances [priors, 4], or four numbers.
        background_label: always 0, as in Fluid, with a warning for another value; `multiclass_nms` takes
            any class.
        nms_threshold: see `multiclass_nms`.
        nms_top_k: see `multiclass_nms`.
        keep_top_k: see `multiclass_nms`.
        score_threshold: see `multiclass_nms`.
        nms_eta: always 1.0, as in Fluid, with a warning for another value.
        return_index: True to also return the indices of the boxes [rows, 1] among the boxes of all images.
    """
    if background_label != 0 or nms_eta != 1.0:
        warnings.warn(
            f"layers.detection_output: background_label={background_label} and nms_eta={nms_eta} have no effect, as in "
            "Fluid; for other values call box_coder, softmax and multiclass_nms",
            RuntimeWarning,
            stacklevel=2,
        )
    boxes = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    likely = _constant(transpose(softmax(scores), [0, 2, 1]))
    inputs = {"Scores": likely, "BBoxes": boxes}
    attrs = {
        "background_label": 0,
        "nms_threshold": nms_threshold,
        "nms_top_k": nms_top_k,
        "keep_top_k": keep_top_k,
        "score_threshold": score_threshold,
        "nms_eta": 1.0,
    }
    layer = "detection_output"
    if not return_index:
        return emit("multiclass_nms", inputs, attrs, layer=layer, stop_gradient=True)
    return emit("multiclass_nms2", inputs, attrs, outs=("Out", "Index"), layer=layer, stop_gradient=True)
