"""Comparisons, logic and tests of tensors."""

import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less_than": np.less,
    "less_equal": np.less_equal,
    "greater_than": np.greater,
    "greater_equal": np.greater_equal,
}


@pytest.mark.parametrize("name", COMPARE)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_compare(name, dtype):
    x, y = np.array([[1, 2, 3], [2, 2, 2]], dtype), np.array([2, 2, 2], dtype)
    check(name, {"X": x, "Y": y}, expect={"Out": COMPARE[name](x, y)})
    check(name, {"X": x, "Y": y[:2]}, {"axis": 0}, expect={"Out": COMPARE[name](x, y[:2, None])})
    assert isinstance(registry.get(name).fn(x, y), np.ndarray), "a known value must stay known"
    assert registry.find(f"{name}_grad") is None


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical(name):
    x, y = np.array([[True, False], [True, False]]), np.array([[True, True], [False, False]])
    expected = getattr(np, name)(x, y)
    check(name, {"X": x, "Y": y}, expect={"Out": expected})
    check(name, {"X": x, "Y": y.ravel()}, expect={"Out": expected})
    assert isinstance(registry.get(name).fn(x, y), np.ndarray)
    with pytest.raises(errors.ShapeError, match="same number of elements"):
        registry.get(name).fn(x, y[:1])


def test_logical_not():
    x = np.array([True, False])
    check("logical_not", {"X": x}, expect={"Out": ~x})
    assert isinstance(registry.get("logical_not").fn(x), np.ndarray)


@pytest.mark.parametrize(
    ("value", "finite", "inf", "nan"),
    [
        (1, True, False, False),
        (np.inf, False, True, False),
        (-np.inf, False, True, False),
        (np.nan, False, False, True),
    ],
)
def test_finite(value, finite, inf, nan):
    x = np.array([[0, value]], "float32")
    for name, expected in (("isfinite", finite), ("isinf", inf), ("isnan", nan)):
        check(name, {"X": x}, expect={"Out": np.array([expected])})


def test_integers_are_finite():
    for name, expected in (("isfinite", True), ("isinf", False), ("isnan", False)):
        check(name, {"X": np.array([1, 2])}, expect={"Out": np.array([expected])})


def test_is_empty():
    check("is_empty", {"X": np.ones(2, "float32")}, expect={"Out": np.array([False])})
    check("is_empty", {"X": np.ones((2, 0), "float32")}, expect={"Out": np.array([True])})


@pytest.mark.parametrize(
    ("x", "y", "attrs", "expected"),
    [
        ([1.0, 2], [1.0, 2], {}, True),
        ([1.0, 2], [1.0, 2.1], {}, False),
        ([1.0, 2], [1.0, 2.1], {"rtol": 0.1}, True),
        ([1.0, 0], [1.0, 0.1], {"atol": 0.2}, True),
        ([1, np.nan], [1, np.nan], {}, False),
        ([1, np.nan], [1, np.nan], {"equal_nan": True}, True),
        ([np.inf], [np.inf], {}, False),
    ],
)
def test_allclose(x, y, attrs, expected):
    x, y = np.array(x, "float32"), np.array(y, "float32")
    check("allclose", {"Input": x, "Other": y}, attrs, expect={"Out": np.array([expected])})
    with pytest.raises(errors.ShapeError, match="equal"):
        registry.get("allclose").fn(x, np.ones((3, 3), "float32"))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([[1, 2], [1, 2]], [1, 2], True),
        ([[1, 2], [1, 3]], [1, 2], False),
        ([[np.nan]], [[np.nan]], False),
    ],
)
def test_equal_reduce(x, y, expected):
    x, y = np.array(x, "float32"), np.array(y, "float32")
    rows = x if y.ndim == 1 else ()
    check(
        "equal_reduce",
        {"X": x, "Y": y},
        expect={"Out": np.array([expected])},
        rows=["X"],
        ragged=["X"] if len(rows) > 1 else (),
    )
