"""Programs as text in a form like code, for reading."""

from typing import Any

from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Parameter, Variable
from jfluid.printable import printable

# Attributes that tell where an operator stands in the program; they would hide those that say what
# it does.
_PROVENANCE = frozenset({"op_callstack", "op_namescope", "op_role", "op_role_var", "op_device"})


def type_to_code(var: Variable) -> str:
    """Return a variable's type in one line: `FP32[-1, 784]`, `INT64[-1, 1] lod 1`, `READER`."""
    if var.type not in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS, VarType.LOD_TENSOR_ARRAY):
        return var.type.name
    kind = "" if var.type == VarType.LOD_TENSOR else f"{var.type.name} of "
    return f"{kind}{var.dtype.name}{list(var.shape)}" + (f" lod {var.lod_level}" if var.lod_level else "")


def variable_to_code(var: Variable) -> str:
    """Return a variable in one line."""
    role = "param" if isinstance(var, Parameter) else "persist" if var.persistable else "data" if var.is_data else "var"
    return printable(f"{role} {var.name}: {type_to_code(var)}", lines=False)


def operator_to_code(op: Operator) -> str:
    """Return an operator in one line, as an assignment."""

    def names(values: list[str]) -> str:
        return values[0] if len(values) == 1 else f"[{', '.join(values)}]"

    def text(value: Any) -> str:
        if isinstance(value, Block):
            return f"block {value.idx}"
        return f"[{', '.join(map(text, value))}]" if isinstance(value, (list, tuple)) else repr(value)

    outs = ", ".join(names(v) for v in op.outputs.values() if v)
    ins = [f"{slot}={names(v)}" for slot, v in op.inputs.items() if v]
    attrs = [f"{name}={text(value)}" for name, value in sorted(op.attrs.items()) if name not in _PROVENANCE]
    call = f"{op.type}({', '.join(ins)})" + (f" [{', '.join(attrs)}]" if attrs else "")
    return printable(f"{outs} = {call}" if outs else call, lines=False)


def block_to_code(block: Block, show_backward: bool = False) -> str:
    """Return a block as text: its variables, then its operators; with `show_backward` also gradients."""

    def shown(name: str) -> bool:
        return show_backward or "@GRAD" not in name

    variables = [variable_to_code(v) for v in block.vars.values() if shown(v.name)]
    ops = [
        operator_to_code(op)
        for op in block.ops
        if show_backward
        or not (op.type.endswith("_grad") or any("@GRAD" in n for n in op.input_arg_names + op.output_arg_names))
    ]
    lines = [
        f"// block {block.idx}, inside block {block.parent_idx}" if block.parent_idx >= 0 else f"// block {block.idx}"
    ]
    return "\n".join([*lines, "// variables", *variables, "", "// operators", *ops, ""])


def program_to_code(program: Program, show_backward: bool = False) -> str:
    """Return a program as text, block by block; with `show_backward` also gradients."""
    return "\n".join(block_to_code(b, show_backward) for b in program.blocks)
