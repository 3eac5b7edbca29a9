"""YOLOv3's boxes and its loss, held against plain loops over boxes and ground truth."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

ANCHORS = [10, 13, 30, 20, 25, 40]


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype("float64")))


def cross_entropy(logit, target):
    p = sigmoid(logit)
    return -target * np.log(p) - (1 - target) * np.log(1 - p)


def predicted(maps, cell, anchor, scale, side, grid):
    """x, y, width and height in shares of the image, of one cell's numbers."""
    centre = (np.array(cell[::-1]) + sigmoid(maps[:2]) * scale - 0.5 * (scale - 1)) / grid
    return np.concatenate([centre, np.exp(maps[2:4]) * anchor / side])


def overlap(a, b):
    """Intersection over union of boxes given by centre and size."""
    low = np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    shared = np.prod(np.maximum(np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2) - low, 0))
    return shared / (np.prod(a[2:]) + np.prod(b[2:]) - shared)


@pytest.mark.parametrize("clip, scale", [(True, 1.0), (False, 1.2)])
def test_yolo_box(clip, scale):
    rng = np.random.RandomState(0)
    x = rng.randn(2, 2 * 7, 2, 3).astype("float32")
    image = np.array([[60, 80], [30, 20]], "int32")
    maps = x.reshape(2, 2, 7, 2, 3)
    boxes, scores = np.zeros((2, 2, 2, 3, 4)), np.zeros((2, 2, 2, 3, 2))
    for n, a, i, j in np.ndindex(2, 2, 2, 3):
        own = maps[n, a, :, i, j]
        if sigmoid(own[4]) >= 0.5:
            anchor = np.array(ANCHORS[2 * a : 2 * a + 2])
            box = predicted(own, (i, j), anchor, scale, 64, 2)
            height, width = image[n]
            low, high = box[:2] - box[2:] / 2, box[:2] + box[2:] / 2
            low, high = low * (width, height), high * (width, height)
            if clip:
                low, high = np.maximum(low, 0), np.minimum(high, (width - 1, height - 1))
            boxes[n, a, i, j] = (*low, *high)
            scores[n, a, i, j] = sigmoid(own[4]) * sigmoid(own[5:])
    attrs = {"anchors": ANCHORS[:4], "class_num": 2, "conf_thresh": 0.5, "downsample_ratio": 32}
    check(
        "yolo_box",
        {"X": x, "ImgSize": image},
        {**attrs, "clip_bbox": clip, "scale_x_y": scale},
        expect={"Boxes": boxes.reshape(2, 12, 4), "Scores": scores.reshape(2, 12, 2)},
        rtol=1e-4,
        atol=1e-4,
    )


def loss_of(x, truth, label, weight, attrs):
    """(loss, mask, match) by the paper's formulas, one box at a time."""
    masks, classes, ratio = attrs["anchor_mask"], attrs["class_num"], attrs["downsample_ratio"]
    grid = x.shape[2]
    side = grid * ratio
    maps = x.reshape(len(x), len(masks), -1, grid, grid)
    sizes = np.reshape(attrs["anchors"], (-1, 2))
    smooth = min(1 / classes, 1 / 40) if attrs["use_label_smooth"] else 0
    loss, mask = np.zeros(len(x)), np.zeros((len(x), len(masks), grid, grid))
    match = np.full(truth.shape[:2], -1, "int32")
    for n in range(len(x)):
        real = [t for t in range(truth.shape[1]) if truth[n, t, 2] > 0 and truth[n, t, 3] > 0]
        for m, i, j in np.ndindex(mask.shape[1:]):
            anchor = sizes[masks[m]]
            box = predicted(maps[n, m, :, i, j], (i, j), anchor, attrs["scale_x_y"], side, grid)
            if max([overlap(box, truth[n, t]) for t in real], default=0) > attrs["ignore_thresh"]:
                mask[n, m, i, j] = -1
        for t in real:
            x_, y_, w, h = truth[n, t].astype("float64")
            centred = np.array([0, 0, w, h])
            alike = [overlap(centred, np.array([0, 0, *s]) / side) for s in sizes]
            anchor = int(np.argmax(alike))
            if anchor in masks:
                m = match[n, t] = masks.index(anchor)
                i, j = int(y_ * grid), int(x_ * grid)
                own = maps[n, m, :, i, j]
                where = cross_entropy(own[0], x_ * grid - j) + cross_entropy(own[1], y_ * grid - i)
                for k in (0, 1):
                    where += abs(np.log((w, h)[k] * side / sizes[anchor][k]) - own[2 + k])
                target = np.full(classes, smooth)
                target[label[n, t]] = 1 - smooth
                kind = cross_entropy(own[5:], target).sum()
                loss[n] += weight[n, t] * ((2 - w * h) * where + kind)
                mask[n, m, i, j] = weight[n, t]
        for at in np.ndindex(mask.shape[1:]):
            if mask[(n, *at)] >= 0:
                logit, is_object = maps[n, at[0], 4, at[1], at[2]], mask[(n, *at)] > 1e-5
                share = mask[(n, *at)] if is_object else 1
                loss[n] += share * cross_entropy(logit, 1.0 if is_object else 0.0)
    return loss, mask, match


def case(seed):
    rng = np.random.RandomState(seed)
    x = rng.randn(2, 2 * 8, 3, 3).astype("float32")
    truth = rng.uniform(0.05, 0.95, (2, 4, 4)).astype("float32")
    truth[0, 2:] = 0  # an image with less ground truth
    label = rng.randint(0, 3, (2, 4)).astype("int32")
    attrs = {
        "anchors": ANCHORS,
        "anchor_mask": [2, 1],
        "class_num": 3,
        "ignore_thresh": 0.2,
        "downsample_ratio": 16,
        "use_label_smooth": True,
        "scale_x_y": 1.0,
    }
    return {"X": x, "GTBox": truth, "GTLabel": label}, attrs


def outputs(inputs, attrs):
    weight = inputs.get("GTScore", np.ones(inputs["GTLabel"].shape))
    found = loss_of(inputs["X"], inputs["GTBox"], inputs["GTLabel"], weight, attrs)
    assert (found[1] == -1).any() and (found[1] > 0).any() and (found[2] >= 0).any()
    return dict(zip(("Loss", "ObjectnessMask", "GTMatchMask"), found))


def test_yolov3_loss():
    inputs, attrs = case(1)
    check("yolov3_loss", inputs, attrs, expect=outputs(inputs, attrs), grad=("X",), rtol=1e-4)
    inputs["GTScore"] = np.random.RandomState(2).rand(2, 4).astype("float32")
    attrs |= {"use_label_smooth": False, "scale_x_y": 1.1}
    check("yolov3_loss", inputs, attrs, expect=outputs(inputs, attrs), rtol=1e-4)


def test_of_two_objects_in_one_cell_the_last_has_the_gradient():
    inputs, attrs = case(1)
    inputs["GTBox"][1, 1:, :] = inputs["GTBox"][1, 0]
    inputs["GTLabel"][1] = (0, 1, 1, 2)
    block = fluid.default_main_program().global_block()
    data = {n: fluid.data(n, v.shape, str(v.dtype)) for n, v in inputs.items()}
    data["X"].stop_gradient = False
    loss = fluid.layers.yolov3_loss(data["X"], data["GTBox"], data["GTLabel"], **attrs)
    assert loss.name == "yolov3_loss_0.tmp_0" and len(block.ops) == 1
    (grad,) = fluid.gradients([loss], [data["X"]])

    def run():
        return fluid.Executor().run(feed=inputs, fetch_list=[loss, grad])

    four, by_all = run()
    np.testing.assert_allclose(four, outputs(inputs, attrs)["Loss"], rtol=1e-4)
    inputs["GTBox"][1, :3] = 0
    one, by_last = run()
    assert four[1] > one[1]
    np.testing.assert_allclose(by_all, by_last, rtol=1e-5, atol=1e-7)


def test_an_image_without_ground_truth():
    inputs, attrs = case(1)
    inputs["GTBox"] *= 0
    logits = inputs["X"].reshape(2, 2, 8, 3, 3)[:, :, 4]
    expect = {
        "Loss": cross_entropy(logits, 0.0).sum((1, 2, 3)),
        "ObjectnessMask": np.zeros((2, 2, 3, 3), "float32"),
        "GTMatchMask": np.full((2, 4), -1, "int32"),
    }
    check("yolov3_loss", inputs, attrs, expect=expect)


@pytest.mark.parametrize(
    "slot, shape, changed",
    [
        ("X", [2, 17, 3, 3], {}),
        ("X", [2, 16, 3, 4], {}),
        ("GTBox", [2, 4, 5], {}),
        ("GTLabel", [2, 3], {}),
        ("X", [2, 16, 3, 3], {"anchor_mask": [1, 3]}),
        ("X", [2, 16, 3, 3], {"anchors": [10, 13, 30]}),
    ],
)
def test_what_does_not_fit(slot, shape, changed):
    inputs, attrs = case(1)
    shapes = {n: v.shape for n, v in inputs.items()} | {slot: shape}
    data = {n: fluid.data(n, shapes[n], str(inputs[n].dtype)) for n in inputs}
    with pytest.raises(errors.ShapeError, match="yolov3_loss: "):
        fluid.layers.yolov3_loss(data["X"], data["GTBox"], data["GTLabel"], **(attrs | changed))
