"""Push of a client to all servers: the changes for each server."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ps_server.directory import Directory
from jfluid.ps_server.sharded_pull import checked_ids, described
from jfluid.ps_server.store import Change
from jfluid.ps_server.table import merge
from jfluid.ps_server.zero_copy import OutgoingRequest

Array = np.ndarray[Any, Any]


def add_pushes(
    directory: Directory,
    requests: list[OutgoingRequest],
    rows: Mapping[str, tuple[Array, Array]],
    blocks: Mapping[str, Array],
    learning_rate: float | None,
    change: Change,
    merged: bool,
) -> None:
    """Add the changes of a server's rows and blocks to its request, for each server.

    The arguments are the arguments of `Client.push`. Raises ServerError for arrays of a different type or shape.
    """
    for table, (ids, values) in rows.items():
        ids, shape = checked_ids(table, ids), (len(ids), directory.width(table))
        if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape != shape:
            raise errors.ServerError(
                f"table {table}: expected an array float32 {list(shape)}, found {described(values)}"
            )
        if change != Change.ASSIGN and not merged:
            ids, values = merge(ids, np.ascontiguousarray(values))
        for number, there, order, first in directory.parts(table, ids):
            own = ids[order] - first if first else ids[order]
            requests[number].push.add_rows(
                own, values[order], table=there, change=int(change), learning_rate=learning_rate
            )
    for name, value in blocks.items():
        block = directory.block(name)
        if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.shape != block.shape:
            raise errors.ServerError(
                f"block {name}: expected an array float32 {list(block.shape)}, found {described(value)}"
            )
        requests[block.server].push.add_block(value, block=block.name, change=int(change), learning_rate=learning_rate)
