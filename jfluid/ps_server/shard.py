"""Shard of a table: an index over pages of rows. Callers hold its lock."""

import contextlib
import mmap
import threading
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import index, kernels
from jfluid.ps_server.kernels import COUNT, HELD, LIMIT

Array = np.ndarray[Any, Any]

# The index is rebuilt, this much larger, when more than this part of it is in use: 5 to 8 bytes a
# row.
_FULLEST, _GROWTH, _SMALLEST = 0.8, 1.4, 64
_LARGEST = 1 << 31
_PAGE_BYTES = 1 << 23
_MOST_ROWS_IN_A_PAGE = 1 << 17
# For up to so many ids of a call memory is reserved without looking up which of them have a row.
_FEW = 1 << 12
NO_COUNTS = np.zeros(0, np.uint32)


def _zeros(capacity: int) -> Array:
    """Return zeros uint32 [capacity] in a separate mapping, which returns to the system as a whole.

    Indexes are replaced while a table grows, and would fragment the heap.
    """
    if 4 * capacity < 1 << 20:
        return np.zeros(capacity, np.uint32)
    memory = mmap.mmap(-1, 4 * capacity)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint32)


class _Pages:
    """Arrays that never move, and their addresses."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.addresses = np.zeros(8, np.int64)

    def add(self, size: int, dtype: type) -> None:
        page: Array = np.empty(size, dtype)
        if len(self.arrays) == len(self.addresses):
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)])
        self.addresses[len(self.arrays)] = page.ctypes.data
        self.arrays.append(page)

    def keep(self, number: int) -> None:
        del self.arrays[number:]

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.arrays)


class Shard:
    """Rows by id. All methods but the constructor need `lock`.

    Args:
        stride: float32 numbers a row: the values and the optimizer's slots.
        shard_bits: the shards of the table are 2**shard_bits.
        initializer: of new rows: (width, seed, kind, first, second), as `index.locate` takes them.
        slots: the initial value of every group of `width` slots.
        reserved: int64 [3]: COUNT, LIMIT and HELD of this shard. The latter two change under the
            lock of the table's Reservations, too.

    Attributes:
        growths: how often the index was rebuilt.
    """

    def __init__(
        self,
        stride: int,
        shard_bits: int,
        initializer: tuple[int, int, int, float, float],
        slots: Array,
        reserved: Array,
    ):
        self.lock = threading.Lock()
        self.stride, self.shard_bits = stride, shard_bits
        fitting = max(_PAGE_BYTES // max(4 * stride, 16), 1)
        self.page_bits = min(fitting, _MOST_ROWS_IN_A_PAGE).bit_length() - 1
        self.heads, self.bodies = _Pages(), _Pages()
        self._initializer, self._slots = initializer, slots
        self._reserved, self._count, self._secret = (reserved, reserved[COUNT : COUNT + 1], kernels.SECRET)
        self.growths = 0
        self.index = _zeros(_SMALLEST)
        self._saving: _Saving | None = None

    @property
    def count(self) -> int:
        """Number of rows; rows are numbered 0 ... count - 1."""
        return int(self._reserved[COUNT])

    def _row_bits(self, entries: Array) -> int:
        return (int(len(entries) * _FULLEST) + 1).bit_length()

    def _new_index(self, capacity: int) -> None:
        entries = _zeros(capacity)
        index.rebuild(
            entries,
            self._row_bits(entries),
            self.shard_bits,
            self.heads.addresses,
            self.page_bits,
            self.count,
            self._secret,
        )
        self.index = entries

    def make_room(self, ids: Array, order: Array) -> int:
        """Allocate memory for the rows that ids[order] may need, beside reserved rows; return the number of rows.

        Needs the lock of the Reservations, too. Raises MemoryError, and ServerError where a shard
        cannot have so many: then the rows are as they were.
        """
        more = len(order)
        if more > max(self.count, _FEW):
            more = len(kernels.distinct(ids[order[self.locate(ids, order) < 0]])[0])
        rows = self.count + int(self._reserved[HELD]) + more
        if rows > int(_LARGEST * _FULLEST):
            raise errors.ServerError(
                f"a shard cannot hold more than {int(_LARGEST * _FULLEST)} rows; give the table more shards"
            )
        while len(self.bodies.arrays) << self.page_bits < rows:
            self.bodies.add(self.stride << self.page_bits, np.float32)
        while len(self.heads.arrays) << self.page_bits < rows:
            self.heads.add(2 << self.page_bits, np.int64)
        capacity = len(self.index)
        while int(capacity * _FULLEST) < rows:
            capacity = min(int(capacity * _GROWTH), _LARGEST)
        if capacity > len(self.index):
            self.growths += 1
            self._new_index(capacity)
        self._reserved[LIMIT] = min(int(len(self.index) * _FULLEST), len(self.heads.arrays) << self.page_bits)
        return more

    def locate(self, ids: Array, order: Array) -> Array:
        """Return int64 [n]: the row of ids[order[i]], -1 for ids without one."""
        return self._located(ids, order, -1, 0)

    def insert(self, ids: Array, order: Array, step: int) -> Array:
        """Return int64 [n]: the row of ids[order[i]]; an id without a row gets one, last touched at `step`.

        There must be room.
        """
        return self._located(ids, order, int(self._reserved[LIMIT]), step)

    def still(self, ids: Array, order: Array, rows: Array) -> bool:
        """Return True if all ids[order[i]] still have row rows[i]."""
        return bool(index.leads_to(self.heads.addresses, self.page_bits, self.count, ids, order, rows))

    def _located(self, ids: Array, order: Array, limit: int, step: int) -> Array:
        rows = np.empty(len(order), np.int64)
        done = index.locate(
            self.index,
            self._row_bits(self.index),
            self.shard_bits,
            self.heads.addresses,
            *self.values,
            self._count,
            limit,
            ids,
            order,
            rows,
            self._secret,
            self._initializer,
            self._slots,
            step,
        )
        if done < len(order):
            raise RuntimeError(f"there is room for {limit} rows, which is {len(order) - done} too few")
        return rows

    def read(self, rows: Array) -> tuple[Array, Array]:
        """Return (heads [n] of kernels.HEAD, bodies float32 [n, stride]) of rows, copied."""
        heads, bodies = (np.empty((len(rows), 2), np.int64), np.empty((len(rows), self.stride), np.float32))
        kernels.read_rows(self.heads.addresses, *self.values, rows, heads, bodies)
        return heads.view(kernels.HEAD)[:, 0], bodies

    def put(self, heads: Array, bodies: Array, order: Array) -> None:
        """Insert or replace the rows heads[order], bodies[order]. There must be room."""
        heads, bodies = np.ascontiguousarray(heads[order]), np.ascontiguousarray(bodies[order])
        rows = self.insert(np.ascontiguousarray(heads["id"]), np.arange(len(order)), 0)
        kernels.write_rows(self.heads.addresses, *self.values, rows, heads.view(np.int64).reshape(-1, 2), bodies)

    def expire(self, oldest: int) -> int:
        """Drop the rows that were last touched before step `oldest`; returns how many.

        Needs the lock of the Reservations, too.
        """
        before = self.count
        index.expire(
            self.index,
            self._row_bits(self.index),
            self.shard_bits,
            self.heads.addresses,
            *self.values,
            self._count,
            oldest,
            self._secret,
        )
        if self.count < before:
            rows = self.count + int(self._reserved[HELD])
            pages = -(-rows >> self.page_bits)
            with contextlib.suppress(MemoryError):  # the index then keeps its size
                self._new_index(max(int(rows / _FULLEST * 1.2), _SMALLEST))
            self._reserved[LIMIT] = min(int(len(self.index) * _FULLEST), pages << self.page_bits)
            self.heads.keep(pages)
            self.bodies.keep(pages)
        return before - self.count

    @property
    def values(self) -> tuple[Array, int, int]:
        """Return (addresses of the pages of bodies, page_bits, stride), as kernels take the pages."""
        return self.bodies.addresses, self.page_bits, self.stride

    @property
    def nbytes(self) -> int:
        """The bytes of index and pages; of the last page only the touched part takes memory."""
        return self.index.nbytes + self.heads.nbytes + self.bodies.nbytes

    # ---- a consistent view while rows change ----

    def begin_view(self) -> None:
        """Preserve all current rows until `end_view`."""
        self._saving = _Saving(self.count)

    def preserve(self, rows: Array) -> None:
        """Copy the rows of the view that are about to change and were not read yet.

        Rows of -1 are left out.
        """
        if self._saving is not None and len(fresh := self._saving.missing(rows)):
            self._saving.take(fresh, self.read(fresh))

    def view_rows(self, begin: int, size: int) -> tuple[Array, Array] | None:
        """Return the rows begin ... begin + size - 1 of the view that have not changed since; None after the last."""
        if self._saving is None:
            raise RuntimeError("begin_view comes first")
        taken = self._saving.taken[begin : begin + size]
        if not len(taken):
            return None
        found = self.read(begin + np.flatnonzero(~taken))
        taken[:] = True
        return found

    def end_view(self) -> list[tuple[Array, Array]]:
        """End the view; returns the copied rows."""
        aside, self._saving = self._saving.aside if self._saving else [], None
        return aside


class _Saving:
    """Rows of a view that were read or copied, and copies of rows that changed before the view read the rows."""

    def __init__(self, count: int):
        self.taken = np.zeros(count, np.bool_)
        self.aside: list[tuple[Array, Array]] = []

    def missing(self, rows: Array) -> Array:
        """Return the rows that belong to the view and were neither read nor copied, each once."""
        rows = rows[(rows >= 0) & (rows < len(self.taken))]
        return np.unique(rows[~self.taken[rows]])

    def take(self, rows: Array, found: tuple[Array, Array]) -> None:
        """Record a copy of `rows`."""
        self.aside.append(found)
        self.taken[rows] = True
