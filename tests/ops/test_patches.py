"""Patches of images and other arrangements of their pixels."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import run
from tests.op_case import check

RNG = np.random.RandomState(0)
X = RNG.permutation(2 * 2 * 5 * 4).reshape(2, 2, 5, 4).astype("float32") / 10


def columns(x, kernel, strides, paddings, dilations):
    top, left, bottom, right = paddings
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    span = [(k - 1) * d for k, d in zip(kernel, dilations)]
    found = [
        x[:, :, i : i + span[0] + 1 : dilations[0], j : j + span[1] + 1 : dilations[1]].reshape(2, -1)
        for i in range(0, x.shape[2] - span[0], strides[0])
        for j in range(0, x.shape[3] - span[1], strides[1])
    ]
    return np.stack(found, -1)


def test_unfold():
    sizes = {"kernel": [2, 3], "strides": [2, 1], "paddings": [1, 0, 2, 1], "dilations": [2, 1]}
    attrs = {"kernel_sizes" if n == "kernel" else n: v for n, v in sizes.items()}
    check("unfold", {"X": X}, attrs, expect={"Y": columns(X, **sizes)}, grad=("X",))


def test_unpool_puts_maxima_back():
    """What `max_pool2d_with_index` found goes to its place; an index outside goes nowhere."""
    x = RNG.rand(1, 2, 2, 2).astype("float32")
    places = np.array([[[[0, 3], [9, 14]], [[5, 6], [-1, 16]]]], "int32")
    expect = np.zeros((1, 2, 16), "float32")
    for c, i, j in np.ndindex(2, 2, 2):
        if 0 <= places[0, c, i, j] < 16:
            expect[0, c, places[0, c, i, j]] = x[0, c, i, j]
    attrs = {"unpooling_type": "max", "ksize": [2, 2], "strides": [2, 2]}
    inputs, expect = {"X": x, "Indices": places}, expect.reshape(1, 2, 4, 4)
    check("unpool", inputs, attrs, expect={"Out": expect}, grad=("X",))
    with pytest.raises(errors.ShapeError, match='expected "max"'):
        check("unpool", inputs, {**attrs, "unpooling_type": "avg"}, expect={"Out": None})


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_spp(kind):
    """Bins of ceil(size / bins) pixels; what is missing is added on both sides, and does not count."""
    parts = []
    for bins in (1, 2):
        tall, wide = -(-5 // bins), -(-4 // bins)
        top, left = (tall * bins - 5 + 1) // 2, (wide * bins - 4 + 1) // 2
        level = np.zeros((2, 2, bins, bins), "float32")
        for i, j in np.ndindex(bins, bins):
            rows = slice(max(i * tall - top, 0), (i + 1) * tall - top)
            region = X[:, :, rows, max(j * wide - left, 0) : (j + 1) * wide - left]
            level[:, :, i, j] = region.max((2, 3)) if kind == "max" else region.mean((2, 3))
        parts.append(level.reshape(2, -1))
    attrs = {"pyramid_height": 2, "pooling_type": kind}
    check("spp", {"X": X}, attrs, expect={"Out": np.concatenate(parts, 1)}, grad=("X",))


def reorganised(x, block):
    """Element by element, as darknet's reorg layer puts it."""
    n, c, h, w = x.shape
    few = c // block**2
    out = np.zeros((n, few, h * block, w * block), x.dtype)
    for b, k, j, i in np.ndindex(x.shape):
        part = k // few
        out[b, k % few, j * block + part // block, i * block + part % block] = x[b, k, j, i]
    return out.reshape(n, c * block**2, h // block, w // block)


def test_space_to_depth():
    x = RNG.rand(1, 8, 2, 4).astype("float32")
    expect = {"Out": reorganised(x, 2)}
    check("space_to_depth", {"X": x}, {"blocksize": 2}, expect=expect, grad=("X",))


def standing_out(plane):
    chosen, rows, columns = np.zeros(plane.shape, bool), set(), set()
    for place in np.argsort(-plane, axis=None, kind="stable"):
        row, column = divmod(int(place), plane.shape[1])
        if row not in rows and column not in columns:
            chosen[row, column] = True
            rows.add(row)
            columns.add(column)
    return chosen


@pytest.mark.parametrize(("axis", "indexes"), [(1, [0, 1]), (2, [4]), (3, [1, 3])])
def test_similarity_focus(axis, indexes):
    expect = np.zeros_like(X)
    for n in range(2):
        planes = [standing_out(np.take(X[n], i, axis - 1)) for i in indexes]
        expect[n] = np.expand_dims(np.logical_or.reduce(planes), axis - 1)
    attrs = {"axis": axis, "indexes": indexes}
    check("similarity_focus", {"X": X}, attrs, expect={"Out": expect})


def test_layers():
    def net(x):
        x = layers.pad2d(x, [0, 1, 0, 0])  # height 6
        return (
            layers.unfold(x, [2, 3], 1, [1, 0]),
            layers.unfold(x, 2, 2, [1, 0, 1, 0]),
            layers.similarity_focus(x, 2, [0]),
            layers.space_to_depth(layers.concat([x, x], 1), 2),
        )

    first, second, mask, blocks = run(net, x=([-1, 2, 5, 4], X))
    padded = np.pad(X, ((0, 0), (0, 0), (0, 1), (0, 0)))
    np.testing.assert_array_equal(first, columns(padded, [2, 3], [1, 1], [1, 0, 1, 0], [1, 1]))
    np.testing.assert_array_equal(second, columns(padded, [2, 2], [2, 2], [1, 0, 1, 0], [1, 1]))
    assert mask.shape == padded.shape and set(np.unique(mask)) == {0, 1}
    np.testing.assert_array_equal(blocks, reorganised(np.concatenate([padded] * 2, 1), 2))


def test_what_does_not_fit():
    with fluid.program_guard(fluid.Program()):
        x, line = fluid.data("x", [2, 2, 5, 4]), fluid.data("line", [2, 5])
        with pytest.raises(errors.ShapeError, match="is larger than an input"):
            layers.unfold(x, 6)
        with pytest.raises(errors.ShapeError, match=r"x is \[N, C, H, W\]"):
            layers.unfold(line, 2)
        with pytest.raises(errors.ShapeError, match="divisible by 4"):
            layers.space_to_depth(x, 2)
        with pytest.raises(errors.AttributeTypeError, match="blocksize: expected int"):
            layers.space_to_depth(x, 2.0)
        with pytest.raises(errors.ProgramError, match="axis is 1, 2 or 3"):
            layers.similarity_focus(x, 0, [1])
        with pytest.raises(errors.ProgramError, match="indexes is empty"):
            layers.similarity_focus(x, 1, [])
        with pytest.raises(errors.ShapeError, match="expected indices from 0 to 1"):
            layers.similarity_focus(x, 1, [2])
