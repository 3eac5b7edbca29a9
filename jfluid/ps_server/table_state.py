"""State of a table: rows in shards, number of updates; views of the state, and restoring from a view."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels, row_initializers, specs
from jfluid.ps_server.capacity import ROW_OVERHEAD, Cap, Groups, Reservations, TableSize
from jfluid.ps_server.kernels import COUNT
from jfluid.ps_server.recent_rows import RecentRows
from jfluid.ps_server.shard import NO_COUNTS, Shard
from jfluid.ps_server.table_view import TableView
from jfluid.ps_server.update_rule import Rates, rule_of

Array = np.ndarray[Any, Any]

# Rows per kernel call: few enough that they stay in the processor's cache for the next kernel.
BLOCK = 4096
LAST_STEP = (1 << 32) - 2


class TableState:
    """Rows of a table by id, ids that wait for a row, and the number of updates; in shards with a lock each.

    Attributes:
        spec: the definition of the table.
        rule: how its optimizer updates rows.
        step: the number of updates so far.
        expired: the rows that `shrink` has dropped in this process.
        learning_rate: of pushes without one of their own.
        stride: the numbers of a row: its values and its slots.
        cap: the bounds of the spec on rows and bytes.
    """

    def __init__(self, spec: specs.TableSpec):
        self.spec = spec
        self.rule = rule_of(spec.optimizer)
        self.step = self.expired = 0
        self.learning_rate: float = spec.optimizer.learning_rate
        self.stride = spec.width * (1 + len(self.rule.slots))
        bits = spec.shards.bit_length() - 1
        self._initializer, self._secret = row_initializers.encoded(spec.initializer), kernels.SECRET
        self._reservations, self._waiting_reservations = (Reservations(spec.shards), Reservations(spec.shards))
        self._shards = [
            Shard(self.stride, bits, (spec.width, spec.seed, *self._initializer), self.rule.slots, state)
            for state in self._reservations.state.T
        ]
        # Ids that were shown and have no row yet: heads alone.
        self._waiting = (
            [
                Shard(0, bits, (0, 0, *row_initializers.encoded(specs.Constant())), NO_COUNTS.astype(np.float32), state)
                for state in self._waiting_reservations.state.T
            ]
            if spec.entry
            else []
        )
        self._recent = RecentRows()
        self._rates = Rates()
        self._clock = threading.Lock()
        self._viewing = threading.Lock()
        # What the thread has reserved rows for (`SparseTable.reserve`).
        self._holding = threading.local()
        self.cap = Cap(
            f"table {spec.name}",
            lambda: self.size,
            "Drop rows that are no longer used (shrink), let fewer ids in "
            "(entry), or give the table larger bounds (max_rows, max_bytes) or more servers.",
        )
        self.bound(spec)

    def bound(self, spec: specs.TableSpec) -> None:
        """Take over `max_rows` and `max_bytes` of a spec. Existing rows beyond the bounds stay."""
        self.spec = self.spec.bounded_as(spec)
        self.cap.most_rows, self.cap.most_bytes = spec.max_rows, spec.max_bytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._reservations.state[COUNT].sum())

    @property
    def waiting(self) -> int:
        """Number of ids that were shown and have no row by the entry rule."""
        return int(self._waiting_reservations.state[COUNT].sum())

    @property
    def size(self) -> TableSize:
        """Rows and bytes, as `max_bytes` counts bytes: at most 24 a row beside its numbers, and 24 a waiting id."""
        return self._size(len(self), self.waiting)

    def _size(self, rows: int, waiting: int) -> TableSize:
        return TableSize(rows, rows * (ROW_OVERHEAD + 4 * self.stride) + waiting * ROW_OVERHEAD)

    @property
    def nbytes(self) -> int:
        """The bytes of indexes and pages."""
        return sum(shard.nbytes for shard in (*self._shards, *self._waiting))

    # ---- shards and steps ------------------------------------------------------------------------

    def _groups(self, ids: Array) -> Groups:
        """Return the ids by shard."""
        if (recent := self._recent.of(ids)) is not None:
            return recent.groups
        bits = len(self._shards).bit_length() - 1
        return Groups(*kernels.partition(kernels.shards_of(ids, bits, self._secret), len(self._shards)))

    def _tick(self, rate: float) -> int:
        """Count an update at this learning rate, and return its step."""
        with self._clock:
            if self.step >= LAST_STEP:
                raise errors.ServerError(
                    f"table {self.spec.name}: no more than {LAST_STEP} steps can be counted; save the "
                    "values and load the file into a new table"
                )
            if self.rule.idle is not None:
                self._rates.add(self.step + 1, rate)
            self.step += 1
            return self.step

    # ---- views and their restoring ---------------------------------------------------------------

    @contextlib.contextmanager
    def view(self) -> Iterator[TableView]:
        """Return a view of the table as it is now, to be read while the table keeps changing.

        One at a time; `shrink` waits for it.
        """
        with self._viewing:
            shards = [*self._shards, *self._waiting]
            with contextlib.ExitStack() as locks:
                for shard in shards:
                    locks.enter_context(shard.lock)
                for shard in shards:
                    shard.begin_view()
                with self._clock:
                    count = self._rates.count
                    view = TableView(
                        self.spec,
                        self.step,
                        self.learning_rate,
                        self._rates.steps[:count].copy(),
                        self._rates.rates[:count].copy(),
                        self._shards,
                        self._waiting,
                    )
            try:
                yield view
            finally:
                for shard in shards:
                    with shard.lock:
                        shard.end_view()

    def restore_clock(
        self, step: int, learning_rate: float, steps: Array | None = None, rates: Array | None = None
    ) -> None:
        """Take over the step, learning rate and history of rates of a view.

        Without a history all steps count as of this rate. Existing rows keep their steps, so call this before
        rows are put or assigned.
        """
        if steps is None or rates is None:
            steps, rates = np.ones(1, np.int64), np.array([learning_rate], np.float32)
        with self._clock:
            self.step, self.learning_rate = step, learning_rate
            self._rates.restore(steps, rates)

    def put(self, heads: Array, bodies: Array, waiting: bool = False) -> None:
        """Insert or replace whole rows: heads [n] of kernels.HEAD and bodies float32 [n, stride], as in a view.

        The bounds of the spec do not apply: whatever was saved is restored.
        """
        reserved, shards = (
            (self._waiting_reservations, self._waiting) if waiting else (self._reservations, self._shards)
        )
        ids = np.ascontiguousarray(heads["id"])
        groups = self._groups(ids)
        held = reserved.hold(shards, ids, groups)
        try:
            for number, order in groups.parts(BLOCK):
                with shards[number].lock:
                    shards[number].put(heads, bodies, order)
        finally:
            reserved.release(held)
