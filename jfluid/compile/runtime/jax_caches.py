"""Limits of JAX's caches of traced and compiled functions.

These caches have no limit in bytes, and the caches of traces have no limit at all: long caches are cleared.

JAX traces each function of `jax.numpy` anew for each shape, and keeps the trace as long as the function, which lives as
long as the process. It keeps thousands of executables for operations outside of programs, of 1.4 MB each.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax

MOST_TRACED = 2048  # functions of 17 KB each, called functions included
MOST_COMPILED = 128
_TRACED, _COMPILED = "jaxpr_trace_duration", "backend_compile_duration"  # how JAX's events end
_LIBRARIES = ("jax.", "jfluid.")  # modules
_JITTED: type[Any] = type(jax.jit(lambda: 0))

_lock, _ours = threading.Lock(), threading.local()
_counts = {_TRACED: 0, _COMPILED: 0}  # since the caches were cleared


@contextlib.contextmanager
def not_kept() -> Iterator[None]:
    """Exclude this thread's compilations inside the context from the count: JAX does not keep the executables."""
    _ours.compiles = True
    try:
        yield
    finally:
        _ours.compiles = False


def _count(event: str, duration_secs: float, **others: Any) -> None:
    kind = event.rpartition("/")[2]
    if kind == _TRACED or (kind == _COMPILED and not getattr(_ours, "compiles", False)):
        with _lock:
            _counts[kind] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def traced() -> int:
    """Return the number of functions that JAX has traced since the caches were cleared."""
    return _counts[_TRACED]


def look() -> None:
    """Clear JAX's caches if the caches are long.

    Many compiled functions clear only the caches of JAX's and this package's functions. Many traces clear all caches,
    also of users' functions.
    """
    with _lock:
        many = traced() >= MOST_TRACED
        if not many and _counts[_COMPILED] < MOST_COMPILED:
            return
        _counts.update({_TRACED: 0 if many else traced(), _COMPILED: 0})
    if many or gc.get_freeze_count():  # then not all can be found
        jax.clear_caches()
        return
    for found in gc.get_objects():
        if type(found) is _JITTED and str(found.__module__).startswith(_LIBRARIES):
            found.clear_cache()
