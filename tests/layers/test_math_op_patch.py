"""Arithmetic, comparison and indexing of Variables."""

import operator

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import build, run

X = np.array([[1.5, 2.0, 3.0], [4.0, 0.5, 6.0]], "float32")
UNKNOWN = ([-1, 3], X)
INTS = np.array([7, 3, 5])
CUBE = np.arange(24, dtype="float32").reshape(2, 3, 4)


def op_types(net, **data):
    """Types and attributes of the operators that the net appends."""
    return [(o.type, o.attrs) for o in build(net, **data).block.ops]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 2,
        lambda x: 2 + x,
        lambda x: x - 2,
        lambda x: 2 - x,
        lambda x: x * 2.5,
        lambda x: 3 * x,
        lambda x: x / 4,
        lambda x: 2 / x,
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: -x,
        lambda x: x + x,
        lambda x: x * x[:1],
    ],
)
@pytest.mark.parametrize("given", [X, UNKNOWN], ids=["known", "unknown"])
def test_arithmetic(compute, given):
    np.testing.assert_allclose(run(compute, x=given), compute(X), rtol=1e-6)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 2,
        lambda x: 2 - x,
        lambda x: x * 2,
        lambda x: x // 2,
        lambda x: x % 4,
        lambda x: x + 2.0,
    ],
)
def test_integers_stay_integers(compute):
    out = run(compute, x=INTS)
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, compute(INTS))


def test_one_scale_for_a_number():
    for compute, scale, bias in (
        (lambda x: x + 2, 1, 2),
        (lambda x: 2 - x, -1, 2),
        (lambda x: x / 4, 0.25, 0),
    ):
        [(type_, attrs)] = op_types(compute, x=X)
        assert (type_, attrs["scale"], attrs["bias"]) == ("scale", scale, bias)
    assert [t for t, _ in op_types(lambda x: 2 / x, x=UNKNOWN)] == [
        "fill_constant_batch_size_like",
        "elementwise_div",
    ]
    assert [t for t, _ in op_types(lambda x: x**2, x=X)] == ["fill_constant", "elementwise_pow"]


def test_another_dtype_is_cast():
    np.testing.assert_allclose(run(lambda x, y: x + y, x=X[0], y=INTS), X[0] + INTS)


def test_what_cannot_be_computed():
    with pytest.raises(TypeError, match=r"has to be an integer"):
        build(lambda x: x + 2.5, x=INTS)
    with pytest.raises(TypeError, match="expected a Variable or a number"):
        build(lambda x: x + "2", x=X)


@pytest.mark.parametrize("relation", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparison(relation):
    np.testing.assert_array_equal(run(lambda x: relation(x, 2), x=X), relation(X, 2))
    np.testing.assert_array_equal(run(lambda x, y: relation(x, y), x=X, y=X[::-1].copy()), relation(X, X[::-1]))


@pytest.mark.parametrize("relation", [operator.lt, operator.ge, operator.eq, operator.ne])
def test_an_array_of_one_element_is_compared_as_its_number(relation):
    np.testing.assert_array_equal(run(lambda x: relation(x, np.array([2.0], "float32")), x=X), relation(X, 2))
    with pytest.raises(TypeError, match="expected a Variable or a number .*found ndarray"):
        build(lambda x: relation(x, np.ones(2)), x=X)


def test_variables_are_equal_to_nothing_else():
    def net(x, y):
        assert x != None and not x == "x"  # noqa: E711
        assert len({x: 1, y: 2}) == 2
        return x

    build(net, x=X, y=X)


def test_astype_and_numpy_numbers():
    assert run(lambda x: x.astype("int64"), x=X).dtype == np.int64
    np.testing.assert_array_equal(run(lambda x: np.float32(2) * x, x=X), 2 * X)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        (0, 1),
        (slice(None), 1),
        (slice(0, 1), slice(None), slice(1, None)),
        slice(None, -1),
        slice(1, 100),
        (slice(None), slice(None, None, -1)),
        slice(None, None, -1),
        (0, slice(None, None, -1)),
        (Ellipsis, 1),
        (0, Ellipsis),
        (slice(None), slice(None, None, 2)),
        (slice(None), slice(None), slice(None, None, -2)),
        (slice(None), slice(2, 0, -1), 1),
        (slice(None), slice(1, None, 2)),
    ],
    ids=str,
)
def test_indexing(index):
    np.testing.assert_array_equal(run(lambda x: x[index], x=CUBE), CUBE[index])


def test_indexing_is_the_operators_of_fluid():
    [(type_, attrs)] = op_types(lambda x: x[-1, 1:], x=CUBE)
    assert type_ == "slice"
    assert {k: list(attrs[k]) for k in ("axes", "starts", "ends", "decrease_axis")} == {
        "axes": [0, 1],
        "starts": [-1, 1],
        "ends": [10000000, 10000000],
        "decrease_axis": [0],
    }
    assert [t for t, _ in op_types(lambda x: x[:, ::-1], x=CUBE)] == ["reverse"]
    assert build(lambda x: x[:], x=CUBE).name == "x"
    assert build(lambda x: x[0, 1, 2], x=CUBE).shape == (1,)


def test_indexing_by_variables():
    def number(n):
        return layers.fill_constant([1], "int32", n)

    np.testing.assert_array_equal(run(lambda x: x[number(1)], x=CUBE), CUBE[1])
    np.testing.assert_array_equal(run(lambda x: x[0, number(-1)], x=CUBE), CUBE[0, -1])
    np.testing.assert_array_equal(run(lambda x: x[number(1) :, :2], x=CUBE), CUBE[1:, :2])
    np.testing.assert_array_equal(run(lambda x: x[:, number(0) : number(2)], x=CUBE), CUBE[:, 0:2])
    assert build(lambda x: x[number(1) :, :2], x=CUBE).shape == (-1, 2, 4)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_fed_position(dtype):
    np.testing.assert_array_equal(run(lambda x, i: x[i], x=CUBE, i=np.array([1], dtype)), CUBE[1])
    np.testing.assert_array_equal(run(lambda x, i: x[0, i, 1:], x=CUBE, i=np.array([2], dtype)), CUBE[0, 2, 1:])


def test_a_fed_bound():
    np.testing.assert_array_equal(run(lambda x, i: x[i:], x=CUBE, i=np.array([1], "int32")), CUBE[1:])


def test_indices_that_do_not_fit():
    for index, error in (
        (5, IndexError),
        (-4, IndexError),
        ((0, 3), IndexError),
        ((0, 0, 0, 0), errors.ShapeError),
        (1.0, TypeError),
        (None, TypeError),
        ([0, 1], TypeError),
        (slice(None, None, 0), TypeError),
    ):
        with pytest.raises(error):
            build(lambda x, index=index: x[index], x=CUBE)


def test_indices_that_are_no_position():
    with pytest.raises(TypeError, match="has to be an integer, found .* of BOOL"):
        build(lambda x: x[x > 1.0], x=CUBE)
    with pytest.raises(TypeError, match="of FP32"):
        build(lambda x: x[layers.mean(x) :], x=CUBE)
    with pytest.raises(errors.ShapeError, match=r"one integer, found .* of shape \[2\]"):
        build(lambda x: x[layers.fill_constant([2], "int64", 0)], x=CUBE)


def test_iteration():
    rows = run(lambda x: list(x), x=X)
    np.testing.assert_array_equal(np.stack(rows), X)
    with pytest.raises(TypeError, match="first dimension is unknown"):
        build(lambda x: list(x), x=UNKNOWN)


def test_gradients_flow_through():
    def net(x):
        x.stop_gradient = False
        return fluid.gradients([(2 - x[1] * 3) ** 2], [x])

    out = np.zeros_like(X)
    out[1] = -6 * (2 - X[1] * 3)
    np.testing.assert_allclose(run(net, x=X)[0], out, rtol=1e-5)
