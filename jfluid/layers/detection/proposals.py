"""Layers of two-stage detectors and RetinaNet: proposals, and training targets of anchors and proposals.

Boxes are [x0, y0, x1, y1] in pixels, and include their last row and column. `im_info` [N, 3] has height,
width and scale of each image, as fed to the network.
"""

from collections.abc import Sequence

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit
from jfluid.layers.indexing import gather
from jfluid.layers.shape import reshape

__all__ = [
    "collect_fpn_proposals",
    "distribute_fpn_proposals",
    "generate_mask_labels",
    "generate_proposal_labels",
    "generate_proposals",
    "retinanet_target_assign",
    "rpn_target_assign",
]


def generate_proposals(
    scores: Variable,
    bbox_deltas: Variable,
    im_info: Variable,
    anchors: Variable,
    variances: Variable,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> tuple[Variable, Variable] | tuple[Variable, Variable, Variable]:
    """Return the proposals of a region proposal network (Ren et al., Faster R-CNN, 2015).

    Anchors are moved by the deltas; the best boxes that do not overlap are kept.

    Args:
        scores: [N, A, H, W]: objectness of each of A anchors at each position.
        bbox_deltas: [N, 4 * A, H, W]: shifts of each anchor's centre, in its widths and heights,
            and the logarithms of the ratios of the sides.
        im_info: [N, 3].
        anchors: [H, W, A, 4].
        variances: [H, W, A, 4]: factors of `bbox_deltas`.
        pre_nms_top_n: the number of best anchors of an image that are considered; all when not positive.
        post_nms_top_n: the largest number of boxes of an image; all when not positive.
        nms_thresh: the IoU above which a box is suppressed. Not positive: no box is suppressed, and
            `post_nms_top_n` has no effect; boxes come best first (in Fluid in no order).
        min_size: boxes with a smaller side, in pixels before scaling, are dropped; at least 1.
        eta: below 1, the factor of the threshold with each kept box, while the threshold is above 0.5.
        name: no effect.
        return_rois_num: True to return the third result.

    Returns:
        Boxes [rows, 4] and their scores [rows, 1], grouped by image (LoD), best first; the end of each
        image's rows, int64 [N]. No gradient flows to them. Boxes and scores that are not numbers
        are dropped.

    Raises ShapeError.
    """
    rois, chances, ends = emit(
        "generate_proposals",
        {"Scores": scores, "BboxDeltas": bbox_deltas, "ImInfo": im_info, "Anchors": anchors, "Variances": variances},
        {
            "pre_nms_topN": pre_nms_top_n,
            "post_nms_topN": post_nms_top_n,
            "nms_thresh": nms_thresh,
            "min_size": min_size,
            "eta": eta,
        },
        outs=("RpnRois", "RpnRoiProbs", "RpnRoisLod"),
        stop_gradient=True,
    )
    return (rois, chances, ends) if return_rois_num else (rois, chances)


def rpn_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    is_crowd: Variable,
    im_info: Variable,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[Variable, Variable, Variable, Variable, Variable]:
    """Sample training anchors of a region proposal network, and gather their predictions and targets.

    Args:
        bbox_pred: [N, M, 4]: the network's deltas for all M anchors.
        cls_logits: [N, M, 1].
        anchor_box: [M, 4].
        anchor_var: [M, 4]; no effect, as in Fluid.
        gt_boxes: objects [rows, 4] by image (LoD), in pixels before scaling.
        is_crowd: int32 [rows, 1] with the same LoD: 1 for objects that are left out.
        im_info: [N, 3].
        rpn_batch_size_per_im: the largest number of anchors of an image.
        rpn_straddle_thresh: the number of pixels by which an anchor may exceed the image; negative: any.
        rpn_fg_fraction: the largest fraction of anchors of objects, in (0, 1].
        rpn_positive_overlap: the IoU from which an anchor is assigned to an object. The anchors of largest
            IoU with an object are assigned too.
        rpn_negative_overlap: an anchor with a smaller IoU with every object is background. An anchor
            that is drawn as both is background; it keeps a row of predicted deltas, with weight 0.
        use_random: True for a random sample in each step; False takes the first anchors.

    Returns:
        predicted scores [rows, 1], predicted deltas [object rows, 4], labels int32 [rows, 1] (1
        object, 0 background), target deltas [object rows, 4], their weights [object rows, 4]. An
        image without objects gives background alone (Fluid fails).

    Raises ShapeError, AttributeTypeError.
    """
    check_variable([bbox_pred, cls_logits, anchor_var], "rpn_target_assign", "bbox_pred, cls_logits, anchor_var")
    location, score, target, label, weight = _assign(
        "rpn_target_assign",
        {"Anchor": anchor_box, "GtBoxes": gt_boxes, "IsCrowd": is_crowd, "ImInfo": im_info},
        {
            "rpn_batch_size_per_im": rpn_batch_size_per_im,
            "rpn_straddle_thresh": rpn_straddle_thresh,
            "rpn_positive_overlap": rpn_positive_overlap,
            "rpn_negative_overlap": rpn_negative_overlap,
            "rpn_fg_fraction": rpn_fg_fraction,
            "use_random": use_random,
        },
        ("LocationIndex", "ScoreIndex", "TargetBBox", "TargetLabel", "BBoxInsideWeight"),
    )
    scores = gather(reshape(cls_logits, (-1, 1)), score)
    return scores, gather(reshape(bbox_pred, (-1, 4)), location), label, target, weight


def retinanet_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    gt_labels: Variable,
    is_crowd: Variable,
    im_info: Variable,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """Assign RetinaNet's anchors to objects, and gather their predictions and targets.

    Source: Lin et al., Focal Loss for Dense Object Detection, 2017.

    Args:
        bbox_pred: [N, M, 4]: the network's deltas for all M anchors.
        cls_logits: [N, M, num_classes].
        anchor_box: [M, 4].
        anchor_var: [M, 4]; no effect, as in Fluid.
        gt_boxes: objects [rows, 4] by image (LoD), in pixels before scaling.
        gt_labels: int32 [rows, 1] with the same LoD: classes from 1 on.
        is_crowd: int32 [rows, 1] with the same LoD: 1 for objects that are left out.
        im_info: [N, 3].
        num_classes: without the background.
        positive_overlap: the IoU from which an anchor is assigned to an object. The anchors of largest
            IoU with an object are assigned too.
        negative_overlap: an anchor with a smaller IoU with every object is background.

    Returns:
        predicted scores [rows, num_classes], predicted deltas [object rows, 4], classes int32
        [rows, 1] (0 background), target deltas [object rows, 4], their weights [object rows, 4],
        and each image's number of object rows plus one, int32 [N, 1].

    Raises ShapeError.
    """
    check_variable([bbox_pred, cls_logits, anchor_var], "retinanet_target_assign", "bbox_pred, cls_logits, anchor_var")
    location, score, target, label, weight, number = _assign(
        "retinanet_target_assign",
        {"Anchor": anchor_box, "GtBoxes": gt_boxes, "GtLabels": gt_labels, "IsCrowd": is_crowd, "ImInfo": im_info},
        {"positive_overlap": positive_overlap, "negative_overlap": negative_overlap},
        ("LocationIndex", "ScoreIndex", "TargetBBox", "TargetLabel", "BBoxInsideWeight", "ForegroundNumber"),
    )
    scores = gather(reshape(cls_logits, (-1, num_classes)), score)
    return scores, gather(reshape(bbox_pred, (-1, 4)), location), label, target, weight, number


def _assign(op_type: str, inputs: dict[str, Variable], attrs: dict[str, object], outs: Sequence[str]) -> list[Variable]:
    found = emit(op_type, inputs, attrs, outs=dict.fromkeys(outs, 1), stop_gradient=True)
    return [variables[0] for variables in found]


def generate_proposal_labels(
    rpn_rois: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_boxes: Variable,
    im_info: Variable,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[Variable, ...]:
    """Sample training proposals for the second stage of a detector, with their targets.

    Args:
        rpn_rois: boxes [rows, 4] by image (LoD), in the pixels of the network's input. The objects
            themselves join them.
        gt_classes: int32 [objects, 1] by image (LoD), from 1 on.
        is_crowd: int32 [objects, 1] with the same LoD: 1 for objects that are not sampled.
        gt_boxes: [objects, 4] with the same LoD, in pixels before scaling.
        im_info: [N, 3].
        batch_size_per_im: the largest number of boxes of an image.
        fg_fraction: the largest fraction of boxes of objects.
        fg_thresh: the IoU from which a box is assigned to an object.
        bg_thresh_hi: an unassigned box with a largest IoU in [bg_thresh_lo, bg_thresh_hi) is background.
        bg_thresh_lo: see `bg_thresh_hi`.
        bbox_reg_weights: divisors of the four deltas.
        class_nums: the number of classes, including the background.
        use_random: True for a random sample in each step; False takes the first boxes.
        is_cls_agnostic: True if all objects use the columns of class 1.
        is_cascade_rcnn: True for a later stage of Cascade R-CNN: all boxes are kept without sampling. The
            objects do not join them, but the first rows, one per object, are taken for the objects,
            unscaled, as in Fluid.

    Returns:
        boxes [rows, 4] by image (LoD), boxes of objects first; their classes int32 [rows, 1]; deltas
        [rows, 4 * class_nums], in the columns of the class; 1 in those columns, twice (inside and
        outside weights). An image without objects gives background alone (Fluid fails).

    Raises ShapeError, AttributeTypeError.
    """
    check_variable(rpn_rois, "generate_proposal_labels", "rpn_rois")
    if class_nums is None:
        raise errors.AttributeTypeError(
            "generate_proposal_labels: class_nums: the number of classes is needed, including the background"
        )
    return tuple(
        _assign(
            "generate_proposal_labels",
            {"RpnRois": rpn_rois, "GtClasses": gt_classes, "IsCrowd": is_crowd, "GtBoxes": gt_boxes, "ImInfo": im_info},
            {
                "batch_size_per_im": batch_size_per_im,
                "fg_fraction": fg_fraction,
                "fg_thresh": fg_thresh,
                "bg_thresh_hi": bg_thresh_hi,
                "bg_thresh_lo": bg_thresh_lo,
                "bbox_reg_weights": list(bbox_reg_weights),
                "class_nums": class_nums,
                "use_random": use_random,
                "is_cls_agnostic": is_cls_agnostic,
                "is_cascade_rcnn": is_cascade_rcnn,
            },
            ("Rois", "LabelsInt32", "BboxTargets", "BboxInsideWeights", "BboxOutsideWeights"),
        )
    )


def generate_mask_labels(
    im_info: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_segms: Variable,
    rois: Variable,
    labels_int32: Variable,
    num_classes: int,
    resolution: int,
) -> tuple[Variable, Variable, Variable]:
    """Draw the masks that the mask branch of a detector learns (He et al., Mask R-CNN, 2017).

    Args:
        im_info: [N, 3].
        gt_classes: int32 [objects, 1] by image (LoD).
        is_crowd: int32 [objects, 1] with the same LoD: 1 for objects without a mask.
        gt_segms: points [rows, 2] with a LoD of three levels: the objects of each image, the polygons of each
            object, the points of each polygon. In pixels before scaling.
        rois: the first result of `generate_proposal_labels`.
        labels_int32: the second result of `generate_proposal_labels`.
        num_classes: the number of classes, including the background.
        resolution: the sides of a mask.

    Returns:
        the boxes of objects [rows, 4] by image (LoD); their rows among the image's `rois`, int32
        [rows, 1]; masks int32 [rows, num_classes * resolution**2]: 1 inside of the object that a box
        overlaps most, 0 outside, -1 (to be ignored) for other classes. An image without boxes of
        objects gives its first one, with -1 alone.

    Raises ShapeError, AttributeTypeError.
    """
    return emit(
        "generate_mask_labels",
        {
            "ImInfo": im_info,
            "GtClasses": gt_classes,
            "IsCrowd": is_crowd,
            "GtSegms": gt_segms,
            "Rois": rois,
            "LabelsInt32": labels_int32,
        },
        {"num_classes": num_classes, "resolution": resolution},
        outs=("MaskRois", "RoiHasMaskInt32", "MaskInt32"),
        stop_gradient=True,
    )


def collect_fpn_proposals(
    multi_rois: Sequence[Variable],
    multi_scores: Sequence[Variable],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> Variable:
    """Put the proposals of the levels of a feature pyramid together.

    Args:
        multi_rois: for each level boxes [rows, 4] by image (LoD).
        multi_scores: for each level their scores [rows, 1].
        min_level: the lowest level.
        max_level: the highest level; one tensor for each level is used.
        post_nms_top_n: the number of boxes with the best scores that are kept, over all images.
        name: no effect.

    Returns:
        boxes [rows, 4] by image (LoD), best first.

    Raises ShapeError, AttributeTypeError.
    """
    levels = max_level - min_level + 1
    return emit(
        "collect_fpn_proposals",
        {"MultiLevelRois": list(multi_rois)[:levels], "MultiLevelScores": list(multi_scores)[:levels]},
        {"post_nms_topN": post_nms_top_n},
        stop_gradient=True,
        outs=("FpnRois",),
    )


def distribute_fpn_proposals(
    fpn_rois: Variable, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> tuple[list[Variable], Variable]:
    """Distribute proposals over the levels of a feature pyramid by size.

    The level is floor(refer_level + log2(side / refer_scale)) (Lin et al., Feature Pyramid Networks, 2017).

    Args:
        fpn_rois: boxes [rows, 4] by image (LoD).
        min_level: the lowest level.
        max_level: the highest level.
        refer_level: the level of boxes with the area refer_scale**2.
        refer_scale: in pixels.
        name: no effect.

    Returns:
        for each level its boxes [rows, 4] by image (LoD); int32 [rows, 1]: the index of each box of
        `fpn_rois` in the concatenated levels.

    Raises ShapeError, AttributeTypeError.
    """
    check_variable(fpn_rois, "distribute_fpn_proposals", "fpn_rois")
    helper = LayerHelper("distribute_fpn_proposals", name=name)
    levels = [helper.create_variable_for_type_inference(fpn_rois.dtype) for _ in range(max_level - min_level + 1)]
    restore = helper.create_variable_for_type_inference("int32")
    helper.append_op(
        type="distribute_fpn_proposals",
        inputs={"FpnRois": fpn_rois},
        outputs={"MultiFpnRois": levels, "RestoreIndex": restore},
        attrs={"min_level": min_level, "max_level": max_level, "refer_level": refer_level, "refer_scale": refer_scale},
    )
    return levels, restore
