"""Programs to and from ProgramDesc messages, Fluid's own format of program files.

A program that was read keeps what it was read with: order of operators, slots, attributes and their types, and the
release that the file names. Reading needs no definitions of operators; running does.
"""
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from jfluid import errors
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.block import Block
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import VarType
from jfluid.ir.variable import Variable
from jfluid.messages import BYTES, fields

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

    Raises FileFormatError when the bytes are no such message, contradict themselves, or stand for far more than their size.
    """
    try:
        return _Reading(data).program()
    except (DecodeError, EncodeError, UnicodeDecodeError) as e:
        raise errors.FileFormatError(f"these {len(data)} bytes are no Fluid program: {e}") from e


# What a program may take: bytes of memory for each byte of its file, and what the smallest may. Fluid's take five to eight;
# lists of whole numbers, up to fourteen, are let pass.
_FACTOR, _LEAST = 10, 1 << 19
# Bytes of memory: a block, variable, operator, slot, attribute, a name that comes for the first time, a place in a list, a
# number in a list.
_BLOCK, _VARIABLE, _OPERATOR, _SLOT, _ATTRIBUTE, _NAME, _PLACE, _NUMBER = 500, 320, 400, 160, 60, 100, 10, 28
_MOST_DEPTH = 64  # of blocks within blocks
_LARGEST_PART = 1 << 12  # bytes of a message that may be parsed before its parts are counted
_LONGEST_NAME = 1 << 12
_MOST_OTHERS = 1000  # parts of a program, or block, that are neither blocks, variables nor operators
# Kinds of attributes by Fluid's numbers.
_KINDS = {number: name for name, number in pb.AttrType.items()}
Kind = TypeVar("Kind", bound=Message)


class _Reading:
    """One program, read message by message: so that no more is made than its size explains, whatever it says."""

    def __init__(self, data: bytes):
        self._data = memoryview(data)
        self._left = max(_FACTOR * len(data), _LEAST)
        self._lent = 0  # what the message being read takes
        self._texts: dict[str, str] = {}  # each name and text once: most come many times
        self._kinds: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}  # as do operators' sets of attributes
        self._program = Program()

    def program(self) -> Program:
        blocks: list[memoryview] = []
        about = self._message(pb.ProgramDesc, self._others(self._data, {1: _BLOCK}, blocks))
        self._program.blocks = self._declared(blocks)
        for block, data in zip(self._program.blocks, blocks):
            self._read_variables(block, data)
        for block, data in zip(self._program.blocks, blocks):
            self._read_operators(block, data)
        self._program.release = about.version.version if about.HasField("version") else None
        if about.HasField("op_compatible_map"):
            self._program.op_compatibility = about.op_compatible_map.SerializeToString()
        self._program._touch()
        return self._program

    # ---- the budget

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise errors.FileFormatError(f"the program would take more than {max(_FACTOR * len(self._data), _LEAST)} bytes of "
                                         f"memory, and its file has {len(self._data)}")

    def _others(self, data: memoryview, costs: dict[int, int], found: list[memoryview] | None = None) -> bytes:
        """The fields of a message whose numbers have no cost; what the others take is spent, and they go to `found`."""
        others, count = bytearray(), 0
        for field in fields(data):
            cost = costs.get(field.number, 0) if field.kind == BYTES else 0
            if cost:
                self._spend(cost)
                if found is not None:
                    found.append(field.value)
                continue
            others += data[field.begin:field.end]
            count += 1
            if count > _MOST_OTHERS:
                raise DecodeError(f"more than {_MOST_OTHERS} parts that are neither blocks, variables nor operators")
        return bytes(others)

    def _message(self, kind: type[Kind], data: "bytes | memoryview") -> Kind:
        """A message, of whose parts there are not too many. The one before it is gone."""
        self._left += self._lent
        before = self._left
        if len(data) > _LARGEST_PART:
            self._count(memoryview(data), kind.DESCRIPTOR)
        self._lent = before - self._left
        message = kind.FromString(bytes(data))
        if not message.IsInitialized():
            raise DecodeError(f"fields are missing: {', '.join(message.FindInitializationErrors()[:4])}")
        return message

    def _count(self, data: memoryview, kind: Any) -> None:
        """Spend what protobuf takes for the messages and texts in this one."""
        by_number = {field.number: field for field in kind.fields}
        for field in fields(data):
            if field.kind != BYTES or field.number not in by_number:
                continue
            inner = by_number[field.number].message_type
            if inner is not None:
                self._spend(_SLOT)
                self._count(field.value, inner)
            else:
                self._spend(2 * _PLACE)

    def _name(self, text: Any) -> str:
        """A name, as one object wherever it comes."""
        if len(text) > _LONGEST_NAME:
            raise errors.FileFormatError(f"a name of the program has {len(text)} bytes, more than {_LONGEST_NAME}")
        return self._text(text)

    def _text(self, text: Any) -> str:
        """A text, as one object wherever it comes."""
        if not isinstance(text, str):  # protobuf's way to say that it is no UTF-8
            raise errors.FileFormatError(f"a name or text of the program is no UTF-8: {bytes(text[:40])!r}")
        known = self._texts.get(text)
        if known is None:
            self._spend(_NAME + len(text))
            known = self._texts[text] = text
        return known

    # ---- blocks and variables

    def _declared(self, parts: list[memoryview]) -> list[Block]:
        """Empty blocks, after their numbers were checked."""
        if not parts:
            raise errors.FileFormatError("the program has no blocks")
        blocks: list[Block] = []
        depths: list[int] = []
        for i, data in enumerate(parts):
            desc = self._message(pb.BlockDesc, self._others(data, {3: _VARIABLE, 4: _OPERATOR}))
            if desc.idx != i:
                raise errors.FileFormatError(f"block {i} of the program calls itself {desc.idx}")
            if not (desc.parent_idx == -1 if i == 0 else 0 <= desc.parent_idx < i):
                raise errors.FileFormatError(
                    f"block {i} of the program names block {desc.parent_idx} as the one around it")
            if not -1 <= desc.forward_block_idx < len(parts):
                raise errors.FileFormatError(
                    f"block {i} of the program names block {desc.forward_block_idx} as its forward one")
            depths.append(0 if i == 0 else depths[desc.parent_idx] + 1)
            if depths[i] > _MOST_DEPTH:
                raise errors.FileFormatError(f"block {i} of the program lies in more than {_MOST_DEPTH} others")
            blocks.append(Block(self._program, i, desc.parent_idx, desc.forward_block_idx))
        return blocks

    def _read_variables(self, block: Block, data: memoryview) -> None:
        for field in fields(data):
            if field.number == 3 and field.kind == BYTES:
                var = self._variable(block, self._message(pb.VarDesc, field.value))
                if var.name in block.vars:
                    raise errors.FileFormatError(f"block {block.idx} of the program declares variable {var.name} twice")
                block.vars[var.name] = var

    def _variable(self, block: Block, desc: pb.VarDesc) -> Variable:
        kind, name = VarType(desc.type.type), self._name(desc.name)
        tensor = _tensor_of(desc.type) if kind not in _OPAQUE else None
        if tensor is not None:
            self._spend(_NUMBER * len(tensor.dims))
            if any(d < -1 for d in tensor.dims):
                raise errors.FileFormatError(f"variable {name} has an impossible shape, {list(tensor.dims)[:8]}")
        var = Variable(block, type=kind, name=name, persistable=desc.persistable, need_check_feed=desc.need_check_feed,
                       is_data=desc.need_check_feed)
        if tensor is not None and desc.type.HasField(_HOLDERS[kind]):  # type: ignore[arg-type]
            var.set_shape_dtype(tuple(tensor.dims), VarType(tensor.data_type))
            var.lod_level = max(desc.type.lod_tensor.lod_level, desc.type.tensor_array.lod_level)
        if kind in _OPAQUE:
            var.opaque_type = desc.type.SerializeToString()
        return var

    # ---- operators

    def _read_operators(self, block: Block, data: memoryview) -> None:
        for field in fields(data):
            if field.number == 4 and field.kind == BYTES:
                self._add_operator(block, self._message(pb.OpDesc, field.value))

    def _add_operator(self, block: Block, desc: pb.OpDesc) -> None:
        if not desc.type:
            raise errors.FileFormatError(f"operator {len(block.ops)} of block {block.idx} of the program has no type")
        op = Operator(block, self._name(desc.type), self._slots(desc.inputs), self._slots(desc.outputs), callsite=False)
        kinds = {}
        for attr in desc.attrs:
            self._spend(_ATTRIBUTE)
            name = self._name(attr.name)
            kinds[name] = _KINDS[attr.type]
            op.attrs[name] = self._value(block, op.type, name, attr)
        op.attr_kinds = self._kinds.setdefault(tuple(kinds.items()), kinds)
        block.adopt_op(op)
        for name in op.output_arg_names:
            var = block.find_var_recursive(name)
            if var is not None:
                var.op = op
                var.is_data = var.is_data or op.type == "feed"

    def _slots(self, slots: Iterable[pb.OpDesc.Var]) -> dict[str, list[str]]:
        found = {}
        for slot in slots:
            self._spend(_SLOT + _PLACE * len(slot.arguments))
            found[self._name(slot.parameter)] = [self._name(name) for name in slot.arguments]
        return found

    def _value(self, block: Block, op_type: str, name: str, attr: pb.OpDesc.Attr) -> Any:
        kind = _KINDS[attr.type]
        field, many = _FIELDS[kind]
        value = getattr(attr, field)
        if many:
            self._spend(len(value) * (_PLACE if kind in ("STRINGS", "BOOLEANS") else _NUMBER))
        if kind in ("STRING", "STRINGS"):
            readable = name == "op_callstack"  # where the operator was made; whatever its maker's files are called
            texts = [self._text(t.decode(errors="backslashreplace") if readable and isinstance(t, bytes) else t)
                     for t in (value if many else [value])]
            return tuple(texts) if many else texts[0]
        if kind in ("BLOCK", "BLOCKS"):
            return _resolve(block, op_type, name, tuple(value) if many else value)
        return tuple(value) if many else value


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
