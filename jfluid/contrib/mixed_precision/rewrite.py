"""Converting a forward program to 16 bits where the lists say so."""

from jfluid.contrib.mixed_precision.lists import AutoMixedPrecisionLists
from jfluid.ir import schema
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

SUFFIX = {VarType.FP16: "fp16", VarType.BF16: "bf16", VarType.FP32: "fp32"}
# Normalisations keep their parameters and statistics in float32: only the data is cast.
_DATA_SLOTS = {"batch_norm": {"X"}, "layer_norm": {"X"}}


def sort_operators(block: Block, lists: AutoMixedPrecisionLists) -> tuple[set[int], set[int]]:
    """Return the positions of the operators for 16 bits, and of the operators for float32.

    Further operators compute in the dtype of their inputs.
    """
    low: set[int] = set()
    full: set[int] = set()
    writer: dict[str, int] = {}
    for i, op in enumerate(block.ops):
        before = {writer[n] for n in op.input_arg_names if n in writer}
        if lists.black_varnames & set(op.input_arg_names + op.output_arg_names) or op.type in lists.black_list:
            full.add(i)
        elif op.type in lists.white_list:
            low.add(i)
        elif op.type not in lists.gray_list or before & full:
            full.add(i)
        elif before & low:
            low.add(i)
        writer.update(dict.fromkeys(op.output_arg_names, i))
    return low, full


def rewrite(program: Program, lists: AutoMixedPrecisionLists, dtype: VarType) -> None:
    """Insert the casts in the global block of a forward program, and infer all dtypes anew."""
    block = program.global_block()
    low, full = sort_operators(block, lists)
    old = list(block.ops)
    block.remove_ops(0, len(old))
    for i, op in enumerate(old):
        if i in low:
            _cast_inputs(block, op, VarType.FP32, dtype)
        elif i in full:
            _cast_inputs(block, op, dtype, VarType.FP32)
        block.adopt_op(op)
        schema.current().infer(op)
    program.verify("mixed precision")


def _cast_inputs(block: Block, op: Operator, have: VarType, want: VarType) -> None:
    for slot, names in list(op.inputs.items()):
        if slot in _DATA_SLOTS.get(op.type, {slot}):
            op.set_input(
                slot,
                [
                    _cast(block, op, block.var_recursive(n), want).name if block.var_recursive(n).dtype == have else n
                    for n in names
                ],
            )


def _cast(block: Block, op: Operator, var: Variable, dtype: VarType) -> Variable:
    """Return `var` in the given dtype; all operators that read the same value share the cast."""
    name = f"{var.name}.cast_{SUFFIX[dtype]}"
    for earlier in reversed(block.ops):
        if name in earlier.output_arg_names:
            return block.var(name)
        if var.name in earlier.output_arg_names:
            break
    cast = block.create_var(name=name, dtype=dtype, shape=var.shape)
    cast.stop_gradient = var.stop_gradient
    role = {"op_role": op.attrs.get("op_role", 0)}
    block.append_op(
        "cast",
        {"X": var},
        {"Out": cast},
        {"in_dtype": int(var.dtype), "out_dtype": int(dtype), **role},
    )
    return cast
