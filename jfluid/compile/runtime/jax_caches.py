"""What JAX keeps of functions with which programs are traced and computed.

It has no bound in bytes, and for traces none at all: so they are forgotten when there are many.

JAX traces each function of `jax.numpy` anew for other shapes, and keeps that as long as the function, which is as long as
the process. Of what operations outside of programs are compiled to it keeps thousands, of 1.4 MB each.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax

MOST_TRACED = 2048  # functions, with those that they call 17 KB each
MOST_COMPILED = 128
_TRACED, _COMPILED = "jaxpr_trace_duration", "backend_compile_duration"  # how JAX's events end
_LIBRARIES = ("jax.", "jfluid.")  # modules
_JITTED: type[Any] = type(jax.jit(lambda: 0))

_lock, _ours = threading.Lock(), threading.local()
_counts = {_TRACED: 0, _COMPILED: 0}  # since they were forgotten


@contextlib.contextmanager
def not_kept() -> Iterator[None]:
    """A context in which this thread compiles what JAX does not keep."""
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
    """Return how many functions JAX has traced since they were forgotten."""
    return _counts[_TRACED]


def look() -> None:
    """Have JAX forget what it has traced if that is much; of what it has compiled for itself that for functions of its
    own, and of this package. Those of users are compiled again after the former only.
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
