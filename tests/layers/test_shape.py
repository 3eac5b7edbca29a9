"""Layers that change the shape or the order of elements."""

import numpy as np
import pytest

from jfluid import errors, layers
from tests.layers.run import build, run

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
UNKNOWN = ([-1, 3, 4], X)


@pytest.mark.parametrize("shape", [[0, -1, 2], [-1], (4, 6)])
def test_reshape(shape):
    expected = X.reshape([2 if d == 0 else d for d in shape])
    np.testing.assert_array_equal(run(lambda x: layers.reshape(x, shape), x=X), expected)


def test_reshape_by_variables():
    def mixed(x):
        return layers.reshape(x, [layers.slice(layers.shape(x), [0], [0], [1]), 6, -1])

    def whole(x):
        four, six = (layers.fill_constant([1], "int32", n) for n in (4, 6))
        return layers.reshape(x, layers.concat([four, six]))

    def overruled(x):
        return layers.reshape(x, [-1, 12], actual_shape=layers.assign(np.array([2, 12], "int32")))

    assert run(mixed, x=UNKNOWN).shape == (2, 6, 2)
    assert run(whole, x=UNKNOWN).shape == (4, 6)
    assert build(whole, x=UNKNOWN).shape == (-1, -1)
    assert run(overruled, x=UNKNOWN).shape == (2, 12)


def test_reshape_with_activation_and_in_place():
    def net(x):
        y = layers.assign(x)
        out = layers.reshape(y, [6, 4], inplace=True)
        assert out is y and y.shape == (6, 4)
        return out

    np.testing.assert_array_equal(run(net, x=X), X.reshape(6, 4))
    out = run(lambda x: layers.reshape(x, [-1], act="relu"), x=-X)
    np.testing.assert_array_equal(out, np.zeros(24))


@pytest.mark.parametrize("shape", [[-1, -1], [1, 1, 1, 0], [5, -1]])
def test_reshape_refuses(shape):
    with pytest.raises(errors.ShapeError, match="reshape"):
        build(lambda x: layers.reshape(x, shape), x=X)


def test_transpose_and_t():
    np.testing.assert_array_equal(run(lambda x: layers.transpose(x, [2, 0, 1]), x=X), X.transpose(2, 0, 1))
    np.testing.assert_array_equal(run(lambda x: layers.t(x), x=X[0]), X[0].T)
    assert build(lambda x: layers.t(x), x=X[0, 0]).name == "x"
    with pytest.raises(errors.ShapeError, match="order the 3 dimensions"):
        build(lambda x: layers.transpose(x, [1, 0]), x=X)
    with pytest.raises(errors.ShapeError, match="at most 2"):
        build(lambda x: layers.t(x), x=X)


def test_squeeze_and_unsqueeze():
    assert run(lambda x: layers.squeeze(x, [1]), x=X[:, :1]).shape == (2, 4)
    assert run(lambda x: layers.unsqueeze(x, [0, -1]), x=X).shape == (1, 2, 3, 4, 1)
    assert run(lambda x: layers.unsqueeze(x, 1), x=X).shape == (2, 1, 3, 4)
    by_list = run(lambda x: layers.unsqueeze(x, [0, layers.fill_constant([1], "int32", 2)]), x=X)
    assert by_list.shape == (1, 2, 1, 3, 4)
    assert run(lambda x: layers.unsqueeze(x, layers.fill_constant([1], "int32", 3)), x=X).shape == (
        2,
        3,
        4,
        1,
    )


def test_flatten():
    assert run(lambda x: layers.flatten(x, 2), x=UNKNOWN).shape == (6, 4)
    with pytest.raises(errors.ShapeError, match="axis from 0 to 3"):
        build(lambda x: layers.flatten(x, 4), x=X)


def test_split():
    halves = run(lambda x: layers.split(x, 2), x=X)
    np.testing.assert_array_equal(halves[1], X[..., 2:])
    parts = run(lambda x: layers.split(x, [1, -1], dim=1), x=X)
    np.testing.assert_array_equal(parts[1], X[:, 1:])
    by_variable = run(lambda x: layers.split(x, [layers.fill_constant([1], "int32", 1), 2], dim=1), x=X)
    np.testing.assert_array_equal(by_variable[1], X[:, 1:])
    along = run(lambda x: layers.split(x, 3, dim=layers.fill_constant([1], "int32", 1)), x=X)
    np.testing.assert_array_equal(along[2], X[:, 2:])
    with pytest.raises(errors.ShapeError, match="cannot be cut into 3 parts"):
        build(lambda x: layers.split(x, 3), x=X)


def test_stack_and_unstack():
    np.testing.assert_array_equal(run(lambda x: layers.stack([x, x], -1), x=X), np.stack([X, X], -1))
    assert run(lambda x: layers.stack(x), x=X).shape == (1, 2, 3, 4)
    np.testing.assert_array_equal(run(lambda x: layers.unstack(x, 1), x=X)[2], X[:, 2])
    np.testing.assert_array_equal(run(lambda x: layers.unstack(x, 0, 2), x=UNKNOWN)[1], X[1])
    with pytest.raises(errors.ShapeError, match="unknown; give its size"):
        build(lambda x: layers.unstack(x), x=UNKNOWN)


def test_expand():
    np.testing.assert_array_equal(run(lambda x: layers.expand(x, [1, 2, 1]), x=X), np.tile(X, (1, 2, 1)))
    by_list = run(lambda x: layers.expand(x, [layers.fill_constant([1], "int32", 2), 1, 1]), x=UNKNOWN)
    np.testing.assert_array_equal(by_list, np.tile(X, (2, 1, 1)))
    by_tensor = run(lambda x: layers.expand(x, layers.fill_constant([3], "int32", 2)), x=X)
    np.testing.assert_array_equal(by_tensor, np.tile(X, (2, 2, 2)))
    like = run(lambda x, y: layers.expand_as(x, y), x=X[:1], y=UNKNOWN)
    np.testing.assert_array_equal(like, np.tile(X[:1], (2, 1, 1)))


def test_orders():
    np.testing.assert_array_equal(run(lambda x: layers.reverse(x, 1), x=X), X[:, ::-1])
    np.testing.assert_array_equal(run(lambda x: layers.reverse(x, [0, 2]), x=X), X[::-1, :, ::-1])
    np.testing.assert_array_equal(run(lambda x: layers.flip(x, [0]), x=X), X[::-1])
    np.testing.assert_array_equal(run(lambda x: layers.roll(x, 1), x=X), np.roll(X, 1))
    np.testing.assert_array_equal(run(lambda x: layers.roll(x, [1, -1], [0, 1]), x=X), np.roll(X, (1, -1), (0, 1)))
    with pytest.raises(errors.ShapeError, match="one shift for each"):
        build(lambda x: layers.roll(x, [1], [0, 1]), x=X)


def test_meshgrid():
    x, y = X[0, 0], X[0, :, 0]
    found = run(lambda x, y: layers.meshgrid([x, y]), x=x, y=y)
    for have, want in zip(found, np.meshgrid(x, y, indexing="ij"), strict=True):
        np.testing.assert_array_equal(have, want)


def test_pad():
    out = run(lambda x: layers.pad(x, [0, 0, 1, 0, 0, 2], 1.5), x=X)
    np.testing.assert_array_equal(out, np.pad(X, ((0, 0), (1, 0), (0, 2)), constant_values=1.5))
    images = X[None]
    out = run(lambda x: layers.pad2d(x, [1, 0, 0, 2], "reflect"), x=images)
    np.testing.assert_array_equal(out, np.pad(images, ((0, 0), (0, 0), (1, 0), (0, 2)), mode="reflect"))
    out = run(lambda x: layers.pad2d(x, layers.fill_constant([4], "int32", 1), "edge"), x=images)
    np.testing.assert_array_equal(out, np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge"))
    out = run(lambda x, y: layers.pad_constant_like(x, y, 2.0), x=X, y=X[:1, :2])
    np.testing.assert_array_equal(out, np.pad(X[:1, :2], ((0, 1), (0, 1), (0, 0)), constant_values=2))
    for bad in ({"mode": "wrap"}, {"data_format": "CHW"}):
        with pytest.raises(TypeError, match="pad2d: expected"):
            build(lambda x, bad=bad: layers.pad2d(x, **bad), x=images)


def test_crop():
    np.testing.assert_array_equal(run(lambda x: layers.crop(x, [1, 2, 2], [0, 1, 1]), x=X), X[:1, 1:, 1:3])
    np.testing.assert_array_equal(run(lambda x, y: layers.crop(x, y), x=X, y=X[:, :1]), X[:, :1])
    moved = run(lambda x, at: layers.crop(x, [1, 2, 2], at), x=X, at=np.array([1, 1, 2], "int32"))
    np.testing.assert_array_equal(moved, X[1:, 1:, 2:])
    with pytest.raises(TypeError, match="expected shape"):
        build(lambda x: layers.crop(x), x=X)


def test_crop_tensor():
    np.testing.assert_array_equal(run(lambda x: layers.crop_tensor(x, [1, -1, 2], [0, 1, 1]), x=X), X[:1, 1:, 1:3])

    def mixed(x):
        one = layers.fill_constant([1], "int32", 1)
        return layers.crop_tensor(x, [one, 2, 2], [one, 0, 0])

    def whole(x):
        two = layers.fill_constant([3], "int32", 2)
        return layers.crop_tensor(x, two, layers.fill_constant([3], "int32", 0))

    np.testing.assert_array_equal(run(mixed, x=X), X[1:, :2, :2])
    np.testing.assert_array_equal(run(whole, x=X), X[:2, :2, :2])
    with pytest.raises(TypeError, match="expected shape"):
        build(lambda x: layers.crop_tensor(x), x=X)


def test_channel_layers():
    images = np.arange(16, dtype="float32").reshape(1, 4, 2, 2)
    assert run(lambda x: layers.pixel_shuffle(x, 2), x=images).shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(run(lambda x: layers.shuffle_channel(x, 2), x=images), images[:, [0, 2, 1, 3]])
    assert run(lambda x: layers.temporal_shift(x, 2), x=np.tile(images, (4, 1, 1, 1))).shape == (
        4,
        4,
        2,
        2,
    )
    with pytest.raises(TypeError, match="upscale_factor"):
        build(lambda x: layers.pixel_shuffle(x, 0), x=images)
    with pytest.raises(TypeError, match="positive group"):
        build(lambda x: layers.shuffle_channel(x, 0), x=images)
