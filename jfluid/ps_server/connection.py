"""Connection of a client to one server: retries of calls, and repair of a server that has restarted."""

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
from jfluid.ps_server.auth import PROOF
from jfluid.ps_server.errors import (
    JobFailedError,
    RestartedError,
    RollbackError,
    StateError,
    TooLargeError,
    UnknownNameError,
)
from jfluid.ps_server.grpc_transport import ASIDE_S, GrpcTransport
from jfluid.ps_server.replay_log import LoggedCall, ReplayLog, SequenceNumbers
from jfluid.ps_server.socket_channels import CallStreams
from jfluid.ps_server.transport import SMALLEST, Sender, ServerCall, Transport
from jfluid.ps_server.zero_copy import IncomingExchangeReply, IncomingPullReply, OutgoingRequest

T = TypeVar("T")
_Told = pb.Caller | pb.PullRequest | pb.LookUpRequest
_REFUSALS: dict[grpc.StatusCode, type[errors.ServerError]] = {
    grpc.StatusCode.NOT_FOUND: UnknownNameError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooLargeError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.DATA_LOSS: RestartedError,
    grpc.StatusCode.ABORTED: JobFailedError,
    grpc.StatusCode.OUT_OF_RANGE: RollbackError,
}
_NOTHING = IncomingPullReply(memoryview(b""))
_ASIDE_TRIES = 3  # how often to ask for an answer that nothing depends on
# A separate generator, since retries happen in threads and must not change the script's random numbers.
_JITTER = random.Random()
logger = logging.getLogger(__name__)


def credentials_of(
    tls_authority: bytes | None = None, tls_certificate: bytes | None = None, tls_key: bytes | None = None, **_: object
) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials of a client's connections (see Client); None for connections without TLS."""
    return grpc.ssl_channel_credentials(tls_authority, tls_key, tls_certificate) if tls_authority else None


class ServerConnection:
    """Calls to one server. Safe for threads.

    A server that is killed and restarted continues from a snapshot, or empty. A trainer's calls
    name the incarnation of the server, and a server with a different incarnation refuses the calls. Then the
    client repairs the server before anything else changes it: it creates the server's tables and blocks
    again and replays the calls of the replay log, so that the server has all acknowledged calls.

    Args:
        credentials: for TLS; None for none.
        timeout_s: for how long a call is retried, and a lost connection reopened.
        trainer: number of the calling trainer.
        keep_bytes: the size of the replay log: calls since the server's last snapshot, which are
            sent again when the server is restored from it.

    Attributes:
        pushes, pulls: the sequence numbers of the mutations and of the pulls of this connection.
        restarts: how many restarts of the server were noticed.
        on_restart: called with this connection before the replay log is sent.
        on_rollback: called with the error when the server refuses a call because the whole job has
            to restart.
    """

    def __init__(
        self,
        endpoint: str,
        token: str,
        credentials: grpc.ChannelCredentials | None,
        timeout_s: float,
        trainer: int = 0,
        keep_bytes: int = 0,
    ):
        self.endpoint, self.timeout_s, self._trainer = endpoint, timeout_s, trainer
        self.pushes, self.pulls = SequenceNumbers(), SequenceNumbers()
        self._grpc = GrpcTransport(endpoint, token, credentials, timeout_s)
        self._streams = CallStreams(
            self._port,
            endpoint.rpartition(":")[0].strip("[]"),
            token,
            wire.LARGEST_MESSAGE + wire.OVERHEAD,
            wanted=credentials is None,
        )
        self._transports: list[Transport] = [self._streams, self._grpc]
        self._closed = threading.Event()
        self._created: list[pb.CreateRequest] = []  # to be repeated when the server has restarted
        self.replay_log, self.restarts = ReplayLog(keep_bytes), 0
        self.on_restart: Callable[[ServerConnection], None] = lambda connection: None
        self.on_rollback: Callable[[RollbackError], None] = lambda error: None
        self._ended_by: RollbackError | None = None
        # The incarnation of the server that has all that this client has sent; 0 while unknown. The
        # lock is held while a restarted server is repaired, and while an answer is recorded.
        self._life, self._mending = 0, threading.Lock()
        self._applied = 0  # rounds applied, as of the last answer

    def call(self, method: str, request: Message, waits: bool = False) -> Any:
        """Send a request and return the reply.

        Without an answer the same request, sequence number included, is sent again.

        Args:
            waits: the server answers when other trainers have done their part, which may take any
                time; `timeout_s` then limits only how long a lost connection is retried.

        Raises ServerError, or one of its kinds, with the server's reason, or when there is no
        answer in time.
        """
        data = request.SerializeToString()
        if len(data) > wire.LARGEST_MESSAGE:
            raise TooLargeError(f"{method}: a message of {len(data)} bytes; the limit is {wire.LARGEST_MESSAGE}")
        call = ServerCall(method, [data], len(data))
        return self._tried(method, lambda timeout_s: self._grpc.send(call, timeout_s), waits)

    def _port(self) -> int | None:
        """Return the port of the server's streams; 0 for none, None without an answer."""
        reply = self._grpc.attach()
        if reply is None:
            return None
        here = self.endpoint.rpartition(":")[2] == str(reply.beside)
        return int(reply.port) if here else 0

    def _fast_sender(self, size: int) -> Sender | None:
        """Return a function that sends one call through a fast channel; None to use gRPC."""
        if not SMALLEST + wire.OVERHEAD <= size <= wire.LARGEST_MESSAGE:
            return None
        return self._streams.sender(size)

    # ---- a server that starts again ----

    def create(self, request: pb.CreateRequest) -> None:
        """Create tables and blocks, now and whenever the server restarts without the snapshot of both."""
        reply = self.call("Create", request)
        with self._mending:
            self._life = self._life or reply.server_incarnation
            self._created.append(request)

    def latest(self) -> int:
        """Return the highest incarnation of this trainer that the server knows; 0 for none."""
        status = self.call("Status", pb.StatusRequest(trainer=self._trainer))
        with self._mending:
            self._life = self._life or status.server_incarnation
        return int(status.latest)

    def current(
        self, told: Sequence[_Told], send: Callable[[], T], keep: Callable[[T], None] = lambda reply: None
    ) -> T:
        """Send a request to a server that has all that this client has sent: a restarted server is repaired first.

        Args:
            told: the parts of the request that name the incarnation of the server that it is for. A
                client that has only read knows none, and accepts any.
            send: sends the request; may be called again.
            keep: records the answer.
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
            # A different thread has repaired the server in the meantime: the server lacks the call that its
            # predecessor has just answered.

    def look(self, caller: pb.Caller, at_once: bool) -> None:
        """Send a heartbeat.

        If its answer shows that the server has restarted, repair it, now or in a different thread.
        """
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
        except errors.ServerError as error:  # the next call or heartbeat tries again
            if not self._closed.is_set():
                logger.warning("%s", error)

    def mend(self, life: int) -> None:
        """Repair the server after the end of incarnation `life`, unless a different thread has done so.

        Raises ServerError.
        """
        with self._mending:
            if self._life == life:
                self._mend()

    def _mend(self) -> None:
        """Create tables and blocks again on a restarted server, and replay the logged calls that it lacks."""
        status = self.call("Status", pb.StatusRequest(trainer=self._trainer))
        for create in self._created:
            self.call("Create", create)
        for transport in self._transports:
            transport.forget()
        self.on_restart(self)
        calls, through = self.replay_log.beyond(0), 0
        # The server's number counts pushes of the incarnation that it knows.
        if calls and calls[0].caller.incarnation == status.incarnation:
            through = status.through
            calls = self.replay_log.beyond(through)
        logger.warning(
            "server %s has started again with all pushes up to %d; %d later pushes are sent again",
            self.endpoint,
            through,
            len(calls),
        )
        # Calls that are in flight in other threads, or still to be replayed, must not be taken for
        # lost.
        lowest = {False: 1 << 63, True: 1 << 63}
        for call in reversed(calls):
            lowest[call.pulls] = call.caller.outstanding = min(lowest[call.pulls], call.caller.sequence)
        for call in calls:
            sequences = self.pulls if call.pulls else self.pushes
            call.caller.outstanding = sequences.outstanding(call.caller.outstanding)
            call.caller.server_incarnation = status.server_incarnation
            try:
                self._again(call)
            # it has restarted once more: the caller will notice and come back here
            except RestartedError:
                return
        self._life, self.restarts = status.server_incarnation, self.restarts + 1

    def _again(self, call: LoggedCall) -> None:
        if isinstance(call.request, pb.ShrinkRequest):
            self.call("Shrink", call.request)
            return
        message = call.request.push.message
        # An applied round was confirmed; pushes of a later round are held again until it is
        # confirmed.
        message.hold = message.hold and message.round > self._applied
        self._exchange(call.request, call.reply_bytes, waits=bool(message.round))

    # ---- calls of trainers ----

    def exchange(self, request: OutgoingRequest, reply_bytes: int, waits: bool = False) -> IncomingExchangeReply:
        """Push, pull, or both in one call, in chunks if the request or the reply (of about `reply_bytes`) is large.

        A server that has restarted gets the logged calls that it has lost first.
        """

        def send() -> IncomingExchangeReply:
            return self._exchange(request, reply_bytes, waits)

        def keep(reply: IncomingExchangeReply) -> None:
            self._applied = max(self._applied, reply.push.rounds, reply.pull.rounds)
            self.replay_log.add(request, reply.pull.counted, reply_bytes)
            self.replay_log.prune(reply.push.durable, reply.pull.durable)

        told: list[_Told] = [part.caller for part in (request.push.message, request.pull) if part.HasField("caller")]
        return self.current(told or [request.pull], send, keep)

    def shrink(self, request: pb.ShrinkRequest) -> int:
        """Drop rows; returns how many."""
        reply = self.current(
            [request.caller], lambda: self.call("Shrink", request), lambda _: self.replay_log.add_shrink(request)
        )
        return int(reply.rows)

    def leave(self, caller: pb.Caller) -> bool:
        """Tell the server that the trainer leaves.

        Returns whether it may go: no call of its replay log can be needed again.
        """
        request = pb.LeaveRequest(caller=caller)
        reply = self.current([request.caller], lambda: self.call("Leave", request))
        self.replay_log.prune(reply.durable, reply.durable_pulls)
        return bool(reply.over or not len(self.replay_log))

    def gone(self, caller: pb.Caller) -> None:
        """Confirm to the server that the answer to `leave` has arrived.

        Without the confirmation the server stays for a while, to answer again.
        """
        request = pb.LeaveRequest(caller=caller, knows=True)
        for _ in range(_ASIDE_TRIES):
            try:
                self._grpc.send(ServerCall("Leave", [request.SerializeToString()], 0), min(self.timeout_s, ASIDE_S))
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    return
            except (errors.ServerError, ValueError):
                return

    # ---- how it goes ----

    def _exchange(self, request: OutgoingRequest, reply_bytes: int, waits: bool) -> IncomingExchangeReply:
        call = ServerCall.of(request, reply_bytes)
        sender = self._fast_sender(call.size)

        def send(timeout_s: float | None) -> Any:
            nonlocal sender
            first, sender = sender, None
            return (first or self._grpc.send)(call, timeout_s)

        reply = self._tried(call.method, send, waits)
        if call.method == "Push":
            return IncomingExchangeReply(reply, _NOTHING)
        both: IncomingExchangeReply = IncomingExchangeReply(pb.PushReply(), reply) if call.method == "Pull" else reply
        return both

    def _tried(self, method: str, send: Callable[[float | None], T], waits: bool) -> T:
        end = time.monotonic() + self.timeout_s
        attempt = renewed = 0
        while True:
            start = time.monotonic()
            try:
                return send(None if waits else max(end - start, 0.001))
            # gRPC's error on a connection that was closed meanwhile
            except ValueError as error:
                if not self._closed.is_set():
                    raise
                raise self._ended_by or errors.ServerError(
                    f"server {self.endpoint}: {method}: this client was closed"
                ) from error
            except grpc.RpcError as error:
                # nothing was done
                if error.code() == grpc.StatusCode.UNAUTHENTICATED and renewed < 3:
                    renewed += 1
                    self._grpc.renew()
                    continue
                now = time.monotonic()
                if waits and (attempt == 0 or now - start > self.timeout_s):
                    end = now + self.timeout_s  # the server was reachable until now
                if not _is_lost(error) or now >= end or self._closed.is_set():
                    refusal = self._ended_by or self._refusal(method, error)
                    if isinstance(refusal, RollbackError):
                        self.on_rollback(refusal)
                    raise refusal from None
                logger.info("%s: %s: no answer (%s); trying again", self.endpoint, method, error.details())
            self._closed.wait(min(0.05 * 2 ** min(attempt, 6), 2.0) * _JITTER.uniform(0.5, 1.0))
            attempt += 1

    def _refusal(self, method: str, error: grpc.RpcError) -> errors.ServerError:
        kind = _REFUSALS.get(error.code(), errors.ServerError)
        code = error.code().name
        if code == "DEADLINE_EXCEEDED" or _is_lost(error):
            return kind(
                f"server {self.endpoint}: {method}: no answer within {self.timeout_s:g} s ({error.details()}); is it "
                "running, and reachable from here?"
            )
        return kind(
            f"server {self.endpoint}: {method}: {error.details()}" + f" ({code})" * (kind is errors.ServerError)
        )

    def end(self, error: RollbackError) -> None:
        """Close the connection; pending calls, and later ones, raise this error."""
        self._ended_by = self._ended_by or error
        self.close()

    def close(self) -> None:
        """Close the connection; pending calls fail."""
        self._closed.set()
        for transport in self._transports:
            transport.close()


def _is_lost(error: grpc.RpcError) -> bool:
    """Return True if a call got no answer of the service: the request may have arrived, and is sent again."""
    code = error.code()
    # a server that ends cancels its pending calls
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return True
    # gRPC reports one of these for streams that end in the middle; from the service they come with
    # a proof.
    return code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and not any(
        key == PROOF for key, _ in error.trailing_metadata() or ()
    )
