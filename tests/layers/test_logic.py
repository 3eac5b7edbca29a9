"""Comparisons, logic and tests of tensors through the public API."""

import numpy as np
import pytest

import jfluid as fluid
from tests.layers.test_math import into, run_each

layers = fluid.layers
X, Y = np.array([[1, 2, 3], [3, 2, 1]], "float32"), np.array([[2, 2, 2]], "float32")
A, B = np.array([True, True, False, False]), np.array([True, False, True, False])
BAD = np.array([1, np.inf, 0], "float32")
CASES = {
    "equal": (layers.equal, [X, Y], X == Y),
    "elementwise_equal": (layers.elementwise_equal, [X, Y], X == Y),
    "not_equal": (layers.not_equal, [X, Y], X != Y),
    "less_than": (layers.less_than, [X, Y], X < Y),
    "less_than on the CPU": (lambda x, y: layers.less_than(x, y, force_cpu=True), [X, Y], X < Y),
    "less_equal": (layers.less_equal, [X, Y], X <= Y),
    "greater_than": (layers.greater_than, [X, Y], X > Y),
    "greater_equal": (layers.greater_equal, [X, Y], X >= Y),
    "greater_equal of integers": (
        layers.greater_equal,
        [X.astype("int64"), Y.astype("int64")],
        X >= Y,
    ),
    "equal into": (into(lambda out, x, y: layers.equal(x, y, cond=out), "bool"), [X, Y], X == Y),
    "less_than into": (
        into(lambda out, x, y: layers.less_than(x, y, cond=out), "bool"),
        [X, Y],
        X < Y,
    ),
    "logical_and": (layers.logical_and, [A, B], A & B),
    "logical_or": (layers.logical_or, [A, B], A | B),
    "logical_xor": (layers.logical_xor, [A, B], A ^ B),
    "logical_not": (layers.logical_not, [A], ~A),
    "logical_and into": (
        into(lambda out, a, b: layers.logical_and(a, b, out=out), "bool"),
        [A, B],
        A & B,
    ),
    "logical_not into": (into(lambda out, a: layers.logical_not(a, out=out), "bool"), [A], ~A),
    "isfinite": (layers.isfinite, [X], np.array([True])),
    "isfinite not": (layers.isfinite, [BAD], np.array([False])),
    "has_inf": (layers.has_inf, [BAD], np.array([True])),
    "has_nan": (layers.has_nan, [BAD], np.array([False])),
    "is_empty": (layers.is_empty, [X], np.array([False])),
    "is_empty into": (
        into(lambda out, x: layers.is_empty(x, cond=out), "bool"),
        [X],
        np.array([False]),
    ),
    "allclose": (lambda x, y: layers.allclose(x, y, rtol=0.1), [X, X * 1.05], np.array([True])),
    "allclose not": (layers.allclose, [X, X * 1.05], np.array([False])),
}


@pytest.fixture(scope="module")
def values():
    return run_each(CASES)


@pytest.mark.parametrize("name", CASES)
def test_value(name, values):
    found, expected = values[name], CASES[name][-1]
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, expected)


def test_comparisons_stop_gradients():
    with fluid.program_guard(fluid.Program()):
        x = layers.data("x", [3])
        assert layers.less_than(x, x).stop_gradient


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda x: layers.equal(x, 3), "equal, y: expected a Variable"),
        (lambda x: layers.logical_and(x, x), "expected dtype bool, found float32"),
        (lambda x: layers.logical_not(x), "expected dtype bool, found float32"),
    ],
)
def test_wrong_arguments(build, match):
    with fluid.program_guard(fluid.Program()), pytest.raises(TypeError, match=match):
        build(layers.data("x", [3]))
