"""Programs of the operators `checkpoint_notify` (servers save) and `recv_save` (save the servers' variables)."""

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.distributed.checkpoint import ASKED_BYTES
from jfluid.distributed.saved_tables import save_directly
from jfluid.distributed.wire import connections
from jfluid.engine import Engine, Fetched, Runner
from jfluid.files.tensor_format import save_in_parts
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import np_dtype
from jfluid.scope import Scope

Array = np.ndarray[Any, Any]
NOTIFY, RECEIVE = "checkpoint_notify", "recv_save"
OPERATORS = frozenset({NOTIFY, RECEIVE})
_NEEDED = {
    NOTIFY: {"epmap": "the servers", "dir": "a folder", "lookup_table": "a table"},
    RECEIVE: {
        "endpoints": "the server of each slice",
        "remote_varnames": "the name of each slice there",
        "slice_shapes": "the shape of each slice",
        "shape": "the shape of the whole",
        "file_path": "a file",
    },
}


class Saving(Runner):
    """Runs a program of such operators, in their order."""

    def __init__(self, program: Program, engine: Engine):
        self._engine, self._ops = engine, program.global_block().ops
        kind = next(op.type for op in self._ops if op.type in OPERATORS)
        others = {op.type for op in self._ops} - OPERATORS
        if others:
            raise errors.UnsupportedError(f"{kind} runs in a separate program; found {', '.join(sorted(others))} too")
        for op in self._ops:
            for name, what in _NEEDED[op.type].items():
                if not op.attr(name):
                    raise errors.ProgramError(f"{op.type}, {name}: expected {what}")
        self._slices = {i: _Slices(op, engine) for i, op in enumerate(self._ops) if op.type == RECEIVE}

    def run_alone(self, feed: Any, fetches: list[str], scope: Scope) -> list[Fetched]:
        """Save the parameters that the operators name.

        Raises FetchError for feeds and fetches; ServerError if a server does not answer, does not have the
        variable, or cannot write; OpError for an existing file that must not be overwritten.
        """
        if feed or fetches:
            raise errors.FetchError(f"a program of {self._ops[0].type} has nothing to feed or fetch")
        for i, op in enumerate(self._ops):
            if i in self._slices:
                self._slices[i].save()
                continue
            client = connections.borrow(op.attr("epmap"), op.attr("trainer_id"), self._engine).client
            save_directly(client, op.attr("lookup_table"), op.attr("dir"))
        return []


class _Slices:
    """Variable in slices of consecutive rows on servers, as a `recv_save` describes it."""

    def __init__(self, op: Operator, engine: Engine):
        self._engine, self._trainer = engine, op.attr("trainer_id")
        self._path, self._overwrite = op.attr("file_path"), op.attr("overwrite")
        self._shape = tuple(op.attr("shape"))
        self._dtype = np.dtype(np_dtype(op.attr("dtype")))
        servers, names = list(op.attr("endpoints")), list(op.attr("remote_varnames"))
        shapes = [_numbers(text) for text in op.attr("slice_shapes")]
        if not len(servers) == len(names) == len(shapes):
            raise errors.ProgramError(
                f"{RECEIVE}: expected a server, a name and a shape for each slice, found {len(servers)} "
                f"endpoints, {len(names)} remote_varnames and {len(shapes)} slice_shapes"
            )
        rows = sum(shape[0] for shape in shapes)
        if rows != self._shape[0] or any(shape[1:] != self._shape[1:] for shape in shapes):
            raise errors.ProgramError(
                f"{RECEIVE}: expected slice_shapes that are the rows of {list(self._shape)}, found "
                f"{', '.join(op.attr('slice_shapes'))}"
            )
        self._slices = list(zip(servers, names, shapes, strict=True))
        self._servers = list(dict.fromkeys(servers))

    def save(self) -> None:
        """Write the file of the whole variable."""
        if not self._overwrite and os.path.exists(self._path):
            raise errors.OpError(f"{self._path} exists, and the operator's attribute overwrite is False")
        connections.settle(self._servers, self._trainer)
        self._client = connections.observe(self._servers, self._engine).client
        os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
        save_in_parts(self._path, self._dtype, self._shape, self._parts())

    def _parts(self) -> Iterator[Array]:
        statuses = dict(zip(self._servers, self._client.status(), strict=True))
        for server, name, shape in self._slices:
            status = statuses[server]
            if name not in status.tables:
                yield self._block(server, name, shape, name in status.blocks)
                continue
            if [n for _, n, _ in self._slices].count(name) > 1:
                raise errors.ProgramError(
                    f"{RECEIVE}: the ids of table {name} say which server has which rows, and slices "
                    f"do not: {NOTIFY} has servers save it"
                )
            yield from self._rows(server, name, shape)

    def _block(self, server: str, name: str, shape: tuple[int, ...], parameter: bool) -> Array:
        """Parameters travel as float32, other variables as their bytes."""
        count = math.prod(shape)
        words = count if parameter else -(-count * self._dtype.itemsize // 4)
        here = f"{name}@{server}@{RECEIVE}"
        self._client.place_block(here, self._servers.index(server), (words,), name)
        try:
            value = self._client.pull(blocks=[here], train=False).blocks[here]
        finally:
            self._client.forget_block(here)
        if parameter:
            return value.astype(self._dtype, copy=False).reshape(shape)
        data = value.tobytes()[: count * self._dtype.itemsize]
        return np.frombuffer(data, self._dtype).reshape(shape)

    def _rows(self, server: str, name: str, shape: tuple[int, ...]) -> Iterator[Array]:
        from jfluid.ps_server.client import RowRange

        here, width = f"{name}@{server}@{RECEIVE}", math.prod(shape[1:])
        there = [RowRange(name, self._servers.index(server), 0, shape[0])]
        self._client.place_table(here, width, there)
        step = max(ASKED_BYTES // (4 * max(width, 1)), 1)
        for begin in range(0, shape[0], step):
            ids = np.arange(begin, min(begin + step, shape[0]), dtype=np.int64)
            values = self._client.look_up(here, ids)
            yield values.astype(self._dtype, copy=False).reshape(len(ids), *shape[1:])


def _numbers(text: str) -> tuple[int, ...]:
    """Return the shape in a text such as "20,4"."""
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise errors.ProgramError(f'{RECEIVE}, slice_shapes: expected such as "20,4", found {text!r}')
    return found
