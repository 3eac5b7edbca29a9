"""Connections of one trainer to all servers: concurrent calls, joining, heartbeats, barriers, leaving."""

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.connection import ServerConnection
from jfluid.ps_server.errors import RollbackError
from jfluid.ps_server.zero_copy import OutgoingRequest

# For how long a trainer that has left stays reachable, so that a restarted server can ask it for
# its last pushes.
_STAY_S, _STAY_LOOK_S = 60.0, 0.1
logger = logging.getLogger(__name__)


class ServerConnections:
    """The connections of one trainer, in the order of the job's servers. Safe for threads.

    Methods raise ServerError, or one of its kinds, with the server's reason, or when there is no
    answer.

    Args:
        endpoints: "host:port" of all servers, in the job's order.
        token: the job's.
        trainer: this trainer's number, from 0.
        incarnation: number of this trainer process, from 1 to 2**64 - 1; None asks the servers for a number that
            is higher than all numbers that they know, at first use.
        timeout_s: for how long a call is retried.
        heartbeat_s: seconds between heartbeats to each server; 0 for none.
        keep_bytes: size of the replay log of each server.
        credentials: for TLS; None for none.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        token: str,
        trainer: int,
        incarnation: int | None,
        timeout_s: float,
        heartbeat_s: float,
        keep_bytes: int,
        credentials: grpc.ChannelCredentials | None,
    ):
        if isinstance(endpoints, str) or not endpoints:
            raise errors.ServerError(f"endpoints: expected a list of host:port, found {endpoints!r}")
        if incarnation is not None and not 1 <= incarnation < 1 << 64:
            raise errors.ServerError(f"incarnation: expected a number from 1 to 2**64 - 1, found {incarnation!r}")
        self.trainer = trainer
        self._connections = [
            ServerConnection(endpoint, token, credentials, timeout_s, trainer, keep_bytes) for endpoint in endpoints
        ]
        self._connections[0].on_restart = self._tell_generations
        for connection in self._connections:
            connection.on_rollback = self._end
        self._generations: dict[str, Iterator[int]] = {}
        self._passed: dict[str, int] = {}
        self._lock, self._entering = threading.Lock(), threading.Lock()
        self._threads = ThreadPoolExecutor(32 * len(endpoints), thread_name_prefix="jfluid-ps-client")
        self._closed = threading.Event()
        self._heartbeat_s, self._beats = heartbeat_s, False
        self._incarnation = incarnation or 0
        if incarnation is not None:
            self._begin_beats()

    def __getitem__(self, number: int) -> ServerConnection:
        return self._connections[number]

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    def everywhere(
        self, function: Callable[[int], Any], quick: bool = False, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Any]:
        """Call `function` with the number of every server concurrently; return the results in the order of the servers.

        Args:
            quick: True if no call waits for other trainers, so this thread may make a call itself. It then gets
                errors of the remaining calls only after the answer of this call.
            meanwhile: called after all threads, this thread included, have begun their calls.
        """
        *others, last = range(len(self._connections))
        if others and not quick:
            others.append(last)
        futures = {}
        for number in others:
            with contextlib.suppress(
                RuntimeError
            ):  # the interpreter is shutting down and starts no threads: one after the other
                futures[number] = self._threads.submit(function, number)
        found = {number: function(number) for number in range(len(self._connections)) if number not in futures}
        meanwhile()
        return [futures[n].result() if n in futures else found[n] for n in range(len(self._connections))]

    def meanwhile(
        self,
        requests: list[OutgoingRequest],
        send: Callable[[int], Any],
        quick: bool,
        meanwhile: Callable[[], None] | None,
    ) -> list[Any]:
        """Send a request to each server; return the results of `send`.

        `meanwhile` is called when all requests are on their way: earlier it would keep the
        threads from sending.
        """
        if meanwhile is None:
            return self.everywhere(send, quick)
        own = len(requests) - 1 if quick or len(requests) == 1 else None
        others = [n for n in range(len(requests)) if n != own]
        away = threading.Semaphore(0)

        def all_sent() -> None:
            for _ in others:
                away.acquire()
            meanwhile()

        def answer(number: int) -> Any:
            try:
                return send(number)
            finally:  # it may have failed before it was sent
                away.release()

        for number in others:
            requests[number].on_sent = away.release
        if own is None:
            return self.everywhere(answer, meanwhile=all_sent)
        requests[own].on_sent = all_sent
        return self.everywhere(answer, quick)

    # ---- the trainer in the job ------------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """The incarnation of this trainer; it joins the job when this is first needed."""
        return self._incarnation or self.enter()

    @property
    def entered(self) -> bool:
        """True if this trainer has an incarnation: it has joined the job, or was given one."""
        return bool(self._incarnation)

    def enter(self) -> int:
        """Join the job as the trainer of this number, unless it has joined; return the incarnation.

        The incarnation is higher than any that a server knew. When this returns no call of an earlier one
        is begun any more.
        """
        with self._entering:
            self._begin_beats()
            if not self._incarnation:
                latest = max(self.everywhere(lambda number: self._connections[number].latest()))
                if latest >> 32 == (1 << 32) - 1:
                    raise errors.ServerError(
                        f"trainer {self.trainer}: there is no incarnation above {latest}, which a client "
                        "was given (incarnation=): none can follow it"
                    )
                self._incarnation = ((latest >> 32) + 1) << 32 | secrets.randbits(32)
                # From here on servers refuse calls of an earlier incarnation that they have not read yet.
                self.look()
            return self._incarnation

    def caller(self, sequence: int = 0, outstanding: int = 0) -> pb.Caller:
        """Return the Caller message for requests that only trainers make; join the job first.

        Args:
            sequence, outstanding: of a request that changes a server (see SequenceNumbers).
        """
        return pb.Caller(trainer=self.trainer, incarnation=self.incarnation, sequence=sequence, outstanding=outstanding)

    def _begin_beats(self) -> None:
        # A thread for each server: a server without an answer must not make this trainer silent to
        # the remaining servers.
        for connection in self._connections if self._heartbeat_s and not self._beats else ():
            threading.Thread(target=self._beat, args=[connection], name="jfluid-ps-heartbeat", daemon=True).start()
        self._beats = True

    def _beat(self, connection: ServerConnection) -> None:
        while not self._closed.wait(self._heartbeat_s):
            try:
                connection.look(pb.Caller(trainer=self.trainer, incarnation=self._incarnation), at_once=False)
            except errors.ServerError as error:
                if not self._closed.is_set():
                    logger.warning("heartbeat: %s", error)

    def look(self, first: int = 0) -> None:
        """Find restarted servers, from number `first` on, and send each the calls that it lacks."""

        def look(number: int) -> None:
            if number >= first:
                self._connections[number].look(self.caller(), at_once=True)

        if first < len(self._connections):
            self.everywhere(look)

    # ---- barriers --------------------------------------------------------------------------------

    def barrier(self, name: str, number: int | None) -> None:
        """Wait at server 0 until all trainers have reached generation `number` of the barrier; None for the next."""
        self.enter()
        if number is None:
            with self._lock:
                number = next(self._generations.setdefault(name, itertools.count(1)))
        self.look(first=1)
        request = pb.BarrierRequest(caller=self.caller(), name=name, number=number)
        self._connections[0].current(
            [request.caller], lambda: self._connections[0].call("Barrier", request, waits=True)
        )
        with self._lock:
            self._passed[name] = max(self._passed.get(name, 0), number)

    def _tell_generations(self, connection: ServerConnection) -> None:
        """Tell a restarted server 0 which barriers this trainer has passed: it decides by that whom it lets through."""
        with self._lock:
            passed = dict(self._passed)
        for name, number in passed.items():
            connection.call("Barrier", pb.BarrierRequest(caller=self.caller(), name=name, number=number, passed=True))

    # ---- the end ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Tell all servers that this trainer has finished, and close.

        A trainer with a replay log waits for at most a minute until no server can need it any more.
        """
        self.enter()
        try:
            self.everywhere(self._leave)
        finally:
            self.close()

    def _leave(self, number: int) -> None:
        connection, end = self._connections[number], time.monotonic() + _STAY_S
        while not connection.leave(self.caller()) and not self._closed.wait(_STAY_LOOK_S):
            if time.monotonic() > end:
                logger.warning(
                    "server %s has no snapshot of this trainer's last pushes: these are lost if the server is killed "
                    "before all trainers have left",
                    connection.endpoint,
                )
                break
        connection.gone(self.caller())

    def close(self) -> None:
        """Close all connections without telling the servers."""
        self._closed.set()
        for connection in self._connections:
            connection.close()
        self._threads.shutdown(wait=False)

    def _end(self, error: RollbackError) -> None:
        """End all connections for a restart of the job: calls that wait at other servers would wait forever."""
        self._closed.set()
        for connection in self._connections:
            connection.end(error)
