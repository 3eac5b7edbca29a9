"""Extents of the arrays that a kernel reads and writes, by a call's geometry.

Each `*_kernels.py` returns the extents of its kernels. `calls.py` checks each call against the extents, and tests
run every kernel on arrays that end there.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Array(NamedTuple):
    """Size and dtype of a call's array.

    Attributes:
        size: numbers that it has.
        kind: their dtype.
    """

    size: int
    kind: Any = np.float32


class Extents(NamedTuple):
    """Sizes of a call's arrays.

    Attributes:
        given: the arrays that it reads, but for its numbers.
        made: the arrays that it makes.
        memory: float32 that a thread needs.
        holds: conditions on the geometry: a text, and True if the condition holds.
    """

    given: Sequence[Array]
    made: Sequence[Array]
    memory: int = 0
    holds: Iterable[tuple[str, bool]] = ()


class KernelGroup(NamedTuple):
    """Declaration of the kernels of a file, which are compiled and registered together.

    Attributes:
        names: names of the kernels.
        geometry: names of the numbers of a call, in order.
        write: writes all kernels into a `Module`.
        extents: returns the extents of a kernel, by name, for a geometry.
        bits: bits of the vectors that the kernels need, see `processor.VectorUnit`.
    """

    names: Sequence[str]
    geometry: Sequence[str]
    write: Callable[[Any], None]
    extents: Callable[[str, Any], Extents]
    bits: int


def parts(whole: int, size: int) -> int:
    """Return the number of parts of a size, a smaller last part included; -1 for no size."""
    return -(-whole // size) if size > 0 else -1
