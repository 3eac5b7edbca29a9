"""Other ways to read and update rows of tables than XLA's: those that the compiler has for a device."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from jax import Array


class TableRows(Protocol):
    """Rows of tables [height, width] by their numbers, int [n].

    Each gives None for arrays that it is not made for.
    """

    def take(self, table: Array, rows: Array) -> Array | None:
        """Return these rows [n, width], and NaN for one that the table does not have."""

    def add(self, table: Array, rows: Array, values: Array, scale: Array) -> Array | None:
        """Return the table with values [n, width] times a number added to rows that it has."""

    def update(
        self,
        function: Callable[..., Sequence[Array]],
        rows: Array,
        values: Array,
        tables: Sequence[Array],
    ) -> tuple[Array, ...] | None:
        """Return tables of one shape with what `function` gives in place of those rows that they have.

        Args:
            function: of some rows of the first table, the sums of the values of each, and the rows of
                other tables; each number follows from those in its place.
            values: [n, width], added up where a row occurs several times.
        """


class XlaRows:
    """None of these: XLA does all."""

    def take(self, *arrays: object) -> None:
        return None

    def add(self, *arrays: object) -> None:
        return None

    def update(self, *arguments: object) -> None:
        return None


_NONE = XlaRows()
_current: contextvars.ContextVar[TableRows] = contextvars.ContextVar("table_rows", default=_NONE)


@contextlib.contextmanager
def using(rows: TableRows) -> Iterator[None]:
    """A context in which operators are traced with these where they are made for."""
    token = _current.set(rows)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> TableRows:
    """Return what to ask before XLA's gathers and scatters are made."""
    return _current.get()
