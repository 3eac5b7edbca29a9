"""Mean average precision of detections."""

import warnings
from collections.abc import Sequence

from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable

__all__ = ["detection_map"]


def detection_map(
    detect_res: Variable,
    label: Variable,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Variable | None = None,
    input_states: Sequence[Variable] | None = None,
    out_states: Sequence[Variable] | None = None,
    ap_version: str = "integral",
) -> Variable:
    """Return the mean average precision of detections, float32 [1].

    Args:
        detect_res: rows (class, score, left, top, right, bottom) with a LoD: of each image.
        label: rows (class, left, top, right, bottom), or with 1 for a difficult box after the class, with a LoD
            of as many images.
        class_num: the number of classes.
        background_label: has no effect, as in Fluid; a warning says so where it is not 0.
        overlap_threshold: the intersection over union above which a box is found.
        evaluate_difficult: True if difficult boxes count.
        has_state: int32 [1]: whether `input_states` count, too.
        input_states: state of earlier batches: the number of boxes of each class, int32 [class_num, 1]; scores
            and marks of true positives, and of false positives, float32 [rows, 2] with a sequence for each class.
        out_states: the updated state, like `input_states`.
        ap_version: "integral", or "11point" as in PASCAL VOC 2007.
    """
    check_variable(detect_res, "detection_map", "detect_res")
    check_variable(label, "detection_map", "label")
    if background_label != 0:
        warnings.warn(
            f"layers.detection_map: background_label={background_label} has no effect, as in Fluid: classes without "
            "boxes of the truth are left out",
            RuntimeWarning,
            stacklevel=2,
        )
    helper = LayerHelper("detection_map")
    mean = helper.create_variable_for_type_inference("float32", stop_gradient=True, shape=[1])
    outs = out_states or [
        helper.create_variable_for_type_inference(dtype, stop_gradient=True)
        for dtype in ("int32", "float32", "float32")
    ]
    counts, right, wrong = input_states or (None, None, None)
    helper.append_op(
        type="detection_map",
        inputs={
            "Label": label,
            "DetectRes": detect_res,
            "HasState": has_state,
            "PosCount": counts,
            "TruePos": right,
            "FalsePos": wrong,
        },
        outputs={"MAP": mean, "AccumPosCount": outs[0], "AccumTruePos": outs[1], "AccumFalsePos": outs[2]},
        attrs={
            "overlap_threshold": overlap_threshold,
            "evaluate_difficult": evaluate_difficult,
            "ap_type": ap_version,
            "class_num": class_num,
        },
    )
    return mean
