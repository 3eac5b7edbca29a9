"""One shard of a table: an index over pages of rows. Its owner holds the lock."""
import contextlib
import mmap
import threading
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels

Array = np.ndarray[Any, Any]

# The index is rebuilt, this much larger, when more than this part of it is in use: 5 to 8 bytes a row.
_FULLEST, _GROWTH, _SMALLEST = 0.8, 1.4, 64
_LARGEST = 1 << 31
_PAGE_BYTES = 1 << 23
_MOST_ROWS_IN_A_PAGE = 1 << 17
NO_COUNTS = np.zeros(0, np.uint32)


def _zeros(capacity: int) -> Array:
    """uint32 [capacity] in memory of its own, which goes back to the system as a whole: indexes come and go while a table
    grows, and would leave holes between other things."""
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

    Attributes:
        count: the rows that it holds: numbers 0 ... count - 1.
        growths: how often the index was rebuilt.
    """

    def __init__(self, stride: int, shard_bits: int):
        self.lock = threading.Lock()
        self.stride, self.shard_bits = stride, shard_bits
        fitting = max(_PAGE_BYTES // max(4 * stride, 16), 1)
        self.page_bits = min(fitting, _MOST_ROWS_IN_A_PAGE).bit_length() - 1
        self.heads, self.bodies = _Pages(), _Pages()
        self.count = self.growths = 0
        self._new_index(_SMALLEST)
        self._saving: _Saving | None = None

    def _new_index(self, capacity: int) -> None:
        self.index = _zeros(capacity)
        self.row_bits = (int(capacity * _FULLEST) + 1).bit_length()
        kernels.rebuild(self.index, self.row_bits, self.shard_bits, self.heads.addresses, self.page_bits, self.count)

    def _limit(self) -> int:
        """How many rows fit without growing."""
        return min(int(len(self.index) * _FULLEST), len(self.heads.arrays) << self.page_bits)

    def _grow(self) -> None:
        if self.count == len(self.heads.arrays) << self.page_bits:
            # The heads last: they say how many rows there is room for, also when memory ends in between.
            self.bodies.add(self.stride << self.page_bits, np.float32)
            self.heads.add(2 << self.page_bits, np.int64)
        if self.count == int(len(self.index) * _FULLEST):
            if len(self.index) == _LARGEST:
                raise errors.ServerError(f"a shard cannot hold more than {self.count} rows; give the table more shards")
            self.growths += 1
            self._new_index(min(int(len(self.index) * _GROWTH), _LARGEST))

    def locate(self, ids: Array, order: Array, insert: bool) -> Array:
        """int64 [n]: the row of ids[order[i]]; unknown ids get new rows at the end if `insert`, else -1."""
        rows = np.empty(len(order), np.int64)
        done = 0
        while True:
            done, self.count = kernels.locate(
                self.index, self.row_bits, self.shard_bits, self.heads.addresses, self.page_bits, self.count,
                self._limit() if insert else -1, ids, order, done, rows)
            if done == len(order):
                return rows
            self._grow()

    def read(self, rows: Array) -> tuple[Array, Array]:
        """(heads [n] of kernels.HEAD, bodies float32 [n, stride]) of rows, copied."""
        heads, bodies = np.empty((len(rows), 2), np.int64), np.empty((len(rows), self.stride), np.float32)
        kernels.read_rows(self.heads.addresses, *self.values, rows, heads, bodies)
        return heads.view(kernels.HEAD)[:, 0], bodies

    def put(self, heads: Array, bodies: Array, order: Array) -> None:
        """Insert or replace the rows heads[order], bodies[order]."""
        heads, bodies = np.ascontiguousarray(heads[order]), np.ascontiguousarray(bodies[order])
        rows = self.locate(np.ascontiguousarray(heads["id"]), np.arange(len(order)), insert=True)
        kernels.write_rows(self.heads.addresses, *self.values, rows, heads.view(np.int64).reshape(-1, 2), bodies)

    def expire(self, oldest: int) -> int:
        """Drop the rows that were last touched before step `oldest`; returns how many."""
        before = self.count
        self.count = kernels.expire(self.heads.addresses, *self.values, before, oldest)
        if self.count < before:
            pages = -(-self.count >> self.page_bits) if self.count else 0
            self.heads.keep(pages)
            self.bodies.keep(pages)
            self._new_index(max(int(self.count / _FULLEST * 1.2), _SMALLEST))
        return before - self.count

    @property
    def values(self) -> tuple[Array, int, int]:
        """(addresses of the pages of bodies, page_bits, stride), as kernels take them."""
        return self.bodies.addresses, self.page_bits, self.stride

    @property
    def nbytes(self) -> int:
        """The bytes of index and pages; of the last page the operating system has given out what was touched."""
        return self.index.nbytes + self.heads.nbytes + self.bodies.nbytes

    # ---- a consistent cut while rows change ----

    def begin_cut(self) -> None:
        """From here on rows are kept as they are now, until `end_cut`."""
        self._saving = _Saving(self.count)

    def preserve(self, rows: Array) -> None:
        """Put aside the rows of the cut that are about to change and were not yet read. Rows of -1 are left out."""
        if self._saving is not None and len(fresh := self._saving.claim(rows)):
            self._saving.aside.append(self.read(fresh))

    def cut_rows(self, begin: int, size: int) -> tuple[Array, Array] | None:
        """The rows begin ... begin + size - 1 of the cut that have not changed since; None behind the last."""
        if self._saving is None:
            raise RuntimeError("begin_cut comes first")
        taken = self._saving.taken[begin:begin + size]
        if not len(taken):
            return None
        rows = begin + np.flatnonzero(~taken)
        taken[:] = True
        return self.read(rows)

    def end_cut(self) -> list[tuple[Array, Array]]:
        """Ends the cut; returns the rows that were put aside."""
        aside, self._saving = self._saving.aside if self._saving else [], None
        return aside


class _Saving:
    """Which rows of a cut are taken care of, and those put aside because they changed before they were read."""

    def __init__(self, count: int):
        self.taken = np.zeros(count, np.bool_)
        self.aside: list[tuple[Array, Array]] = []

    def claim(self, rows: Array) -> Array:
        """Those of `rows` that belong to the cut and were not taken; from now on they are."""
        rows = rows[(rows >= 0) & (rows < len(self.taken))]
        rows = np.unique(rows[~self.taken[rows]])
        self.taken[rows] = True
        return rows
