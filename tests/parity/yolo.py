"""A small YOLOv3, for any engine that offers the Fluid API (Python 3.7 syntax)."""

import numpy as np

ANCHORS, CLASSES, SIZE = [4, 5, 9, 8, 12, 18, 24, 16], 3, 32
# Of each feature map: which anchors belong to it, and how many pixels a cell is wide.
MAPS = (([2, 3], 16), ([0, 1], 8))


def batch(fluid, rng):
    """Three images with five places for objects, the last of which are empty."""
    boxes = np.concatenate([rng.rand(3, 5, 2) * 0.9 + 0.05, rng.rand(3, 5, 2) * 0.5 + 0.1], -1)
    boxes[0, 3:] = boxes[1, 1:] = 0
    return {
        "image": rng.rand(3, 3, SIZE, SIZE).astype("float32"),
        "box": boxes.astype("float32"),
        "label": rng.randint(0, CLASSES, (3, 5)).astype("int32"),
        "weight": rng.rand(3, 5).astype("float32"),
        "size": np.array([[48, 64]] * 3, "int32"),
    }


def _conv(fluid, x, channels, width=3, stride=1):
    x = fluid.layers.conv2d(x, channels, width, stride=stride, padding=width // 2, bias_attr=False)
    return fluid.layers.leaky_relu(fluid.layers.batch_norm(x), alpha=0.1)


def network(fluid):
    """(losses of the two maps, what is detected)."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
    box = fluid.data(name="box", shape=[None, 5, 4], dtype="float32")
    label = fluid.data(name="label", shape=[None, 5], dtype="int32")
    weight = fluid.data(name="weight", shape=[None, 5], dtype="float32")
    size = fluid.data(name="size", shape=[None, 2], dtype="int32")
    fine = _conv(fluid, _conv(fluid, _conv(fluid, image, 6, stride=2), 8, stride=2), 8, stride=2)
    coarse = _conv(fluid, fine, 12, stride=2)
    up = layers.resize_nearest(_conv(fluid, coarse, 4, 1), scale=2.0)
    losses, boxes, scores = [], [], []
    for x, (mask, ratio) in zip((coarse, layers.concat([up, fine], axis=1)), MAPS):
        x = layers.conv2d(x, len(mask) * (5 + CLASSES), 1)
        loss = layers.yolov3_loss(x, box, label, ANCHORS, mask, CLASSES, 0.5, ratio, gt_score=weight)
        losses.append(layers.reduce_mean(loss))
        anchors = [n for i in mask for n in ANCHORS[2 * i : 2 * i + 2]]
        found, score = layers.yolo_box(x, size, anchors, CLASSES, 0.01, ratio)
        boxes.append(found)
        scores.append(layers.transpose(score, [0, 2, 1]))
    detected = layers.multiclass_nms(
        layers.concat(boxes, axis=1),
        layers.concat(scores, axis=2),
        score_threshold=0.01,
        nms_top_k=30,
        keep_top_k=12,
        nms_threshold=0.45,
        background_label=-1,
    )
    return layers.sum(losses), detected
