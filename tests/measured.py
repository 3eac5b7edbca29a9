"""What a call takes of memory and processor time, held against a limit.

`tracemalloc` and `time.process_time` count the whole process: a table of the interpreter that
grows, a thread of an earlier test. So a call that takes too much is made again, three times at
most; what it takes itself, it takes each time.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def call_within(call: Callable[[], Result], *, peak: float, seconds: float = float("inf")) -> Result:
    """Return what ``call()`` returns; AssertionError where each of three calls takes ``peak`` bytes
    or more at a time, or as many processor ``seconds``. NumPy's arrays count, what C++ allocates
    does not. What it raises is raised."""
    costs = []
    for _ in range(3):
        if costs:
            gc.collect()
        tracemalloc.start()
        started = time.process_time()
        try:
            result = call()
        finally:
            costs.append((time.process_time() - started, tracemalloc.get_traced_memory()[1]))
            tracemalloc.stop()
        if costs[-1][0] < seconds and costs[-1][1] < peak:
            return result
    raise AssertionError(f"expected less than {seconds} s and {peak:.0f} bytes; (s, bytes): {costs}")
