"""The calls of a server."""

import functools
import logging
import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np

from jfluid import errors, record
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, specs, validation, wire
from jfluid.ps_server.cancellation import Alive, always, held
from jfluid.ps_server.dense import ServedBlock
from jfluid.ps_server.errors import (
    JobFailedError,
    NotReadyError,
    RestartedError,
    RollbackError,
    StateError,
    TooLargeError,
    UnknownNameError,
)
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.metrics import ServerMetrics
from jfluid.ps_server.round_snapshots import RoundSnapshots
from jfluid.ps_server.save_root import folder_below
from jfluid.ps_server.served_streams import ServedStreams, answering
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store, StoreView, Wanted
from jfluid.ps_server.sync_rounds import TrainerGroup
from jfluid.record.profiles import CALLS

CODES: dict[type[Exception], grpc.StatusCode] = {
    UnknownNameError: grpc.StatusCode.NOT_FOUND,
    TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RollbackError: grpc.StatusCode.OUT_OF_RANGE,
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
    StateError: grpc.StatusCode.FAILED_PRECONDITION,
    RestartedError: grpc.StatusCode.DATA_LOSS,
    JobFailedError: grpc.StatusCode.ABORTED,
    errors.ServerError: grpc.StatusCode.INVALID_ARGUMENT,
    OSError: grpc.StatusCode.INTERNAL,
    MemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Exception: grpc.StatusCode.INTERNAL,
}
logger = logging.getLogger(__name__)


class _CheckedPull(NamedTuple):
    """Pull that can be answered: its place in the trainer's calls (None if it changes nothing), rows and blocks."""

    call: MutationId | None
    wanted: list[Wanted]
    blocks: list[ServedBlock]


class Service:
    """Calls as functions from message to message; `handlers` puts the functions onto gRPC.

    Args:
        server, servers: this is server number `server` (from 0) of `servers`.
        save_root: snapshots are written and read below this folder only; None for anywhere.

    Attributes:
        ready: set once the server has chosen the snapshot that it continues from and has read it.
            Until then it answers only its peers' questions about its snapshots.
        round_snapshots: the snapshots of rounds, in a synchronous job with snapshots.
    """

    def __init__(
        self,
        store: Store,
        trainer_group: TrainerGroup,
        server: int = 0,
        servers: int = 1,
        metrics: ServerMetrics | None = None,
        save_root: Path | None = None,
    ):
        self.store, self.trainer_group, self.server, self.servers = (store, trainer_group, server, servers)
        self.metrics = metrics or ServerMetrics(store)
        self.metrics.waits = trainer_group.waits
        self.save_root = None if save_root is None else Path(os.path.realpath(save_root))
        self.incarnation = secrets.randbits(63) + 1  # of this process of the server; 0 stands for any
        self.snapshot = ""
        answer = answering(self, self.metrics, self._answered)
        self.streams = ServedStreams(wire.LARGEST_MESSAGE + wire.OVERHEAD, answer)
        self.ready = threading.Event()
        self.ready.set()
        self.round_snapshots: RoundSnapshots | None = None
        self._saving = threading.Lock()
        self._saved: pb.SaveReply | None = None
        # (trainer, incarnation) -> the sequence up to which the last snapshot has its pushes, and
        # the shows of its pulls.
        self._durable: dict[tuple[int, int], int] = {}
        self._durable_pulls: dict[tuple[int, int], int] = {}
        # By trainer: the step of each table, and the version of each block, when it last pulled.
        self._pulled: dict[int, dict[str, int]] = {}

    # ---- tables and blocks ----

    def create(self, request: pb.CreateRequest, alive: Alive = always) -> pb.CreateReply:
        if (request.server, request.servers) != (self.server, self.servers):
            raise errors.ServerError(
                f"this is server {self.server} of {self.servers}, not {request.server} of "
                f"{request.servers}; give all trainers the same list of servers, in the same order"
            )
        tables = [validation.read(specs.TableSpec, data, "table") for data in request.tables]
        blocks = [validation.read(specs.BlockSpec, data, "block") for data in request.blocks]
        for block in blocks:
            if 4 * block.size > wire.LARGEST_CALL:
                raise TooLargeError(
                    f"block {block.name}: {4 * block.size} bytes; one block may have {wire.LARGEST_CALL}"
                )
        self.store.create(tables, blocks)
        return pb.CreateReply(server_incarnation=self.incarnation)

    def push(self, request: pb.PushRequest, alive: Alive = always) -> pb.PushReply:
        call = wire.call_of(request.caller)
        self._heard(request.caller)
        with self.store.ledger.refusing(call):
            return self._pushed(call, request, alive)

    def _pushed(self, call: MutationId, request: pb.PushRequest, alive: Alive) -> pb.PushReply:
        with self.metrics.part("parse"):
            rows, blocks = wire.updates_of(request, self.store)
        updates: list[RowsUpdate | BlockUpdate] = [*rows, *blocks]
        if self.store.synchronous and not request.round and any(u.change == Change.GRADIENT for u in updates):
            raise errors.ServerError(
                "this server trains synchronously: it takes gradients of rounds only; all trainers and "
                "servers of a job need the same strategy"
            )
        with self.metrics.part("apply"):
            applied = self._applied(call, request, rows, blocks, alive)
        if applied:
            self._count(rows, blocks, call.trainer)
        return pb.PushReply(
            applied=applied,
            rounds=self.store.rounds,
            durable=self._durable.get(call[:2], 0),
            server_incarnation=self.incarnation,
        )

    def _applied(
        self, call: MutationId, request: pb.PushRequest, rows: list[RowsUpdate], blocks: list[BlockUpdate], alive: Alive
    ) -> bool:
        """Apply checked updates, now or in their round; False for a duplicate."""
        if request.round:
            self.store.check_capacity(rows)  # a round that cannot be applied fails the job
            with self.metrics.waiting("round"):
                return self.trainer_group.deposit(call, request.round, rows, blocks, alive, request.hold, request.state)
        with self.store.once(call, alive) as applied:
            if applied:
                self.store.apply(rows, blocks, call.trainer)
        return applied

    def _heard(self, caller: pb.Caller) -> None:
        self.trainer_group.heard(caller.trainer, caller.incarnation)
        self._meant(caller.server_incarnation)

    def _meant(self, incarnation: int) -> None:
        if incarnation not in (0, self.incarnation):
            raise RestartedError(f"this server has started again, as incarnation {self.incarnation}")

    def _count(self, rows: list[RowsUpdate], blocks: list[BlockUpdate], trainer: int) -> None:
        """Count applied updates, and the updates between a trainer's pull and its gradients."""
        pulled = self._pulled.get(trainer, {})
        steps = [(u.table, self.store.tables[u.table].step) for u in rows if u.change == Change.GRADIENT]
        steps += [
            (b.block, self.store.block(b.block).version)
            for b in blocks
            if b.change == Change.GRADIENT and b.block in pulled
        ]
        for update in rows:
            self.metrics.rows[update.table, "pushed"].inc(len(update.ids))
        self.metrics.staleness.observe(
            (name, max(step - 1 - pulled[name], 0)) for name, step in steps if name in pulled
        )

    def pull(self, request: pb.PullRequest, alive: Alive = always, limit: int = wire.LARGEST_MESSAGE) -> wire.PullReply:
        return self._pulled_after(request, self._checked_pull(request, limit), alive)

    def _pulled_after(self, request: pb.PullRequest, checked: _CheckedPull, alive: Alive) -> wire.PullReply:
        """Answer a pull when its round was applied."""
        if request.confirm and checked.call:
            self.trainer_group.confirm(checked.call.trainer, checked.call.incarnation, request.round)
        if request.round > self.store.rounds:
            with self.metrics.waiting("round"):
                self.trainer_group.wait_for_round(request.round, alive)
        with self.metrics.part("read"):
            return self._pulled_now(request, checked, alive)

    def _pulled_now(self, request: pb.PullRequest, checked: _CheckedPull, alive: Alive) -> wire.PullReply:
        """Answer a checked pull with the current values."""
        call, wanted, blocks = checked
        reply = wire.PullReply(self.store.rounds, self.incarnation)
        pulled = self._pulled.setdefault(call.trainer, {}) if call else {}
        if call and wanted:
            reply.message.durable = self._durable_pulls.get(call[:2], 0)
            # Entry rules must give the same ids rows after a restore: shows and their record are in
            # one snapshot.
            reply.message.counted = any(table.spec.entry is not None for table, _, _ in wanted)
            once = (
                functools.partial(self.store.once, ledger=self.store.shown)
                if reply.message.counted
                else self.store.shown.once
            )
            with once(call, alive) as first:
                self._read(wanted, first, reply)
            for table, _, _ in wanted:
                pulled[table.spec.name] = table.step
        else:
            self._read(wanted, False, reply)
        values = self.store.read(blocks, call.trainer if call else None)
        for message, (value, version) in zip(request.blocks, values, strict=True):
            pulled[message.block] = version
            known = message.known == version + 1 and message.server_incarnation == self.incarnation
            reply.blocks.append((version, None if known else np.ascontiguousarray(value, "<f4")))
        return reply

    def _checked_pull(self, request: pb.PullRequest, limit: int) -> _CheckedPull:
        """Check a pull. Raises ServerError for a pull that cannot be answered."""
        call = wire.call_of(request.caller) if request.HasField("caller") else None
        if call:
            self._heard(request.caller)
        self._meant(request.server_incarnation)
        if request.confirm and call is None:
            raise errors.ServerError("confirm: expected the trainer of the gradients (caller)")
        return _CheckedPull(call, *wire.wanted(request, self.store, limit))

    def _read(self, wanted: list[Wanted], train: bool, reply: wire.PullReply) -> None:
        with self.store.reserve(wanted=wanted if train else ()):
            reply.rows += [table.look_up(ids, counts, train) for table, ids, counts in wanted]
        for table, ids, _ in wanted:
            self.metrics.rows[table.spec.name, "pulled"].inc(len(ids))

    def exchange(
        self, request: pb.ExchangeRequest, alive: Alive = always, limit: int = wire.LARGEST_MESSAGE
    ) -> wire.ExchangeReply:
        call = wire.call_of(request.push.caller)
        self._heard(request.push.caller)
        with self.store.ledger.refusing(call):
            # before the push is applied
            checked = self._checked_pull(request.pull, limit)
            if request.pull.confirm:
                raise errors.ServerError("confirm: expected a separate pull, not an exchange")
            self.store.check_capacity(wanted=checked.wanted if checked.call else ())
            layout = self.store.layout
            push = self._pushed(call, request.push, alive)
        if self.store.layout != layout:  # restored, while the push waited for other trainers
            checked = self._checked_pull(request.pull, limit)
        return wire.ExchangeReply(push, self._pulled_after(request.pull, checked, alive))

    def look_up(self, request: pb.LookUpRequest, alive: Alive = always) -> pb.LookUpReply:
        self._meant(request.server_incarnation)
        table = self.store.table(request.table)
        ids = wire.numbers(request.ids, "<i8", f"table {request.table}: ids")
        wire.check_size(4 * len(ids) * table.spec.width + wire.OVERHEAD, wire.LARGEST_MESSAGE)
        self.metrics.rows[request.table, "looked up"].inc(len(ids))
        if not request.slot:
            return pb.LookUpReply(values=table.look_up(ids, train=False).tobytes())
        slots = table.slots(ids)
        if request.slot not in slots:
            raise UnknownNameError(
                f"table {request.table}: its optimizer keeps nothing under the name {request.slot!r}"
                f"{errors.close_to(request.slot, slots)}; there is: {', '.join(slots) or 'nothing'}"
            )
        return pb.LookUpReply(values=slots[request.slot].tobytes())

    def shrink(self, request: pb.ShrinkRequest, alive: Alive = always) -> pb.ShrinkReply:
        call = wire.call_of(request.caller)
        self._heard(request.caller)
        with self.store.ledger.refusing(call):
            table = self.store.table(request.table)
            if request.age < 1:
                raise errors.ServerError(f"table {request.table}: age: expected at least 1 step, found 0")
        with self.store.once(call, alive) as first:
            return pb.ShrinkReply(rows=table.shrink(min(request.age, table.step + 1), alive) if first else 0)

    # ---- trainers ----

    def attach(self, request: pb.AttachRequest, alive: Alive = always) -> pb.AttachReply:
        # Does not count as a trainer's call: readers attach, too, and must not end the incarnation
        # of the trainer of that number.
        return pb.AttachReply(port=self.streams.port, beside=self.streams.beside)

    def barrier(self, request: pb.BarrierRequest, alive: Alive = always) -> pb.BarrierReply:
        self._heard(request.caller)
        with self.metrics.waiting("barrier"):
            self.trainer_group.barrier(request.caller.trainer, request.name, request.number, alive, request.passed)
        return pb.BarrierReply()

    def heartbeat(self, request: pb.HeartbeatRequest, alive: Alive = always) -> pb.HeartbeatReply:
        self.trainer_group.heard(request.caller.trainer, request.caller.incarnation)
        return pb.HeartbeatReply(server_incarnation=self.incarnation)

    def leave(self, request: pb.LeaveRequest, alive: Alive = always) -> pb.LeaveReply:
        self._heard(request.caller)
        self.trainer_group.leave(request.caller.trainer, request.knows)
        whose = request.caller.trainer, request.caller.incarnation
        return pb.LeaveReply(
            durable=self._durable.get(whose, 0),
            durable_pulls=self._durable_pulls.get(whose, 0),
            over=self.trainer_group.over,
        )

    # ---- snapshots ----

    def save(self, request: pb.SaveRequest, alive: Alive = always) -> pb.SaveReply:
        folder = folder_below(request.folder, self.save_root)
        with held(self._saving, alive):
            if request.tables:
                return self._write(folder, request.snapshot, request.tables)[0]
            if self._saved is None or request.snapshot != self.snapshot:
                self._saved, _ = self._write(folder, request.snapshot)
                # a copy: a restart reads the snapshots that this server saves by itself
                # (`_durable`)
                self.snapshot = request.snapshot
            return self._saved

    def save_alone(self, folder: Path) -> pb.SaveReply:
        """Write a snapshot of this server alone, outside of the snapshots of all servers; retain the previous one, too.

        Raises OSError.
        """
        with self._saving:
            name = uuid.uuid4().hex
            self._saved, view = self._write(folder, name, alone=True)
            self.is_saved(name, view.ledger, view.shown)
            return self._saved

    def _write(
        self, folder: Path, name: str, only: Sequence[str] = (), alone: bool = False
    ) -> tuple[pb.SaveReply, StoreView]:
        """Write a snapshot; return the reply and the written view of the store. The view's rows are freed."""
        start, number = time.monotonic(), (0, 1) if alone else (self.server, self.servers)
        left = self.trainer_group.left()
        with self.store.view(only) as view:
            manifest = snapshot.write(view, folder, name, *number, left, keep=2 if alone else 1)
        files = [file for part in manifest.tables for file in (part.rows_file, part.rates_file)] + [
            part.file for part in manifest.blocks
        ]
        reply = pb.SaveReply(
            rows=sum(part.rows for part in manifest.tables),
            bytes=sum(file.size for file in files),
            seconds=time.monotonic() - start,
        )
        record.event("snapshot", reason=f"{reply.rows:,} rows, {reply.bytes / 1e6:.1f} MB, {reply.seconds:.1f} s")
        return reply, view

    def is_saved(self, name: str, ledger: dict[str, Any], shown: dict[str, Any]) -> None:
        """Note that a snapshot has all calls of this ledger, and the shows of all pulls of `shown` (see Store)."""
        self.snapshot = name
        self._durable, self._durable_pulls = (
            {(int(t), entry["incarnation"]): entry["through"] for t, entry in state.items()}
            for state in (ledger, shown)
        )

    def restore(self, request: pb.RestoreRequest, alive: Alive = always) -> pb.RestoreReply:
        with held(self._saving, alive):
            manifest = snapshot.restore(
                self.store,
                folder_below(request.folder, self.save_root),
                self.server,
                self.servers,
                request.snapshot,
                request.tables,
            )
            if not request.tables:
                self.snapshot, self._saved = manifest.id, None
        return pb.RestoreReply(snapshot=manifest.id)

    def status(self, request: pb.StatusRequest, alive: Alive = always) -> pb.StatusReply:
        incarnation, through = self.store.ledger.through(request.trainer)
        rounds, confirmed = self.trainer_group.progress(request.trainer)
        reply = pb.StatusReply(
            server=self.server,
            servers=self.servers,
            server_incarnation=self.incarnation,
            rounds=rounds,
            lost=self.store.ledger.lost,
            incarnation=incarnation,
            through=through,
            trainers=self.trainer_group.at_work(),
            snapshot=self.snapshot,
            confirmed=confirmed,
            latest=self.trainer_group.incarnation(request.trainer),
            went_back=self.round_snapshots.went_back if self.round_snapshots is not None else "",
        )
        for name, table in list(self.store.tables.items()):
            reply.tables[name].CopyFrom(
                pb.TableStatus(
                    rows=len(table),
                    waiting=table.waiting,
                    bytes=table.nbytes,
                    step=table.step,
                    spec=table.spec.model_dump_json().encode(),
                )
            )
        for name, block in list(self.store.blocks.items()):
            reply.blocks[name] = block.version
        return reply

    # ---- the recovery line ----

    def recovery(self, request: pb.RecoveryRequest, alive: Alive = always) -> pb.RecoveryReply:
        if self.round_snapshots is None:
            raise StateError(
                "this server writes no snapshots of rounds; give all servers of the job the same snapshot folder"
            )
        return self.round_snapshots.status()

    def plan_snapshot(self, request: pb.PlanSnapshotRequest, alive: Alive = always) -> pb.PlanSnapshotReply:
        self.recovery(pb.RecoveryRequest())
        assert self.round_snapshots is not None  # otherwise that was refused
        return pb.PlanSnapshotReply(accepted=self.round_snapshots.plan(request.round), rounds=self.store.rounds)

    def retain_snapshots(self, request: pb.RetainSnapshotsRequest, alive: Alive = always) -> pb.RetainSnapshotsReply:
        self.recovery(pb.RecoveryRequest())
        assert self.round_snapshots is not None  # otherwise that was refused
        self.round_snapshots.retain(request.rounds)
        return pb.RetainSnapshotsReply()

    def trainer_state(self, request: pb.TrainerStateRequest, alive: Alive = always) -> pb.TrainerStateReply:
        return pb.TrainerStateReply(state=self.store.trainer_states.get(request.trainer, b""))

    # ---- gRPC ----

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the methods of the service, for `grpc.Server.add_generic_rpc_handlers`."""
        functions: dict[str, Callable[..., Any]] = {
            "Create": self.create,
            "Pull": self.pull,
            "Push": self.push,
            "Exchange": self.exchange,
            "LookUp": self.look_up,
            "Attach": self.attach,
            "Barrier": self.barrier,
            "Heartbeat": self.heartbeat,
            "Shrink": self.shrink,
            "Save": self.save,
            "Restore": self.restore,
            "Status": self.status,
            "Leave": self.leave,
            "Recovery": self.recovery,
            "PlanSnapshot": self.plan_snapshot,
            "RetainSnapshots": self.retain_snapshots,
            "TrainerState": self.trainer_state,
        }
        methods = {
            n: grpc.unary_unary_rpc_method_handler(self._unary(n, function)) for n, function in functions.items()
        }
        methods["Stream"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    def _unary(self, name: str, function: Callable[..., Any]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        kind = wire.METHODS[name][0]

        def parsed(data: bytes) -> Any:
            with self.metrics.part("parse"):
                return wire.parsed(kind, data)

        def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
            parts = self._answered(name, context.abort, len(data), lambda: function(parsed(data), context.is_active))
            with self.metrics.part("reply"):
                return b"".join(parts)

        return answer

    def _stream(self, chunks: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        def exchange() -> wire.ExchangeReply:
            request = wire.parsed(pb.ExchangeRequest, wire.joined(chunks))
            if request.HasField("push"):
                return self.exchange(request, context.is_active, wire.LARGEST_CALL)
            return wire.ExchangeReply(None, self.pull(request.pull, context.is_active, wire.LARGEST_CALL))

        yield from wire.chunked(b"".join(self._answered("Stream", context.abort, 0, exchange)))

    def _answered(
        self, name: str, abort: Callable[[grpc.StatusCode, str], Any], size: int, function: Callable[[], Any]
    ) -> list[Any]:
        """Return the serialized answer, in pieces; an error becomes a status with its message."""
        start, status = time.perf_counter(), grpc.StatusCode.OK
        try:
            if not (self.ready.is_set() or name == "Recovery"):
                raise NotReadyError("this server still reads its snapshot; call again")
            parts = wire.parts_of(function())
            self.metrics.bytes[name, "in"].inc(size)
            self.metrics.bytes[name, "out"].inc(sum(map(len, parts)))
            return parts
        except Exception as error:
            status = next(code for kind, code in CODES.items() if isinstance(error, kind))
            if not isinstance(error, errors.ServerError):
                logger.exception("%s failed", name)
            abort(status, f"{type(error).__name__}: {error}"[:4096])
            raise  # not reached: abort raises
        finally:
            end = time.perf_counter()
            self.metrics.calls[name, status.name].inc()
            self.metrics.seconds[name].observe(end - start)
            if CALLS.on:
                CALLS.add(name, start, end)
