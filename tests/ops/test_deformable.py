"""Deformable convolution, held against a loop over filters, taps and places."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import run
from tests.op_case import check

RNG = np.random.RandomState(0)


def between(plane, y, x):
    rows, columns = (np.maximum(1 - np.abs(v - np.arange(n)), 0) for v, n in zip((y, x), plane.shape))
    return rows @ plane @ columns


def convolved(x, offset, mask, weight, stride, padding, dilation, groups, parts):
    filters, few, kh, kw = weight.shape
    out = np.zeros((x.shape[0], filters, *offset.shape[2:]))
    for n, f, i, j in np.ndindex(out.shape):
        for c, a, b in np.ndindex(few, kh, kw):
            channel = f // (filters // groups) * few + c
            tap = channel // (x.shape[1] // parts) * kh * kw + a * kw + b
            down, across = offset[n, 2 * tap : 2 * tap + 2, i, j]
            at = (
                i * stride - padding + a * dilation + down,
                j * stride - padding + b * dilation + across,
            )
            value = between(x[n, channel].astype("float64"), *at) * weight[f, c, a, b]
            out[n, f, i, j] += value * (1 if mask is None else mask[n, tap, i, j])
    return out


@pytest.mark.parametrize("masked", [True, False])
def test_deformable_conv(masked):
    """Two groups of filters and of offsets, some of which lead outside."""
    x = RNG.rand(1, 4, 4, 3).astype("float32")
    offset = RNG.uniform(-1.9, 1.9, (1, 16, 2, 2)).astype("float32")
    mask, weight = (RNG.rand(*s).astype("float32") for s in ((1, 8, 2, 2), (2, 2, 2, 2)))
    expect = convolved(x, offset, mask if masked else None, weight, 2, 1, 2, 2, 2)
    inputs = {"Input": x, "Offset": offset, "Filter": weight} | ({"Mask": mask} if masked else {})
    attrs = {"strides": [2, 2], "paddings": [1, 1], "dilations": [2, 2]}
    check(
        "deformable_conv" if masked else "deformable_conv_v1",
        inputs,
        {**attrs, "groups": 2, "deformable_groups": 2},
        expect={"Output": expect},
        rtol=1e-4,
        grad=tuple(inputs),
    )


def test_layer():
    """Without offsets it is a convolution; bias and names are those of Fluid."""
    x = RNG.rand(2, 3, 5, 5).astype("float32")
    weight = fluid.initializer.Constant(0.5)

    def net(x):
        offset = layers.zeros([2, 18, 3, 3], "float32")
        mask = layers.fill_constant([2, 9, 3, 3], "float32", 0.5)
        attr = fluid.ParamAttr(initializer=weight)
        both = layers.deformable_conv(x, offset, mask, 4, 3, stride=2, padding=1, param_attr=attr)
        first = layers.deformable_conv(x, offset, None, 4, 3, 2, 1, param_attr=attr, bias_attr=False, modulated=False)
        names = [p.name for p in x.block.program.all_parameters()]
        assert names == ["deformable_conv_0.w_0", "deformable_conv_0.b_0", "deformable_conv_1.w_0"]
        return both, first, layers.conv2d(x, 4, 3, 2, 1, param_attr=attr, bias_attr=False)

    both, first, plain = run(net, x=x)
    np.testing.assert_allclose(first, plain, rtol=1e-5)
    np.testing.assert_allclose(both, plain / 2, rtol=1e-5)


def test_what_does_not_fit():
    with fluid.program_guard(fluid.Program()):
        x, offset = fluid.data("x", [2, 3, 5, 5]), fluid.data("offset", [2, 18, 5, 5])
        with pytest.raises(errors.ProgramError, match="give mask, or modulated=False"):
            layers.deformable_conv(x, offset, None, 4, 3, padding=1)
        with pytest.raises(errors.ShapeError, match=r"expected Offset of shape \[2, 18, 3, 3\]"):
            layers.deformable_conv(x, offset, None, 4, 3, modulated=False)
        with pytest.raises(errors.ShapeError, match="divisible by groups 2"):
            layers.deformable_conv(x, offset, None, 4, 3, groups=2, modulated=False)
        with pytest.raises(errors.ShapeError, match="deformable_groups 2 must divide"):
            layers.deformable_conv(x, offset, None, 4, 3, padding=1, deformable_groups=2, modulated=False)
