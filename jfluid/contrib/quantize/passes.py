"""Passes over graphs that train with simulated quantization (`fluid.contrib.slim.quantization`).

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", 2018.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from jfluid import errors
from jfluid.contrib.quantize.fake_quantize import ScopeQuantizer
from jfluid.ir.block import Block
from jfluid.ir.graph import IrGraph
from jfluid.ir.operator import Operator
from jfluid.scope import Scope

__all__ = [
    "AddQuantDequantPass",
    "OutScaleForInferencePass",
    "OutScaleForTrainingPass",
    "QuantizationTransformPass",
]

WITH_WEIGHT, WITHOUT_WEIGHT = "qat_with_weight", "qat_without_weight"  # quantization_type
CONVOLUTIONS = ("conv2d", "depthwise_conv2d")
_PRODUCTS = (*CONVOLUTIONS, "mul", "matmul")
_KINDS = ("abs_max", "channel_wise_abs_max", "range_abs_max", "moving_average_abs_max")
_TWO = frozenset(
    "mul matmul elementwise_add elementwise_sub elementwise_mul equal not_equal greater_equal "
    "greater_than less_equal less_than".split()
)
_OBSERVED = frozenset(
    "conv2d depthwise_conv2d mul matmul relu leaky_relu relu6 sigmoid tanh prelu swish softmax "
    "batch_norm elementwise_add pool2d reshape2 transpose2 concat elementwise_mul scale".split()
)


def tensors_read(op: Operator) -> list[str]:
    """Return the names of an operator's input tensors, without tensors that only hold options."""
    if op.type in CONVOLUTIONS:
        slots = ["Input", "Filter"]
    elif op.type == "slice":
        slots = ["Input"]
    else:
        slots = ["X", "Y"] if op.type in _TWO else ["X"]
    return [name for slot in slots for name in op.input(slot)]


def result_of(op: Operator) -> str:
    """Return the name of an operator's result."""
    slots = {"conv2d": "Output", "depthwise_conv2d": "Output", "batch_norm": "Y"}
    return op.output(slots.get(op.type, "Out"))[0]


def all_activations(block: Block, op: Operator) -> bool:
    """Return True if an operator reads no weights."""
    return not any(block.var_recursive(name).persistable for name in tensors_read(op))


def checked(graph: IrGraph, what: str) -> Block:
    """Return the block of a graph. Raises TypeError unless it is an IrGraph."""
    if not isinstance(graph, IrGraph):
        raise TypeError(f"{what}.apply: expected an IrGraph, found {type(graph).__name__}")
    return graph.program.global_block()


def _is_skipped(op: Operator, patterns: str | Sequence[str]) -> bool:
    """Return True if an operator was made in a name scope that the user leaves out."""
    scope = op.attrs.get("op_namescope", "")
    return any(p in scope for p in ([patterns] if isinstance(patterns, str) else patterns))


class QuantizationTransformPass:
    """Pass that rounds the inputs of convolutions and products to quantized values.

    Gradients are those of the rounded inputs, and move the inputs themselves. Apply it to a graph for
    training and to one for tests, then train: scales are shared by the scope.

    Args:
        scope, place: where new state is made.
        weight_bits, activation_bits: how many bits integers have.
        activation_quantize_type: where scales of activations come from: "abs_max" (of each step),
            "range_abs_max" (of the last `window_size` steps) or "moving_average_abs_max".
        weight_quantize_type: the same of weights; or "channel_wise_abs_max", a scale for each filter.
        window_size, moving_rate: of the kinds above.
        skip_pattern: names of `name_scope`s whose operators are left as they are.
        quantizable_op_type: what is quantized: conv2d, depthwise_conv2d, mul, matmul.
        weight_quantize_func, act_quantize_func, weight_preprocess_func, act_preprocess_func,
            optimizer_func, executor: Fluid's rounding by functions of the user's; None.

    Raises ValueError for a different kind or operator, UnsupportedError for functions.
    """

    _supported_quantizable_op_type: ClassVar[list[str]] = list(_PRODUCTS)  # PaddleSlim reads it

    def __init__(
        self,
        scope: Scope | None = None,
        place: Any = None,
        weight_bits: int = 8,
        activation_bits: int = 8,
        activation_quantize_type: str = "abs_max",
        weight_quantize_type: str = "abs_max",
        window_size: int = 10000,
        moving_rate: float = 0.9,
        skip_pattern: str | Sequence[str] = ("skip_quant",),
        quantizable_op_type: Sequence[str] = ("conv2d", "depthwise_conv2d", "mul"),
        weight_quantize_func: None = None,
        act_quantize_func: None = None,
        weight_preprocess_func: None = None,
        act_preprocess_func: None = None,
        optimizer_func: None = None,
        executor: None = None,
    ):
        functions = (weight_quantize_func, act_quantize_func, weight_preprocess_func)
        if any(f is not None for f in (*functions, act_preprocess_func, optimizer_func, executor)):
            raise errors.UnsupportedError(
                "QuantizationTransformPass: rounding by functions is not in this release: choose a kind "
                "by weight_quantize_type and activation_quantize_type"
            )
        for what, kind, known in (
            ("weight_quantize_type", weight_quantize_type, _KINDS),
            ("activation_quantize_type", activation_quantize_type, (_KINDS[0], *_KINDS[2:])),
        ):
            if kind not in known:
                raise ValueError(f"{what}: expected one of {', '.join(known)}, found {kind!r}")
        for op_type in quantizable_op_type:
            if op_type not in _PRODUCTS:
                raise ValueError(f"quantizable_op_type: expected some of {', '.join(_PRODUCTS)}, found {op_type!r}")
        self._scope, self._place = scope, place
        self._bits = (weight_bits, activation_bits)
        self._kinds = (weight_quantize_type, activation_quantize_type)
        self._window_size, self._moving_rate = window_size, moving_rate
        self._skip_pattern, self._types = skip_pattern, tuple(quantizable_op_type)

    def apply(self, graph: IrGraph) -> IrGraph:
        """Rewrite a graph in place, and return the graph. Raises TypeError unless it is an IrGraph."""
        block = checked(graph, "QuantizationTransformPass")
        insert = ScopeQuantizer(
            block=block,
            scope=_needed(self._scope, "QuantizationTransformPass"),
            place=self._place,
            test=graph.is_test(),
            moving_rate=self._moving_rate,
            window_size=self._window_size,
        )
        if "range_abs_max" in self._kinds and not graph.is_test():
            insert.count_steps()
        gradients = [f"{t}_grad" for t in self._types]
        for op in block.ops:
            if op.type in (*self._types, *gradients) and _is_skipped(op, self._skip_pattern):
                op.set_attr("skip_quant", True)
        rounded: dict[str, str] = {}
        for op in list(block.ops):
            if op.type in self._types and not self._is_left(block, op):
                op.set_attr("quantization_type", WITH_WEIGHT)
                self._round(insert, op, rounded)
        for op in block.ops:
            if op.type in gradients:
                _read(op, op.input_arg_names, rounded)
        graph.program.verify("QuantizationTransformPass")
        return graph

    def _is_left(self, block: Block, op: Operator) -> bool:
        if op.attrs.get("skip_quant") or op.attrs.get("quantization_type") == WITHOUT_WEIGHT:
            return True
        return op.type in ("mul", "matmul") and all_activations(block, op)

    def _round(self, insert: ScopeQuantizer, op: Operator, rounded: dict[str, str]) -> None:
        for name in op.input_arg_names:
            if name not in rounded:
                var = insert.block.var_recursive(name)
                at = 0 if var.persistable else 1
                kind = self._kinds[at]
                if kind == "channel_wise_abs_max" and op.type not in CONVOLUTIONS:
                    kind = "abs_max"
                index = insert.block.ops.index(op)
                rounded[name] = insert.quantized(index, var, self._bits[at], kind).name
        _read(op, op.input_arg_names, rounded)


def _read(op: Operator, names: Sequence[str], renamed: dict[str, str]) -> None:
    """Let an operator read other variables."""
    for name in dict.fromkeys(names):
        if name in renamed:
            op.rename_input(name, renamed[name])


def _needed(scope: Scope | None, what: str) -> Scope:
    if scope is None:
        raise ValueError(f"{what}, scope: expected a Scope, such as fluid.global_scope()")
    return scope


class AddQuantDequantPass:
    """Rounds the inputs of operators without weights, such as pooling and sums.

    Args:
        scope, place: where new state is made.
        moving_rate: how much of its sums the scales' average keeps from step to step.
        quant_bits: how many bits integers have.
        skip_pattern: names of `name_scope`s whose operators are left as they are.
        quantizable_op_type: the types of operators.
        is_full_quantized: True for all that there are.

    Raises ValueError for another operator, and without a scope.
    """

    # PaddleSlim reads both lists, and joins the first to that of QuantizationTransformPass
    _supported_quantizable_op_type: ClassVar[list[str]] = (
        "pool2d elementwise_add concat softmax argmax transpose equal gather greater_equal greater_than "
        "less_equal less_than mean not_equal reshape reshape2 bilinear_interp nearest_interp "
        "trilinear_interp slice squeeze elementwise_sub mul matmul relu relu6 leaky_relu tanh "
        "swish".split()
    )
    _activation_type: ClassVar[list[str]] = ["relu", "relu6", "leaky_relu", "tanh", "swish"]

    def __init__(
        self,
        scope: Scope | None = None,
        place: Any = None,
        moving_rate: float = 0.9,
        quant_bits: int = 8,
        skip_pattern: str | Sequence[str] = ("skip_quant",),
        quantizable_op_type: Sequence[str] = ("elementwise_add", "pool2d"),
        is_full_quantized: bool = False,
    ):
        known = self._supported_quantizable_op_type
        wrong = [t for t in quantizable_op_type if t not in known]
        if wrong and not is_full_quantized:
            raise ValueError(f"quantizable_op_type: expected some of {', '.join(known)}, found {wrong}")
        self._types = tuple(known if is_full_quantized else quantizable_op_type)
        self._scope, self._place = _needed(scope, "AddQuantDequantPass"), place
        self._moving_rate, self._bits, self._skip_pattern = moving_rate, quant_bits, skip_pattern

    def apply(self, graph: IrGraph) -> IrGraph:
        """Rewrite a graph in place, and return the graph. Raises TypeError unless it is an IrGraph."""
        block = checked(graph, "AddQuantDequantPass")
        insert = ScopeQuantizer(
            block=block, scope=self._scope, place=self._place, test=graph.is_test(), moving_rate=self._moving_rate
        )
        rounded: dict[str, str] = {}
        for op in list(block.ops):
            if (
                op.type not in self._types
                or _is_skipped(op, self._skip_pattern)
                or op.attrs.get("quantization_type") == WITH_WEIGHT
                or not all_activations(block, op)
            ):
                continue
            op.set_attr("quantization_type", WITHOUT_WEIGHT)
            op.set_attr("activation_bits", self._bits)
            for name in dict.fromkeys(tensors_read(op)):
                if name not in rounded:
                    index, var = block.ops.index(op), block.var_recursive(name)
                    rounded[name] = insert.rounded(index, var, self._bits).name
            _read(op, tensors_read(op), rounded)
        for op in block.ops:
            if op.type.removesuffix("_grad") in self._types and op.type.endswith("_grad"):
                _read(op, op.input_arg_names, rounded)
        graph.program.verify("AddQuantDequantPass")
        return graph


class OutScaleForTrainingPass:
    """Keeps a moving average of the largest |x| of the results of common operators.

    Args:
        scope, place: where new state is made.
        moving_rate: how much of its sums an average keeps from step to step.
    """

    def __init__(self, scope: Scope | None = None, place: Any = None, moving_rate: float = 0.9):
        self._scope, self._place, self._moving_rate = scope, place, moving_rate

    def apply(self, graph: IrGraph) -> IrGraph:
        """Rewrite a graph in place, and return the graph. Raises TypeError unless it is an IrGraph."""
        block = checked(graph, "OutScaleForTrainingPass")
        scope = _needed(self._scope, "OutScaleForTrainingPass")
        insert = ScopeQuantizer(
            block=block, scope=scope, place=self._place, test=graph.is_test(), moving_rate=self._moving_rate
        )
        for op in [op for op in block.ops if op.type in _OBSERVED]:
            insert.observed(block.ops.index(op) + 1, block.var_recursive(result_of(op)))
        graph.program.verify("OutScaleForTrainingPass")
        return graph


class OutScaleForInferencePass:
    """Writes the averages of `OutScaleForTrainingPass` to the operators, as attribute `out_threshold`.

    Args:
        scope: with the averages.
    """

    def __init__(self, scope: Scope | None = None):
        self._scope = scope

    def apply(self, graph: IrGraph) -> IrGraph:
        """Change a graph in place, and return the graph. Raises TypeError unless it is an IrGraph."""
        block = checked(graph, "OutScaleForInferencePass")
        scope = _needed(self._scope, "OutScaleForInferencePass")
        for op in block.ops:
            if op.type in _OBSERVED:
                found = scope.find_var(f"{result_of(op)}@scale")
                if found is None:
                    raise errors.ProgramError(
                        f"OutScaleForInferencePass: the scope has no {result_of(op)}@scale: apply "
                        "OutScaleForTrainingPass before the training"
                    )
                op.set_attr("out_threshold", float(np.array(found.get_tensor()).ravel()[0]))
        return graph
