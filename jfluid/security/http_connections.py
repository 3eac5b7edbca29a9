"""Uvicorn connections with time limits and a limit on their number.

A connection that the server waits for too long ends: for the head of a request, or until the client
takes more of an answer. (For bodies there is a rate: `application`.) At the limit on connections, the connection
that the server has waited for longest makes room for the next.
"""

import asyncio
import heapq
import json
import os
import socket
import sys
import time
from typing import Any

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

_RESERVE = 320  # descriptors for connections that are just taken, and for all else
_READ_BYTES = 64 << 10  # that are read of a connection at once
_LOOK = 1.0  # seconds
_AT_ONCE = 16  # connections that make room
_FEW, _PIECES = 64, 64  # bytes of a piece of a body, and how many such a body may have
_WAITING, _ACCEPTED = 256, 4  # connections that the system keeps, and that the event loop accepts at once


class HttpConnection(H11Protocol):
    """A connection, and since when the server waits for its client.

    Attributes:
        most, seconds, head_bytes, half_closed: see `configured`.
        others: descriptors of the process that are no connections.
    """

    most = 4096
    seconds = 10.0
    head_bytes = 8 << 10
    half_closed = True
    others = 0

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.conn = self._parts = _Parts(self.head_bytes)
        self._since, self._blocked_since = time.monotonic(), 0.0
        self._half_closed = False
        self._look: asyncio.TimerHandle | None = None

    def waits_since(self) -> float:
        """Return the time since when the server waits for the client; infinity while it does not."""
        if self._blocked_since:
            return self._blocked_since
        if self._is_idle():
            return self._since
        return self._parts.began if self.cycle.more_body else float("inf")

    def _is_idle(self) -> bool:
        """Return True if no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, and evict the longest idle connections above the limit."""
        super().connection_made(transport)
        # Heads and bodies of answers are sent one after the other, and are not to wait for each other.
        client = transport.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What is read at once, of asyncio's transports: others wait for no more than this.
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self._since = time.monotonic()
        self._look = self.loop.call_later(_LOOK, self._end_if_late)
        if len(self.connections) > self._most():
            self._make_room()

    def _most(self) -> int:
        import resource  # not on Windows

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            return self.most
        return max(1, min(self.most, files - self.others - _RESERVE))

    def _make_room(self) -> None:
        """Evict the connection that the server has waited for longest.

        Some connections that have waited for over a second are evicted with it: to find several takes as long as one.
        """
        found = [c for c in self.connections if isinstance(c, HttpConnection)]
        longest = heapq.nsmallest(_AT_ONCE, found, key=HttpConnection.waits_since)
        for i, connection in enumerate(longest):
            if i == 0 or connection.waits_since() < time.monotonic() - 1:
                connection.transport.abort()
                self.connections.discard(connection)

    def _end_if_late(self) -> None:
        late = time.monotonic() - self.seconds
        if (self._is_idle() or self._blocked_since) and self.waits_since() < late:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(_LOOK, self._end_if_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a connection that has ended."""
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, if there may be one."""
        self._since = time.monotonic()
        super().on_response_complete()
        if self._half_closed and self._is_idle():
            self.transport.close()

    def pause_writing(self) -> None:
        """Note that the client reads an answer more slowly than it is sent."""
        super().pause_writing()
        self._blocked_since = time.monotonic()

    def resume_writing(self) -> None:
        """Note that the client has read the data that was sent."""
        super().resume_writing()
        self._blocked_since = 0.0

    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client sends no more. A client that has sent a whole request gets its answer."""
        self._half_closed = self.half_closed and not self._is_idle() and not self.cycle.more_body
        return self._half_closed

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP request by an error, and close the connection."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        body = json.dumps({"error": f"this is no request of HTTP: {error or msg}"[:200]}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        answer = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        try:
            events = (answer, h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
            self.transport.close()
        except h11.LocalProtocolError:  # an answer has begun
            self.transport.abort()


class _Parts(h11.Connection):
    """HTTP parser of a connection that limits the number of pieces of a body.

    Each piece of a body costs as much as a small request does, however small the piece is.
    """

    def __init__(self, most: int):
        super().__init__(h11.SERVER, most)
        self.began = 0.0  # when the head of the last request was there
        self._pieces = self._bytes = 0

    def next_event(self) -> Any:
        """Return the next event. Raises RemoteProtocolError for a body of many tiny pieces."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.began = time.monotonic()
            self._pieces = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > _PIECES and self._bytes < self._pieces * _FEW:
                raise h11.RemoteProtocolError(f"a body in pieces of less than {_FEW} bytes")
        return event


class HttpServer(uvicorn.Server):
    """A server that accepts few connections at once, so that a flood of connections does not stop the event loop."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept. asyncio takes one number for the connections at once, and for those that wait."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_WAITING)


def configured(
    application: Any, most: int = HttpConnection.most, seconds: float = HttpConnection.seconds, **options: Any
) -> Config:
    """Return uvicorn's settings for an application whose connections have these bounds.

    Args:
        most: connections at a time; one more ends the connection that the server has waited for longest.
        seconds: that the server waits for the head of a request, or until a client takes more of an answer.
        options: further settings of uvicorn, and two of connections: `head_bytes`, the largest head of a request, or of
            a piece of its body; `half_closed`, True to answer a client that has ended its side after a whole request.
    """
    bounds: dict[str, Any] = {name: options.pop(name) for name in ("head_bytes", "half_closed") if name in options}
    bounds |= {"most": most, "seconds": seconds, "others": _descriptors()}
    return Config(
        application,
        http=type("HttpConnection", (HttpConnection,), bounds),
        # The loop that is everywhere: it pauses where there are no descriptors for a connection.
        loop="asyncio",
        ws="none",
        log_level="error",
        backlog=_ACCEPTED,
        timeout_keep_alive=max(1, int(seconds / 2)),
        **{"timeout_graceful_shutdown": 10, **options},
    )


def _descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # another system than Linux
        return 64
