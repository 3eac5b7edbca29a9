"""Fluid's format of program files: ProgramDesc messages, to and from plain records.

A program that was read keeps the order of its operators, slots, attributes and their types, and the
release that the file names. Reading needs no definitions of operators; running does.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError, Message

from jfluid import errors
from jfluid.ir import framework_pb2 as pb
from jfluid.ir import nesting
from jfluid.ir.protobuf_fields import BYTES, fields
from jfluid.ir.types import HELD, VarType
from jfluid.printable import printable_message

# The field of OpDesc.Attr that holds a value of each type, and whether it is a list. Blocks go by
# index.
_FIELDS = {
    "INT": ("i", False),
    "FLOAT": ("f", False),
    "STRING": ("s", False),
    "BOOLEAN": ("b", False),
    "LONG": ("l", False),
    "BLOCK": ("block_idx", False),
    "INTS": ("ints", True),
    "FLOATS": ("floats", True),
    "STRINGS": ("strings", True),
    "BOOLEANS": ("bools", True),
    "LONGS": ("longs", True),
    "BLOCKS": ("blocks_idx", True),
}
# Attributes of all operators that describe the program, not the computation.
COMMON_ATTRS = {
    "op_role": "INT",
    "op_role_var": "STRINGS",
    "op_namescope": "STRING",
    "op_callstack": "STRINGS",
    "op_device": "STRING",
    "with_quant_attr": "BOOLEAN",
    "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": "BOOLEAN",
}
# The field of VarType that describes the tensors of each kind of variable.
_HOLDERS = {
    VarType.LOD_TENSOR: "lod_tensor",
    VarType.LOD_TENSOR_ARRAY: "tensor_array",
    VarType.SELECTED_ROWS: "selected_rows",
}
# Kinds of variables with descriptions that the IR does not model; the bytes are kept as read.
_OPAQUE = (VarType.READER, VarType.TUPLE)


class BlockRecord(NamedTuple):
    """Fields of a block in a program file, without its variables and operators."""

    parent_idx: int
    forward_block_idx: int


class VariableRecord(NamedTuple):
    """Fields of a variable in a program file; a missing shape or dtype is None."""

    name: str
    type: VarType
    shape: tuple[int, ...] | None
    dtype: VarType | None
    lod_level: int
    persistable: bool
    need_check_feed: bool
    opaque_type: bytes


class OperatorRecord(NamedTuple):
    """Fields of an operator in a program file.

    A record that is read has the indices of blocks; a record to be written has the blocks (objects with an
    `idx`).
    """

    type: str
    inputs: Mapping[str, list[str]]
    outputs: Mapping[str, list[str]]
    attrs: Mapping[str, Any]
    attr_kinds: Mapping[str, str]


def program_message(blocks: Iterable[pb.BlockDesc], op_compatibility: bytes, release: int | None) -> pb.ProgramDesc:
    """Return the message of a program."""
    desc = pb.ProgramDesc()
    for block in blocks:
        desc.blocks.append(block)
    if op_compatibility:
        desc.op_compatible_map.ParseFromString(op_compatibility)
    if release is not None:
        desc.version.version = release
    return desc


def block_message(
    number: int, block: BlockRecord, variables: Iterable[pb.VarDesc], operators: Iterable[pb.OpDesc]
) -> pb.BlockDesc:
    """Return the message of a block."""
    desc = pb.BlockDesc(idx=number, parent_idx=block.parent_idx)
    if block.forward_block_idx != -1:
        desc.forward_block_idx = block.forward_block_idx
    desc.vars.extend(variables)
    desc.ops.extend(operators)
    return desc


def variable_message(var: VariableRecord) -> pb.VarDesc:
    """Return the message of a variable."""
    desc = pb.VarDesc(name=var.name, persistable=var.persistable)
    if var.need_check_feed:
        desc.need_check_feed = True
    if var.opaque_type:
        desc.type.ParseFromString(var.opaque_type)
        return desc
    desc.type.type = number_of(var.type)
    tensor = _tensor_of(desc.type)
    if tensor is not None and var.shape is not None and var.dtype is not None:
        tensor.data_type = number_of(var.dtype)
        tensor.dims.extend(var.shape)
        if var.lod_level and var.type != VarType.SELECTED_ROWS:
            getattr(desc.type, _HOLDERS[var.type]).lod_level = var.lod_level
    return desc


def number_of(kind: VarType) -> pb.VarType.Type:
    """Return `kind` as an integer with the type of protobuf messages."""
    return cast(pb.VarType.Type, int(kind))


def _tensor_of(desc: pb.VarType) -> pb.VarType.TensorDesc | None:
    """Return the part of this kind of variable's description that has its element type and shape."""
    holder = _HOLDERS.get(cast(VarType, desc.type))
    if holder is None:
        return None
    return desc.selected_rows if holder == "selected_rows" else getattr(desc, holder).tensor


def operator_message(op: OperatorRecord) -> pb.OpDesc:
    """Return the message of an operator.

    Raises AttributeTypeError for an attribute that the format cannot express.
    """
    desc = pb.OpDesc(type=op.type)
    desc.inputs.extend(pb.OpDesc.Var(parameter=s, arguments=names) for s, names in op.inputs.items())
    desc.outputs.extend(pb.OpDesc.Var(parameter=s, arguments=names) for s, names in op.outputs.items())
    for name, value in op.attrs.items():
        kind = op.attr_kinds[name]
        attr = desc.attrs.add(name=name, type=pb.AttrType.Value(kind))
        field, many = _FIELDS[kind]
        try:
            if many:
                getattr(attr, field).extend(v.idx if kind == "BLOCKS" else v for v in value)
            else:
                setattr(attr, field, value.idx if kind == "BLOCK" else value)
        except (TypeError, ValueError, AttributeError) as e:
            made = (op.attrs.get("op_callstack") or ("",))[-1].strip()
            raise errors.AttributeTypeError(
                f"operator {op.type}, attribute {name}: {value!r} cannot be stored as {kind} "
                f"of Fluid's program format\n  {made}"
            ) from e
    return desc


def text_of(message: Message, throw_on_error: bool, with_details: bool = False) -> str:
    """Return a message as text.

    `throw_on_error` has no effect: an incomplete message cannot be made here.

    Raises TypeError for a flag that is neither True nor False.
    """
    for name, flag in (("throw_on_error", throw_on_error), ("with_details", with_details)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: expected True or False, found {flag!r}")
    return printable_message(text_format.MessageToString(message))


@contextlib.contextmanager
def reading(data: bytes) -> Iterator["ProgramFile"]:
    """Return a context for reading a serialized ProgramDesc.

    It raises FileFormatError when the bytes are no such message, contradict themselves, or stand
    for far more than their size.
    """
    try:
        yield ProgramFile(data)
    except (DecodeError, EncodeError, UnicodeDecodeError) as e:
        raise errors.FileFormatError(f"these {len(data)} bytes are no Fluid program: {e}") from e


# Memory limit of a program: bytes for each byte of its file, and the least limit.
# Fluid's take five to eight; lists of whole numbers, up to fourteen, are let pass.
_FACTOR, _LEAST = 10, 1 << 19
# Bytes of memory: a block, variable, operator, slot, attribute, a name that comes for the first
# time, a place in a list, a number in a list.
_BLOCK, _VARIABLE, _OPERATOR, _SLOT, _ATTRIBUTE, _NAME, _PLACE, _NUMBER = (500, 320, 400, 160, 60, 100, 10, 28)
_MOST_LEVELS = 64  # of sequences in sequences
_LARGEST_PART = 1 << 12  # bytes of a message that may be parsed before its parts are counted
_LONGEST_NAME = 1 << 12
# parts of a program, or block, that are neither blocks, variables nor operators
_MOST_OTHERS = 1000
# Kinds of attributes by Fluid's numbers.
_KINDS = {number: name for name, number in pb.AttrType.items()}
Kind = TypeVar("Kind", bound=Message)


class ProgramFile:
    """Incremental reader of a program file, which bounds the memory by the file's size.

    Attributes:
        blocks: the record of each block.
        release: the Fluid release that the file names, if any.
        op_compatibility: the file's versions of operators, kept as read.
    """

    def __init__(self, data: bytes):
        self._data = memoryview(data)
        self._left = max(_FACTOR * len(data), _LEAST)
        self._lent = 0  # cost of the message that is read
        self._texts: dict[str, str] = {}  # each name and text once: most come many times
        # as do operators' sets of attributes
        self._kinds: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._parts: list[memoryview] = []
        about = self._message(pb.ProgramDesc, self._others(self._data, {1: _BLOCK}, self._parts))
        self.blocks = self._declared(self._parts)
        self.release = about.version.version if about.HasField("version") else None
        self.op_compatibility = (
            about.op_compatible_map.SerializeToString() if about.HasField("op_compatible_map") else b""
        )

    def variables(self, block: int) -> Iterator[VariableRecord]:
        """Yield the variables that a block declares."""
        for field in fields(self._parts[block]):
            if field.number == 3 and field.kind == BYTES:
                yield self._variable(self._message(pb.VarDesc, field.value))

    def operators(self, block: int) -> Iterator[OperatorRecord]:
        """Yield the operators of a block, in order."""
        position = 0
        for field in fields(self._parts[block]):
            if field.number == 4 and field.kind == BYTES:
                yield self._operator(block, position, self._message(pb.OpDesc, field.value))
                position += 1

    # ---- the budget

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise errors.FileFormatError(
                f"the program would take more than {max(_FACTOR * len(self._data), _LEAST)} bytes of "
                f"memory, and its file has {len(self._data)}"
            )

    def _others(self, data: memoryview, costs: dict[int, int], found: list[memoryview] | None = None) -> bytes:
        """Return the fields of a message that have no cost; spend the cost of all other fields.

        Fields with a cost are appended to `found`.
        """
        others, count = bytearray(), 0
        for field in fields(data):
            cost = costs.get(field.number, 0) if field.kind == BYTES else 0
            if cost:
                self._spend(cost)
                if found is not None:
                    found.append(field.value)
                continue
            others += data[field.begin : field.end]
            count += 1
            if count > _MOST_OTHERS:
                raise DecodeError(f"more than {_MOST_OTHERS} parts that are neither blocks, variables nor operators")
        return bytes(others)

    def _message(self, kind: type[Kind], data: "bytes | memoryview") -> Kind:
        """Return a message, after checking that it has not too many parts.

        The one before it is no longer valid.
        """
        self._left += self._lent
        before = self._left
        if len(data) > _LARGEST_PART:
            self._count(memoryview(data), kind.DESCRIPTOR)
        self._lent = before - self._left
        message = kind.FromString(bytes(data))
        if not message.IsInitialized():
            missing = message.FindInitializationErrors()  # type: ignore[attr-defined]
            raise DecodeError(f"fields are missing: {', '.join(missing[:4])}")
        return message

    def _count(self, data: memoryview, kind: Any) -> None:
        """Spend the cost of the messages and texts that protobuf creates for this message."""
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
        """Return a name, interned."""
        if len(text) > _LONGEST_NAME:
            raise errors.FileFormatError(f"a name of the program has {len(text)} bytes, more than {_LONGEST_NAME}")
        return self._text(text)

    def _text(self, text: Any) -> str:
        """Return a text, interned."""
        if not isinstance(text, str):  # protobuf's way to say that it is no UTF-8
            raise errors.FileFormatError(f"a name or text of the program is no UTF-8: {bytes(text[:40])!r}")
        known = self._texts.get(text)
        if known is None:
            self._spend(_NAME + len(text))
            known = self._texts[text] = text
        return known

    # ---- blocks and variables

    def _declared(self, parts: list[memoryview]) -> list[BlockRecord]:
        """Return the records of blocks, after a check of their indices."""
        if not parts:
            raise errors.FileFormatError("the program has no blocks")
        blocks: list[BlockRecord] = []
        depths: list[int] = []
        for i, data in enumerate(parts):
            desc = self._message(pb.BlockDesc, self._others(data, {3: _VARIABLE, 4: _OPERATOR}))
            if desc.idx != i:
                raise errors.FileFormatError(f"block {i} of the program calls itself {desc.idx}")
            if not (desc.parent_idx == -1 if i == 0 else 0 <= desc.parent_idx < i):
                raise errors.FileFormatError(
                    f"block {i} of the program names block {desc.parent_idx} as the one around it"
                )
            if not -1 <= desc.forward_block_idx < len(parts):
                raise errors.FileFormatError(
                    f"block {i} of the program names block {desc.forward_block_idx} as its forward one"
                )
            depths.append(0 if i == 0 else depths[desc.parent_idx] + 1)
            if depths[i] > nesting.MOST_DEPTH:
                raise errors.FileFormatError(
                    f"block {i} of the program is nested in more than {nesting.MOST_DEPTH} blocks"
                )
            blocks.append(BlockRecord(desc.parent_idx, desc.forward_block_idx))
        return blocks

    def _variable(self, desc: pb.VarDesc) -> VariableRecord:
        kind, name = VarType(desc.type.type), self._name(desc.name)
        tensor = _tensor_of(desc.type) if kind not in _OPAQUE else None
        if tensor is not None:
            self._spend(_NUMBER * len(tensor.dims))
            if any(d < -1 for d in tensor.dims):
                raise errors.FileFormatError(f"variable {name} has an impossible shape, {list(tensor.dims)[:8]}")
        shape = dtype = None
        level = 0
        if tensor is not None and desc.type.HasField(_HOLDERS[kind]):
            shape, dtype = tuple(tensor.dims), VarType(tensor.data_type)
            level = getattr(getattr(desc.type, _HOLDERS[kind]), "lod_level", 0)
            if dtype not in HELD or not 0 <= level <= _MOST_LEVELS:
                raise errors.FileFormatError(
                    f"variable {name} has elements of {dtype.name} in {level} levels of sequences: expected "
                    f"a type of numbers, and at most {_MOST_LEVELS} levels"
                )
        opaque = desc.type.SerializeToString() if kind in _OPAQUE else b""
        return VariableRecord(name, kind, shape, dtype, level, desc.persistable, desc.need_check_feed, opaque)

    # ---- operators

    def _operator(self, block: int, position: int, desc: pb.OpDesc) -> OperatorRecord:
        if not desc.type:
            raise errors.FileFormatError(f"operator {position} of block {block} of the program has no type")
        type_, inputs, outputs = (self._name(desc.type), self._slots(desc.inputs), self._slots(desc.outputs))
        attrs, kinds = {}, {}
        for attr in desc.attrs:
            self._spend(_ATTRIBUTE)
            name = self._name(attr.name)
            kind = kinds[name] = _KINDS[attr.type]
            if COMMON_ATTRS.get(name, kind) != kind:
                raise errors.FileFormatError(
                    f"operator {type_} of block {block} has attribute {name} as {kind}: expected {COMMON_ATTRS[name]}"
                )
            attrs[name] = self._value(block, type_, name, attr)
        return OperatorRecord(type_, inputs, outputs, attrs, self._kinds.setdefault(tuple(kinds.items()), kinds))

    def _slots(self, slots: Iterable[pb.OpDesc.Var]) -> dict[str, list[str]]:
        found = {}
        for slot in slots:
            self._spend(_SLOT + _PLACE * len(slot.arguments))
            found[self._name(slot.parameter)] = [self._name(name) for name in slot.arguments]
        return found

    def _value(self, block: int, op_type: str, name: str, attr: pb.OpDesc.Attr) -> Any:
        kind = _KINDS[attr.type]
        field, many = _FIELDS[kind]
        value = getattr(attr, field)
        if many:
            self._spend(len(value) * (_PLACE if kind in ("STRINGS", "BOOLEANS") else _NUMBER))
        if kind in ("STRING", "STRINGS"):
            # where the operator was made; whatever its maker's files are called
            readable = name == "op_callstack"
            texts = [
                self._text(t.decode(errors="backslashreplace") if readable and isinstance(t, bytes) else t)
                for t in (value if many else [value])
            ]
            return tuple(texts) if many else texts[0]
        if kind in ("BLOCK", "BLOCKS"):
            self._check_blocks(block, op_type, name, value if many else [value])
        return tuple(value) if many else value

    def _check_blocks(self, block: int, op_type: str, name: str, numbers: Sequence[int]) -> None:
        """Raise FileFormatError for block indices in an attribute that name no inner block."""
        for number in numbers:
            if not 0 < number < len(self.blocks):
                raise errors.FileFormatError(
                    f"operator {op_type} of block {block} names block {number} in attribute {name}; "
                    f"the program has {len(self.blocks)} blocks"
                )
