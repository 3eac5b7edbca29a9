"""Device-specific gathers and updates of table rows, in place of XLA's, provided by the compiler."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from jax import Array


class TableRows(Protocol):
    """Interface of gathers and updates of table rows: tables [height, width], row indices int [n].

    Each gives None for arrays that it is not made for.
    """

    def take(self, table: Array, rows: Array) -> Array | None:
        """Return these rows [n, width], and NaN for one that the table does not have."""

    def add(self, table: Array, rows: Array, values: Array, scale: Array) -> Array | None:
        """Return the table with values [n, width] times a number added to rows that it has."""

    def update(
        self, function: Callable[..., Sequence[Array]], rows: Array, values: Array, tables: Sequence[Array]
    ) -> tuple[Array, ...] | None:
        """Return tables of one shape with the given rows replaced by the results of `function`.

        Args:
            function: maps rows of the first table, the summed values of each row, and the rows of all other
                tables to new rows, elementwise.
            rows: integers [n]: table rows; duplicates are allowed.
            values: [n, width], summed over duplicate rows.
            tables: tables of one shape.
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
    """Trace operators in this context with `rows` for the arrays that it supports."""
    token = _current.set(rows)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> TableRows:
    """Return the current implementation, tried before XLA's gathers and scatters."""
    return _current.get()
