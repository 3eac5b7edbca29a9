"""Passes for graphs after training with simulated quantization: integer products.

In Fluid the passes are part of `fluid.contrib.slim.quantization`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.contrib.quantize.fake_quantize import largest
from jfluid.contrib.quantize.passes import CONVOLUTIONS, WITH_WEIGHT, checked
from jfluid.contrib.quantize.transpiler import remove_unused
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.graph import IrGraph
from jfluid.ir.operator import Operator, OpRole
from jfluid.ir.types import VarType, np_dtype
from jfluid.scope import Scope

__all__ = ["ConvertToInt8Pass", "QuantizationFreezePass", "TransformForMobilePass"]

Array = np.ndarray[Any, Any]
_QUANTIZE = (
    "fake_quantize_abs_max",
    "fake_quantize_range_abs_max",
    "fake_quantize_moving_average_abs_max",
    "fake_channel_wise_quantize_abs_max",
)
_DEQUANTIZE = ("fake_dequantize_max_abs", "fake_channel_wise_dequantize_max_abs")


class QuantizationFreezePass:
    """Lets products compute with integers, which floats keep, and scales their results.

    Weights in the scope become integers.

    Args:
        scope: with the trained weights.
        place: where they are put.
        weight_bits, activation_bits: how many bits integers have.
        weight_quantize_type: where the scales of weights come from, as in the training.
        quantizable_op_type: has no effect, as in Fluid: all operators that training quantized are frozen.
    """

    def __init__(
        self,
        scope: Scope,
        place: Any,
        weight_bits: int = 8,
        activation_bits: int = 8,
        weight_quantize_type: str = "abs_max",
        quantizable_op_type: Sequence[str] | None = None,
    ):
        self._scope, self._place = scope, place
        self._bits, self._kind = (weight_bits, activation_bits), weight_quantize_type

    def apply(self, graph: IrGraph) -> IrGraph:
        """Rewrite a graph for tests in place, and return it.

        Raises TypeError for another value, ProgramError where a product has no weight.
        """
        block = checked(graph, "QuantizationFreezePass")
        inputs: dict[str, str] = {}  # a rounded variable -> its integers
        weights: dict[str, Array] = {}  # a weight -> its scale, or one for each filter
        scales: dict[str, str] = {}  # an activation -> the variable of its scale
        results: dict[str, str] = {}  # a result -> the variable with its scale
        for op in list(block.ops):
            for name in op.input_arg_names:
                op.rename_input(name, results.get(name, name))
            if op.type in _QUANTIZE:
                self._quantize(block, op, inputs, weights, scales)
            elif op.type in _DEQUANTIZE:
                _bypass(block, op, inputs)
            elif op.attrs.get("quantization_type") == WITH_WEIGHT:
                for name in op.input_arg_names:
                    op.rename_input(name, inputs.get(name, name))
                self._scale(block, op, weights, scales, results)
        remove_unused(graph.program)
        graph.program.verify("QuantizationFreezePass")
        return graph

    def _quantize(
        self,
        block: Block,
        op: Operator,
        inputs: dict[str, str],
        weights: dict[str, Array],
        scales: dict[str, str],
    ) -> None:
        """Fold the rounding operator of a weight into integer values; keep the operator of an activation."""
        name = op.input("X")[0]
        if not block.var_recursive(name).persistable:
            scales[op.output("Out")[0]] = op.output("OutScale")[0]
            return
        tensor = self._scope.var(name).get_tensor()
        values = np.array(tensor)
        if self._kind == "channel_wise_abs_max" and values.ndim == 4:
            scale = np.abs(values).max(axis=(1, 2, 3), keepdims=True)
        elif self._kind in ("abs_max", "channel_wise_abs_max"):
            scale = np.abs(values).max()
        else:
            kept = self._scope.var(op.output("OutScale")[0]).get_tensor()
            scale = np.array(kept).ravel()[0]
        weights[name] = np.asarray(scale)
        _bypass(block, op, inputs)
        tensor.set(np.round(values / scale * largest(self._bits[0])).astype(values.dtype), self._place)

    def _scale(
        self,
        block: Block,
        op: Operator,
        weights: dict[str, Array],
        scales: dict[str, str],
        results: dict[str, str],
    ) -> None:
        """Insert the scale of a product's result."""
        weight = next((weights[n] for n in op.input_arg_names if n in weights), None)
        activation = next((scales[n] for n in op.input_arg_names if n in scales), None)
        if weight is None or activation is None or len(op.output_arg_names) != 1:
            raise errors.ProgramError(
                f"QuantizationFreezePass: {op.type} of {op.input_arg_names}: expected a weight and an "
                f"activation, both quantized by the training, and one result\n  {op.callsite}"
            )
        product = block.var_recursive(op.output_arg_names[0])
        result = block.create_var(
            name=f"{product.name}.dequantized",
            type=product.type,
            shape=product.shape,
            dtype=product.dtype,
            lod_level=product.lod_level,
        )
        results[product.name] = result.name
        inputs: dict[str, Any] = {"X": product}
        if weight.ndim and op.type in CONVOLUTIONS:
            dtype = product.dtype if product.dtype == VarType.FP64 else VarType.FP32
            kept = block.create_var(
                name=unique_name.generate("channel_scale"),
                shape=[weight.size],
                dtype=dtype,
                persistable=True,
            )
            value = weight.ravel().astype(np_dtype(dtype))
            self._scope.var(kept.name).get_tensor().set(value, self._place)
            op_type, inputs["Scales"] = _DEQUANTIZE[1], [kept, activation]
            attrs: dict[str, Any] = {"quant_bits": list(self._bits)}
        else:
            op_type, inputs["Scale"] = _DEQUANTIZE[0], activation
            attrs = {"max_range": float(largest(self._bits[0]) / weight * largest(self._bits[1]))}
        block.insert_op(
            block.ops.index(op) + 1,
            op_type,
            inputs,
            {"Out": result},
            {**attrs, "op_role": OpRole.Forward},
        )


def _bypass(block: Block, op: Operator, inputs: dict[str, str]) -> None:
    """Remove an operator, and connect the readers of the output to the operator's input."""
    source = op.input("X")[0]
    inputs[op.output("Out")[0]] = inputs.get(source, source)
    block.remove_op(block.ops.index(op))


class ConvertToInt8Pass:
    """Keeps the weights of products as int8, under names that end in ".int8".

    Args:
        scope: with the weights of a frozen graph.
        place: where they are put.
        quantizable_op_type: has no effect, as in Fluid: all operators that training quantized are converted.
    """

    def __init__(self, scope: Scope, place: Any, quantizable_op_type: Sequence[str] | None = None):
        self._scope, self._place = scope, place

    def apply(self, graph: IrGraph) -> IrGraph:
        """Rewrite a frozen graph in place, and return it.

        Raises TypeError for another value, ProgramError for weights that do not fit into eight bits.
        """
        block = checked(graph, "ConvertToInt8Pass")
        made: dict[str, str] = {}
        for op in block.ops:
            if op.attrs.get("quantization_type") != WITH_WEIGHT:
                continue
            for name in op.input_arg_names:
                if block.var_recursive(name).persistable:
                    if name not in made:
                        made[name] = self._as_int8(block, name)
                    op.rename_input(name, made[name])
        remove_unused(graph.program)
        graph.program.verify("ConvertToInt8Pass")
        return graph

    def _as_int8(self, block: Block, name: str) -> str:
        values = np.array(self._scope.var(name).get_tensor())
        if (np.round(values) != values).any() or np.abs(values).max(initial=0) > 127:
            raise errors.ProgramError(
                f"ConvertToInt8Pass: {name} does not have integers of eight bits: apply "
                "QuantizationFreezePass first, with weight_bits of at most 8"
            )
        made = block.create_var(
            name=f"{name}.int8",
            shape=values.shape,
            dtype=VarType.INT8,
            persistable=True,
        )
        self._scope.var(made.name).get_tensor().set(values.astype(np.int8), self._place)
        return made.name


class TransformForMobilePass:
    """Pass that gives the operators of a frozen graph the types `quantize` and `dequantize` of Paddle-Lite.

    The graph is only saved afterwards: it does not run here.
    """

    def apply(self, graph: IrGraph) -> IrGraph:
        """Change a graph in place, and return the graph. Raises TypeError unless it is an IrGraph."""
        block = checked(graph, "TransformForMobilePass")
        for op in block.ops:
            if op.type in (*_QUANTIZE, *_DEQUANTIZE):
                op.type = "quantize" if op.type in _QUANTIZE else "dequantize"
        graph.program._touch()
        return graph
