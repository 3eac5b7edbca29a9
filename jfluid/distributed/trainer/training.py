"""Running a trainer's program: rows come in, the program computes, gradients go out, parameters come in."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.device_feeds import FeedPlacer
from jfluid.compile.runtime.feeds import named
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.distributed.programs.trainer_program import LookUp, TrainerProgram
from jfluid.distributed.trainer import local_state, row_gradients
from jfluid.distributed.trainer.early_step import EarlyStep, buffer_of
from jfluid.distributed.trainer.row_count import RowCount
from jfluid.distributed.trainer.row_gradients import array_of, inner
from jfluid.distributed.trainer.strategies import DIRECT, current, install
from jfluid.distributed.wire import connections
from jfluid.distributed.wire.connections import Gradients, Strategy, TrainerConnection
from jfluid.engine import Engine, Fetched, Owned, Prepared, Runner
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor
from jfluid.parallel.data_parallel import DataParallelProgram
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows, RowRequest

Array = np.ndarray[Any, Any]


Feed = dict[str, Any]


@dataclass
class StepInput:
    """Input of a step.

    Attributes:
        program: the program to run, without its reader operators.
        feeds: one feed for all devices, or a feed for each device.
        divides: True if one feed is divided among all devices.
        owned: True if the buffers of the feeds do not change any more.
    """

    program: Program
    feeds: list[Feed]
    divides: bool
    owned: bool


@dataclass
class PrefetchedBatch:
    """Batch with rows that were requested ahead of the step.

    Attributes:
        batch: the batch of the reader.
        read: the feeds of the batch.
        asked: for each table all ids, and the id tensors of each feed.
        rows: rows by table; on the step's device, if they were copied there.
    """

    batch: Mapping[str, Any]
    step_input: StepInput
    asked: dict[str, tuple[Array, list[list[LoDTensor]]]]
    rows: "Future[tuple[Mapping[str, PulledRows], Feed]]"


class Trainer(Runner):
    """Runs one trainer's program.

    Args:
        program: the calls of the program to servers.
        engine: runs the remaining program.
    """

    def __init__(self, program: TrainerProgram, engine: Engine):
        self.program, self._engine = program, engine
        self._connection: TrainerConnection | None = None
        self._asking: dict[tuple[str, ...], Program] = {}
        self._placer = FeedPlacer()

    def run(
        self, feed: Any, fetches: list[str], scope: Scope, parallel: DataParallelProgram | None = None
    ) -> list[Fetched]:
        """Run the program once, or as often as the settings of `parallel` say.

        Raises the errors of `Executor.run` , and ServerError when a server refuses or does not answer.
        """
        times = parallel.repeats if parallel is not None else 1
        devices = self._devices(parallel)
        ahead = feed if isinstance(feed, PrefetchedBatch) else None
        step_input = ahead.step_input if ahead else self._read(feed, devices)
        values: list[list[Any]] = []
        for _ in range(times):
            values = self._step(step_input, fetches, scope, devices, ahead)
            ahead = None  # the rows have changed since
        return [Fetched(n, v, divided=parallel is not None) for n, v in zip(fetches, values, strict=True)]

    def _devices(self, parallel: DataParallelProgram | None) -> DataParallelProgram | None:
        """Return the replicas' devices; None for the engine's own device."""
        if parallel is not None:
            self._engine.start(parallel)
        return None if parallel is None or parallel.alone else parallel

    def _read(self, feed: Any, devices: DataParallelProgram | None) -> StepInput:
        """Return the feeds. A program's own reader gives its next batch."""
        # Gradients are waited for: by then nothing reads the feeds any more.
        owned = isinstance(feed, Owned) or bool(self.program.sent(devices is not None))
        if devices is not None:
            program, feed = devices.read(self._engine.reader_feeds, self.program.local, feed)
            divides = not isinstance(feed, (list, tuple))
            return StepInput(program, [named(f) for f in ([feed] if divides else feed)], divides, owned)
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        program, feed = self._engine.reader_feeds.feed(self.program.local, feed, self._engine.device)
        return StepInput(program, [named(feed)], True, owned)

    def counts(self) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        return RowCount(self._connected().client) if self.program.tables else nullcontext(dict)

    def prefetch(self, batches: Iterable[Any], parallel: DataParallelProgram | None = None) -> Iterator[Any]:
        connection = self._connected()
        batches = _untrained(connection, batches) if self.program.trains else batches
        strategy, depth = connection.strategy or DIRECT, connection.prefetch_depth
        names = {n for u in self.program.look_ups for n in u.ids}
        if not (depth and names and (strategy.overlaps(self.program) or not self.program.trains)):
            yield from batches
            return
        devices = self._devices(parallel)
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="jfluid-prefetch") as thread:
            try:
                for batch in batches:
                    # ids that the program computes are known in its step
                    known = names <= set(batch)
                    waiting.append(self._request(connection, strategy, devices, batch, thread) if known else batch)
                    if len(waiting) > depth:
                        yield waiting.popleft()
                yield from waiting
            finally:
                thread.shutdown(wait=False, cancel_futures=True)

    def _request(
        self,
        connection: TrainerConnection,
        strategy: Strategy,
        devices: DataParallelProgram | None,
        batch: Any,
        thread: ThreadPoolExecutor,
    ) -> PrefetchedBatch:
        step_input = self._read(Owned(batch), devices)
        asked = self._ids(step_input.feeds, Scope())
        pulling = thread.submit(self._pull_ahead, connection, strategy, asked, devices is None)
        return PrefetchedBatch(batch, step_input, asked, pulling)

    def _pull_ahead(
        self, connection: TrainerConnection, strategy: Strategy, asked: Mapping[str, tuple[Array, Any]], place: bool
    ) -> "tuple[Mapping[str, PulledRows], Feed]":
        """Return the rows; with `place` the copies to the device begin during the step before."""
        found = self._pull(connection, strategy, {table: ids for table, (ids, _) in asked.items()})
        if not place:
            return found, {}
        padded = {table: LoDTensor(_padded(rows)) for table, rows in found.items()}
        return found, dict(self._placer.place(padded, self._engine.device))

    def _pull(
        self, connection: TrainerConnection, strategy: Strategy, ids: Mapping[str, Array]
    ) -> "Mapping[str, PulledRows]":
        if self.program.trains or not ids:
            return strategy.pull(connection, ids)
        # an evaluation does not change tables
        return connection.client.pull(ids, train=False).rows

    def _step(
        self,
        step_input: StepInput,
        fetches: Sequence[str],
        scope: Scope,
        devices: DataParallelProgram | None,
        ahead: PrefetchedBatch | None,
    ) -> list[list[Any]]:
        program, connection = self.program, self._connected()
        feeds = [dict(f) for f in step_input.feeds]
        strategy = connection.strategy or DIRECT
        lap = connection.laps.lap
        connection.laps.start()
        if program.trains:
            strategy.begin(connection, program, scope)
            self._resume(connection, scope)
        asked = ahead.asked if ahead else self._ids(feeds, scope)
        late = {d.name for d in program.received} & set(fetches)
        touched = [n for n, _ in program.touched if n not in feeds[0]]
        sent = program.sent(devices is not None)
        names = list(dict.fromkeys([n for n in fetches if n not in late] + sent + touched))
        wanted, early = self._request_of(step_input, feeds, names, devices, asked)
        brought = None
        if program.trains and not ahead:
            brought = connection.asked(wanted)
            lap("exchange", "rows")
        found, placed = ahead.rows.result() if ahead else (brought, {})
        found = found or self._pull(connection, strategy, wanted)
        lap("rows", "rows")
        inverse = early.inverse
        if inverse is None:
            inverse = self._give_rows(program.look_ups, feeds, asked, found, placed)
        lap("feed", "compute")
        connection.settle()
        lap("exchange", "waiting")
        parameters = self._parameters(scope) if program.trains and devices is None else {}
        prepared = early.finish(found, parameters)
        if prepared is None:
            feeds[0].update(parameters)
            prepared = self._prepare(step_input, feeds, names, devices)
        values = self._run(prepared, strategy, fetches, scope, devices is not None)
        lap("compute", "compute")
        if program.trains:
            gradients = self._gradients(values, found, inverse, feeds)
            lap("gradients", "exchange")
            received = strategy.push(connection, program, gradients, scope)
            if ahead:  # so has the next step its rows
                connection.begin()
        else:
            received = current(connection, program)
        lap("exchange", "exchange")
        install(program, received, scope)
        lap("install", "compute")
        for name in late:
            value = LoDTensor(np.asarray(scope.find_var(name).get_tensor()))  # type: ignore[union-attr]
            values[name] = [value] * (1 if devices is None else devices.replicas)
        return [values[n] for n in fetches]

    def _run(
        self, prepared: Prepared, strategy: Strategy, fetches: Sequence[str], scope: Scope, replicas: bool
    ) -> dict[str, list[Any]]:
        """Run a prepared step; return its results by name, one by replica if divided."""
        program = self.program
        given = self._engine.execute(prepared, scope)
        as_left = self._only_sent.difference(fetches)
        values = {
            f.name: list(f.parts) if f.divided or (f.name in as_left and not f.overwritten) else [f.tensor()]
            for f in prepared.fetched(given)
        }
        # a startup program, which has just begun the running statistics anew
        if not program.trains:
            self._resume(self._connected(), scope)
        # on a CPU NumPy reads the rows in place
        if program.trains and self._engine.device.platform != "cpu":
            _start_copies(v for name, _ in program.dense for v in values[name][:1])
            _start_copies(v for rows in program.rows for g in rows.names(replicas) for v in values[g])
        jax.block_until_ready([inner(v) for found in values.values() for v in found])
        return values

    def _request_of(
        self,
        step_input: StepInput,
        feeds: list[Feed],
        names: list[str],
        devices: DataParallelProgram | None,
        asked: Mapping[str, tuple[Array, list[list[LoDTensor]]]],
    ) -> "tuple[RowRequest, EarlyStep]":
        """Return a step's request for rows, and the step itself, prepared while servers answer."""
        from jfluid.ps_server.client import RowRequest

        known = self.program.local.global_block().vars
        wanted = RowRequest({table: ids for table, (ids, _) in asked.items()})

        early = EarlyStep(
            functools.partial(self._fill, feeds, asked),
            lambda feed: self._prepare(step_input, [feed], names, devices),
            [known[name] for name in self._only_read],
        )
        # feeds that are not owned may change; replicas divide feeds
        if self.program.trains and devices is None and step_input.owned and step_input.divides:
            wanted.meanwhile = early.begin
        return wanted, early

    def _fill(
        self, feeds: list[Feed], asked: Mapping[str, tuple[Array, list[list[LoDTensor]]]], wanted: "RowRequest"
    ) -> tuple[Feed, Feed, dict[str, dict[str, list[Array]]]]:
        """Return the only device's feed with buffers for rows and positions, the buffers, the positions by table."""
        rows, inverse = {}, {}
        for look_up in self.program.look_ups:
            ids, where = wanted.distinct(look_up.table)
            rows[look_up.table] = buffer_of(len(ids), self.program.tables[look_up.table].width)
            inverse[look_up.table] = self._positions(look_up, where, asked[look_up.table][1], feeds)
        feeds[0].update(rows)
        return feeds[0], rows, inverse

    def _prepare(
        self, step_input: StepInput, feeds: list[Feed], names: list[str], devices: DataParallelProgram | None
    ) -> Prepared:
        """Prepare the program without the servers' part; replicas merge sent values."""
        feed: Any = feeds[0] if step_input.divides else feeds
        if devices is not None:
            spread = devices.other(step_input.program, self.program.summed)
            return self._engine.prepare(step_input.program, feed, names, spread, sizes=self._sizes)
        given = Owned(feed) if step_input.owned else feed
        return self._engine.prepare(step_input.program, given, names, sizes=self._sizes)

    @property
    def _sizes(self) -> SizeHistories | None:
        """Histories of padded sizes: a trainer that is started again repeats the bits of its rounds."""
        connection = self._connected()
        in_rounds = self.program.trains and (connection.strategy or DIRECT).in_rounds(self.program)
        return connection.sizes if in_rounds else None

    @functools.cached_property
    def _only_sent(self) -> set[str]:
        """Return the gradients that are sent as the step leaves each: gradients of rows are merged here."""
        rows = {sent.grad for sent in self.program.rows if sent.parts}
        return rows | {name for name, _ in self.program.dense}

    @functools.cached_property
    def _only_read(self) -> list[str]:
        """Parameters from servers that the program itself does not change."""
        changed = {n for b in self.program.local.blocks for op in b.ops for n in op.output_arg_names}
        return [d.name for d in self.program.received if d.name not in changed]

    def _parameters(self, scope: Scope) -> Feed:
        """Return parameters that servers send after each step: as feeds the parameters need not become state."""
        found = {}
        for name in self._only_read:
            var, of = scope.find_var(name), self.program.local.global_block().var(name)
            value = var.get_tensor().value if var is not None else None
            if value is not None and value.dtype == of.np_dtype:
                found[name] = np.asarray(value)
        return found

    def _resume(self, connection: TrainerConnection, scope: Scope) -> None:
        """Restore the state that only this trainer has, before the first step after a restart."""
        if connection.resumed is not None:
            local_state.install(connection.resumed, scope, connection.sizes)
            if self.program.trains:
                connection.resumed = None

    def _connected(self) -> TrainerConnection:
        if self._connection is None or self._connection.left:
            user = self._engine if self._engine.says_goodbye else None
            self._connection = connections.connect(self.program, user)
        return self._connection

    # ---- rows ----

    def _ids(self, feeds: list[Feed], scope: Scope) -> dict[str, tuple[Array, list[list[LoDTensor]]]]:
        """Return by table all ids, and the id tensors of each feed; feeds keep variables that the program reads."""
        asked = self._asked(self.program.look_ups, feeds, scope)
        for feed in feeds:
            for name in self._only_asked & set(feed):
                del feed[name]
        return asked

    def _asked(
        self, look_ups: Sequence[LookUp], feeds: list[Feed], scope: Scope
    ) -> dict[str, tuple[Array, list[list[LoDTensor]]]]:
        tensors = [self._tensors(look_ups, feed, scope) for feed in feeds] if look_ups else []
        asked = {}
        for look_up in look_ups:
            own = [[found[n] for n in look_up.ids] for found in tensors]
            front = [np.array(look_up.paddings, np.int64)] if look_up.paddings else []
            flat = [np.asarray(t.value).reshape(-1) for group in own for t in group]
            asked[look_up.table] = np.concatenate(front + flat), own
        return asked

    def _tensors(self, look_ups: Sequence[LookUp], feed: Feed, scope: Scope) -> dict[str, LoDTensor]:
        """Return the ids of a feed, and the ids that the program computes from the feed."""
        names = dict.fromkeys(n for u in look_ups for n in u.ids)
        computed = tuple(n for n in names if n not in feed)
        values = dict(zip(computed, self._compute(computed, feed, scope), strict=True)) if computed else {}
        return {n: _tensor(n, feed[n] if n in feed else values[n]) for n in names}

    @functools.cached_property
    def _only_asked(self) -> set[str]:
        """Names of ids that the program reads for nothing else."""
        used = {n for b in self.program.local.blocks for op in b.ops for n in op.input_arg_names}
        return {n for u in self.program.look_ups for n in u.ids} - used

    def _compute(self, names: tuple[str, ...], feed: Feed, scope: Scope) -> list[Any]:
        """Run the operators that lead to the ids; return the ids."""
        if names not in self._asking:
            program = self.program.local._prune_with_input(list(feed), list(names))
            unknown = [
                n for n in names if n not in {o for op in program.global_block().ops for o in op.output_arg_names}
            ]
            if unknown:
                raise errors.FeedError(
                    f"the program reads {', '.join(unknown)}, which the feed does not hold; it holds: "
                    f"{', '.join(feed) or 'nothing'}"
                )
            self._asking[names] = program
        program = self._asking[names]
        feed = self._with_rows(program, feed, scope)
        given = {n: v for n, v in feed.items() if n in program.global_block().vars}
        found = self._engine.run(program, given, list(names), scope, sizes=self._sizes)
        return [f.tensor() for f in found]

    def _with_rows(self, program: Program, feed: Feed, scope: Scope) -> Feed:
        """Return the feed with the rows from which a program computes ids.

        Servers are asked for the rows first; the step asks again, and only that counts as a show.
        """
        reading = {n for op in program.global_block().ops for n in op.input_arg_names}
        look_ups = []
        for u in self.program.look_ups:
            used = [(n, at) for n, at in zip(u.ids, u.positions) if at in reading]
            if used:
                ids, positions = zip(*used)
                look_ups.append(LookUp(u.table, ids, positions, u.paddings))
        if not look_ups:
            return feed
        asked = self._asked(look_ups, [feed], scope)
        ids_of = {table: ids for table, (ids, _) in asked.items()}
        found = self._connected().client.pull(ids_of, train=False).rows
        feed = dict(feed)
        self._give_rows(look_ups, [feed], asked, found)
        return feed

    def _give_rows(
        self,
        look_ups: Sequence[LookUp],
        feeds: list[Feed],
        asked: Mapping[str, tuple[Array, list[list[LoDTensor]]]],
        found: "Mapping[str, PulledRows]",
        placed: Feed | None = None,
    ) -> dict[str, dict[str, list[Array]]]:
        """Put the received rows and their positions into the feeds; return the positions of each feed, by table.

        Rows that are `placed` stay on their device.
        """
        inverse: dict[str, dict[str, list[Array]]] = {}
        for look_up in look_ups:
            rows = found[look_up.table]
            values = placed[look_up.table] if placed else _padded(rows)
            for feed in feeds:
                feed[look_up.table] = values
            inverse[look_up.table] = self._positions(look_up, rows.inverse, asked[look_up.table][1], feeds)
        return inverse

    def _positions(
        self, look_up: LookUp, inverse: Array, tensors: list[list[LoDTensor]], feeds: list[Feed]
    ) -> dict[str, list[Array]]:
        positions: dict[str, list[Array]] = {n: [] for n in look_up.positions}
        at, wide = len(look_up.paddings), inverse.astype(np.int64)
        for feed, own in zip(feeds, tensors, strict=True):
            for name, tensor in zip(look_up.positions, own, strict=True):
                part = slice(at, at := at + tensor.value.size)
                positions[name].append(inverse[part])
                feed[name] = LoDTensor(wide[part].reshape(tensor.value.shape), tensor._lod)
        return positions

    # ---- gradients ----

    def _gradients(
        self,
        values: Mapping[str, list[Any]],
        found: "Mapping[str, PulledRows]",
        inverse: Mapping[str, dict[str, list[Array]]],
        feeds: list[Feed],
    ) -> Gradients:
        gradients = Gradients()
        for name, dense in self.program.dense:
            gradients.dense |= dense.split(array_of(values[name][0]))
        for sent in self.program.rows:
            gradients.rows[sent.table] = row_gradients.merged(
                sent, values, found.get(sent.table), inverse.get(sent.table, {})
            )
        gradients.counts = {n: array_of(values[n][0]).astype(np.float32).reshape(1) for n in self.program.counts}
        touched: dict[str, list[Array]] = {}
        for name, table in self.program.touched:
            ids = values[name] if name in values else [f[name] for f in feeds]
            touched.setdefault(table, []).extend(array_of(v).reshape(-1) for v in ids)
        gradients.touched = {t: np.concatenate(ids, dtype=np.int64) for t, ids in touched.items()}
        return gradients


def _padded(rows: "PulledRows") -> Array:
    """Return the rows of a table, and zeros up to a size that many batches share."""
    values = buffer_of(len(rows.ids), rows.values.shape[1])
    values[: len(rows.ids)] = rows.values
    return values


def _untrained(connection: TrainerConnection, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches that were not trained before this process was started again."""
    for batch in batches:
        if connection.batches_to_skip:
            connection.batches_to_skip -= 1
        else:
            yield batch


def _tensor(name: str, value: Any) -> LoDTensor:
    tensor = value if isinstance(value, LoDTensor) else LoDTensor(np.asarray(value))
    if tensor.value.dtype != np.int64:
        raise errors.FeedError(
            f"feed {name}: expected ids of dtype int64, found {tensor.value.dtype}; "
            'convert the ids with .astype("int64")'
        )
    return tensor


def _start_copies(values: Iterable[Any]) -> None:
    """Start the copies of arrays on other devices to the host, all concurrently."""
    for value in values:
        array = inner(value)
        if isinstance(array, jax.Array):
            array.copy_to_host_async()
