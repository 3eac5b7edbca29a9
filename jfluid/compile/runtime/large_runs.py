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
    """Executable that is called once the run that made its arguments has ended and freed its memory."""

    _has_left_memory = False  # a run has freed a large block, and the heap holds the block

    @classmethod
    def give_back(cls) -> None:
        """Return what large runs have left free to the system: a compilation would divide the block."""
        if cls._has_left_memory:
            heap.give_back()
            cls._has_left_memory = False

    def __init__(self, run: Callable[..., Any]):
        self._run, self._is_first = run, True

    def __call__(self, *arguments: Any) -> Any:
        """Return the results of the executable."""
        with contextlib.suppress(RuntimeError):  # the run before failed: the executable tells it
            jax.block_until_ready(arguments)
        if hasattr(os, "sched_yield"):
            for _ in range(_YIELDS):
                os.sched_yield()
        if self._is_first:
            heap.give_back()  # blocks of other executables may be too small
            heap.set_apart()
            self._is_first = False
        LargeRun._has_left_memory = True
        return self._run(*arguments)
