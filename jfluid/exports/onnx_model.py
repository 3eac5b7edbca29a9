"""Models as ONNX; sequences in padded form."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from jfluid import errors
from jfluid.exports import onnx_arrays, onnx_layers  # noqa: F401  they register what converts
from jfluid.exports.model import LoadedModel, check_exportable, compare
from jfluid.exports.onnx_graph import CONVERTERS, PADDED, ConvertedOp, OnnxBuilder, tensor_type
from jfluid.exports.onnx_sequences import SEQUENCES, convert
from jfluid.exports.padded import LENGTHS, as_arguments, as_sequences, check_one_level
from jfluid.exports.sequences import Value

_OPSET, _IR_VERSION = 18, 9  # what runtimes of 2023 read
_LONGEST, _BEHIND = 5, 2  # rows of the longest sequence of a comparison, and of padding behind it


def to_onnx(model: LoadedModel) -> tuple[bytes, float]:
    """Return (the bytes of an ONNX model, the largest difference found when onnx's reference runs it).

    A feed `x` of sequences is two inputs: padded rows `x` [batch, longest, ...] and int32 lengths `x.lengths` [batch],
    for any batch and any length. A fetch of sequences is two outputs of these forms, with zeros behind each sequence.

    Raises UnsupportedError, with all operators that there is nothing for, and as `compare` does.
    """
    check_exportable(model, "onnx")
    check_one_level(model)
    ops = model.operators()
    unknown = sorted({op.type for op in ops} - set(CONVERTERS) - set(SEQUENCES))
    if unknown:
        raise errors.UnsupportedError(
            f"onnx: there is nothing for operators {', '.join(unknown)}; export with --to stablehlo or --to jax"
        )
    graph = OnnxBuilder(model)
    for op in ops:
        convert(graph, ConvertedOp(op))
    proto = _model(graph)
    onnx.checker.check_model(proto, full_check=True)
    session = ReferenceEvaluator(proto)

    def run(feed: dict[str, Value]) -> list[Value]:
        results = iter(session.run(None, as_arguments(feed, _LONGEST + _BEHIND)))
        ragged = (var.name in graph.sequences for var in model.fetches)
        return [as_sequences(next(results), next(results)) if is_ragged else next(results) for is_ragged in ragged]

    return proto.SerializeToString(), compare(model, run, longest=_LONGEST)


def _model(graph: OnnxBuilder) -> Any:
    """Return the model of a graph with all operators."""
    model = graph.model
    for var in model.fetches:
        if var.name in graph.sequences:
            feed = graph.sequences[var.name]
            rows = graph.padded(var.name)
            zero = graph.like(var.name, 0)
            graph.add("Where", [graph.mask(feed, graph.rank(var.name) + 1), rows, zero], var.name + PADDED)
            graph.add("Identity", [feed + LENGTHS], var.name + LENGTHS)
    for var in reversed(model.feeds):
        if var.lod_level:
            shape = graph.constant([-1, *graph.row_shape(var.name)])
            graph.nodes.insert(0, helper.make_node("Reshape", [var.name + PADDED, shape], [var.name]))
    _name_padded(graph)
    used = {name for node in graph.nodes for name in node.input}
    made = {name for node in graph.nodes for name in node.output}
    inputs, outputs = ([_value(*part) for part in _values(graph, vars_)] for vars_ in (model.feeds, model.fetches))
    for name in sorted(used - {found.name for found in inputs} - made - set(graph.constants)):
        value = model.parameter(name)
        if value is not None:
            graph.constants[name] = numpy_helper.from_array(value, name)
    body = helper.make_graph(graph.nodes, "model", inputs, outputs, initializer=list(graph.constants.values()))
    return helper.make_model(
        body,
        producer_name="jfluid",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )


def _name_padded(graph: OnnxBuilder) -> None:
    """Give the padded arrays of feeds and fetches the names of the variables, and other names to the rows."""
    names = [var.name for var in (*graph.model.feeds, *graph.model.fetches) if var.name in graph.sequences]
    renamed = {name: f"{name}.rows" for name in names} | {name + PADDED: name for name in names}
    for node in graph.nodes:
        for part in (node.input, node.output):
            part[:] = [renamed.get(name, name) for name in part]


def _values(graph: OnnxBuilder, variables: list[Any]) -> Iterator[tuple[str, Any, list[int | str]]]:
    """Yield name, element type and sizes of the inputs or outputs for variables."""
    for var in variables:
        sizes: list[int | str] = [
            size if size >= 0 else f"{var.name}_{i}" if i else "batch" for i, size in enumerate(var.shape)
        ]
        if var.name not in graph.sequences:
            yield var.name, var.np_dtype, sizes
            continue
        yield var.name, var.np_dtype, ["batch", f"{graph.sequences[var.name]}_longest", *sizes[1:]]
        yield var.name + LENGTHS, np.dtype("int32"), ["batch"]


def _value(name: str, dtype: Any, sizes: list[int | str]) -> Any:
    return helper.make_tensor_value_info(name, tensor_type(dtype), sizes)
