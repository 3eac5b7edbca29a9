"""Fluid's descriptions of programs for scripts: `operator.desc.type()`, `variable.desc.shape()`.

In Fluid, an Operator wraps a description in C++, and so do Variables, Blocks and Programs. Here these
objects hold all state, and a description is a view of an object: changes of the view change the object.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from jfluid.ir import types


class _Op(Protocol):
    block: Any
    type: str
    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]
    attrs: dict[str, Any]
    claimed: frozenset[str] | None

    @property
    def attr_names(self) -> list[str]: ...

    def attr(self, name: str) -> Any: ...
    def has_attr(self, name: str) -> bool: ...
    def attr_type(self, name: str) -> str: ...
    def set_attr(self, name: str, value: Any) -> None: ...
    def remove_attr(self, name: str) -> None: ...
    def set_input(self, slot: str, names: Iterable[str]) -> None: ...
    def set_output(self, slot: str, names: Iterable[str]) -> None: ...
    def rename_input(self, old: str, new: str) -> None: ...
    def rename_output(self, old: str, new: str) -> None: ...
    def to_message(self) -> Any: ...
    def check(self) -> None: ...
    def infer_shape(self) -> None: ...


class OpDesc:
    """Description of an operator.

    Args:
        op: the Operator that it describes.
    """

    def __init__(self, op: _Op):
        self._op = op

    def type(self) -> str:
        return self._op.type

    def set_type(self, type: str) -> None:
        self._op.type = type
        self._op.block.program._touch()

    def input(self, name: str) -> list[str]:
        """Return the names of the variables in input slot `name`."""
        return list(self._op.inputs.get(name, ()))

    def output(self, name: str) -> list[str]:
        """Return the names of the variables in output slot `name`."""
        return list(self._op.outputs.get(name, ()))

    def inputs(self) -> dict[str, list[str]]:
        """Return the names of the variables that are read, by slot."""
        return {slot: list(names) for slot, names in self._op.inputs.items()}

    def outputs(self) -> dict[str, list[str]]:
        """Return the names of the variables that are written, by slot."""
        return {slot: list(names) for slot, names in self._op.outputs.items()}

    def input_names(self) -> list[str]:
        """Return the input slots in use."""
        return list(self._op.inputs)

    def output_names(self) -> list[str]:
        """Return the output slots in use."""
        return list(self._op.outputs)

    def input_arg_names(self) -> list[str]:
        """Return the variables that are read."""
        return [n for names in self._op.inputs.values() for n in names]

    def output_arg_names(self) -> list[str]:
        """Return the variables that are written."""
        return [n for names in self._op.outputs.values() for n in names]

    def set_input(self, name: str, args: Iterable[str]) -> None:
        self._op.set_input(name, args)

    def set_output(self, name: str, args: Iterable[str]) -> None:
        self._op.set_output(name, args)

    def _rename_input(self, old: str, new: str) -> None:
        self._op.rename_input(old, new)

    def _rename_output(self, old: str, new: str) -> None:
        self._op.rename_output(old, new)

    def attr(self, name: str) -> Any:
        """Return an attribute or its default. Raises ProgramError when there is none."""
        return self._op.attr(name)

    def has_attr(self, name: str) -> bool:
        return self._op.has_attr(name)

    def attr_names(self) -> list[str]:
        return self._op.attr_names

    def attr_type(self, name: str) -> str:
        """Return Fluid's name of the attribute's type (INT, FLOATS, ...)."""
        return self._op.attr_type(name)

    def _set_attr(self, name: str, value: Any) -> None:
        self._op.set_attr(name, value)

    def remove_attr(self, name: str) -> None:
        """Give an attribute its default again."""
        self._op.remove_attr(name)

    def block(self) -> Any:
        """Return the Block that the operator belongs to."""
        return self._op.block

    def copy_from(self, other: "OpDesc") -> None:
        """Copy type, slots and attributes from `other`."""
        self._op.type = other.type()
        self._op.inputs, self._op.outputs = other.inputs(), other.outputs()
        self._op.attrs, self._op.claimed = dict(other._op.attrs), other._op.claimed
        self._op.block.program._touch()

    def check_attrs(self) -> None:
        """Check the attributes against the operator's definition. Raises AttributeTypeError."""
        self._op.check()

    def infer_shape(self, block: Any) -> None:
        """Infer shapes and types of the outputs from the inputs.

        `block` has no effect: the operator's block is used.
        """
        self._op.infer_shape()

    def infer_var_type(self, block: Any) -> None:
        """No effect: `infer_shape` sets the kinds of variables, too."""

    def serialize_to_string(self) -> bytes:
        """Return the message OpDesc of program files."""
        message: bytes = self._op.to_message().SerializeToString()
        return message


class VarDesc:
    """Description of a variable.

    Args:
        var: the Variable that it describes.
    """

    VarType = types.VarType

    def __init__(self, var: Any):
        self._var = var

    def name(self) -> str:
        name: str = self._var.name
        return name

    def set_name(self, name: str) -> None:
        """Rename the variable in all operators of the block."""
        self._var.block.rename_var(self._var.name, name)

    def type(self) -> types.VarType:
        """Return the kind of variable (`VarType.LOD_TENSOR`, ...)."""
        return types.VarType(self._var.type)

    def set_type(self, type: types.VarType) -> None:
        self._set("type", types.VarType(type))

    def dtype(self) -> types.VarType:
        return types.VarType(self._var.dtype)

    def set_dtype(self, dtype: types.VarType) -> None:
        self._set("_dtype", types.VarType(dtype))

    def shape(self) -> list[int]:
        return list(self._var.shape)

    get_shape = shape

    def set_shape(self, shape: Iterable[int]) -> None:
        self._set("_shape", tuple(int(d) for d in shape))

    def lod_level(self) -> int:
        return int(self._var.lod_level)

    def set_lod_level(self, level: int) -> None:
        self._set("lod_level", int(level))

    def persistable(self) -> bool:
        return bool(self._var.persistable)

    def set_persistable(self, persistable: bool) -> None:
        self._var.persistable = persistable

    def need_check_feed(self) -> bool:
        return bool(self._var.need_check_feed)

    def set_need_check_feed(self, needed: bool) -> None:
        self._set("need_check_feed", bool(needed))

    def serialize_to_string(self) -> bytes:
        """Return the message VarDesc of program files."""
        message: bytes = self._var.to_message().SerializeToString()
        return message

    def _set(self, attribute: str, value: Any) -> None:
        setattr(self._var, attribute, value)
        self._var.block.program._touch()


class BlockDesc:
    """Description of a block.

    Args:
        block: the Block that it describes.
    """

    def __init__(self, block: Any):
        self.described = block

    @property
    def id(self) -> int:
        return int(self.described.idx)

    @property
    def parent(self) -> int:
        """The number of the block around it; -1 for the global one."""
        return int(self.described.parent_idx)

    def op_size(self) -> int:
        return len(self.described.ops)

    def op(self, index: int) -> OpDesc:
        return OpDesc(self.described.ops[index])

    def all_vars(self) -> list[VarDesc]:
        return [VarDesc(var) for var in self.described.vars.values()]

    def has_var(self, name: str | bytes) -> bool:
        return _text(name) in self.described.vars

    def has_var_recursive(self, name: str | bytes) -> bool:
        return self.described.find_var_recursive(_text(name)) is not None

    def find_var(self, name: str | bytes) -> VarDesc | None:
        """Return the description of a variable of this block, or None."""
        return _described(self.described.vars.get(_text(name)))

    def find_var_recursive(self, name: str | bytes) -> VarDesc | None:
        """Return the description of a variable of this block or an enclosing block, or None."""
        return _described(self.described.find_var_recursive(_text(name)))

    def var(self, name: str | bytes) -> VarDesc:
        """Return the description of the variable `name`, declared if it is missing."""
        return self.find_var(name) or VarDesc(self.described.create_var(name=_text(name)))

    def serialize_to_string(self) -> bytes:
        """Return the message BlockDesc of program files."""
        message: bytes = self.described.to_message().SerializeToString()
        return message


class ProgramDesc:
    """Description of a program.

    Args:
        program: the described Program; None for a new one.

    Attributes:
        new_program: creates a Program; `jfluid.ir.program` sets it.
    """

    new_program: ClassVar[type[Any]]

    def __init__(self, program: Any = None):
        self.described = self.new_program() if program is None else program

    def num_blocks(self) -> int:
        return len(self.described.blocks)

    def block(self, index: int) -> BlockDesc:
        return BlockDesc(self.described.block(index))

    def flush(self) -> None:
        """No effect: a description shows the current program."""

    def get_feed_target_names(self) -> list[str]:
        """Return the variables that `feed` operators of the global block write."""
        ops = self.described.blocks[0].ops
        return [name for op in ops if op.type == "feed" for name in op.outputs.get("Out", ())]

    def get_fetch_target_names(self) -> list[str]:
        """Return the variables that `fetch` operators of the global block read."""
        ops = self.described.blocks[0].ops
        return [name for op in ops if op.type == "fetch" for name in op.inputs.get("X", ())]

    def serialize_to_string(self) -> bytes:
        """Return the message ProgramDesc, Fluid's own format."""
        message: bytes = self.described.serialize_to_string()
        return message


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _described(var: Any) -> VarDesc | None:
    return None if var is None else VarDesc(var)
