"""When the loop turns to large requests and answers: a little of one at a time, while no small one is under way."""

import asyncio
import contextlib
from collections.abc import Iterator

from jfluid.serving.blocks import SMALL

# Seconds that a large request waits for small ones before each of its pieces: it goes on at 13 MB a second, however many
# of these there are.
_PATIENCE = 0.005


class Turns:
    """Whose turn it is. It is used from the server's loop only.

    Reading a piece of a large body, or making one of a large answer, takes a fraction of a millisecond. A small
    request goes round the loop several times; would each round have such a piece, it took twice as long.
    """

    def __init__(self) -> None:
        self._small = 0
        self._none = asyncio.Event()
        self._none.set()
        self._reading, self._writing = asyncio.Lock(), asyncio.Lock()

    @contextlib.contextmanager
    def under_way(self, size: int) -> Iterator[None]:
        """A context in which a request is answered whose body has so many bytes, all of which are there: that
        of a slow client does not count.
        """
        small = size <= SMALL
        self._small += small
        if small:
            self._none.clear()
        try:
            yield
        finally:
            self._small -= small
            if not self._small:
                self._none.set()

    async def reading(self) -> None:
        """Wait before the next piece of a large body is read."""
        await self._turn(self._reading)

    async def writing(self) -> None:
        """Wait before the next piece of a large answer is made."""
        await self._turn(self._writing)

    async def _turn(self, lock: asyncio.Lock) -> None:
        async with lock:
            await asyncio.sleep(0)  # what came in the meantime goes first
            if self._small:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await self._none.wait()
