"""YOLOv3: boxes from its feature maps, and its loss."""

from collections.abc import Sequence
from typing import Any

from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, check_variable, emit

__all__ = ["yolo_box", "yolov3_loss"]


def _check_list(layer: str, what: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"layers.{layer}, {what}: expected a list of integers, found {type(value).__name__}")


def yolo_box(
    x: Variable,
    img_size: Variable,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> tuple[Variable, Variable]:
    """Decode boxes from a feature map of YOLOv3 (Redmon and Farhadi, 2018).

    Args:
        x: [images, anchors * (5 + class_num), height, width]: for each anchor x, y, width, height, confidence and
            classes.
        img_size: [images, 2], int32: height and width that boxes are scaled to.
        anchors: widths and heights in turn, in pixels of the network's input.
        class_num: the number of classes.
        conf_thresh: boxes with less confidence are all zeros, as are their scores.
        downsample_ratio: from the network's input to `x`.
        clip_bbox: True if boxes end at the image's edges.
        name: see `jfluid.layers`.
        scale_x_y: how far centres may lie beyond their cell (Bochkovskiy et al., 2020).

    Returns:
        [images, boxes, 4] (xmin, ymin, xmax, ymax) and [images, boxes, class_num].

    Raises ShapeError, and TypeError where anchors are no list.
    """
    _check_list("yolo_box", "anchors", anchors)
    return emit(
        "yolo_box",
        {"X": x, "ImgSize": img_size},
        {
            "anchors": list(anchors),
            "class_num": class_num,
            "conf_thresh": conf_thresh,
            "downsample_ratio": downsample_ratio,
            "clip_bbox": clip_bbox,
            "scale_x_y": scale_x_y,
        },
        outs=("Boxes", "Scores"),
        name=name,
    )


def yolov3_loss(
    x: Variable,
    gt_box: Variable,
    gt_label: Variable,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Variable | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Variable:
    """Return the loss of one feature map of YOLOv3, [images] (Redmon and Farhadi, 2018).

    Args:
        x: [images, masks * (5 + class_num), side, side], as of `yolo_box`.
        gt_box: [images, boxes, 4]: x and y of the centre, width and height, in shares of the image; boxes without
            width or height are padding.
        gt_label: [images, boxes], int32, from 0 on.
        anchors: widths and heights of all anchors in turn, in pixels of the network's input.
        anchor_mask: the indices of anchors of this map.
        class_num: the number of classes.
        ignore_thresh: predicted boxes that overlap ground truth by more need not be background.
        downsample_ratio: from the network's input to `x`.
        gt_score: [images, boxes]: the weight of each box, for mixed images; None for 1.
        use_label_smooth: True if classes have targets 1 - d and d, with d = min(1 / class_num, 1 / 40), in place
            of 1 and 0.
        name: see `jfluid.layers`.
        scale_x_y: as of `yolo_box`.

    Where several boxes have one cell and anchor only the last one has a gradient, as in Fluid.

    Raises ShapeError, and TypeError where anchors or their mask are no list.
    """
    _check_list("yolov3_loss", "anchors", anchors)
    _check_list("yolov3_loss", "anchor_mask", anchor_mask)
    for what, value in (("x", x), ("gt_box", gt_box), ("gt_label", gt_label)):
        if value is None:
            raise TypeError(f"layers.yolov3_loss, {what}: expected a Variable, found None")
        check_variable(value, "yolov3_loss", what)
    check_variable(gt_score, "yolov3_loss", "gt_score")
    helper = LayerHelper("yolov3_loss", name=name)
    loss, objects, match = (helper.create_variable_for_type_inference(None) for _ in range(3))
    helper.append_op(
        type="yolov3_loss",
        inputs={"X": x, "GTBox": gt_box, "GTLabel": gt_label, "GTScore": gt_score},
        outputs={"Loss": loss, "ObjectnessMask": objects, "GTMatchMask": match},
        attrs={
            "anchors": list(anchors),
            "anchor_mask": list(anchor_mask),
            "class_num": class_num,
            "ignore_thresh": ignore_thresh,
            "downsample_ratio": downsample_ratio,
            "use_label_smooth": use_label_smooth,
            "scale_x_y": scale_x_y,
        },
    )
    return loss
