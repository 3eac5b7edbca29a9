"""Programs to and from ProgramDesc messages, Fluid's own format of program files.

A program that was read keeps what it was read with: order of operators, slots, attributes and their types, and the
release that the file names. Reading needs no definitions of operators; running does.
"""
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, EncodeError

from jfluid import errors
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable

# The field of OpDesc.Attr that holds a value of each type, and whether it is a list. Blocks go by index.
_FIELDS = {
    "INT": ("i", False), "FLOAT": ("f", False), "STRING": ("s", False), "BOOLEAN": ("b", False), "LONG": ("l", False),
    "BLOCK": ("block_idx", False), "INTS": ("ints", True), "FLOATS": ("floats", True), "STRINGS": ("strings", True),
    "BOOLEANS": ("bools", True), "LONGS": ("longs", True), "BLOCKS": ("blocks_idx", True),
}
# The field of VarType that describes the tensors of each kind of variable.
_HOLDERS = {VarType.LOD_TENSOR: "lod_tensor", VarType.LOD_TENSOR_ARRAY: "tensor_array",
            VarType.SELECTED_ROWS: "selected_rows"}
# Fluid's gradient operators must hold these, whether or not their kernels exist: forward operators get them by default.
_GRADIENT_HINTS = {"use_cudnn": False, "use_mkldnn": False, "is_test": False, "exhaustive_search": False,
                   "workspace_size_MB": 512}
# Kinds of variables whose description the IR does not model; it is kept as read.
_OPAQUE = (VarType.READER, VarType.TUPLE)


def program_to_desc(program: Program) -> pb.ProgramDesc:
    """The program as a message. Raises ProgramError for an attribute that the format cannot hold."""
    desc = pb.ProgramDesc()
    for block in program.blocks:
        desc.blocks.append(block_to_desc(block))
    if program.op_compatibility:
        desc.op_compatible_map.ParseFromString(program.op_compatibility)
    if program.release is not None:
        desc.version.version = program.release
    return desc


def program_to_bytes(program: Program) -> bytes:
    """The program as a serialized ProgramDesc."""
    return program_to_desc(program).SerializeToString()


def block_to_desc(block: Block) -> pb.BlockDesc:
    """A block as a message."""
    desc = pb.BlockDesc(idx=block.idx, parent_idx=block.parent_idx)
    if block.forward_block_idx != -1:
        desc.forward_block_idx = block.forward_block_idx
    desc.vars.extend(variable_to_desc(v) for v in block.vars.values())
    desc.ops.extend(operator_to_desc(op) for op in block.ops)
    return desc


def variable_to_desc(var: Variable) -> pb.VarDesc:
    """A variable as a message."""
    desc = pb.VarDesc(name=var.name, persistable=var.persistable)
    if var.need_check_feed:
        desc.need_check_feed = True
    if var.opaque_type:
        desc.type.ParseFromString(var.opaque_type)
        return desc
    desc.type.type = int(var.type)
    tensor = _tensor_of(desc.type)
    if tensor is not None and (var._shape is not None or var._dtype is not None):
        tensor.data_type = int(var.dtype)
        tensor.dims.extend(var.shape)
        if var.lod_level and var.type != VarType.SELECTED_ROWS:
            getattr(desc.type, _HOLDERS[var.type]).lod_level = var.lod_level
    return desc


def _tensor_of(desc: pb.VarType) -> pb.VarType.TensorDesc | None:
    """Where the description of this kind of variable has its element type and shape."""
    holder = _HOLDERS.get(desc.type)
    if holder is None:
        return None
    return desc.selected_rows if holder == "selected_rows" else getattr(desc, holder).tensor


def operator_to_desc(op: Operator) -> pb.OpDesc:
    """An operator as a message. One made here has its defaults too, one that was read has what it had."""
    desc = pb.OpDesc(type=op.type)
    desc.inputs.extend(pb.OpDesc.Var(parameter=s, arguments=names) for s, names in op.inputs.items())
    desc.outputs.extend(pb.OpDesc.Var(parameter=s, arguments=names) for s, names in op.outputs.items())
    defaults = {} if op.attr_kinds else op.all_attrs() | (_GRADIENT_HINTS if op.type.endswith("_grad") else {})
    for name, value in (op.attrs | {n: v for n, v in defaults.items() if n not in op.attrs}).items():
        kind = op.attr_type(name)
        attr = desc.attrs.add(name=name, type=pb.AttrType.Value(kind))
        field, many = _FIELDS[kind]
        try:
            if many:
                getattr(attr, field).extend(v.idx if kind == "BLOCKS" else v for v in value)
            else:
                setattr(attr, field, value.idx if kind == "BLOCK" else value)
        except (TypeError, ValueError, AttributeError) as e:
            raise errors.AttributeTypeError(f"operator {op.type}, attribute {name}: {value!r} does not fit {kind} "
                                            f"of Fluid's program format\n  {op.callsite}") from e
    return desc


def program_from_bytes(data: bytes) -> Program:
    """The program of a serialized ProgramDesc.

    Raises FileFormatError when the bytes are no such message or contradict themselves.
    """
    try:
        desc = pb.ProgramDesc.FromString(bytes(data))
        if not desc.IsInitialized():
            raise DecodeError(f"fields are missing: {', '.join(desc.FindInitializationErrors()[:4])}")
        return program_from_desc(desc)
    except (DecodeError, EncodeError, UnicodeDecodeError) as e:
        raise errors.FileFormatError(f"these {len(data)} bytes are no Fluid program: {e}") from e


def program_from_desc(desc: pb.ProgramDesc) -> Program:
    """The program of a message. Raises FileFormatError when the message contradicts itself."""
    _check_blocks(desc)
    program = Program()
    program.blocks = [Block(program, b.idx, b.parent_idx, b.forward_block_idx) for b in desc.blocks]
    for block, block_desc in zip(program.blocks, desc.blocks):
        for var_desc in block_desc.vars:
            if var_desc.name in block.vars:
                raise errors.FileFormatError(
                    f"block {block.idx} of the program declares variable {var_desc.name} twice"
                )
            block.vars[var_desc.name] = _variable(block, var_desc)
    for block, block_desc in zip(program.blocks, desc.blocks):
        for op_desc in block_desc.ops:
            _add_operator(block, op_desc)
    program.release = desc.version.version if desc.HasField("version") else None
    if desc.HasField("op_compatible_map"):
        program.op_compatibility = desc.op_compatible_map.SerializeToString()
    program._touch()
    return program


def _check_blocks(desc: pb.ProgramDesc) -> None:
    if not desc.blocks:
        raise errors.FileFormatError("the program has no blocks")
    for i, block in enumerate(desc.blocks):
        if block.idx != i:
            raise errors.FileFormatError(f"block {i} of the program calls itself {block.idx}")
        if not (block.parent_idx == -1 if i == 0 else 0 <= block.parent_idx < i):
            raise errors.FileFormatError(
                f"block {i} of the program names block {block.parent_idx} as the one around it"
            )
        if not -1 <= block.forward_block_idx < len(desc.blocks):
            raise errors.FileFormatError(
                f"block {i} of the program names block {block.forward_block_idx} as its forward one"
            )


def _variable(block: Block, desc: pb.VarDesc) -> Variable:
    kind = VarType(desc.type.type)
    tensor = _tensor_of(desc.type) if kind not in _OPAQUE else None
    if tensor is not None and any(d < -1 for d in tensor.dims):
        raise errors.FileFormatError(f"variable {desc.name} has an impossible shape, {list(tensor.dims)[:8]}")
    var = Variable(block, type=kind, name=desc.name, persistable=desc.persistable, need_check_feed=desc.need_check_feed,
                   is_data=desc.need_check_feed)
    if tensor is not None and desc.type.HasField(_HOLDERS[kind]):
        var.set_shape_dtype(tuple(tensor.dims), VarType(tensor.data_type))
        var.lod_level = max(desc.type.lod_tensor.lod_level, desc.type.tensor_array.lod_level)
    if kind in _OPAQUE:
        var.opaque_type = desc.type.SerializeToString()
    return var


def _add_operator(block: Block, desc: pb.OpDesc) -> None:
    op = Operator(block, desc.type, {v.parameter: list(v.arguments) for v in desc.inputs},
                  {v.parameter: list(v.arguments) for v in desc.outputs}, callsite=False)
    for attr in desc.attrs:
        kind = pb.AttrType.Name(attr.type)
        field, many = _FIELDS[kind]
        value = tuple(getattr(attr, field)) if many else getattr(attr, field)
        op.attrs[attr.name] = _resolve(block, desc.type, attr.name, value) if kind in ("BLOCK", "BLOCKS") else value
        op.attr_kinds[attr.name] = kind
    block.adopt_op(op)
    for name in op.output_arg_names:
        var = block.find_var_recursive(name)
        if var is not None:
            var.op = op
            var.is_data = var.is_data or op.type == "feed"


def _resolve(block: Block, op_type: str, name: str, value: int | tuple[int, ...]) -> Any:
    """The block, or blocks, that an attribute names."""
    blocks = block.program.blocks
    for index in value if isinstance(value, tuple) else (value,):
        if not 0 < index < len(blocks):
            raise errors.FileFormatError(
                f"operator {op_type} of block {block.idx} names block {index} in attribute {name}; "
                f"the program has {len(blocks)} blocks"
            )
    find: Callable[[int], Block] = blocks.__getitem__
    return tuple(map(find, value)) if isinstance(value, tuple) else find(value)
