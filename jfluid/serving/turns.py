"""Pace of large requests, which leave most of the processor to small requests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

_SHARE = 4  # times the duration of a piece of work
_LEAST = 0.001  # seconds of a rest
_RECENT = 0.1  # seconds after a small request

Pause = Callable[[], None]


def go_on() -> None:
    """Take no rest: the pause of small requests."""


class Turns:
    """Pace of large requests: reading, parsing, running and answering happen in pieces, with a rest after each piece.

    A rest lasts `_SHARE` times as long as the piece while small requests come, and no time otherwise. So all large
    requests together leave most of the event loop, of the model's thread and of Python's lock to small requests.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._small, self._last = 0, float("-inf")

    @contextlib.contextmanager
    def small(self) -> Iterator[None]:
        """Count a small request while it is under way."""
        self._small += 1
        try:
            yield
        finally:
            self._small -= 1
            self._last = time.monotonic()

    def rest(self, worked: float) -> float:
        """Return the seconds of the rest after a piece that took `worked` seconds."""
        if self._small or time.monotonic() - self._last < _RECENT:
            return max(_LEAST, _SHARE * worked)
        return 0.0

    def pauses(self) -> Pause:
        """Return a function that a thread calls between two pieces of a large request; it rests."""
        began = time.monotonic()

        def pause() -> None:
            nonlocal began
            time.sleep(self.rest(time.monotonic() - began))
            began = time.monotonic()

        return pause

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Take a turn of the event loop for a piece of a large request, one request at a time."""
        async with self._lock:
            await asyncio.sleep(0)  # all other ready tasks run first
            began = time.monotonic()
            yield
            await asyncio.sleep(self.rest(time.monotonic() - began))
