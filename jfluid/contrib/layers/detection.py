"""Layers of object detection from `fluid.contrib.layers`."""

from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["multiclass_nms2"]


def multiclass_nms2(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Suppress overlapping boxes as `layers.multiclass_nms` does, and say which ones are kept.

    Args:
        bboxes, scores: the boxes and their scores, as of `layers.multiclass_nms`.
        score_threshold, nms_top_k, keep_top_k: limits of the kept boxes, as there.
        nms_threshold, normalized, nms_eta: the overlap of suppressed boxes, as there.
        background_label: the class that is left out, as there.
        return_index: whether the result has the places of the boxes, too.
        name: the name of the result.

    Returns:
        Rows [boxes kept, 6] with a LoD: label, score, four coordinates. With return_index also int32
        [boxes kept, 1]: which box of `bboxes`, of all images one after the other, each row is.
    """
    out, index = emit(
        "multiclass_nms2",
        {"BBoxes": bboxes, "Scores": scores},
        {
            "background_label": background_label,
            "score_threshold": score_threshold,
            "nms_top_k": nms_top_k,
            "nms_threshold": nms_threshold,
            "nms_eta": nms_eta,
            "keep_top_k": keep_top_k,
            "normalized": normalized,
        },
        outs=("Out", "Index"),
        name=name,
        stop_gradient=True,
    )
    return (out, index) if return_index else out
