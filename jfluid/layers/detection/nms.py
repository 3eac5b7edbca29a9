"""Non-maximum suppression."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.helper import check_variable, emit

__all__ = ["locality_aware_nms", "matrix_nms", "multiclass_nms", "retinanet_detection_output"]


def multiclass_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Variable:
    """Apply non-maximum suppression to the boxes of each class of each image.

    A box is kept if it does not overlap a better kept box of the class.

    Args:
        bboxes: [images, boxes, size]: 4 corners (xmin, ymin, xmax, ymax), or 8, 16, 24 or 32
            coordinates of a polygon's points. With scores [boxes, classes]: rows with a LoD,
            [boxes, classes, size], a box for each class.
        scores: [images, classes, boxes]; or rows with a LoD, [boxes, classes].
        score_threshold: boxes with a score that is not greater are left out.
        nms_top_k: the number of best boxes of a class that are compared; -1 for all.
        keep_top_k: the largest number of boxes of an image, over all classes; -1 for all.
        nms_threshold: the IoU above which a box is suppressed.
        normalized: True if coordinates are fractions of the image. False if they are pixels; the last pixel
            belongs to the box.
        nms_eta: below 1, the factor of the threshold with each kept box, while the threshold is above 0.5.
        background_label: the class that is left out; -1 for none.
        name: see `jfluid.layers`.

    Returns:
        [rows, 2 + size]: class, score and box; by image (the LoD), class and falling score. If
        no image has a box the fetched value is [[-1]], with the LoD [[0, 1]].

    Raises ShapeError.
    """
    attrs: dict[str, Any] = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "nms_eta": nms_eta,
        "keep_top_k": keep_top_k,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return emit("multiclass_nms", inputs, attrs, name=name, stop_gradient=True)


def locality_aware_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Variable:
    """Merge neighbouring boxes that overlap, and apply `multiclass_nms` (Zhou et al., EAST, 2017).

    Merged boxes are averages weighted by scores; their scores are summed.

    Args:
        bboxes: [images, boxes, size], as in `multiclass_nms`, with neighbours in adjacent rows.
        scores: [images, classes, boxes].
        score_threshold: see `multiclass_nms`; it applies to summed scores.
        nms_top_k: see `multiclass_nms`.
        keep_top_k: see `multiclass_nms`.
        nms_threshold: the IoU above which boxes are merged, and suppressed.
        normalized: see `multiclass_nms`.
        nms_eta: see `multiclass_nms`.
        background_label: see `multiclass_nms`.
        name: see `jfluid.layers`.

    Returns the result of `multiclass_nms`. Raises ShapeError.
    """
    attrs: dict[str, Any] = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "nms_eta": nms_eta,
        "keep_top_k": keep_top_k,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return emit("locality_aware_nms", inputs, attrs, name=name, stop_gradient=True)


def matrix_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """Apply matrix NMS: scores decay with the overlap of better boxes of the class (Wang et al., SOLOv2, 2020).

    Args:
        bboxes: [images, boxes, 4] (xmin, ymin, xmax, ymax).
        scores: [images, classes, boxes].
        score_threshold: see `multiclass_nms`.
        post_threshold: boxes with a decayed score that is not greater are left out.
        nms_top_k: see `multiclass_nms`.
        keep_top_k: see `multiclass_nms`.
        use_gaussian: True for a Gaussian decay, False for a linear decay.
        gaussian_sigma: parameter of the Gaussian.
        background_label: see `multiclass_nms`.
        normalized: see `multiclass_nms`.
        return_index: True to return the second result.
        name: see `jfluid.layers`.

    Returns:
        [rows, 6]: class, decayed score and box; by image (the LoD) and falling score. And [rows, 1],
        int32: the index of each box in the batch.

    Raises ShapeError.
    """
    attrs: dict[str, Any] = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "post_threshold": post_threshold,
        "nms_top_k": nms_top_k,
        "keep_top_k": keep_top_k,
        "use_gaussian": use_gaussian,
        "gaussian_sigma": gaussian_sigma,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    found = emit("matrix_nms", inputs, attrs, outs=("Out", "Index"), name=name, stop_gradient=True)
    return found if return_index else found[0]


def retinanet_detection_output(
    bboxes: Sequence[Variable],
    scores: Sequence[Variable],
    anchors: Sequence[Variable],
    im_info: Variable,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Variable:
    """Decode RetinaNet's boxes and apply non-maximum suppression by class (Lin et al., 2017).

    Args:
        bboxes: for each level the regression deltas of anchors, [images, boxes, 4].
        scores: for each level the probabilities [images, boxes, classes], without the background.
        anchors: for each level [boxes, 4], in pixels (xmin, ymin, xmax, ymax).
        im_info: [images, 3]: height and width as fed, and the scale of the original.
        score_threshold: boxes with a score that is not greater are left out, except on the last
            level.
        nms_top_k: the number of best boxes of a level that are decoded, over all classes.
        keep_top_k: the largest number of boxes of an image, over all classes; -1 for all.
        nms_threshold: see `multiclass_nms`.
        nms_eta: see `multiclass_nms`.

    Returns:
        [rows, 6]: class (from 1 on), score and box in pixels of the original image; by image (the
        LoD) and falling score.

    Raises ShapeError.
    """
    for what, value in (("bboxes", bboxes), ("scores", scores), ("anchors", anchors)):
        if not isinstance(value, (list, tuple)):
            raise TypeError(
                f"layers.retinanet_detection_output, {what}: expected a list with one Variable for "
                f"each level, found {type(value).__name__}"
            )
        check_variable(value, "retinanet_detection_output", what)
    inputs = {"BBoxes": list(bboxes), "Scores": list(scores), "Anchors": list(anchors), "ImInfo": im_info}
    attrs: dict[str, Any] = {
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "keep_top_k": keep_top_k,
        "nms_threshold": nms_threshold,
        "nms_eta": nms_eta,
    }
    return emit("retinanet_detection_output", inputs, attrs, stop_gradient=True)
