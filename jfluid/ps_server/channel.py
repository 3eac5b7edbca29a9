"""The connection of a client to one server: calls that are tried again, large ones in chunks, sequences."""
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.auth import Session
from jfluid.ps_server.lane import SMALLEST, Lane, Lanes
from jfluid.ps_server.lifting import Exchanged, Pulled, Pushing, Request
from jfluid.ps_server.refusals import (
    JobFailedError,
    RestartedError,
    RollbackError,
    StateError,
    TooLargeError,
    UnknownNameError,
)

T = TypeVar("T")
_REFUSALS: dict[grpc.StatusCode, type[errors.ServerError]] = {
    grpc.StatusCode.NOT_FOUND: UnknownNameError, grpc.StatusCode.RESOURCE_EXHAUSTED: TooLargeError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError, grpc.StatusCode.DATA_LOSS: RestartedError,
    grpc.StatusCode.ABORTED: JobFailedError, grpc.StatusCode.OUT_OF_RANGE: RollbackError}
# gRPC takes the second for how long an attempt to connect may last, too: a busy server needs more than the pause before it.
_OPTIONS = [*wire.OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.keepalive_time_ms", 20_000)]
# Replies that hold arrays.
_READERS: dict[str, Callable[[bytes], Any]] = {"Pull": lambda data: Pulled(memoryview(data)), "Exchange": Exchanged.read}
_NOTHING = Pulled(memoryview(b""))
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


class _Kept:
    """Acknowledged pushes that no snapshot has yet, to be sent again to a server that was restored without them."""

    def __init__(self, most_bytes: int):
        self.most_bytes, self.bytes = most_bytes, 0
        self._pushes: dict[int, Pushing] = {}
        self._lock = threading.Lock()

    def add(self, push: Pushing, durable: int) -> None:
        """This push was acknowledged; those up to sequence `durable` are safe. When too much is kept the oldest go."""
        with self._lock:
            if self.most_bytes:
                push.own()
                self._pushes[push.message.caller.sequence] = push
                self.bytes += len(push)
            for sequence in sorted(self._pushes):
                if sequence > durable and self.bytes <= self.most_bytes:
                    break
                self.bytes -= len(self._pushes.pop(sequence))

    def beyond(self, sequence: int) -> list[Pushing]:
        """The pushes after a sequence, in order."""
        with self._lock:
            return [self._pushes[s] for s in sorted(self._pushes) if s > sequence]

    def clear(self) -> None:
        with self._lock:
            self._pushes, self.bytes = {}, 0


class Channel:
    """Calls to one server. Safe for threads.

    Args:
        credentials: for TLS; None for none.
        timeout_s: for how long a call is tried, and a lost connection mended.
        keep_bytes: how much of what was pushed since the server's last snapshot is kept, to be sent again when the server
            is restored from it.
        lanes_of: who shares memory with the server, where that is on the same machine; None for nobody.

    Attributes:
        pushes, pulls: the sequences of the mutations and of the pulls that go through here.
        restarts: how often the server was found to have started again.
        created: the requests that made the server's tables and blocks, to be repeated then.
        on_restart: is told.
    """

    def __init__(self, endpoint: str, token: str, credentials: grpc.ChannelCredentials | None, timeout_s: float,
                 keep_bytes: int = 0, lanes_of: pb.Caller | None = None):
        self.endpoint, self.timeout_s = endpoint, timeout_s
        self._caller, self._lanes = lanes_of or pb.Caller(), Lanes(self._attach, lanes_of is not None)
        self.pushes, self.pulls = Sequences(), Sequences()
        self._grpc = grpc.secure_channel(endpoint, credentials, _OPTIONS) if credentials else \
            grpc.insecure_channel(endpoint, _OPTIONS)
        self._session = Session(self._grpc, endpoint, token, timeout_s)
        # Requests go in as bytes: their size is asked for before, and asking a message costs as much as making them.
        self._methods: dict[str, Callable[..., Any]] = {
            name: self._session.unary(f"/{wire.SERVICE}/{name}", _READERS.get(name, reply.FromString))
            for name, (_, reply) in wire.METHODS.items()}
        self._stream = self._session.stream(f"/{wire.SERVICE}/Stream")
        self._closed = threading.Event()
        self.created: list[pb.CreateRequest] = []
        self.kept, self.restarts, self._incarnation = _Kept(keep_bytes), 0, 0
        self.on_restart: Callable[[Channel], None] = lambda channel: None
        self._mending = threading.Lock()

    def call(self, method: str, request: Message, waits: bool = False) -> Any:
        """The reply to a request, which is sent again (with what it holds, so with its sequence) when no answer comes.

        Args:
            waits: the server answers when other trainers have done their part, which has no limit; `timeout_s` is then for
                how long a lost connection is mended.

        Raises ServerError, or one of its kinds, with the server's reason, or when there is no answer in time.
        """
        data = request.SerializeToString()
        if len(data) > wire.LARGEST_MESSAGE:
            raise TooLargeError(f"{method}: a message of {len(data)} bytes; the limit is {wire.LARGEST_MESSAGE}")
        return self._call(method, data, waits)

    def _call(self, method: str, data: bytes, waits: bool) -> Any:
        return self._tried(method, lambda timeout_s: self._methods[method](data, timeout_s), waits)

    def _attach(self, request: pb.AttachRequest) -> int:
        request.caller.CopyFrom(self._caller)
        return int(self.call("Attach", request).lane)

    def _locally(self, lane: Lane, method: str, parts: list[Any], waits: bool) -> Any:
        """A call through a lane. Where it gets no answer it is sent again over the network: a late one may come into the
        lane, which is given up."""
        sent = False

        def send(timeout_s: float | None) -> Any:
            nonlocal sent
            if sent:
                return self._methods[method](b"".join(parts), timeout_s)
            sent = True
            try:
                request = pb.LocalRequest(lane=lane.number, method=method, bytes=lane.write_request(parts))
                reply = self._methods["Local"](request.SerializeToString(), timeout_s)
                data = reply.reply or lane.reply(reply.bytes)
            except BaseException:
                self._lanes.drop(lane)
                raise
            self._lanes.give(lane)  # from here on another call may have it
            return _READERS.get(method, wire.METHODS[method][1].FromString)(data)
        return self._tried(method, send, waits)

    def exchange(self, request: Request, reply_bytes: int, waits: bool = False) -> Exchanged:
        """Push, pull, or both in one call, in chunks where request or reply (of about `reply_bytes`) are large.

        When the server has started again, what it has lost and what was kept of that is sent first.
        """
        parts = [part for part in (request.push.message, request.pull) if part.HasField("caller")]
        while True:
            known = self._incarnation
            for part in parts:
                part.caller.server_incarnation = known
            try:
                reply = self._exchange(request, reply_bytes, waits)
            except RestartedError:
                with self._mending:
                    if self._incarnation == known:
                        self._mend(parts[0].caller)
                for block in request.pull.blocks:
                    block.known = 0
                continue
            if not known:
                self._incarnation = reply.push.server_incarnation or reply.pull.server_incarnation
            if request.push:
                self.kept.add(request.push, reply.push.durable)
            return reply

    def _mend(self, caller: pb.Caller) -> None:
        """Make again what was created, and send again what was kept and a server that has started again does not have."""
        for create in self.created:
            self.call("Create", create)
        self.on_restart(self)
        status = self.call("Status", pb.StatusRequest(trainer=caller.trainer))
        # What it knows of an earlier life of this trainer says nothing of this one.
        through = status.through if status.incarnation == caller.incarnation else 0
        pushes = self.kept.beyond(through)
        logger.warning("server %s has started again; it has the pushes up to %d, %d kept ones are sent again", self.endpoint,
                       through, len(pushes))
        for push in pushes:
            message = push.message
            message.caller.outstanding = message.caller.sequence
            message.caller.server_incarnation = status.server_incarnation
            message.hold = False  # it was acknowledged, so all servers had it, or will get it now
            try:
                self._exchange(Request(push), 0, waits=bool(message.round))
            except RestartedError:  # and again: the call that found out will find out once more
                return
        self._incarnation, self.restarts = status.server_incarnation, self.restarts + 1

    def _exchange(self, request: Request, reply_bytes: int, waits: bool) -> Exchanged:
        method, parts = request.single()
        most = max(sum(map(len, parts)), reply_bytes) + wire.OVERHEAD
        if most > wire.LARGEST_MESSAGE:
            return self._in_chunks(request, waits)
        lane = self._lanes.take(most) if most >= SMALLEST + wire.OVERHEAD else None
        reply = self._locally(lane, method, parts, waits) if lane else self._call(method, b"".join(parts), waits)
        if method == "Push":
            return Exchanged(reply, _NOTHING)
        both: Exchanged = reply if method == "Exchange" else Exchanged(pb.PushReply(), reply)
        return both

    def _in_chunks(self, request: Request, waits: bool) -> Exchanged:
        data = b"".join(request.whole())
        wire.check_size(len(data), wire.LARGEST_CALL, "request")

        def send(timeout_s: float | None) -> Exchanged:
            return Exchanged.read(wire.joined(self._stream(wire.chunked(data), timeout_s)))
        return self._tried("Stream", send, waits)

    def _tried(self, method: str, send: Callable[[float | None], T], waits: bool) -> T:
        end = time.monotonic() + self.timeout_s
        attempt = renewed = 0
        while True:
            start = time.monotonic()
            try:
                return send(None if waits else max(end - start, 0.001))
            except ValueError as error:  # what gRPC raises on a channel that was closed meanwhile
                if not self._closed.is_set():
                    raise
                raise errors.ServerError(f"server {self.endpoint}: {method}: this client was closed") from error
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED and renewed < 3:  # nothing was done
                    renewed += 1
                    self._session.renew()
                    continue
                now = time.monotonic()
                if waits and (attempt == 0 or now - start > self.timeout_s):
                    end = now + self.timeout_s  # until now the server was there
                if error.code() != grpc.StatusCode.UNAVAILABLE or now >= end or self._closed.is_set():
                    raise self._refusal(method, error) from None
                logger.info("%s: %s: no answer (%s); trying again", self.endpoint, method, error.details())
            self._closed.wait(min(0.05 * 2**min(attempt, 6), 2.0) * random.uniform(0.5, 1.0))
            attempt += 1

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
