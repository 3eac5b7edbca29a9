"""What a server does with calls that come past gRPC: through shared memory, and through streams."""

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.cancellation import Alive
from jfluid.ps_server.metrics import Metrics
from jfluid.ps_server.pipe_calls import CallError, refuse
from jfluid.ps_server.shared_memory import SharedBuffer

_SMALL = 4096  # bytes of a reply that goes through the pipe
# (name of the method, how a call is refused, bytes of the request, the call) -> the answer, in pieces
Answered = Callable[[str, Callable[[grpc.StatusCode, str], Any], int, Callable[[], Any]], list[Any]]


class Calls(Protocol):
    """The calls of a service that may be large."""

    def pull(self, request: pb.PullRequest, alive: Alive) -> Any: ...
    def push(self, request: pb.PushRequest, alive: Alive) -> Any: ...
    def exchange(self, request: pb.ExchangeRequest, alive: Alive) -> Any: ...


class DirectCalls:
    """Answers such calls.

    Args:
        calls: the service that they are for.
        answered: counts a call, and makes messages of its answer or error.
    """

    def __init__(self, calls: Calls, metrics: Metrics, answered: Answered):
        self._calls, self._metrics, self._answered = calls, metrics, answered

    def local(self, buffer: SharedBuffer, data: bytes, alive: Alive) -> tuple[grpc.StatusCode, bytes]:
        """A call whose request lies in shared memory: its status, and a LocalReply."""
        asked = pb.LocalRequest()
        with contextlib.suppress(errors.ServerError):
            asked = wire.parsed(pb.LocalRequest, data)
        code, parts = self._called(
            asked.method,
            len(data) + asked.bytes,
            lambda: buffer.request(asked.bytes, asked.at),
            alive,
        )
        if code != grpc.StatusCode.OK:
            return code, b"".join(parts)
        if not _SMALL < sum(map(len, parts)) <= buffer.capacity - asked.reply_at:
            reply = pb.LocalReply(reply=b"".join(parts))
        else:
            with self._metrics.part("reply"):
                reply = pb.LocalReply(bytes=buffer.write_reply(parts, asked.reply_at))
        return code, reply.SerializeToString()

    def streamed(self, method: str, request: memoryview, alive: Alive) -> tuple[grpc.StatusCode, list[Any]]:
        """A call whose request came through a stream."""
        return self._called(method, len(request), lambda: request, alive)

    def _called(
        self, method: str, size: int, request: Callable[[], memoryview], alive: Alive
    ) -> tuple[grpc.StatusCode, list[Any]]:
        """The status of a call, and the answer, or the reason for a refusal."""
        functions: dict[str, Callable[..., Any]] = {
            "Pull": self._calls.pull,
            "Push": self._calls.push,
            "Exchange": self._calls.exchange,
        }

        def answer() -> Any:
            if method not in functions:
                raise errors.ServerError(f"expected a LocalRequest of one of {', '.join(functions)}, found {method!r}")
            with self._metrics.part("parse"):
                parsed = wire.parsed(wire.METHODS[method][0], request())
            return functions[method](parsed, alive)

        try:
            name = method if method in functions else "Local"
            return grpc.StatusCode.OK, self._answered(name, refuse, size, answer)
        except CallError as refused:
            return refused.code(), [refused.details().encode()]
