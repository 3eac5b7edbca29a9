"""Models of dense arrays as ONNX."""

from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from jfluid import errors
from jfluid.exports import onnx_arrays, onnx_layers  # noqa: F401  they register what converts
from jfluid.exports.model import LoadedModel, check_exportable, compare
from jfluid.exports.onnx_graph import CONVERTERS, Graph, Node, tensor_type

_OPSET, _IR_VERSION = 18, 9  # what runtimes of 2023 read


def to_onnx(model: LoadedModel) -> tuple[bytes, float]:
    """Return (the bytes of an ONNX model, the largest difference found when onnx's reference runs it).

    Raises UnsupportedError, with all operators that there is nothing for, and as `compare` does.
    """
    check_exportable(model, "onnx")
    ragged = [var.name for var in model.feeds if var.lod_level]
    if ragged:
        raise errors.UnsupportedError(
            f"onnx: {', '.join(ragged)} are sequences of different lengths (LoD), which ONNX does not have; "
            "--to jax and --to stablehlo export the padded form (--longest N)"
        )
    ops = model.operators()
    unknown = sorted({op.type for op in ops} - set(CONVERTERS))
    if unknown:
        raise errors.UnsupportedError(
            f"onnx: there is nothing for operators {', '.join(unknown)}; export with --to stablehlo or --to jax"
        )
    graph = Graph(model)
    for op in ops:
        CONVERTERS[op.type](graph, Node(op))
    proto = _model(graph)
    onnx.checker.check_model(proto, full_check=True)
    session = ReferenceEvaluator(proto)
    return proto.SerializeToString(), compare(model, lambda feed: list(session.run(None, feed)))


def _model(graph: Graph) -> Any:
    model = graph.model
    used = {name for node in graph.nodes for name in node.input}
    feeds, made = {var.name for var in model.feeds}, {n for o in graph.nodes for n in o.output}
    for name in sorted(used - feeds - made - set(graph.constants)):
        value = model.parameter(name)
        if value is not None:
            graph.constants[name] = numpy_helper.from_array(value, name)
    inputs = [_value(var, f"{var.name}_") for var in model.feeds]
    outputs = [_value(var, f"{var.name}_") for var in model.fetches]
    body = helper.make_graph(graph.nodes, "model", inputs, outputs, initializer=list(graph.constants.values()))
    return helper.make_model(
        body,
        producer_name="jfluid",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )


def _value(var: Any, prefix: str) -> Any:
    sizes: list[int | str] = [
        size if size >= 0 else f"{prefix}{i}" if i else "batch" for i, size in enumerate(var.shape)
    ]
    return helper.make_tensor_value_info(var.name, tensor_type(var.np_dtype), sizes)
