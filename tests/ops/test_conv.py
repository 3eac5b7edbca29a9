"""Convolutions and transposed convolutions."""

import numpy as np
import pytest

from jfluid import errors
from tests import op_case
from tests.windows_reference import convolve, convolve_transpose


def array(*shape):
    return np.random.RandomState(sum(shape)).uniform(-1, 1, shape).astype("float32")


def check(*args, **options):
    return op_case.check(*args, rows=("Input",), **options)


X, X3 = array(2, 4, 5, 6), array(1, 2, 3, 3, 2)
GRAD = ("Input", "Filter")


@pytest.mark.parametrize(
    ("attrs", "filters"),
    [
        ({}, (3, 4, 3, 2)),
        ({"strides": [2, 1], "paddings": [1, 2]}, (2, 4, 3, 3)),
        ({"paddings": [1, 0, 2, 1]}, (2, 4, 2, 3)),
        ({"dilations": [2, 1], "paddings": [2, 0]}, (2, 4, 2, 2)),
        ({"groups": 2}, (4, 2, 2, 2)),
    ],
)
def test_conv2d(attrs, filters):
    w = array(*filters)
    expected = convolve(
        X,
        w,
        attrs.get("strides", [1, 1]),
        attrs.get("paddings", [0, 0]),
        attrs.get("dilations"),
        attrs.get("groups", 1),
    )
    check("conv2d", {"Input": X, "Filter": w}, attrs, expect={"Output": expected.astype("float32")})


@pytest.mark.parametrize("attrs", [{"strides": [2, 1], "paddings": [1, 0, 0, 1]}, {"dilations": [2, 1], "groups": 2}])
def test_conv2d_gradient(attrs):
    x, w = array(1, 2, 4, 3), array(2, 2 // attrs.get("groups", 1), 2, 2)
    expected = convolve(
        x,
        w,
        attrs.get("strides", [1, 1]),
        attrs.get("paddings", [0, 0]),
        attrs.get("dilations"),
        attrs.get("groups", 1),
    )
    check(
        "conv2d",
        {"Input": x, "Filter": w},
        attrs,
        expect={"Output": expected.astype("float32")},
        grad=GRAD,
    )


@pytest.mark.parametrize("attrs", [{"padding_algorithm": "SAME", "strides": [2, 2]}, {"data_format": "NHWC"}])
def test_conv2d_gradient_of_other_forms(attrs):
    last = "data_format" in attrs
    x, w = array(1, 2, 4, 3), array(2, 2, 3, 2)
    expected = convolve(x, w, attrs.get("strides", [1, 1]), [0, 0] if last else [0, 1, 0, 1]).astype("float32")
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    check(
        "conv2d",
        {"Input": x.transpose(order), "Filter": w},
        attrs,
        expect={"Output": expected.transpose(order)},
        grad=GRAD,
    )


def test_padding_algorithms():
    w = array(2, 4, 3, 3)
    # SAME: the output is the input divided by the stride, rounded up; the dilation is not used.
    check(
        "conv2d",
        {"Input": X, "Filter": w},
        {"padding_algorithm": "SAME", "strides": [2, 2], "dilations": [2, 2]},
        expect={"Output": convolve(X, w, [2, 2], [1, 1, 0, 1]).astype("float32")},
    )
    check(
        "conv2d",
        {"Input": X, "Filter": w},
        {"padding_algorithm": "VALID", "paddings": [3, 3]},
        expect={"Output": convolve(X, w, [1, 1], [0, 0]).astype("float32")},
    )


def test_channels_last():
    w = array(3, 4, 3, 2)
    expected = convolve(X, w, [2, 1], [1, 0, 2, 1]).transpose(0, 2, 3, 1).astype("float32")
    check(
        "conv2d",
        {"Input": X.transpose(0, 2, 3, 1), "Filter": w},
        {"data_format": "NHWC", "strides": [2, 1], "paddings": [1, 0, 2, 1]},
        expect={"Output": expected},
    )


def test_bias_and_residual():
    w, bias, residual = array(3, 4, 2, 2), array(3), array(2, 3, 4, 5)
    expected = convolve(X, w, [1, 1], [0, 0]) + bias[:, None, None]
    check(
        "conv2d",
        {"Input": X, "Filter": w, "Bias": bias, "ResidualData": residual},
        expect={"Output": (expected + residual).astype("float32")},
    )
    check(
        "conv2d",
        {"Input": X.transpose(0, 2, 3, 1), "Filter": w, "Bias": bias},
        {"data_format": "NHWC"},
        expect={"Output": expected.transpose(0, 2, 3, 1).astype("float32")},
    )


@pytest.mark.parametrize(
    ("filters", "attrs"),
    [
        ((4, 1, 3, 3), {"paddings": [1, 1], "strides": [2, 1]}),
        ((8, 1, 2, 3), {"dilations": [2, 1], "paddings": [1, 0, 0, 1]}),
    ],
)
def test_depthwise_conv2d(filters, attrs):
    w = array(*filters)
    attrs = {"groups": 4, "strides": [1, 1], **attrs}
    expected = convolve(X, w, attrs["strides"], attrs["paddings"], attrs.get("dilations"), 4).astype("float32")
    check("depthwise_conv2d", {"Input": X, "Filter": w}, attrs, expect={"Output": expected})
    check(
        "conv2d",
        {"Input": X.transpose(0, 2, 3, 1), "Filter": w},
        attrs | {"data_format": "NHWC"},
        expect={"Output": expected.transpose(0, 2, 3, 1)},
    )


def test_depthwise_conv2d_gradient():
    x, w = array(1, 2, 4, 4), array(4, 1, 2, 2)
    check(
        "depthwise_conv2d",
        {"Input": x, "Filter": w},
        {"groups": 2, "strides": [2, 1], "paddings": [1, 0]},
        expect={"Output": convolve(x, w, [2, 1], [1, 0], groups=2).astype("float32")},
        grad=GRAD,
    )


@pytest.mark.parametrize(
    ("attrs", "filters"),
    [
        ({"paddings": [1, 0, 1], "strides": [1, 2, 1]}, (2, 2, 2, 2, 2)),
        ({"groups": 2}, (2, 1, 2, 2, 2)),
    ],
)
def test_conv3d(attrs, filters):
    w = array(*filters)
    expected = convolve(
        X3,
        w,
        attrs.get("strides", [1] * 3),
        attrs.get("paddings", [0] * 3),
        groups=attrs.get("groups", 1),
    ).astype("float32")
    check("conv3d", {"Input": X3, "Filter": w}, attrs, expect={"Output": expected}, grad=GRAD)
    check(
        "conv3d",
        {"Input": X3.transpose(0, 2, 3, 4, 1), "Filter": w},
        attrs | {"data_format": "NDHWC"},
        expect={"Output": expected.transpose(0, 2, 3, 4, 1)},
    )


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 2], "paddings": [1, 1]},
        {"strides": [2, 2], "paddings": [1, 1], "output_size": [10, 11]},
        {"strides": [2, 3], "paddings": [1, 0, 2, 1]},
        {"dilations": [2, 1], "strides": [1, 2]},
        {"groups": 2, "strides": [2, 1]},
    ],
)
def test_conv2d_transpose(attrs):
    w = array(4, 3, 3, 2)
    expected = convolve_transpose(
        X,
        w,
        attrs.get("strides", [1, 1]),
        attrs.get("paddings", [0, 0]),
        attrs.get("dilations"),
        attrs.get("groups", 1),
        attrs.get("output_size"),
    )
    expected = expected.astype("float32")
    check("conv2d_transpose", {"Input": X, "Filter": w}, attrs, expect={"Output": expected})
    check(
        "conv2d_transpose",
        {"Input": X.transpose(0, 2, 3, 1), "Filter": w},
        attrs | {"data_format": "NHWC"},
        expect={"Output": expected.transpose(0, 2, 3, 1)},
    )


def test_conv2d_transpose_gradient_and_bias():
    x, w, bias = array(1, 2, 3, 2), array(2, 2, 2, 2), array(2)
    expected = convolve_transpose(x, w, [2, 1], [1, 0]) + bias[:, None, None]
    check(
        "conv2d_transpose",
        {"Input": x, "Filter": w, "Bias": bias},
        {"strides": [2, 1], "paddings": [1, 0]},
        expect={"Output": expected.astype("float32")},
        grad=("Input", "Filter", "Bias"),
    )


@pytest.mark.parametrize(
    "attrs",
    [
        {"groups": 2, "strides": [2, 1], "output_size": [5, 3]},
        {"dilations": [2, 1], "strides": [1, 2], "data_format": "NHWC"},
    ],
)
def test_conv2d_transpose_gradient_of_other_forms(attrs):
    x, w = array(1, 2, 2, 2), array(2, 1, 2, 2)
    expected = convolve_transpose(
        x,
        w,
        attrs["strides"],
        [0, 0],
        attrs.get("dilations"),
        attrs.get("groups", 1),
        attrs.get("output_size"),
    ).astype("float32")
    order = (0, 2, 3, 1) if "data_format" in attrs else (0, 1, 2, 3)
    check(
        "conv2d_transpose",
        {"Input": x.transpose(order), "Filter": w},
        attrs,
        expect={"Output": expected.transpose(order)},
        grad=GRAD,
    )


def test_conv2d_transpose_padding_algorithms():
    w = array(4, 2, 3, 3)
    check(
        "conv2d_transpose",
        {"Input": X, "Filter": w},
        {"padding_algorithm": "VALID", "paddings": [1, 1]},
        expect={"Output": convolve_transpose(X, w, [1, 1], [0, 0]).astype("float32")},
    )
    # The padding that SAME gives a convolution of an input of this size: 5 -> 1, 1 and 6 -> 0, 1 at
    # stride 2.
    check(
        "conv2d_transpose",
        {"Input": X, "Filter": w},
        {"padding_algorithm": "SAME", "strides": [2, 2]},
        expect={"Output": convolve_transpose(X, w, [2, 2], [1, 1, 0, 1]).astype("float32")},
    )


def test_depthwise_conv2d_transpose():
    x, w = array(1, 2, 3, 3), array(2, 1, 3, 2)
    check(
        "depthwise_conv2d_transpose",
        {"Input": x, "Filter": w},
        {"groups": 2, "strides": [2, 2], "paddings": [1, 0]},
        expect={"Output": convolve_transpose(x, w, [2, 2], [1, 0], groups=2).astype("float32")},
        grad=GRAD,
    )


def test_conv3d_transpose():
    w = array(2, 1, 2, 2, 2)
    expected = convolve_transpose(X3, w, [1, 2, 2], [0, 1, 0], groups=2).astype("float32")
    check(
        "conv3d_transpose",
        {"Input": X3, "Filter": w},
        {"strides": [1, 2, 2], "paddings": [0, 1, 0], "groups": 2},
        expect={"Output": expected},
        grad=("Filter",),
    )
    check(
        "conv3d_transpose",
        {"Input": X3.transpose(0, 2, 3, 4, 1), "Filter": w},
        {"strides": [1, 2, 2], "paddings": [0, 1, 0], "groups": 2, "data_format": "NHWC"},
        expect={"Output": expected.transpose(0, 2, 3, 4, 1)},
    )


@pytest.mark.parametrize(
    ("op_type", "filters", "attrs", "message"),
    [
        ("conv2d", (2, 3, 3, 3), {}, "for 3 input channels, found 4"),
        ("conv2d", (2, 4, 3), {}, "same rank"),
        ("conv2d", (3, 2, 3, 3), {"groups": 2}, "3 filters cannot be divided into 2 groups"),
        ("conv2d", (2, 4, 6, 3), {}, "is larger than an input of"),
        ("conv2d", (2, 4, 3, 3), {"paddings": [1, 2, 3]}, "2 or 4 numbers"),
        ("conv2d", (2, 4, 3, 3), {"strides": [1]}, "strides needs 2 numbers"),
        ("conv2d_transpose", (4, 2, 3, 3), {"output_size": [9, 9]}, "output_size"),
        ("conv2d_transpose", (3, 2, 3, 3), {}, "for 3 input channels, found 4"),
        (
            "conv2d_transpose",
            (4, 2, 3, 3),
            {"groups": 3},
            "4 input channels cannot be divided into 3 groups",
        ),
    ],
)
def test_wrong_shapes_raise(op_type, filters, attrs, message):
    with pytest.raises(errors.ShapeError, match=message):
        check(op_type, {"Input": X, "Filter": array(*filters)}, attrs, expect={"Output": None})


@pytest.mark.parametrize("attrs", [{"padding_algorithm": "FULL"}, {"data_format": "CHWN"}])
def test_unknown_names_raise(attrs):
    with pytest.raises(errors.ProgramError, match=r"FULL|CHWN"):
        check("conv2d", {"Input": X, "Filter": array(2, 4, 3, 3)}, attrs, expect={"Output": None})


@pytest.mark.parametrize(
    ("attrs", "function"),
    [
        ({"fuse_activation": "relu"}, lambda y: np.maximum(y, 0)),
        ({"fuse_activation": "leaky_relu", "fuse_alpha": 0.5}, lambda y: np.maximum(y, y / 2)),
        ({"fuse_activation": "relu6", "fuse_alpha": 0.7}, lambda y: np.clip(y, 0, 0.7)),
        ({"fuse_activation": "swish", "fuse_alpha": 2.0}, lambda y: y / (1 + np.exp(-2 * y))),
    ],
)
def test_what_a_pass_has_fused_with_a_convolution(attrs, function):
    x, w = array(2, 3, 2, 2), array(4, 3, 1, 1)
    bias, residual = array(4), array(2, 4, 2, 2)
    y = np.einsum("nihw,oi->nohw", x, w[..., 0, 0]) + bias[:, None, None] + residual
    ins = {"Input": x, "Filter": w, "Bias": bias, "ResidualData": residual}
    attrs = {**attrs, "fuse_residual_connection": True}
    check("conv2d", ins, attrs, expect={"Output": function(y)})


def test_what_no_pass_fuses_is_refused():
    x, w = array(1, 1, 2, 2), array(1, 1, 1, 1)
    for attrs, message in (
        ({"fuse_activation": "tanh"}, "expected one of relu"),
        ({"fuse_residual_connection": True}, "ResidualData is missing"),
    ):
        with pytest.raises(errors.ShapeError, match=message):
            check("conv2d", {"Input": x, "Filter": w}, attrs, expect={"Output": x})
