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
from jfluid.compile.feeds import named
from jfluid.compile.padding import ladder
from jfluid.distributed import links, trainer_state
from jfluid.distributed.links import Gradients, Link, Strategy
from jfluid.distributed.strategies import DIRECT, current, install
from jfluid.distributed.watch import RowCount
from jfluid.distributed.work import LookUp, RowsSent, Work
from jfluid.engine import Engine, Fetched, Owned, Prepared, Runner
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor, SelectedRows
from jfluid.parallel.data_parallel import DataParallel
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows

Array = np.ndarray[Any, Any]


Feed = dict[str, Any]


@dataclass
class Read:
    """What a step is fed.

    Attributes:
        program: what is run, without operators that read.
        feeds: one for all devices, or one for each.
        divides: whether there is one for all.
        owned: nobody writes to them any more.
    """

    program: Program
    feeds: list[Feed]
    divides: bool
    owned: bool


@dataclass
class Ahead:
    """A batch whose rows are on their way.

    Attributes:
        batch: as it was given.
        read: what is fed of it.
        asked: of each table all ids, and the tensors that each feed has of them.
        rows: by table.
    """

    batch: Mapping[str, Any]
    read: Read
    asked: dict[str, tuple[Array, list[list[LoDTensor]]]]
    rows: "Future[Mapping[str, PulledRows]]"


class Trainer(Runner):
    """Runs one trainer's program.

    Args:
        work: what the program asks of servers.
        engine: runs what is left of it.
    """

    def __init__(self, work: Work, engine: Engine):
        self.work, self._engine = work, engine
        self._link: Link | None = None
        self._asking: dict[tuple[str, ...], Program] = {}

    def run(self, feed: Any, fetches: list[str], scope: Scope, parallel: DataParallel | None = None) -> list[Fetched]:
        """Run the program once, or as often as the settings of `parallel` say.

        Raises what `Executor.run` raises, and ServerError when a server refuses or does not answer.
        """
        times = parallel.repeats if parallel is not None else 1
        devices = self._devices(parallel)
        ahead = feed if isinstance(feed, Ahead) else None
        read = ahead.read if ahead else self._read(feed, devices)
        values: list[list[Any]] = []
        for _ in range(times):
            values = self._step(read, fetches, scope, devices, ahead)
            ahead = None  # the rows have changed since
        return [Fetched(n, v, divided=parallel is not None) for n, v in zip(fetches, values, strict=True)]

    def _devices(self, parallel: DataParallel | None) -> DataParallel | None:
        """The replicas that compute; None for the engine's own device."""
        if parallel is not None:
            self._engine.start(parallel)
        return None if parallel is None or parallel.alone else parallel

    def _read(self, feed: Any, devices: DataParallel | None) -> Read:
        """What is fed. A program's own reader gives its next batch."""
        # Gradients are waited for: by then nothing reads the feeds any more.
        owned = isinstance(feed, Owned) or bool(self.work.sent)
        if devices is not None:
            program, feed = devices.read(self._engine.reader_feeds, self.work.local, feed)
            divides = not isinstance(feed, (list, tuple))
            return Read(program, [named(f) for f in ([feed] if divides else feed)], divides, owned)
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        program, feed = self._engine.reader_feeds.feed(self.work.local, feed, self._engine.device)
        return Read(program, [named(feed)], True, owned)

    def counts(self) -> AbstractContextManager[Callable[[], dict[str, int]]]:
        return RowCount(self._linked().client) if self.work.tables else nullcontext(dict)

    def ahead(self, batches: Iterable[Any], parallel: DataParallel | None = None) -> Iterator[Any]:
        link = self._linked()
        batches = _untrained(link, batches) if self.work.trains else batches
        strategy, depth = link.strategy or DIRECT, link.prefetch_depth
        names = {n for u in self.work.look_ups for n in u.ids}
        if not (depth and names and (strategy.overlaps(self.work) or not self.work.trains)):
            yield from batches
            return
        devices = self._devices(parallel)
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="jfluid-prefetch") as thread:
            try:
                for batch in batches:
                    known = names <= set(batch)  # what the program computes itself is known in its step
                    waiting.append(self._asked_ahead(link, strategy, devices, batch, thread) if known else batch)
                    if len(waiting) > depth:
                        yield waiting.popleft()
                yield from waiting
            finally:
                thread.shutdown(wait=False, cancel_futures=True)

    def _asked_ahead(self, link: Link, strategy: Strategy, devices: DataParallel | None, batch: Any,
                     thread: ThreadPoolExecutor) -> Ahead:
        read = self._read(Owned(batch), devices)
        asked = self._ids(read.feeds, Scope())
        return Ahead(batch, read, asked, thread.submit(self._pull, link, strategy, asked))

    def _pull(self, link: Link, strategy: Strategy, asked: Mapping[str, tuple[Array, Any]]) -> "Mapping[str, PulledRows]":
        ids = {table: found for table, (found, _) in asked.items()}
        if self.work.trains or not ids:
            return strategy.pull(link, ids)
        return link.client.pull(ids, train=False).rows  # an evaluation leaves tables as they are

    def _step(self, read: Read, fetches: Sequence[str], scope: Scope, devices: DataParallel | None,
              ahead: Ahead | None) -> list[list[Any]]:
        work, link = self.work, self._linked()
        feeds = [dict(f) for f in read.feeds]
        strategy = link.strategy or DIRECT
        lap = link.laps.lap
        link.laps.start()
        if work.trains:
            strategy.begin(link, work, scope)
        asked = ahead.asked if ahead else self._ids(feeds, scope)
        brought = None
        if work.trains and not ahead:
            brought = link.asked({table: ids for table, (ids, _) in asked.items()})
            lap("exchange")
        found = ahead.rows.result() if ahead else brought or self._pull(link, strategy, asked)
        lap("rows")
        inverse = self._give_rows(feeds, asked, found)
        lap("feed")
        link.settle()
        lap("exchange")
        late = {d.param for d in work.received} & set(fetches)
        touched = [n for n, _ in work.touched if n not in feeds[0]]
        names = list(dict.fromkeys([n for n in fetches if n not in late] + work.sent + touched))
        if work.trains:
            self._resume(link, scope)
        prepared = self._prepare(read, feeds, names, devices)
        given = self._engine.execute(prepared, scope)
        values = {f.name: list(f.parts) if f.divided else [f.tensor()] for f in prepared.fetched(given)}
        if not work.trains:  # a startup program, which has just begun the running statistics anew
            self._resume(link, scope)
        if work.trains and self._engine.device.platform != "cpu":  # there they lie where NumPy reads them
            _start_copies(v for name, _ in work.dense for v in values[name][:1])
            _start_copies(v for sent in work.rows for _, g in sent.parts for v in values[g])
        jax.block_until_ready([v.value for found in values.values() for v in found if isinstance(v, LoDTensor)])
        lap("compute")
        if work.trains:
            gradients = self._gradients(values, found, inverse, feeds)
            lap("gradients")
            received = strategy.push(link, work, gradients, scope)
            if ahead:  # so has the next step its rows
                link.begin()
        else:
            received = current(link, work)
        lap("exchange")
        install(work, received, scope)
        lap("install")
        for name in late:
            value = LoDTensor(np.asarray(scope.find_var(name).get_tensor()))  # type: ignore[union-attr]
            values[name] = [value] * (1 if devices is None else devices.replicas)
        return [values[n] for n in fetches]

    def _prepare(self, read: Read, feeds: list[Feed], names: list[str], devices: DataParallel | None) -> Prepared:
        """The program without what servers do; replicas bring together what is sent."""
        feed: Any = feeds[0] if read.divides else feeds
        if devices is not None:
            return self._engine.prepare(read.program, feed, names, devices.other(read.program, self.work.summed))
        return self._engine.prepare(read.program, Owned(feed) if read.owned else feed, names)

    def _resume(self, link: Link, scope: Scope) -> None:
        """Before the first step of a trainer that was started again: give it back what only it had."""
        if link.resumed is not None:
            trainer_state.install(link.resumed, scope)
            if self.work.trains:
                link.resumed = None

    def _linked(self) -> Link:
        if self._link is None or not self._link.users:
            self._link = links.link(self.work, self._engine)
        return self._link

    # ---- rows ----

    def _ids(self, feeds: list[Feed], scope: Scope) -> dict[str, tuple[Array, list[list[LoDTensor]]]]:
        """Of each table all ids, and the tensors that each feed has of them; feeds keep what the program itself reads."""
        look_ups = self.work.look_ups
        tensors = [self._tensors(feed, scope) for feed in feeds] if look_ups else []
        asked = {}
        for look_up in look_ups:
            own = [[found[n] for n in look_up.ids] for found in tensors]
            front = [np.array(look_up.paddings, np.int64)] if look_up.paddings else []
            flat = [np.asarray(t.value).reshape(-1) for group in own for t in group]
            asked[look_up.table] = np.concatenate(front + flat), own
        for feed in feeds:
            for name in self._only_asked & set(feed):
                del feed[name]
        return asked

    def _tensors(self, feed: Feed, scope: Scope) -> dict[str, LoDTensor]:
        """The ids of a feed, and those that the program computes from it."""
        names = dict.fromkeys(n for u in self.work.look_ups for n in u.ids)
        computed = tuple(n for n in names if n not in feed)
        values = dict(zip(computed, self._compute(computed, feed, scope), strict=True)) if computed else {}
        return {n: _tensor(n, feed[n] if n in feed else values[n]) for n in names}

    @functools.cached_property
    def _only_asked(self) -> set[str]:
        """Names of ids that the program reads for nothing else."""
        used = {n for b in self.work.local.blocks for op in b.ops for n in op.input_arg_names}
        return {n for u in self.work.look_ups for n in u.ids} - used

    def _compute(self, names: tuple[str, ...], feed: Mapping[str, Any], scope: Scope) -> list[Any]:
        """Ids that the program computes: what leads to them is run before."""
        if names not in self._asking:
            program = self.work.local._prune_with_input(list(feed), list(names))
            tables = {u.table for u in self.work.look_ups}
            reading = {n for op in program.global_block().ops for n in op.input_arg_names}
            unknown = [n for n in names if n not in {o for op in program.global_block().ops for o in op.output_arg_names}]
            if unknown:
                raise errors.FeedError(f"the program reads {', '.join(unknown)}, which the feed does not hold; it holds: "
                                       f"{', '.join(feed) or 'nothing'}")
            if reading & tables:
                raise errors.UnsupportedError(f"{', '.join(names)}: ids that depend on rows of {', '.join(reading & tables)} "
                                              "would need several questions to the servers in a step; feed the ids")
            self._asking[names] = program
        program = self._asking[names]
        given = program.global_block().vars
        found = self._engine.run(program, {n: v for n, v in feed.items() if n in given}, list(names), scope)
        return [f.tensor() for f in found]

    def _give_rows(self, feeds: list[Feed], asked: Mapping[str, tuple[Array, list[list[LoDTensor]]]],
                   found: "Mapping[str, PulledRows]") -> dict[str, dict[str, list[Array]]]:
        """Put the rows that came, and their positions, into the feeds; the positions of each feed, by table."""
        inverse: dict[str, dict[str, list[Array]]] = {}
        for look_up in self.work.look_ups:
            rows = found[look_up.table]
            values = np.zeros((ladder(len(rows.ids)), rows.values.shape[1]), np.float32)
            values[:len(rows.ids)] = rows.values
            for feed in feeds:
                feed[look_up.table] = values
            inverse[look_up.table] = self._positions(look_up, rows, asked[look_up.table][1], feeds)
        return inverse

    def _positions(self, look_up: LookUp, rows: "PulledRows", tensors: list[list[LoDTensor]],
                   feeds: list[Feed]) -> dict[str, list[Array]]:
        positions: dict[str, list[Array]] = {n: [] for n in look_up.positions}
        at, wide = len(look_up.paddings), rows.inverse.astype(np.int64)
        for feed, own in zip(feeds, tensors, strict=True):
            for name, tensor in zip(look_up.positions, own, strict=True):
                part = slice(at, at := at + tensor.value.size)
                positions[name].append(rows.inverse[part])
                feed[name] = LoDTensor(wide[part].reshape(tensor.value.shape), tensor._lod)
        return positions

    # ---- gradients ----

    def _gradients(self, values: Mapping[str, list[Any]], found: "Mapping[str, PulledRows]",
                   inverse: Mapping[str, dict[str, list[Array]]], feeds: list[Feed]) -> Gradients:
        gradients = Gradients()
        for name, dense in self.work.dense:
            gradients.dense |= dense.cut(_array(values[name][0]))
        for sent in self.work.rows:
            gradients.rows[sent.table] = self._rows(sent, values, found.get(sent.table), inverse.get(sent.table, {}))
        gradients.counts = {n: _array(values[n][0]).astype(np.float32).reshape(1) for n in self.work.counts}
        for name, table in self.work.touched:
            ids = [_array(v).reshape(-1) for v in (values[name] if name in values else [f[name] for f in feeds])]
            gradients.touched[table] = np.concatenate([gradients.touched.get(table, np.empty(0, np.int64)), *ids])
        return gradients

    @staticmethod
    def _rows(sent: RowsSent, values: Mapping[str, list[Any]], rows: "PulledRows | None",
              inverse: Mapping[str, list[Array]]) -> tuple[Array, Array]:
        """(ids, gradients) of one table, each id once."""
        from jfluid.ps_server import kernels
        if sent.grad:
            (sparse, *_) = values[sent.grad]
            if not isinstance(sparse, SelectedRows):
                raise errors.UnsupportedError(f"{sent.grad}: expected sparse rows, found {type(sparse).__name__}")
            at, grads = np.asarray(sparse.rows(), np.int64), np.asarray(sparse.get_tensor().value)
            grads = np.ascontiguousarray(grads, np.float32).reshape(len(at), -1)
            if rows is None:
                once, where = kernels.distinct(at)
                return once, kernels.summed(grads, where, len(once))
            return rows.ids, kernels.summed(grads, at.astype(np.int32), len(rows.ids))
        assert rows is not None  # parts are gradients of rows that were looked up
        width = rows.values.shape[1]
        grads = np.concatenate([_array(v).reshape(-1, width) for _, g in sent.parts for v in values[g]])
        where = np.concatenate([part for p, _ in sent.parts for part in inverse[p]])
        total = kernels.summed(grads, where, len(rows.ids))
        if sent.look_up is not None and sent.look_up.paddings:  # they were asked for, whether in this batch or not
            used = np.bincount(where, minlength=len(rows.ids)) > 0
            return rows.ids[used], total[used]
        return rows.ids, total


def _untrained(link: Link, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches without those that were trained before this process was started again."""
    for batch in batches:
        if link.batches_to_skip:
            link.batches_to_skip -= 1
        else:
            yield batch


def _tensor(name: str, value: Any) -> LoDTensor:
    tensor = value if isinstance(value, LoDTensor) else LoDTensor(np.asarray(value))
    if tensor.value.dtype != np.int64:
        raise errors.FeedError(f"feed {name}: expected ids of dtype int64, found {tensor.value.dtype}; convert them with "
                               '.astype("int64")')
    return tensor


def _array(value: Any) -> Array:
    """A value of a step as NumPy, without a copy where it lies on the host."""
    inner = value.value if isinstance(value, LoDTensor) else value
    return np.asarray(inner)


def _start_copies(values: Iterable[Any]) -> None:
    """Let what lies on other devices come to the host, all of it at the same time."""
    for value in values:
        inner = value.value if isinstance(value, LoDTensor) else value
        if isinstance(inner, jax.Array):
            inner.copy_to_host_async()
