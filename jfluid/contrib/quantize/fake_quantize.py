"""Fake quantization: operators that quantize a variable and dequantize it again, for training."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.operator import OpRole
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper
from jfluid.param_attr import ParamAttr
from jfluid.scope import Scope

STEP = "@STEP_COUNTER@"
SUFFIX = (".quantized", ".dequantized", ".scale")  # of the variables that a variable is quantized with


def largest(bits: int) -> int:
    """Return the largest signed integer of `bits` bits."""
    return (1 << (bits - 1)) - 1


@dataclass(frozen=True, kw_only=True)
class FakeQuantizer:
    """Base class of fake quantizers, which insert operators into a block; subclasses create their state.

    Attributes:
        block: the block.
        test: True if scales are read and not updated.
        moving_rate: decay of the sums of "moving_average_abs_max".
        window_size: the number of steps in the window of "range_abs_max".
    """

    block: Block
    test: bool = False
    moving_rate: float = 0.9
    window_size: int = 10000

    def quantized(self, index: int, var: Variable, bits: int, kind: str) -> Variable:
        """Insert quantization and dequantization before the operator at `index`; return the dequantized variable."""
        integers = self._like(var, f"{var.name}.quantized")
        rounded = self._like(var, f"{integers.name}.dequantized")
        outputs: dict[str, Any] = {"Out": integers}
        inputs: dict[str, Any] = {"X": var}
        attrs: dict[str, Any] = {"bit_length": bits}
        by_channel = kind == "channel_wise_abs_max"
        if by_channel or kind == "abs_max":
            size = var.shape[0] if by_channel else 1
            outputs["OutScale"] = scale = self.block.create_var(name=f"{var.name}.scale", shape=[size], dtype=var.dtype)
        else:
            inputs["InScale"] = outputs["OutScale"] = scale = self.scale(var)
            attrs["is_test"] = self.test
        if kind == "range_abs_max":
            attrs["window_size"] = self.window_size
            if not self.test:
                inputs["Iter"] = self.counter()
                outputs["OutScales"] = self.state(unique_name.generate("scales"), var, 0.0, self.window_size)
        elif kind == "moving_average_abs_max":
            attrs["moving_rate"] = self.moving_rate
            self._sums(inputs, outputs, var, "")
        op_type = "fake_channel_wise_quantize_abs_max" if by_channel else f"fake_quantize_{kind}"
        self._insert(index, op_type, inputs, outputs, attrs)
        op_type, slot, attrs = "fake_dequantize_max_abs", "Scale", {"max_range": float(largest(bits))}
        if by_channel:
            op_type, slot, attrs = "fake_channel_wise_dequantize_max_abs", "Scales", {"quant_bits": [bits]}
        self._insert(index + 1, op_type, {"X": integers, slot: [scale]}, {"Out": rounded}, attrs)
        return rounded

    def rounded(self, index: int, var: Variable, bits: int) -> Variable:
        """Insert quantization and dequantization as one operator; return the dequantized variable."""
        found = self._like(var, f"{var.name}.quant_dequant")
        scale = self.state(f"{found.name}.scale", var, 0.001)
        inputs: dict[str, Any] = {"X": var, "InScale": scale}
        outputs: dict[str, Any] = {"Out": found, "OutScale": scale}
        self._sums(inputs, outputs, var, "quant_dequant.")
        attrs = {"bit_length": bits, "moving_rate": self.moving_rate, "is_test": self.test}
        self._insert(index, "fake_quantize_dequantize_moving_average_abs_max", inputs, outputs, attrs)
        return found

    def observed(self, index: int, var: Variable) -> None:
        """Insert the operator that updates a moving average of max |x| of a variable."""
        inputs: dict[str, Any] = {"X": var}
        outputs: dict[str, Any] = {"Out": var, "OutScale": self.state(f"{var.name}@scale", var, 1.0)}
        self._sums(inputs, outputs, var, "scale_", "@")
        attrs = {"moving_rate": self.moving_rate, "is_test": self.test}
        self._insert(index, "moving_average_abs_max_scale", inputs, outputs, attrs)

    def scale(self, var: Variable) -> Variable:
        """Create the persistent scale of a variable."""
        return self.state(f"{var.name}.scale", var, 0.001)

    def state(self, name: str, like: Variable, first: float, size: int = 1) -> Variable:
        """Create a persistable variable [size] with the initial value `first`."""
        raise NotImplementedError

    def counter(self) -> Variable:
        """Return the step counter."""
        raise NotImplementedError

    def _sums(
        self, inputs: dict[str, Any], outputs: dict[str, Any], var: Variable, prefix: str, suffix: str = ""
    ) -> None:
        """Add the state of a moving average, which only training has."""
        for slot in () if self.test else ("State", "Accum"):
            name = unique_name.generate(f"{prefix}{slot.lower()}{suffix}")
            inputs[f"In{slot}"] = outputs[f"Out{slot}"] = self.state(name, var, 1.0)

    def _like(self, var: Variable, name: str) -> Variable:
        return self.block.create_var(
            name=name, type=var.type, shape=var.shape, dtype=var.dtype, lod_level=var.lod_level
        )

    def _insert(self, index: int, op_type: str, inputs: Any, outputs: Any, attrs: dict[str, Any]) -> None:
        self.block.insert_op(index, op_type, inputs, outputs, {**attrs, "op_role": OpRole.Forward})


@dataclass(frozen=True, kw_only=True)
class StartupQuantizer(FakeQuantizer):
    """Fake quantizer with state that the startup program initializes.

    Attributes:
        step: the step counter for "range_abs_max".
    """

    step: Variable | None

    def scale(self, var: Variable) -> Variable:
        """Create the scale of a variable as a parameter that is not trained."""
        attr = ParamAttr(name=f"{var.name}.scale", initializer=Constant(0.001), trainable=False)
        made = LayerHelper("QuantizeTranspiler").create_parameter(attr, [1], var.dtype, stop_gradient=True)
        assert made is not None  # an attribute other than False gives a parameter
        return made

    def state(self, name: str, like: Variable, first: float, size: int = 1) -> Variable:
        """Create a global variable [size], which the startup program fills with `first`."""
        helper = LayerHelper("QuantizeTranspiler")
        made = helper.create_global_variable(
            name=name, persistable=True, dtype=like.dtype, shape=[size], stop_gradient=True
        )
        helper.set_variable_initializer(made, Constant(value=first))
        return made

    def counter(self) -> Variable:
        """Return the step counter."""
        assert self.step is not None  # the transpiler creates it for "range_abs_max"
        return self.step


@dataclass(frozen=True, kw_only=True)
class ScopeQuantizer(FakeQuantizer):
    """Fake quantizer with state that is written into a Scope.

    Attributes:
        scope: the Scope.
        place: the place of new state.
    """

    scope: Scope
    place: Any

    def state(self, name: str, like: Variable, first: float, size: int = 1) -> Variable:
        """Declare a persistable variable [size], and set its value in the Scope to `first`."""
        dtype = like.dtype if like.dtype == VarType.FP64 else VarType.FP32
        made = self.block.create_var(name=name, shape=[size], dtype=dtype, persistable=True)
        made.stop_gradient = True
        self.scope.var(name).get_tensor().set(np.full(size, first, np_dtype(dtype)), self.place)
        return made

    def counter(self) -> Variable:
        """Return the program's step counter, or the counter of `count_steps`."""
        found = self.block.vars.get(STEP)
        if found is None:
            raise errors.ProgramError("range_abs_max needs a step counter: call count_steps first")
        return found

    def count_steps(self) -> None:
        """Append a step counter to the program, unless it has one."""
        if STEP in self.block.vars:
            return
        made = self.block.create_var(name=STEP, shape=[1], dtype="int64", persistable=True)
        made.stop_gradient = True
        self.scope.var(STEP).get_tensor().set(np.zeros(1, np.int64), self.place)
        self._insert(0, "increment", {"X": made}, {"Out": made}, {"step": 1.0})
