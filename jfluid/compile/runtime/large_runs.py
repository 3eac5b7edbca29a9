"""Runs of executables with large intermediate results, one after another.

XLA takes the memory of intermediate results when a run is called, though the run before it may still hold as much. Both
blocks would stay in the heap: a program of 800 MB of intermediate results would keep 1.6 GB.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax

from jfluid.host import heap

LARGE = 64 << 20
_YIELDS = 4  # a thread of XLA frees the memory shortly after the results are there


class LargeRun:
    """Executable that is called once the run that made its arguments has ended and freed its memory.

    Args:
        run: the executable.
        size: bytes of its intermediate results.
    """

    _left = 0  # bytes of the largest block that runs leave in the heap

    @classmethod
    def give_back(cls) -> None:
        """Return what large runs have left free to the system: a compilation would divide the block."""
        if cls._left:
            heap.give_back()
            cls._left = 0

    def __init__(self, run: Callable[..., Any], size: int):
        self._run, self._size, self._is_first = run, size, True

    def __call__(self, *arguments: Any) -> Any:
        """Return the results of the executable."""
        with contextlib.suppress(RuntimeError):  # the run before failed: the executable tells it
            jax.block_until_ready(arguments)
        if hasattr(os, "sched_yield"):
            for _ in range(_YIELDS):
                os.sched_yield()
        if self._is_first or self._size > LargeRun._left > 0:
            heap.give_back()  # blocks of other executables may be too small, and would stay beside a new block
            LargeRun._left = 0
        if self._is_first:
            heap.set_apart()
            self._is_first = False
        if self._size < heap.MOST_KEPT:
            LargeRun._left = max(LargeRun._left, self._size)
        return self._run(*arguments)
