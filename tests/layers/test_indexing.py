"""Layers that pick, place or order elements."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import build, run

X = np.random.RandomState(0).randn(4, 3).astype("float32")
UNKNOWN = ([-1, 3], X)
ROWS = np.array([2, 0, 2])


def number(n, dtype="int32"):
    return layers.fill_constant([1], dtype, n)


def test_slice():
    np.testing.assert_array_equal(run(lambda x: layers.slice(x, [0, 1], [0, -2], [2, 100]), x=X), X[:2, -2:])
    np.testing.assert_array_equal(run(lambda x: layers.slice(x, [0], [-2], [-1]), x=UNKNOWN), X[-2:-1])
    mixed = run(lambda x: layers.slice(x, [0, 1], [number(1), 0], [number(3), 2]), x=X)
    np.testing.assert_array_equal(mixed, X[1:3, :2])
    whole = run(lambda x: layers.slice(x, [0, 1], layers.fill_constant([2], "int32", 1), [3, 3]), x=X)
    np.testing.assert_array_equal(whole, X[1:3, 1:3])
    with pytest.raises(errors.ShapeError, match="expected 2 starts"):
        build(lambda x: layers.slice(x, [0, 1], [0], [1, 1]), x=X)
    with pytest.raises(errors.ShapeError, match="empty"):
        build(lambda x: layers.slice(x, [0], [2], [1]), x=X)


def test_slice_infers_what_is_known():
    assert build(lambda x: layers.slice(x, [0, 1], [number(0), 1], [2, 3]), x=X).shape == (-1, 2)
    assert build(lambda x: layers.slice(x, [0], [1], [3]), x=UNKNOWN).shape == (-1, 3)


def test_strided_slice():
    np.testing.assert_array_equal(run(lambda x: layers.strided_slice(x, [0], [0], [4], [2]), x=X), X[::2])
    np.testing.assert_array_equal(
        run(lambda x: layers.strided_slice(x, [0, 1], [-1, 0], [-5, 3], [-1, 2]), x=X), X[::-1, ::2]
    )
    mixed = run(lambda x: layers.strided_slice(x, [0], [number(1)], [4], [number(2)]), x=X)
    np.testing.assert_array_equal(mixed, X[1::2])


def test_gathers():
    np.testing.assert_array_equal(run(lambda x, i: layers.gather(x, i), x=X, i=ROWS), X[ROWS])
    at = np.array([[1, 2], [0, 0]])
    np.testing.assert_array_equal(run(lambda x, i: layers.gather_nd(x, i), x=X, i=at), X[at[:, 0], at[:, 1]])
    np.testing.assert_array_equal(run(lambda x, i: layers.index_select(x, i, 1), x=X, i=ROWS), X[:, ROWS])
    at = np.array([[0, 2]] * 4)
    np.testing.assert_array_equal(run(lambda x, i: layers.index_sample(x, i), x=X, i=at), np.take_along_axis(X, at, 1))


@pytest.mark.parametrize("overwrite, expected", [(True, [[0, 0], [0, 1], [0, 0]]), (False, [[0, 0], [1, 1], [0, 0]])])
def test_gather_gradient(overwrite, expected):
    def net(x, i):
        x.stop_gradient = False
        rows = layers.gather(x, i, overwrite=overwrite)
        picked = rows * layers.assign(np.array([[1, 0], [0, 1]], "float32"))
        return fluid.gradients([picked], [x])

    np.testing.assert_array_equal(run(net, x=X[:3, :2], i=np.array([1, 1]))[0], expected)


def test_scatters():
    updates = np.ones((3, 3), "float32")
    out = X.copy()
    out[[2, 0]] = 1
    np.testing.assert_array_equal(run(lambda x, i, u: layers.scatter(x, i, u), x=X, i=ROWS, u=updates), out)
    out[2] = 2
    added = run(lambda x, i, u: layers.scatter(x, i, u, overwrite=False), x=X, i=ROWS, u=updates)
    np.testing.assert_array_equal(added, out)
    out = X.copy()
    np.add.at(out, ROWS, updates)
    summed = run(lambda x, i, u: layers.scatter_nd_add(x, i, u), x=X, i=ROWS[:, None], u=updates)
    np.testing.assert_allclose(summed, out)
    zeros = run(lambda i, u: layers.scatter_nd(i, u, [4, 3]), i=ROWS[:, None], u=updates)
    np.testing.assert_allclose(zeros, out - X, atol=1e-6)
    with pytest.raises(TypeError, match="one dtype"):
        build(lambda x, i: layers.scatter_nd_add(x, i, i), x=X, i=ROWS)


def test_multiplex():
    ids = np.array([[1], [0], [1], [0]], "int32")
    np.testing.assert_array_equal(
        run(lambda x, y, i: layers.multiplex([x, y], i), x=X, y=-X, i=ids), np.where(ids, -X, X)
    )
    with pytest.raises(TypeError, match="at least two"):
        build(lambda x, i: layers.multiplex([x], i), x=X, i=ids)


def test_orders():
    values, indices = run(lambda x: layers.topk(x, 2), x=UNKNOWN)
    np.testing.assert_array_equal(indices, np.argsort(-X, 1)[:, :2])
    np.testing.assert_array_equal(values, np.sort(-X, 1)[:, :2] * -1)
    assert run(lambda x: layers.topk(x, number(1)), x=X)[0].shape == (4, 1)
    values, indices = run(lambda x: layers.argsort(x, 0, True), x=X)
    np.testing.assert_array_equal(indices, np.argsort(-X, 0))
    assert build(lambda x: layers.argsort(x), x=X)[0].stop_gradient


def test_where_and_nonzero():
    np.testing.assert_array_equal(run(lambda x: layers.where(x), x=X > 0), np.argwhere(X > 0))
    np.testing.assert_array_equal(run(lambda x: layers.nonzero(x), x=(X > 0).astype("float32")), np.argwhere(X > 0))
    columns = run(lambda x: layers.nonzero(x, as_tuple=True), x=X > 0)
    for have, want in zip(columns, np.nonzero(X > 0), strict=True):
        np.testing.assert_array_equal(have[:, 0], want)


def test_computing_goes_on_after_a_value_dependent_shape():
    out = run(lambda x: layers.gather_nd(x, layers.where(x > 0)) * 2, x=X)
    np.testing.assert_array_equal(out, X[X > 0] * 2)


def test_unique():
    x = np.array([2, 3, 3, 1, 5, 3])
    values, places = run(lambda x: layers.unique(x), x=x)
    np.testing.assert_array_equal(values, [2, 3, 1, 5])
    np.testing.assert_array_equal(values[places], x)
    _, places, counts = run(lambda x: layers.unique_with_counts(x, "int64"), x=x)
    np.testing.assert_array_equal(counts, [1, 3, 1, 1])
    assert places.dtype == np.int64
    with pytest.raises(TypeError, match="int32 or int64"):
        build(lambda x: layers.unique(x, "float32"), x=x)


def test_shard_index():
    x = np.array([[1], [12]])
    np.testing.assert_array_equal(run(lambda x: layers.shard_index(x, 20, 2, 1), x=x), [[-1], [2]])
    with pytest.raises(TypeError, match="shard_id from 0 to 1"):
        build(lambda x: layers.shard_index(x, 20, 2, 2), x=x)


def test_triangles():
    np.testing.assert_array_equal(run(lambda x: layers.tril(x, 1), x=X), np.tril(X, 1))
    np.testing.assert_array_equal(run(lambda x: layers.triu(x, -1), x=X), np.triu(X, -1))
    with pytest.raises(errors.ShapeError, match="tril: expected matrices"):
        build(lambda x: layers.tril(x), x=X[0])
