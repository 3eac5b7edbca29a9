"""One thread for NumPy's matrix products while steps are interpreted.

Threads of OpenBLAS wait for each other in loops that keep a processor busy. A compilation goes on beside the steps, and
takes the processors from these threads. Beside other busy processes a product of 2 ms took 40 ms with two threads, and
3 ms with one.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_inside: list[Any] = []  # the limit of each thread that interprets, the first of which restores the former number


@functools.cache
def _libraries() -> Any:
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit matrix products to one thread until the last of several interpreters is done."""
    with _lock:
        _inside.append(_libraries().limit(limits=1))
    try:
        yield
    finally:
        with _lock:
            last = _inside.pop()
            if not _inside:
                last.restore_original_limits()
