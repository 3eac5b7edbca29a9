"""Client: one trainer's side of all servers of a job.

Rows go to the server that a hash of their id names, blocks to the server that `create` was told. Ids are made distinct and
gradients of equal ids added up before they travel. A call that gets no answer is sent again, with the same sequence, until
`timeout_s` is over: servers apply it once.
"""
import contextlib
import itertools
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels, specs, validation, wire
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.connection import ServerConnection
from jfluid.ps_server.directory import Block, Directory, RowRange
from jfluid.ps_server.errors import RollbackError
from jfluid.ps_server.sharded_pull import PulledRows, PullResult, ShardedPull, checked_ids, described
from jfluid.ps_server.store import Change
from jfluid.ps_server.table import merge
from jfluid.ps_server.zero_copy import IncomingPullReply, OutgoingRequest

__all__ = ["Client", "PullResult", "PulledRows", "RowRange", "credentials_of"]

Array = np.ndarray[Any, Any]
# For how long a trainer that has left stays where a server may ask it again for what it has sent.
_STAY_S, _STAY_LOOK_S = 60.0, 0.1
logger = logging.getLogger(__name__)


def credentials_of(tls_authority: bytes | None = None, tls_certificate: bytes | None = None, tls_key: bytes | None = None,
                   **_: object) -> grpc.ChannelCredentials | None:
    """What a client's connections use for TLS (see Client); None for connections without it."""
    return grpc.ssl_channel_credentials(tls_authority, tls_key, tls_certificate) if tls_authority else None


class Client:
    """Calls from one trainer. Safe for threads.

    All methods raise ServerError, or one of its kinds in `jfluid.ps_server.errors`, with the server's reason, or when there
    is no answer.

    A client that pushes, pulls for training, or comes to a barrier is the trainer of its number from then on (see `enter`).
    One that only looks up, pulls with `train=False`, saves and asks for the status is none, and disturbs none.

    Args:
        endpoints: "host:port" of all servers, in the job's order.
        token: the job's.
        trainer: this trainer's number, from 0.
        incarnation: higher in each life of the trainer, from 1 to 2**64 - 1; by default higher than any that a server knows.
        timeout_s: for how long a call is tried. What waits for other trainers (barriers, rounds) is not bounded by it.
        heartbeat_s: the time between a trainer's signs of life; 0 for none (every call is one, too). They also tell whether a
            server has started again and needs what was kept.
        keep_bytes: how much of the pushes since a server's last snapshot is kept, for each server, to be sent again when it is
            restored from that: then nothing is lost. What is pushed beyond it (oldest first) cannot be sent again.
        tls_authority: PEM of the authority whose certificates servers have: then connections use TLS.
        tls_certificate, tls_key: PEM of this client's own, for servers that want one.
        share_memory: whether large messages to servers on this machine go through memory that both have (see
            shared_memory.py).
    """

    def __init__(self, endpoints: Sequence[str], token: str, trainer: int = 0, incarnation: int | None = None,
                 timeout_s: float = 60.0, heartbeat_s: float = 5.0, keep_bytes: int = 0,
                 tls_authority: bytes | None = None, tls_certificate: bytes | None = None, tls_key: bytes | None = None,
                 share_memory: bool = True):
        if isinstance(endpoints, str) or not endpoints:
            raise errors.ServerError(f"endpoints: expected a list of host:port, found {endpoints!r}")
        if incarnation is not None and not 1 <= incarnation < 1 << 64:
            raise errors.ServerError(f"incarnation: expected a number from 1 to 2**64 - 1, found {incarnation!r}")
        self.trainer = trainer
        credentials = credentials_of(tls_authority, tls_certificate, tls_key)
        self._connections = [ServerConnection(endpoint, token, credentials, timeout_s, trainer, keep_bytes, share_memory)
                          for endpoint in endpoints]
        self._connections[0].on_restart = self._tell_passages
        for connection in self._connections:
            connection.on_rollback = self._end
        self._directory = Directory(len(endpoints), self._widths)
        self._passages: dict[str, Iterator[int]] = {}
        self._passed: dict[str, int] = {}
        self._lock, self._entering = threading.Lock(), threading.Lock()
        self._threads = ThreadPoolExecutor(32 * len(endpoints), thread_name_prefix="jfluid-ps-client")
        self._closed = threading.Event()
        self._heartbeat_s, self._beats = heartbeat_s, False
        self._incarnation = incarnation or 0
        if incarnation is not None:
            self._begin_beats()

    @property
    def incarnation(self) -> int:
        """Which life of the trainer this is; servers are asked when it is first needed."""
        return self._incarnation or self.enter()

    def enter(self) -> int:
        """Take part in the job as its trainer of this number: earlier lives of it have ended. Entering again is harmless.

        The incarnation, which is returned, is higher than any that a server knows, and differs from that of another life that
        begins at the same time, of which one then ends the other. Raises ServerError.
        """
        with self._entering:
            self._begin_beats()
            if not self._incarnation:
                latest = max(self._everywhere(lambda number: self._connections[number].latest()))
                if latest >> 32 == (1 << 32) - 1:
                    raise errors.ServerError(f"trainer {self.trainer}: there is no incarnation above {latest}, which a client "
                                             "was given (incarnation=): none can follow it")
                self._incarnation = ((latest >> 32) + 1) << 32 | secrets.randbits(32)
            return self._incarnation

    def _begin_beats(self) -> None:
        # A thread for each server: one that does not answer must not make this trainer silent to the others.
        for connection in self._connections if self._heartbeat_s and not self._beats else ():
            threading.Thread(target=self._beat, args=[connection], name="jfluid-ps-heartbeat", daemon=True).start()
        self._beats = True

    # ---- tables and blocks -----------------------------------------------------------------------------------------

    def create(self, tables: Sequence[specs.TableSpec] = (),
               blocks: Mapping[int, Sequence[specs.BlockSpec]] | None = None) -> None:
        """Make tables on all servers, and the blocks of each server number, unless they are there.

        Every trainer does this, with the same specs: it also tells the client where blocks are.
        """
        blocks = blocks or {}
        wrong = [number for number in blocks if not 0 <= number < len(self._connections)]
        if wrong:
            raise errors.ServerError(f"blocks: there are {len(self._connections)} servers, numbered from 0; found {wrong}")
        serialized = [spec.model_dump_json().encode() for spec in tables]

        def make(number: int) -> None:
            request = pb.CreateRequest(server=number, servers=len(self._connections), tables=serialized,
                                       blocks=[spec.model_dump_json().encode() for spec in blocks.get(number, ())])
            self._connections[number].create(request)
        self._everywhere(make)
        for table in tables:
            self._directory.place_table(table.name, table.width)
        for number, group in blocks.items():
            for spec in group:
                self.place_block(spec.name, number, spec.shape)

    def place_block(self, name: str, server: int, shape: Sequence[int], there: str = "") -> None:
        """Say which server holds a block that it brought itself, and its name `there` if that differs."""
        self._directory.blocks[name] = Block(server, there or name, tuple(shape))

    def forget_block(self, name: str) -> None:
        """Let go of a block's place and value."""
        self._directory.blocks.pop(name, None)

    def place_table(self, name: str, width: int, ranges: Sequence[RowRange] = ()) -> None:
        """Say how wide a table is that servers brought themselves, and how it is cut; without ranges its rows are where
        the hashes of their ids say.

        Raises ServerError when the ranges do not follow one another from id 0 on.
        """
        self._directory.place_table(name, width, ranges)

    def pull(self, rows: Mapping[str, Array] | None = None, blocks: Sequence[str] = (), round: int = 0,
             train: bool = True, confirm: bool = False) -> PullResult:
        """PulledRows of tables by ids (int64 [n], any number of times), and values of blocks.

        Args:
            round: waits until this round of synchronous training was applied.
            train: ids without a row get one, and shows are counted; otherwise tables stay as they are.
            confirm: what was pushed for the round with `hold` is to be applied.
        """
        requests = [OutgoingRequest() for _ in self._connections]
        pull = ShardedPull(self._directory, requests, rows or {}, blocks)
        return self._send(requests, pull, round, pulls=True, train=train, held=confirm)

    def push(self, rows: Mapping[str, tuple[Array, Array]] | None = None, blocks: Mapping[str, Array] | None = None,
             learning_rate: float | None = None, round: int = 0, change: Change = Change.GRADIENT,
             hold: bool = False, state: bytes = b"") -> None:
        """Change rows and blocks.

        Args:
            rows: for each table ids (int64 [n]) and gradients (float32 [n, width]); those of equal ids are added up.
            blocks: for each block a gradient of its shape.
            learning_rate: in place of that of the tables and blocks.
            round: 0 applies the push at once; k waits until all trainers have pushed for round k, whose average is applied.
            change: ADD and ASSIGN add to values and set them, past the optimizer (ids of ASSIGN must be distinct).
            hold: of a round: do not wait; servers hold the push until a pull of this round confirms it. Then all servers apply
                the round or none does, also when this trainer is killed meanwhile.
            state: of a round: what only this trainer has (see trainer_state), for server 0 to keep.
        """
        requests = [OutgoingRequest() for _ in self._connections]
        requests[0].push.message.state = state
        self._add_pushes(requests, rows or {}, blocks or {}, learning_rate, change)
        self._send(requests, ShardedPull(self._directory, requests, {}, ()), round, pushes=True, held=hold)

    def exchange(self, push_rows: Mapping[str, tuple[Array, Array]], push_blocks: Mapping[str, Array],
                 pull_rows: Mapping[str, Array], pull_blocks: Sequence[str] = (), learning_rate: float | None = None,
                 round: int = 0, change: Change = Change.GRADIENT, state: bytes = b"") -> PullResult:
        """`push`, then `pull`, in one call to each server; with a round the pull sees its result."""
        requests = [OutgoingRequest() for _ in self._connections]
        requests[0].push.message.state = state
        self._add_pushes(requests, push_rows, push_blocks, learning_rate, change)
        return self._send(
            requests, ShardedPull(self._directory, requests, pull_rows, pull_blocks), round, pushes=True, pulls=True
        )

    def look_up(self, table: str, ids: Array, slot: str = "") -> Array:
        """float32 [n, width]: rows as they are, for evaluation and serving; nothing is born or counted.

        Args:
            slot: the name of what the optimizer keeps for each row, to get that instead of the values. Of a table of a
                server's program it is the variable's.
        """
        width = self._directory.width(table)
        once, inverse = kernels.distinct(checked_ids(table, ids))
        values = np.empty((len(once), width), np.float32)
        most = (wire.LARGEST_MESSAGE - 2 * wire.OVERHEAD) // (4 * max(width, 2))
        parts = self._directory.parts(table, once)

        def ask(number: int) -> None:
            for _, name, order, first in (part for part in parts if part.server == number):
                every = np.arange(len(once))[order]
                for begin in range(0, len(every), most):
                    part = every[begin:begin + most]
                    request = pb.LookUpRequest(table=name, ids=(once[part] - first).tobytes(), slot=slot)
                    reply = self._looked_up(number, request)
                    found = wire.numbers(reply.values, "<f4", f"table {table}: values", len(part) * width, copy=False)
                    values[part] = found.reshape(-1, width)
        self._everywhere(ask)
        rows: Array = values[inverse]
        return rows

    def shrink(self, table: str, age: int) -> int:
        """Drop the rows that none of a table's last `age` updates has touched; returns how many."""
        places = self._directory.places(table)

        def ask(number: int) -> int:
            dropped = 0
            for name in (name for server, name in places if server == number):
                with self._connections[number].pushes.next() as place:
                    dropped += self._connections[number].shrink(
                        pb.ShrinkRequest(caller=self._caller(*place), table=name, age=age))
            return dropped
        self.enter()
        return sum(self._everywhere(ask))

    # ---- the job -----------------------------------------------------------------------------------------------------

    def barrier(self, name: str = "barrier", number: int | None = None) -> None:
        """Wait until all trainers have come to this passage (by default: one more than the last) of the barrier."""
        self.enter()
        if number is None:
            with self._lock:
                number = next(self._passages.setdefault(name, itertools.count(1)))
        self._look(first=1)
        request = pb.BarrierRequest(caller=self._caller(), name=name, number=number)
        self._connections[0].current([request.caller], lambda: self._connections[0].call("Barrier", request, waits=True))
        with self._lock:
            self._passed[name] = max(self._passed.get(name, 0), number)

    def save(self, folder: str, snapshot: str | None = None, tables: Sequence[str] = ()) -> str:
        """Write a snapshot of all servers, or only of some tables, into a folder (an absolute path on their machines); returns
        its id.

        Training may go on meanwhile: each server writes itself as it was at one moment. In synchronous training save between
        two rounds, so that all servers are at the same.
        """
        snapshot = snapshot or uuid.uuid4().hex
        if self._incarnation:
            self._look()
        self._everywhere(lambda number: self._connections[number].call(
            "Save", pb.SaveRequest(folder=folder, snapshot=snapshot, tables=tables), waits=True))
        return snapshot

    def restore(self, folder: str, snapshot: str = "", tables: Sequence[str] = ()) -> str:
        """Put all servers, or only some tables, into the state of a snapshot (the newest complete one by default); returns its
        id."""
        replies = self._everywhere(lambda number: self._connections[number].call(
            "Restore", pb.RestoreRequest(folder=folder, snapshot=snapshot, tables=tables), waits=True))
        if tables:
            return str(replies[0].snapshot)
        for block in self._directory.blocks.values():
            block.known = 0
        for connection in self._connections:
            connection.replay_log.clear()
        return str(replies[0].snapshot)

    @property
    def restarts(self) -> int:
        """How often a server was found to have started again, when something was pushed to it."""
        return sum(connection.restarts for connection in self._connections)

    def status(self) -> list[pb.StatusReply]:
        """What each server says of itself, and of this trainer's calls."""
        return self._everywhere(
            lambda number: self._connections[number].call("Status", pb.StatusRequest(trainer=self.trainer))
        )

    def trainer_state(self) -> pb.TrainerState:
        """What only this trainer had after the last round, as it sent it: empty where it sent nothing."""
        reply = self._connections[0].call("TrainerState", pb.TrainerStateRequest(trainer=self.trainer))
        return wire.parsed(pb.TrainerState, reply.state) if reply.state else pb.TrainerState()

    def leave(self) -> None:
        """Tell all servers that this trainer will not come again, and close.

        Until its last pushes are in a snapshot, or all trainers have left, it stays where it can send them again (where it
        keeps them, and for at most a minute).
        """
        self.enter()
        try:
            self._everywhere(self._leave)
        finally:
            self.close()

    def _leave(self, number: int) -> None:
        connection, end = self._connections[number], time.monotonic() + _STAY_S
        while not connection.leave(self._caller()) and not self._closed.wait(_STAY_LOOK_S):
            if time.monotonic() > end:
                logger.warning("server %s has no snapshot of what this trainer pushed last: if it is killed before the other "
                               "trainers have left, that is lost", connection.endpoint)
                break
        connection.gone(self._caller())

    def close(self) -> None:
        """Close all connections without a word."""
        self._closed.set()
        for connection in self._connections:
            connection.close()
        self._threads.shutdown(wait=False)

    def _end(self, error: RollbackError) -> None:
        """The whole job has to start again: what waits at other servers would wait for good."""
        self._closed.set()
        for connection in self._connections:
            connection.end(error)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _send(self, requests: list[OutgoingRequest], pull: ShardedPull, round: int, pushes: bool = False,
              pulls: bool = False, train: bool = True, held: bool = False) -> PullResult:
        def send(number: int) -> IncomingPullReply | None:
            request, connection = requests[number], self._connections[number]
            if round:  # in a round every server waits for every trainer
                for part in [request.push.message] * pushes + [request.pull] * pulls:
                    part.round = round
                if held and pushes:
                    request.push.message.hold = True
                elif held:
                    request.pull.confirm = True
            with contextlib.ExitStack() as places:
                if request.push:
                    request.push.message.caller.CopyFrom(self._caller(*places.enter_context(connection.pushes.next())))
                if request.pulls and train:
                    request.pull.caller.CopyFrom(self._caller(*places.enter_context(connection.pulls.next())))
                if not (request.push or request.pulls):
                    return None
                return connection.exchange(request, pull.sizes[number], waits=bool(round)).pull
        if (pushes or train) and not self._incarnation:
            self.enter()
        return pull.joined(self._everywhere(send, quick=not round))

    def _add_pushes(self, requests: list[OutgoingRequest], rows: Mapping[str, tuple[Array, Array]],
                    blocks: Mapping[str, Array], learning_rate: float | None, change: Change) -> None:
        for table, (ids, values) in rows.items():
            ids, shape = checked_ids(table, ids), (len(ids), self._directory.width(table))
            if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != shape:
                raise errors.ServerError(f"table {table}: expected an array float32 {list(shape)}, found {described(values)}")
            if change != Change.ASSIGN:
                ids, values = merge(ids, np.ascontiguousarray(values))
            for number, there, order, first in self._directory.parts(table, ids):
                own = ids[order] - first if first else ids[order]
                requests[number].push.add_rows(own, values[order], table=there, change=int(change),
                                               learning_rate=learning_rate)
        for name, value in blocks.items():
            block = self._directory.block(name)
            if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.shape != block.shape:
                raise errors.ServerError(f"block {name}: expected an array float32 {list(block.shape)}, found "
                                         f"{described(value)}")
            requests[block.server].push.add_block(value, block=block.name, change=int(change), learning_rate=learning_rate)

    def _widths(self) -> dict[str, int]:
        """The widths of all tables, by name."""
        reply = self._connections[0].call("Status", pb.StatusRequest(trainer=self.trainer))
        return {name: validation.read(specs.TableSpec, t.spec, name).width for name, t in reply.tables.items()}

    def _looked_up(self, number: int, request: pb.LookUpRequest) -> Any:
        connection = self._connections[number]
        return connection.current([request], lambda: connection.call("LookUp", request))

    def _look(self, first: int = 0) -> None:
        """Send those servers from number `first` on what they lack that have started again."""
        def look(number: int) -> None:
            if number >= first:
                self._connections[number].look(self._caller(), at_once=True)
        if first < len(self._connections):
            self._everywhere(look)

    def _tell_passages(self, connection: ServerConnection) -> None:
        """Server 0 has started again: whom it lets through a barrier depends on who has passed it."""
        with self._lock:
            passed = dict(self._passed)
        for name, number in passed.items():
            connection.call("Barrier", pb.BarrierRequest(caller=self._caller(), name=name, number=number, passed=True))

    def _caller(self, sequence: int = 0, outstanding: int = 0) -> pb.Caller:
        return pb.Caller(trainer=self.trainer, incarnation=self.incarnation, sequence=sequence, outstanding=outstanding)

    def _everywhere(self, function: Callable[[int], Any], quick: bool = False) -> list[Any]:
        """`function` of every server's number, all at the same time.

        Args:
            quick: none of them waits for other trainers, so that one may be asked by this thread: what another refuses is
                known only after its answer.
        """
        *others, last = range(len(self._connections))
        if others and not quick:
            others.append(last)
        futures = {}
        for number in others:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no threads: then one after the other
                futures[number] = self._threads.submit(function, number)
        found = {number: function(number) for number in range(len(self._connections)) if number not in futures}
        return [futures[n].result() if n in futures else found[n] for n in range(len(self._connections))]

    def _beat(self, connection: ServerConnection) -> None:
        while not self._closed.wait(self._heartbeat_s):
            try:
                connection.look(pb.Caller(trainer=self.trainer, incarnation=self._incarnation), at_once=False)
            except errors.ServerError as error:
                if not self._closed.is_set():
                    logger.warning("heartbeat: %s", error)
