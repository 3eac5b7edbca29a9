"""Cache of the rows of a table's last look-ups: a trainer mostly pushes gradients of the ids that it pulled."""

import threading
from typing import Any, NamedTuple

import numpy as np

from jfluid.ps_server.capacity import Groups

Array = np.ndarray[Any, Any]
# Look-ups that are remembered, the oldest goes first, and the most ids of one: 9 MB of each table.
_MOST, _MOST_IDS = 6, 1 << 16


class FoundRows(NamedTuple):
    """The ids of a look-up (int64 [n]), the ids by shard, and their rows in the order of `groups` (int64 [n]).

    Rows move when others are dropped: a row is that of its id where its head says so.
    """

    ids: Array
    groups: Groups
    rows: Array


class RecentRows:
    """The rows of the last look-ups. Safe for threads."""

    def __init__(self) -> None:
        self._found: list[FoundRows] = []
        self._lock = threading.Lock()

    def add(self, ids: Array, groups: Groups, rows: Array) -> None:
        """Remember the rows of a look-up."""
        if len(ids) <= _MOST_IDS:
            with self._lock:
                self._found = [FoundRows(ids, groups, rows), *self._found[: _MOST - 1]]

    def of(self, ids: Array) -> FoundRows | None:
        """Return the rows of the last look-up of the same ids in the same order."""
        for found in self._found:
            if ids is found.ids or (
                len(ids) == len(found.ids)
                and (not len(ids) or ids[-1] == found.ids[-1])
                and np.array_equal(ids, found.ids)
            ):
                return found
        return None
