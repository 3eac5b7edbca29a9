"""Layers of detectors that propose boxes first, and of RetinaNet: proposals, and what anchors and proposals learn.

Boxes are [x0, y0, x1, y1] in pixels, and hold their last row and column. `im_info` [N, 3] has height,
width and scale of each image, as the network gets it.
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
    """Propose boxes: move the anchors, and keep the best of them that do not overlap (Ren et al., Faster R-CNN, 2015).

    Args:
        scores: [N, A, H, W]: for each of A anchors at each place, how likely it holds an object.
        bbox_deltas: [N, 4 * A, H, W]: the way of each anchor's centre, in its widths and heights,
            and the logarithms of the ratios of the sides.
        im_info: [N, 3].
        anchors: [H, W, A, 4].
        variances: [H, W, A, 4]: factors of `bbox_deltas`.
        pre_nms_top_n: how many of the best anchors of an image are looked at; all when not positive.
        post_nms_top_n: how many of an image are kept at most; all when not positive.
        nms_thresh: a box is dropped that overlaps a better one by more. Not positive: none is, and
            `post_nms_top_n` has no effect; they come best first (in Fluid in no order).
        min_size: boxes with a side below it, in pixels before scaling, are dropped; at least 1.
        eta: below 1, the threshold shrinks by it with every box kept, while it is above 0.5.
        name: no effect.
        return_rois_num: whether the third result is returned.

    Returns:
        Boxes [rows, 4] and their scores [rows, 1], grouped by image (LoD), best first; where each
        image's rows end, int64 [N]. No gradient flows to them. Boxes and scores that are not numbers
        are dropped.

    Raises ShapeError.
    """
    rois, chances, ends = emit(
        "generate_proposals",
        {
            "Scores": scores,
            "BboxDeltas": bbox_deltas,
            "ImInfo": im_info,
            "Anchors": anchors,
            "Variances": variances,
        },
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
    """Draw the anchors that a region proposal network learns from, and take its predictions for them.

    Args:
        bbox_pred: [N, M, 4]: the network's deltas for all M anchors.
        cls_logits: [N, M, 1].
        anchor_box: [M, 4].
        anchor_var: [M, 4]; no effect, as in Fluid.
        gt_boxes: objects [rows, 4] by image (LoD), in pixels before scaling.
        is_crowd: int32 [rows, 1] with the same LoD: 1 for objects that are left out.
        im_info: [N, 3].
        rpn_batch_size_per_im: how many anchors of an image are drawn at most.
        rpn_straddle_thresh: by how many pixels an anchor may leave the image; negative: by any.
        rpn_fg_fraction: how large a part of them may be anchors of objects, in (0, 1].
        rpn_positive_overlap: an anchor that overlaps an object by so much learns it; so do the
            anchors that overlap an object most.
        rpn_negative_overlap: an anchor that overlaps every object by less is background. One that is
            drawn as both is background; it keeps a row of predicted deltas, with weight 0.
        use_random: whether they are drawn at random, anew each step; else the first ones are taken.

    Returns:
        predicted scores [rows, 1], predicted deltas [object rows, 4], labels int32 [rows, 1] (1
        object, 0 background), deltas to learn [object rows, 4], their weights [object rows, 4]. An
        image without objects gives background alone (Fluid fails).

    Raises ShapeError, AttributeTypeError.
    """
    check_variable(
        [bbox_pred, cls_logits, anchor_var],
        "rpn_target_assign",
        "bbox_pred, cls_logits, anchor_var",
    )
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
    """Say what each anchor of RetinaNet learns (Lin et al., Focal Loss for Dense Object Detection,
    2017), and take its predictions for them.

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
        positive_overlap: an anchor that overlaps an object by so much learns it; so do the anchors
            that overlap an object most.
        negative_overlap: an anchor that overlaps every object by less is background.

    Returns:
        predicted scores [rows, num_classes], predicted deltas [object rows, 4], classes int32
        [rows, 1] (0 background), deltas to learn [object rows, 4], their weights [object rows, 4],
        and one more than the object rows of each image, int32 [N, 1].

    Raises ShapeError.
    """
    check_variable(
        [bbox_pred, cls_logits, anchor_var],
        "retinanet_target_assign",
        "bbox_pred, cls_logits, anchor_var",
    )
    location, score, target, label, weight, number = _assign(
        "retinanet_target_assign",
        {
            "Anchor": anchor_box,
            "GtBoxes": gt_boxes,
            "GtLabels": gt_labels,
            "IsCrowd": is_crowd,
            "ImInfo": im_info,
        },
        {"positive_overlap": positive_overlap, "negative_overlap": negative_overlap},
        (
            "LocationIndex",
            "ScoreIndex",
            "TargetBBox",
            "TargetLabel",
            "BBoxInsideWeight",
            "ForegroundNumber",
        ),
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
    """Draw the proposals that the second stage of a detector learns from, and say what it learns.

    Args:
        rpn_rois: boxes [rows, 4] by image (LoD), in the pixels of the network's input. The objects
            themselves join them.
        gt_classes: int32 [objects, 1] by image (LoD), from 1 on.
        is_crowd: int32 [objects, 1] with the same LoD: 1 for objects that are not drawn themselves.
        gt_boxes: [objects, 4] with the same LoD, in pixels before scaling.
        im_info: [N, 3].
        batch_size_per_im: how many boxes of an image are drawn at most.
        fg_fraction: how large a part of them may be boxes of objects.
        fg_thresh: a box that overlaps an object by so much is a box of it.
        bg_thresh_hi, bg_thresh_lo: another whose largest overlap is in [lo, hi) is background.
        bbox_reg_weights: what the four deltas are divided by.
        class_nums: how many classes there are, the background among them.
        use_random: whether they are drawn at random, anew each step; else the first ones are taken.
        is_cls_agnostic: whether all objects use the columns of class 1.
        is_cascade_rcnn: whether this is a later stage of Cascade R-CNN: nothing is drawn, all boxes
            are kept; the objects do not join them, but as many first rows are taken for the
            objects, unscaled, as in Fluid.

    Returns:
        boxes [rows, 4] by image (LoD), those of objects first; their classes int32 [rows, 1]; deltas
        [rows, 4 * class_nums], in the columns of the class; 1 in those columns, twice (inside and
        outside weights). An image without objects gives background alone (Fluid fails).

    Raises ShapeError, AttributeTypeError.
    """
    check_variable(rpn_rois, "generate_proposal_labels", "rpn_rois")
    if class_nums is None:
        raise errors.AttributeTypeError(
            "generate_proposal_labels: class_nums: the number of classes is needed, the background among them"
        )
    return tuple(
        _assign(
            "generate_proposal_labels",
            {
                "RpnRois": rpn_rois,
                "GtClasses": gt_classes,
                "IsCrowd": is_crowd,
                "GtBoxes": gt_boxes,
                "ImInfo": im_info,
            },
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
        gt_segms: points [rows, 2] with a LoD of three levels: the objects of each image, the
            polygons of each object, the points of each polygon. In pixels before scaling.
        rois, labels_int32: what `generate_proposal_labels` returns.
        num_classes: how many classes there are, the background among them.
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
        min_level, max_level: the lowest and highest level; so many tensors are used.
        post_nms_top_n: how many of all images are kept at most, those with the best scores.
        name: no effect.

    Returns:
        boxes [rows, 4] by image (LoD), best first.

    Raises ShapeError, AttributeTypeError.
    """
    levels = max_level - min_level + 1
    return emit(
        "collect_fpn_proposals",
        {
            "MultiLevelRois": list(multi_rois)[:levels],
            "MultiLevelScores": list(multi_scores)[:levels],
        },
        {"post_nms_topN": post_nms_top_n},
        stop_gradient=True,
        outs=("FpnRois",),
    )


def distribute_fpn_proposals(
    fpn_rois: Variable,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    name: str | None = None,
) -> tuple[list[Variable], Variable]:
    """Give each proposal the level of a feature pyramid that suits its size: floor(refer_level +
    log2(side / refer_scale)) (Lin et al., Feature Pyramid Networks, 2017).

    Args:
        fpn_rois: boxes [rows, 4] by image (LoD).
        min_level, max_level: the lowest and highest level.
        refer_level: the level of boxes whose area is refer_scale**2.
        refer_scale: in pixels.
        name: no effect.

    Returns:
        for each level its boxes [rows, 4] by image (LoD); int32 [rows, 1]: where each box of
        `fpn_rois` is among those of all levels, one after the other.

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
        attrs={
            "min_level": min_level,
            "max_level": max_level,
            "refer_level": refer_level,
            "refer_scale": refer_scale,
        },
    )
    return levels, restore
