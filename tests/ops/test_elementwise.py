"""Arithmetic of two tensors, and functions of one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

RNG = np.random.RandomState(3)
X = RNG.uniform(0.5, 2.0, (2, 3, 4)).astype("float32")
Y = RNG.uniform(2.1, 3.0, (2, 3, 4)).astype("float32")
BINARY = {
    "elementwise_add": np.add,
    "elementwise_sub": np.subtract,
    "elementwise_mul": np.multiply,
    "elementwise_div": np.divide,
    "elementwise_max": np.maximum,
    "elementwise_min": np.minimum,
    "elementwise_pow": np.power,
}


def call(name, *values, **attrs):
    with jax.enable_x64(True):
        return registry.get(name).fn(*values, **attrs)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    check(name, {"X": X[0], "Y": Y[0]}, expect={"Out": BINARY[name](X[0], Y[0])}, grad=("X", "Y"))


@pytest.mark.parametrize(
    ("y", "axis", "shape"),
    [
        (Y[0, 0], -1, (1, 1, 4)),
        (Y[0], -1, (1, 3, 4)),
        (Y[0, :, 0], 1, (1, 3, 1)),
        (Y[0, :, :1], 1, (1, 3, 1)),
        (Y[:, 0, 0], 0, (2, 1, 1)),
        (Y[:, :, 0], 0, (2, 3, 1)),
        (Y[:, :1, :1], 0, (2, 1, 1)),
        (Y[0, 0, :1], -1, (1, 1, 1)),
        (Y[0, :1, :1, None, None], 1, (1, 1, 1)),
    ],
)
def test_broadcast_by_axis(y, axis, shape):
    if y.ndim > X.ndim:
        y = y.reshape(1, 1, 1)
    check(
        "elementwise_mul",
        {"X": X, "Y": y},
        {"axis": axis},
        expect={"Out": X * y.reshape(shape)},
        grad=("Y",),
    )


def test_the_smaller_tensor_may_come_first():
    check("elementwise_sub", {"X": X[0, 0], "Y": Y}, expect={"Out": X[0, 0] - Y}, grad=("X",))


def test_trailing_ones_are_cut_to_fit():
    check(
        "elementwise_add",
        {"X": X, "Y": Y[0, 0][:, None]},
        {"axis": 2},
        expect={"Out": X + Y[0, 0]},
        grad=("Y",),
    )


def test_shapes_that_do_not_fit():
    with pytest.raises(errors.ShapeError, match=r"dimension 1 is 3 in the first and 2"):
        call("elementwise_add", np.ones((2, 3)), np.ones((2,)))
    with pytest.raises(errors.ShapeError, match="cannot be broadcast at axis 2"):
        call("elementwise_add", np.ones((2, 3, 4)), np.ones((3, 4)), axis=2)
    with pytest.raises(errors.ShapeError, match="one dtype, found float32 and int64"):
        call("elementwise_add", np.ones(2, "float32"), np.ones(2, "int64"))


A, B = np.array([-5, 5, -5, 5]), np.array([3, 3, -3, -3])
INTEGER = [
    ("elementwise_add", A + B),
    ("elementwise_sub", A - B),
    ("elementwise_mul", A * B),
    ("elementwise_div", [-1, 1, 1, -1]),
    ("elementwise_floordiv", [-1, 1, 1, -1]),
    ("elementwise_mod", [-2, 2, -2, 2]),
    ("elementwise_max", np.maximum(A, B)),
    ("elementwise_min", np.minimum(A, B)),
]


@pytest.mark.parametrize(("name", "expected"), INTEGER)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_divide_as_in_c(name, expected, dtype):
    x, y, expected = (np.asarray(v, dtype) for v in (A, B, expected))
    check(name, {"X": x, "Y": y}, expect={"Out": expected})
    known = call(name, x, y)
    assert isinstance(known, np.ndarray) and known.dtype == dtype, "a known value must stay known"
    np.testing.assert_array_equal(known, expected)


def test_integer_power():
    x, y = np.array([2, 3, 2]), np.array([3, 4, -1])
    check("elementwise_pow", {"X": x, "Y": y}, expect={"Out": np.array([8, 81, 0])})


def test_mod_of_floats_has_the_sign_of_the_divisor():
    x, y = np.array([-5.5, 5.5, -5, 5], "float32"), np.array([3, 3, -3, -3], "float32")
    check("elementwise_mod", {"X": x, "Y": y}, expect={"Out": np.array([0.5, 2.5, -2, -1], "float32")})


@pytest.mark.parametrize(("name", "to_x"), [("elementwise_max", [0, 1, 0]), ("elementwise_min", [0, 0, 1])])
def test_a_tie_gives_its_gradient_to_y(name, to_x):
    x, y = jnp.array([1.0, 2, 3]), jnp.array([1.0, 1, 4])
    gx, gy = jax.jit(jax.grad(lambda *v: call(name, *v).sum(), (0, 1)))(x, y)
    np.testing.assert_array_equal(gx, to_x)
    np.testing.assert_array_equal(gy, 1 - np.array(to_x))


def test_minus_and_sum():
    check("minus", {"X": X[0], "Y": Y[0]}, expect={"Out": X[0] - Y[0]}, grad=("X", "Y"))
    check("sum", {"X": [X[0], Y[0], X[1]]}, expect={"Out": X[0] + Y[0] + X[1]}, grad=("X",))
    check("sum", {"X": [np.arange(3)]}, expect={"Out": np.arange(3)})
    with pytest.raises(errors.ShapeError, match="equal"):
        call("sum", [np.ones((2, 3)), np.ones((2, 1))])
    with pytest.raises(errors.ShapeError, match="empty"):
        call("sum", [])


@pytest.mark.parametrize(("after", "expected"), [(True, X * 2 + 1), (False, (X + 1) * 2)])
def test_scale(after, expected):
    check(
        "scale",
        {"X": X},
        {"scale": 2.0, "bias": 1.0, "bias_after_scale": after},
        expect={"Out": expected},
        grad=("X",),
    )


def test_scale_by_a_tensor_and_of_integers():
    tensor = np.array([3.0], "float32")
    check(
        "scale",
        {"X": X, "ScaleTensor": tensor},
        {"bias": 1.0},
        expect={"Out": X * 3 + 1},
        grad=("X",),
    )
    x = np.array([1, 2, 5])
    check("scale", {"X": x}, {"scale": 2.0, "bias": 1.0}, expect={"Out": x * 2 + 1})
    check("scale", {"X": x}, {"scale": 0.5, "bias": 0.7}, expect={"Out": x * 0})
    assert isinstance(call("scale", x, None, scale=2.0), np.ndarray)


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.5, 0.0, 2.7])
def test_pow(factor):
    check(
        "pow",
        {"X": X[0]},
        {"factor": factor},
        expect={"Out": X[0] ** np.float32(factor)},
        grad=("X",),
    )


def test_pow_by_a_tensor_and_of_integers():
    check(
        "pow",
        {"X": X[0], "FactorTensor": np.array([3.0], "float32")},
        expect={"Out": X[0] ** 3},
        grad=("X",),
    )
    check("pow", {"X": np.array([1, 2, 0])}, {"factor": 2.0}, expect={"Out": np.array([1, 4, 0])})


SIGNED = RNG.uniform(-0.9, 0.9, (3, 4)).astype("float32")
UNARY = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "reciprocal": np.reciprocal,
}
SIGNED_UNARY = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "sin": np.sin,
    "cos": np.cos,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf),
    "sign": np.sign,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    check(name, {"X": X[0]}, expect={"Out": UNARY[name](X[0])}, grad=("X",))


@pytest.mark.parametrize("name", SIGNED_UNARY)
def test_signed_unary(name):
    check(
        name,
        {"X": SIGNED},
        expect={"Out": SIGNED_UNARY[name](SIGNED).astype("float32")},
        grad=("X",),
    )


def test_round_takes_halves_away_from_zero():
    x = np.array([-2.5, -1.5, -0.5, 0.0, 0.4, 0.5, 1.5, 2.5], "float32")
    check("round", {"X": x}, expect={"Out": np.array([-3, -2, -1, 0, 0, 1, 2, 3], "float32")})
    check("round", {"X": SIGNED}, expect={"Out": np.round(SIGNED)}, grad=("X",))


def test_clip():
    x = np.array([-1, -0.3, 0.2, 0.5, 2.0], "float32")
    check(
        "clip",
        {"X": x},
        {"min": -0.4, "max": 0.4},
        expect={"Out": np.clip(x, -0.4, 0.4)},
        grad=("X",),
    )
    bounds = {"Min": np.array([-0.5], "float32"), "Max": np.array([0.3], "float32")}
    check(
        "clip",
        {"X": x, **bounds},
        {"min": 0.0, "max": 1.0},
        expect={"Out": np.clip(x, -0.5, 0.3)},
        grad=("X",),
    )
    with pytest.raises(errors.ShapeError, match=r"found 3\.0 and 1\.0"):
        call("clip", x, None, None, min=3.0, max=1.0)


def test_clip_has_no_gradient_at_its_bounds():
    grad = jax.jit(jax.grad(lambda x: call("clip", x, None, None, min=0.0, max=1.0).sum()))(
        jnp.array([-1, 0, 0.5, 1, 2])
    )
    np.testing.assert_array_equal(grad, [0, 0, 1, 0, 0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_cumsum(reverse, exclusive):
    x = X[0]
    ordered = x[::-1] if reverse else x
    expected = np.cumsum(ordered, 0) - (ordered if exclusive else 0)
    check(
        "cumsum",
        {"X": x},
        {"axis": 0, "reverse": reverse, "exclusive": exclusive},
        expect={"Out": expected[::-1] if reverse else expected},
        grad=("X",),
    )


def test_cumsum_of_integers():
    check("cumsum", {"X": np.array([1, 2, 3], "int32")}, expect={"Out": np.array([1, 3, 6], "int32")})
