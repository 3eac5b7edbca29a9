"""`QuantizeTranspiler`: from a training program to an int8 model, in three steps."""

from typing import Any

import numpy as np

from jfluid import errors
from jfluid.contrib.quantize.fake_quantize import StartupQuantizer
from jfluid.contrib.quantize.freeze import freeze
from jfluid.executor import global_scope
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.layers.tensor import autoincreased_step_counter
from jfluid.scope import Scope

PRODUCTS = ("conv2d", "depthwise_conv2d", "mul")  # the operators that are quantized
KINDS = ("abs_max", "range_abs_max", "moving_average_abs_max")


class QuantizeTranspiler:
    """Rewrites programs so that their products (conv2d, depthwise_conv2d, mul) compute with integers.

    Make a clone of the program for tests *after* `training_transpile`, train, then `freeze_program`
    the clone; save it, or `convert_to_int8` first.

    Args:
        weight_bits, activation_bits: how many bits integers have, 1 to 16.
        activation_quantize_type, weight_quantize_type: where scales come from. "abs_max": the
            largest absolute value of each step, in tests too. "range_abs_max": the largest of the
            last `window_size` steps. "moving_average_abs_max": an average that weighs later steps
            more. The scales of the last two are kept, and used in tests.
        window_size: of "range_abs_max".
        moving_rate: of "moving_average_abs_max".

    Raises ValueError for a different kind of scale.

    Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference", 2018.
    """

    def __init__(
        self,
        weight_bits: int = 8,
        activation_bits: int = 8,
        activation_quantize_type: str = "abs_max",
        weight_quantize_type: str = "abs_max",
        window_size: int = 10000,
        moving_rate: float = 0.9,
    ):
        for what, kind in (
            ("weight_quantize_type", weight_quantize_type),
            ("activation_quantize_type", activation_quantize_type),
        ):
            if kind not in KINDS:
                raise ValueError(f"{what}: expected one of {', '.join(KINDS)}, found {kind!r}")
        self.weight_bits = weight_bits
        self.activation_bits = activation_bits
        self.weight_quantize_type = weight_quantize_type
        self.activation_quantize_type = activation_quantize_type
        self.window_size = window_size
        self.moving_rate = moving_rate

    def training_transpile(self, program: Program | None = None, startup_program: Program | None = None) -> None:
        """Round the inputs of products to quantized values.

        Gradients pass by the rounding: they are those of the rounded inputs, and move the inputs
        themselves. Scales that are kept are made in the startup program, so that it is run
        afterwards.

        Args:
            program: with its gradients (after `minimize`), or without any; the default one when
                None. It is changed in place.
            startup_program: gets the scales; the default one when None.

        Raises ProgramError for a gradient whose operator the program does not have.
        """
        program = program or default_main_program()
        with program_guard(program, startup_program or default_startup_program()):
            step = None
            if "range_abs_max" in (self.weight_quantize_type, self.activation_quantize_type):
                step = autoincreased_step_counter()
            for block in program.blocks:
                self._round_inputs(block, step)
        program.verify("QuantizeTranspiler.training_transpile")

    def _round_inputs(self, block: Block, step: Variable | None) -> None:
        insert = StartupQuantizer(block=block, moving_rate=self.moving_rate, window_size=self.window_size, step=step)
        rounded: dict[str, str] = {}
        parameters = {p.name for p in block.program.global_block().iter_parameters()}
        for op in list(block.ops):
            if op.type in PRODUCTS:
                index = block.ops.index(op)  # as in Fluid, the last input is rounded first
                for name in [n for slot in sorted(op.inputs) for n in op.inputs[slot]]:
                    if name not in rounded:
                        weight = name in parameters
                        rounded[name] = insert.quantized(
                            index,
                            block.var_recursive(name),
                            self.weight_bits if weight else self.activation_bits,
                            self.weight_quantize_type if weight else self.activation_quantize_type,
                        ).name
                    op.rename_input(name, rounded[name])
            elif op.type in [f"{product}_grad" for product in PRODUCTS]:
                names = [name for name in op.input_arg_names if name in rounded]
                if not names:
                    raise errors.ProgramError(
                        f"QuantizeTranspiler: the program has {op.type} of {op.input_arg_names}, "
                        "but no forward operator that reads these inputs"
                    )
                for name in names:
                    op.rename_input(name, rounded[name])

    def freeze_program(self, program: Program | None = None, place: Any = None, scope: Scope | None = None) -> None:
        """Let products compute with integers, which floats keep, and scale their results.

        Args:
            program: a clone for tests of a program after `training_transpile`; changed in place.
            place: where the weights are put.
            scope: with the trained weights, which are replaced by integers; the global one when
                None.

        Raises ProgramError where a product has no weight, as that of two activations.
        """
        program = program or default_main_program()
        bits = (self.weight_bits, self.activation_bits)
        freeze(program, scope or global_scope(), place, bits, self.weight_quantize_type, PRODUCTS)
        remove_unused(program)
        program.verify("QuantizeTranspiler.freeze_program")

    def convert_to_int8(self, program: Program | None = None, place: Any = None, scope: Scope | None = None) -> None:
        """Keep the weights of products as int8, under names that end in ".int8".

        Args:
            program: after `freeze_program`; changed in place.
            place: where the weights are put.
            scope: with the weights; the global one when None.

        Raises ProgramError for weights that do not fit into eight bits.
        """
        program, scope = program or default_main_program(), scope or global_scope()
        made: dict[str, str] = {}
        for block in program.blocks:
            for op in [op for op in block.ops if op.type in PRODUCTS]:
                for name in op.input_arg_names:
                    var = block.var_recursive(name)
                    if var.persistable and name not in made:
                        made[name] = self._as_int8(program.global_block(), var, place, scope)
                    op.rename_input(name, made.get(name, name))
        remove_unused(program)
        program.verify("QuantizeTranspiler.convert_to_int8")

    def _as_int8(self, block: Block, var: Variable, place: Any, scope: Scope) -> str:
        """Make an int8 parameter of a weight, and return its name."""
        weights = np.asarray(scope.var(var.name).get_tensor())
        if self.weight_bits > 8 or (np.round(weights) != weights).any() or abs(weights).max() > 127:
            raise errors.ProgramError(
                f"QuantizeTranspiler.convert_to_int8: {var.name} does not have integers of eight "
                "bits: call freeze_program first, and train with weight_bits of at most 8"
            )
        name = f"{var.name}.int8"
        block.create_parameter(name=name, type=var.type, dtype=VarType.INT8, shape=var.shape)
        scope.var(name).get_tensor().set(weights.astype(np.int8), place)
        return name


def remove_unused(program: Program) -> None:
    """Remove the variables that no operator of their block, or of one inside it, reads or writes."""
    used: set[str] = set()

    def names(op: Operator) -> list[str]:
        return op.input_arg_names + op.output_arg_names

    for block in program.blocks:
        used |= {n for op in block.ops for n in names(op)}
    for block in program.blocks:
        for name in [n for n in block.vars if n not in used]:
            block.remove_var(name)
