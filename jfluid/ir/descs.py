"""Fluid's descriptions of operators, as scripts read and change them: `operator.desc.type()`.

In Fluid an Operator stands for a description that its C++ holds. Here the Operator holds everything,
and a description is another face of it: what is set on one is seen on the other.
"""

from collections.abc import Iterable
from typing import Any, Protocol


class _Op(Protocol):
    block: Any
    type: str
    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]
    attrs: dict[str, Any]

    @property
    def attr_names(self) -> list[str]: ...

    def attr(self, name: str) -> Any: ...
    def has_attr(self, name: str) -> bool: ...
    def attr_type(self, name: str) -> str: ...
    def set_attr(self, name: str, value: Any) -> None: ...
    def set_input(self, slot: str, names: Iterable[str]) -> None: ...
    def set_output(self, slot: str, names: Iterable[str]) -> None: ...
    def rename_input(self, old: str, new: str) -> None: ...
    def rename_output(self, old: str, new: str) -> None: ...
    def to_message(self) -> Any: ...
    def check(self) -> None: ...
    def infer_shape(self) -> None: ...


class OpDesc:
    """The description of one operator.

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
        self._op.attrs.pop(name, None)
        self._op.block.program._touch()

    def block(self) -> Any:
        """Return the Block that the operator belongs to."""
        return self._op.block

    def copy_from(self, other: "OpDesc") -> None:
        """Take type, slots and attributes of another description."""
        self._op.type = other.type()
        self._op.inputs, self._op.outputs = other.inputs(), other.outputs()
        self._op.attrs = dict(other._op.attrs)
        self._op.block.program._touch()

    def check_attrs(self) -> None:
        """Check the attributes against the operator's definition. Raises AttributeTypeError."""
        self._op.check()

    def infer_shape(self, block: Any) -> None:
        """Set shapes and types of the outputs from those of the inputs. `block` has no effect: it
        is the operator's.
        """
        self._op.infer_shape()

    def infer_var_type(self, block: Any) -> None:
        """No effect: `infer_shape` sets the kinds of variables, too."""

    def serialize_to_string(self) -> bytes:
        """Return the message OpDesc of program files."""
        message: bytes = self._op.to_message().SerializeToString()
        return message
