"""Insertion of operators that round a variable of a graph, with scales in a scope."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.contrib.quantize.fake_quantize import largest
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.operator import OpRole
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import Variable
from jfluid.scope import Scope

STEP = "@STEP_COUNTER@"


@dataclass(frozen=True)
class Rounding:
    """Inserts operators into the global block of a program.

    Attributes:
        block: the block.
        scope, place: where new state is made.
        test: whether scales are read alone.
        moving_rate: how much of its sums "moving_average_abs_max" keeps from step to step.
        window_size: how many steps "range_abs_max" looks back.
    """

    block: Block
    scope: Scope
    place: Any
    test: bool
    moving_rate: float = 0.9
    window_size: int = 10000

    def quantized(self, index: int, var: Variable, bits: int, kind: str) -> Variable:
        """Insert quantization and its inverse before the operator at `index`; return the rounded variable."""
        integers = self._like(var, f"{var.name}.quantized")
        rounded = self._like(var, f"{integers.name}.dequantized")
        outputs: dict[str, Any] = {"Out": integers}
        inputs: dict[str, Any] = {"X": var}
        attrs: dict[str, Any] = {"bit_length": bits}
        if kind in ("abs_max", "channel_wise_abs_max"):
            size = var.shape[0] if kind == "channel_wise_abs_max" else 1
            outputs["OutScale"] = scale = self.block.create_var(name=f"{var.name}.scale", shape=[size], dtype=var.dtype)
        else:
            scale = self.kept(f"{var.name}.scale", var, 0.001)
            inputs["InScale"] = outputs["OutScale"] = scale
            attrs["is_test"] = self.test
        if kind == "range_abs_max":
            attrs["window_size"] = self.window_size
            if not self.test:
                inputs["Iter"] = self._step()
                name = unique_name.generate("scales")
                outputs["OutScales"] = self.kept(name, var, 0.0, self.window_size)
        elif kind == "moving_average_abs_max":
            attrs["moving_rate"] = self.moving_rate
            self._sums(inputs, outputs, var, "")
        op_type = "fake_quantize_" + kind
        if kind == "channel_wise_abs_max":
            op_type = "fake_channel_wise_quantize_abs_max"
        self._insert(index, op_type, inputs, outputs, attrs)
        if kind == "channel_wise_abs_max":
            self._insert(
                index + 1,
                "fake_channel_wise_dequantize_max_abs",
                {"X": integers, "Scales": [scale]},
                {"Out": rounded},
                {"quant_bits": [bits]},
            )
        else:
            self._insert(
                index + 1,
                "fake_dequantize_max_abs",
                {"X": integers, "Scale": scale},
                {"Out": rounded},
                {"max_range": float(largest(bits))},
            )
        return rounded

    def rounded(self, index: int, var: Variable, bits: int) -> Variable:
        """Insert quantization and its inverse as one operator; return the rounded variable."""
        found = self._like(var, f"{var.name}.quant_dequant")
        scale = self.kept(f"{found.name}.scale", var, 0.001)
        inputs: dict[str, Any] = {"X": var, "InScale": scale}
        outputs: dict[str, Any] = {"Out": found, "OutScale": scale}
        self._sums(inputs, outputs, var, "quant_dequant.")
        self._insert(
            index,
            "fake_quantize_dequantize_moving_average_abs_max",
            inputs,
            outputs,
            {"bit_length": bits, "moving_rate": self.moving_rate, "is_test": self.test},
        )
        return found

    def observed(self, index: int, var: Variable) -> None:
        """Insert the operator that keeps a moving average of the largest |x| of a variable."""
        inputs: dict[str, Any] = {"X": var}
        outputs: dict[str, Any] = {"Out": var, "OutScale": self.kept(f"{var.name}@scale", var, 1.0)}
        self._sums(inputs, outputs, var, "scale_", "@")
        attrs = {"moving_rate": self.moving_rate, "is_test": self.test}
        self._insert(index, "moving_average_abs_max_scale", inputs, outputs, attrs)

    def _sums(
        self,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        var: Variable,
        prefix: str,
        suffix: str = "",
    ) -> None:
        """Add the state of a moving average, which training alone has."""
        for slot in () if self.test else ("State", "Accum"):
            name = unique_name.generate(f"{prefix}{slot.lower()}{suffix}")
            inputs[f"In{slot}"] = outputs[f"Out{slot}"] = self.kept(name, var, 1.0)

    def kept(self, name: str, like: Variable, first: float, size: int = 1) -> Variable:
        """Declare a variable that is kept from step to step, and set its first value in the scope."""
        dtype = like.dtype if like.dtype == VarType.FP64 else VarType.FP32
        made = self.block.create_var(name=name, shape=[size], dtype=dtype, persistable=True)
        made.stop_gradient = True
        self.scope.var(name).get_tensor().set(np.full(size, first, np_dtype(dtype)), self.place)
        return made

    def _step(self) -> Variable:
        """Return the number of the step: the program's own counter, or one that `count_steps` makes."""
        found = self.block.vars.get(STEP)
        if found is None:
            raise errors.ProgramError("range_abs_max needs a counter of steps: see count_steps")
        return found

    def count_steps(self) -> None:
        """Let the program count its steps, unless it does."""
        if STEP in self.block.vars:
            return
        made = self.block.create_var(name=STEP, shape=[1], dtype="int64", persistable=True)
        made.stop_gradient = True
        self.scope.var(STEP).get_tensor().set(np.zeros(1, np.int64), self.place)
        self._insert(0, "increment", {"X": made}, {"Out": made}, {"step": 1.0})

    def _like(self, var: Variable, name: str) -> Variable:
        return self.block.create_var(
            name=name, type=var.type, shape=var.shape, dtype=var.dtype, lod_level=var.lod_level
        )

    def _insert(self, index: int, op_type: str, inputs: Any, outputs: Any, attrs: dict[str, Any]) -> None:
        self.block.insert_op(index, op_type, inputs, outputs, {**attrs, "op_role": OpRole.Forward})
