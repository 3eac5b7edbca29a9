"""Operators: the instructions of a program."""

import os
import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from jfluid import errors
from jfluid.ir import codec, schema
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.descs import OpDesc
from jfluid.ir.variable import Variable
from jfluid.printable import printable

if TYPE_CHECKING:
    from jfluid.ir.block import Block


class OpRole:
    """Part of a step that an operator belongs to.

    The bits are Fluid's, and are written to saved programs.
    """

    Forward = 0x0000
    Backward = 0x0001
    Optimize = 0x0002
    RPC = 0x0004
    Dist = 0x0008
    LRSched = 0x0010
    Loss = 0x0100
    NotSpecified = 0x1000


# Fluid's gradient operators must hold these, whether or not their kernels exist: forward operators
# get them by default.
_GRADIENT_HINTS = {
    "use_cudnn": False,
    "use_mkldnn": False,
    "is_test": False,
    "exhaustive_search": False,
    "workspace_size_MB": 512,
}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAX_FRAMES = 4


def _user_frames() -> tuple[str, ...]:
    """Return the innermost frames outside this package, as traceback lines, the innermost last."""
    frame: FrameType | None = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < _MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not code.co_filename.startswith("<frozen"):
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}')
        frame = frame.f_back
    return tuple(reversed(lines))


def _names(values: Any, what: str) -> list[str]:
    if values is None:
        return []
    if isinstance(values, (Variable, str)) or not isinstance(values, Iterable):
        values = [values]
    names = []
    for v in values:
        if isinstance(v, Variable):
            names.append(v.name)
        elif isinstance(v, (str, bytes)):
            names.append(v.decode() if isinstance(v, bytes) else v)
        else:
            raise errors.AttributeTypeError(f"{what}: expected a Variable or a name, found {type(v).__name__}")
    return names


class Operator:
    """Operator of a block: its type, the variables in each slot, its attributes.

    `attrs` has the attributes that were set; `attr(name)` also knows the defaults of the operator's definition.

    Attributes:
        claimed: None for an operator that was created here, or that its reader allows to act (see
            `jfluid.ir.reach`); else the attributes that this process has set since it was read.
    """

    claimed: frozenset[str] | None = None

    def __init__(
        self,
        block: "Block",
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        callsite: bool = True,
    ):
        if not type:
            raise errors.ProgramError("append_op needs the type of the operator")
        self.block = block
        self.type = type
        self.inputs = {s: _names(v, f"operator {type}, input {s}") for s, v in (inputs or {}).items() if v is not None}
        self.outputs = {
            s: _names(v, f"operator {type}, output {s}") for s, v in (outputs or {}).items() if v is not None
        }
        self.attrs: dict[str, Any] = {k: v for k, v in (attrs or {}).items() if v is not None}
        # Fluid's type of the attributes that were read from a file; it may be shared
        self.attr_kinds: Mapping[str, str] = {}
        if callsite and "op_callstack" not in self.attrs:
            self.attrs["op_callstack"] = _user_frames()

    # Slots
    def input(self, name: str) -> list[str]:
        """Return the names of the variables in input slot `name`; none when the slot is not used."""
        return list(self.inputs.get(name, ()))

    def output(self, name: str) -> list[str]:
        """Return the names of the variables in output slot `name`; none when the slot is not used."""
        return list(self.outputs.get(name, ()))

    @property
    def input_names(self) -> list[str]:
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        return [n for names in self.inputs.values() for n in names]

    @property
    def output_arg_names(self) -> list[str]:
        return [n for names in self.outputs.values() for n in names]

    def set_input(self, slot: str, names: Iterable[str]) -> None:
        self.inputs[slot] = list(names)
        self.block.program._touch()

    def set_output(self, slot: str, names: Iterable[str]) -> None:
        self.outputs[slot] = list(names)
        self.block.program._touch()

    def rename_input(self, old: str, new: str) -> None:
        """Read `new` wherever `old` was read."""
        self.inputs = {s: [new if n == old else n for n in names] for s, names in self.inputs.items()}
        self.block.program._touch()

    def rename_output(self, old: str, new: str) -> None:
        """Write `new` wherever `old` was written."""
        self.outputs = {s: [new if n == old else n for n in names] for s, names in self.outputs.items()}
        self.block.program._touch()

    _rename_input, _rename_output = rename_input, rename_output

    # Attributes
    def attr(self, name: str) -> Any:
        """Return the value of attribute `name`, or its default.

        Raises ProgramError when there is none.
        """
        if name in self.attrs:
            return self.attrs[name]
        found, value = schema.current().default(self.type, name)
        if not found:
            raise errors.ProgramError(
                f"operator {self.type} has no attribute {name}; it has: {', '.join(self.attr_names)}"
            )
        return value

    def has_attr(self, name: str) -> bool:
        return name in self.attrs or schema.current().default(self.type, name)[0]

    def all_attrs(self) -> dict[str, Any]:
        """Return every attribute with its value, defaults included."""
        return schema.current().defaults(self.type) | self.attrs

    @property
    def attr_names(self) -> list[str]:
        return sorted(self.all_attrs())

    def attr_type(self, name: str) -> str:
        """Return Fluid's name of the attribute's type (INT, FLOATS, BLOCK, ...)."""
        return self.attr_kinds.get(name) or schema.current().kind(self.type, name, self.attrs.get(name))

    def set_attr(self, name: str, value: Any) -> None:
        """Set an attribute; its value is checked against the operator's definition.

        Raises AttributeTypeError.
        """
        self.attrs[name] = value
        schema.current().check(self)
        if name in self.attr_kinds:  # it is no longer the file's
            self.attr_kinds = {n: kind for n, kind in self.attr_kinds.items() if n != name}
        self.claim(name)
        self.block.program._touch()

    _set_attr = set_attr

    def claim(self, name: str) -> None:
        """Note that the value of attribute `name` is this process's own, and no longer the file's."""
        if self.claimed is not None:
            self.claimed |= {name}

    def remove_attr(self, name: str) -> None:
        """Remove an attribute: the operator takes its default. One that it lacks is no error."""
        self.attrs.pop(name, None)
        self.block.program._touch()

    _remove_attr = remove_attr

    def sub_blocks(self) -> list["Block"]:
        """Return the blocks that the attributes of this operator name."""
        kind, found = type(self.block), []
        for value in self.attrs.values():
            if isinstance(value, kind):
                found.append(value)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], kind):
                found += value  # values of other lists are many, and none is a block
        return found

    @property
    def callsite(self) -> str:
        """The user's own line that created the operator, or the empty string."""
        stack = self.attrs.get("op_callstack") or ()
        return stack[-1].strip() if stack else ""

    @property
    def desc(self) -> OpDesc:
        """The operator as Fluid describes it: `op.desc.type()`, `op.desc.input("X")`."""
        return OpDesc(self)

    def check(self) -> None:
        """Check slots and attributes against the operator's definition. Raises ProgramError."""
        schema.current().check(self)

    def infer_shape(self) -> None:
        """Set shapes and types of the variables that are written. Raises ShapeError."""
        schema.current().infer(self)

    @property
    def idx(self) -> int:
        """The operator's position in its block."""
        return next(i for i, op in enumerate(self.block.ops) if op is self)

    def clone_into(self, block: "Block") -> "Operator":
        """Return a copy that belongs to `block`.

        The caller has to translate attributes that name blocks.
        """
        twin = object.__new__(Operator)
        twin.block, twin.type = block, self.type
        twin.inputs = {s: list(n) for s, n in self.inputs.items()}
        twin.outputs = {s: list(n) for s, n in self.outputs.items()}
        twin.attrs, twin.attr_kinds = dict(self.attrs), self.attr_kinds
        twin.claimed = self.claimed
        return twin

    def to_string(self, throw_on_error: bool) -> str:
        """Return the operator in Fluid's format of program files, as text."""
        return codec.text_of(self.to_message(), throw_on_error)

    def to_message(self) -> pb.OpDesc:
        """Return the operator in Fluid's format of program files.

        An operator created here includes its defaults; an operator that was read keeps its attributes. Raises
        AttributeTypeError for an attribute that the format cannot express.
        """
        defaults = (
            {} if self.attr_kinds else self.all_attrs() | (_GRADIENT_HINTS if self.type.endswith("_grad") else {})
        )
        attrs = self.attrs | {n: v for n, v in defaults.items() if n not in self.attrs}
        return codec.operator_message(
            codec.OperatorRecord(self.type, self.inputs, self.outputs, attrs, {n: self.attr_type(n) for n in attrs})
        )

    @classmethod
    def from_record(cls, block: "Block", record: codec.OperatorRecord, allowed: bool = False) -> "Operator":
        """Return the operator of a program that is read from a file, after all blocks are created.

        `allowed` is True if the operator may act.
        """
        op = cls(block, record.type, record.inputs, record.outputs, callsite=False)
        blocks = block.program.blocks
        for name, value in record.attrs.items():
            match record.attr_kinds[name]:
                case "BLOCK":
                    value = blocks[value]
                case "BLOCKS":
                    value = tuple(blocks[number] for number in value)
            op.attrs[name] = value
        op.attr_kinds = record.attr_kinds
        op.claimed = None if allowed else frozenset()
        return op

    def __str__(self) -> str:
        return self.to_string(True)

    def __repr__(self) -> str:
        ins = ", ".join(f"{s}={n}" for s, n in self.inputs.items())
        outs = ", ".join(f"{s}={n}" for s, n in self.outputs.items())
        return printable(f"{{{outs}}} = {self.type}({ins})", lines=False)
