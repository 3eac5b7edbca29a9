"""Running a trainer's program: rows come in, the program computes, gradients go out, parameters come in."""
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.buckets import ladder
from jfluid.distributed import links
from jfluid.distributed.links import Link
from jfluid.distributed.strategies import DIRECT, Gradients
from jfluid.distributed.work import LookUp, RowsSent, Work
from jfluid.ir.program import Program
from jfluid.lod_tensor import LoDTensor, SelectedRows
from jfluid.scope import Scope

Array = np.ndarray[Any, Any]


class Trainer:
    """Runs one trainer's program.

    Args:
        work: what the program asks of servers.
        executor: runs what is left of it.
    """

    def __init__(self, work: Work, executor: Any):
        self.work, self._executor = work, executor
        self._link: Link | None = None
        self._asking: dict[tuple[str, ...], Program] = {}

    def run(self, feed: Any, fetches: Sequence[str], scope: Scope) -> list[Any]:
        """Run the program once. Returns the fetches as `Executor._run` gives them without `numpy`.

        Raises what `Executor.run` raises, and ServerError when a server refuses or does not answer.
        """
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        work, link = self.work, self._linked()
        strategy = link.strategy or DIRECT
        if work.computes:
            strategy.begin(link, work, scope)
        feed, asked = self._ids(dict(feed or {}), scope)
        found = strategy.pull(link, {table: ids for table, (ids, _) in asked.items()})
        inverse = self._give_rows(feed, asked, found, scope)
        late = {d.param for d in work.received} & set(fetches)
        wanted = [n for n in fetches if n not in late]
        names = list(dict.fromkeys(wanted + work.sent + [n for n, _ in work.touched if n not in feed]))
        values = dict(zip(names, self._executor._run(work.local, feed, names, scope, numpy=False, owned=True), strict=True))
        received = strategy.push(link, work, self._gradients(values, found, inverse, feed), scope) if work.computes else \
            link.client.pull(blocks=[p.name for d in work.received for p in d.pieces]).blocks
        self._install(received, scope)
        values |= {n: LoDTensor(np.asarray(scope.find_var(n).get_tensor())) for n in late}  # type: ignore[union-attr]
        return [values[n] for n in fetches]

    def _linked(self) -> Link:
        if self._link is None or not self._link.users:
            self._link = links.link(self.work, self._executor)
        return self._link

    # ---- rows ----

    def _ids(self, feed: dict[str, Any], scope: Scope) -> tuple[dict[str, Any], dict[str, tuple[Array, list[Any]]]]:
        """The feed with the ids that the program computes itself; and of each table all ids, and the tensors they are in."""
        work = self.work
        computed = tuple(dict.fromkeys(n for u in work.look_ups for n in u.ids if n not in feed))
        values = dict(zip(computed, self._compute(computed, feed, scope), strict=True)) if computed else {}
        asked = {}
        for look_up in work.look_ups:
            tensors = [_tensor(n, feed[n] if n in feed else values[n]) for n in look_up.ids]
            flat = [np.asarray(t._value).reshape(-1) for t in tensors]
            front = [np.array(look_up.paddings, np.int64)] if look_up.paddings else []
            asked[look_up.table] = np.concatenate(front + flat), tensors
        gone = {n for u in work.look_ups for n in u.ids} - self._used
        return {n: v for n, v in feed.items() if n not in gone}, asked

    @property
    def _used(self) -> set[str]:
        found = self.__dict__.get("_used_names")
        if found is None:
            found = self._used_names = {n for b in self.work.local.blocks for op in b.ops for n in op.input_arg_names}
        return found

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
        return self._executor._run(program, {n: v for n, v in feed.items() if n in given}, list(names), scope, numpy=False)

    def _give_rows(self, feed: dict[str, Any], asked: Mapping[str, tuple[Array, list[Any]]], found: Mapping[str, Any],
                   scope: Scope) -> dict[str, dict[str, Array]]:
        """Put the rows that came into the scope, and their positions into the feed; the positions as they are, by table."""
        inverse: dict[str, dict[str, Array]] = {}
        for look_up in self.work.look_ups:
            rows = found[look_up.table]
            values = np.zeros((ladder(len(rows.ids)), rows.values.shape[1]), np.float32)
            values[:len(rows.ids)] = rows.values
            scope.var(look_up.table).get_tensor()._value = values
            inverse[look_up.table] = self._positions(look_up, rows, asked[look_up.table][1], feed)
        return inverse

    def _positions(self, look_up: LookUp, rows: Any, tensors: list[Any], feed: dict[str, Any]) -> dict[str, Array]:
        positions, at = {}, len(look_up.paddings)
        for name, tensor in zip(look_up.positions, tensors, strict=True):
            shape = tensor._value.shape
            part = rows.inverse[at:at + int(np.prod(shape))]
            at += len(part)
            positions[name] = part
            feed[name] = LoDTensor(part.astype(np.int64).reshape(shape), tensor._lod)
        return positions

    # ---- gradients ----

    def _gradients(self, values: Mapping[str, Any], found: Mapping[str, Any],
                   inverse: Mapping[str, dict[str, Array]], feed: Mapping[str, Any]) -> Gradients:
        gradients = Gradients()
        for name, dense in self.work.dense:
            gradients.dense |= dense.cut(_array(values[name]))
        for sent in self.work.rows:
            gradients.rows[sent.table] = self._rows(sent, values, found.get(sent.table), inverse.get(sent.table, {}))
        gradients.counts = {n: _array(values[n]).astype(np.float32).reshape(1) for n in self.work.counts}
        for name, table in self.work.touched:
            ids = _array(feed[name] if name in feed else values[name]).reshape(-1)
            gradients.touched[table] = np.concatenate([gradients.touched[table], ids]) if table in gradients.touched else ids
        return gradients

    @staticmethod
    def _rows(sent: RowsSent, values: Mapping[str, Any], rows: Any, inverse: Mapping[str, Array]) -> tuple[Array, Array]:
        """(ids, gradients) of one table, each id once."""
        from jfluid.ps_server import kernels
        if sent.grad:
            sparse = values[sent.grad]
            if not isinstance(sparse, SelectedRows):
                raise errors.UnsupportedError(f"{sent.grad}: expected sparse rows, found {type(sparse).__name__}")
            at, grads = np.asarray(sparse.rows(), np.int64), np.asarray(sparse.get_tensor()._value)
            grads = np.ascontiguousarray(grads, np.float32).reshape(len(at), -1)
            if rows is None:
                once, where = kernels.distinct(at)
                return once, kernels.summed(grads, where, len(once))
            return rows.ids, kernels.summed(grads, at.astype(np.int32), len(rows.ids))
        width = rows.values.shape[1]
        grads = np.concatenate([_array(values[g]).reshape(-1, width) for _, g in sent.parts])
        where = np.concatenate([inverse[p] for p, _ in sent.parts])
        total = kernels.summed(grads, where, len(rows.ids))
        if sent.look_up is not None and sent.look_up.paddings:  # they were asked for, whether in this batch or not
            used = np.bincount(where, minlength=len(rows.ids)) > 0
            return rows.ids[used], total[used]
        return rows.ids, total

    # ---- parameters ----

    def _install(self, pieces: dict[str, Array], scope: Scope) -> None:
        for dense in self.work.received:
            if all(p.name in pieces for p in dense.pieces):
                scope.var(dense.param).get_tensor()._value = dense.joined(pieces)


def _tensor(name: str, value: Any) -> LoDTensor:
    tensor = value if isinstance(value, LoDTensor) else LoDTensor(np.asarray(value))
    if tensor._value.dtype != np.int64:
        raise errors.FeedError(f"feed {name}: expected ids of dtype int64, found {tensor._value.dtype}; convert them with "
                               '.astype("int64")')
    return tensor


def _array(value: Any) -> Array:
    """A value of a step as NumPy, without a copy where it lies on the host."""
    inner = value._value if isinstance(value, LoDTensor) else value
    return np.asarray(jax.device_get(inner) if isinstance(inner, jax.Array) else inner)
