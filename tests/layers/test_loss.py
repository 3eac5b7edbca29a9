"""Loss layers through the public API."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers

RNG = np.random.RandomState(2)
X = RNG.normal(size=(3, 4)).astype("float32")
Y = RNG.normal(size=(3, 4)).astype("float32")
P = np.exp(X) / np.exp(X).sum(1, keepdims=True)
Q = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
LABEL = np.array([[0], [3], [1]])
PICKED = np.take_along_axis(P, LABEL, 1)
BITS = np.array([[0], [1], [1]], "float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def run(build, *arrays, rows=-1):
    """(names, values) of what the layers of `build`, called with one variable an array, compute."""
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        data = [
            program.global_block().create_var(
                name=f"d{i}",
                shape=[rows, *a.shape[1:]],
                dtype=str(a.dtype),
                is_data=True,
                stop_gradient=True,
            )
            for i, a in enumerate(arrays)
        ]
        built = build(*data)
        fetches = list(built) if isinstance(built, (list, tuple)) else [built]
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    values = exe.run(program, feed={f"d{i}": a for i, a in enumerate(arrays)}, fetch_list=fetches, scope=scope)
    for variable, value in zip(fetches, values):
        assert len(variable.shape) == value.ndim and all(d in (-1, n) for d, n in zip(variable.shape, value.shape))
        assert variable.np_dtype == value.dtype
    return [v.name for v in fetches], values


ABS = np.abs(X - Y)
HUGE = np.array([[20.0]], "float32")
# name -> layer, arrays, expected value, expected name
CASES = {
    "cross_entropy": (layers.cross_entropy, (P, LABEL), -np.log(PICKED), "cross_entropy2_0.tmp_0"),
    "cross_entropy soft": (
        lambda x, y: layers.cross_entropy(x, y, soft_label=True),
        (P, Q),
        -(Q * np.log(P)).sum(1, keepdims=True),
        "cross_entropy_0.tmp_0",
    ),
    "cross_entropy ignore": (
        lambda x, y: layers.cross_entropy(x, y, ignore_index=3),
        (P, LABEL),
        np.where(LABEL == 3, 0, -np.log(PICKED)),
        "cross_entropy2_0.tmp_0",
    ),
    "softmax_with_cross_entropy": (
        layers.softmax_with_cross_entropy,
        (X, LABEL),
        -np.log(PICKED),
        "softmax_with_cross_entropy_0.tmp_1",
    ),
    "sigmoid_cross_entropy_with_logits": (
        lambda x, y: layers.sigmoid_cross_entropy_with_logits(x, y, name="named", normalize=True),
        (X, P),
        (-P * np.log(sigmoid(X)) - (1 - P) * np.log(1 - sigmoid(X))) / 12,
        "named.tmp_0",
    ),
    "square_error_cost": (
        layers.square_error_cost,
        (X, Y),
        (X - Y) ** 2,
        "square_error_cost_0.tmp_1",
    ),
    "mse_loss": (
        layers.mse_loss,
        (X, Y),
        ((X - Y) ** 2).mean(keepdims=True)[0],
        "reduce_mean_0.tmp_0",
    ),
    "smooth_l1": (
        layers.smooth_l1,
        (X, Y),
        np.where(ABS < 1, ABS**2 / 2, ABS - 0.5).sum(1, keepdims=True),
        "smooth_l1_loss_0.tmp_1",
    ),
    "smooth_l1 weights": (
        lambda x, y, w: layers.smooth_l1(x, y, w, w, sigma=2.0),
        (X, Y, 0 * X + 2),
        2 * np.where(ABS < 1 / 8, 8 * ABS**2, 2 * ABS - 1 / 8).sum(1, keepdims=True),
        "smooth_l1_loss_0.tmp_1",
    ),
    "huber_loss": (
        lambda x, y: layers.huber_loss(x, y, 0.5),
        (X, Y),
        np.where(ABS <= 0.5, ABS**2 / 2, 0.5 * ABS - 0.125),
        "huber_loss_0.tmp_1",
    ),
    "kldiv_loss": (
        lambda x, y: layers.kldiv_loss(x, y, "none"),
        (X, Q),
        Q * (np.log(Q) - X),
        "kldiv_loss_0.tmp_0",
    ),
    "log_loss": (
        layers.log_loss,
        (P, Q),
        -Q * np.log(P + 1e-4) - (1 - Q) * np.log(1 - P + 1e-4),
        "log_loss_0.tmp_0",
    ),
    "rank_loss": (
        layers.rank_loss,
        (BITS, X[:, :1], Y[:, :1]),
        np.log1p(np.exp(X - Y))[:, :1] - BITS * (X - Y)[:, :1],
        "rank_loss_0.tmp_0",
    ),
    "margin_rank_loss": (
        layers.margin_rank_loss,
        (2 * BITS - 1, X[:, :1], Y[:, :1]),
        np.maximum(0, 0.1 - (2 * BITS - 1) * (X - Y)[:, :1]),
        "margin_rank_loss_0.tmp_0",
    ),
    "bpr_loss": (
        layers.bpr_loss,
        (X, LABEL),
        np.where(np.arange(4) == LABEL, 0, np.log1p(np.exp(X - np.take_along_axis(X, LABEL, 1)))).sum(1, keepdims=True)
        / 3,
        "bpr_loss_0.tmp_0",
    ),
    "label_smooth": (layers.label_smooth, (Q,), 0.9 * Q + 0.025, "label_smooth_0.tmp_0"),
    "label_smooth prior": (
        lambda x, y: layers.label_smooth(x, y, epsilon=0.5),
        (Q, P),
        0.5 * Q + 0.5 * P,
        "label_smooth_0.tmp_0",
    ),
    "teacher_student_sigmoid_loss": (
        layers.teacher_student_sigmoid_loss,
        (HUGE, HUGE * 0 + 1.5),
        2 * HUGE - 1.5 * HUGE,
        "_generated_var_0",
    ),
    "sigmoid_focal_loss": (
        layers.sigmoid_focal_loss,
        (X, LABEL.astype("int32"), np.array([2], "int32")),
        np.where(
            LABEL == np.arange(1, 5),
            -0.25 * (1 - sigmoid(X)) ** 2 * np.log(sigmoid(X)),
            -0.75 * sigmoid(X) ** 2 * np.log(1 - sigmoid(X)),
        )
        / 2,
        "sigmoid_focal_loss_0.tmp_0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_loss(case):
    build, arrays, expected, name = CASES[case]
    names, values = run(build, *arrays)
    assert names == [name]
    np.testing.assert_allclose(values[0], expected, rtol=1e-4, atol=1e-6)


def test_softmax_is_returned_on_request():
    names, (loss, softmax) = run(
        lambda x, y: layers.softmax_with_cross_entropy(x, y, return_softmax=True, axis=1), X, LABEL
    )
    np.testing.assert_allclose(loss, -np.log(PICKED), rtol=1e-5)
    np.testing.assert_allclose(softmax, P, rtol=1e-5)
    assert names == ["softmax_with_cross_entropy_0.tmp_1", "softmax_with_cross_entropy_0.tmp_0"]


def test_npair_loss():
    labels = np.array([1, 2, 1])
    target = (labels[:, None] == labels).astype("float32")
    target /= target.sum(1, keepdims=True)
    scores = X @ Y.T
    entropy = -(target * (scores - np.log(np.exp(scores).sum(1, keepdims=True)))).sum(1, keepdims=True)
    expected = (target * entropy).sum(0).mean() + 0.25 * 0.002 * ((X**2).sum(1).mean() + (Y**2).sum(1).mean())
    for kind in ("int64", "float32"):
        _, (loss,) = run(layers.npair_loss, X, Y, labels.astype(kind), rows=3)
        np.testing.assert_allclose(loss, [expected], rtol=1e-5)
    with pytest.raises(fluid.errors.ShapeError, match="number of labels must be known"):
        run(layers.npair_loss, X, Y, labels)


def test_dice_loss():
    hot = np.eye(4)[LABEL[:, 0]]
    expected = 1 - 2 * (P * hot).sum(1) / ((P + hot).sum(1) + 1e-5)
    names, (loss,) = run(lambda x, y: layers.dice_loss(x, y, name="named"), P, LABEL)
    np.testing.assert_allclose(loss, [expected.mean()], rtol=1e-5)
    assert names == ["named.tmp_0"]


def test_center_loss_moves_its_centers():
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        x = layers.data("x", [4])
        label = layers.data("label", [1], dtype="int64")
        loss = layers.center_loss(x, label, 5, 0.1, fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0)))
    assert loss.name == "center_loss_0.tmp_1"
    center = program.global_block().var("center_loss_0.w_0")
    assert center.stop_gradient and center.shape == (5, 4)
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    found, moved = exe.run(program, feed={"x": X, "label": LABEL}, fetch_list=[loss, center], scope=scope)
    np.testing.assert_allclose(found, ((X - 1) ** 2).sum(1, keepdims=True) / 2, rtol=1e-5)
    expected = np.ones((5, 4))
    expected[LABEL[:, 0]] += 0.1 * (X - 1) / 2
    np.testing.assert_allclose(moved, expected, rtol=1e-5)
    (again,) = exe.run(program, feed={"x": X, "label": LABEL}, fetch_list=[loss], scope=scope)
    assert (again < found).all()


def test_the_gradient_of_a_classifier():
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        x, label = layers.data("x", [4]), layers.data("label", [1], dtype="int64")
        weight = layers.create_parameter([4, 4], "float32")
        block = program.global_block()
        scores = block.create_var(name="scores")
        block.append_op("mul", {"X": x, "Y": weight}, {"Out": scores})
        loss = block.create_var(name="loss")
        block.append_op("mean", {"X": layers.softmax_with_cross_entropy(scores, label)}, {"Out": loss})
        ((param, grad),) = fluid.append_backward(loss)
    scope, exe = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    value, found = exe.run(program, feed={"x": X, "label": LABEL}, fetch_list=[param, grad], scope=scope)
    scores = X @ value
    slope = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(4)[LABEL[:, 0]]
    np.testing.assert_allclose(found, X.T @ slope / 3, rtol=1e-4, atol=1e-6)


def test_wrong_arguments_raise():
    for build, message in (
        (
            lambda x: layers.kldiv_loss(x, x, "median"),
            "reduction: expected none, sum, mean or batchmean",
        ),
        (
            lambda x: layers.label_smooth(x, epsilon=1.5),
            "epsilon: expected a number from 0 to 1, found 1.5",
        ),
        (lambda x: layers.smooth_l1(x, X), "expected a Variable"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            run(build, X)
