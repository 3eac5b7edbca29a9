"""Runs of executables with large intermediate results: one block of the heap serves all runs.

XLA takes the memory of intermediate results anew in each run. A second block would stay in the heap: a program of
800 MB of intermediate results would keep 1.6 GB. There are two causes of a second block:

- XLA takes the memory of a run though the run before it has not freed as much yet.
- glibc aligns the block. It takes some bytes more, cuts them off, and keeps them for small values. The block that is
  free after the run is therefore too small for the next run.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from jfluid.host import heap

LARGE = 64 << 20
_ALIGNING_BYTES = 112  # what glibc takes beyond a block to align it to 64 bytes
_WAIT, _PAUSE = 0.25, 0.0005  # seconds


class LargeRun:
    """Executable that is called once the run that made its arguments has ended and freed its memory.

    Args:
        run: the executable.
        size: bytes of its intermediate results.
    """

    _left = 0  # bytes of the largest block that runs leave in the heap
    # The last run: bytes in use before the run, bytes of its intermediate results, and its thread.
    _last = (0, 0, 0)

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
        alone = self._waits_for_block()
        if self._is_first or not self._finds_block(alone):
            heap.give_back()  # free blocks may be too small, and would stay beside a new block
            LargeRun._left = 0
        if self._is_first:
            heap.give_back_code()
            heap.set_apart()
            self._is_first = False
        if self._size < heap.MOST_KEPT:
            LargeRun._left = max(LargeRun._left, self._size)
        LargeRun._last = heap.used_bytes(), self._size, threading.get_ident()
        return self._run(*arguments)

    @staticmethod
    def _waits_for_block() -> bool:
        """Wait until the last run has freed its block; return False if runs of further threads use the heap."""
        used, taken, thread = LargeRun._last
        alone = heap.keeps_blocks() and thread in (0, threading.get_ident())  # runs of two threads need two blocks
        end = time.monotonic() + _WAIT
        while alone and heap.used_bytes() > used + taken // 2 and time.monotonic() < end:
            time.sleep(_PAUSE)
        return alone

    def _finds_block(self, alone: bool) -> bool:
        """Return True if the run needs no memory beside what runs have left."""
        if self._size > LargeRun._left:
            return LargeRun._left == 0
        return not alone or heap.holds_free(self._size + _ALIGNING_BYTES)
