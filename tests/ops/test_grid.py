"""Spatial transformers."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import run
from tests.op_case import check

RNG = np.random.RandomState(0)


def triangles(at, size):
    """[points, size]: the weight of each pixel of an axis at each point."""
    return np.maximum(1 - np.abs(at.reshape(-1, 1) - np.arange(size)), 0)


def test_grid_sampler():
    x = RNG.rand(2, 2, 3, 4).astype("float32")
    grid = RNG.uniform(-1.6, 1.6, (2, 2, 3, 2)).astype("float32")
    grid[0, 0, 0] = [5e9, -1e3]
    expect = np.zeros((2, 2, 6))
    for n in range(2):
        across, down = ((grid[n, ..., i].astype("float64") + 1) / 2 * (s - 1) for i, s in ((0, 4), (1, 3)))
        weight = triangles(down, 3)[:, :, None] * triangles(across, 4)[:, None]
        expect[n] = np.einsum("phw,chw->cp", weight, x[n])
    expect = expect.reshape(2, 2, 2, 3)
    small = np.concatenate([grid[:, 1:]] * 2, 1)  # numeric differences need points of ordinary size
    check("grid_sampler", {"X": x, "Grid": grid}, expect={"Output": expect}, rtol=1e-4, atol=1e-5)
    check("grid_sampler", {"X": x, "Grid": small}, expect={"Output": None}, grad=("X", "Grid"))


def test_affine_grid():
    theta = RNG.rand(2, 2, 3).astype("float32")
    expect = np.zeros((2, 3, 4, 2))
    for n, h, w in np.ndindex(2, 3, 4):
        expect[n, h, w] = theta[n] @ [w * 2 / 3 - 1, h - 1, 1]
    attrs = {"output_shape": [2, 5, 3, 4]}
    check("affine_grid", {"Theta": theta}, attrs, expect={"Output": expect}, grad=("Theta",))


def test_layers():
    """The identity gives the image, and a mirror its mirror image; the shape is that of a tensor."""
    x = RNG.rand(2, 3, 4, 5).astype("float32")
    theta = np.array([[[1, 0, 0], [0, 1, 0]], [[-1, 0, 0], [0, 1, 0]]], "float32")

    def net(x, theta):
        shape = layers.shape(x)
        points = layers.affine_grid(theta, layers.cast(shape, "int32"))
        return layers.grid_sampler(x, points), layers.affine_grid(theta, [2, 3, 1, 1])

    same, single = run(net, x=x, theta=theta)
    np.testing.assert_allclose(same, np.stack([x[0], x[1, ..., ::-1]]), rtol=1e-5)
    np.testing.assert_array_equal(single.reshape(2, 2), [[-1, -1], [1, -1]])
    with fluid.program_guard(fluid.Program()):
        x, points = fluid.data("x", [2, 3, 4, 5]), fluid.data("points", [2, 4, 5, 3])
        with pytest.raises(errors.ShapeError, match=r"Grid \[N, H', W', 2\]"):
            layers.grid_sampler(x, points)
        with pytest.raises(errors.ShapeError, match=r"expected Theta \[N, 2, 3\]"):
            layers.affine_grid(points, [2, 3, 4, 5])
        with pytest.raises(errors.ProgramError, match="a list, a tuple or a Variable"):
            layers.affine_grid(points, 4)
