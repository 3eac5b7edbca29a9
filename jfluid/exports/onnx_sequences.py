"""Operators of sequences as nodes of ONNX, which has arrays alone.

A variable of sequences is an array of rows `[batch * longest, ...]`: the padded rows of all sequences, one sequence
after the other. So operators that work row by row have the nodes that they have for dense variables. Operators of this
module read the padded form `[batch, longest, ...]` and the lengths `[batch]`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from jfluid.exports.onnx_graph import CONVERTERS, ConvertedOp, OnnxBuilder, tensor_type
from jfluid.ops import registry
from jfluid.ops.ragged import Level, Ragged

Converter = Callable[[OnnxBuilder, ConvertedOp], None]
SEQUENCES: dict[str, Converter] = {}
# Operators of a "mask" rule whose converters refuse to read other rows.
_BY_ROW = ("batch_norm", "sync_batch_norm")


def reads_sequences(*types: str) -> Callable[[Converter], Converter]:
    """Register the converter of operators that read whole sequences."""

    def register(converter: Converter) -> Converter:
        SEQUENCES.update(dict.fromkeys(types, converter))
        return converter

    return register


def convert(graph: OnnxBuilder, node: ConvertedOp) -> None:
    """Add the nodes of an operator. Raises UnsupportedError if the operator has no form for sequences."""
    given = [name for name in node.op.input_arg_names if name in graph.sequences]
    if node.type in SEQUENCES:
        SEQUENCES[node.type](graph, node)
        return
    CONVERTERS[node.type](graph, node)
    if not given:
        return
    if not _by_row(graph, node):
        raise node.refuse("of sequences, it does not work row by row, and ONNX has no form for that")
    feeds = {graph.sequences[name] for name in given}
    if len(feeds) > 1:
        raise node.refuse(f"it combines sequences of the inputs {', '.join(sorted(feeds))}: lengths may differ")
    graph.sequences.update(dict.fromkeys(node.op.output_arg_names, feeds.pop()))


def _by_row(graph: OnnxBuilder, node: ConvertedOp) -> bool:
    """Return True if row i of the operator's result depends on row i of the sequences alone."""

    def stand_in(name: str) -> Any:
        shape = [abs(size) for size in graph.shape(name)]
        if name not in graph.sequences:
            return np.broadcast_to(np.zeros((), graph.dtype(name)), shape)
        return Ragged(np.zeros([2, *shape[1:]], graph.dtype(name)), (Level(None, 2, 1),))

    rule = registry.get(node.type).rows
    if callable(rule):
        inputs: dict[str, Any] = {}
        for slot in node.op.inputs:
            found = [stand_in(name) for name in node.names(slot)]
            inputs[slot] = found[0] if len(found) == 1 else found or None
        rule = rule(node.op.attrs, inputs)
    return rule == "map" or (rule == "mask" and node.type in _BY_ROW)


def _sequences(graph: OnnxBuilder, node: ConvertedOp, slot: str = "X") -> tuple[str, str]:
    """Return an input in padded form, and the feed that has the lengths. Raises UnsupportedError for dense inputs."""
    name = node.input(slot)
    if name not in graph.sequences:
        raise node.refuse(f"its input {slot} is dense")
    return graph.padded(name), graph.sequences[name]


def _give(graph: OnnxBuilder, padded: str, feed: str, output: str) -> None:
    """Make a padded array the sequences of an output."""
    graph.add("Reshape", [padded, graph.constant([-1, *graph.row_shape(output)])], output)
    graph.sequences[output] = feed


def _zero_behind(graph: OnnxBuilder, padded: str, feed: str, name: str, value: float = 0.0) -> str:
    """Return a padded array with `value` behind each sequence."""
    return graph.add("Where", [graph.mask(feed, graph.rank(name) + 1), padded, graph.like(name, value)])


@reads_sequences("sequence_pool")
def sequence_pool(graph: OnnxBuilder, node: ConvertedOp) -> None:
    name, kind, rank = node.input(), node["pooltype"], graph.rank(node.input())
    padded, feed = _sequences(graph, node)
    time = graph.constant([1])
    lengths = graph.lengths(feed, rank)
    if kind == "MAX":
        lowest = float(np.finfo(graph.dtype(name)).min)
        found = graph.add("ReduceMax", [_zero_behind(graph, padded, feed, name, lowest), time], keepdims=0)
    elif kind in ("FIRST", "LAST"):
        last = kind == "LAST"
        place = graph.add("Sub", [graph.lengths(feed, 2), graph.constant(1)]) if last else graph.constant([[0]])
        here = graph.add("Equal", [graph.places(feed), place])
        here = graph.add("Unsqueeze", [here, graph.constant(list(range(2, rank + 1)))]) if rank > 1 else here
        chosen = graph.add("Where", [here, padded, graph.like(name, 0)])
        found = graph.add("ReduceSum", [chosen, time], keepdims=0)
    else:
        found = graph.add("ReduceSum", [_zero_behind(graph, padded, feed, name), time], keepdims=0)
        if kind != "SUM":
            count = graph.add(
                "Cast", [graph.add("Max", [lengths, graph.constant(1)])], to=tensor_type(graph.dtype(name))
            )
            found = graph.add("Div", [found, graph.add("Sqrt", [count]) if kind == "SQRT" else count])
    filled = graph.add("Greater", [lengths, graph.constant(0)])
    graph.add("Where", [filled, found, graph.like(name, node["pad_value"])], node.output())


@reads_sequences("sequence_softmax")
def sequence_softmax(graph: OnnxBuilder, node: ConvertedOp) -> None:
    padded, feed = _sequences(graph, node)
    lowest = float(np.finfo(graph.dtype(node.input())).min)
    real = _zero_behind(graph, padded, feed, node.input(), lowest)
    _give(graph, graph.add("Softmax", [real], axis=1), feed, node.output())


@reads_sequences("sequence_expand", "sequence_expand_as")
def sequence_expand(graph: OnnxBuilder, node: ConvertedOp) -> None:
    x, (_, feed) = node.input(), _sequences(graph, node, "Y")
    if x in graph.sequences:
        raise node.refuse("its input X is of sequences")
    shape = graph.add("Concat", [graph.size(feed), graph.constant([1] * (graph.rank(x) - 1))], axis=0)
    _give(graph, graph.add("Expand", [graph.add("Unsqueeze", [x, graph.constant([1])]), shape]), feed, node.output())


@reads_sequences("sequence_reverse")
def sequence_reverse(graph: OnnxBuilder, node: ConvertedOp) -> None:
    padded, feed = _sequences(graph, node)
    _give(graph, _reversed(graph, padded, feed), feed, node.output("Y"))


def _reversed(graph: OnnxBuilder, padded: str, feed: str, time: int = 1) -> str:
    """Return a padded array with the rows of each sequence in the other order."""
    return graph.add("ReverseSequence", [padded, graph.lengths(feed, 1)], time_axis=time, batch_axis=1 - time)


@reads_sequences("sequence_conv")
def sequence_conv(graph: OnnxBuilder, node: ConvertedOp) -> None:
    node.without(contextStride=1, paddingTrainable=False)
    padded, feed = _sequences(graph, node)
    rows = _zero_behind(graph, padded, feed, node.input())
    first, count = node["contextStart"], node["contextLength"]
    before, behind = max(-first, 0), max(first + count - 1, 0)
    wide = graph.add("Pad", [rows, graph.constant([0, before, 0, 0, behind, 0]), graph.like(node.input(), 0)])
    longest = graph.add("Slice", [graph.size(feed), graph.constant([1]), graph.constant([2])])
    shifted = []
    for begin in range(before + first, before + first + count):
        end = graph.add("Add", [longest, graph.constant([begin])])
        shifted.append(graph.add("Slice", [wide, graph.constant([begin]), end, graph.constant([1])]))
    product = graph.add("MatMul", [graph.add("Concat", shifted, axis=2), node.input("Filter")])
    _give(graph, product, feed, node.output())


@reads_sequences("lstm")
def lstm(graph: OnnxBuilder, node: ConvertedOp) -> None:
    if graph.is_read(node.output("Cell")):
        raise node.refuse("its output Cell is read, which ONNX gives for the last step only")
    weight, bias = (graph.value(node.input(slot)) for slot in ("Weight", "Bias"))
    width = weight.shape[0]
    order = [1, 3, 2, 0]  # of candidate, input, forget, output: ONNX has input, output, forget, candidate
    gates, each = np.eye(4 * width).reshape(4, width, 4 * width), bias.reshape(-1, width)
    peepholes = each[[4, 6, 5]] if node["use_peepholes"] else np.zeros((3, width))
    states = [graph.add("Unsqueeze", [node.input(s), graph.constant([0])]) if node.has(s) else "" for s in ("H0", "C0")]
    arrays = [
        gates[order].reshape(1, 4 * width, -1),
        weight.T.reshape(4, width, width)[order].reshape(1, 4 * width, width),
        np.concatenate([each[:4][order].reshape(1, -1), np.zeros((1, 4 * width))], axis=1),
    ]
    _recurrent(graph, node, "LSTM", arrays, [*states, peepholes.reshape(1, -1)])


@reads_sequences("gru")
def gru(graph: OnnxBuilder, node: ConvertedOp) -> None:
    weight = graph.value(node.input("Weight"))
    width = weight.shape[0]
    flat = weight.reshape(-1)
    gates = flat[: 2 * width * width].reshape(width, 2, width).transpose(1, 2, 0)
    recurrent = np.concatenate([gates, flat[2 * width * width :].reshape(1, width, width).transpose(0, 2, 1)])
    bias = graph.value(node.input("Bias")).reshape(3, width) if node.has("Bias") else np.zeros((3, width))
    given = np.eye(3 * width).reshape(3, width, 3 * width)
    if not node["origin_mode"]:  # ONNX keeps the update gate's part of the old state, Fluid the rest of it
        sign = np.array([-1.0, 1.0, 1.0])[:, None]  # sigmoid(-x) = 1 - sigmoid(x)
        given, recurrent, bias = given * sign[..., None], recurrent * sign[..., None], bias * sign
    state = graph.add("Unsqueeze", [node.input("H0"), graph.constant([0])]) if node.has("H0") else ""
    arrays = [
        given.reshape(1, 3 * width, -1),
        recurrent.reshape(1, 3 * width, width),
        np.concatenate([bias.reshape(1, -1), np.zeros((1, 3 * width))], axis=1),
    ]
    _recurrent(graph, node, "GRU", arrays, [state])


def _recurrent(graph: OnnxBuilder, node: ConvertedOp, kind: str, arrays: list[np.ndarray], further: list[Any]) -> None:
    """Add a recurrent layer over projected inputs: `arrays` are its weights W, R and bias B."""
    tanh = {name: "tanh" for name in ("activation", "candidate_activation", "cell_activation") if node[name]}
    node.without(gate_activation="sigmoid", **tanh)  # onnx's reference, which checks an export, has no others
    padded, feed = _sequences(graph, node, "Input")
    dtype, width = graph.dtype(node.input("Input")), arrays[1].shape[2]
    rows = graph.add("Transpose", [padded], perm=[1, 0, 2])
    rows = _reversed(graph, rows, feed, time=0) if node["is_reverse"] else rows
    named = [name if isinstance(name, str) else graph.constant(name, dtype) for name in further]
    inputs = [rows, *(graph.constant(array, dtype) for array in arrays), "", *named]
    found = graph.add(kind, inputs, hidden_size=width)
    hidden = graph.add("Squeeze", [found, graph.constant([1])])
    hidden = _reversed(graph, hidden, feed, time=0) if node["is_reverse"] else hidden
    _give(graph, graph.add("Transpose", [hidden], perm=[1, 0, 2]), feed, node.output("Hidden"))
