"""fluid.nets."""

import numpy as np
import pytest

from jfluid import errors, nets
from tests.layers.net import Net
from tests.layers.run import build, run
from tests.windows_reference import convolve, pool, regions

X = np.random.RandomState(0).uniform(-1, 1, (2, 4, 6, 6)).astype("float32")


def test_simple_img_conv_pool():
    net = Net(
        lambda x: nets.simple_img_conv_pool(x, 3, 3, 2, 2, act="relu", conv_padding=1, pool_type="avg"),
        x=X,
    )
    assert list(net.params) == ["conv2d_0.w_0", "conv2d_0.b_0"]
    planes = np.maximum(convolve(X, net.params["conv2d_0.w_0"], [1, 1], [1, 1]), 0)
    expected = pool(planes, [regions(6, 2, 2, 0, 0)] * 2, "avg")
    np.testing.assert_allclose(net.run(), expected, rtol=1e-4, atol=1e-5)


def test_img_conv_group():
    net = Net(
        lambda x: nets.img_conv_group(
            x,
            [3, 5],
            2,
            conv_act="relu",
            conv_with_batchnorm=[True, False],
            conv_batchnorm_drop_rate=[0.3, 0.0],
            pool_stride=2,
        ),
        x=X,
    )
    assert net.types() == [
        "conv2d",
        "elementwise_add",
        "batch_norm",
        "relu",
        "dropout",
        "conv2d",
        "elementwise_add",
        "relu",
        "pool2d",
    ]
    assert net.out.shape == (-1, 5, 3, 3) and net.run().shape == (2, 5, 3, 3)
    with pytest.raises(errors.ProgramError, match="conv_padding has 1 values for 2 convolutions"):
        build(lambda x: nets.img_conv_group(x, [3, 5], 2, conv_padding=[1]), x=X)


def test_img_conv_group_computes_what_its_layers_do():
    net = Net(
        lambda x: nets.img_conv_group(
            x,
            [3, 2],
            2,
            conv_act="relu",
            conv_padding=[1, 0],
            conv_filter_size=[3, 2],
            conv_with_batchnorm=[True, False],
            pool_stride=2,
            pool_type="avg",
        ),
        x=X,
    )
    assert list(net.params) == [
        "conv2d_0.w_0",
        "conv2d_0.b_0",
        *[f"batch_norm_0.{n}" for n in ("w_0", "b_0", "w_1", "w_2")],
        "conv2d_1.w_0",
        "conv2d_1.b_0",
    ]
    planes = convolve(X, net.params["conv2d_0.w_0"], [1, 1], [1, 1])
    mean, variance = (f(planes, (0, 2, 3), keepdims=True) for f in (np.mean, np.var))
    planes = np.maximum((planes - mean) / np.sqrt(variance + 1e-5), 0)
    planes = np.maximum(convolve(planes, net.params["conv2d_1.w_0"], [1, 1], [0, 0]), 0)
    expected = pool(planes, [regions(5, 2, 2, 0, 0)] * 2, "avg")
    np.testing.assert_allclose(net.run(), expected, rtol=1e-3, atol=1e-4)


def test_img_conv_group_wants_a_list():
    with pytest.raises(TypeError, match="conv_num_filter is a list, found int"):
        build(lambda x: nets.img_conv_group(x, 3, 2), x=X)


def test_glu():
    expected = X[:, :2] / (1 + np.exp(-X[:, 2:]))
    np.testing.assert_allclose(run(lambda x: nets.glu(x, dim=1), x=X), expected, rtol=1e-5, atol=1e-6)


def attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


QUERIES, KEYS, VALUES = (
    np.random.RandomState(n).uniform(-1, 1, s).astype("float32")
    for n, s in enumerate([(2, 3, 4), (2, 5, 4), (2, 5, 6)])
)


def test_attention_with_one_head():
    found = run(nets.scaled_dot_product_attention, queries=QUERIES, keys=KEYS, values=VALUES)
    np.testing.assert_allclose(found, attention(QUERIES, KEYS, VALUES), rtol=1e-4, atol=1e-5)


def test_attention_with_two_heads():
    net = Net(
        lambda q, k, v: nets.scaled_dot_product_attention(q, k, v, num_heads=2),
        q=QUERIES,
        k=KEYS,
        v=VALUES,
    )
    q, k, v = (x @ net.params[f"fc_{i}.w_0"] for i, x in enumerate((QUERIES, KEYS, VALUES)))
    heads = [attention(*(x[..., h * x.shape[-1] // 2 : (h + 1) * x.shape[-1] // 2] for x in (q, k, v))) for h in (0, 1)]
    np.testing.assert_allclose(net.run(), np.concatenate(heads, -1), rtol=1e-4, atol=1e-5)


def test_attention_with_dropout():
    # so that the output is the attention weights
    values = np.broadcast_to(np.eye(5, dtype="float32"), (2, 5, 5))
    net = Net(
        lambda q, k, v: nets.scaled_dot_product_attention(q, k, v, dropout_rate=0.5),
        q=QUERIES,
        k=KEYS,
        v=values,
    )
    assert net.types().count("dropout") == 1
    weights, found = attention(QUERIES, KEYS, values), net.run()
    kept = found != 0
    assert 0 < kept.mean() < 1
    np.testing.assert_allclose(found[kept], weights[kept], rtol=1e-4)


def test_attention_refuses_shapes_that_do_not_fit():
    with pytest.raises(errors.ShapeError, match="values has 3 dimensions"):
        build(lambda q, k, v: nets.scaled_dot_product_attention(q, k, v), q=QUERIES, k=KEYS, v=X)
    with pytest.raises(errors.ShapeError, match="num_heads 3 must divide"):
        build(
            lambda q, k, v: nets.scaled_dot_product_attention(q, k, v, num_heads=3),
            q=QUERIES,
            k=KEYS,
            v=VALUES,
        )
    with pytest.raises(errors.ShapeError, match="do not match"):
        build(lambda q, k: nets.scaled_dot_product_attention(q, k, q), q=QUERIES, k=KEYS)
