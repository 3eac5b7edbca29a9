"""The Python functions that programs call by number.

A program names a function by its number in this table, as in Fluid: such a program runs only in the
process that built it. The table keeps no function alive. The numbers in the operators' attributes do, in a
program and in its copies, so a function is freed with the last program that calls it.
"""

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from jfluid import errors


class _Entry:
    def __init__(self, function: Callable[..., Any]):
        self.function = function


_entries: WeakValueDictionary[int, _Entry] = WeakValueDictionary()
_numbers = itertools.count()


class Number(int):
    """Index of a registered function, which stays registered while an index is referenced."""

    _entry: _Entry

    def __deepcopy__(self, memo: Any) -> "Number":
        return self

    def __reduce__(self) -> Any:
        return int, (int(self),)  # functions exist in one process only


def register(function: Callable[..., Any]) -> Number:
    """Register `function`, keep it alive, and return its index for programs."""
    number = Number(next(_numbers))
    number._entry = _entries[int(number)] = _Entry(function)
    return number


def find(number: int) -> Callable[..., Any]:
    """Return function `number`.

    Raises OpError if this process registered no such function, or no program that was made with it is
    there any more.
    """
    entry = _entries.get(number)
    if entry is None:
        raise errors.OpError(
            f"no Python function has the number {number} in this process; build the program here, "
            "because saved programs do not carry functions"
        )
    return entry.function
