"""Cutting a tensor into stretches of rows, one for each server where that pays."""
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """A stretch of rows of a tensor.

    Attributes:
        index: its position among the pieces.
        first: its first row.
        shape: its shape; `shape[0]` rows.
        label: what the names of its parts end in, ".block0"; empty when the tensor is in one piece.
    """

    index: int
    first: int
    shape: tuple[int, ...]
    label: str

    @property
    def rows(self) -> int:
        return self.shape[0]


def slices(shape: Sequence[int], count: int, smallest: int) -> list[Piece]:
    """At most `count` pieces of about equal size, whole rows each, of `smallest` elements at least.

    A tensor of fewer than two times `smallest` elements stays in one piece. The last piece has what is left.
    """
    elements, row = math.prod(shape), math.prod(shape[1:])
    count = max(1, min(count, elements // smallest))
    rows = math.ceil(math.ceil(elements / count) / row)
    firsts = range(0, shape[0], rows)
    if len(firsts) == 1:
        return [Piece(0, 0, tuple(shape), "")]
    return [Piece(i, first, (min(rows, shape[0] - first), *shape[1:]), f".block{i}") for i, first in enumerate(firsts)]
