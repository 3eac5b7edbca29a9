"""Rewrite a concatenation of adjacent column slices as one transpose.

Gradients of slots are such slices. XLA:CPU copies each slice and then their concatenation, dozens of kernels for a
click model. A transpose becomes part of the kernel that reads it.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import Array, lax

from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TracedValue

FEWEST = 4  # parts; XLA copies fewer as fast


class Columns(NamedTuple):
    """Slice of a matrix: `width` columns from `start` on.

    The value may have further dimensions of 1, and rows that are divided among replicas.
    """

    matrix: Array
    start: int
    width: int


class ConcatOfSlices(Rewrite):
    """Rewrite of concatenations of slices."""

    def __init__(self) -> None:
        self._columns: dict[TracedValue, Columns] = {}

    def follow(self, equation: Any, values: Sequence[TracedValue], results: Sequence[TracedValue]) -> None:
        """Record the columns that a split cuts out, or that a reshape keeps."""
        name, params = equation.primitive.name, equation.params
        if name == "split" and values[0].order is None:
            operand = values[0].given()
            if operand.ndim > 1 and params["axis"] == operand.ndim - 1:
                matrix, ends = matrix_of(operand), itertools.accumulate(params["sizes"])
                parts = (Columns(matrix, end - n, n) for end, n in zip(ends, params["sizes"]))
                self._columns.update(zip(results, parts))
        elif values and (part := self._columns.get(values[0])) is not None and keeps_columns(equation):
            self._columns[results[0]] = part

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return a concatenation as a transpose, or None for any other equation."""
        if equation.primitive.name != "concatenate" or equation.params["dimension"]:
            return None
        shape = equation.outvars[0].aval.shape
        strips = stacked([self._columns.get(v) for v in values])
        if strips is None or strips.shape != shape:
            return None
        return [TracedValue(strips.array())]


def keeps_columns(equation: Any) -> bool:
    """Return True if an equation only adds or removes dimensions of 1, or divides rows among replicas."""
    if equation.primitive.name not in ("reshape", "broadcast_in_dim", "squeeze", "reduce_sum"):
        return False
    given, after = (v.aval.shape for v in (equation.invars[0], equation.outvars[0]))
    divided = equation.primitive.name == "reshape" and given[-1:] == after[-1:]
    return divided or [n for n in given if n != 1] == [n for n in after if n != 1]


def matrix_of(array: Array) -> Array:
    """Return an array with all dimensions but the last as rows."""
    columns = array.shape[-1]
    return lax.reshape(array, (array.size // columns, columns)) if array.ndim > 2 else array


class Strips(NamedTuple):
    """Concatenation of `number` adjacent slices of a matrix along the rows, each of `width` columns from `start` on."""

    matrix: Array
    start: int
    width: int
    number: int
    backwards: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.number * self.matrix.shape[0], self.width

    def array(self) -> Array:
        """Return the concatenation."""
        (matrix, start, width, number, backwards), rows = self, self.matrix.shape[0]
        cut = lax.slice(matrix, (0, start), (rows, start + number * width))
        turned = lax.transpose(lax.reshape(cut, (rows, number, width)), (1, 0, 2))
        turned = lax.rev(turned, (0,)) if backwards else turned
        return lax.reshape(turned, (number * rows, width))


def stacked(parts: Sequence[Columns | None]) -> Strips | None:
    """Return the concatenation of slices as `Strips`, or None if the slices are not adjacent or differ in width."""
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
