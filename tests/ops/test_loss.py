"""Losses on numbers, pairs and scores."""

import numpy as np
import pytest

from jfluid import errors
from tests.op_case import check
from tests.ops.test_cross_entropy import gradient

RNG = np.random.RandomState(9)
X = RNG.normal(size=(3, 4)).astype("float32")
Y = RNG.normal(size=(3, 4)).astype("float32")
P = RNG.uniform(0.1, 0.9, (3, 4)).astype("float32")
Q = RNG.uniform(0.1, 0.9, (3, 4)).astype("float32")
BITS = np.array([[0], [1], [1]], "float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def test_sigmoid_cross_entropy_with_logits():
    loss = -Q * np.log(sigmoid(X)) - (1 - Q) * np.log(1 - sigmoid(X))
    check("sigmoid_cross_entropy_with_logits", {"X": X, "Label": Q}, expect={"Out": loss}, grad=("X",))
    label = Q.copy()
    label[0, :2] = 7
    loss = np.where(label == 7, 0, loss)
    attrs = {"ignore_index": 7, "normalize": True}
    check(
        "sigmoid_cross_entropy_with_logits",
        {"X": X, "Label": label},
        attrs,
        expect={"Out": loss / 10},
        grad=("X",),
    )
    check(
        "sigmoid_cross_entropy_with_logits",
        {"X": X, "Label": np.full_like(Q, 7)},
        attrs,
        expect={"Out": np.zeros_like(X)},
    )
    far = np.array([[100, -100]], "float32")
    check(
        "sigmoid_cross_entropy_with_logits",
        {"X": far, "Label": 0 * far + 0.5},
        expect={"Out": np.abs(far) / 2},
    )


def test_bce_loss():
    check(
        "bce_loss",
        {"X": P, "Label": Q},
        expect={"Out": -Q * np.log(P) - (1 - Q) * np.log(1 - P)},
        grad=("X",),
    )
    edge = {"X": np.array([0, 1], "float32"), "Label": np.array([1, 0], "float32")}
    check("bce_loss", edge, expect={"Out": np.full(2, 100, "float32")})
    np.testing.assert_allclose(gradient("bce_loss", edge, {}, "X", "Out"), [-1e12, 1e12])


@pytest.mark.parametrize(
    ("reduction", "reduce"),
    [
        ("none", lambda v: v),
        ("sum", lambda v: v.sum().reshape(1)),
        ("mean", lambda v: v.mean().reshape(1)),
        ("batchmean", lambda v: (v.sum() / 3).reshape(1)),
    ],
)
def test_kldiv_loss(reduction, reduce):
    target = Q.copy()
    target[0, :2] = 0, -1
    loss = np.where(target > 0, target * (np.log(np.maximum(target, 1e-9)) - X), 0).astype("float32")
    check(
        "kldiv_loss",
        {"X": X, "Target": target},
        {"reduction": reduction},
        expect={"Loss": reduce(loss)},
        grad=("X",),
    )


def test_kldiv_loss_refuses_other_reductions():
    with pytest.raises(errors.ShapeError, match="reduction"):
        check("kldiv_loss", {"X": X, "Target": Q}, {"reduction": "median"}, expect={"Loss": None})


def test_huber_loss():
    residual = Y - X
    size = np.abs(residual)
    out = np.where(size <= 0.5, residual**2 / 2, 0.5 * (size - 0.25)).astype("float32")
    check(
        "huber_loss",
        {"X": X, "Y": Y},
        {"delta": 0.5},
        expect={"Residual": residual, "Out": out},
        grad=("X", "Y"),
    )


def test_modified_huber_loss():
    x = np.array([[0.5], [-1.5], [3], [-2], [0.2], [-0.3]], "float32")
    y = np.array([[0], [0], [1], [1], [1], [1]], "float32")
    inter = np.array([[-0.5], [1.5], [3], [-2], [0.2], [-0.3]], "float32")
    out = np.array([[2.25], [0], [0], [8], [0.64], [1.69]], "float32")
    check(
        "modified_huber_loss",
        {"X": x, "Y": y},
        expect={"IntermediateVal": inter, "Out": out},
        grad=("X",),
    )


def test_smooth_l1_loss():
    def loss(diff, weight, sigma2):
        size = np.abs(diff)
        return (
            (np.where(size < 1 / sigma2, diff**2 * sigma2 / 2, size - 0.5 / sigma2) * weight)
            .reshape(3, -1)
            .sum(1, keepdims=True)
            .astype("float32")
        )

    check(
        "smooth_l1_loss",
        {"X": X, "Y": Y},
        expect={"Diff": X - Y, "Out": loss(X - Y, 1, 1)},
        grad=("X", "Y"),
    )
    check(
        "smooth_l1_loss",
        {"X": X, "Y": Y, "InsideWeight": P, "OutsideWeight": Q},
        {"sigma": 2.0},
        expect={"Diff": (X - Y) * P, "Out": loss((X - Y) * P, Q, 4)},
        grad=("X", "Y"),
    )
    check(
        "smooth_l1_loss",
        {"X": X.reshape(3, 2, 2), "Y": Y.reshape(3, 2, 2)},
        expect={"Diff": (X - Y).reshape(3, 2, 2), "Out": loss(X - Y, 1, 1)},
    )
    with pytest.raises(errors.ShapeError, match=r"expected tensors of one shape, found X \[3, 4\], Y \[2, 4\]"):
        check("smooth_l1_loss", {"X": X, "Y": Y[:2]}, expect={"Out": None})


def test_log_loss():
    check(
        "log_loss",
        {"Predicted": P, "Labels": Q},
        {"epsilon": 0.01},
        expect={"Loss": -Q * np.log(P + 0.01) - (1 - Q) * np.log(1 - P + 0.01)},
        grad=("Predicted",),
    )


def test_hinge_loss():
    x = np.array([[0.5], [-2], [1.5]], "float32")
    check(
        "hinge_loss",
        {"Logits": x, "Labels": BITS},
        expect={"Loss": np.array([[1.5], [3], [0]], "float32")},
        grad=("Logits",),
    )


def test_rank_loss():
    left, right = X[:, :1], X[:, 1:2]
    expected = softplus(left - right) - BITS * (left - right)
    check(
        "rank_loss",
        {"Label": BITS, "Left": left, "Right": right},
        expect={"Out": expected},
        grad=("Left", "Right"),
    )
    check(
        "rank_loss",
        {"Label": BITS[:1], "Left": left[:1] * 0 + 200, "Right": right[:1] * 0},
        expect={"Out": np.array([[200]], "float32")},
    )


def test_margin_rank_loss():
    x1, x2 = np.array([[1], [5], [2]], "float32"), np.array([[2], [-3], [1.2]], "float32")
    label = np.array([[1], [-1], [1]], "float32")
    out = np.array([[1.5], [8.5], [0]], "float32")
    check(
        "margin_rank_loss",
        {"X1": x1, "X2": x2, "Label": label},
        {"margin": 0.5},
        expect={"Activated": np.sign(out), "Out": out},
        grad=("X1", "X2"),
    )


def test_bpr_loss():
    label = np.array([[0], [3], [2]])
    positive = np.take_along_axis(X, label, 1)
    terms = np.where(np.arange(4) == label, 0, softplus(X - positive))
    check(
        "bpr_loss",
        {"X": X, "Label": label},
        expect={"Y": terms.sum(1, keepdims=True).astype("float32") / 3},
        grad=("X",),
    )
    label[1] = 4
    out = check("bpr_loss", {"X": X, "Label": label}, expect={"Y": None})["Y"][0]
    np.testing.assert_array_equal(np.isnan(out), label == 4)


def test_label_smooth():
    prior = np.array([[0.1, 0.2, 0.3, 0.4]], "float32")
    check("label_smooth", {"X": P}, {"epsilon": 0.2}, expect={"Out": 0.8 * P + 0.05}, grad=("X",))
    check(
        "label_smooth",
        {"X": P, "PriorDist": prior},
        {"epsilon": 0.2},
        expect={"Out": 0.8 * P + 0.2 * prior},
        grad=("X",),
    )


def test_teacher_student_sigmoid_loss():
    x = np.array([[0.5], [-1], [3], [0.1], [2], [20], [-20]], "float32")
    label = np.array([[-2], [-1], [0.3], [1.2], [0], [-2], [-1]], "float32")
    inside = np.array(
        [
            softplus(0.5),
            softplus(-1) + 1,
            2 * softplus(3) - 0.9,
            2 * softplus(0.1) - 0.1 - 0.02,
            2 * softplus(2),
            20,
            20,
        ],
        "float32",
    ).reshape(-1, 1)
    inputs = {"X": x, "Label": label}
    check("teacher_student_sigmoid_loss", inputs, expect={"Y": inside})
    check(
        "teacher_student_sigmoid_loss",
        {s: v[:5] for s, v in inputs.items()},
        expect={"Y": inside[:5]},
        grad=("X",),
    )
    np.testing.assert_array_equal(gradient("teacher_student_sigmoid_loss", inputs, {}, "X", "Y")[5:], [[0], [0]])


def test_sigmoid_focal_loss():
    label = np.array([[0], [2], [-1]], "int32")
    p = sigmoid(X)
    positive, negative = -0.25 * (1 - p) ** 2 * np.log(p), -0.75 * p**2 * np.log(1 - p)
    hit = label == np.arange(1, 5)
    out = np.where(hit, positive, np.where(label != -1, negative, 0)).astype("float32")
    check(
        "sigmoid_focal_loss",
        {"X": X, "Label": label, "FgNum": np.array([2], "int32")},
        expect={"Out": out / 2},
        grad=("X",),
    )
    check(
        "sigmoid_focal_loss",
        {"X": X, "Label": label, "FgNum": np.array([0], "int32")},
        expect={"Out": out},
    )
    far = np.array([[100, -100]], "float32")
    check(
        "sigmoid_focal_loss",
        {"X": far, "Label": label[:1], "FgNum": np.array([1], "int32")},
        expect={"Out": np.array([[75, 0]], "float32")},
    )


@pytest.mark.parametrize("update", [True, False])
def test_center_loss(update):
    x, label = np.array([[1, 2], [3, 4], [0, 1]], "float32"), np.array([[0], [2], [0]])
    centers = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "float32")
    diff = x - centers[label[:, 0]]
    moved = centers.copy()
    if update:
        moved[0] += 0.1 * (diff[0] + diff[2]) / 3
        moved[2] += 0.1 * diff[1] / 2
    inputs = {
        "X": x,
        "Label": label,
        "Centers": centers,
        "CenterUpdateRate": np.array([0.1], "float32"),
    }
    attrs = {"cluster_num": 3, "need_update": update}
    check(
        "center_loss",
        inputs,
        attrs,
        infer=False,
        expect={
            "CentersOut": moved,
            "SampleCenterDiff": diff,
            "Loss": (diff**2).sum(1, keepdims=True) / 2,
        },
    )
    check("center_loss", inputs, attrs, infer=False, expect={"Loss": None}, grad=("X",))
    with pytest.raises(errors.ShapeError, match="center_loss"):
        check("center_loss", inputs, attrs | {"cluster_num": 4}, expect={"Loss": None}, infer=False)


def test_rank_loss_takes_columns_and_vectors_together():
    label, left, right = np.array([1, 0], "float32"), X[0, :2], Y[:2, :1]
    expected = np.log1p(np.exp(left - right[:, 0])) - label * (left - right[:, 0])
    check("rank_loss", {"Label": label, "Left": left, "Right": right}, expect={"Out": expected})
