"""Operators of arrays as nodes of ONNX: arithmetic, comparisons, reductions, shapes, look-ups."""

import numpy as np

from jfluid.exports.onnx_graph import ConvertedOp, OnnxBuilder, converts, tensor_type
from jfluid.ir.types import np_dtype

_PAIRS = {
    "elementwise_add": "Add", "elementwise_sub": "Sub", "elementwise_mul": "Mul", "elementwise_div": "Div",
    "elementwise_max": "Max", "elementwise_min": "Min", "elementwise_pow": "Pow",
    "less_than": "Less", "less_equal": "LessOrEqual", "greater_than": "Greater", "greater_equal": "GreaterOrEqual",
    "equal": "Equal", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
}  # fmt: skip


@converts(*_PAIRS)
def pairs(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, y = node.input("X"), node.input("Y")
    axis, behind = node["axis"], graph.rank(x) - graph.rank(y)
    if axis is not None and axis >= 0 and behind > axis:  # ONNX aligns the last dimensions only
        y = graph.add("Unsqueeze", [y, graph.constant(list(range(graph.rank(y), graph.rank(x) - axis)))])
    graph.add(_PAIRS[node.type], [x, y], node.output())


@converts("not_equal")
def not_equal(graph: OnnxBuilder, node: ConvertedOp) -> None:
    equal = graph.add("Equal", [node.input("X"), node.input("Y")])
    graph.add("Not", [equal], node.output())


@converts("sum")
def add_all(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Sum", node.names("X"), node.output())


_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}  # fmt: skip


@converts(*_REDUCTIONS)
def reductions(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, rank = node.input(), graph.rank(node.input())
    every = node["reduce_all"] or len(node["dim"]) >= rank
    dims = list(range(rank)) if every else list(node["dim"])
    inputs = [x, graph.constant(dims)]
    keep = int(node["keep_dim"])
    if every and not keep:  # Fluid's result has the shape [1]
        found = graph.add(_REDUCTIONS[node.type], inputs, keepdims=0)
        graph.add("Reshape", [found, graph.constant([1])], node.output())
    else:
        graph.add(_REDUCTIONS[node.type], inputs, node.output(), keepdims=keep)


@converts("mean")
def mean(graph: OnnxBuilder, node: ConvertedOp) -> None:
    dims = graph.constant(list(range(graph.rank(node.input()))))
    found = graph.add("ReduceMean", [node.input(), dims], keepdims=0)
    graph.add("Reshape", [found, graph.constant([1])], node.output())


@converts("reshape", "reshape2")
def reshape(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(Shape=None, ShapeTensor=None)
    graph.add("Reshape", [node.input(), graph.constant(list(node["shape"]))], node.output())


@converts("transpose", "transpose2")
def transpose(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Transpose", [node.input()], node.output(), perm=list(node["axis"]))


@converts("flatten", "flatten2")
def flatten(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Flatten", [node.input()], node.output(), axis=node["axis"])


@converts("squeeze", "squeeze2")
def squeeze(graph: OnnxBuilder, node: ConvertedOp) -> None:
    shape, axes = graph.shape(node.input()), list(node["axes"])
    axes = axes or [i for i, size in enumerate(shape) if size == 1]
    axes = [axis for axis in axes if shape[axis] == 1]  # Fluid leaves out those of other sizes
    graph.add("Squeeze", [node.input(), graph.constant(axes)], node.output())


@converts("unsqueeze", "unsqueeze2")
def unsqueeze(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(AxesTensor=None, AxesTensorList=None)
    x = node.input()
    for i, axis in enumerate(node["axes"]):
        last = i == len(node["axes"]) - 1
        x = graph.add("Unsqueeze", [x, graph.constant([axis])], node.output() if last else None)


@converts("concat")
def concat(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(AxisTensor=None)
    graph.add("Concat", node.names("X"), node.output(), axis=node["axis"])


@converts("stack")
def stack(graph: OnnxBuilder, node: ConvertedOp) -> None:
    axis = node["axis"]
    parts = [graph.add("Unsqueeze", [name, graph.constant([axis])]) for name in node.names("X")]
    graph.add("Concat", parts, node.output("Y"), axis=axis)


@converts("split")
def split(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(AxisTensor=None, SectionsTensorList=None)
    outputs = list(node.op.output("Out"))
    sections = list(node["sections"])
    if -1 in sections:
        whole = graph.shape(node.input())[node["axis"]]
        sections[sections.index(-1)] = whole - sum(s for s in sections if s > 0)
    sizes = [graph.constant(sections)] if sections else []
    count = {} if sections else {"num_outputs": len(outputs)}
    graph.add_several("Split", [node.input(), *sizes], outputs, axis=node["axis"], **count)


@converts("slice")
def slice_(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(StartsTensor=None, EndsTensor=None, StartsTensorList=None, EndsTensorList=None)
    parts = [graph.constant(list(node[name])) for name in ("starts", "ends", "axes")]
    dropped = list(node["decrease_axis"] or ())
    if not dropped:
        graph.add("Slice", [node.input("Input"), *parts], node.output())
        return
    found = graph.add("Slice", [node.input("Input"), *parts])
    if len(dropped) == graph.rank(node.input("Input")):
        graph.add("Reshape", [found, graph.constant([1])], node.output())
    else:
        graph.add("Squeeze", [found, graph.constant(dropped)], node.output())


@converts("expand")
def expand(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(ExpandTimes=None, expand_times_tensor=None)
    graph.add("Tile", [node.input(), graph.constant(list(node["expand_times"]))], node.output())


@converts("gather")
def gather(graph: OnnxBuilder, node: ConvertedOp) -> None:
    index = node.input("Index")
    if graph.rank(index) == 2:
        index = graph.add("Squeeze", [index, graph.constant([1])])
    graph.add("Gather", [node.input(), index], node.output(), axis=0)


@converts("lookup_table", "lookup_table_v2")
def lookup_table(graph: OnnxBuilder, node: ConvertedOp) -> None:
    ids, table = node.input("Ids"), node.input("W")
    if node.type == "lookup_table":  # ids [..., 1]
        ids = graph.add("Squeeze", [ids, graph.constant([-1])])
    if node["padding_idx"] == -1:
        graph.add("Gather", [table, ids], node.output(), axis=0)
        return
    rows = graph.add("Gather", [table, ids], axis=0)
    kept = graph.add("Not", [graph.add("Equal", [ids, graph.like(node.input("Ids"), node["padding_idx"])])])
    factor = graph.add("Cast", [kept], to=tensor_type(graph.dtype(table)))
    factor = graph.add("Unsqueeze", [factor, graph.constant([-1])])
    graph.add("Mul", [rows, factor], node.output())


@converts("cast")
def cast(graph: OnnxBuilder, node: ConvertedOp) -> None:
    graph.add("Cast", [node.input()], node.output(), to=tensor_type(np_dtype(node["out_dtype"])))


@converts("fill_constant")
def fill_constant(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(ValueTensor=None, ShapeTensor=None, ShapeTensorList=None)
    value = float(node["str_value"] or node["value"])
    made = graph.constant(np.full(list(node["shape"]), value), np_dtype(node["dtype"]))
    graph.add("Identity", [made], node.output())


@converts("shape")
def shape(graph: OnnxBuilder, node: ConvertedOp) -> None:
    found = graph.add("Shape", [node.input("Input")])
    graph.add("Cast", [found], node.output(), to=tensor_type(np.int32))


@converts("arg_max", "arg_min")
def arg_max(graph: OnnxBuilder, node: ConvertedOp) -> None:
    kind = "ArgMax" if node.type == "arg_max" else "ArgMin"
    graph.add(kind, [node.input()], node.output(), axis=node["axis"], keepdims=int(node["keepdims"] or 0))


@converts("top_k")
def top_k(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(K=None)
    outputs = [node.output("Out"), node.output("Indices")]
    graph.add_several("TopK", [node.input(), graph.constant([node["k"]])], outputs, axis=-1)


@converts("pad2d")
def pad2d(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(Paddings=None, data_format="NCHW")
    top, bottom, left, right = node["paddings"]
    pads = graph.constant([0, 0, top, left, 0, 0, bottom, right])
    fill = graph.like(node.input(), node["pad_value"])
    graph.add("Pad", [node.input(), pads, fill], node.output(), mode=node["mode"])
