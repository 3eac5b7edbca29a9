"""Convolution layers."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import ParamAttr, errors, layers
from jfluid.initializer import Constant
from tests.layers.net import Net
from tests.layers.run import build
from tests.windows_reference import convolve, convolve_transpose

X = np.random.RandomState(0).uniform(-1, 1, (2, 4, 6, 5)).astype("float32")
X3 = X.reshape(2, 4, 3, 2, 5)


def close(found, expected):
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_conv2d():
    net = Net(
        lambda x: layers.conv2d(
            x,
            6,
            3,
            stride=[2, 1],
            padding=1,
            act="relu",
            bias_attr=ParamAttr(initializer=Constant(0.5)),
        ),
        x=X,
    )
    assert list(net.params) == ["conv2d_0.w_0", "conv2d_0.b_0"] and net.out.name == "conv2d_0.tmp_2"
    assert net.types() == ["conv2d", "elementwise_add", "relu"] and net.out.shape == (-1, 6, 3, 5)
    expected = convolve(X, net.params["conv2d_0.w_0"], [2, 1], [1, 1]) + 0.5
    close(net.run(), np.maximum(expected, 0))


def test_default_parameters():
    net = Net(lambda x: layers.conv2d(x, 500, 3), x=X)
    assert np.abs(net.params["conv2d_0.b_0"]).max() == 0
    assert abs(net.params["conv2d_0.w_0"].std() / np.sqrt(2 / (3 * 3 * 4)) - 1) < 0.05
    net = Net(lambda x: layers.conv3d(x, 500, [1, 2, 3]), x=X3)
    assert abs(net.params["conv3d_0.w_0"].std() / np.sqrt(2 / (1 * 2 * 3 * 4)) - 1) < 0.05
    net = Net(lambda x: layers.conv2d_transpose(x, 50, filter_size=3), x=X)
    limit = np.sqrt(6 / (4 * 9 + 50 * 9))  # Xavier
    assert 0.9 * limit < np.abs(net.params["conv2d_transpose_0.w_0"]).max() <= limit


@pytest.mark.parametrize(
    ("padding", "around"),
    [
        (1, [1, 1]),
        ([2, 1], [2, 1]),
        ([1, 0, 2, 1], [1, 0, 2, 1]),
        ([[0, 0], [0, 0], [1, 0], [2, 1]], [1, 0, 2, 1]),
        ("same", [1, 1]),
        ("VALID", [0, 0]),
    ],
)
def test_paddings(padding, around):
    net = Net(lambda x: layers.conv2d(x, 2, 3, padding=padding, bias_attr=False), x=X)
    assert list(net.params) == ["conv2d_0.w_0"]
    close(net.run(), convolve(X, net.params["conv2d_0.w_0"], [1, 1], around))


def test_channels_last_and_dilation():
    net = Net(
        lambda x: layers.conv2d(
            x,
            3,
            [3, 2],
            padding=[[0, 0], [1, 0], [2, 1], [0, 0]],
            dilation=[2, 1],
            data_format="NHWC",
            name="last",
            bias_attr="shift",
        ),
        x=X.transpose(0, 2, 3, 1),
    )
    assert list(net.params) == ["last.w_0", "shift"] and net.out.shape == (-1, 3, 7, 3)
    close(
        net.run(),
        convolve(X, net.params["last.w_0"], [1, 1], [1, 0, 2, 1], [2, 1]).transpose(0, 2, 3, 1),
    )


@pytest.mark.parametrize(
    ("arguments", "op_type"),
    [
        ({"groups": 2}, "conv2d"),
        ({"groups": 4}, "conv2d"),
        ({"groups": 4, "use_cudnn": False}, "depthwise_conv2d"),
    ],
)
def test_groups(arguments, op_type):
    net = Net(lambda x: layers.conv2d(x, 8, 3, bias_attr=False, **arguments), x=X)
    assert list(net.params) == [f"{op_type}_0.w_0"] and net.types() == [op_type]
    close(
        net.run(),
        convolve(X, net.params[f"{op_type}_0.w_0"], [1, 1], [0, 0], groups=arguments["groups"]),
    )


def test_conv3d():
    net = Net(lambda x: layers.conv3d(x, 2, [2, 1, 3], padding=[1, 0, 0, 0, 1, 1], act="tanh"), x=X3)
    assert list(net.params) == ["conv3d_0.w_0", "conv3d_0.b_0"]
    expected = np.tanh(convolve(X3, net.params["conv3d_0.w_0"], [1, 1, 1], [1, 0, 0, 0, 1, 1]))
    close(net.run(), expected)
    net = Net(
        lambda x: layers.conv3d(
            x,
            2,
            [2, 1, 3],
            padding=[1, 0, 0, 0, 1, 1],
            act="tanh",
            data_format="NDHWC",
            param_attr=ParamAttr(initializer=Constant(0.1)),
        ),
        x=X3.transpose(0, 2, 3, 4, 1),
    )
    expected = np.tanh(convolve(X3, np.full((2, 4, 2, 1, 3), 0.1), [1, 1, 1], [1, 0, 0, 0, 1, 1]))
    close(net.run(), expected.transpose(0, 2, 3, 4, 1))


@pytest.mark.parametrize(
    ("arguments", "filters"),
    [
        ({"filter_size": 3, "stride": 2}, (4, 6, 3, 3)),
        (
            {"filter_size": [3, 2], "stride": 2, "padding": [1, 0], "output_size": [12, 11]},
            (4, 6, 3, 2),
        ),
        ({"output_size": [12, 11], "stride": 2, "padding": 1}, (4, 6, 4, 5)),
        (
            {"output_size": 14, "stride": [2, 2], "padding": [1, 2, 0, 1], "dilation": [2, 1]},
            (4, 6, 4, 7),
        ),
        ({"filter_size": 2, "groups": 2}, (4, 3, 2, 2)),
    ],
)
def test_conv2d_transpose(arguments, filters):
    net = Net(lambda x: layers.conv2d_transpose(x, 6, act="relu", **arguments), x=X)
    weight = net.params["conv2d_transpose_0.w_0"]
    assert list(net.params) == ["conv2d_transpose_0.w_0", "conv2d_transpose_0.b_0"] and weight.shape == filters
    both = {
        n: arguments[n] if isinstance(arguments.get(n), list) else [arguments.get(n, d)] * 2
        for n, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    }
    size = arguments.get("output_size")
    expected = convolve_transpose(
        X,
        weight,
        both["stride"],
        both["padding"],
        both["dilation"],
        arguments.get("groups", 1),
        [size] * 2 if isinstance(size, int) else size,
    )
    close(net.run(), np.maximum(expected, 0))


def test_depthwise_conv2d_transpose():
    net = Net(
        lambda x: layers.conv2d_transpose(x, 4, filter_size=2, groups=4, use_cudnn=False, data_format="NHWC"),
        x=X.transpose(0, 2, 3, 1),
    )
    weight = net.params["depthwise_conv2d_transpose_0.w_0"]
    close(net.run(), convolve_transpose(X, weight, [1, 1], [0, 0], groups=4).transpose(0, 2, 3, 1))


@pytest.mark.parametrize("data_format", ["NCDHW", "NDHWC"])
def test_conv3d_transpose(data_format):
    order = (0, 2, 3, 4, 1) if data_format == "NDHWC" else (0, 1, 2, 3, 4)
    net = Net(
        lambda x: layers.conv3d_transpose(
            x, 2, output_size=[6, 4, 9], stride=2, padding=[0, 0, 1], data_format=data_format
        ),
        x=X3.transpose(order),
    )
    weight = net.params["conv3d_transpose_0.w_0"]
    assert weight.shape == (4, 2, 2, 2, 3)
    # Fluid's operator knows no three-dimensional format names.
    assert net.main.global_block().ops[0].attr("data_format") == ("NHWC" if data_format == "NDHWC" else "NCHW")
    close(net.run(), convolve_transpose(X3, weight, [2] * 3, [0, 0, 1]).transpose(order))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 3}, "groups 3 must divide"),
        ({"groups": 0}, "conv2d: groups 0, expected at least 1"),
        ({"data_format": "NCDHW"}, "expected NCHW or NHWC"),
        ({"padding": "full"}, "SAME"),
        ({"padding": [1, 2, 3]}, "padding"),
        ({"filter_size": [1, 2, 3]}, "filter_size"),
        ({"padding": [[1, 0], [0, 0], [0, 0], [0, 0]]}, "must be 0"),
        ({"padding": [[0, 0], [0, 0], [1, 1]]}, "expected 4 pairs"),
    ],
)
def test_wrong_arguments_raise(arguments, message):
    with pytest.raises(errors.ProgramError, match=message):
        build(lambda x: layers.conv2d(x, **{"num_filters": 4, "filter_size": 3, **arguments}), x=X)


def test_wrong_inputs_raise():
    with pytest.raises(errors.ShapeError, match="channels of the input must be known"):
        build(lambda x: layers.conv2d(x, 4, 3), x=([-1, -1, 6, 5], X))
    with pytest.raises(errors.ShapeError, match="5 dimensions"):
        build(lambda x: layers.conv3d(x, 4, 3), x=X)
    with pytest.raises(errors.ProgramError, match="filter_size or output_size"):
        build(lambda x: layers.conv2d_transpose(x, 4), x=X)


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("layer", ["conv2d", "conv2d_transpose"])
def test_one_channel_is_by_channel_where_groups_are_given(layer, groups):
    """As in Fluid 1.8.5, whose checkpoints have parameters by these names."""
    x = fluid.data("x", [None, 1, 8, 8])
    getattr(layers, layer)(x, 1, filter_size=3, groups=groups, use_cudnn=False)
    kind = layer if groups is None else f"depthwise_{layer}"
    block = fluid.default_main_program().global_block()
    assert block.ops[0].type == kind
    assert [p.name for p in block.all_parameters()] == [f"{kind}_0.w_0", f"{kind}_0.b_0"]
