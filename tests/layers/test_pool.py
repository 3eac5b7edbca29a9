"""Pooling layers."""

import numpy as np
import pytest

from jfluid import errors, layers
from tests.layers.run import build, run
from tests.windows_reference import adaptive_regions, pairs, pool, regions

X = np.random.RandomState(0).permutation(240).reshape(2, 4, 6, 5).astype("float32")
X3 = X.reshape(2, 4, 3, 2, 5)
UNKNOWN = ([-1, 4, 6, 5], X)


def windows(x, ksize, strides, paddings, ceil_mode=False):
    around = pairs(paddings, x.ndim - 2)
    return [regions(n, k, s, *p, ceil_mode) for n, k, s, p in zip(x.shape[2:], ksize, strides, around)]


@pytest.mark.parametrize("how", ["max", "avg"])
def test_pool2d(how):
    found = run(lambda x: layers.pool2d(x, [3, 2], how, pool_stride=2, pool_padding=[1, 0]), x=UNKNOWN)
    np.testing.assert_allclose(found, pool(X, windows(X, [3, 2], [2, 2], [1, 0]), how), rtol=1e-5)
    found = run(
        lambda x: layers.pool2d(x, 3, how, 2, ceil_mode=True, data_format="NHWC"),
        x=X.transpose(0, 2, 3, 1),
    )
    expected = pool(X, windows(X, [3, 3], [2, 2], [0, 0], True), how)
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected, rtol=1e-5)


@pytest.mark.parametrize("how", ["max", "avg"])
def test_whole_planes(how):
    def net(x):
        out = layers.pool2d(x, pool_type=how, global_pooling=True)
        assert out.name == "pool2d_0.tmp_0" and out.shape == (-1, 4, 1, 1)
        return out

    np.testing.assert_allclose(
        run(net, x=UNKNOWN), getattr(np, {"avg": "mean"}.get(how, how))(X, (2, 3), keepdims=True)
    )


def test_paddings():
    same = run(lambda x: layers.pool2d(x, 3, pool_stride=2, pool_padding="SAME"), x=X)
    np.testing.assert_array_equal(same, pool(X, windows(X, [3, 3], [2, 2], [0, 1, 1, 1]), "max"))
    uneven = run(lambda x: layers.pool2d(x, 3, "avg", pool_padding=[1, 0, 2, 1], exclusive=False), x=X)
    expected = pool(X, windows(X, [3, 3], [1, 1], [1, 0, 2, 1]), "avg", exclusive=False)
    np.testing.assert_allclose(uneven, expected, rtol=1e-5)


@pytest.mark.parametrize("how", ["max", "avg"])
def test_pool3d(how):
    found = run(
        lambda x: layers.pool3d(x, [2, 2, 3], how, pool_stride=[1, 2, 2], pool_padding=[1, 0, 0, 0, 1, 1]),
        x=X3,
    )
    expected = pool(X3, windows(X3, [2, 2, 3], [1, 2, 2], [1, 0, 0, 0, 1, 1]), how)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("how", ["max", "avg"])
def test_adaptive_pools(how):
    found = run(lambda x: layers.adaptive_pool2d(x, [4, 5], how), x=UNKNOWN)
    expected = pool(X, [adaptive_regions(6, 4), adaptive_regions(5, 5)], how)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = run(lambda x: layers.adaptive_pool3d(x, [2, 1, 3], how), x=X3)
    expected = pool(X3, [adaptive_regions(n, k) for n, k in zip(X3.shape[2:], (2, 1, 3))], how)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_positions_of_adaptive_maxima():
    out, index = run(lambda x: layers.adaptive_pool2d(x, 2, require_index=True), x=UNKNOWN)
    assert index.dtype == np.int32
    flat = np.take_along_axis(X.reshape(2, 4, -1), index.reshape(2, 4, -1).astype("int64"), -1)
    np.testing.assert_array_equal(flat.reshape(out.shape), out)
    assert build(lambda x: layers.adaptive_pool2d(x, 2), x=X).name == "max_pool2d_with_index_0.tmp_0"
    assert build(lambda x: layers.adaptive_pool3d(x, 2, require_index=True)[1], x=X3).name == (
        "max_pool3d_with_index_0.tmp_1"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "pool_size -1 must be positive"),
        ({"pool_size": 2, "pool_type": "sum"}, 'expected "max" or "avg"'),
        ({"pool_size": [2, 2, 2]}, "pool_size"),
        ({"pool_size": 2, "data_format": "NCDHW"}, "expected NCHW or NHWC"),
        ({"pool_size": 2, "pool_padding": "VALID", "ceil_mode": True}, "ceil_mode"),
    ],
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises(errors.ProgramError, match=message):
        build(lambda x: layers.pool2d(x, **arguments), x=X)
    with pytest.raises(errors.ProgramError, match='require_index needs pool_type "max"'):
        build(lambda x: layers.adaptive_pool2d(x, 2, "avg", require_index=True), x=X)
