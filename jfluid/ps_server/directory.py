"""A client's directory of owners: which server has which rows of tables, by id, and which blocks, by name."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels

Array = np.ndarray[Any, Any]
_ALL = slice(None)


@dataclass(frozen=True)
class RowRange:
    """Range of `rows` ids of a table, from `first` on, that one server owns.

    The server has the range as its table `name`, in which ids count from 0.
    """

    name: str
    server: int
    first: int
    rows: int


@dataclass
class BlockOwner:
    """The owner of a block, its name there, and the value that this client has."""

    server: int
    name: str
    shape: tuple[int, ...]
    known: int = 0  # the value's version plus 1
    life: int = 0  # incarnation of the server that sent it
    value: Array | None = None


class Part(NamedTuple):
    """The ids of a call that one server owns: their positions, the table's name there, and the id that is 0 there."""

    server: int
    name: str
    order: Any
    first: int = 0


class Directory:
    """The owners of tables and blocks.

    Args:
        servers: the number of servers.
        widths: asks the servers for the widths of their tables, by name.

    Attributes:
        blocks: by the names that this client uses.
        lock: held while a block's value is read together with its version, or set.
    """

    def __init__(self, servers: int, widths: Callable[[], Mapping[str, int]]):
        self._servers, self._ask = servers, widths
        self._widths: dict[str, int] = {}
        self._stretches: dict[str, tuple[list[RowRange], Array]] = {}  # with the end of each range
        self.blocks: dict[str, BlockOwner] = {}
        self.lock = threading.Lock()

    def place_table(self, name: str, width: int, ranges: Sequence[RowRange] = ()) -> None:
        """Set a table's width and ranges; without ranges the hashes of ids decide which servers own its rows.

        Raises ServerError when the ranges do not follow one another from id 0 on.
        """
        ends = np.cumsum([s.rows for s in ranges])
        if [s.first for s in ranges] != [0, *ends[:-1]][: len(ranges)]:
            raise errors.ServerError(f"table {name}: expected adjacent ranges from 0 on, found {ranges}")
        self._widths[name] = width
        if ranges:
            self._stretches[name] = list(ranges), ends

    def width(self, table: str) -> int:
        """Return the width of a table's rows. Raises ServerError when no server has the table."""
        if table not in self._widths:
            self._widths.update(self._ask())
        if table not in self._widths:
            raise errors.ServerError(
                f"there is no table {table!r}{errors.close_to(table, self._widths)}; create it first"
            )
        return self._widths[table]

    def block(self, name: str) -> BlockOwner:
        """Return the owner of a block. Raises ServerError when it is unknown."""
        if name not in self.blocks:
            raise errors.ServerError(f"there is no block {name!r}{errors.close_to(name, self.blocks)}; create it first")
        return self.blocks[name]

    def places(self, table: str) -> list[tuple[int, str]]:
        """Return each server that has rows of a table, and the table's name there."""
        if table in self._stretches:
            return [(s.server, s.name) for s in self._stretches[table][0]]
        return [(number, table) for number in range(self._servers)]

    def parts(self, table: str, ids: Array) -> list[Part]:
        """Split ids by owner: a part for every server, or for every range.

        Raises ServerError for ids outside all ranges of the table.
        """
        if table not in self._stretches:
            if self._servers == 1:
                return [Part(0, table, _ALL)]
            places = [(n, table, 0) for n in range(self._servers)]
            groups = kernels.owners_of(ids, self._servers)
        else:
            ranges, ends = self._stretches[table]
            if len(ids) and not (ids.min() >= 0 and ids.max() < ends[-1]):
                raise errors.ServerError(
                    f"table {table}: ids: expected numbers from 0 to {ends[-1] - 1}, found "
                    f"{ids[(ids < 0) | (ids >= ends[-1])][0]}"
                )
            if len(ranges) == 1:
                return [Part(ranges[0].server, ranges[0].name, _ALL)]
            places, groups = ([(s.server, s.name, s.first) for s in ranges], np.searchsorted(ends, ids, side="right"))
        order, starts = kernels.partition(groups, len(places))
        return [
            Part(server, name, order[starts[i] : starts[i + 1]], first)
            for i, (server, name, first) in enumerate(places)
        ]
