"""Values known while a program is traced: shapes and bounds that Fluid gives as tensors.

While a block is lowered a known value is a NumPy array; everything else is a tracer. While shapes are inferred
nothing is known, and a placeholder stands for each unknown number: the inference runs twice with different
placeholders, and a dimension that differs is -1.
"""
import contextlib
import contextvars
from collections.abc import Iterator

import jax
import numpy as np

from jfluid import errors

PLACEHOLDERS = (2520, 5040)
_placeholder: contextvars.ContextVar[int | None] = contextvars.ContextVar("placeholder", default=None)


@contextlib.contextmanager
def inferring(placeholder: int) -> Iterator[None]:
    """Within this context unknown numbers read as `placeholder`."""
    token = _placeholder.set(placeholder)
    try:
        yield
    finally:
        _placeholder.reset(token)


def placeholder() -> int | None:
    """The number that stands for unknown ones while shapes are inferred; None while a program is lowered."""
    return _placeholder.get()


def is_static(value: object) -> bool:
    """Whether the value can be read while tracing."""
    return not isinstance(value, jax.core.Tracer)


def ints(value, what: str) -> tuple[int, ...]:
    """The integers of a tensor (or of a list of one-element tensors) that must be known; `what` names it in errors.

    While shapes are inferred, unknown entries are `placeholder()`.
    """
    if isinstance(value, (list, tuple)):
        return tuple(n for v in value for n in ints(v, what))
    if is_static(value):
        return tuple(int(n) for n in np.asarray(value).ravel())
    if placeholder() is not None:
        return (placeholder(),) * int(np.prod(value.shape))
    raise errors.OpError(
        f"{what} depends on data, but XLA needs it when the program is compiled. Compute it from shapes and "
        f"constants (shape, slice, fill_constant, integer arithmetic), or give it as a number.")


def flag(value, what: str) -> bool:
    """The truth of a one-element tensor that must be known."""
    return bool(ints(value, what)[0])
