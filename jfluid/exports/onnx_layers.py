"""Operators of layers as nodes of ONNX: convolutions, pooling, products, normalisation, activations."""

import math

import numpy as np

from jfluid.exports.onnx_graph import ConvertedOp, OnnxBuilder, converts


@converts("conv2d", "depthwise_conv2d")
def conv2d(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(ResidualData=None, data_format="NCHW")
    x, w = node.input("Input"), node.input("Filter")
    inputs = [x, w] + ([node.input("Bias")] if node.has("Bias") else [])
    kernel = graph.shape(w)[2:]
    graph.add(
        "Conv",
        inputs,
        node.output("Output"),
        kernel_shape=kernel,
        strides=list(node["strides"]),
        dilations=list(node["dilations"]),
        group=node["groups"],
        **_padding(node),
    )


@converts("conv2d_transpose", "depthwise_conv2d_transpose")
def conv2d_transpose(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(data_format="NCHW", padding_algorithm="EXPLICIT")
    w = node.input("Filter")
    inputs = [node.input("Input"), w] + ([node.input("Bias")] if node.has("Bias") else [])
    extra = {"output_shape": list(node["output_size"])} if node["output_size"] else {}
    if extra:
        raise node.refuse("output_size is not converted")
    graph.add(
        "ConvTranspose",
        inputs,
        node.output("Output"),
        kernel_shape=graph.shape(w)[2:],
        strides=list(node["strides"]),
        dilations=list(node["dilations"]),
        group=node["groups"],
        **_padding(node),
    )


def _padding(node: ConvertedOp) -> dict[str, object]:
    """ONNX's attributes for paddings of one number a dimension, or of two."""
    algorithm = node["padding_algorithm"]
    if algorithm == "VALID":
        return {"pads": [0, 0, 0, 0]}
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    pads = list(node["paddings"])
    if len(pads) == 4:  # top, bottom, left, right
        return {"pads": [pads[0], pads[2], pads[1], pads[3]]}
    return {"pads": pads * 2}


@converts("pool2d")
def pool2d(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(data_format="NCHW")
    x, out, is_max = node.input(), node.output(), node["pooling_type"] == "max"
    if node["global_pooling"] or (node["adaptive"] and list(node["ksize"]) == [1, 1]):
        graph.add("GlobalMaxPool" if is_max else "GlobalAveragePool", [x], out)
        return
    node.without(adaptive=False)
    shared = {
        "kernel_shape": list(node["ksize"]),
        "strides": list(node["strides"]),
        "ceil_mode": int(node["ceil_mode"]),
        **_padding(node),
    }
    if is_max:
        graph.add("MaxPool", [x], out, **shared)
    else:
        graph.add("AveragePool", [x], out, count_include_pad=int(not node["exclusive"]), **shared)


@converts("batch_norm", "sync_batch_norm")
def batch_norm(graph: OnnxBuilder, node: ConvertedOp) -> None:
    if not (node["is_test"] or node["use_global_stats"]):
        raise node.refuse("it uses the statistics of the batch; save a program.clone(for_test=True)")
    node.without(data_layout="NCHW")
    inputs = [node.input(slot) for slot in ("X", "Scale", "Bias", "Mean", "Variance")]
    graph.add("BatchNormalization", inputs, node.output("Y"), epsilon=node["epsilon"])


@converts("layer_norm")
def layer_norm(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, axis = node.input(), node["begin_norm_axis"]
    shape = graph.shape(x)[axis:]
    if min(shape) < 0:
        raise node.refuse("the sizes that it normalises over are not fixed")
    dtype = graph.dtype(x)
    size = math.prod(shape)
    scale, bias = (
        graph.add("Reshape", [node.input(slot), graph.constant(shape)])
        if node.has(slot)
        else graph.constant(np.full(size, value).reshape(shape), dtype)
        for slot, value in (("Scale", 1.0), ("Bias", 0.0))
    )
    graph.add("LayerNormalization", [x, scale, bias], node.output("Y"), axis=axis, epsilon=node["epsilon"])


@converts("mul")
def mul(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, y = node.input("X"), node.input("Y")
    columns, rows = node["x_num_col_dims"], node["y_num_col_dims"]
    left = graph.add("Flatten", [x], axis=columns) if graph.rank(x) > 2 else x
    right = graph.add("Flatten", [y], axis=rows) if graph.rank(y) > 2 else y
    if columns == 1 and graph.rank(y) == 2:
        graph.add("MatMul", [left, right], node.output())
        return
    product = graph.add("MatMul", [left, right])
    shape_x, shape_y = graph.add("Shape", [x], end=columns), graph.add("Shape", [y], start=rows)
    graph.add("Reshape", [product, graph.add("Concat", [shape_x, shape_y], axis=0)], node.output())


@converts("matmul")
def matmul(graph: OnnxBuilder, node: ConvertedOp) -> None:
    sides = []
    for slot, attr in (("X", "transpose_X"), ("Y", "transpose_Y")):
        name = node.input(slot)
        if node[attr]:
            order = list(range(graph.rank(name)))
            order[-2:] = order[-1:-3:-1]
            name = graph.add("Transpose", [name], perm=order)
        sides.append(name)
    alpha = node["alpha"]
    if alpha == 1.0:
        graph.add("MatMul", sides, node.output())
    else:
        graph.add("Mul", [graph.add("MatMul", sides), graph.like(node.input(), alpha)], node.output())


@converts("dropout")
def dropout(graph: OnnxBuilder, node: ConvertedOp) -> None:
    if node["dropout_implementation"] == "upscale_in_train":
        graph.add("Identity", [node.input()], node.output())
    else:
        kept = graph.like(node.input(), 1.0 - node["dropout_prob"])
        graph.add("Mul", [node.input(), kept], node.output())


_PLAIN = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs",
    "floor": "Floor", "ceil": "Ceil", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "erf": "Erf",
    "softsign": "Softsign", "softplus": "Softplus", "sign": "Sign", "assign": "Identity", "logical_not": "Not",
    "acos": "Acos", "asin": "Asin", "atan": "Atan", "mish": "Mish",
}  # fmt: skip


@converts(*_PLAIN)
def plain(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add(_PLAIN[node.type], [node.input()], node.output())


@converts("relu6")
def relu6(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x = node.input()
    graph.add("Clip", [x, graph.like(x, 0), graph.like(x, node["threshold"])], node.output())


@converts("clip")
def clip(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(Min=None, Max=None)
    x = node.input()
    graph.add("Clip", [x, graph.like(x, node["min"]), graph.like(x, node["max"])], node.output())


@converts("leaky_relu")
def leaky_relu(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("LeakyRelu", [node.input()], node.output(), alpha=node["alpha"])


@converts("elu")
def elu(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Elu", [node.input()], node.output(), alpha=node["alpha"])


@converts("hard_sigmoid")
def hard_sigmoid(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("HardSigmoid", [node.input()], node.output(), alpha=node["slope"], beta=node["offset"])


@converts("hard_swish")
def hard_swish(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x = node.input()
    shifted = graph.add("Add", [x, graph.like(x, node["offset"])])
    cut = graph.add("Clip", [shifted, graph.like(x, 0), graph.like(x, node["threshold"])])
    graph.add("Div", [graph.add("Mul", [x, cut]), graph.like(x, node["scale"])], node.output())


@converts("swish")
def swish(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x = node.input()
    gate = graph.add("Sigmoid", [graph.add("Mul", [x, graph.like(x, node["beta"])])])
    graph.add("Mul", [x, gate], node.output())


@converts("gelu")
def gelu(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x = node.input()
    half = graph.add("Mul", [x, graph.like(x, 0.5)])
    if node["approximate"]:
        cube = graph.add("Mul", [graph.add("Mul", [x, x]), x])
        inner = graph.add("Add", [x, graph.add("Mul", [cube, graph.like(x, 0.044715)])])
        inner = graph.add("Mul", [inner, graph.like(x, math.sqrt(2 / math.pi))])
        bent = graph.add("Tanh", [inner])
    else:
        bent = graph.add("Erf", [graph.add("Mul", [x, graph.like(x, math.sqrt(0.5))])])
    graph.add("Mul", [half, graph.add("Add", [bent, graph.like(x, 1.0)])], node.output())


@converts("prelu")
def prelu(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, alpha = node.input(), node.input("Alpha")
    if node["mode"] == "channel":
        shape = [-1] + [1] * (graph.rank(x) - 2)
        alpha = graph.add("Reshape", [alpha, graph.constant(shape)])
    elif node["mode"] == "element":
        alpha = graph.add("Reshape", [alpha, graph.constant(graph.shape(x)[1:])])
    graph.add("PRelu", [x, alpha], node.output())


@converts("softmax")
def softmax(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Softmax", [node.input()], node.output(), axis=node["axis"])


@converts("square")
def square(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Mul", [node.input(), node.input()], node.output())


@converts("rsqrt")
def rsqrt(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Reciprocal", [graph.add("Sqrt", [node.input()])], node.output())


@converts("pow")
def power(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(FactorTensor=None)
    graph.add("Pow", [node.input(), graph.like(node.input(), node["factor"])], node.output())


@converts("scale")
def scale(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(ScaleTensor=None)
    x, factor, bias = node.input(), node["scale"], node["bias"]
    steps = [("Mul", factor)] if factor != 1 else []
    if bias:
        steps.insert(len(steps) if node["bias_after_scale"] else 0, ("Add", bias))
    if not steps:
        graph.add("Identity", [x], node.output())
    for i, (kind, value) in enumerate(steps):
        last = i == len(steps) - 1
        x = graph.add(kind, [x, graph.like(node.input(), value)], node.output() if last else None)
