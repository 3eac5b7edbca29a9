"""Memory for new rows: reservations by calls, and the caps of a table and of a server.

A call that may add rows reserves memory for all of them before the first row changes. A call that
is refused, by a cap or for lack of memory, has changed nothing.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfluid.ps_server import kernels
from jfluid.ps_server.errors import TooLargeError
from jfluid.ps_server.kernels import COUNT, HELD, LIMIT
from jfluid.ps_server.shard import Shard

Array = np.ndarray[Any, Any]
# Bytes of a row beside its numbers: its id, how often it was shown, its last step, and its share of
# an index at its largest.
ROW_OVERHEAD = 24


class Groups(NamedTuple):
    """Ids by shard: order[starts[i]:starts[i + 1]] are the ascending positions of the ids of shard i."""

    order: Array
    starts: Array

    def parts(self, most: int = 1 << 62) -> Iterator[tuple[int, Array]]:
        """Yield (shard, ascending positions of at most `most` ids of the shard), by shard."""
        for number in np.flatnonzero(self.starts[1:] > self.starts[:-1]).tolist():
            positions = self.order[self.starts[number] : self.starts[number + 1]]
            if len(positions) <= most:
                yield number, positions
                continue
            for begin in range(0, len(positions), most):
                yield number, positions[begin : begin + most]


class Reservations:
    """Memory of a table's shards: the rows that it is enough for, and the rows that pending calls have reserved.

    Attributes:
        state: int64 [3, shards]: COUNT, LIMIT and HELD of each shard.
        lock: to be taken before that of a shard.
    """

    def __init__(self, shards: int):
        self.state = np.zeros((3, shards), np.int64)
        self.lock = threading.Lock()

    def hold(self, shards: Sequence[Shard], ids: Array, groups: Groups) -> Array:
        """Reserve memory for the ids without a row; return the reservation for `release`.

        Raises MemoryError, and the errors of `Shard.make_room`: then nothing is reserved.
        """
        more = np.empty(len(shards), np.int64)
        with self.lock:
            if not kernels.hold(self.state, groups.starts, more):
                for number, order in groups.parts():
                    if self.state[COUNT, number] + self.state[HELD, number] + len(order) > self.state[LIMIT, number]:
                        with shards[number].lock:
                            more[number] = shards[number].make_room(ids, order)
                self.state[HELD] += more
            return more

    def release(self, more: Array) -> None:
        """Release a reservation of `hold` at the end of the calls."""
        with self.lock:
            kernels.release(self.state, more)


class TableSize(NamedTuple):
    """A number of rows and their bytes."""

    rows: int
    bytes: int

    @staticmethod
    def total(sizes: "Iterable[TableSize]") -> "TableSize":
        """Return the sum of the sizes."""
        listed = list(sizes)
        return TableSize(sum(s.rows for s in listed), sum(s.bytes for s in listed))


NOTHING = TableSize(0, 0)


class Cap:
    """A bound on rows and bytes that holds for all calls that add rows together. Safe for threads.

    Args:
        what: what is bounded, for error messages.
        used: the current size. It may count rows of pending calls.
        hint: what a caller can do about an error.

    Attributes:
        most_rows, most_bytes: the bound; None for none.
    """

    def __init__(self, what: str, used: Callable[[], TableSize], hint: str):
        self.what, self._used, self._hint = what, used, hint
        self.most_rows: int | None = None
        self.most_bytes: int | None = None
        self._changed = threading.Condition()
        self._held: list[TableSize] = []
        self._alone = 0

    @property
    def bounded(self) -> bool:
        """True if there is a bound."""
        return self.most_rows is not None or self.most_bytes is not None

    def check(self, most: TableSize, exact: Callable[[], TableSize]) -> None:
        """Raise TooLargeError when an addition does not fit. See `held` for the arguments."""
        if self.bounded and not self._fits(most, NOTHING) and not self._fits(more := exact(), NOTHING):
            raise self._refusal(more)

    @contextlib.contextmanager
    def held(self, most: TableSize, exact: Callable[[], TableSize]) -> Iterator[None]:
        """Reserve a size while the context lasts.

        Raises TooLargeError when there is no room for it.

        Args:
            most: an upper bound of what will be added.
            exact: computes what will be added, for when `most` does not fit.
        """
        if not self.bounded:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            more = most
            while not self._fits(more, TableSize.total(self._held)):
                more = exact()
                if self._fits(more, TableSize.total(self._held)):
                    break
                if not self._held:
                    raise self._refusal(more)
                # pending calls may need less than they reserved, or add the same rows
                self._changed.wait()
            self._held.append(more)
        try:
            yield
        finally:
            with self._changed:
                self._held.remove(more)
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no call add rows while the context lasts, so that rows may be dropped on which pending calls count."""
        with self._changed:
            self._alone += 1
            try:
                self._changed.wait_for(lambda: not self._held)
                yield
            finally:
                self._alone -= 1
                self._changed.notify_all()

    def _fits(self, more: TableSize, held: TableSize) -> bool:
        if more == NOTHING:
            # when the bound is exceeded already, as after a restore, existing rows stay in use
            return True
        after = TableSize.total([self._used(), held, more])
        return (self.most_rows is None or after.rows <= self.most_rows) and (
            self.most_bytes is None or after.bytes <= self.most_bytes
        )

    def _refusal(self, more: TableSize) -> TooLargeError:
        used = self._used()
        bounds = [
            f"{name} is {bound:,}, {there:,} are taken"
            for name, bound, there in (
                ("max_rows", self.most_rows, used.rows),
                ("max_bytes", self.most_bytes, used.bytes),
            )
            if bound is not None
        ]
        return TooLargeError(
            f"{self.what}: no room for {more.rows:,} new rows ({more.bytes:,} bytes): {'; '.join(bounds)}. "
            f"Nothing of this call was applied; the rows that are there go on being served. {self._hint}"
        )
