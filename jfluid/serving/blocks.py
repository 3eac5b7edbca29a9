"""Memory of requests and answers that returns to the system as soon as its last reference is gone."""

import ctypes
import functools
import mmap
import os
import queue
import sys
import threading
from typing import Any

import numpy as np

SMALL = 64 << 10  # bytes of a request, or of an array, that others need not be protected from
_WAITING = 4  # mappings
_DONTNEED = 4  # MADV_DONTNEED of <sys/mman.h>


class Mapping(mmap.mmap):
    """A mapping of memory that is a file for the library that reads zip files.

    The system takes 15 ms to have 64 MiB back, for which a thread without Python's lock waits; the
    one that lets go of the mapping does not.
    """

    def seekable(self) -> bool:
        """Return True; Python has it from 3.13 on."""
        return True

    def __del__(self) -> None:
        """Queue the mapping for the thread that gives memory back, unless the queue is long."""
        if _let_go.qsize() < _WAITING:
            _let_go.put(self)


_let_go: "queue.SimpleQueue[Mapping]" = queue.SimpleQueue()


def _give_back() -> None:
    """Give back the memory of mappings, one after the other."""
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):  # another C library
        madvise = None
    while True:
        mapping: Mapping | None = _let_go.get()
        if madvise is not None and mapping is not None:
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(mapping)), _DONTNEED)
        mapping = None


@functools.cache
def _giver() -> threading.Thread:
    """Return the thread that gives memory back, started with the first mapping."""
    thread = threading.Thread(target=_give_back, name="memory of requests", daemon=True)
    thread.start()
    return thread


def let_others_go_first() -> None:
    """Give the processor to other threads than the one that calls this, which have less to do."""
    if sys.platform.startswith("linux"):  # elsewhere it is of the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


Block = bytearray | Mapping


def block(size: int) -> Block:
    """Return `size` zero bytes that the system gets back when the last reference is gone.

    The heap keeps freed memory for steps (`jfluid.host.heap`), and a growing block is copied there.
    Pages are taken when they are written to first.
    """
    if size <= SMALL:
        return bytearray(size)
    _giver()
    found = Mapping(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def empty(size: int, dtype: Any) -> np.ndarray:
    """Return an uninitialized array [size] in a separate block."""
    if size * np.dtype(dtype).itemsize <= SMALL:
        return np.empty(size, dtype)
    return np.frombuffer(block(size * np.dtype(dtype).itemsize), dtype)
