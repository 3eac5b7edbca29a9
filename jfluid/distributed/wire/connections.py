"""This process's connections to the servers of jobs, one for each trainer that it is."""

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jfluid import flags
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.distributed.wire.pending_exchange import Exchange
from jfluid.distributed.wire.settings import client_options, kept_bytes, writes_snapshots
from jfluid.host import heap
from jfluid.record.phases import PHASES
from jfluid.scope import Scope
from jfluid.security.secret import job_secret
from jfluid.transpiler.parameter_server.layout import ParameterLayout

if TYPE_CHECKING:
    from jfluid.ps_server import ps_pb2 as pb
    from jfluid.ps_server.client import Client, PulledRows, PullResult

Array = np.ndarray[Any, Any]
_LOG = logging.getLogger(__name__)


@dataclass
class Gradients:
    """Gradients and counts that a step sends.

    Attributes:
        dense: by the names that pieces of parameters have at their servers.
        rows: by table: int64 [n], each id once, and float32 [n, width].
        counts: by the names of counters.
        touched: with GEO: by table the ids that the step looked up, int64 [n].
    """

    dense: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)
    touched: dict[str, Array] = field(default_factory=dict)


class Strategy(ABC):
    """Strategy of a trainer's exchange with servers."""

    def pull(self, connection: "TrainerConnection", ids: Mapping[str, Array]) -> "dict[str, PulledRows]":
        """Return rows of tables for a step. May be called for steps ahead, by other threads."""
        return connection.calls.pull(ids).rows if ids else {}

    @abstractmethod
    def overlaps(self, program: TrainerProgram) -> bool:
        """Return True if rows for the next step may be pulled before this one's gradients are applied."""

    def in_rounds(self, program: TrainerProgram) -> bool:
        """Return True if trainers wait for each other: the bits of a job then do not depend on restarts."""
        return False

    def begin(self, connection: "TrainerConnection", program: TrainerProgram, scope: Scope) -> None:  # noqa: B027
        """Prepare for the next step."""

    @abstractmethod
    def push(
        self, connection: "TrainerConnection", program: TrainerProgram, gradients: Gradients, scope: Scope
    ) -> dict[str, Array]:
        """Take a step's gradients; return the pieces of parameters that are new since the last one."""

    def stop(self) -> None:  # noqa: B027
        """Send waiting gradients, and give the trainer the servers' parameters.

        Raises ServerError where that failed.
        """


class Laps:
    """Time of a trainer's steps by part.

    Attributes:
        seconds: by part of a step: "rows" (looking up), "feed" (rows and their positions made
            ready, where that was not done while servers were asked), "compute", "gradients" (to the
            host, and merged by id), "exchange" (sending, and receiving where the strategy waits for
            it), "install" (parameters that came).
        steps: how many were taken.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self._last = 0.0

    def start(self) -> None:
        """Begin a step."""
        self._last = time.perf_counter()
        self.steps += 1

    def lap(self, part: str, phase: str) -> None:
        """Count the time since the last lap as a part of the step, and as a phase in the record."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        PHASES.add(phase, self._last, now)
        self._last = now


class TrainerConnection:
    """Connection of one trainer to all servers of the job.

    Attributes:
        calls: the client, whatever is in flight.
        rounds: how many rounds of synchronous training this trainer has done.
        recovers: the job writes snapshots, so that its processes may be started again.
        careful: True if all servers must have a round's gradients before any server applies the round.
        resumed: local state of this trainer's earlier life; None for a trainer
            that begins.
        sizes: histories of the padded sizes of steps in rounds.
        batches_to_skip: how many more batches of datasets were trained before this process was
            started again.
        strategy: how gradients are sent and parameters received; None for the operators of the program.
        prefetch_depth: number of batches of a dataset with rows pulled ahead, if the strategy allows
            it; 0: steps do not overlap.
        params: parameters that come from servers.
        laps: times of the phases of a step.
        users: the engines that use the connection; a closed engine leaves it.
        left: the goodbye has been said.

    Args:
        observes: True if it only reads values of servers, and is no trainer of the job.
    """

    def __init__(self, endpoints: Sequence[str], trainer: int, observes: bool = False):
        from jfluid.ps_server.client import Client

        # Before the client's threads: threads with separate heaps would take a step's blocks.
        heap.keep_for_steps()
        self.endpoints, self.trainer = list(endpoints), trainer
        self.calls = Client(
            endpoints,
            job_secret(endpoints),
            trainer,
            timeout_s=flags.get("FLAGS_rpc_deadline") / 1000,
            keep_bytes=kept_bytes(),
            **client_options(),
        )
        self.recovers = writes_snapshots() and not observes
        self.careful = self.recovers and len(endpoints) > 1
        self.rounds = 0
        self.resumed: pb.TrainerState | None = None
        self.sizes = SizeHistories()
        self.batches_to_skip = 0
        self.strategy: Strategy | None = None
        self.prefetch_depth = 1
        self.laps = Laps()
        self.params: dict[str, ParameterLayout] = {}
        self.users = weakref.WeakSet[Any]()
        self.left = False
        self._exchange: Exchange | None = None
        self._enters, self._entering = False, threading.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="jfluid-exchange")

    @property
    def client(self) -> "Client":
        """Client of the servers, after the end of the pending exchange. Raises ServerError if the exchange failed."""
        self.settle()
        return self.calls

    def exchange(
        self,
        send: "Callable[[Mapping[str, Any] | None], PullResult]",
        program: TrainerProgram,
        scope: Scope,
    ) -> None:
        """Run `send` while the next step begins (see Exchange); its result has the parameters of `scope`."""
        self.settle()
        self._exchange = Exchange(self._threads.submit, send, program, scope)

    def begin(self) -> None:
        """No step is going to ask for rows with the exchange that is in flight."""
        if self._exchange is not None:
            self._exchange.begin()

    def asked(self, ids: Mapping[str, Any]) -> "Mapping[str, PulledRows] | None":
        """Wait for the exchange that is pending.

        The rows of these ids, where there was one that could bring them.

        Raises ServerError where it failed.
        """
        exchange = self._exchange
        brings = exchange is not None and exchange.send(ids)
        self.settle()
        return exchange.rows if exchange is not None and brings else None

    def settle(self) -> None:
        """Wait for the exchange that is in flight. Raises ServerError where it failed."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()

    def enter(self) -> None:
        """Join the job as the trainer of this number, and resume after the rounds that all servers have.

        Raises ServerError.
        """
        with self._entering:
            if not self._enters:
                self.calls.enter()  # from here on servers refuse calls of the earlier life
                self.rounds = self._agreed()
                self.resumed = self._resumed()
                self._enters = True

    def leave(self) -> None:
        """Say goodbye. Raises ServerError where the last exchange failed, or the goodbye did."""
        self.left = True
        try:
            self.settle()
        finally:
            self._threads.shutdown(wait=False)
            if self._enters:
                self.calls.leave()
            else:
                self.calls.close()

    def _agreed(self) -> int:
        """Return the number of rounds that all servers have applied.

        A killed trainer may have sent its gradients of one more round to all servers, and
        confirmed the round at some servers: then it is confirmed at the remaining servers. Raises RollbackError if
        servers are further apart: the gradients of the rounds between were this trainer's, and are
        gone with it.
        """
        from jfluid.ps_server.errors import RollbackError, StateError

        statuses = self.calls.status()
        if told := next((s.went_back for s in statuses if s.went_back), ""):
            _LOG.warning("%s", told)
        least, most = min(s.rounds for s in statuses), max(s.rounds for s in statuses)
        if least == most and not any(s.confirmed for s in statuses):
            return least
        try:
            if most <= least + 1:
                self.calls.pull(round=least + 1, confirm=True)
                return least + 1
            why = ""
        except StateError as error:
            why = f" ({error})"
        rounds = ", ".join(f"server {s.server} has {s.rounds}" for s in statuses)
        raise RollbackError(
            f"trainer {self.trainer}: the servers have applied different numbers of rounds ({rounds}), and "
            "gradients that some servers need were lost with an earlier life of this trainer: start all "
            f"processes again, which go on from the newest snapshots that all servers have{why}"
        )

    def _resumed(self) -> "pb.TrainerState | None":
        """Return this trainer's local state after the rounds that it resumes from."""
        if not (self.recovers and self.rounds):
            return None
        state = self.calls.trainer_state()
        if state.round != self.rounds:
            _LOG.warning(
                "the servers have %d rounds, and no local state of trainer %d: running statistics and "
                "random numbers begin anew",
                self.rounds,
                self.trainer,
            )
            return None
        return state

    def register(self, program: TrainerProgram) -> None:
        """Tell the client where the tables and pieces of a program are."""
        for table in program.tables.values():
            self.place_rows(table)
        for dense in [d for _, d in program.dense] + program.received:
            self.params[dense.name] = dense
            for piece in dense.pieces:
                self.calls.place_block(piece.name, piece.server, piece.shape)
        for name in program.counts:
            for server in range(len(self.endpoints)):
                self.calls.place_block(f"{name}@{server}", server, (1,), there=name)

    def place_rows(self, param: ParameterLayout) -> None:
        """Tell the client which servers hold the rows of a parameter; messages may then send single rows by id."""
        from jfluid.ps_server.client import RowRange

        self.calls.place_table(
            param.name,
            param.width,
            [] if param.hashed else [RowRange(p.name, p.server, p.first, p.rows) for p in param.pieces],
        )


_connections: dict[tuple[tuple[str, ...], int], TrainerConnection] = {}
# Trainer number of connections that only read.
_OBSERVER = -1
_lock = threading.Lock()
_making: dict[tuple[tuple[str, ...], int], threading.Lock] = {}
# functions to call with new connections
_awaited: dict[tuple[tuple[str, ...], int], Callable[[TrainerConnection], None]] = {}


def connect(program: TrainerProgram, user: object = None) -> TrainerConnection:
    """Return the connection of a program's trainer, made at the first call; `user` leaves it later."""
    found, _ = _found(program.endpoints, program.trainer_id)
    try:
        found.enter()
    except BaseException:
        _forget(found)
        raise
    if user is not None:
        found.users.add(user)
    found.register(program)
    return found


def when_connected(program: TrainerProgram, use: Callable[[TrainerConnection], None]) -> None:
    """Call `use` with the connection of a program's trainer: now, or when a step makes the connection."""
    key = tuple(program.endpoints), program.trainer_id
    with _lock:
        found = _connections.get(key)
        if found is None:
            _awaited[key] = use
    if found is not None:
        use(found)


def cancel(program: TrainerProgram) -> bool:
    """Cancel the call that waits for a connection; return True if there was a call."""
    with _lock:
        return _awaited.pop((tuple(program.endpoints), program.trainer_id), None) is not None


def borrow(endpoints: Sequence[str], trainer: int, user: object) -> TrainerConnection:
    """Return a trainer's connection for a single request to the servers.

    `user` leaves a new connection later. If the connection exists, the order of `endpoints` does not matter.
    """
    with _lock:
        for (there, number), connection in _connections.items():
            if number == trainer and sorted(there) == sorted(endpoints):
                return connection
    found, made = _found(endpoints, trainer)
    if made:
        found.users.add(user)
    return found


def settle(endpoints: Sequence[str], trainer: int) -> None:
    """Wait for the pending exchange of a trainer of this process with some of the servers, if there is one.

    Raises ServerError where that failed.
    """
    with _lock:
        found = [
            connection
            for (there, number), connection in _connections.items()
            if number == trainer and set(endpoints) <= set(there)
        ]
    for connection in found:
        connection.settle()


def observe(endpoints: Sequence[str], user: object) -> TrainerConnection:
    """Return the connection of an observer, which servers do not count as a trainer and do not wait for.

    `user` leaves it later.
    """
    found, _ = _found(endpoints, _OBSERVER)
    found.users.add(user)
    return found


def _found(endpoints: Sequence[str], trainer: int) -> tuple[TrainerConnection, bool]:
    """Return (connection of a trainer, True if it was made now)."""
    key = tuple(endpoints), trainer
    with _lock:
        alone = _making.setdefault(key, threading.Lock())
    # servers are asked meanwhile, which other trainers of this process need not wait for
    with alone:
        found = _connections.get(key)
        if found is not None:
            return found, False
        made = TrainerConnection(endpoints, max(trainer, 0), observes=trainer == _OBSERVER)
        with _lock:
            _connections[key] = made
            use = _awaited.pop(key, None)
        if use is not None:
            use(made)
        return made, True


def _forget(connection: TrainerConnection) -> None:
    """Forget a connection, so that the next request makes a new one."""
    with _lock:
        for key in [key for key, found in _connections.items() if found is connection]:
            del _connections[key]
    connection.calls.close()


def leave(user: object) -> None:
    """Say goodbye for an engine: servers without an engine left end when all trainers have left."""
    with _lock:
        mine = [(key, found) for key, found in _connections.items() if user in found.users]
        for key, found in mine:
            found.users.discard(user)
            if not found.users:
                del _connections[key]
    for _, found in mine:
        if not found.users:
            found.leave()


def drop(key: tuple[tuple[str, ...], int]) -> None:
    """Say goodbye to the servers of one trainer, if there is a connection."""
    with _lock:
        found = _connections.pop(key, None)
    if found is not None:
        found.users.clear()
        found.leave()
