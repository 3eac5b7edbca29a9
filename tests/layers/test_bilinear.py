"""Layers that multiply two inputs with each other."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from tests.layers.run import run

X = np.random.RandomState(0).rand(3, 2).astype("float32")
Y = np.random.RandomState(1).rand(3, 4).astype("float32")


def test_layers():
    def net(x, y):
        ones = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
        out = layers.bilinear_tensor_product(x, y, 5, act="relu", param_attr=ones, bias_attr=ones)
        bare = layers.bilinear_tensor_product(x, y, 1, param_attr=ones, bias_attr=False)
        made = {p.name: p.shape for p in x.block.program.all_parameters()}
        assert made == {
            "bilinear_tensor_product_0.w_0": (5, 2, 4),
            "bilinear_tensor_product_0.b_0": (1, 5),
            "bilinear_tensor_product_1.w_0": (1, 2, 4),
        }
        images = [layers.reshape(v, [-1, n, 1, 2]) for v, n in ((x, 1), (y, 2))]
        flow = layers.fsp_matrix(*images)
        assert flow.name == "fsp_matrix_0.tmp_0" and flow.shape == (-1, 1, 2)
        return out, bare, flow

    out, bare, flow = run(net, x=([-1, 2], X), y=([-1, 4], Y))
    expect = X.sum(1, keepdims=True) * Y.sum(1, keepdims=True)
    np.testing.assert_allclose(bare, expect, rtol=1e-5)
    np.testing.assert_allclose(out, np.repeat(expect + 1, 5, 1), rtol=1e-5)
    np.testing.assert_allclose(flow[:, 0, 1], (X * Y[:, 2:]).mean(1), rtol=1e-5)


def test_sizes_must_be_known():
    with fluid.program_guard(fluid.Program()):
        x, y = fluid.data("x", [-1, 2]), fluid.data("y", [-1, -1])
        with pytest.raises(errors.ShapeError, match=r"y is \[batch, known size\]"):
            layers.bilinear_tensor_product(x, y, 5)
