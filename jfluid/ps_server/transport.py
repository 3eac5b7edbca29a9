"""Transports: how a client's calls reach one server.

gRPC carries every call, and is the fallback. A call whose request or reply has SMALLEST bytes or more goes
through a fast channel if there is an idle one: shared memory on the same host (shared_memory.py), a socket
between hosts (socket_channels.py). A call without an answer is sent again through gRPC: sequence numbers let
the server apply it once.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from jfluid.ps_server import wire
from jfluid.ps_server.auth import PROOF
from jfluid.ps_server.zero_copy import IncomingExchangeReply, IncomingPullReply, OutgoingRequest

SMALLEST = 1 << 16  # smaller messages are as fast through gRPC
MOST = 4  # fast channels of a client to a server, and so its concurrent calls through them
STREAM = "Stream"  # the method of an exchange in chunks
STATUS: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
# Replies that hold arrays.
_READERS: dict[str, Callable[[bytes | memoryview], Any]] = {
    "Pull": lambda data: IncomingPullReply(memoryview(data)),
    "Exchange": IncomingExchangeReply.read,
    STREAM: IncomingExchangeReply.read,
}


class CallError(grpc.RpcError):  # type: ignore[misc]
    """Error of a call through a fast channel, with the interface of gRPC's errors.

    Attributes:
        told: the server refused the call; otherwise there was no answer.
    """

    def __init__(self, code: grpc.StatusCode, details: str, told: bool = False):
        super().__init__(details)
        self._code, self._details, self.told = code, details, told

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Return the proof that marks a refusal by the service; nothing for a failure of the network."""
        return ((PROOF, b""),) if self.told else ()


def refuse(code: grpc.StatusCode, details: str) -> None:
    """Raise the CallError of a refusal, as the abort of a gRPC call does."""
    raise CallError(code, details, told=True)


def lost(why: str) -> CallError:
    """Return the error of a call without an answer, which is to be sent again."""
    return CallError(grpc.StatusCode.UNAVAILABLE, why)


@dataclass
class Call:
    """A call to be sent, maybe several times.

    Attributes:
        method: of the service.
        parts: the serialized request, in pieces.
        size: the most bytes of the request and of the reply.
        sent: called when the request is on its way; None if nobody waits for that.
    """

    method: str
    parts: list[Any]
    size: int
    sent: Callable[[], None] | None = None

    @classmethod
    def of(cls, request: OutgoingRequest, reply_bytes: int) -> "Call":
        """Return the call of a request with a reply of about `reply_bytes`; in chunks if either is large."""
        method, parts = request.single()
        size = max(sum(map(len, parts)), reply_bytes) + wire.OVERHEAD
        if size > wire.LARGEST_MESSAGE:
            wire.check_size(sum(map(len, parts)), wire.LARGEST_CALL, "request")
            return cls(STREAM, request.whole(), size)
        return cls(method, parts, size, request.sent if request.on_sent is not None else None)


def read_reply(method: str, data: bytes | memoryview) -> Any:
    """Parse the reply to a call of a method."""
    read = _READERS.get(method)
    return read(data) if read else wire.METHODS[method][1].FromString(bytes(data))


# Sends one call, waits for at most so many seconds (None: without a limit), and returns the parsed reply.
# It raises grpc.RpcError, or ValueError when the client was closed.
Sender = Callable[[Call, float | None], Any]


class Transport(ABC):
    """Transport of calls to one server. Safe for threads."""

    @abstractmethod
    def sender(self, size: int) -> Sender | None:
        """Return a function that sends one call of at most `size` bytes; None if the transport has no room now."""

    @abstractmethod
    def forget(self) -> None:
        """Forget all state of a server that has restarted."""

    @abstractmethod
    def close(self) -> None:
        """Close the transport; pending calls raise ValueError or RpcError."""


# ---- fast channels ----


class FastChannel(ABC):
    """Connection past gRPC, for one call at a time."""

    @abstractmethod
    def fits(self, size: int) -> bool:
        """Return True if a request and a reply of `size` bytes have room."""

    @abstractmethod
    def post(self, method: str, parts: Sequence[Any]) -> None:
        """Send a request that `fits`. Raises CallError if the server has ended."""

    @abstractmethod
    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> bytes | memoryview:
        """Return the reply, which may lie in the channel's memory until the next call.

        Raises CallError when the server refuses the call, has ended, or does not begin to answer in time;
        ValueError, as gRPC does, when the client is `closed` meanwhile.
        """

    @abstractmethod
    def shut(self) -> None:
        """Wake up the thread that waits for an answer."""

    @abstractmethod
    def close(self) -> None:
        """Release the channel."""


Fast = TypeVar("Fast", bound=FastChannel)


class FastTransport(Transport, Generic[Fast]):
    """The fast channels of one kind from a client to one server.

    Args:
        wanted: False disables the transport.

    Attributes:
        possible: False if the server cannot be reached through these channels.
    """

    def __init__(self, wanted: bool = True):
        self.possible = wanted
        self._lock = threading.Lock()
        self._free: list[Fast] = []
        self._taken: set[Fast] = set()
        self._closed = False

    def sender(self, size: int) -> Sender | None:
        channel = self.take(size)
        return None if channel is None else partial(self._send, channel)

    def take(self, size: int) -> Fast | None:
        """Return an idle channel for messages of at most `size` bytes, or a new one; None if there is neither now.

        `give` it back after the call. If the call had no answer `drop` it: a late answer may still come.
        """
        with self._lock:
            if not self.possible or self._closed or len(self._taken) >= MOST:
                return None
            channel = next((channel for channel in self._free if channel.fits(size)), None)
            if channel is not None:
                self._free.remove(channel)
                self._taken.add(channel)
                return channel
        return self._make(size)

    @abstractmethod
    def _make(self, size: int) -> Fast | None:
        """Return a new channel, which counts as taken; None if it cannot be made at once."""

    def _send(self, channel: Fast, call: Call, timeout_s: float | None) -> Any:
        refused = answered = False
        try:
            channel.post(call.method, call.parts)
            if call.sent is not None:
                call.sent()
            reply = read_reply(call.method, channel.answer(timeout_s, lambda: self._closed))
            answered = True
            return reply
        except CallError as error:
            refused = error.told
            raise
        finally:
            (self.give if answered or refused else self.drop)(channel)

    def give(self, channel: Fast) -> None:
        """Take a channel back that is idle."""
        with self._lock:
            if channel in self._taken:  # otherwise the server has restarted
                self._taken.remove(channel)
                self._free.append(channel)

    def drop(self, channel: Fast) -> None:
        """Release a channel after a call without an answer."""
        with self._lock:
            self._taken.discard(channel)
        channel.close()

    def forget(self) -> None:
        with self._lock:
            free, self._free, taken, self._taken = self._free, [], self._taken, set()
        for channel in taken:
            channel.shut()
        for channel in free:
            channel.close()

    def close(self) -> None:
        self._closed = True
        self.forget()
