"""What functions of machine code read and write, by a call's numbers: each writer of functions says it, all calls
are held against it (`calls.py`), and tests run every function on arrays that end there.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Array(NamedTuple):
    """An array of a call.

    Attributes:
        size: numbers that it has.
        kind: their dtype.
    """

    size: int
    kind: Any = np.float32


class Extents(NamedTuple):
    """What a call reads and writes.

    Attributes:
        given: the arrays that it reads, but for its numbers.
        made: the arrays that it makes.
        memory: float32 that a thread needs.
        holds: what has to hold of the numbers, in words and whether it does.
        signed: numbers that may be negative.
    """

    given: Sequence[Array]
    made: Sequence[Array]
    memory: int = 0
    holds: Iterable[tuple[str, bool]] = ()
    signed: Sequence[str] = ()


def parts(whole: int, size: int) -> int:
    """Return how many parts of a size there are, the last of which may be smaller; -1 for no size."""
    return -(-whole // size) if size > 0 else -1
