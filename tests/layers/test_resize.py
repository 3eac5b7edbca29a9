"""Layers that resize."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import build, run

X = np.random.RandomState(0).rand(2, 3, 4, 6).astype("float32")
UNKNOWN = ([-1, 3, 4, 6], X)


def test_sizes_by_numbers_tensors_and_scale():
    """All ways to tell the same size give the same, and the shape is known where the size is."""

    def net(x):
        height = layers.fill_constant([1], "int32", 8)
        both = layers.concat([height, layers.fill_constant([1], "int32", 9)])
        outs = [
            layers.resize_bilinear(x, [8, 9]),
            layers.image_resize(x, [height, 9]),
            layers.image_resize(x, both),
            layers.interpolate(x, scale=1.5, actual_shape=both),
        ]
        assert outs[0].name == "bilinear_interp_0.tmp_0" and outs[0].shape == (-1, 3, 8, 9)
        scale = layers.fill_constant([1], "float32", 2.0)
        return (
            *outs,
            layers.resize_nearest(x, scale=2, align_corners=False),
            layers.resize_nearest(x, scale=scale, align_corners=False),
            layers.image_resize_short(x, 2, "NEAREST"),
            layers.interpolate(x, [4, 6], resample="BICUBIC"),
            layers.resize_trilinear(layers.unsqueeze(x, [2]), [2, 4, 6]),
        )

    first, *same, twice, again, short, cubic, volume = run(net, x=UNKNOWN)
    for other in same:
        np.testing.assert_array_equal(other, first)
    np.testing.assert_allclose(first[:, :, [0, -1]][..., [0, -1]], X[:, :, [0, -1]][..., [0, -1]])
    np.testing.assert_array_equal(twice, X.repeat(2, 2).repeat(2, 3))
    np.testing.assert_array_equal(again, twice)
    np.testing.assert_array_equal(short, X[:, :, [0, 3]][..., [0, 3, 5]])
    np.testing.assert_allclose(cubic, X, rtol=1e-6)
    np.testing.assert_allclose(volume, X[:, :, None].repeat(2, 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({}, errors.ProgramError, "give out_shape or scale"),
        ({"out_shape": [4]}, errors.ProgramError, "expected 2 positive sizes"),
        ({"out_shape": [4, 0]}, errors.ProgramError, "expected 2 positive sizes"),
        ({"out_shape": 4}, TypeError, "a list, a tuple or a Variable"),
        ({"scale": -1.0}, errors.ProgramError, "scale must be positive"),
        ({"scale": "2"}, TypeError, "a number or a Variable"),
        ({"scale": 2, "resample": "BICUBIC"}, errors.ProgramError, "expected one of BILINEAR"),
        ({"scale": 2, "resample": "TRILINEAR"}, errors.ShapeError, "of 5 dimensions"),
        ({"scale": 2, "data_format": "NCDHW"}, errors.ProgramError, "NCHW or NHWC"),
        ({"scale": 2, "align_mode": 2}, errors.ProgramError, "expected 0 or 1"),
        ({"scale": 2, "align_corners": 1}, TypeError, "align_corners: expected bool"),
    ],
)
def test_what_does_not_fit(arguments, error, says):
    with pytest.raises(error, match=says):
        build(lambda x: layers.image_resize(x, **arguments), x=X)


def test_short_side_must_be_known():
    with (
        fluid.program_guard(fluid.Program()),
        pytest.raises(errors.ShapeError, match="known height"),
    ):
        layers.image_resize_short(fluid.data("x", [-1, 3, -1, 6]), 2)
