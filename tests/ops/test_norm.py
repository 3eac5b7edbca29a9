"""Normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests import op_case


def array(*shape, low=-1.0, high=1.0, seed=0):
    return np.random.RandomState(sum(shape) + seed).uniform(low, high, shape).astype("float32")


def check(*args, **options):
    return op_case.check(*args, rows=("X",), **options)


def along(vector, x, axis):
    return vector.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


X = array(2, 4, 3, 2)
SCALE, BIAS, MEAN, VARIANCE = (array(4, low=0.5, high=2, seed=s) for s in range(4))
GIVEN = {"Scale": SCALE, "Bias": BIAS, "Mean": MEAN, "Variance": VARIANCE}


def normalised(x, mean, variance, axis, epsilon=1e-5):
    x = x.astype("float64")
    return along(SCALE, x, axis) * (x - along(mean, x, axis)) / np.sqrt(along(variance, x, axis) + epsilon) + along(
        BIAS, x, axis
    )


def batch_normalised(x, axis=1, momentum=0.9, epsilon=1e-5):
    others = tuple(i for i in range(x.ndim) if i != axis)
    mean, variance = x.mean(others, dtype="float64"), x.var(others, dtype="float64")
    return {
        "Y": normalised(x, mean, variance, axis, epsilon),
        "MeanOut": MEAN * momentum + mean * (1 - momentum),
        "VarianceOut": VARIANCE * momentum + variance * (1 - momentum),
        "SavedMean": mean,
        "SavedVariance": 1 / np.sqrt(variance + epsilon),
    }


@pytest.mark.parametrize(
    ("x", "attrs"),
    [
        (X, {}),
        (X.transpose(0, 2, 3, 1), {"data_layout": "NHWC", "momentum": 0.5}),
        (array(5, 4), {"epsilon": 0.1}),
        (array(2, 4, 2, 2, 2), {"is_test": True, "trainable_statistics": True}),
    ],
)
def test_batch_norm_by_the_batch(x, attrs):
    found = batch_normalised(
        x,
        3 if "data_layout" in attrs else 1,
        attrs.get("momentum", 0.9),
        attrs.get("epsilon", 1e-5),
    )
    check(
        "batch_norm",
        {"X": x, **GIVEN},
        attrs,
        expect={k: v.astype("float32") for k, v in found.items()},
    )


@pytest.mark.parametrize("attrs", [{}, {"data_layout": "NHWC"}, {"use_global_stats": True}])
def test_batch_norm_gradient(attrs):
    x = X[:, :, :2].transpose(0, 2, 3, 1) if "data_layout" in attrs else X[:, :, :2]
    # One weighted sum of Y: the statistics carry no gradient, in Fluid as here.
    check("batch_norm", {"X": x, **GIVEN}, attrs, expect={"Y": None}, grad=("X", "Scale", "Bias"))


@pytest.mark.parametrize("attrs", [{"is_test": True}, {"use_global_stats": True}])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_batch_norm_by_running_statistics(attrs, layout):
    x, axis = (X, 1) if layout == "NCHW" else (X.transpose(0, 2, 3, 1), 3)
    expected = normalised(x, MEAN, VARIANCE, axis).astype("float32")
    check(
        "batch_norm",
        {"X": x, **GIVEN},
        attrs | {"data_layout": layout},
        expect={"Y": expected, "MeanOut": MEAN, "VarianceOut": VARIANCE},
    )


def test_batch_norm_takes_its_momentum_from_a_tensor():
    found = batch_normalised(X, momentum=0.25)
    check(
        "batch_norm",
        {"X": X, **GIVEN, "MomentumTensor": np.array([0.25], "float32")},
        expect={k: found[k].astype("float32") for k in ("Y", "MeanOut", "VarianceOut")},
    )


def test_batch_norm_leaves_a_single_element_as_it_is():
    x = array(1, 4)
    op_case.check(
        "batch_norm",
        {"X": x, **GIVEN},
        expect={"Y": x, "MeanOut": MEAN, "VarianceOut": VARIANCE},
        rows=(),
    )


def test_batch_norm_of_half_precision_keeps_float32_statistics():
    x = X.astype("float16")
    found = batch_normalised(x)
    check(
        "batch_norm",
        {"X": x, **GIVEN},
        rtol=2e-3,
        atol=2e-3,
        expect={"Y": found["Y"].astype("float16"), "MeanOut": found["MeanOut"].astype("float32")},
    )


def test_batch_norm_far_from_zero_is_accurate():
    x = (X + 1000).astype("float32")
    found = batch_normalised(x)
    check(
        "batch_norm",
        {"X": x, **GIVEN},
        rtol=1e-3,
        atol=1e-3,
        expect={"Y": found["Y"].astype("float32")},
    )


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("", lambda y: y),
        ("identity", lambda y: y),
        ("leaky_relu", lambda y: np.where(y > 0, y, 0.3 * y)),
        ("elu", lambda y: np.where(y > 0, y, 0.3 * np.expm1(y))),
    ],
)
def test_inplace_abn(activation, function):
    attrs = {"activation": activation, "alpha": 0.3}
    given = GIVEN | {"Bias": BIAS - 1}  # so that both signs occur
    y = batch_normalised(X)["Y"] - 1
    check("inplace_abn", {"X": X, **given}, attrs, expect={"Y": function(y).astype("float32")})
    check(
        "inplace_abn",
        {"X": X[:, :, :2], **given},
        attrs,
        expect={"Y": None},
        grad=("X", "Scale", "Bias"),
    )


@pytest.mark.parametrize("attrs", [{"use_global_stats": True}, {"is_test": True}, {"data_layout": "NHWC"}])
def test_inplace_abn_takes_the_statistics_of_batch_norm(attrs):
    last = "data_layout" in attrs
    x = X.transpose(0, 2, 3, 1) if last else X
    expected = (
        batch_normalised(x, 3)
        if last
        else {"Y": normalised(X, MEAN, VARIANCE, 1), "MeanOut": MEAN, "VarianceOut": VARIANCE}
    )
    check(
        "inplace_abn",
        {"X": x, **GIVEN},
        attrs | {"activation": "leaky_relu", "alpha": 0.3},
        expect={
            "Y": np.where(expected["Y"] > 0, expected["Y"], 0.3 * expected["Y"]).astype("float32"),
            "MeanOut": expected["MeanOut"].astype("float32"),
            "VarianceOut": expected["VarianceOut"].astype("float32"),
        },
    )


def test_inplace_abn_refuses_what_it_does_not_do():
    with pytest.raises(errors.ProgramError, match="expected identity, leaky_relu or elu"):
        check("inplace_abn", {"X": X, **GIVEN}, {"activation": "relu"}, expect={"Y": None})
    with pytest.raises(errors.UnsupportedError, match="use_sync_bn"):
        registry.get("inplace_abn").fn(X, SCALE, BIAS, MEAN, VARIANCE, None, use_sync_bn=True)


def moments(x, axes, epsilon=1e-5):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon), mean.reshape(-1), variance.reshape(-1)


@pytest.mark.parametrize("begin", [1, 2, 3])
def test_layer_norm(begin):
    inner = X.shape[begin:]
    scale, bias = array(*inner).reshape(-1), array(*inner, seed=1).reshape(-1)
    y, mean, variance = moments(X, tuple(range(begin, 4)), 0.01)
    check(
        "layer_norm",
        {"X": X, "Scale": scale, "Bias": bias},
        {"begin_norm_axis": begin, "epsilon": 0.01},
        expect={
            "Y": y * scale.reshape(inner) + bias.reshape(inner),
            "Mean": mean,
            "Variance": variance,
        },
    )


def test_layer_norm_gradient():
    check(
        "layer_norm",
        {"X": array(3, 2, 2), "Scale": array(4), "Bias": array(4)},
        expect={"Y": None},
        grad=("X", "Scale", "Bias"),
    )


def test_layer_norm_without_parameters():
    check("layer_norm", {"X": X}, expect={"Y": moments(X, (1, 2, 3))[0]})
    half = X.astype("float16")
    check(
        "layer_norm",
        {"X": half},
        rtol=2e-3,
        atol=2e-3,
        expect={"Y": moments(X, (1, 2, 3))[0].astype("float16")},
    )
    check("layer_norm", {"X": array(2, 3)}, expect={"Y": None}, grad=("X",))


def test_instance_norm():
    y, mean, variance = moments(X, (2, 3), 0.01)
    check(
        "instance_norm",
        {"X": X, "Scale": SCALE, "Bias": BIAS},
        {"epsilon": 0.01},
        expect={
            "Y": y * along(SCALE, X, 1) + along(BIAS, X, 1),
            "SavedMean": mean,
            "SavedVariance": 1 / np.sqrt(variance + 0.01),
        },
    )
    check(
        "instance_norm",
        {"X": array(1, 2, 4), "Scale": SCALE[:2], "Bias": BIAS[:2]},
        {"epsilon": 0.01},
        expect={"Y": None},
        grad=("X", "Scale", "Bias"),
    )
    # a channel of one element is its own mean
    flat = {"X": array(3, 4), "Scale": SCALE, "Bias": BIAS}
    check("instance_norm", flat, expect={"Y": np.tile(BIAS, (3, 1))})


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_group_norm(layout):
    split, mean, variance = moments(X.reshape(2, 2, 2, 3, 2), (2, 3, 4), 0.01)
    expected = split.reshape(X.shape) * along(SCALE, X, 1) + along(BIAS, X, 1)
    x = X if layout == "NCHW" else X.transpose(0, 2, 3, 1)
    attrs = {"groups": 2, "epsilon": 0.01, "data_layout": layout}
    check(
        "group_norm",
        {"X": x, "Scale": SCALE, "Bias": BIAS},
        attrs,
        expect={
            "Y": expected if layout == "NCHW" else expected.transpose(0, 2, 3, 1),
            "Mean": mean.reshape(2, 2),
            "Variance": variance.reshape(2, 2),
        },
    )
    check(
        "group_norm",
        {"X": x[:, :2, :2], "Scale": SCALE[: x[:, :2, :2].shape[1 if layout == "NCHW" else 3]]},
        attrs,
        expect={"Y": None},
        grad=("X", "Scale"),
    )


def test_group_norm_with_a_bias_or_nothing():
    split = moments(X.reshape(2, 4, 1, 3, 2), (2, 3, 4))[0].reshape(X.shape)
    check("group_norm", {"X": X, "Bias": BIAS}, {"groups": 4}, expect={"Y": split + along(BIAS, X, 1)})
    check("group_norm", {"X": X}, {"groups": 4}, expect={"Y": split})
    check(
        "group_norm",
        {"X": X[:1, :2, :2], "Scale": SCALE[:2], "Bias": BIAS[:2]},
        {"groups": 2},
        expect={"Y": None},
        grad=("X", "Scale", "Bias"),
    )


def test_lrn():
    x = array(1, 6, 2, 2)
    middle = 1.5 + 0.1 * np.stack([np.square(x[:, max(c - 1, 0) : c + 2]).sum(1) for c in range(6)], 1)
    attrs = {"n": 3, "k": 1.5, "alpha": 0.1, "beta": 0.6}
    check("lrn", {"X": x}, attrs, expect={"Out": x / middle**0.6, "MidOut": middle})
    check(
        "lrn",
        {"X": x.transpose(0, 2, 3, 1)},
        attrs | {"data_format": "NHWC"},
        expect={"Out": (x / middle**0.6).transpose(0, 2, 3, 1)},
    )
    check("lrn", {"X": x[:, :4]}, attrs, expect={"Out": None}, grad=("X",))
    with pytest.raises(errors.ProgramError, match="odd number"):
        check("lrn", {"X": x}, {"n": 4}, expect={"Out": None})


@pytest.mark.parametrize(("attrs", "axis"), [({"data_layout": "NCHW"}, 1), ({"data_layout": "NHWC"}, 3), ({}, 3)])
def test_affine_channel(attrs, axis):
    x = np.moveaxis(X[:1, :, :2], 1, axis)
    check(
        "affine_channel",
        {"X": x, "Scale": SCALE, "Bias": BIAS},
        attrs,
        expect={"Out": x * along(SCALE, x, axis) + along(BIAS, x, axis)},
        grad=("X", "Scale", "Bias"),
    )


@pytest.mark.parametrize(("dim", "steps"), [(0, 1), (1, 3), (0, 0)])
def test_spectral_norm(dim, steps):
    weight = array(3, 2, 2)
    matrix = np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1).astype("float64")
    start = u, v = array(len(matrix), seed=1), array(matrix.shape[1], seed=2)
    for _ in range(steps):
        v = matrix.T @ u / np.linalg.norm(matrix.T @ u)
        u = matrix @ v / np.linalg.norm(matrix @ v)
    inputs, attrs = (
        {"Weight": weight, "U": start[0], "V": start[1]},
        {"dim": dim, "power_iters": steps},
    )
    op_case.check(
        "spectral_norm",
        inputs,
        attrs,
        expect={"Out": (weight / (u @ matrix @ v)).astype("float32")},
        rows=(),
    )


def test_spectral_norm_gradient_takes_the_vectors_as_constants():
    # Without steps they are constants; with steps the numeric gradient would move them too.
    op_case.check(
        "spectral_norm",
        {"Weight": array(3, 2), "U": array(3), "V": array(2)},
        {"power_iters": 0},
        expect={"Out": None},
        grad=("Weight",),
        rows=(),
    )
    function = registry.get("spectral_norm").fn
    weight, u, v = array(3, 2), array(3), array(2)
    new_v = weight.T @ u / np.linalg.norm(weight.T @ u)
    new_u = weight @ new_v / np.linalg.norm(weight @ new_v)
    found = jax.jit(jax.grad(lambda w: function(w, u, v, power_iters=1)[0, 0]))(weight)
    expected = jax.jit(jax.grad(lambda w: function(w, new_u, new_v, power_iters=0)[0, 0]))(weight)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "message"),
    [
        ("batch_norm", GIVEN | {"Scale": SCALE[:3]}, {}, "Scale needs 4 elements"),
        ("layer_norm", {}, {"begin_norm_axis": 4}, "from 1 to 3"),
        ("layer_norm", {"Bias": BIAS}, {}, "Bias needs 24 elements"),
        ("instance_norm", {"Scale": SCALE, "Bias": BIAS[:2]}, {}, "Bias needs 4"),
        (
            "instance_norm",
            {"X": array(4), "Scale": SCALE, "Bias": BIAS},
            {},
            "at least 2 dimensions",
        ),
        ("group_norm", {}, {"groups": 3}, "4 channels cannot be divided into 3 groups"),
        (
            "affine_channel",
            {"Scale": SCALE, "Bias": BIAS},
            {"data_layout": "NHWC"},
            "Scale needs 2 elements",
        ),
    ],
)
def test_wrong_shapes_raise(op_type, inputs, attrs, message):
    with pytest.raises(errors.ShapeError, match=message):
        check(
            op_type,
            {"X": X, **inputs},
            attrs,
            expect={"Out" if op_type == "affine_channel" else "Y": None},
        )


def test_sync_batch_norm_spans_replicas():
    """Replicas normalise by the statistics of the joined batch, forward and backward."""
    rng = np.random.RandomState(0)
    x, weight = rng.randn(4, 3, 2, 5, 5), rng.randn(4, 3, 2, 5, 5)  # [replicas, N, C, H, W]
    scale, bias, mean, variance = rng.rand(2) + 0.5, rng.randn(2), np.zeros(2), np.ones(2)

    def loss(op_type, x, weight):
        outs = registry.get(op_type).fn(x, scale, bias, mean, variance, None)
        return (outs[0] * weight).sum(), outs[1:3]

    with jax.enable_x64(True):
        (whole, state), grad = jax.jit(
            jax.value_and_grad(lambda v: loss("batch_norm", v, weight.reshape(12, 2, 5, 5)), has_aux=True)
        )(jnp.asarray(x.reshape(12, 2, 5, 5)))
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("replica",))
        spec = jax.sharding.PartitionSpec("replica")

        def replica(x, weight):
            (own, state), grad = jax.value_and_grad(lambda v: loss("sync_batch_norm", v, weight[0]), has_aux=True)(x[0])
            return jnp.stack([own])[None], grad[None], state

        parts, grads, states = jax.jit(
            jax.shard_map(
                replica,
                mesh=mesh,
                in_specs=(spec, spec),
                check_vma=False,
                out_specs=(spec, spec, jax.sharding.PartitionSpec()),
            )
        )(x, weight)
        np.testing.assert_allclose(parts.sum(), whole, rtol=1e-9)
        np.testing.assert_allclose(np.asarray(grads).reshape(12, 2, 5, 5), grad, atol=1e-10)
        for found, want in zip(states, state):
            np.testing.assert_allclose(found, want, rtol=1e-9)
        inputs = (x[0], scale, bias, mean, variance, None)
        alone, plain = (jax.jit(registry.get(op_type).fn)(*inputs)[0] for op_type in ("sync_batch_norm", "batch_norm"))
        np.testing.assert_array_equal(alone, plain)


def test_batch_norm_with_relu_of_an_inference_pass():
    x, (scale, bias, mean, variance) = (
        np.float32([[1, -2], [3, 4], [-5, 6]]),
        np.float32([[1, 2], [0.5, 1], [2, 1], [4, 9]]),
    )
    ins = {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    plain = (x - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias
    attrs = {"is_test": True, "fuse_with_relu": True}
    check("batch_norm", ins, attrs, expect={"Y": np.maximum(plain, 0)})
    with pytest.raises(errors.ShapeError, match="for inference"):
        check("batch_norm", ins, {"fuse_with_relu": True}, expect={"Y": x})


def test_attributes_do_not_decide_how_long_tracing_and_computing_take():
    """Windows beyond all channels, and repetitions that are written out."""
    x = array(1, 6, 2, 2)
    attrs = {"k": 1.5, "alpha": 0.1, "beta": 0.6}
    middle = 1.5 + 0.1 * np.square(x).sum(1, keepdims=True) * np.ones((1, 6, 1, 1), "float32")
    check("lrn", {"X": x}, attrs | {"n": 2**31 - 1}, expect={"MidOut": middle})
    given = {"Weight": array(3, 2), "U": array(3), "V": array(2)}
    with pytest.raises(errors.ProgramError, match="power_iters is 2147483647, expected at most"):
        check("spectral_norm", given, {"power_iters": 2**31 - 1}, expect={})
