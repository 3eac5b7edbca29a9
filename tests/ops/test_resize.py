"""Resizing, held against weights that are read off its definition for each pixel by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.compile.dynamic_shapes.interpreter import compare
from jfluid.ops.resize import _interpolate
from tests.op_case import check

X = np.random.RandomState(0).rand(2, 2, 3, 5).astype("float32")


def nearest(size, out, align_corners, align_mode):
    for k in range(out):
        where = k * (size - 1) / max(out - 1, 1) + 0.5 if align_corners else k * size / out
        yield np.eye(size)[int(where)]


def linear(size, out, align_corners, align_mode):
    """Triangles around the point in the input that each element of the result stands for."""
    for k in range(out):
        if align_corners:
            at = k * (size - 1) / max(out - 1, 1)
        else:
            at = (k + 0.5) * size / out - 0.5 if align_mode == 0 else k * size / out
        yield np.maximum(1 - np.abs(np.arange(size) - np.clip(at, 0, size - 1)), 0)


def cubic(size, out, align_corners, align_mode, a=-0.75):
    """Keys' kernel; pixels beyond the edge are copies of that at the edge."""
    for k in range(out):
        at = k * (size - 1) / max(out - 1, 1) if align_corners else (k + 0.5) * size / out - 0.5
        row = np.zeros(size)
        for i in range(-3, size + 3):
            d = abs(at - i)
            near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
            row[np.clip(i, 0, size - 1)] += near if d <= 1 else far if d < 2 else 0
        yield row


METHODS = {"nearest": nearest, "bilinear": linear, "trilinear": linear, "bicubic": cubic}


def resized(x, sizes, method, align_corners, align_mode=1):
    for axis, out in enumerate(sizes, 2):
        rows = np.array(list(METHODS[method](x.shape[axis], out, align_corners, align_mode)))
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ rows.T, -1, axis)
    return x


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("method", ["nearest", "bilinear", "bicubic"])
def test_images(method, align_corners):
    """Larger and smaller; gradients where the places of a double are those of a float."""
    attrs = {"out_h": 7, "out_w": 3, "interp_method": method, "align_corners": align_corners}
    expect = resized(X, (7, 3), method, align_corners)
    check(f"{method}_interp", {"X": X}, attrs, expect={"Out": expect}, grad=("X",))


def test_by_the_centres_of_pixels():
    attrs = {"out_h": 2, "out_w": 8, "align_corners": False, "align_mode": 0}
    expect = resized(X, (2, 8), "bilinear", False, 0)
    check("bilinear_interp", {"X": X}, attrs, expect={"Out": expect})


def test_volumes():
    x = np.random.RandomState(1).rand(1, 2, 2, 3, 2).astype("float32")
    attrs = {"out_d": 3, "out_h": 2, "out_w": 4, "interp_method": "trilinear"}
    expect = resized(x, (3, 2, 4), "trilinear", True)
    check("trilinear_interp", {"X": x}, attrs, expect={"Out": expect}, grad=("X",))


def test_the_attribute_tells_the_method():
    attrs = {"out_h": 2, "out_w": 3}
    expect = {"Out": resized(X, (2, 3), "bilinear", True)}
    check("nearest_interp", {"X": X}, attrs, expect=expect)
    with pytest.raises(errors.ShapeError, match="'trilinear' does not resize an X of 4 dimensions"):
        check("trilinear_interp", {"X": X}, {"interp_method": "trilinear", **attrs}, expect=expect)


def test_whole_multiples_repeat_pixels():
    attrs = {"scale": 2.0, "align_corners": False, "interp_method": "nearest"}
    expect = X.repeat(2, 2).repeat(2, 3)
    check("nearest_interp", {"X": X}, attrs, expect={"Out": expect}, grad=("X",))


def test_channels_last_and_one_pixel():
    attrs = {"out_h": 1, "out_w": 4, "data_layout": "NHWC"}
    expect = resized(X, (1, 4), "bilinear", True).transpose(0, 2, 3, 1)
    check("bilinear_interp", {"X": X.transpose(0, 2, 3, 1)}, attrs, expect={"Out": expect})


def test_repeated_pixels_have_the_same_operations_at_each_size():
    """A stream of shapes is padded if its smallest maps, of one pixel, have the operations of larger maps."""

    def trace(size):
        def repeated(x):
            return jnp.sum(jnp.sin(_interpolate(x, None, [], None, scale=2.0, interp_method="nearest")))

        return jax.make_jaxpr(jax.grad(repeated))(np.ones((2, 3, size, size), np.float32))

    compare(trace(1).jaxpr, trace(3).jaxpr)
