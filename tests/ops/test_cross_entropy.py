"""Losses on class labels."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.op_case import check

RNG = np.random.RandomState(5)
LOGITS = RNG.normal(size=(3, 4)).astype("float32")
SOFTMAX = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
LABEL = np.array([[0], [3], [1]])
PICKED = np.take_along_axis(SOFTMAX, LABEL, 1)
SOFT = np.exp(RNG.normal(size=(3, 4))).astype("float32")
SOFT /= SOFT.sum(1, keepdims=True)
BOUND = np.float32(1e20)


def gradient(op_type, inputs, attrs, slot, out, extra=()):
    """The gradient of the sum of `out` with respect to `slot`, in float32."""
    program = fluid.Program()
    block = program.global_block()
    for name, value in inputs.items():
        block.create_var(name=name, shape=value.shape, dtype=str(value.dtype), is_data=True)
    for name in (out, *extra):
        block.create_var(name=f"{name}_out")
    block.append_op(op_type, {n: n for n in inputs}, {n: f"{n}_out" for n in (out, *extra)}, attrs)
    (grad,) = fluid.gradients(block.var(f"{out}_out"), block.var(slot))
    return fluid.Executor(fluid.CPUPlace()).run(program, feed=inputs, fetch_list=[grad], scope=fluid.Scope())[0]


def test_cross_entropy():
    check("cross_entropy", {"X": SOFTMAX, "Label": LABEL}, expect={"Y": -np.log(PICKED)}, grad=("X",))
    check("cross_entropy", {"X": SOFTMAX, "Label": LABEL[:, 0]}, expect={"Y": -np.log(PICKED[:, 0])})
    check(
        "cross_entropy",
        {"X": SOFTMAX.reshape(1, 3, 4), "Label": LABEL.reshape(1, 3, 1)},
        expect={"Y": -np.log(PICKED).reshape(1, 3, 1)},
        grad=("X",),
    )
    check(
        "cross_entropy",
        {"X": SOFTMAX, "Label": SOFT},
        {"soft_label": True},
        expect={"Y": -(SOFT * np.log(SOFTMAX)).sum(1, keepdims=True)},
        grad=("X",),
    )


def test_cross_entropy2():
    expect = {"Y": -np.log(PICKED)}
    check("cross_entropy2", {"X": SOFTMAX, "Label": LABEL}, expect=expect, grad=("X",))
    check(
        "cross_entropy2",
        {"X": SOFTMAX, "Label": LABEL},
        expect=expect | {"XShape": np.zeros((3, 4, 0), "float32"), "MatchX": PICKED},
    )


@pytest.mark.parametrize(("op_type", "extra"), [("cross_entropy", ()), ("cross_entropy2", ("XShape", "MatchX"))])
def test_cross_entropy_at_zero_and_of_an_ignored_label(op_type, extra):
    inputs = {
        "X": np.array([[0, 0.5, 0.5], [0.2, 0.3, 0.5], [0, 0.2, 0.8]], "float32"),
        "Label": np.array([[0], [2], [7]]),
    }
    attrs = {"ignore_index": 7}
    check(op_type, inputs, attrs, expect={"Y": np.array([[BOUND], [-np.log(0.5)], [0]], "float32")})
    np.testing.assert_array_equal(
        gradient(op_type, inputs, attrs, "X", "Y", extra),
        np.array([[-np.inf, 0, 0], [0, 0, -2], [0, 0, 0]], "float32"),
    )


def test_cross_entropy_grad2():
    label = np.array([[0], [3], [-100]])
    match, slope = np.where(label == -100, 0, PICKED), np.array([[1], [2], [3]], "float32")
    expected = np.zeros((3, 4), "float32")
    expected[0, 0], expected[1, 3] = -1 / PICKED[0, 0], -2 / PICKED[1, 0]
    check(
        "cross_entropy_grad2",
        {
            "Y@GRAD": slope,
            "MatchX": match.astype("float32"),
            "Label": label,
            "XShape": np.zeros((3, 4, 0), "float32"),
        },
        expect={"X@GRAD": expected},
    )


def test_softmax_with_cross_entropy():
    check(
        "softmax_with_cross_entropy",
        {"Logits": LOGITS, "Label": LABEL},
        expect={"Softmax": SOFTMAX, "Loss": -np.log(PICKED)},
    )
    check(
        "softmax_with_cross_entropy",
        {"Logits": LOGITS, "Label": LABEL},
        {"ignore_index": 3},
        expect={"Loss": np.where(LABEL == 3, 0, -np.log(PICKED)).astype("float32")},
        grad=("Logits",),
    )
    check(
        "softmax_with_cross_entropy",
        {"Logits": LOGITS, "Label": SOFT},
        {"soft_label": True},
        expect={"Loss": -(SOFT * np.log(SOFTMAX)).sum(1, keepdims=True)},
        grad=("Logits",),
    )


def test_softmax_with_cross_entropy_along_an_axis():
    logits = RNG.normal(size=(2, 3, 2)).astype("float32")
    label = RNG.randint(0, 3, (2, 1, 2))
    log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    for axis in (1, -2):
        check(
            "softmax_with_cross_entropy",
            {"Logits": logits, "Label": label},
            {"axis": axis},
            expect={"Loss": -np.take_along_axis(log_softmax, label, 1)},
            grad=("Logits",),
        )


def test_softmax_with_cross_entropy_of_large_logits_and_half_precision():
    logits = np.array([[1000, -1000, 0]], "float32")
    for dtype in ("float32", "float16"):
        check(
            "softmax_with_cross_entropy",
            {"Logits": logits.astype(dtype), "Label": np.array([[1]])},
            expect={"Softmax": np.array([[1, 0, 0]], dtype), "Loss": np.array([[64]], dtype)},
        )


def test_no_exponent_of_a_softmax_loss_is_below_minus_64():
    logits, soft = np.array([[0, 200, 70], [5, 1, 150]], "float32"), [[0.5, 0.25, 0.25], [0.5, 0.5, 0]]
    # losses and gradients of the real Fluid
    hard = {"Logits": logits, "Label": np.array([[0], [1]])}
    check("softmax_with_cross_entropy", hard, expect={"Softmax": None, "Loss": np.array([[64], [64]], "float32")})
    found = gradient("softmax_with_cross_entropy", hard, {}, "Logits", "Loss", ("Softmax",))
    np.testing.assert_allclose(found, [[-1, 1, 0], [0, -1, 1]], atol=1e-6)
    given = {"Logits": logits, "Label": np.array(soft, "float32")}
    wanted = {"Softmax": None, "Loss": np.array([[48], [64]], "float32")}
    check("softmax_with_cross_entropy", given, {"soft_label": True}, expect=wanted)


def test_soft_labels_are_subtracted_whatever_their_sum():
    inputs = {"Logits": LOGITS, "Label": 2 * SOFT}
    found = gradient("softmax_with_cross_entropy", inputs, {"soft_label": True}, "Logits", "Loss", ("Softmax",))
    np.testing.assert_allclose(found, SOFTMAX - 2 * SOFT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_gives_nan(label):
    labels = np.array([[0], [label], [1]])
    for op_type, slot, out in (
        ("cross_entropy", "X", "Y"),
        ("cross_entropy2", "X", "Y"),
        ("softmax_with_cross_entropy", "Logits", "Loss"),
    ):
        expected = np.where(labels == label, np.nan, -np.log(np.take_along_axis(SOFTMAX, labels % 4, 1)))
        check(
            op_type,
            {slot: SOFTMAX if slot == "X" else LOGITS, "Label": labels},
            expect={out: expected.astype("float32")},
        )


@pytest.mark.parametrize(
    ("op_type", "slot", "out"),
    [("cross_entropy", "X", "Y"), ("softmax_with_cross_entropy", "Logits", "Loss")],
)
def test_labels_must_fit(op_type, slot, out):
    for label, attrs, message in (
        (LABEL[:2], {}, "expected labels of shape"),
        (SOFT, {}, "integer type"),
        (SOFT[:, :2], {"soft_label": True}, "expected soft labels of shape"),
    ):
        with pytest.raises(errors.ShapeError, match=message):
            check(op_type, {slot: LOGITS, "Label": label}, attrs, expect={out: None})


WEIGHT = np.array([0.1, 0.2, 0.3, 0.4], "float32")


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_nll_loss(weight):
    x, label = np.log(SOFTMAX), np.array([0, 3, -100])
    inputs = {"X": x, "Label": label} | ({} if weight is None else {"Weight": weight})
    weights = np.where(label == -100, 0, (np.ones(4, "float32") if weight is None else weight)[label % 4])
    losses = (-x[np.arange(3), label % 4] * weights).astype("float32")
    total = np.array([weights.sum()], "float32")
    check("nll_loss", inputs, {"reduction": "none"}, expect={"Out": losses}, grad=("X",))
    check(
        "nll_loss",
        inputs,
        {"reduction": "sum"},
        expect={"Out": losses.sum(keepdims=True), "Total_weight": total},
        grad=("X",),
    )
    check(
        "nll_loss",
        inputs,
        expect={"Out": losses.sum(keepdims=True) / total, "Total_weight": total},
        grad=("X",),
    )


def test_nll_loss_of_images_and_of_nothing():
    x = np.log(RNG.uniform(0.1, 1, (2, 3, 2, 2))).astype("float32")
    label = RNG.randint(0, 3, (2, 2, 2))
    check(
        "nll_loss",
        {"X": x, "Label": label},
        {"reduction": "none"},
        expect={"Out": -np.take_along_axis(x, label[:, None], 1)[:, 0]},
        grad=("X",),
    )
    zero = np.zeros(1, "float32")
    check(
        "nll_loss",
        {"X": x, "Label": np.full_like(label, -100)},
        expect={"Out": zero, "Total_weight": zero},
    )
    with pytest.raises(errors.ShapeError, match="reduction"):
        check("nll_loss", {"X": x, "Label": label}, {"reduction": "median"}, expect={"Out": None})
