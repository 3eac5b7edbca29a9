"""Pull of a client from all servers: a request to each server, and the merged answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server import kernels, wire
from jfluid.ps_server.directory import Directory, Part
from jfluid.ps_server.zero_copy import BlockValue, IncomingPullReply, OutgoingRequest

Array = np.ndarray[Any, Any]
# The most bytes of a reply that stand before a block's values: tags, lengths, its version, padding.
_BESIDE_BLOCK = 128


@dataclass(frozen=True)
class PulledRows:
    """Rows that a pull returned: each id once.

    Attributes:
        ids: int64 [m].
        values: float32 [m, width]: row i belongs to ids[i]. Not to be written.
        inverse: int32 [n]: the position in `ids` of each requested id.
    """

    ids: Array
    values: Array
    inverse: Array

    def all(self) -> Array:
        """Return float32 [n, width]: a row for each requested id."""
        return self.values[self.inverse]


@dataclass(frozen=True)
class PullResult:
    """The result of a pull: rows by table, values by block (not to be changed), and the number of rounds applied."""

    rows: dict[str, PulledRows]
    blocks: dict[str, Array]
    rounds: int


class RowRequest(dict[str, Array]):
    """Ids of rows by table (int64 [n], which may repeat), and work for the caller until the rows come.

    Args:
        meanwhile: called with this once, by the caller's thread, when the requests to all servers are
            on their way; by none where nothing is asked for. It must not raise.
    """

    def __init__(self, ids: Mapping[str, Array], meanwhile: "Callable[[RowRequest], None] | None" = None):
        super().__init__(ids)
        self.meanwhile = meanwhile
        self._distinct: dict[str, tuple[Array, Array]] = {}

    def distinct(self, table: str) -> tuple[Array, Array]:
        """Return (ids, inverse) of a table: each id once, and the index of every id."""
        if table not in self._distinct:
            self._distinct[table] = kernels.distinct(checked_ids(table, self[table]))
        return self._distinct[table]


class ShardedPull:
    """A pull from all servers: fills in the request to each, and merges their answers."""

    def __init__(self, directory: Directory, requests: list[OutgoingRequest], blocks: Sequence[str]):
        self._directory = directory
        self.meanwhile: Callable[[], None] | None = None
        # Of each table: its ids, their inverse, and each part with its position in the request to
        # its server.
        self._rows: list[tuple[str, Array, Array, list[tuple[Part, int]]]] = []
        # Of each server its blocks, with the values that this client has.
        self._blocks: list[list[tuple[str, Array | None]]] = [[] for _ in requests]
        self.sizes = [0] * len(requests)
        for name in blocks:
            block = directory.block(name)
            with directory.lock:
                known, life, value = block.known, block.life, block.value
            self._blocks[block.server].append((name, value))
            requests[block.server].pull.blocks.add(block=block.name, known=known, server_incarnation=life)
            self.sizes[block.server] += 4 * math.prod(block.shape) + _BESIDE_BLOCK

    def add_rows(self, requests: list[OutgoingRequest], rows: Mapping[str, Array], or_none: bool = False) -> None:
        """Add rows to the request; if `or_none` and no server has some of the ids, add no rows.

        Raises ServerError without `or_none`.
        """
        rows = rows if isinstance(rows, RowRequest) else RowRequest(rows)
        try:
            self._add_rows(requests, rows)
        except errors.ServerError:
            if not or_none:
                raise
            self.drop_rows(requests)
        else:
            if rows.meanwhile is not None:
                self.meanwhile = partial(rows.meanwhile, rows)

    def _add_rows(self, requests: list[OutgoingRequest], rows: RowRequest) -> None:
        directory = self._directory
        for table in rows:
            ids, inverse = rows.distinct(table)
            counts = np.bincount(inverse, minlength=len(ids)).astype(np.uint32) if len(ids) < len(inverse) else None
            owned = []
            for part in directory.parts(table, ids):
                own, wanted = ids[part.order], requests[part.server].pull.rows
                own = own - part.first if part.first else own
                owned.append((part, len(wanted)))
                wanted.add(
                    table=part.name,
                    ids=own.tobytes(),
                    counts=counts[part.order].tobytes() if counts is not None else b"",
                )
                self.sizes[part.server] += 4 * len(own) * directory.width(table)
            self._rows.append((table, ids, inverse, owned))

    def drop_rows(self, requests: list[OutgoingRequest]) -> None:
        """Ask for no rows in these requests, and read none from the answers."""
        self._rows = []
        for request in requests:
            del request.pull.rows[:]

    def joined(self, replies: list[IncomingPullReply | None]) -> PullResult:
        """Merge the answers of all servers."""
        rows = {
            table: PulledRows(ids, self._values(table, len(ids), owned, replies), inverse)
            for table, ids, inverse, owned in self._rows
        }
        blocks = {
            name: self._value(name, known, reply.server_incarnation, reply.blocks[i])
            for reply, asked in zip(replies, self._blocks, strict=True)
            if reply is not None
            for i, (name, known) in enumerate(asked)
        }
        return PullResult(rows, blocks, min((reply.rounds for reply in replies if reply is not None), default=0))

    def _values(self, table: str, count: int, owned: list[tuple[Part, int]], replies: list[Any]) -> Array:
        width, what = self._directory.width(table), f"table {table}: values"
        if len(owned) == 1:
            ((part, i),) = owned
            return wire.numbers(replies[part.server].rows[i], "<f4", what, count * width, copy=False).reshape(
                count, width
            )
        values = np.empty((count, width), np.float32)
        for part, i in owned:
            found = wire.numbers(replies[part.server].rows[i], "<f4", what, len(part.order) * width, copy=False)
            values[part.order] = found.reshape(-1, width)
        return values

    def _value(self, name: str, known: Array | None, life: int, reply: BlockValue) -> Array:
        block = self._directory.block(name)
        if not reply.value:
            return known  # type: ignore[return-value]
        value = wire.numbers(reply.value, "<f4", f"block {name}", math.prod(block.shape), copy=False).reshape(
            block.shape
        )
        with self._directory.lock:
            if life != block.life or reply.version + 1 > block.known:
                block.known, block.life, block.value = reply.version + 1, life, value
        return value


def checked_ids(table: str, ids: Any) -> Array:
    """Return a contiguous array. Raises ServerError unless `ids` is int64 [n]."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise errors.ServerError(f"table {table}: ids: expected an array int64 [n], found {described(ids)}")
    return np.ascontiguousarray(ids)


def described(value: Any) -> str:
    """Return the type and shape of a value, for an error message."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
