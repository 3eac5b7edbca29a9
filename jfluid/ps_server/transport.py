"""Transports: how a client's calls reach one server.

gRPC carries every call, and is the fallback. A call whose request or reply has SMALLEST bytes or more goes
through an idle stream if there is one (socket_channels.py). A call without an answer is sent again through gRPC:
sequence numbers let the server apply it once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from jfluid.ps_server import wire
from jfluid.ps_server.auth import PROOF
from jfluid.ps_server.zero_copy import IncomingExchangeReply, IncomingPullReply, OutgoingRequest

SMALLEST = 1 << 16  # smaller messages are as fast through gRPC
STREAM = "Stream"  # the method of an exchange in chunks
STATUS: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
# Replies that hold arrays.
_READERS: dict[str, Callable[[bytes | memoryview], Any]] = {
    "Pull": lambda data: IncomingPullReply(memoryview(data)),
    "Exchange": IncomingExchangeReply.read,
    STREAM: IncomingExchangeReply.read,
}


class CallError(grpc.RpcError):  # type: ignore[misc]
    """Error of a call through a stream, with the interface of gRPC's errors.

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
class ServerCall:
    """A call to be sent, maybe several times.

    Attributes:
        method: of the service.
        parts: the serialized request, in pieces.
        size: the most bytes of the request and of the reply.
        sent: called when the request is on its way; None for no call.
    """

    method: str
    parts: list[Any]
    size: int
    sent: Callable[[], None] | None = None

    @classmethod
    def of(cls, request: OutgoingRequest, reply_bytes: int) -> "ServerCall":
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


# Sends one call, waits for a number of seconds at most (None: without a limit), and returns the parsed reply.
# It raises grpc.RpcError, or ValueError when the client was closed.
Sender = Callable[[ServerCall, float | None], Any]


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
