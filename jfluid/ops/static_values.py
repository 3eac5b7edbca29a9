"""Values that are known while a program is traced: shapes and bounds that Fluid gives as tensors.

While a block is lowered a known value is a NumPy array; everything else is a tracer. While shapes
are inferred nothing is known, and a placeholder stands for each unknown number: where one was read
the inference runs again with another placeholder, and a dimension that differs is -1.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from jfluid import errors

PLACEHOLDERS = (2520, 5040)
_MOST_NUMBERS = 1 << 14  # of a shape or of sections
# Elements of an array: XLA and NumPy count bytes in 64 bits, and XLA ends the process where the count overflows.
_MOST_ELEMENTS = 1 << 56


class Unknown(errors.OpError):
    """Error: a number that XLA needs at compile time depends on data.

    A step evaluates the number first and is compiled for it (`jfluid.compile.runtime.specialize`); where
    nothing can, this is the error that users see.

    Attributes:
        value: the requested value, as traced; None for a loop's number of iterations.
        path: the position of the operator that asked in its block, after those of the conditions
            in whose blocks it stands.
        name: the variable whose value it is, or what counts a loop's iterations; None where no
            variable before the operator holds it, or where it changes in a loop.
    """

    value: Any = None
    path: tuple[int, ...] = ()
    name: str | None = None


@dataclass
class Inference:
    """Evaluation of an operator for shape inference: the placeholder, and True once it was read."""

    placeholder: int
    was_read: bool = False


_inference: contextvars.ContextVar[Inference | None] = contextvars.ContextVar("inference", default=None)


@contextlib.contextmanager
def inferring(placeholder: int) -> Iterator[Inference]:
    """Read unknown numbers as `placeholder` in this context."""
    current = Inference(placeholder)
    token = _inference.set(current)
    try:
        yield current
    finally:
        _inference.reset(token)


def inference() -> Inference | None:
    """Return the evaluation for shapes that is going on; None while a program is lowered."""
    return _inference.get()


def placeholder() -> int | None:
    """Return the number that stands for unknown ones while shapes are inferred; None while a program is lowered."""
    current = inference()
    if current is None:
        return None
    current.was_read = True
    return current.placeholder


def is_static(value: object) -> bool:
    """Return True if the value can be read while tracing."""
    return not isinstance(value, jax.core.Tracer)


def ints(value: Any, what: str) -> tuple[int, ...]:
    """Return the static integers of a tensor, or of a list of one-element tensors; raise for unknown values.

    `what` names the tensor in errors. While shapes are inferred, unknown entries are `placeholder()`.
    """
    if isinstance(value, (list, tuple)):
        return tuple(n for v in value for n in ints(v, what))
    if is_static(value):
        return tuple(int(n) for n in np.asarray(value).ravel())
    stand_in = placeholder()
    if stand_in is not None:
        count = int(np.prod(value.shape))
        if count > _MOST_NUMBERS:
            raise errors.ShapeError(f"{what}: expected at most {_MOST_NUMBERS} numbers, found {count}")
        return (stand_in,) * count
    raise unknown(value, what)


def sizes(value: Any, what: str) -> tuple[int, ...]:
    """Return static integers that are sizes of dimensions; raise OutOfMemoryError for more elements than memory has."""
    found = ints(value, what)
    check_elements(found, what)
    return found


def check_elements(shape: Sequence[int], what: str) -> None:
    """Raise OutOfMemoryError if an array of this shape has more elements than any memory; a size of 0 counts as 1."""
    count = prod(max(size, 1) for size in shape)
    if count > _MOST_ELEMENTS:
        raise errors.OutOfMemoryError(f"{what}: {list(shape)} are {count} elements: more than any memory holds")


def unknown(value: Any, what: str) -> Unknown:
    """Return the error for a traced value that must be static.

    Args:
        what: the beginning of the message.
    """
    found = Unknown(
        f"{what} depends on data, but XLA needs it when the program is compiled. Compute it from shapes and "
        f"constants (shape, slice, fill_constant, integer arithmetic), or give it as a number."
    )
    found.value = value
    return found


def flag(value: float, what: str) -> bool:
    """Return the truth value of a static one-element tensor.

    Args:
        what: the name of the tensor in errors.
    """
    return bool(ints(value, what)[0])
