"""Insertion of operators that round a variable to multiples of a scale."""

from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.initializer import Constant
from jfluid.ir import unique_name
from jfluid.ir.block import Block
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper
from jfluid.param_attr import ParamAttr

SUFFIX = (".quantized", ".dequantized", ".scale")  # of what is made from a variable, by its name


def largest(bits: int) -> int:
    """Return the largest signed integer of `bits` bits."""
    return (1 << (bits - 1)) - 1


@dataclass(frozen=True)
class FakeQuantize:
    """Rounding of variables with scales of a chosen kind.

    Attributes:
        window_size: how many steps "range_abs_max" looks back.
        moving_rate: how much of its sums "moving_average_abs_max" keeps from step to step.
        step: the number of the step, which "range_abs_max" reads.
    """

    window_size: int
    moving_rate: float
    step: Variable | None

    def __call__(self, block: Block, index: int, var: Variable, bits: int, kind: str) -> Variable:
        """Insert the operators before the one at `index`; return the rounded variable."""
        integers = _like(block, var, ".quantized")
        rounded = _like(block, integers, ".dequantized")
        helper = LayerHelper("QuantizeTranspiler")
        inputs: dict[str, Any] = {"X": var}
        outputs: dict[str, Any] = {"Out": integers}
        attrs: dict[str, Any] = {"bit_length": bits}
        if kind == "abs_max":
            outputs["OutScale"] = scale = _like(block, var, ".scale")
        else:
            scale = _kept_scale(helper, var)
            inputs["InScale"] = outputs["OutScale"] = scale
            attrs["is_test"] = False
        if kind == "range_abs_max":
            inputs["Iter"] = self.step
            outputs["OutScales"] = self._state(helper, "scales", var, self.window_size, 0.0)
            attrs["window_size"] = self.window_size
        elif kind == "moving_average_abs_max":
            for slot, name in (("State", "state"), ("Accum", "accum")):
                value = self._state(helper, name, var, 1, 1.0)
                inputs[f"In{slot}"] = outputs[f"Out{slot}"] = value
            attrs["moving_rate"] = self.moving_rate
        block.insert_op(index, f"fake_quantize_{kind}", inputs, outputs, attrs)
        block.insert_op(
            index + 1,
            "fake_dequantize_max_abs",
            {"X": integers, "Scale": scale},
            {"Out": rounded},
            {"max_range": float(largest(bits))},
        )
        return rounded

    def _state(self, helper: LayerHelper, name: str, var: Variable, size: int, first: float) -> Variable:
        made = helper.create_global_variable(
            name=unique_name.generate(name),
            persistable=True,
            dtype=var.dtype,
            shape=[size],
            stop_gradient=True,
        )
        helper.set_variable_initializer(made, Constant(value=first))
        return made


def _kept_scale(helper: LayerHelper, var: Variable) -> Variable:
    attr = ParamAttr(name=f"{var.name}.scale", initializer=Constant(0.001), trainable=False)
    scale = helper.create_parameter(attr, [1], var.dtype, stop_gradient=True)
    if scale is None:
        raise errors.ProgramError(f"QuantizeTranspiler: no scale of {var.name}")
    return scale


def _like(block: Block, var: Variable, suffix: str) -> Variable:
    """Make a variable of the same shape and dtype, named after `var`."""
    return block.create_var(
        name=var.name + suffix,
        type=var.type,
        shape=var.shape,
        dtype=var.dtype,
        lod_level=var.lod_level,
    )
