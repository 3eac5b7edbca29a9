"""Memory of requests and answers, which the system has back when nobody has it any more."""

import mmap
from typing import Any

import numpy as np

SMALL = 64 << 10  # bytes of a request, or of an array, that others need not be protected from


class Mapping(mmap.mmap):
    """A mapping of memory that is a file for the library that reads zip files."""

    def seekable(self) -> bool:
        """Return True; Python has it from 3.13 on."""
        return True


Block = bytearray | Mapping


def block(size: int) -> Block:
    """Return memory of that many bytes, zeros, that the system has back as soon as nobody has it.

    The heap keeps what is freed for steps (`jfluid.heap`), and a growing block is copied there.
    Pages are taken when they are written to first.
    """
    if size <= SMALL:
        return bytearray(size)
    found = Mapping(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def empty(size: int, dtype: Any) -> np.ndarray:
    """Return an array [size] in a block of its own."""
    if size * np.dtype(dtype).itemsize <= SMALL:
        return np.empty(size, dtype)
    return np.frombuffer(block(size * np.dtype(dtype).itemsize), dtype)
