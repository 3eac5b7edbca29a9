"""Operations of a listing: places of operands and results in one list of values."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Interrupted(Exception):
    """Signal that the interpreter was asked to stop."""


class ResultType(NamedTuple):
    """Type of a result of an equation. JAX takes several times as long to make a type for other sizes.

    Attributes:
        bytes: size of the array; 0 for random keys.
    """

    shape: tuple[int, ...]
    dtype: Any
    bytes: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any) -> "ResultType":
        """Return the type of arrays of a shape. A dimension of 0 counts as 1: NumPy multiplies the others, too."""
        plain = isinstance(dtype, np.dtype)
        return cls(shape, dtype, math.prod([n or 1 for n in shape]) * dtype.itemsize if plain else 0)


class NumpyOperation(NamedTuple):
    """Equation with its rule, the places of operands and results, and the values that no later equation reads."""

    name: str  # of the primitive
    run: Callable[..., Any]
    operands: list[int]
    results: list[int]
    several: bool
    last: list[int]


def note_last_reads(operations: Sequence[NumpyOperation], made: set[int]) -> None:
    """Note in each operation the values, among places of results to drop, that no later operation reads."""
    later = set[int]()
    for operation in reversed(operations):
        touched = {*operation.operands, *operation.results} & made
        operation.last.extend(touched - later)
        later |= touched


def execute(operations: Sequence[NumpyOperation], held: list[Any], stop: Callable[[], bool] | None = None) -> None:
    """Run operations on the values at their places. Raises Interrupted once `stop` says so."""
    for _, run, operands, results, several, last in operations:
        if stop is not None and stop():
            raise Interrupted
        found = run(*[held[at] for at in operands])
        if several:
            for at, value in zip(results, found, strict=True):
                held[at] = value
        else:
            held[results[0]] = found
        for at in last:
            held[at] = None
