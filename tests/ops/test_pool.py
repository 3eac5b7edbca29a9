"""Pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check
from tests.windows_reference import adaptive_regions, pairs, pool, regions

RNG = np.random.RandomState(0)
X, X3 = (RNG.permutation(n).reshape(s).astype("float32") / 10 for n, s in ((168, (2, 2, 6, 7)), (120, (1, 2, 3, 4, 5))))


def windows(x, ksize, strides, paddings, ceil_mode=False):
    around = pairs(paddings, x.ndim - 2)
    return [regions(n, k, s, *p, ceil_mode) for n, k, s, p in zip(x.shape[2:], ksize, strides, around)]


@pytest.mark.parametrize("how", ["max", "avg"])
@pytest.mark.parametrize(
    ("ksize", "strides", "paddings", "ceil_mode"),
    [
        ([2, 2], [2, 2], [0, 0], False),
        ([3, 2], [2, 1], [1, 1], False),
        ([2, 3], [1, 2], [1, 0, 0, 2], False),
        ([3, 3], [2, 2], [0, 0], True),
        ([3, 3], [2, 2], [1, 1], True),
        ([6, 7], [1, 1], [0, 0], False),
        ([6, 6], [1, 1], [2, 2], False),
        ([1, 1], [3, 3], [0, 0], False),
    ],
)
def test_pool2d(how, ksize, strides, paddings, ceil_mode):
    attrs = {
        "pooling_type": how,
        "ksize": ksize,
        "strides": strides,
        "paddings": paddings,
        "ceil_mode": ceil_mode,
    }
    expected = pool(X, windows(X, ksize, strides, paddings, ceil_mode), how).astype("float32")
    check("pool2d", {"X": X}, attrs, expect={"Out": expected})


@pytest.mark.parametrize("how", ["max", "avg"])
def test_channels_last(how):
    attrs = {
        "pooling_type": how,
        "ksize": [2, 2],
        "strides": [2, 1],
        "paddings": [1, 0],
        "data_format": "NHWC",
    }
    expected = pool(X, windows(X, [2, 2], [2, 1], [1, 0]), how).transpose(0, 2, 3, 1).astype("float32")
    check("pool2d", {"X": X.transpose(0, 2, 3, 1)}, attrs, expect={"Out": expected})


@pytest.mark.parametrize("how", ["max", "avg"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"ksize": [2, 1], "strides": [2, 1], "paddings": [1, 0]},
        {"ksize": [1, 1], "global_pooling": True},
        {"ksize": [2, 2], "adaptive": True},
    ],
)
def test_pool2d_gradient(how, attrs):
    check(
        "pool2d",
        {"X": X[:1, :1, :3, :4]},
        {"pooling_type": how, **attrs},
        expect={"Out": None},
        grad=("X",),
    )


@pytest.mark.parametrize(
    "attrs",
    [
        {"ksize": [3, 2], "strides": [2, 2], "ceil_mode": True},
        {"ksize": [2, 3], "paddings": [1, 1], "exclusive": False},
        {"ksize": [3, 3], "strides": [2, 2], "padding_algorithm": "SAME"},
        {"ksize": [2, 3], "adaptive": True},
    ],
)
def test_average_gradient_of_other_forms(attrs):
    check(
        "pool2d",
        {"X": X[:1, :1, :3, :4]},
        {"pooling_type": "avg", **attrs},
        expect={"Out": None},
        grad=("X",),
    )


@pytest.mark.parametrize(("how", "outside"), [("max", np.finfo("float32").min), ("avg", 0)])
def test_a_window_behind_the_input(how, outside):
    x = np.array([5, 7, 2], "float32").reshape(1, 1, 1, 3)
    attrs = {"pooling_type": how, "ksize": [1, 2], "strides": [1, 3], "ceil_mode": True}
    expected = np.array([7 if how == "max" else 6, outside], "float32").reshape(1, 1, 1, 2)
    check("pool2d", {"X": x}, attrs, expect={"Out": expected})


def test_average_may_count_padding():
    attrs = {
        "pooling_type": "avg",
        "ksize": [3, 3],
        "strides": [2, 2],
        "paddings": [1, 1],
        "exclusive": False,
    }
    expected = pool(X, windows(X, [3, 3], [2, 2], [1, 1]), "avg", exclusive=False)
    check("pool2d", {"X": X}, attrs, expect={"Out": expected.astype("float32")})


@pytest.mark.parametrize("how", ["max", "avg"])
def test_padding_algorithms(how):
    attrs = {"pooling_type": how, "ksize": [3, 3], "strides": [2, 2]}
    same = pool(X, windows(X, [3, 3], [2, 2], [0, 1, 1, 1]), how).astype("float32")
    check("pool2d", {"X": X}, attrs | {"padding_algorithm": "SAME"}, expect={"Out": same})
    valid = pool(X, windows(X, [3, 3], [2, 2], [0, 0]), how).astype("float32")
    check(
        "pool2d",
        {"X": X},
        attrs | {"padding_algorithm": "VALID", "paddings": [1, 1]},
        expect={"Out": valid},
    )


@pytest.mark.parametrize("how", ["max", "avg"])
def test_whole_planes(how):
    attrs = {"pooling_type": how, "ksize": [1, 1], "paddings": [1, 1], "global_pooling": True}
    expected = X.max((2, 3), keepdims=True) if how == "max" else X.mean((2, 3), keepdims=True)
    check("pool2d", {"X": X}, attrs, expect={"Out": expected})


@pytest.mark.parametrize("how", ["max", "avg"])
@pytest.mark.parametrize("ksize", [[4, 3], [3, 7], [1, 1]])
def test_adaptive_pool2d(how, ksize):
    expected = pool(X, [adaptive_regions(n, k) for n, k in zip(X.shape[2:], ksize)], how).astype("float32")
    attrs = {"pooling_type": how, "ksize": ksize, "adaptive": True}
    check("pool2d", {"X": X}, attrs, expect={"Out": expected})
    if ksize == [4, 3]:
        check(
            "pool2d",
            {"X": X.transpose(0, 2, 3, 1)},
            attrs | {"data_format": "NHWC"},
            expect={"Out": expected.transpose(0, 2, 3, 1)},
        )


@pytest.mark.parametrize("how", ["max", "avg"])
def test_pool3d(how):
    attrs = {"pooling_type": how, "ksize": [2, 1, 2], "strides": [1, 2, 2], "paddings": [1, 0, 1]}
    expected = pool(X3, windows(X3, [2, 1, 2], [1, 2, 2], [1, 0, 1]), how).astype("float32")
    check("pool3d", {"X": X3}, attrs, expect={"Out": expected})
    check(
        "pool3d",
        {"X": X3.transpose(0, 2, 3, 4, 1)},
        attrs | {"data_format": "NDHWC"},
        expect={"Out": expected.transpose(0, 2, 3, 4, 1)},
    )
    check("pool3d", {"X": X3[:, :1, :2, :1, :3]}, attrs, expect={"Out": None}, grad=("X",))
    uneven = pool(X3, [adaptive_regions(n, k) for n, k in zip(X3.shape[2:], (2, 4, 3))], how).astype("float32")
    check(
        "pool3d",
        {"X": X3},
        {"pooling_type": how, "ksize": [2, 4, 3], "adaptive": True},
        expect={"Out": uneven},
    )


def test_long_windows_of_averages():
    x = np.arange(80, dtype="float32").reshape(1, 1, 1, 80)
    attrs = {"pooling_type": "avg", "ksize": [1, 40], "strides": [1, 3]}
    expected = pool(x, windows(x, [1, 40], [1, 3], [0, 0]), "avg").astype("float32")
    check("pool2d", {"X": x}, attrs, expect={"Out": expected})


@pytest.mark.parametrize("how", ["max", "avg"])
def test_long_windows_train_in_programs(how):
    values = RNG.permutation(160).reshape(1, 1, 4, 40).astype("float32")
    x = fluid.data("x", [1, 1, 4, 40])
    x.stop_gradient = False
    loss = fluid.layers.reduce_sum(fluid.layers.pool2d(x, [1, 34], how, pool_stride=[1, 3]))
    fluid.backward.append_backward(loss)
    (grad,) = fluid.Executor(fluid.CPUPlace()).run(feed={"x": values}, fetch_list=["x@GRAD"])
    expected = np.zeros_like(values)
    for row in range(4):
        for start in (0, 3, 6):
            window = values[0, 0, row, start : start + 34]
            share = window == window.max() if how == "max" else 1 / 34
            expected[0, 0, row, start : start + 34] += share
    np.testing.assert_allclose(grad, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "attrs",
    [
        {"ksize": (2, 2), "strides": (2, 2)},
        {"ksize": (4, 4), "global_pooling": True},
        {"ksize": (4, 4)},
        {"ksize": (2, 2), "adaptive": True},
    ],
)
@pytest.mark.parametrize("op_type", ["pool2d", "max_pool2d_with_index"])
def test_the_first_of_equal_elements_gets_the_gradient(op_type, attrs):
    kind = {"pooling_type": "max"} if op_type == "pool2d" else {}
    grad = jax.jit(jax.grad(lambda x: jnp.sum(jax.tree.leaves(registry.get(op_type).fn(x, **kind, **attrs))[0])))
    size = 4 if attrs["ksize"] == (4, 4) else 2
    expected = np.zeros((1, 1, 4, 4))
    expected[:, :, ::size, ::size] = 1
    np.testing.assert_array_equal(grad(jnp.ones((1, 1, 4, 4))), expected)


@pytest.mark.parametrize(
    ("ksize", "strides", "paddings"),
    [([2, 2], [2, 2], [0, 0]), ([3, 2], [2, 1], [1, 1]), ([6, 6], [1, 1], [1, 1])],
)
def test_max_pool2d_with_index(ksize, strides, paddings):
    each = windows(X, ksize, strides, paddings)
    check(
        "max_pool2d_with_index",
        {"X": X},
        {"ksize": ksize, "strides": strides, "paddings": paddings},
        expect={
            "Out": pool(X, each, "max").astype("float32"),
            "Mask": pool(X, each, "argmax").astype("int32"),
        },
    )


@pytest.mark.parametrize("ksize", [[4, 3], [3, 7], [2, 1]])
def test_adaptive_max_pool2d_with_index(ksize):
    each = [adaptive_regions(n, k) for n, k in zip(X.shape[2:], ksize)]
    check(
        "max_pool2d_with_index",
        {"X": X},
        {"ksize": ksize, "adaptive": True},
        expect={
            "Out": pool(X, each, "max").astype("float32"),
            "Mask": pool(X, each, "argmax").astype("int32"),
        },
    )


@pytest.mark.parametrize("attrs", [{"ksize": [2, 2], "adaptive": True}, {"ksize": [2, 1], "strides": [1, 2]}])
def test_max_pool2d_with_index_gradient(attrs):
    check(
        "max_pool2d_with_index",
        {"X": X[:1, :1, :3, :3]},
        attrs,
        expect={"Out": None, "Mask": None},
        grad=("X",),
    )


@pytest.mark.parametrize("attrs", [{"ksize": [2, 1, 2], "strides": [1, 2, 2]}, {"ksize": [2, 3, 5], "adaptive": True}])
def test_max_pool3d_with_index(attrs):
    each = (
        [adaptive_regions(n, k) for n, k in zip(X3.shape[2:], attrs["ksize"])]
        if "adaptive" in attrs
        else windows(X3, attrs["ksize"], attrs["strides"], [0, 0, 0])
    )
    check(
        "max_pool3d_with_index",
        {"X": X3},
        attrs,
        expect={
            "Out": pool(X3, each, "max").astype("float32"),
            "Mask": pool(X3, each, "argmax").astype("int32"),
        },
    )
    check(
        "max_pool3d_with_index",
        {"X": X3[:, :1, :2, :2, :2]},
        attrs | {"ksize": [2, 1, 2]},
        expect={"Out": None, "Mask": None},
        grad=("X",),
    )


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"pooling_type": "max", "ksize": [9, 2]}, "is larger than an input"),
        ({"pooling_type": "max", "ksize": [2]}, "ksize needs 2"),
        ({"pooling_type": "sum", "ksize": [2, 2]}, "expected max or avg"),
    ],
)
def test_wrong_attributes_raise(attrs, message):
    with pytest.raises(errors.ProgramError, match=message):
        check("pool2d", {"X": X}, attrs, expect={"Out": None})
