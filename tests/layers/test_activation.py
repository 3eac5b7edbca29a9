"""Functions of one tensor through the public API."""

import math

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.layers.test_math import into, run, run_each

layers = fluid.layers
X = np.random.RandomState(4).uniform(-0.9, 0.9, (2, 3)).astype("float32")
P = X + 1


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def elu(x, alpha):
    return np.where(x > 0, x, alpha * (np.exp(x) - 1))


erf = np.vectorize(math.erf)
CASES = {
    "abs": (layers.abs, X, np.abs(X)),
    "acos": (layers.acos, X, np.arccos(X)),
    "asin": (layers.asin, X, np.arcsin(X)),
    "atan": (layers.atan, X, np.arctan(X)),
    "brelu": (lambda x: layers.brelu(x, -0.5, 0.5), X, np.clip(X, -0.5, 0.5)),
    "ceil": (layers.ceil, X, np.ceil(X)),
    "cos": (layers.cos, X, np.cos(X)),
    "elu": (lambda x: layers.elu(x, 0.5), X, elu(X, 0.5)),
    "erf": (layers.erf, X, erf(X)),
    "exp": (layers.exp, X, np.exp(X)),
    "floor": (layers.floor, X, np.floor(X)),
    "gelu": (layers.gelu, X, X * 0.5 * (1 + erf(X / np.sqrt(2)))),
    "gelu approximate": (
        lambda x: layers.gelu(x, True),
        X,
        0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
    ),
    "hard_shrink": (layers.hard_shrink, X, np.where(np.abs(X) > 0.5, X, 0)),
    "hard_shrink at": (lambda x: layers.hard_shrink(x, 0.2), X, np.where(np.abs(X) > 0.2, X, 0)),
    "hard_sigmoid": (lambda x: layers.hard_sigmoid(x, 2.0, 0.3), X, np.clip(2 * X + 0.3, 0, 1)),
    "hard_swish": (
        lambda x: layers.hard_swish(x, 1.0, 2.0, 0.5),
        X,
        X * np.clip(X + 0.5, 0, 1) / 2,
    ),
    "leaky_relu": (lambda x: layers.leaky_relu(x, 0.1), X, np.where(X > 0, X, 0.1 * X)),
    "log": (layers.log, P, np.log(P)),
    "log1p": (layers.log1p, X, np.log1p(X)),
    "log1p into": (into(lambda out, x: layers.log1p(x, out=out)), X, np.log1p(X)),
    "log_softmax": (layers.log_softmax, X, np.log(softmax(X, -1))),
    "log_softmax in double": (
        lambda x: layers.log_softmax(x, axis=0, dtype="float64"),
        X,
        np.log(softmax(X.astype("float64"), 0)),
    ),
    "logsigmoid": (layers.logsigmoid, X, np.log(sigmoid(X))),
    "mish": (layers.mish, X, X * np.tanh(np.log1p(np.exp(X)))),
    "pow": (lambda x: layers.pow(x, 3), X, X**3),
    "reciprocal": (layers.reciprocal, P, 1 / P),
    "relu": (layers.relu, X, np.maximum(X, 0)),
    "relu6": (lambda x: layers.relu6(x, 0.3), X, np.clip(X, 0, 0.3)),
    "round": (layers.round, X, np.round(X)),
    "rsqrt": (layers.rsqrt, P, 1 / np.sqrt(P)),
    "selu": (layers.selu, X, 1.0507009873554805 * elu(X, 1.6732632423543772)),
    "selu scaled": (lambda x: layers.selu(x, scale=2.0, alpha=0.5), X, 2 * elu(X, 0.5)),
    "sigmoid": (layers.sigmoid, X, sigmoid(X)),
    "sign": (layers.sign, X, np.sign(X)),
    "sin": (layers.sin, X, np.sin(X)),
    "soft_relu": (layers.soft_relu, X, np.log1p(np.exp(X))),
    "softmax": (layers.softmax, X, softmax(X, -1)),
    "softmax axis": (lambda x: layers.softmax(x, axis=0), X, softmax(X, 0)),
    "softplus": (layers.softplus, X, np.log1p(np.exp(X))),
    "softshrink": (layers.softshrink, X, np.sign(X) * np.maximum(np.abs(X) - 0.5, 0)),
    "softshrink at": (
        lambda x: layers.softshrink(x, 0.2),
        X,
        np.sign(X) * np.maximum(np.abs(X) - 0.2, 0),
    ),
    "softsign": (layers.softsign, X, X / (1 + np.abs(X))),
    "sqrt": (layers.sqrt, P, np.sqrt(P)),
    "square": (layers.square, X, X * X),
    "stanh": (layers.stanh, X, 1.7159 * np.tanh(0.67 * X)),
    "swish": (lambda x: layers.swish(x, 2.0), X, X * sigmoid(2 * X)),
    "tanh": (layers.tanh, X, np.tanh(X)),
    "tanh_shrink": (layers.tanh_shrink, X, X - np.tanh(X)),
    "thresholded_relu": (layers.thresholded_relu, P, np.where(P > 1, P, 0)),
    "thresholded_relu at": (lambda x: layers.thresholded_relu(x, 0.2), X, np.where(X > 0.2, X, 0)),
}


@pytest.fixture(scope="module")
def values():
    return run_each({name: (build, [x]) for name, (build, x, _) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_value(name, values):
    found, expected = values[name], CASES[name][-1]
    assert found.dtype == (np.float64 if "double" in name else np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_pow_by_a_tensor():
    np.testing.assert_allclose(run(layers.pow, P, np.array([1.5], "float32")), P**1.5, rtol=1e-5)


def test_sign_of_an_array():
    np.testing.assert_array_equal(run(lambda: layers.sign(np.array([-2, 0, 3], "float32"))), [-1, 0, 1])


def test_maxout():
    x = np.random.RandomState(1).rand(2, 4, 2, 2).astype("float32")
    np.testing.assert_array_equal(run(lambda v: layers.maxout(v, 2), x), x.reshape(2, 2, 2, 2, 2).max(2))
    np.testing.assert_array_equal(run(lambda v: layers.maxout(v, 2, axis=-1), x), x.max(3, keepdims=True))


@pytest.mark.parametrize(("mode", "shape"), [("all", (1,)), ("channel", (1, 3, 1, 1)), ("element", (1, 3, 2, 2))])
def test_prelu(mode, shape):
    x = np.random.RandomState(1).uniform(-1, 1, (2, 3, 2, 2)).astype("float32")
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = layers.prelu(layers.data("x", [3, 2, 2]), mode)
    assert [(p.name, tuple(p.shape)) for p in main.all_parameters()] == [("prelu_0.w_0", shape)]
    assert out.name == "prelu_0.tmp_0" and out.shape == (-1, 3, 2, 2)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    (found,) = exe.run(main, feed={"x": x}, fetch_list=[out], scope=scope)
    np.testing.assert_allclose(found, np.where(x > 0, x, 0.25 * x), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda x: layers.relu(3), TypeError, "relu, x: expected a Variable"),
        (lambda x: layers.relu(layers.cast(x, "int64")), TypeError, "found int64"),
        (lambda x: layers.prelu(x, "row"), ValueError, "found 'row'"),
        (lambda x: layers.mish(x, threshold=0), ValueError, "positive"),
        (lambda x: layers.maxout(x, 2, axis=2), ValueError, "found 2"),
        (lambda x: layers.maxout(x, 3), errors.ShapeError, "4 channels"),
    ],
)
def test_wrong_arguments(build, error, match):
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(error, match=match):
        build(layers.data("x", [4, 2, 2]))
