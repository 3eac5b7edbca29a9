"""Fully connected layers and dropout."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import ParamAttr, errors, layers
from jfluid.initializer import Constant
from tests.layers.net import Net
from tests.layers.run import build

X = np.random.RandomState(0).uniform(-1, 1, (3, 4, 5)).astype("float32")
Y = X[:, 0, :2]


def test_fc():
    net = Net(lambda x: layers.fc(x, 6, act="relu"), x=X)
    assert list(net.params) == ["fc_0.w_0", "fc_0.b_0"] and net.out.name == "fc_0.tmp_2"
    assert net.types() == ["mul", "elementwise_add", "relu"] and net.out.shape == (-1, 6)
    weight = net.params["fc_0.w_0"]
    limit = np.sqrt(6 / (20 + 6))  # Xavier
    assert weight.shape == (20, 6) and 0.8 * limit < np.abs(weight).max() <= limit
    np.testing.assert_array_equal(net.params["fc_0.b_0"], np.zeros(6))
    np.testing.assert_allclose(net.run(), np.maximum(X.reshape(3, 20) @ weight, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [2, -1])
def test_fc_keeps_leading_dimensions(rows):
    net = Net(
        lambda x: layers.fc(x, 6, num_flatten_dims=rows, name="mine", bias_attr=ParamAttr(initializer=Constant(0.5))),
        x=X,
    )
    assert list(net.params) == ["mine.w_0", "mine.b_0"] and net.out.shape == (-1, 4, 6)
    np.testing.assert_allclose(net.run(), X @ net.params["mine.w_0"] + 0.5, rtol=1e-4, atol=1e-5)


def test_fc_of_several_inputs():
    net = Net(
        lambda x, y: layers.fc([x, y], 6, param_attr=[ParamAttr("first"), None], bias_attr=False, act="tanh"),
        x=X,
        y=Y,
    )
    assert list(net.params) == ["first", "fc_0.w_0"] and net.types() == [
        "mul",
        "mul",
        "sum",
        "tanh",
    ]
    expected = np.tanh(X.reshape(3, 20) @ net.params["first"] + Y @ net.params["fc_0.w_0"])
    np.testing.assert_allclose(net.run(), expected, rtol=1e-4, atol=1e-5)
    assert list(Net(lambda x, y: layers.fc([x, y], 6), x=X, y=Y).params) == [
        "fc_0.w_0",
        "fc_0.w_1",
        "fc_0.b_0",
    ]


def test_fc_refuses_wrong_arguments():
    with pytest.raises(errors.ShapeError, match="num_flatten_dims 3 does not split"):
        build(lambda x: layers.fc(x, 6, num_flatten_dims=3), x=X)
    with pytest.raises(errors.ShapeError, match="found"):
        build(lambda x: layers.fc(x, 6), x=([3, -1, 5], X))


@pytest.mark.parametrize(("implementation", "factor"), [("downgrade_in_infer", 0.75), ("upscale_in_train", 1.0)])
def test_dropout(implementation, factor):
    x = np.ones((40, 50), "float32")
    net = Net(lambda x: layers.dropout(x, 0.25, dropout_implementation=implementation), x=x)
    assert net.out.name == "dropout_0.tmp_0" and net.out.shape == (-1, 50)
    first, second = net.run(), net.run()
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(np.unique(first), [0, factor / 0.75], rtol=1e-6)
    assert abs((first > 0).mean() - 0.75) < 0.05
    np.testing.assert_allclose(net.run(program=net.main.clone(for_test=True)), x * np.float32(factor))


def test_dropout_seeds():
    x = np.ones((40, 50), "float32")
    fixed = Net(lambda x: layers.dropout(x, 0.25, seed=7), x=x)
    np.testing.assert_array_equal(fixed.run(), fixed.run())

    def start(seed):
        def function(x):
            fluid.default_main_program().random_seed = seed
            return [layers.dropout(x, 0.5), layers.dropout(x, 0.5)]

        net = Net(function, x=x)
        return net.run(), net.run()

    (one, two), later = start(3)
    assert not np.array_equal(one, two) and not np.array_equal(one, later[0])
    np.testing.assert_array_equal(one, start(3)[0][0])
    assert not np.array_equal(one, start(4)[0][0])


@pytest.mark.parametrize("arguments", [{"dropout_prob": 1.5}, {"dropout_prob": 0.5, "dropout_implementation": "scale"}])
def test_dropout_refuses_wrong_arguments(arguments):
    with pytest.raises(errors.ProgramError, match=r"1\.5|scale"):
        build(lambda x: layers.dropout(x, **arguments), x=X)
