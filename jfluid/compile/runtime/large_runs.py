"""Runs of executables with large intermediate results, one after another.

XLA takes the memory of intermediate results when a run is called, though the run before it may still hold as much. Both
blocks would stay in the heap: a program of 800 MB of intermediate results would keep 1.6 GB.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax

from jfluid.host import heap

LARGE = 64 << 20
# A thread of XLA frees the memory shortly after the results are there: at once, or after milliseconds on a machine that
# other processes use. A run waits for it, for at most this share of the time since the run before.
_PATIENCE = 0.02
_PAUSE = 1e-4  # seconds


class LargeRun:
    """Executable that is called once the run that made its arguments has ended and freed its memory.

    Args:
        run: the executable.
        size: bytes of its intermediate results.
    """

    _left = 0  # bytes of the block that runs leave in the heap
    _place = 0  # address of the block
    _called = 0.0  # time of the latest call

    @classmethod
    def give_back(cls) -> None:
        """Return what large runs have left free to the system: a compilation would divide the block."""
        if cls._left:
            cls._wait_until_free()
            heap.give_back()
            cls._left = 0

    @classmethod
    def _wait_until_free(cls) -> None:
        """Wait until a new block would lie where the block of the run before lies."""
        until = time.perf_counter() + (time.perf_counter() - cls._called) * _PATIENCE
        while (place := heap.place_of(cls._left)) > cls._place and time.perf_counter() < until:
            time.sleep(_PAUSE)
        cls._place = place  # where blocks lie from now on, if memory between steps has taken the place

    def __init__(self, run: Callable[..., Any], size: int):
        self._run, self._size, self._is_first = run, size, True

    def __call__(self, *arguments: Any) -> Any:
        """Return the results of the executable."""
        with contextlib.suppress(RuntimeError):  # the run before failed: the executable tells it
            jax.block_until_ready(arguments)
        if LargeRun._left:
            LargeRun._wait_until_free()
        if self._is_first or self._size > LargeRun._left > 0:
            heap.give_back()  # free blocks may be too small, and would stay beside a new block
            LargeRun._left = 0
        if self._is_first:
            heap.set_apart()
            self._is_first = False
        if not LargeRun._left and self._size < heap.MOST_KEPT:
            LargeRun._left, LargeRun._place = self._size, heap.place_of(self._size)
        LargeRun._called = time.perf_counter()
        return self._run(*arguments)
