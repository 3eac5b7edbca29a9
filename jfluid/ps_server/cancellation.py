"""Waits of calls: they end when what they wait for is there, or when their caller has gone."""
import contextlib
import threading
from collections.abc import Callable, Iterator

from jfluid.ps_server.errors import StateError

# Whether the caller of a call is still there.
Alive = Callable[[], bool]
# How long a waiting call sleeps before it looks whether its caller is still there.
LOOK_S = 0.5


def always() -> bool:
    """A caller that is there."""
    return True


def wait(changed: threading.Condition, done: Callable[[], bool], alive: Alive) -> None:
    """Wait until `done`, which is asked again when `changed` is notified; its lock is held.

    Raises StateError when the caller has gone, and what `done` raises.
    """
    while not done():
        _look(alive)
        changed.wait(LOOK_S)


@contextlib.contextmanager
def held(lock: threading.Lock, alive: Alive) -> Iterator[None]:
    """Hold a lock within. Raises StateError when the caller has gone before the lock is free."""
    while not lock.acquire(timeout=LOOK_S):
        _look(alive)
    try:
        yield
    finally:
        lock.release()


def _look(alive: Alive) -> None:
    if not alive():
        raise StateError("the caller has gone")
