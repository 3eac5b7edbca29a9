"""Activation functions, and Fluid's gradients at their corners."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

X = np.random.RandomState(5).uniform(-4, 4, (3, 4)).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elu(x, alpha):
    return np.where(x > 0, x, alpha * (np.exp(x) - 1))


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


CASES = [
    ("relu", {}, lambda x: np.maximum(x, 0)),
    ("sigmoid", {}, sigmoid),
    ("logsigmoid", {}, lambda x: np.log(sigmoid(x))),
    ("tanh", {}, np.tanh),
    ("tanh_shrink", {}, lambda x: x - np.tanh(x)),
    ("softplus", {}, lambda x: np.log1p(np.exp(x))),
    ("softsign", {}, lambda x: x / (1 + np.abs(x))),
    ("relu6", {"threshold": 2.0}, lambda x: np.clip(x, 0, 2)),
    ("brelu", {"t_min": 1.0, "t_max": 3.0}, lambda x: np.clip(x, 1, 3)),
    ("leaky_relu", {"alpha": 0.1}, lambda x: np.maximum(x, 0.1 * x)),
    ("leaky_relu", {"alpha": 2.0}, lambda x: np.maximum(x, 2 * x)),
    ("elu", {"alpha": 1.5}, lambda x: elu(x, 1.5)),
    ("selu", {}, lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772)),
    ("gelu", {}, gelu),
    (
        "gelu",
        {"approximate": True},
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    ("soft_relu", {}, lambda x: np.log1p(np.exp(x))),
    ("softshrink", {"lambda": 0.7}, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.7, 0)),
    ("hard_shrink", {"threshold": 0.7}, lambda x: np.where(np.abs(x) > 0.7, x, 0)),
    ("thresholded_relu", {"threshold": 0.7}, lambda x: np.where(x > 0.7, x, 0)),
    ("hard_sigmoid", {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    ("hard_swish", {}, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("swish", {"beta": 1.5}, lambda x: x * sigmoid(1.5 * x)),
    ("mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ("stanh", {}, lambda x: 1.7159 * np.tanh(0.67 * x)),
]


@pytest.mark.parametrize(("name", "attrs", "formula"), CASES)
def test_formula(name, attrs, formula):
    check(
        name,
        {"X": X},
        attrs,
        expect={"Out": formula(X.astype("float64")).astype("float32")},
        grad=("X",),
        rtol=1e-4,
    )


CORNERS = [
    ("relu", {}, [-1, 0, 1], [0, 0, 1]),
    ("abs", {}, [-1, 0, 1], [-1, 0, 1]),
    ("relu6", {}, [-1, 0, 1, 6, 7], [0, 0, 1, 0, 0]),
    ("brelu", {}, [-1, 0, 1, 24, 25], [0, 0, 1, 0, 0]),
    ("leaky_relu", {"alpha": 0.5}, [-1, 0, 1], [0.5, 0.5, 1]),
    ("elu", {"alpha": 2.0}, [0, 1], [2, 1]),
    ("softshrink", {"lambda": 0.5}, [-1, -0.5, 0, 0.5, 1], [1, 0, 0, 0, 1]),
    ("hard_shrink", {"threshold": 0.5}, [-1, -0.5, 0, 0.5, 1], [1, 0, 0, 0, 1]),
    ("hard_sigmoid", {}, [-3, -2.5, 0, 2.5, 3], [0, 0, 0.2, 0, 0]),
    ("hard_swish", {}, [-4, -3, 0, 3, 4], [0, 0, 0.5, 1, 1]),
    ("thresholded_relu", {}, [0, 1, 2], [0, 0, 1]),
    ("softsign", {}, [-1, 0, 1], [0.25, 1, 0.25]),
    (
        "soft_relu",
        {"threshold": 2.0},
        [-3, -1, 0, 1, 2, 3],
        [0.119203, 0.268941, 0.5, 0.731059, 0, 0],
    ),
    ("logsigmoid", {}, [-100, 0, 100], [1, 0.5, 0]),
    ("mish", {}, [-30, 0, 30, 1000, -1000], [0, 0.6, 1, 1, 0]),
]


@pytest.mark.parametrize(("name", "attrs", "points", "expected"), CORNERS)
def test_gradient_at_corners(name, attrs, points, expected):
    fn = registry.get(name).fn
    found = jax.jit(jax.grad(lambda x: fn(x, **attrs).sum()))(jnp.array(points, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_mish_beyond_its_threshold():
    x = np.array([-3, -1, 1, 3], "float32")
    soft = np.where(x > 2, x, np.where(x < -2, np.exp(x), np.log1p(np.exp(x))))
    check("mish", {"X": x}, {"threshold": 2.0}, expect={"Out": x * np.tanh(soft)}, grad=("X",))


def test_maxout():
    x = np.random.RandomState(1).rand(2, 6, 2, 3).astype("float32")
    expected = x.reshape(2, 3, 2, 2, 3).max(2)
    check("maxout", {"X": x}, {"groups": 2}, expect={"Out": expected})
    check(
        "maxout",
        {"X": x[:1, :4, :1, :2]},
        {"groups": 2},
        expect={"Out": expected[:1, :2, :1, :2]},
        grad=("X",),
    )
    check("maxout", {"X": x}, {"groups": 3, "axis": -1}, expect={"Out": x.max(3, keepdims=True)})
    with pytest.raises(errors.ShapeError, match="6 channels"):
        registry.get("maxout").fn(x, groups=4)


def test_maxout_gives_a_tie_to_the_first_channel():
    grad = jax.jit(jax.grad(lambda x: registry.get("maxout").fn(x, groups=3).sum()))(jnp.ones((1, 3, 1, 1)))
    np.testing.assert_array_equal(grad.ravel(), [1, 0, 0])


@pytest.mark.parametrize(
    ("mode", "shape", "seen"),
    [
        ("all", (1,), (1,)),
        ("channel", (1, 3, 1), (1, 3, 1)),
        ("channel", (3,), (1, 3, 1)),
        ("element", (1, 3, 4), (1, 3, 4)),
    ],
)
def test_prelu(mode, shape, seen):
    x = np.random.RandomState(2).uniform(-1, 1, (2, 3, 4)).astype("float32")
    alpha = np.random.RandomState(3).rand(*shape).astype("float32")
    expected = np.where(x > 0, x, alpha.reshape(seen) * x)
    check(
        "prelu",
        {"X": x, "Alpha": alpha},
        {"mode": mode},
        expect={"Out": expected},
        grad=("X", "Alpha"),
    )


def test_prelu_refuses():
    prelu = registry.get("prelu").fn
    with pytest.raises(errors.ShapeError, match="found 'row'"):
        prelu(jnp.ones((2, 3)), jnp.ones(1), mode="row")
    with pytest.raises(errors.ShapeError, match="2 dimensions"):
        prelu(jnp.ones((2, 3)), jnp.ones(3), mode="element")


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax(axis):
    powers = np.exp(X - X.max(axis, keepdims=True))
    check(
        "softmax",
        {"X": X},
        {"axis": axis},
        expect={"Out": powers / powers.sum(axis, keepdims=True)},
        grad=("X",),
    )


def test_softmax_stays_above_zero():
    out = check("softmax", {"X": np.array([-1000, 2, 3], "float32")}, expect={"Out": None})["Out"][0]
    np.testing.assert_allclose(out, [1.17248e-28, 0.268941, 0.731059], rtol=1e-5)


@pytest.mark.parametrize("rows", [8, 1000])
def test_a_row_of_softmax_with_what_is_no_number_is_none(rows):
    x = np.random.RandomState(0).randn(rows, 7).astype("float32")
    x[5], x[6, 3], x[7, 2] = np.nan, np.nan, -np.inf
    executor = fluid.Executor(fluid.CPUPlace())
    out = fluid.layers.softmax(fluid.data("x", [None, 7]))
    (found,) = executor.run(feed={"x": x}, fetch_list=[out])
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [5, 6]
    assert np.isnan(found[5:7]).all() and found[7, 2] < 1e-20
