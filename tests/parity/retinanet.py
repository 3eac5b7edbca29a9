"""A small RetinaNet, for any engine that offers the Fluid API (Python 3.7 syntax)."""

import numpy as np

CLASSES, SIZE = 3, 32


def batch(fluid, rng):
    """Two images of different sizes, and the objects of each, one of them in a crowd."""
    counts = [int(n) for n in rng.randint(2, 5, 2)]
    corner, size = rng.rand(sum(counts), 2) * 18, rng.rand(sum(counts), 2) * 8 + 5
    boxes = np.concatenate([corner, corner + size], 1).astype("float32")
    crowd = np.zeros((sum(counts), 1), "int32")
    crowd[1] = 1
    place = fluid.CPUPlace()
    labels = rng.randint(1, CLASSES + 1, (sum(counts), 1)).astype("int32")
    return {
        "image": rng.rand(2, 3, SIZE, SIZE).astype("float32"),
        "box": fluid.create_lod_tensor(boxes, [counts], place),
        "label": fluid.create_lod_tensor(labels, [counts], place),
        "crowd": fluid.create_lod_tensor(crowd, [counts], place),
        "info": np.array([[32, 32, 1.0], [30, 28, 1.0]], "float32"),
    }


def _pyramid(fluid, image):
    """Two levels of features, the coarser of which reaches the finer."""
    layers = fluid.layers
    x = layers.conv2d(image, 6, 3, stride=4, padding=1, act="relu")
    fine = layers.conv2d(x, 8, 3, stride=2, padding=1, act="relu")
    coarse = layers.conv2d(fine, 8, 3, stride=2, padding=1, act="relu")
    lateral = [layers.conv2d(x, 8, 1) for x in (fine, coarse)]
    top = layers.resize_nearest(lateral[1], scale=2.0)
    return layers.elementwise_add(lateral[0], top), lateral[1]


def _flat(fluid, x, size):
    x = fluid.layers.transpose(x, [0, 2, 3, 1])
    return fluid.layers.reshape(x, [0, -1, size])


def network(fluid):
    """(loss, what is detected)."""
    layers = fluid.layers
    image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
    info = fluid.data(name="info", shape=[None, 3], dtype="float32")
    box, label, crowd = (
        fluid.data(name=n, shape=[None, width], dtype=dtype, lod_level=1)
        for n, width, dtype in (("box", 4, "float32"), ("label", 1, "int32"), ("crowd", 1, "int32"))
    )
    boxes, scores, anchors, variances = [], [], [], []
    for i, x in enumerate(_pyramid(fluid, image)):
        anchor, variance = layers.anchor_generator(
            x,
            anchor_sizes=[8.0 * 2**i, 12.0 * 2**i],
            aspect_ratios=[0.7, 1.4],
            variance=[1.0, 1.0, 1.0, 1.0],
            stride=[8.0 * 2**i, 8.0 * 2**i],
        )
        names = [fluid.ParamAttr(name=n) for n in ("hidden_w", "hidden_b")]
        hidden = layers.conv2d(x, 8, 3, padding=1, act="relu", param_attr=names[0], bias_attr=names[1])
        score, delta = (
            layers.conv2d(
                hidden,
                4 * width,
                3,
                padding=1,
                param_attr=fluid.ParamAttr(name=name + "_w"),
                bias_attr=fluid.ParamAttr(name=name + "_b"),
            )
            for name, width in (("score", CLASSES), ("delta", 4))
        )
        scores.append(_flat(fluid, score, CLASSES))
        boxes.append(_flat(fluid, delta, 4))
        anchors.append(layers.reshape(anchor, [-1, 4]))
        variances.append(layers.reshape(variance, [-1, 4]))
    score, delta, target, move, weight, number = layers.retinanet_target_assign(
        layers.concat(boxes, axis=1),
        layers.concat(scores, axis=1),
        layers.concat(anchors, axis=0),
        layers.concat(variances, axis=0),
        box,
        label,
        crowd,
        info,
        num_classes=CLASSES,
    )
    number = layers.reduce_sum(number)
    focal = layers.sigmoid_focal_loss(score, target, number, gamma=2.0, alpha=0.25)
    near = layers.smooth_l1(delta, move, inside_weight=weight, outside_weight=weight, sigma=3.0)
    loss = layers.reduce_sum(focal) + layers.reduce_sum(near) / layers.cast(number, "float32")
    detected = layers.retinanet_detection_output(
        boxes,
        [layers.sigmoid(s) for s in scores],
        anchors,
        info,
        score_threshold=0.3,
        nms_top_k=20,
        keep_top_k=15,
        nms_threshold=0.4,
    )
    return loss, detected
