"""SparseTable: rows of float32 by int64 id, which are created when first shown and updated row by row.

It is independent of calls and servers.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import cancellation, kernels, row_initializers, specs
from jfluid.ps_server.capacity import Groups, Reservations, TableSize
from jfluid.ps_server.shard import NO_COUNTS, Shard
from jfluid.ps_server.table_state import BLOCK, TableState
from jfluid.ps_server.table_view import moved

Array = np.ndarray[Any, Any]

_MOST_SHOWS = (1 << 32) - 1
# (values float32 [m, width], slots, gradients float32 [m, width]) -> (values, slots)
Function = Callable[[Array, list[Array], Array], tuple[Any, Sequence[Any]]]


class SparseTable(TableState):
    """Rows of `spec.width` float32 by int64 id. Safe for threads: each shard has a lock.

    A step is one update of the table (`push`); steps count from 1, and each row stores the last one
    that touched it.

    For attributes see `TableState`.
    """

    # ---- rows ------------------------------------------------------------------------------------

    def look_up(self, ids: Array, counts: Array | None = None, train: bool = True) -> Array:
        """Return float32 [n, width]: the rows of `ids` (int64 [n], which may repeat).

        Args:
            counts: uint32 [n]: how often each id was shown; once each by default.
            train: create rows for ids that have none, and count shows. Otherwise the table stays as
                it is, and such ids read as their initial values (zeros in a table with an entry
                rule).

        Raises ServerError for ids or counts of a different shape or type, TooLargeError when new rows
        would exceed the bounds of the spec: then no row is created.
        """
        ids = self._checked_ids(ids)
        if counts is None:
            counts = np.ones(len(ids), np.uint32)
        elif counts.shape != ids.shape or counts.dtype != np.uint32:
            raise self._wrong("counts", f"uint32 [{len(ids)}]", counts)
        out = np.empty((len(ids), self.spec.width), np.float32)
        if not train:
            self._read(ids, out)
            return out
        with self.reserve(ids, counts) as groups:
            every = []
            for number, order in groups.parts(BLOCK):
                shard = self._shards[number]
                with shard.lock:
                    rows = self._touched(number, ids, order, counts, self.step, self.step)
                    kernels.gather(*shard.values, self.spec.width, rows, order, out)
                self._fill_absent(rows, ids, order, out)
                every.append(rows)
        if every:
            self._recent.add(ids, groups, np.concatenate(every))
        return out

    def _read(self, ids: Array, out: Array) -> None:
        for number, order in self._groups(ids).parts(BLOCK):
            shard = self._shards[number]
            with shard.lock:
                rows = shard.locate(ids, order)
                self._peek(shard, rows, order, out)
            self._fill_absent(rows, ids, order, out)

    def push(self, ids: Array, gradients: Array, learning_rate: float | None = None, merged: bool = False) -> int:
        """Update the rows of `ids` (int64 [n]) by `gradients` (float32 [n, width]); returns the step.

        Gradients of equal ids are summed first, unless `merged` says that ids are distinct. Ids
        that an entry rule gives no row are skipped. Raises ServerError for a different shape or type,
        and in a table whose optimizer is a program; TooLargeError as `look_up` does.
        """
        if self.rule.update is None:
            raise errors.ServerError(
                f"table {self.spec.name}: push: its optimizer is a program, which only the server of "
                "that program can compute (SparseTable.update)"
            )
        ids, gradients = self._checked_gradients(ids, gradients, merged)
        base = self.learning_rate if learning_rate is None else learning_rate
        with self.reserve(ids) as groups:
            step = self._tick(base)
            rate, update = self.rule.rate(base, step), self.rule.update
            recent, done = self._recent.of(ids), 0
            for number, order in groups.parts(BLOCK):
                shard = self._shards[number]
                known = None if recent is None else recent.rows[done : (done := done + len(order))]
                with shard.lock:
                    if known is not None and shard.still(ids, order, known):
                        rows = known
                        self._mark(shard, rows, order, NO_COUNTS, step, step - 1)
                    else:
                        rows = self._touched(number, ids, order, NO_COUNTS, step, step - 1)
                    update(*shard.values, self.spec.width, rows, order, gradients, rate, self.rule.hyper)
        return step

    def update(self, ids: Array, gradients: Array, function: Function, merged: bool = False) -> int:
        """Update the rows of `ids` (int64 [n]) by a function of the caller, in a table with a program as its optimizer.

        `function(values, slots, gradients)` is called once with the m rows to be updated: values
        and gradients float32 [m, width], and a list of such arrays for the slots, in the order of
        the spec. It may change values and slots, not the gradients. It returns the new (values,
        slots), anything that NumPy converts to float32 arrays of these shapes. It is not called
        when m is 0. The locks of the rows are held during the call: it must not call the table.

        Gradients of equal ids are summed first, unless `merged` says that ids are distinct. Ids
        that an entry rule gives no row are skipped. Rows without a gradient stay as they are.
        Returns the step of the update.

        Raises ServerError for a different shape or type, of results of the function too, and in a
        table with a different optimizer. An exception leaves values, slots and step unchanged.
        """
        if self.rule.update is not None:
            raise errors.ServerError(
                f"table {self.spec.name}: update: expected the optimizer program, found "
                f"{self.spec.optimizer.type}, which computes its updates itself (SparseTable.push)"
            )
        ids, gradients = self._checked_gradients(ids, gradients, merged)
        with contextlib.ExitStack() as locks:
            groups = list(locks.enter_context(self.reserve(ids)).parts())
            for number, _ in groups:
                locks.enter_context(self._shards[number].lock)
            rows = [self._located(number, ids, order, NO_COUNTS, self.step) for number, order in groups]
            addresses = np.zeros(len(ids), np.int64)
            for (number, order), found in zip(groups, rows):
                kernels.addresses_of(*self._shards[number].values, found, order, addresses)
            if (entered := addresses != 0).sum() < len(ids):
                addresses, gradients = addresses[entered], gradients[entered]
            new = self._computed(function, addresses, gradients)
            step = self._tick(self.learning_rate)
            for (number, order), found in zip(groups, rows):
                self._mark(self._shards[number], found, order, NO_COUNTS, step, step)
            for group, values in enumerate(new):
                kernels.write_at(addresses, group * self.spec.width, values)
        return step

    def _computed(self, function: Function, addresses: Array, gradients: Array) -> list[Array]:
        """Return the new values and slots that `function` computes for the rows at these addresses, checked."""
        old = [np.empty_like(gradients) for _ in range(1 + len(self.rule.names))]
        for group, out in enumerate(old):
            kernels.read_at(addresses, group * self.spec.width, out)
        if not len(addresses):
            return old
        values, slots = function(old[0], old[1:], gradients)
        if len(slots) != len(self.rule.names):
            raise errors.ServerError(
                f"table {self.spec.name}: update: expected {len(self.rule.names)} slots of the function, "
                f"found {len(slots)}"
            )
        return [
            self._checked_values(f"the function's {what}", addresses, np.asarray(new))
            for what, new in zip(("values", *self.rule.names), (values, *slots))
        ]

    def slots(self, ids: Array) -> dict[str, Array]:
        """Return the optimizer's slots of the rows of `ids` (int64 [n]), by name, each float32 [n, width].

        The table stays as it is; ids without a row read as a new row. Names are those of Fluid's
        accumulators. (Accumulators with one number for the whole parameter, such as Adam's powers,
        follow from `step`.)
        """
        ids = self._checked_ids(ids)
        state = np.repeat(np.append(np.float32(0), self.rule.slots), self.spec.width).astype(np.float32)
        bodies = np.tile(state, (len(ids), 1))
        for number, order in self._groups(ids).parts(BLOCK):
            shard = self._shards[number]
            with shard.lock:
                self._peek(shard, shard.locate(ids, order), order, bodies)
        return {
            name: np.ascontiguousarray(bodies[:, (1 + i) * self.spec.width : (2 + i) * self.spec.width])
            for i, name in enumerate(self.rule.names)
        }

    def assign_slots(self, ids: Array, slots: Mapping[str, Array]) -> None:
        """Set slots, by name, of the rows of `ids` (int64 [n]) to float32 [n, width]; the values and other slots stay.

        Ids without a row get one. Raises ServerError for a name that the optimizer does not have.
        """
        ids = self._checked_ids(ids)
        if unknown := set(slots) - set(self.rule.names):
            raise errors.ServerError(
                f"table {self.spec.name}: slots: expected some of {list(self.rule.names)}, found {sorted(unknown)}"
            )
        groups = [
            (1 + self.rule.names.index(name), self._checked_values(name, ids, values)) for name, values in slots.items()
        ]
        with self.reserve(ids, assigned=True) as places:
            for number, order in places.parts(BLOCK):
                with self._shards[number].lock:
                    rows = self._inserted(number, ids, order)
                    addresses = np.zeros(len(order), np.int64)
                    kernels.addresses_of(*self._shards[number].values, rows, np.arange(len(order)), addresses)
                    for group, values in groups:
                        kernels.write_at(addresses, group * self.spec.width, values[order])

    def items(self, block: int = 1 << 16) -> Iterator[tuple[Array, Array]]:
        """Return (ids int64 [m], values float32 [m, width]) of all rows, at most `block` at a time, in any order.

        Each row comes once, with its values at the first `next`, while the table keeps changing. `shrink` and
        snapshots wait until the iterator is exhausted or closed; the iterating thread must not call
        either before. Raises ServerError for a block below 1.
        """
        if block < 1:
            raise errors.ServerError(f"table {self.spec.name}: items: block: expected at least 1 row, found {block}")
        with self.view() as view:
            for ids, values, _ in view.rows(block):
                yield ids, values

    def add(self, ids: Array, differences: Array) -> None:
        """Add `differences` (float32 [n, width]) to the rows of `ids` (int64 [n]), without the optimizer."""
        self._change("differences", ids, differences, replace=False)

    def assign(self, ids: Array, values: Array) -> None:
        """Set the values of the rows of `ids` (int64 [n]) to `values` (float32 [n, width]); the optimizer's slots stay.

        These ids get rows whatever the entry rule says.
        """
        self._change("values", ids, values, replace=True)

    def shrink(self, age: int, alive: cancellation.Alive = cancellation.always) -> int:
        """Drop the rows (and waiting ids) that no step of the last `age` has touched; returns how many rows.

        Waits for a snapshot that is being written, while the caller is `alive`. Raises ServerError
        for an age below 1, StateError when the caller has gone.
        """
        if age < 1:
            raise errors.ServerError(f"table {self.spec.name}: shrink: age: expected at least 1 step, found {age}")
        dropped, oldest = 0, self.step - age + 1
        with cancellation.held(self._viewing, alive), self.cap.alone():
            for reserved, shards in ((self._waiting_reservations, self._waiting), (self._reservations, self._shards)):
                for shard in shards:
                    with reserved.lock, shard.lock:
                        dropped += shard.expire(oldest) * (reserved is self._reservations)
            self.expired += dropped
        return dropped

    # ---- one block of rows, under its shard's lock -----------------------------------------------

    def _touched(self, number: int, ids: Array, order: Array, counts: Array, step: int, until: int) -> Array:
        """Return the rows of ids[order] for a read or a change; create missing rows, and mark all as touched.

        Ids that an entry rule gives no row have -1.
        """
        rows = self._located(number, ids, order, counts, step)
        self._mark(self._shards[number], rows, order, counts, step, until)
        return rows

    def _inserted(self, number: int, ids: Array, order: Array) -> Array:
        """Do the same as _touched, but give rows to all ids, whatever the entry rule says."""
        rows = self._shards[number].insert(ids, order, self.step)
        self._mark(self._shards[number], rows, order, NO_COUNTS, self.step, self.step)
        return rows

    def _located(self, number: int, ids: Array, order: Array, counts: Array, step: int) -> Array:
        """Return the rows of ids[order], created if needed; -1 for ids that an entry rule gives no row."""
        if self.spec.entry is None:
            return self._shards[number].insert(ids, order, step)
        rows = self._shards[number].locate(ids, order)
        if len(counts) and (rows < 0).any():
            self._admit(number, ids, order, counts, step, rows)
        return rows

    def _mark(self, shard: Shard, rows: Array, order: Array, counts: Array, step: int, until: int) -> None:
        """Preserve rows for an open view, apply missed steps up to `until`, and mark the rows as touched at `step`."""
        shard.preserve(rows)
        self.rule.catch_up(shard.heads.addresses, *shard.values, self.spec.width, rows, until, self._rates)
        kernels.touch(shard.heads.addresses, shard.page_bits, rows, order, counts, step)

    def _admit(self, number: int, ids: Array, order: Array, counts: Array, step: int, rows: Array) -> None:
        """Count a show of the ids without a row, and create rows for the ids that the entry rule accepts."""
        absent = np.flatnonzero(rows < 0)
        asking, waiting = order[absent], self._waiting[number]
        with waiting.lock:
            known = waiting.insert(ids, asking, 0)
            waiting.preserve(known)
            kernels.touch(waiting.heads.addresses, waiting.page_bits, known, asking, counts, step)
            shows = waiting.read(known)[0]["shows"]
        enters = self._enters(ids[asking], shows)
        if not enters.any():
            return
        shard = self._shards[number]
        rows[absent[enters]] = new = shard.insert(ids, asking[enters], step)
        # The row takes over the earlier shows of the waiting id; shows of this call are counted
        # with the shows of all rows.
        earlier = shows[enters] - np.minimum(counts[asking[enters]], shows[enters])
        kernels.touch(shard.heads.addresses, shard.page_bits, new, np.arange(len(new)), earlier, step)

    def _enters(self, ids: Array, shows: Array) -> Array:
        """Return bool [n]: True for ids without a row that the entry rule accepts after `shows` (uint32 [n]) shows."""
        entry = self.spec.entry
        if isinstance(entry, specs.CountEntry):
            enters: Array = shows >= entry.count
        else:
            assert entry is not None  # a table without an entry rule gives every id a row
            enters = row_initializers.drawn_below(self.spec.seed, ids, shows, entry.probability)
        return enters

    def _peek(self, shard: Shard, rows: Array, order: Array, out: Array) -> None:
        """Write the values of rows, after their missed steps, to out[order]; the rows stay as before.

        `out` may be wider than the values: then it gets slots too.
        """
        width = out.shape[1]
        if self.rule.idle is None:
            kernels.gather(*shard.values, width, rows, order, out)
            return
        found = rows >= 0
        heads, bodies = shard.read(rows[found])
        moved(self.rule, heads, bodies, self.spec.width, self.step, self._rates)
        out[order[found]] = bodies[:, :width]

    def _fill_absent(self, rows: Array, ids: Array, order: Array, out: Array) -> None:
        if self.spec.entry is not None:
            out[order[rows < 0]] = 0
        elif len(rows) and rows.min() < 0:
            row_initializers.fill_absent(rows, order, ids, out, self.spec.seed, *self._initializer)

    def _change(self, what: str, ids: Array, values: Array, replace: bool) -> None:
        ids = self._checked_ids(ids)
        values = self._checked_values(what, ids, values)
        with self.reserve(ids, assigned=replace) as groups:
            for number, order in groups.parts(BLOCK):
                shard = self._shards[number]
                with shard.lock:
                    if replace:
                        rows = self._inserted(number, ids, order)
                    else:
                        rows = self._touched(number, ids, order, NO_COUNTS, self.step, self.step)
                    kernels.change_values(*shard.values, self.spec.width, rows, order, values, replace)

    # ---- reservations for new rows ---------------------------------------------------------------

    @contextlib.contextmanager
    def reserve(self, ids: Array, counts: Array | None = None, assigned: bool = False) -> Iterator[Groups]:
        """Reserve memory for the rows that a call may add to the table, and yield `ids` in groups by shard.

        Every method that may add rows does this itself. Around several calls it
        reserves for all calls.

        Args:
            ids: int64 [n], of all these calls.
            counts: uint32 [n]: how often each id is shown, for an entry rule; None: nothing is
                shown.
            assigned: these ids get rows whatever the entry rule says.

        Raises MemoryError, and TooLargeError when the bounds of the spec leave no room: then no row
        is added.
        """
        if (around := getattr(self._holding, "ids", None)) is not None:
            yield self._holding.groups if around is ids else self._groups(ids)
            return
        groups = self._groups(ids)
        bounded = (
            self.cap.held(*self.growth(ids, groups, counts, assigned)) if self.cap.bounded else contextlib.nullcontext()
        )
        with bounded:
            held: list[tuple[Reservations, Array]] = []
            try:
                for reserved, shards in self._growing(counts, assigned):
                    held.append((reserved, reserved.hold(shards, ids, groups)))
                self._holding.ids, self._holding.groups = ids, groups
                yield groups
            finally:
                self._holding.ids = self._holding.groups = None
                for reserved, more in held:
                    reserved.release(more)

    def _growing(self, counts: Array | None, assigned: bool) -> list[tuple[Reservations, list[Shard]]]:
        """Return the reservations and shards that a call may add to; for the arguments see `reserve`."""
        rows, waiting = ((self._reservations, self._shards), (self._waiting_reservations, self._waiting))
        if self.spec.entry is None or assigned:
            return [rows]
        return [] if counts is None else [rows, waiting]

    def growth(
        self, ids: Array, groups: Groups | None = None, counts: Array | None = None, assigned: bool = False
    ) -> tuple[TableSize, Callable[[], TableSize]]:
        """Return (an upper bound of the growth of the table by a call, a function that computes it exactly).

        For the arguments see `reserve`.
        """
        most = [len(ids)] * len(self._growing(counts, assigned)) + [0, 0]
        return self._size(*most[:2]), lambda: self._growth(ids, groups or self._groups(ids), counts, assigned)

    def _growth(self, ids: Array, groups: Groups, counts: Array | None, assigned: bool) -> TableSize:
        rows = waiting = 0
        for number, order in groups.parts():
            with self._shards[number].lock:
                absent = order[self._shards[number].locate(ids, order) < 0]
            once, inverse = kernels.distinct(ids[absent])
            if self.spec.entry is None or assigned:
                rows += len(once)
            elif counts is not None and len(once):
                shows = np.bincount(inverse, counts[absent])
                with self._waiting[number].lock:
                    known = self._waiting[number].locate(once, np.arange(len(once)))
                    shows[known >= 0] += self._waiting[number].read(known[known >= 0])[0]["shows"]
                rows += int(self._enters(once, np.minimum(shows, _MOST_SHOWS).astype(np.uint32)).sum())
                waiting += int((known < 0).sum())
        return self._size(rows, waiting)

    # ---- around the rows -------------------------------------------------------------------------

    def _wrong(self, what: str, expected: str, found: Any) -> errors.ServerError:
        kind = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        return errors.ServerError(f"table {self.spec.name}: {what}: expected {expected}, found {kind}")

    def _checked_ids(self, ids: Array) -> Array:
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
            raise self._wrong("ids", "an array int64 [n]", ids)
        return np.ascontiguousarray(ids)

    def _checked_gradients(self, ids: Array, gradients: Array, merged: bool) -> tuple[Array, Array]:
        ids = self._checked_ids(ids)
        gradients = self._checked_values("gradients", ids, gradients)
        return (ids, gradients) if merged else merge(ids, gradients)

    def _checked_values(self, what: str, ids: Array, values: Array) -> Array:
        shape = (len(ids), self.spec.width)
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != shape:
            raise self._wrong(what, f"an array float32 {list(shape)}", values)
        return np.ascontiguousarray(values)


def merge(ids: Array, values: Array) -> tuple[Array, Array]:
    """Return (ids, values): each id once, with the sum of the id's rows of `values` (float32 [n, width])."""
    once, inverse = kernels.distinct(ids)
    return once, kernels.summed(values, inverse, len(once))
