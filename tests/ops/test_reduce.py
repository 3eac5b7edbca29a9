"""Reductions and norms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

X = np.random.RandomState(3).uniform(0.5, 2.0, (2, 3, 2)).astype("float32")
REDUCE = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "frobenius_norm": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
}


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize(("dim", "keep"), [((1,), False), ((0, -1), True), ((-2,), True)])
def test_reduce(name, dim, keep):
    check(
        name,
        {"X": X},
        {"dim": list(dim), "keep_dim": keep},
        expect={"Out": REDUCE[name](X, axis=dim, keepdims=keep)},
        grad=("X",),
    )


@pytest.mark.parametrize("name", REDUCE)
def test_reduce_all_dimensions(name):
    whole = REDUCE[name](X)
    check(name, {"X": X}, {"reduce_all": True}, expect={"Out": np.full(1, whole)})
    check(name, {"X": X}, {"dim": [0, 1, 2]}, expect={"Out": np.full(1, whole)})
    check(
        name,
        {"X": X},
        {"reduce_all": True, "keep_dim": True},
        expect={"Out": np.full((1, 1, 1), whole)},
    )


def test_reduce_of_integers_keeps_their_dtype():
    x = np.array([[-1, -2, -4], [3, 5, 6]], "int32")
    for name in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min"):
        expected = REDUCE[name](x, axis=1).astype("int32")
        check(name, {"X": x}, {"dim": [1]}, expect={"Out": expected})
        known = registry.get(name).fn(x, dim=(1,))
        assert isinstance(known, np.ndarray) and known.dtype == "int32"
        np.testing.assert_array_equal(known, expected)
    check("reduce_mean", {"X": x}, {"dim": [1]}, expect={"Out": np.array([-2, 4], "int32")})


def test_reduce_into_another_dtype():
    check(
        "reduce_sum",
        {"X": X},
        {"dim": [0], "out_dtype": 6},
        expect={"Out": X.astype("float64").sum(0)},
    )


@pytest.mark.parametrize(("name", "expected"), [("reduce_max", [0, 1, 1]), ("reduce_min", [1, 0, 0])])
def test_each_of_equal_extremes_gets_the_gradient(name, expected):
    grad = jax.jit(jax.grad(lambda x: registry.get(name).fn(x).sum()))(jnp.array([1.0, 3, 3]))
    np.testing.assert_array_equal(grad, expected)


def test_reduce_all_and_any():
    x = np.array([[True, False], [True, True]])
    check("reduce_all", {"X": x}, {"dim": [1]}, expect={"Out": x.all(1)})
    check("reduce_any", {"X": ~x}, {"dim": [1]}, expect={"Out": (~x).any(1)})
    check("reduce_all", {"X": x}, {"reduce_all": True}, expect={"Out": np.array([False])})


def test_unknown_dimension_raises():
    with pytest.raises(errors.ShapeError, match=r"found \[3\]"):
        registry.get("reduce_sum").fn(X, dim=(3,))


def test_means_and_sums_of_everything():
    signed = X - 1.2
    check("mean", {"X": X}, expect={"Out": np.array([X.mean()])}, grad=("X",))
    check("l1_norm", {"X": signed}, expect={"Out": np.array([np.abs(signed).sum()])}, grad=("X",))
    check(
        "squared_l2_norm",
        {"X": signed},
        expect={"Out": np.array([np.square(signed).sum()])},
        grad=("X",),
    )


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("keep", [False, True])
def test_p_norm(order, keep):
    x = X[:, :, 0] - 1.2
    expected = (np.abs(x) ** order).sum(1, keepdims=keep) ** (1 / order)
    check(
        "p_norm",
        {"X": x},
        {"porder": order, "axis": 1, "keepdim": keep},
        expect={"Out": expected},
        grad=("X",),
    )


def test_norms_of_zero_have_no_gradient():
    for name, attrs in (
        ("p_norm", {"porder": 2.0}),
        ("p_norm", {"porder": 3.0}),
        ("frobenius_norm", {"dim": (1,)}),
    ):
        norm = functools.partial(registry.get(name).fn, **attrs)
        grad = jax.jit(jax.grad(lambda x: norm(x).sum()))(jnp.zeros((2, 2)))  # noqa: B023
        np.testing.assert_array_equal(grad, np.zeros((2, 2)))


def test_p_norm_refuses_orders_that_fluid_has_not():
    for order in (0.0, -1.0, float("inf")):
        with pytest.raises(errors.ShapeError, match="porder"):
            registry.get("p_norm").fn(X, porder=order)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf"), float("-inf")])
def test_dist(p):
    x, y = X[0], X[1, :1] + 0.1
    expected = np.linalg.norm((x - y).ravel(), p)
    check("dist", {"X": x, "Y": y}, {"p": p}, expect={"Out": np.array([expected])}, grad=("X", "Y"))


def test_norm():
    length = np.sqrt(np.square(X).sum(1, keepdims=True) + 1e-10)
    check("norm", {"X": X}, {"axis": 1, "epsilon": 1e-10}, expect={"Out": X / length, "Norm": length})
    check("norm", {"X": X}, {"axis": -2}, expect={"Out": X / length}, grad=("X",))


def test_clip_by_norm():
    x = np.array([3, 4], "float32")
    check("clip_by_norm", {"X": x}, {"max_norm": 1.0}, expect={"Out": x / 5})
    check("clip_by_norm", {"X": x}, {"max_norm": 10.0}, expect={"Out": x})
    check("clip_by_norm", {"X": x * 0}, {"max_norm": 1.0}, expect={"Out": x * 0})


@pytest.mark.parametrize("rows", [2, 1])
def test_squared_l2_distance(rows):
    y = X[:rows] + 0.3
    away = (X - y).reshape(2, 6)
    check(
        "squared_l2_distance",
        {"X": X, "Y": y},
        expect={"Out": np.square(away).sum(1, keepdims=True), "sub_result": away},
        grad=("X", "Y"),
    )


@pytest.mark.parametrize("rows", [2, 1])
def test_cos_sim(rows):
    x, y = X.reshape(2, 6), X[:rows, ::-1].reshape(rows, 6)
    norms = [np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y)]
    check(
        "cos_sim",
        {"X": X, "Y": X[:rows, ::-1].copy()},
        expect={
            "Out": (x * y).sum(1, keepdims=True) / norms[0] / norms[1],
            "XNorm": norms[0],
            "YNorm": norms[1],
        },
        grad=("X", "Y"),
    )
    zero = check(
        "cos_sim",
        {"X": X * 0, "Y": X},
        expect={"XNorm": np.full((2, 1), 1e-4), "Out": np.zeros((2, 1))},
    )
    assert np.isfinite(zero["Out"][0]).all()
