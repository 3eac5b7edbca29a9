"""Columns of a matrix, cut out and put below one another, as gradients of slots are: one transposition.

XLA on CPUs makes an array of each part and copies all of them into another, dozens of kernels for the
slots of a click model. A transposition becomes part of what reads it.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import Array, lax

# Primitives that cut columns out, or leave them as they are.
FOLLOWED = frozenset(("split", "reshape", "broadcast_in_dim"))
FEWEST = 4  # parts; XLA copies fewer as fast


class Columns(NamedTuple):
    """A part of a matrix: `width` columns from `start` on, whatever dimensions of 1 it has, and however its
    rows are divided among replicas.
    """

    matrix: Array
    start: int
    width: int


def of(equation: Any, operand: Any, part: Columns | None) -> list[Columns | None]:
    """Return which columns each result of a primitive is; None where it is no part of a matrix.

    Args:
        operand: its first.
        part: which columns that is.
    """
    name, params = equation.primitive.name, equation.params
    if name == "split" and operand.ndim > 1 and params["axis"] == operand.ndim - 1:
        matrix, ends = matrix_of(operand), itertools.accumulate(params["sizes"])
        return [Columns(matrix, end - n, n) for end, n in zip(ends, params["sizes"])]
    if part is not None and name in ("reshape", "broadcast_in_dim"):
        given, after = (v.aval.shape for v in (equation.invars[0], equation.outvars[0]))
        if keeps_columns(name, given, after):
            return [part]
    return [None] * len(equation.outvars)


def keeps_columns(name: str, given: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a primitive gives no other columns, when it changes a shape: dimensions of 1 come or go, or
    rows are divided among replicas.
    """
    divided = name == "reshape" and given[-1:] == after[-1:]
    return divided or [n for n in given if n != 1] == [n for n in after if n != 1]


def matrix_of(array: Array) -> Array:
    """Return an array with all dimensions but the last as rows."""
    columns = array.shape[-1]
    return lax.reshape(array, (array.size // columns, columns)) if array.ndim > 2 else array


class Strips(NamedTuple):
    """`number` parts of a matrix below one another, each of `width` columns, neighbours from `start` on."""

    matrix: Array
    start: int
    width: int
    number: int
    backwards: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.number * self.matrix.shape[0], self.width

    @property
    def first(self) -> int:
        """The column that the first strip begins at."""
        return self.start + (self.number - 1) * self.width if self.backwards else self.start

    @property
    def step(self) -> int:
        """Columns from one strip to the next."""
        return -self.width if self.backwards else self.width

    def array(self) -> Array:
        """Return them below one another."""
        (matrix, start, width, number, backwards), rows = self, self.matrix.shape[0]
        cut = lax.slice(matrix, (0, start), (rows, start + number * width))
        turned = lax.transpose(lax.reshape(cut, (rows, number, width)), (1, 0, 2))
        turned = lax.rev(turned, (0,)) if backwards else turned
        return lax.reshape(turned, (number * rows, width))


def stacked(parts: Sequence[Columns | None]) -> Strips | None:
    """Return parts below one another; None where they are not neighbours of one width in one matrix."""
    known = [p for p in parts if p is not None]
    if len(known) < max(len(parts), FEWEST):
        return None
    ordered = sorted(known, key=lambda p: p.start)
    matrix, start, width = ordered[0]
    for i, part in enumerate(ordered):
        if part.matrix is not matrix or part[1:] != (start + i * width, width):
            return None
    backwards = known[0].start > start  # gradients of operators come in the opposite order
    if known != (ordered[::-1] if backwards else ordered):
        return None
    return Strips(matrix, start, width, len(known), backwards)
