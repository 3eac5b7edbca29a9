"""The Python functions that programs call by number.

A program names a function by its place in this table, as in Fluid: such a program runs only in the
process that built it.
"""

import threading
from collections.abc import Callable
from typing import Any

from jfluid import errors

_functions: list[Callable[..., Any]] = []
_lock = threading.Lock()


def register(function: Callable[..., Any]) -> int:
    """Keep `function` for the life of the process; returns the number that programs know it by."""
    with _lock:
        _functions.append(function)
        return len(_functions) - 1


def find(number: int) -> Callable[..., Any]:
    """Return function `number`. Raises OpError when this process registered no such function."""
    if not 0 <= number < len(_functions):
        raise errors.OpError(
            f"no Python function has the number {number} in this process; build the program here, "
            "because saved programs do not carry functions"
        )
    return _functions[number]
