"""Numbers of a program's random streams."""

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from jfluid.ir import schema
from jfluid.ir.types import EMPTY_NAME

SUFFIX = "@RECOMPUTE"  # of variables that recomputation repeats


class _Op(Protocol):
    type: str
    block: Any
    outputs: dict[str, list[str]]

    @property
    def input_arg_names(self) -> list[str]: ...


class Streams:
    """Numbers of the random operators that were appended to a program, counted for each type.

    The number is the operator's position among the operators of its type: a program that is built twice draws
    the same numbers whatever the names of its variables. A copy of a program, and the startup program of a
    parameter server, keep the numbers of the original program.
    """

    def __init__(self, ops: Iterable[_Op] = ()) -> None:
        self._numbers: dict[tuple[str, str], str] = {}  # by type and the name of the first output
        self._counts: Counter[str] = Counter()
        for op in _as_made(ops):
            self.add(op)

    def add(self, op: _Op) -> None:
        """Assign a number to an operator, unless it draws nothing or repeats a numbered operator."""
        if schema.current().draws(op.type):
            name = (op.type, first_output(op))
            if name not in self._numbers:
                self._numbers[name] = str(self._counts[op.type])
                self._counts[op.type] += 1

    def add_piece(self, op: _Op, piece: str, index: int) -> None:
        """Assign a number to the operator that initializes `piece`, piece `index` of the output of `op`."""
        whole = self._numbers.get((op.type, first_output(op)))
        if whole is not None:
            self._numbers[op.type, piece] = f"{whole}.{index}"

    def uid(self, op_type: str, output: str) -> int:
        """Return 32 bits that identify the stream of the operator with this type and first output.

        Without a number, as for an operator that a pass put into the program, the output's name is hashed.
        """
        output = original_name(output)
        number = self._numbers.get((op_type, output))
        return _hashed(output) if number is None else uid_at(op_type, number)

    def copy(self) -> "Streams":
        """Return numbers that continue independently."""
        twin = Streams()
        twin._numbers, twin._counts = dict(self._numbers), self._counts.copy()
        return twin

    def deviations(self, ops: Iterable[_Op]) -> list[tuple[str, str, str | None]]:
        """Return (type, first output, number) of each random operator that saving and loading would renumber."""
        ops, found = list(ops), []
        plain = Streams(ops)
        for op in _as_made(ops):
            name = first_output(op)
            number = self._numbers.get((op.type, name))
            if number != plain._numbers[op.type, name]:
                found.append((op.type, name, number))
        return found


def uid_at(op_type: str, number: str | int) -> int:
    """Return 32 bits that identify the stream of the operator with this number among operators of its type."""
    return _hashed(f"{op_type} {number}")


def _hashed(text: str) -> int:
    return zlib.crc32(text.encode())


def _as_made(ops: Iterable[_Op]) -> list[_Op]:
    """Return the random operators in the order of construction: initializers of parameters are prepended."""
    drawing = [op for op in ops if schema.current().draws(op.type)]
    first = [op for op in drawing if _initializes(op)]
    return first[::-1] + [op for op in drawing if not _initializes(op)]


def _initializes(op: _Op) -> bool:
    found = op.block.find_var_recursive(first_output(op))
    return not op.input_arg_names and found is not None and bool(found.persistable)


def first_output(op: _Op) -> str:
    """Return the name of an operator's first output; its type where it has none."""
    found = (n for names in op.outputs.values() for n in names if n != EMPTY_NAME)
    return original_name(next(found, op.type))


def original_name(name: str) -> str:
    """Return a variable's name without the suffix of recomputation."""
    return name.split(SUFFIX)[0]
