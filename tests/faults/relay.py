"""A TCP relay between two processes that talk over TCP, with faults that can be switched on and
off.

    with Network(seed=7) as network:
        relay = network.relay("127.0.0.1:7164", "trainer 0 to server 1")
        ...                                  # let the trainer take relay.endpoint for the server's
        relay.partition()
        ...
        relay.heal()

There is a relay for each pair of processes, so that a trainer can be cut off from one server and
not from another.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

_PIECE = 1 << 16
_PIECES_UNDER_WAY = 64


@dataclass(frozen=True)
class Conditions:
    """What happens to connections now.

    Attributes:
        delay_s: each piece of what is sent travels for a time between these.
        bytes_per_s: how much goes through in each direction of a connection; 0 for no limit.
        most: bytes of a piece, which has 1 to so many: with few of them a message dribbles in.
        cut_after: a connection ends when so many bytes, between these, have come from the client;
            (0, 0) for never.
        refuses: connections are closed as they come.
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    bytes_per_s: float = 0.0
    most: int = _PIECE
    cut_after: tuple[int, int] = (0, 0)
    refuses: bool = False


class Relay:
    """Passes on what comes to `endpoint`. Faults last until the next call of `heal`, also for
    connections that are there.

    Attributes:
        endpoint: "host:port" where it listens.
        cuts: connections that it has ended.
        log: (seconds since the relay began, what happened), the last thousand.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, to: str, name: str, seed: int):
        host, _, port = to.rpartition(":")
        self._to, self.name, self.endpoint = (host, int(port)), name, ""
        self._loop, self._began_s = loop, time.monotonic()
        # Pieces come as they come: what is drawn for them must not change where connections are
        # cut.
        self._random, self._cuts_random = (
            random.Random(f"{seed} {name}"),
            random.Random(f"cuts {seed} {name}"),
        )
        self._conditions, self._open = Conditions(), asyncio.Event()
        self._open.set()
        self._connections: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.cuts = 0
        self.log: deque[tuple[float, str]] = deque(maxlen=1000)

    # ---- faults, from any thread ----

    def cut(self) -> None:
        """End all connections at once."""
        self._do(self._cut_all, "cut")

    def cut_every(self, low: int, high: int) -> None:
        """End each connection when `low` to `high` bytes, drawn for each, have come from the client."""
        self._set("cut_after", (low, high))

    def delay(self, low_s: float, high_s: float) -> None:
        """Let everything travel for `low_s` to `high_s` seconds. The order stays."""
        self._set("delay_s", (low_s, high_s))

    def throttle(self, bytes_per_s: float) -> None:
        """Let so many bytes a second through, in each direction of each connection."""
        self._set("bytes_per_s", bytes_per_s)

    def dribble(self, most: int, bytes_per_s: float) -> None:
        """Let everything through in pieces of 1 to `most` bytes, with a pause after each."""
        self._set("most", most)
        self.throttle(bytes_per_s)

    def partition(self, refuse: bool = False) -> None:
        """Let nothing through. What is sent waits, as TCP would send it again until it comes
        through; with `refuse` connections are ended, and new ones refused."""
        if refuse:
            self._set("refuses", True)
            self.cut()
        else:
            self._do(self._open.clear, "partition")

    def heal(self) -> None:
        """No more faults; what was held back goes on."""

        def well() -> None:
            self._conditions = Conditions()
            self._open.set()

        self._do(well, "heal")

    def _set(self, field: str, value: object) -> None:
        def change() -> None:
            self._conditions = replace(self._conditions, **{field: value})

        self._do(change, f"{field} {value}")

    def _do(self, function: Callable[[], object], what: str) -> None:
        """Run a function on the relay's loop, and wait for it."""
        done = threading.Event()

        def run() -> None:
            self._note(what)
            function()
            done.set()

        self._loop.call_soon_threadsafe(run)
        if not done.wait(120):
            raise TimeoutError(f"{self.name}: the relay's loop does not answer")

    # ---- on the loop ----

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, what: str) -> None:
        self.log.append((time.monotonic() - self._began_s, what))

    def _cut_all(self) -> None:
        for connection in list(self._connections):
            self._cut(connection)

    def _cut(self, connection: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self.cuts += 1
            for writer in connection:
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._conditions.refuses:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        server_reader, server_writer = await asyncio.open_connection(*self._to)
        connection = writer, server_writer
        self._connections.add(connection)
        copies = [
            asyncio.create_task(self._copy(reader, server_writer, connection, counted=True)),
            asyncio.create_task(self._copy(server_reader, writer, connection, counted=False)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            self._connections.discard(connection)
            server_writer.transport.abort()

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        counted: bool,
    ) -> None:
        """Pass on what comes from one side, until it ends or the connection is cut."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES_UNDER_WAY)
        delivery = asyncio.create_task(self._deliver(under_way, writer))
        left = self._bytes_until_cut() if counted else 0
        due_s = 0.0
        try:
            while data := await reader.read(self._random.randint(1, self._conditions.most)):
                due_s = max(due_s, time.monotonic() + self._random.uniform(*self._conditions.delay_s))
                await under_way.put((due_s, data))
                if counted and self._conditions.cut_after[1]:
                    left = (left or self._bytes_until_cut()) - len(data)
                    if left <= 0:
                        await under_way.join()
                        self._note("cut after so many bytes")
                        self._cut(connection)
                        return
            await under_way.join()
        except OSError:
            pass
        finally:
            delivery.cancel()
            await asyncio.gather(delivery, return_exceptions=True)

    def _bytes_until_cut(self) -> int:
        return self._cuts_random.randint(*self._conditions.cut_after)

    async def _deliver(self, under_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, data = await under_way.get()
            try:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                await self._open.wait()
                with contextlib.suppress(OSError):
                    if not writer.is_closing():
                        writer.write(data)
                        await writer.drain()
                if self._conditions.bytes_per_s:
                    await asyncio.sleep(len(data) / self._conditions.bytes_per_s)
            finally:
                under_way.task_done()


class Network:
    """Relays, and the thread that they run in.

    Args:
        seed: of what they draw.
    """

    def __init__(self, seed: int = 0):
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults-network", daemon=True)
        self.relays: list[Relay] = []

    def relay(self, to: str, name: str = "") -> Relay:
        """A relay to an endpoint, which listens at another."""
        relay = Relay(self._loop, to, name or f"relay {len(self.relays)}", self._seed)
        asyncio.run_coroutine_threadsafe(relay.start(), self._loop).result(120)
        self.relays.append(relay)
        return relay

    def __enter__(self) -> "Network":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self.relays:
            asyncio.run_coroutine_threadsafe(relay.stop(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()
