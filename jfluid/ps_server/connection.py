"""The connection of a client to one server: calls that are tried again, large ones in chunks; servers that start again."""
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.auth import PROOF, Session
from jfluid.ps_server.errors import (
    JobFailedError,
    RestartedError,
    RollbackError,
    StateError,
    TooLargeError,
    UnknownNameError,
)
from jfluid.ps_server.replay_log import LoggedCall, ReplayLog, SequenceNumbers
from jfluid.ps_server.shared_memory import SMALLEST, SharedBuffer, SharedBuffers
from jfluid.ps_server.zero_copy import IncomingExchangeReply, IncomingPullReply, OutgoingRequest

T = TypeVar("T")
_Told = pb.Caller | pb.PullRequest | pb.LookUpRequest
_REFUSALS: dict[grpc.StatusCode, type[errors.ServerError]] = {
    grpc.StatusCode.NOT_FOUND: UnknownNameError, grpc.StatusCode.RESOURCE_EXHAUSTED: TooLargeError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError, grpc.StatusCode.DATA_LOSS: RestartedError,
    grpc.StatusCode.ABORTED: JobFailedError, grpc.StatusCode.OUT_OF_RANGE: RollbackError}
# gRPC takes the second for how long an attempt to connect may last, too: a busy server needs more than the pause before it.
_OPTIONS = [*wire.OPTIONS, ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 2000), ("grpc.keepalive_time_ms", 20_000)]
# Replies that hold arrays.
_READERS: dict[str, Callable[[bytes], Any]] = {
    "Pull": lambda data: IncomingPullReply(memoryview(data)),
    "Exchange": IncomingExchangeReply.read,
}
_NOTHING = IncomingPullReply(memoryview(b""))
# For how long an answer is awaited that nothing depends on.
_ASIDE_S, _ASIDE_TRIES = 5.0, 3
logger = logging.getLogger(__name__)


class ServerConnection:
    """Calls to one server. Safe for threads.

    A server that is killed and started again goes on from a snapshot, or from the beginning. A trainer's calls say which life
    of the server they are for, and another refuses them. Then the client mends it: it repeats what it has created and what it
    has kept of its calls, so that the server has all that it had acknowledged, before anything else changes it.

    Args:
        credentials: for TLS; None for none.
        timeout_s: for how long a call is tried, and a lost connection mended.
        trainer: whose calls these are.
        keep_bytes: how much of what was pushed since the server's last snapshot is kept, to be sent again when the server
            is restored from it.
        share_memory: whether large messages go through memory that both have, where the server is on the same machine.

    Attributes:
        pushes, pulls: the sequences of the mutations and of the pulls that go through here.
        restarts: how often the server was found to have started again.
        on_restart: is told, before what was kept is sent again.
        on_rollback: is told when the server refuses a call because the whole job has to start again.
    """

    def __init__(self, endpoint: str, token: str, credentials: grpc.ChannelCredentials | None, timeout_s: float,
                 trainer: int = 0, keep_bytes: int = 0, share_memory: bool = False):
        self.endpoint, self.timeout_s, self._trainer = endpoint, timeout_s, trainer
        self._buffers = SharedBuffers(self._attach, share_memory)
        self.pushes, self.pulls = SequenceNumbers(), SequenceNumbers()
        self._grpc = grpc.secure_channel(endpoint, credentials, _OPTIONS) if credentials else \
            grpc.insecure_channel(endpoint, _OPTIONS)
        self._session = Session(self._grpc, endpoint, token, timeout_s)
        # Requests go in as bytes: their size is asked for before, and asking a message costs as much as making them.
        self._methods: dict[str, Callable[..., Any]] = {
            name: self._session.unary(f"/{wire.SERVICE}/{name}", _READERS.get(name, reply.FromString))
            for name, (_, reply) in wire.METHODS.items()}
        self._stream = self._session.stream(f"/{wire.SERVICE}/Stream")
        self._closed = threading.Event()
        self._created: list[pb.CreateRequest] = []  # what is to be repeated when the server has started again
        self.replay_log, self.restarts = ReplayLog(keep_bytes), 0
        self.on_restart: Callable[[ServerConnection], None] = lambda connection: None
        self.on_rollback: Callable[[RollbackError], None] = lambda error: None
        self._ended_by: RollbackError | None = None
        # The incarnation of the server that has all that this client has sent; 0 before it was asked. The lock is held while
        # another one is mended, and by who takes an answer into account.
        self._life, self._mending = 0, threading.Lock()
        self._applied = 0  # rounds, as far as answers told

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

    def _attach(self, request: pb.AttachRequest) -> int | None:
        try:
            return int(self._methods["Attach"](request.SerializeToString(), min(self.timeout_s, _ASIDE_S)).lane)
        except (grpc.RpcError, errors.ServerError, ValueError):  # the call goes over the network, and says what is wrong
            return None

    def _locally(self, buffer: SharedBuffer, method: str, parts: list[Any], waits: bool) -> Any:
        """A call through a buffer. Where it gets no answer it is sent again over the network: a late one may come into the
        buffer, which is given up."""
        sent = False

        def send(timeout_s: float | None) -> Any:
            nonlocal sent
            if sent:
                return self._methods[method](b"".join(parts), timeout_s)
            sent = True
            try:
                request = pb.LocalRequest(lane=buffer.name, method=method, bytes=buffer.write_request(parts))
                reply = self._methods["Local"](request.SerializeToString(), timeout_s)
                data = reply.reply or buffer.reply(reply.bytes)
            except BaseException:
                self._buffers.drop(buffer)
                raise
            self._buffers.give(buffer)  # from here on another call may have it
            return _READERS.get(method, wire.METHODS[method][1].FromString)(data)
        return self._tried(method, send, waits)

    # ---- a server that starts again ----

    def create(self, request: pb.CreateRequest) -> None:
        """Make tables and blocks, here and where the server starts again without them."""
        reply = self.call("Create", request)
        with self._mending:
            self._life = self._life or reply.server_incarnation
            self._created.append(request)

    def latest(self) -> int:
        """The highest incarnation of this trainer that the server knows; 0 for none."""
        status = self.call("Status", pb.StatusRequest(trainer=self._trainer))
        with self._mending:
            self._life = self._life or status.server_incarnation
        return int(status.latest)

    def current(self, told: Sequence[_Told], send: Callable[[], T], keep: Callable[[T], None] = lambda reply: None) -> T:
        """The answer of a server that has all that this client has sent: one that has started again is mended first.

        Args:
            told: of the request what says which life of the server it is for. One who has only read knows none, and means any.
            send: sends the request, and again when it is called again.
            keep: takes the answer into account.
        """
        while True:
            if not self._life and any(isinstance(part, pb.Caller) for part in told):
                self.latest()
            life = self._life
            for part in told:
                part.server_incarnation = life
            try:
                reply = send()
            except RestartedError:
                self.mend(life)
                continue
            with self._mending:
                if self._life == life:
                    keep(reply)
                    return reply
            # Another thread has mended the server meanwhile, which does not have what its predecessor has answered here.

    def look(self, caller: pb.Caller, at_once: bool) -> None:
        """A sign of life. Its answer tells whether the server has started again: then mend it, now or by another thread."""
        reply = self.call("Heartbeat", pb.HeartbeatRequest(caller=caller))
        if not self._life or reply.server_incarnation == self._life:
            return
        if at_once:
            self.mend(self._life)
        elif not self._mending.locked():
            threading.Thread(target=self._mend_aside, args=[self._life], name="jfluid-ps-mend", daemon=True).start()

    def _mend_aside(self, life: int) -> None:
        try:
            self.mend(life)
        except errors.ServerError as error:  # the next call, or sign of life, tries again
            if not self._closed.is_set():
                logger.warning("%s", error)

    def mend(self, life: int) -> None:
        """The server is no longer in this life. Unless that was seen to, give it what it lacks. Raises ServerError."""
        with self._mending:
            if self._life == life:
                self._mend()

    def _mend(self) -> None:
        """Make again what was created, and send again what was kept and a server that has started again does not have."""
        status = self.call("Status", pb.StatusRequest(trainer=self._trainer))
        for create in self._created:
            self.call("Create", create)
        self._buffers.forget()
        self.on_restart(self)
        calls, through = self.replay_log.beyond(0), 0
        if calls and calls[0].caller.incarnation == status.incarnation:  # what it knows of earlier lives says nothing of this
            through = status.through
            calls = self.replay_log.beyond(through)
        logger.warning("server %s has started again; it has the pushes up to %d, %d kept ones are sent again", self.endpoint,
                       through, len(calls))
        # What is under way elsewhere, or still to be sent again, is not to be taken for lost.
        lowest = {False: 1 << 63, True: 1 << 63}
        for call in reversed(calls):
            lowest[call.pulls] = call.caller.outstanding = min(lowest[call.pulls], call.caller.sequence)
        for call in calls:
            sequences = self.pulls if call.pulls else self.pushes
            call.caller.outstanding = sequences.outstanding(call.caller.outstanding)
            call.caller.server_incarnation = status.server_incarnation
            try:
                self._again(call)
            except RestartedError:  # and again: the call that found out will find out once more
                return
        self._life, self.restarts = status.server_incarnation, self.restarts + 1

    def _again(self, call: LoggedCall) -> None:
        if isinstance(call.request, pb.ShrinkRequest):
            self.call("Shrink", call.request)
            return
        message = call.request.push.message
        # A round that was applied was confirmed; others wait for that, which is still to come.
        message.hold = message.hold and message.round > self._applied
        self._exchange(call.request, call.reply_bytes, waits=bool(message.round))

    # ---- what trainers send ----

    def exchange(self, request: OutgoingRequest, reply_bytes: int, waits: bool = False) -> IncomingExchangeReply:
        """Push, pull, or both in one call, in chunks where request or reply (of about `reply_bytes`) are large.

        When the server has started again, what it has lost and what was kept of that is sent first.
        """
        def keep(reply: IncomingExchangeReply) -> None:
            self._applied = max(self._applied, reply.push.rounds, reply.pull.rounds)
            self.replay_log.add(request, reply.pull.counted, reply_bytes)
            self.replay_log.prune(reply.push.durable, reply.pull.durable)
        told: list[_Told] = [part.caller for part in (request.push.message, request.pull) if part.HasField("caller")]
        return self.current(told or [request.pull], lambda: self._exchange(request, reply_bytes, waits), keep)

    def shrink(self, request: pb.ShrinkRequest) -> int:
        """Drop rows; returns how many."""
        reply = self.current(
            [request.caller], lambda: self.call("Shrink", request), lambda _: self.replay_log.add_shrink(request)
        )
        return int(reply.rows)

    def leave(self, caller: pb.Caller) -> bool:
        """Say goodbye. Whether the trainer may go: nothing that it keeps could be asked for again."""
        request = pb.LeaveRequest(caller=caller, client=self._buffers.client)
        reply = self.current([request.caller], lambda: self.call("Leave", request))
        self.replay_log.prune(reply.durable, reply.durable_pulls)
        return bool(reply.over or not len(self.replay_log))

    def gone(self, caller: pb.Caller) -> None:
        """Tell that the answer to the goodbye is known, if the server is still there: one that does not hear of it stays for
        a while to answer again."""
        request = pb.LeaveRequest(caller=caller, client=self._buffers.client, knows=True)
        for _ in range(_ASIDE_TRIES):
            try:
                self._methods["Leave"](request.SerializeToString(), min(self.timeout_s, _ASIDE_S))
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    return
            except (errors.ServerError, ValueError):
                return

    # ---- how it goes ----

    def _exchange(self, request: OutgoingRequest, reply_bytes: int, waits: bool) -> IncomingExchangeReply:
        method, parts = request.single()
        most = max(sum(map(len, parts)), reply_bytes) + wire.OVERHEAD
        if most > wire.LARGEST_MESSAGE:
            return self._in_chunks(request, waits)
        buffer = self._buffers.take(most) if most >= SMALLEST + wire.OVERHEAD else None
        reply = self._locally(buffer, method, parts, waits) if buffer else self._call(method, b"".join(parts), waits)
        if method == "Push":
            return IncomingExchangeReply(reply, _NOTHING)
        both: IncomingExchangeReply = reply if method == "Exchange" else IncomingExchangeReply(pb.PushReply(), reply)
        return both

    def _in_chunks(self, request: OutgoingRequest, waits: bool) -> IncomingExchangeReply:
        data = b"".join(request.whole())
        wire.check_size(len(data), wire.LARGEST_CALL, "request")

        def send(timeout_s: float | None) -> IncomingExchangeReply:
            return IncomingExchangeReply.read(wire.joined(self._stream(wire.chunked(data), timeout_s)))
        return self._tried("Stream", send, waits)

    def _tried(self, method: str, send: Callable[[float | None], T], waits: bool) -> T:
        end = time.monotonic() + self.timeout_s
        attempt = renewed = 0
        while True:
            start = time.monotonic()
            try:
                return send(None if waits else max(end - start, 0.001))
            except ValueError as error:  # what gRPC raises on a connection that was closed meanwhile
                if not self._closed.is_set():
                    raise
                raise self._ended_by or errors.ServerError(
                    f"server {self.endpoint}: {method}: this client was closed") from error
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED and renewed < 3:  # nothing was done
                    renewed += 1
                    self._session.renew()
                    continue
                now = time.monotonic()
                if waits and (attempt == 0 or now - start > self.timeout_s):
                    end = now + self.timeout_s  # until now the server was there
                if not _is_lost(error) or now >= end or self._closed.is_set():
                    refusal = self._ended_by or self._refusal(method, error)
                    if isinstance(refusal, RollbackError):
                        self.on_rollback(refusal)
                    raise refusal from None
                logger.info("%s: %s: no answer (%s); trying again", self.endpoint, method, error.details())
            self._closed.wait(min(0.05 * 2**min(attempt, 6), 2.0) * random.uniform(0.5, 1.0))
            attempt += 1

    def _refusal(self, method: str, error: grpc.RpcError) -> errors.ServerError:
        kind = _REFUSALS.get(error.code(), errors.ServerError)
        code = error.code().name
        if code == "DEADLINE_EXCEEDED" or _is_lost(error):
            return kind(f"server {self.endpoint}: {method}: no answer within {self.timeout_s:g} s ({error.details()}); is it "
                        "running, and reachable from here?")
        return kind(f"server {self.endpoint}: {method}: {error.details()}" + f" ({code})" * (kind is errors.ServerError))

    def end(self, error: RollbackError) -> None:
        """Give the connection up; calls under way, and later ones, raise this error."""
        self._ended_by = self._ended_by or error
        self.close()

    def close(self) -> None:
        """Give the connection up; calls under way fail."""
        self._closed.set()
        self._grpc.close()


def _is_lost(error: grpc.RpcError) -> bool:
    """Whether a call has no answer of the service, which may have it or not: it may be sent again."""
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):  # a server that ends cancels what is under way
        return True
    # Of streams that end in the middle gRPC says one of these; the service says them with a proof.
    return code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and \
        not any(key == PROOF for key, _ in error.trailing_metadata() or ())
