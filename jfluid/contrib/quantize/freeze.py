"""Freezing a program that was trained with rounded inputs: its products compute with integers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.contrib.quantize.fake_quantize import SUFFIX, largest
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable
from jfluid.scope import Scope


def _original(name: str) -> str:
    """Return the name of the variable that one was made from."""
    quantized, dequantized, scale = SUFFIX
    for suffix in (quantized + dequantized, quantized, dequantized, scale):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


@dataclass
class _Names:
    """New names of the variables of a block.

    Attributes:
        inputs: rounded variable -> its integers.
        outputs: the result of a product -> that result with its scale.
        scales: variable -> its scale: a number for weights, else a Variable.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    scales: dict[str, float | Variable] = field(default_factory=dict)


@dataclass(frozen=True)
class _Freezer:
    scope: Scope
    place: Any
    bits: tuple[int, int]
    weight_kind: str
    weights: frozenset[str]

    def quantize(self, block: Block, op: Operator, names: _Names) -> None:
        """Fold the rounding operator of a weight into integer values; keep the operator of an activation."""
        source = op.input("X")[0]
        if source not in self.weights:
            names.scales[source] = block.var_recursive(op.output("OutScale")[0])
            return
        tensor = self.scope.var(source).get_tensor()
        values = np.asarray(tensor)
        if self.weight_kind == "abs_max":
            scale = float(np.abs(values).max())
        else:
            scale = float(np.asarray(self.scope.var(op.output("OutScale")[0]).get_tensor()).ravel()[0])
            values = np.clip(values, -scale, scale)
        names.scales[source] = scale
        self.bypass(block, op, names)
        integers = np.round(values / np.float32(scale) * largest(self.bits[0]))
        tensor.set(integers.astype(values.dtype), self.place)

    @staticmethod
    def bypass(block: Block, op: Operator, names: _Names) -> None:
        """Remove an operator, and connect the readers of the output to the operator's input."""
        source = op.input("X")[0]
        names.inputs[op.output("Out")[0]] = names.inputs.get(source, source)
        block.remove_op(block.ops.index(op))

    def scale(self, block: Block, op: Operator, names: _Names) -> None:
        """Let a product read integers, and scale its result."""
        weight: float | None = None
        activation: Variable | None = None
        for name in op.input_arg_names:
            op.rename_input(name, names.inputs.get(name, name))
            found = names.scales.get(_original(name))
            if isinstance(found, float):
                weight = found
            else:
                activation = found
        if weight is None or activation is None or len(op.output_arg_names) != 1:
            raise errors.ProgramError(
                f"QuantizeTranspiler.freeze_program: {op.type} of {op.input_arg_names}: expected a "
                "weight and an activation, both quantized by training_transpile, and one result\n"
                f"  {op.callsite}"
            )
        product = block.var_recursive(op.output_arg_names[0])
        result = block.create_var(
            name=product.name + ".dequantized",
            type=product.type,
            shape=product.shape,
            dtype=product.dtype,
            lod_level=product.lod_level,
        )
        block.insert_op(
            block.ops.index(op) + 1,
            "fake_dequantize_max_abs",
            {"X": product, "Scale": activation},
            {"Out": result},
            {"max_range": largest(self.bits[0]) * largest(self.bits[1]) / weight},
        )
        names.outputs[product.name] = result.name


def freeze(
    program: Program,
    scope: Scope,
    place: Any,
    bits: tuple[int, int],
    weight_kind: str,
    products: Sequence[str],
) -> None:
    """Rewrite a program for tests, and the weights in `scope`; see `QuantizeTranspiler.freeze_program`.

    Args:
        bits: of weights and of activations.
        weight_kind: where the scales of weights come from.
        products: the types of operators that are quantized.
    """
    weights = frozenset(v.name for v in program.list_vars() if v.persistable)
    freezer = _Freezer(scope, place, bits, weight_kind, weights)
    for block in program.blocks:
        names = _Names()
        for op in list(block.ops):
            for name in op.input_arg_names:
                op.rename_input(name, names.outputs.get(name, name))
            if op.type.startswith("fake_quantize_"):
                freezer.quantize(block, op, names)
            elif op.type == "fake_dequantize_max_abs":
                freezer.bypass(block, op, names)
            elif op.type in products:
                freezer.scale(block, op, names)
