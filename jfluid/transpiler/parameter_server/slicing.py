"""Slicing a tensor into consecutive rows, one piece for each server where that pays."""

import math
from collections.abc import Sequence


def slices(shape: Sequence[int], count: int, smallest: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return (first row, shape) of at most `count` pieces of about equal size, in whole rows.

    A piece has at least `smallest` elements. A tensor of fewer than two times `smallest` elements stays in one
    piece. The last piece has the remaining elements.
    """
    elements, row = math.prod(shape), math.prod(shape[1:])
    count = max(1, min(count, elements // smallest))
    rows = math.ceil(math.ceil(elements / count) / row)
    firsts = range(0, shape[0], rows)
    if len(firsts) == 1:
        return [(0, tuple(shape))]
    return [(first, (min(rows, shape[0] - first), *shape[1:])) for first in firsts]
