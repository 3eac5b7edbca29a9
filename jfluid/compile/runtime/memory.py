"""Out-of-memory errors of steps, as a named error."""

import math
import re
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.ir.program import Program
from jfluid.ir.variable import Variable

# Bytes of one value from which on a step is waited for: where it gets no memory the error comes before
# anybody reads its results, which XLA answers by ending the process.
LARGE = 1 << 30
_MOST = 1 << 60  # bytes of one value: XLA ends the process where their number overflows
_SIGNS = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|bad_alloc|Unable to allocate|array is too big")
_ASKED = re.compile(r"(\d+ bytes|[\d.]+ [KMGTPE]i?B)")


def is_large(values: Iterable[Any]) -> bool:
    """Return True if a step computes a value of `LARGE` bytes or more."""
    return any(size_of(leaf) >= LARGE for leaf in jax.tree.leaves(list(values)))


def size_of(leaf: Any) -> int:
    """Return the bytes of an array or of an abstract array; 0 if a dimension is symbolic.

    A dimension of 0 counts as 1: XLA and NumPy multiply the other dimensions, too.
    """
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or not all(isinstance(size, int | np.integer) for size in shape):
        return 0
    return int(math.prod(size or 1 for size in shape) * getattr(dtype, "itemsize", 1))


def check(name: str, value: Any) -> None:
    """Raise OutOfMemoryError for a value with more bytes than any memory, which XLA cannot count."""
    for leaf in jax.tree.leaves(value):
        if size_of(leaf) > _MOST:
            raise errors.OutOfMemoryError(
                f"{name} would have {size_of(leaf)} bytes, of shape {list(leaf.shape)}: more than any memory holds"
            )


def is_lack(error: BaseException) -> bool:
    """Return True if an error of XLA, NumPy or Python reports a lack of memory."""
    if isinstance(error, errors.JFluidError):
        return False
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ValueError)) and _SIGNS.search(str(error)) is not None
    )


def named(error: BaseException, program: Program | None = None) -> errors.OutOfMemoryError | None:
    """Return the OutOfMemoryError for an error that reports a lack of memory, or None for any other error.

    Args:
        program: the program that was run; the error names its largest variable.
    """
    if not is_lack(error):
        return None
    asked = _ASKED.search(str(error))
    why = f"{asked[1]} were asked for" if asked else str(error).partition("\n")[0]
    text = f"there is not enough memory{f': {why}' if why else ''}"
    largest = None if program is None else max(program.list_vars(), key=_bytes, default=None)
    if largest is not None:
        op = largest.op
        by = f", which operator {op.type} makes{f' ({op.callsite})' if op.callsite else ''}" if op else ""
        text += f"\n  the largest variable of the program: {largest.name} {list(largest.shape)}{by}"
    found = errors.OutOfMemoryError(
        f"{text}\n  feed smaller batches, make the shapes smaller, or use a device with more memory"
    )
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    return found


def _bytes(var: Variable) -> int:
    """Return the bytes of a variable's elements, as far as its shape is known."""
    return math.prod(abs(d) for d in var.shape)
