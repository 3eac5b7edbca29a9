"""Numbers of a program's random streams."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jfluid.ir import schema
from jfluid.ir.recompute import SUFFIX
from jfluid.ir.variable import EMPTY_NAME

if TYPE_CHECKING:
    from jfluid.ir.operator import Operator


class Streams:
    """Numbers of the random operators that were appended to a program, counted for each type.

    An operator's number follows from its position among the operators of its type, so that a program
    that is built twice draws the same numbers whatever its variables are called. A copy of a program
    takes the numbers with it: an operator keeps its number whatever is removed from the copy.
    """

    def __init__(self, ops: Iterable["Operator"] = ()) -> None:
        self._numbers: dict[tuple[str, str], int] = {}  # by type and the name of the first output
        self._counts: Counter[str] = Counter()
        for op in _as_made(ops):
            self.add(op)

    def add(self, op: "Operator") -> None:
        """Number an operator, unless it draws nothing or repeats a numbered one."""
        if schema.current().draws(op.type):
            name = (op.type, first_output(op))
            if name not in self._numbers:
                self._numbers[name] = self._counts[op.type]
                self._counts[op.type] += 1

    def number(self, op_type: str, output: str) -> int | None:
        """Return the number of the operator of a type whose first output is `output`; None where no
        such operator was appended, as in programs that are put together from operators of others.
        """
        return self._numbers.get((op_type, original_name(output)))

    def copy(self) -> "Streams":
        """Return numbers that continue independently."""
        twin = Streams()
        twin._numbers, twin._counts = dict(self._numbers), self._counts.copy()
        return twin

    def deviations(self, ops: Iterable["Operator"]) -> list[tuple[str, str, int | None]]:
        """Return (type, first output, number) of the random operators among `ops` whose numbers differ
        from those that they would have in a program that was read.
        """
        ops, found = list(ops), []
        plain = Streams(ops)
        for op in _as_made(ops):
            name = first_output(op)
            number = self.number(op.type, name)
            if number != plain.number(op.type, name):
                found.append((op.type, name, number))
        return found


def _as_made(ops: Iterable["Operator"]) -> list["Operator"]:
    """Return the random operators in the order in which they were made, as far as a program tells:
    each initializer of a parameter is put before those that are there.
    """
    drawing = [op for op in ops if schema.current().draws(op.type)]
    first = [op for op in drawing if _initializes(op)]
    return first[::-1] + [op for op in drawing if not _initializes(op)]


def _initializes(op: "Operator") -> bool:
    found = op.block.find_var_recursive(first_output(op))
    return not op.input_arg_names and found is not None and bool(found.persistable)


def first_output(op: "Operator") -> str:
    """Return the name of an operator's first output; its type where it has none."""
    found = (n for names in op.outputs.values() for n in names if n != EMPTY_NAME)
    return original_name(next(found, op.type))


def original_name(name: str) -> str:
    """Return the name of the variable that recomputation repeats as `name`; other names as they are."""
    return name.split(SUFFIX)[0]
