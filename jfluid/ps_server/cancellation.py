"""Waits of calls that end, too, when the caller has gone away."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from jfluid.ps_server.errors import StateError

# Whether the caller of a call still waits for the answer.
Alive = Callable[[], bool]
# Seconds between two checks of a waiting call that its caller is still there.
LOOK_S = 0.5


def always() -> bool:
    """Return a caller that never goes away."""
    return True


def wait(changed: threading.Condition, done: Callable[[], bool], alive: Alive) -> None:
    """Wait until `done`, which is evaluated again when `changed` is notified.

    The caller holds the lock of `changed`.

    Raises StateError when the caller has gone, and the errors of `done`.
    """
    while not done():
        _look(alive)
        changed.wait(LOOK_S)


@contextlib.contextmanager
def held(lock: threading.Lock, alive: Alive) -> Iterator[None]:
    """Hold a lock while the context lasts.

    Raises StateError when the caller has gone before the lock is free.
    """
    while not lock.acquire(timeout=LOOK_S):
        _look(alive)
    try:
        yield
    finally:
        lock.release()


def _look(alive: Alive) -> None:
    if not alive():
        raise StateError("the caller has gone")
