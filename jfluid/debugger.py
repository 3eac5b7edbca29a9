"""Text and drawings of programs: Fluid's `fluid.debugger`."""

import os
from collections.abc import Sequence
from typing import Any

from jfluid.files.storage import atomic_write
from jfluid.flags import get_flags, set_flags
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.block import Block
from jfluid.ir.descs import BlockDesc, ProgramDesc
from jfluid.ir.graphviz import block_to_dot
from jfluid.ir.printer import block_to_code, operator_to_code, program_to_code, type_to_code
from jfluid.ir.program import Program
from jfluid.ir.types import VarType, np_dtype
from jfluid.ir.variable import Variable
from jfluid.printable import printable

__all__ = [
    "draw_block_graphviz",
    "pprint_block_codes",
    "pprint_program_codes",
    "prepare_fast_nan_inf_debug",
    "repr_attr",
    "repr_data_type",
    "repr_lodtensor",
    "repr_op",
    "repr_selected_rows",
    "repr_tensor",
    "repr_tensor_array",
    "repr_var",
    "run_fast_nan_inf_debug",
]


def draw_block_graphviz(block: Block, highlights: Sequence[str] | None = None, path: str = "./temp.dot") -> None:
    """Write a drawing of the block to a file, as Graphviz DOT (`dot -Tsvg temp.dot` renders it).

    Args:
        block: the block.
        highlights: regular expressions; names and operator types that one of them matches from the start stand
            out.
        path: the file.
    """
    if not isinstance(block, Block):
        raise TypeError(f"block: expected a Block, found {type(block).__name__}")
    with atomic_write(os.fspath(path)) as file:
        file.write(block_to_dot(block, highlights).encode())


def pprint_program_codes(program_desc: Program | ProgramDesc) -> str:
    """Return the program in a form like code, block by block, without gradients."""
    if isinstance(program_desc, ProgramDesc):
        return program_to_code(program_desc.described)
    return program_to_code(program_desc)


def pprint_block_codes(block_desc: Block | BlockDesc, show_backward: bool = False) -> str:
    """Return the block in a form like code: its variables, then its operators; with `show_backward` also gradients."""
    if isinstance(block_desc, BlockDesc):
        return block_to_code(block_desc.described, show_backward)
    return block_to_code(block_desc, show_backward)


def repr_data_type(type: int) -> str:
    """Return the name of an element type: `float32`, `int64`."""
    return str(np_dtype(VarType(type)))


def repr_tensor(proto: pb.VarType.TensorDesc) -> str:
    """Return a TensorDesc message in one line."""
    return f"tensor(type={repr_data_type(proto.data_type)}, shape={list(proto.dims)})"


def _repr_holder(
    proto: pb.VarDesc, kind: VarType, name: str, tensor: pb.VarType.TensorDesc, lod_level: int
) -> str | None:
    if int(proto.type.type) != kind:
        return None
    level = f"level={lod_level}, " if lod_level else ""
    return printable(f"{name} {proto.name} ({level}{repr_tensor(tensor)})", lines=False)


def repr_lodtensor(proto: pb.VarDesc) -> str | None:
    """Return a VarDesc message of a LoDTensor in one line; None for other kinds."""
    desc = proto.type.lod_tensor
    return _repr_holder(
        proto, VarType.LOD_TENSOR, "LoDTensor" if desc.lod_level else "Tensor", desc.tensor, desc.lod_level
    )


def repr_selected_rows(proto: pb.VarDesc) -> str | None:
    """Return a VarDesc message of SelectedRows in one line; None for other kinds."""
    return _repr_holder(proto, VarType.SELECTED_ROWS, "SelectedRows", proto.type.selected_rows, 0)


def repr_tensor_array(proto: pb.VarDesc) -> str | None:
    """Return a VarDesc message of a LoDTensorArray in one line; None for other kinds."""
    desc = proto.type.tensor_array
    return _repr_holder(proto, VarType.LOD_TENSOR_ARRAY, "TensorArray", desc.tensor, desc.lod_level)


def repr_var(vardesc: pb.VarDesc | Variable) -> str:
    """Return a variable, or its message, in one line."""
    if isinstance(vardesc, Variable):
        return printable(f"{vardesc.name}: {type_to_code(vardesc)}", lines=False)
    found = repr_lodtensor(vardesc) or repr_selected_rows(vardesc) or repr_tensor_array(vardesc)
    return found or printable(f"{VarType(vardesc.type.type).name} {vardesc.name}", lines=False)


def repr_attr(desc: pb.OpDesc.Attr) -> tuple[str, tuple[str, Any]]:
    """Return an attribute's message as (`name=value`, (name, value))."""
    field = {
        pb.INT: "i",
        pb.FLOAT: "f",
        pb.STRING: "s",
        pb.BOOLEAN: "b",
        pb.LONG: "l",
        pb.BLOCK: "block_idx",
        pb.INTS: "ints",
        pb.FLOATS: "floats",
        pb.STRINGS: "strings",
        pb.BOOLEANS: "bools",
        pb.LONGS: "longs",
        pb.BLOCKS: "blocks_idx",
    }[desc.type]
    value = getattr(desc, field)
    if not isinstance(value, (bool, int, float, str)):
        value = list(value)
    if desc.name == "dtype":
        value = repr_data_type(value)
    return printable(f"{desc.name}={value}", lines=False), (desc.name, value)


def repr_op(opdesc: Any) -> str:
    """Return an operator, or its message, in one line."""
    if not isinstance(opdesc, pb.OpDesc):
        return operator_to_code(opdesc)
    alone = pb.ProgramDesc()
    block = alone.blocks.add(idx=0, parent_idx=-1)
    block.ops.add().CopyFrom(opdesc)
    for attr in opdesc.attrs:  # the blocks that it names are not available
        last = max([attr.block_idx, *attr.blocks_idx])
        while len(alone.blocks) <= last:
            alone.blocks.add(idx=len(alone.blocks), parent_idx=0)
    return operator_to_code(Program.parse_from_string(alone.SerializeToString()).global_block().ops[0])


def prepare_fast_nan_inf_debug(_program: Program | None) -> None:
    """Do nothing: `run_fast_nan_inf_debug` compiles the checks of every operator into the step."""


def run_fast_nan_inf_debug(
    executor: Any,
    program: Program | None = None,
    feed: Any = None,
    fetch_list: Any = None,
    feed_var_name: str = "feed",
    fetch_var_name: str = "fetch",
    scope: Any = None,
    return_numpy: bool = True,
    use_program_cache: bool = False,
    dump_core: bool = True,
) -> Any:
    """Run a program as `executor.run` does, and check every operator's outputs for NaN and infinity.

    Args:
        executor: the Executor.
        program: see `Executor.run`.
        feed: see `Executor.run`.
        fetch_list: see `Executor.run`.
        feed_var_name: see `Executor.run`.
        fetch_var_name: see `Executor.run`.
        scope: see `Executor.run`.
        return_numpy: see `Executor.run`.
        use_program_cache: see `Executor.run`.
        dump_core: no effect: a bad value raises OpError, which names the operator and the line that made it, and
            the process continues. For the other arguments see `Executor.run`.
    """
    flag = "FLAGS_check_nan_inf"
    before = get_flags(flag)
    set_flags({flag: True})
    try:
        return executor.run(
            program, feed, fetch_list, feed_var_name, fetch_var_name, scope, return_numpy, use_program_cache
        )
    finally:
        set_flags(before)
