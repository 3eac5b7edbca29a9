"""The connection of a client to one server: calls that are tried again, large ones in chunks, sequences."""
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.refusals import JobFailedError, StateError, TooLargeError, UnknownNameError

_REFUSALS: dict[grpc.StatusCode, type[errors.ServerError]] = {
    grpc.StatusCode.NOT_FOUND: UnknownNameError, grpc.StatusCode.RESOURCE_EXHAUSTED: TooLargeError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError, grpc.StatusCode.ABORTED: JobFailedError}
_OPTIONS = [*wire.OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.keepalive_time_ms", 20_000)]
logger = logging.getLogger(__name__)


class Sequences:
    """The numbers of the calls to one server, and which of them have no answer yet."""

    def __init__(self) -> None:
        self._next, self._open, self._lock = 1, set[int](), threading.Lock()

    @contextlib.contextmanager
    def next(self) -> Iterator[tuple[int, int]]:
        """(sequence, lowest one without an answer) of a call."""
        with self._lock:
            sequence, self._next = self._next, self._next + 1
            self._open.add(sequence)
            outstanding = min(self._open)
        try:
            yield sequence, outstanding
        finally:
            with self._lock:
                self._open.discard(sequence)


class Channel:
    """Calls to one server. Safe for threads.

    Args:
        credentials: for TLS; None for none.
        timeout_s: for how long a call is tried, and a lost connection mended.

    Attributes:
        pushes, pulls: the sequences of the mutations and of the pulls that go through here.
    """

    def __init__(self, endpoint: str, token: str, credentials: grpc.ChannelCredentials | None, timeout_s: float):
        self.endpoint, self.timeout_s = endpoint, timeout_s
        self.pushes, self.pulls = Sequences(), Sequences()
        self._metadata = ((wire.TOKEN, token),)
        self._grpc = grpc.secure_channel(endpoint, credentials, _OPTIONS) if credentials else \
            grpc.insecure_channel(endpoint, _OPTIONS)
        self._methods: dict[str, Callable[..., Any]] = {
            name: self._grpc.unary_unary(f"/{wire.SERVICE}/{name}", request.SerializeToString, reply.FromString)
            for name, (request, reply) in wire.METHODS.items()}
        self._stream = self._grpc.stream_stream(f"/{wire.SERVICE}/Stream")
        self._closed = threading.Event()

    def call(self, method: str, request: Message, waits: bool = False) -> Any:
        """The reply to a request, which is sent again (with what it holds, so with its sequence) when no answer comes.

        Args:
            waits: the server answers when other trainers have done their part, which has no limit; `timeout_s` is then for
                how long a lost connection is mended.

        Raises ServerError, or one of its kinds, with the server's reason, or when there is no answer in time.
        """
        size = request.ByteSize()
        if size > wire.LARGEST_MESSAGE:
            raise TooLargeError(f"{method}: a message of {size} bytes; the limit is {wire.LARGEST_MESSAGE}")
        return self._tried(method, lambda timeout_s: self._methods[method](request, timeout_s, self._metadata), waits)

    def exchange(self, request: pb.ExchangeRequest, reply_bytes: int, waits: bool = False) -> pb.ExchangeReply:
        """Push, pull, or both in one call, in chunks where request or reply (of about `reply_bytes`) are large."""
        if max(request.ByteSize(), reply_bytes) + wire.OVERHEAD > wire.LARGEST_MESSAGE:
            return self._in_chunks(request, waits)
        if not request.HasField("pull"):
            return pb.ExchangeReply(push=self.call("Push", request.push, waits))
        if not request.HasField("push"):
            return pb.ExchangeReply(pull=self.call("Pull", request.pull, waits))
        return self.call("Exchange", request, waits)

    def _in_chunks(self, request: pb.ExchangeRequest, waits: bool) -> pb.ExchangeReply:
        wire.check_size(request.ByteSize(), wire.LARGEST_CALL, "request")
        data = request.SerializeToString()

        def send(timeout_s: float | None) -> pb.ExchangeReply:
            return pb.ExchangeReply.FromString(wire.joined(self._stream(wire.chunked(data), timeout_s, self._metadata)))
        return self._tried("Stream", send, waits)

    def _tried(self, method: str, send: Callable[[float | None], Any], waits: bool) -> Any:
        end = time.monotonic() + self.timeout_s
        for attempt in itertools.count():
            start = time.monotonic()
            try:
                return send(None if waits else max(end - start, 0.001))
            except ValueError as error:  # what gRPC raises on a channel that was closed meanwhile
                if not self._closed.is_set():
                    raise
                raise errors.ServerError(f"server {self.endpoint}: {method}: this client was closed") from error
            except grpc.RpcError as error:
                now = time.monotonic()
                if waits and (attempt == 0 or now - start > self.timeout_s):
                    end = now + self.timeout_s  # until now the server was there
                if error.code() != grpc.StatusCode.UNAVAILABLE or now >= end or self._closed.is_set():
                    raise self._refusal(method, error) from None
                logger.info("%s: %s: no answer (%s); trying again", self.endpoint, method, error.details())
            self._closed.wait(min(0.05 * 2**min(attempt, 6), 2.0) * random.uniform(0.5, 1.0))

    def _refusal(self, method: str, error: grpc.RpcError) -> errors.ServerError:
        kind = _REFUSALS.get(error.code(), errors.ServerError)
        code = error.code().name
        if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            return kind(f"server {self.endpoint}: {method}: no answer within {self.timeout_s:g} s ({error.details()}); is it "
                        "running, and reachable from here?")
        return kind(f"server {self.endpoint}: {method}: {error.details()}" + f" ({code})" * (kind is errors.ServerError))

    def close(self) -> None:
        """Give the connection up; calls under way fail."""
        self._closed.set()
        self._grpc.close()
