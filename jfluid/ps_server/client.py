"""Client: one trainer's connections to all servers of a job.

The hash of an id decides which server owns the row; `create` says which server owns a block. The
client makes ids distinct and sums the gradients of equal ids before sending. It repeats a call
without an answer, with the same sequence number, until `timeout_s` is over: servers apply
it once.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels, specs, validation, wire
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.connection import credentials_of
from jfluid.ps_server.directory import BlockOwner, Directory, RowRange
from jfluid.ps_server.errors import TooLargeError
from jfluid.ps_server.server_connections import ServerConnections
from jfluid.ps_server.sharded_pull import PulledRows, PullResult, RowRequest, ShardedPull, checked_ids
from jfluid.ps_server.sharded_push import add_pushes
from jfluid.ps_server.store import Change
from jfluid.ps_server.zero_copy import IncomingPullReply, OutgoingRequest

__all__ = ["Client", "PullResult", "PulledRows", "RowRange", "RowRequest", "credentials_of", "widths_of"]

Array = np.ndarray[Any, Any]


class _ShardedCall:
    """A push, a pull, or both, with a request to each server.

    Args:
        blocks: names of the blocks to pull.
        or_no_rows: if a server refuses rows, repeat the call without rows.

    Attributes:
        begin: the time at which the call was made, for Client.seconds.
        pull: merges the replies.
        waits: the call belongs to a round, in which every server waits for every trainer.
        trains: the call is of a trainer; False for a pull that changes nothing.
    """

    def __init__(
        self, directory: Directory, servers: int, blocks: Sequence[str] = (), or_no_rows: bool = False
    ) -> None:
        self.begin = time.perf_counter()
        self.requests = [OutgoingRequest() for _ in range(servers)]
        self.pull = ShardedPull(directory, self.requests, blocks)
        self.or_no_rows, self.waits, self.trains = or_no_rows, False, True

    def push_in_round(self, round: int, state: bytes, hold: bool = False) -> None:
        """Push for a round: every server waits for every trainer. Round 0 stands for none."""
        self.requests[0].push.message.state = state
        self.waits = bool(round)
        for request in self.requests if round else ():
            request.push.message.round, request.push.message.hold = round, hold

    def pull_in_round(self, round: int, confirm: bool = False) -> None:
        """Pull after a round. Round 0 stands for none."""
        self.waits = bool(round)
        for request in self.requests if round else ():
            request.pull.round, request.pull.confirm = round, confirm


class Client:
    """Calls from one trainer. Safe for threads.

    All methods raise ServerError, or a subclass in `jfluid.ps_server.errors`, with the
    server's reason, or if there is no answer.

    A client that pushes, pulls for training, or waits at a barrier acts as the trainer of its
    number from then on (see `enter`). A client that only looks up, pulls with `train=False`, saves
    or asks for the status is no trainer and does not affect any.

    Args:
        endpoints: "host:port" of all servers, in the job's order.
        token: the job's.
        trainer: this trainer's number, from 0.
        incarnation: number of this trainer process, from 1 to 2**64 - 1; higher than the numbers of the
            trainer's earlier processes. By default it is higher than all numbers that servers know.
        timeout_s: for how long a call is retried. It does not bound calls that wait for other
            trainers (barriers, rounds).
        heartbeat_s: seconds between a trainer's heartbeats; 0 for none (every call counts as one,
            too). Their answers also tell whether a server has restarted and needs the calls of the
            replay log.
        keep_bytes: size of the replay log of each server: pushes since its last snapshot, which are
            sent again when it is restored from that snapshot, so that nothing is lost. When the log
            is full its oldest calls are dropped.
        tls_authority: PEM of the authority that signed the servers' certificates: then connections
            use TLS.
        tls_certificate, tls_key: PEM of this client's own, for servers that require one.

    Attributes:
        seconds: where the time of pulls and pushes went so far: "encode" (ids made distinct,
            messages made), "call" (until all servers had answered), "decode".
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        token: str,
        trainer: int = 0,
        incarnation: int | None = None,
        timeout_s: float = 60.0,
        heartbeat_s: float = 5.0,
        keep_bytes: int = 0,
        tls_authority: bytes | None = None,
        tls_certificate: bytes | None = None,
        tls_key: bytes | None = None,
    ):
        self.trainer = trainer
        self._connections = ServerConnections(
            endpoints,
            token,
            trainer,
            incarnation,
            timeout_s,
            heartbeat_s,
            keep_bytes,
            credentials_of(tls_authority, tls_certificate, tls_key),
        )
        self._directory = Directory(len(endpoints), self._widths)
        self.seconds = dict.fromkeys(("encode", "call", "decode"), 0.0)
        self._adding = threading.Lock()

    @property
    def incarnation(self) -> int:
        """The incarnation of this trainer; the servers are asked for it when it is first needed."""
        return self._connections.incarnation

    def enter(self) -> int:
        """Join the job as the trainer of this number; earlier incarnations of it have ended.

        Repeating this is harmless.

        Returns the incarnation, which is higher than any that a server knows. Two processes that
        enter as the same trainer at the same time get different incarnations, and the higher one
        ends the other. Raises ServerError.
        """
        return self._connections.enter()

    # ---- tables and blocks -----------------------------------------------------------------------

    def create(
        self, tables: Sequence[specs.TableSpec] = (), blocks: Mapping[int, Sequence[specs.BlockSpec]] | None = None
    ) -> None:
        """Create tables on all servers, and the blocks of each server number, unless these exist.

        Every trainer does this, with the same specs: it also tells the client which server owns
        which block.
        """
        blocks = blocks or {}
        wrong = [number for number in blocks if not 0 <= number < len(self._connections)]
        if wrong:
            raise errors.ServerError(
                f"blocks: there are {len(self._connections)} servers, numbered from 0; found {wrong}"
            )
        serialized = [spec.model_dump_json().encode() for spec in tables]

        def make(number: int) -> None:
            request = pb.CreateRequest(
                server=number,
                servers=len(self._connections),
                tables=serialized,
                blocks=[spec.model_dump_json().encode() for spec in blocks.get(number, ())],
            )
            self._connections[number].create(request)

        self._connections.everywhere(make)
        for table in tables:
            self._directory.place_table(table.name, table.width)
        for number, group in blocks.items():
            for spec in group:
                self.place_block(spec.name, number, spec.shape)

    def place_block(self, name: str, server: int, shape: Sequence[int], there: str = "") -> None:
        """Record the server of a block that the server created itself.

        Args:
            there: the name of the block at the server, if that differs.
        """
        self._directory.blocks[name] = BlockOwner(server, there or name, tuple(shape))

    def forget_block(self, name: str) -> None:
        """Forget the owner and the value of a block."""
        self._directory.blocks.pop(name, None)

    def place_table(self, name: str, width: int, ranges: Sequence[RowRange] = ()) -> None:
        """Tell the client the width and the row ranges of a table that the servers created themselves.

        Without ranges the hashes of their ids decide which servers own its rows.

        Raises ServerError unless the ranges are consecutive from id 0 on.
        """
        self._directory.place_table(name, width, ranges)

    def pull(
        self,
        rows: Mapping[str, Array] | None = None,
        blocks: Sequence[str] = (),
        round: int = 0,
        train: bool = True,
        confirm: bool = False,
        or_no_rows: bool = False,
    ) -> PullResult:
        """Return rows of tables by ids (int64 [n], which may repeat), and values of blocks.

        Args:
            rows: ids by table; a RowRequest also has work for the time until the rows come.
            round: wait until this round of synchronous training is applied.
            train: create rows for ids without a row, and count shows; otherwise tables do not change.
            confirm: let the servers apply the pushes of the round with `hold`.
            or_no_rows: if rows are refused, do the rest, and return no rows: a separate request for the rows
                raises the reason.
        """
        call = _ShardedCall(self._directory, len(self._connections), blocks, or_no_rows)
        call.pull.add_rows(call.requests, rows or {}, or_none=or_no_rows)
        call.pull_in_round(round, confirm)
        call.trains = train and any(request.pulls for request in call.requests)
        return self._send(call)

    def push(
        self,
        rows: Mapping[str, tuple[Array, Array]] | None = None,
        blocks: Mapping[str, Array] | None = None,
        learning_rate: float | None = None,
        round: int = 0,
        change: Change = Change.GRADIENT,
        hold: bool = False,
        state: bytes = b"",
        merged: bool = False,
    ) -> None:
        """Change rows and blocks.

        Args:
            rows: for each table ids (int64 [n]) and gradients (float32 [n, width]); gradients of equal
                ids are summed, unless `merged` says that ids are distinct.
            blocks: for each block a gradient of the block's shape.
            learning_rate: replaces the learning rate of the tables and blocks.
            round: 0 applies the push at once; k waits until all trainers have pushed for round k
                and their average is applied.
            change: ADD adds to the values and ASSIGN sets them, both without the optimizer (ids of
                ASSIGN must be distinct).
            hold: of a round: do not wait; servers hold the push until a pull of this round confirms
                it. So all servers apply the round, or none does, even if this trainer is killed in
                between.
            state: of a round: the state that only this trainer has (see trainer_state), for server
                0 to store.
        """
        call = _ShardedCall(self._directory, len(self._connections))
        add_pushes(self._directory, call.requests, rows or {}, blocks or {}, learning_rate, change, merged)
        call.push_in_round(round, state, hold)
        self._send(call)

    def exchange(
        self,
        push_rows: Mapping[str, tuple[Array, Array]],
        push_blocks: Mapping[str, Array],
        pull_rows: Mapping[str, Array],
        pull_blocks: Sequence[str] = (),
        learning_rate: float | None = None,
        round: int = 0,
        change: Change = Change.GRADIENT,
        state: bytes = b"",
        or_no_rows: bool = False,
        merged: bool = False,
    ) -> PullResult:
        """`push`, then `pull`, in one call to each server; with a round the pull sees its result.

        A server that refuses the pull has applied nothing of the push, unless `or_no_rows`.
        """
        call = _ShardedCall(self._directory, len(self._connections), pull_blocks, or_no_rows)
        call.pull.add_rows(call.requests, pull_rows, or_none=or_no_rows)
        add_pushes(self._directory, call.requests, push_rows, push_blocks, learning_rate, change, merged)
        call.push_in_round(round, state)
        call.pull_in_round(round)
        return self._send(call)

    def look_up(self, table: str, ids: Array, slot: str = "") -> Array:
        """Return rows float32 [n, width] without a change: for evaluation and serving.

        No row is created and no show is counted.

        Args:
            slot: the name of an optimizer slot, to get its numbers instead of the values. For a
                table of a server's program it is the name of the variable.
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
                    part = every[begin : begin + most]
                    request = pb.LookUpRequest(table=name, ids=(once[part] - first).tobytes(), slot=slot)
                    reply = self._looked_up(number, request)
                    found = wire.numbers(reply.values, "<f4", f"table {table}: values", len(part) * width, copy=False)
                    values[part] = found.reshape(-1, width)

        self._connections.everywhere(ask)
        rows: Array = values[inverse]
        return rows

    def shrink(self, table: str, age: int) -> int:
        """Drop the rows that the last `age` updates of a table did not touch; return the number of dropped rows."""
        places = self._directory.places(table)

        def ask(number: int) -> int:
            dropped = 0
            for name in (name for server, name in places if server == number):
                with self._connections[number].pushes.next() as place:
                    dropped += self._connections[number].shrink(
                        pb.ShrinkRequest(caller=self._connections.caller(*place), table=name, age=age)
                    )
            return dropped

        self.enter()
        return sum(self._connections.everywhere(ask))

    # ---- the job ---------------------------------------------------------------------------------

    def barrier(self, name: str = "barrier", number: int | None = None) -> None:
        """Wait until all trainers have reached generation `number` of the barrier; by default the next generation."""
        self._connections.barrier(name, number)

    def save(self, folder: str, snapshot: str | None = None, tables: Sequence[str] = ()) -> str:
        """Write a snapshot of all servers, or only of some tables, into a folder; return the id of the snapshot.

        The folder is an absolute path on the servers' machines. Training may continue: each server writes its
        state at one moment. In synchronous training save between two rounds, so that all servers have applied
        the same rounds.
        """
        snapshot = snapshot or uuid.uuid4().hex
        if self._connections.entered:
            self._connections.look()
        self._connections.everywhere(
            lambda number: self._connections[number].call(
                "Save", pb.SaveRequest(folder=folder, snapshot=snapshot, tables=tables), waits=True
            )
        )
        return snapshot

    def restore(self, folder: str, snapshot: str = "", tables: Sequence[str] = ()) -> str:
        """Restore all servers, or only some tables, from a snapshot; return the id of the snapshot.

        By default it is the newest complete snapshot.
        """
        replies = self._connections.everywhere(
            lambda number: self._connections[number].call(
                "Restore", pb.RestoreRequest(folder=folder, snapshot=snapshot, tables=tables), waits=True
            )
        )
        if tables:
            return str(replies[0].snapshot)
        for block in self._directory.blocks.values():
            block.known = 0
        for connection in self._connections:
            connection.replay_log.clear()
        return str(replies[0].snapshot)

    @property
    def restarts(self) -> int:
        """Number of restarts of servers that this client has noticed."""
        return sum(connection.restarts for connection in self._connections)

    def status(self) -> list[pb.StatusReply]:
        """Return the status of each server, and of this trainer's calls there."""
        return self._connections.everywhere(
            lambda number: self._connections[number].call("Status", pb.StatusRequest(trainer=self.trainer))
        )

    def trainer_state(self) -> pb.TrainerState:
        """Return the state that this trainer sent with the last round; empty if it sent none."""
        reply = self._connections[0].call("TrainerState", pb.TrainerStateRequest(trainer=self.trainer))
        return wire.parsed(pb.TrainerState, reply.state) if reply.state else pb.TrainerState()

    def leave(self) -> None:
        """Tell all servers that this trainer has finished, and close.

        A trainer with a replay log first waits, for at most a minute, until its last pushes are in
        a snapshot or all trainers have left: until then a restarted server may need the pushes again.
        """
        self._connections.leave()

    def close(self) -> None:
        """Close all connections without telling the servers."""
        self._connections.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside ----------------------------------------------------------------------------------

    def _send(self, call: "_ShardedCall") -> PullResult:
        """Send a call to all servers that it concerns, and merge their replies."""

        def send(number: int) -> IncomingPullReply | None:
            request, connection = call.requests[number], self._connections[number]
            if not (request.push or request.pulls):
                return None
            with contextlib.ExitStack() as places:
                if request.push:
                    place = places.enter_context(connection.pushes.next())
                    request.push.message.caller.CopyFrom(self._connections.caller(*place))
                if request.pulls and call.trains:
                    place = places.enter_context(connection.pulls.next())
                    request.pull.caller.CopyFrom(self._connections.caller(*place))
                try:
                    return connection.exchange(request, call.pull.sizes[number], call.waits).pull
                except TooLargeError:
                    if not (call.or_no_rows and request.pull.rows):
                        raise
                # With the same sequence: the server knows whether it has applied the push.
                call.pull.drop_rows([request])
                if not (request.push or request.pulls):
                    return None
                return connection.exchange(request, call.pull.sizes[number], call.waits).pull

        if call.trains and not self._connections.entered:
            self.enter()
        sent = time.perf_counter()
        replies = self._connections.meanwhile(call.requests, send, not call.waits, call.pull.meanwhile)
        answered = time.perf_counter()
        found = call.pull.joined(replies)
        with self._adding:
            self.seconds["encode"] += sent - call.begin
            self.seconds["call"] += answered - sent
            self.seconds["decode"] += time.perf_counter() - answered
        return found

    def _widths(self) -> dict[str, int]:
        """Return the widths of all tables, by name."""
        return widths_of(self._connections[0].call("Status", pb.StatusRequest(trainer=self.trainer)))

    def _looked_up(self, number: int, request: pb.LookUpRequest) -> Any:
        connection = self._connections[number]
        return connection.current([request], lambda: connection.call("LookUp", request))


def widths_of(reply: pb.StatusReply) -> dict[str, int]:
    """Return the widths of a server's tables, by name."""
    return {name: validation.read(specs.TableSpec, t.spec, name).width for name, t in reply.tables.items()}
