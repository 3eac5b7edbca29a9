"""Normalisation layers."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import ParamAttr, errors, layers
from jfluid.initializer import Constant, Uniform
from tests.layers.net import Net
from tests.layers.run import build, run

X = np.random.RandomState(0).uniform(-1, 2, (3, 4, 3, 2)).astype("float32")


def normalised(x, axes, epsilon=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batch_norm(layout):
    order, axes = ((0, 1, 2, 3), (0, 2, 3)) if layout == "NCHW" else ((0, 2, 3, 1), (0, 1, 2))
    x = X.transpose(order)
    net = Net(lambda x: layers.batch_norm(x, act="relu", momentum=0.8, data_layout=layout), x=x)
    names = [f"batch_norm_0.{n}" for n in ("w_0", "b_0", "w_1", "w_2")]
    assert list(net.params) == names and net.out.name == "batch_norm_0.tmp_3"
    assert [p.trainable for p in net.main.all_parameters()] == [True, True, False, False]
    for name, start in zip(names, (1, 0, 0, 1)):
        np.testing.assert_array_equal(net.params[name], np.full(4, start, "float32"))
    close(net.run(), np.maximum(normalised(x, axes), 0))
    mean, variance = 0.2 * x.mean(axes), 0.8 + 0.2 * x.var(axes)
    close(net.value(names[2]), mean)
    close(net.value(names[3]), variance)
    # The test form uses the running statistics, and leaves them alone.
    shape = (4, 1, 1) if layout == "NCHW" else (4,)
    expected = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-5)
    close(net.run(program=net.main.clone(for_test=True)), np.maximum(expected, 0))
    close(net.value(names[2]), mean)


def test_batch_norm_names_and_running_statistics():
    net = Net(
        lambda x: layers.batch_norm(
            x,
            use_global_stats=True,
            moving_mean_name="mean",
            moving_variance_name="variance",
            param_attr=ParamAttr("scale", initializer=Constant(3.0)),
            bias_attr=ParamAttr("shift", initializer=Constant(2.0)),
        ),
        x=X,
    )
    assert list(net.params) == ["scale", "shift", "mean", "variance"]
    close(net.run(), 3 * X / np.sqrt(1 + 1e-5) + 2)
    np.testing.assert_array_equal(net.value("mean"), np.zeros(4))


def test_batch_norm_with_a_momentum_variable():
    net = Net(lambda x: layers.batch_norm(x, momentum=layers.fill_constant([1], "float32", 0.25)), x=X)
    net.run()
    close(net.value("batch_norm_0.w_1"), 0.75 * X.mean((0, 2, 3)))


def test_running_statistics_are_not_trained():
    def function(x):
        loss = layers.reduce_sum(layers.batch_norm(x) * x)
        grads = fluid.append_backward(loss)
        assert [p.name for p, _ in grads] == ["batch_norm_0.w_0", "batch_norm_0.b_0"]
        return [g for _, g in grads]

    scale, bias = Net(function, x=X).run()
    close(scale, (normalised(X, (0, 2, 3)) * X).sum((0, 2, 3)))
    close(bias, X.sum((0, 2, 3)))


@pytest.mark.parametrize("act", [None, "identity", "leaky_relu", "elu"])
def test_inplace_abn_is_batch_norm_and_an_activation(act):
    def loss(x, last):
        weight = ParamAttr("weight", initializer=Uniform(-1, 1, seed=3))
        out = last(layers.conv2d(x, 3, 2, param_attr=weight))
        fluid.append_backward(layers.reduce_sum(out * out * out))
        return out

    def separate(x):
        y = layers.batch_norm(x)
        if act == "leaky_relu":
            return layers.leaky_relu(y, 0.2)
        return layers.elu(y, 0.2) if act == "elu" else y

    joined = Net(lambda x: loss(x, lambda y: layers.inplace_abn(y, act=act, act_alpha=0.2)), x=X)
    apart = Net(lambda x: loss(x, separate), x=X)
    assert joined.out.name == "conv2d_0.tmp_1" and "inplace_abn_0.w_2" in joined.params
    found, grad = joined.run([joined.out, "weight@GRAD"])
    expected, expected_grad = apart.run([apart.out, "weight@GRAD"])
    close(found, expected)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-3, atol=1e-3)


def test_batch_norm_in_place():
    def net(in_place):
        def function(x):
            y = layers.scale(x, 2.0)
            out = layers.batch_norm(y, in_place=in_place)
            assert (out is y) == in_place
            return layers.reduce_sum(out * out * out, dim=[0, 2, 3])

        return Net(function, x=X).run()

    close(net(True), net(False))


@pytest.mark.parametrize("begin", [1, 3])
def test_layer_norm(begin):
    net = Net(lambda x: layers.layer_norm(x, begin_norm_axis=begin, epsilon=0.1, act="tanh"), x=X)
    size = int(np.prod(X.shape[begin:]))
    assert {n: v.shape for n, v in net.params.items()} == {
        "layer_norm_0.w_0": (size,),
        "layer_norm_0.b_0": (size,),
    }
    assert net.out.name == "layer_norm_0.tmp_3"
    close(net.run(), np.tanh(normalised(X, tuple(range(begin, 4)), 0.1)))


def test_layer_norm_without_parameters():
    net = Net(lambda x: layers.layer_norm(x, scale=False, shift=False), x=X)
    assert not net.params
    close(net.run(), normalised(X, (1, 2, 3)))
    net = Net(
        lambda x: layers.layer_norm(x, scale=False, bias_attr=ParamAttr("shift", initializer=Constant(0.5))),
        x=X,
    )
    close(net.run(), normalised(X, (1, 2, 3)) + 0.5)


def test_instance_norm():
    net = Net(lambda x: layers.instance_norm(x, bias_attr=ParamAttr(initializer=Constant(0.5))), x=X)
    assert list(net.params) == ["instance_norm_0.w_0", "instance_norm_0.b_0"]
    close(net.run(), normalised(X, (2, 3)) + 0.5)


def test_group_norm():
    expected = normalised(X.reshape(3, 2, 2, 3, 2), (2, 3, 4)).reshape(X.shape)
    net = Net(lambda x: layers.group_norm(x, 2), x=X)
    assert not net.params
    close(net.run(), expected)
    net = Net(
        lambda x: layers.group_norm(
            x,
            2,
            param_attr=ParamAttr(),
            bias_attr=ParamAttr(initializer=Constant(0.5)),
            data_layout="NHWC",
            act="relu",
        ),
        x=X.transpose(0, 2, 3, 1),
    )
    assert list(net.params) == ["group_norm_0.w_0", "group_norm_0.b_0"]
    close(net.run(), np.maximum(expected + 0.5, 0).transpose(0, 2, 3, 1))


def test_lrn():
    squares = np.pad(np.square(X), [(0, 0), (1, 1), (0, 0), (0, 0)])
    middle = 2 + 0.3 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])
    close(run(lambda x: layers.lrn(x, n=3, k=2.0, alpha=0.3, beta=0.5), x=X), X / np.sqrt(middle))


def test_lrn_with_channels_last():
    found = run(lambda x: layers.lrn(x, n=1, k=2.0, alpha=0.3, beta=0.5, data_format="NHWC"), x=X)
    close(found, X / np.sqrt(2 + 0.3 * X * X))


def test_affine_channel():
    scale, bias = np.arange(4, dtype="float32"), np.ones(4, "float32")
    found = run(lambda x, s, b: layers.affine_channel(x, s, b, act="relu"), x=X, s=scale, b=bias)
    close(found, np.maximum(X * scale[:, None, None] + 1, 0))


def test_spectral_norm():
    net = Net(
        lambda x: layers.spectral_norm(layers.create_parameter([3, 4], "float32", name="w"), power_iters=50),
        x=X,
    )
    assert list(net.params) == ["w", "spectral_norm_0.w_0", "spectral_norm_0.w_1"]
    close(np.linalg.svd(net.run(), compute_uv=False).max(), 1)


def test_spectral_norm_of_another_dimension():
    net = Net(
        lambda x: layers.spectral_norm(
            layers.create_parameter([3, 4, 2], "float32", name="w"),
            dim=1,
            power_iters=2,
            name="mine",
        ),
        x=X,
    )
    assert {n: v.shape for n, v in net.params.items()} == {
        "w": (3, 4, 2),
        "mine.w_0": (4,),
        "mine.w_1": (6,),
    }
    matrix, u = net.params["w"].transpose(1, 0, 2).reshape(4, 6), net.params["mine.w_0"]
    for _ in range(2):
        v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
        u = matrix @ v / np.linalg.norm(matrix @ v)
    close(net.run(), net.params["w"] / (u @ matrix @ v))
    np.testing.assert_array_equal(net.value("mine.w_0"), net.params["mine.w_0"])


def test_wrong_inputs_raise():
    with pytest.raises(errors.ShapeError, match="channels of the input must be known"):
        build(layers.batch_norm, input=([3, -1, 3, 2], X))
    with pytest.raises(errors.ShapeError, match="must be known"):
        build(layers.layer_norm, input=([3, -1, 3, 2], X))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda x: layers.batch_norm(x, data_layout="NCDHW"), "data_layout"),
        (lambda x: layers.inplace_abn(x, act="relu"), "expected identity, leaky_relu or elu"),
        (lambda x: layers.layer_norm(x, begin_norm_axis=4), "begin_norm_axis|dimensions 4"),
        (
            lambda x: layers.layer_norm(x, param_attr=False),
            "param_attr must not be False while scale is True",
        ),
        (
            lambda x: layers.layer_norm(x, bias_attr=False),
            "bias_attr must not be False while shift is True",
        ),
        (lambda x: layers.instance_norm(x, bias_attr=False), "must not be False"),
        (lambda x: layers.lrn(x, data_format="NCDHW"), 'expected "NCHW" or "NHWC"'),
        (lambda x: layers.group_norm(x, 3), "groups 3 does not divide the 4 channels"),
        (lambda x: layers.lrn(layers.reshape(x, [0, 4, 6])), "4 dimensions"),
        (lambda x: layers.affine_channel(x), "scale and bias"),
    ],
)
def test_wrong_arguments_raise(net, message):
    with pytest.raises(errors.ProgramError, match=message):
        build(net, x=X)
