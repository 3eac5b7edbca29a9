"""GEO: trainers update alone, and exchange differences of parameters with the servers at an interval of steps."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.runtime.padding import ladder
from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.distributed.wire.connections import Gradients, Strategy, TrainerConnection
from jfluid.scope import Scope

if TYPE_CHECKING:
    from jfluid.ps_server.client import PulledRows, PullResult

Array = np.ndarray[Any, Any]


@jax.jit
def _rows_of(table: jax.Array, ids: jax.Array) -> jax.Array:
    return table.at[ids].get(mode="fill", fill_value=0)


def _add(table: jax.Array, ids: jax.Array, differences: jax.Array) -> jax.Array:
    return table.at[ids].add(differences.astype(table.dtype), mode="drop")


_add_rows = jax.jit(_add, donate_argnums=0)


class Geo(Strategy):
    """GEO strategy: every `every` steps a trainer exchanges parameter differences with the servers.

    It sends a share of the distance that its parameters have moved, and takes over the distance that the
    servers' have moved; meanwhile it goes on training.

    With v the trainer's value and o what it last knew of the servers', it sends d = (v - o) /
    trainers and sets o += d; when the servers' value s comes back, v += s - o and o = s (Zhang et
    al., Geo-SGD as Fluid has it). Of a table with sparse gradients only the rows that batches have
    touched since the last time are sent: where an optimizer moves others as well (Momentum, Adam
    without lazy_mode), that is sent when a batch touches them next.

    Args:
        every: steps between two exchanges.
        trainers: the number of trainers.
    """

    def __init__(self, every: int, trainers: int):
        if every < 1 or trainers < 1:
            raise errors.ProgramError(
                f"GEO: expected steps between two exchanges and trainers of 1 at least, found {every} and {trainers}"
            )
        self._every, self._trainers = every, trainers
        self._steps = 0
        # the last known values of the servers, by parameter
        self._known: dict[str, Array] = {}
        self._tables: set[str] = set()
        # of each step its ids, each once
        self._touched: dict[str, list[Array]] = {}
        self._under_way: tuple[Future[PullResult], dict[str, Array], Scope, TrainerConnection] | None = None
        self._last: tuple[TrainerConnection, Scope] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jfluid-geo")
        self._lock = threading.Lock()

    def overlaps(self, program: TrainerProgram) -> bool:
        return False  # there is nothing to pull

    def pull(self, connection: TrainerConnection, ids: Mapping[str, Array]) -> "dict[str, PulledRows]":
        return {}  # trainers hold their tables

    def begin(self, connection: TrainerConnection, program: TrainerProgram, scope: Scope) -> None:
        """Note the servers' initial values at first; later take over the values that have come."""
        if not self._known:
            self._tables = {table for _, table in program.touched}
            for name, param in connection.params.items():
                self._known[name] = np.array(self._value(scope, name), np.float32)
                if name in self._tables:
                    connection.place_rows(param)
        if self._under_way is not None and self._under_way[0].done():
            self._take()

    def push(
        self, connection: TrainerConnection, program: TrainerProgram, gradients: Gradients, scope: Scope
    ) -> dict[str, Array]:
        from jfluid.ps_server import kernels

        for table, ids in gradients.touched.items():
            self._touched.setdefault(table, []).append(kernels.distinct(ids)[0])
        self._steps += 1
        self._last = connection, scope
        if self._steps % self._every == 0:
            self._exchange(connection, scope)
        return {}

    def stop(self) -> None:
        """Exchange the differences since the last time, and end with the servers' values."""
        if self._last is not None:
            self._exchange(*self._last)
            self._take()
        self._thread.shutdown()

    def _exchange(self, connection: TrainerConnection, scope: Scope) -> None:
        if self._under_way is not None:
            self._take()
        from jfluid.ps_server import kernels

        share = np.float32(1.0 / self._trainers)
        blocks: dict[str, Array] = {}
        rows: dict[str, tuple[Array, Array]] = {}
        touched: dict[str, Array] = {}
        for name, param in connection.params.items():
            known = self._known[name]
            if name in self._tables:
                every = np.concatenate(self._touched.pop(name, [np.empty(0, np.int64)]))
                # faster than np.unique; in order rows are found faster
                ids = touched[name] = np.sort(kernels.distinct(every)[0])
                moved = (self._rows(scope, name, ids) - known[ids]) * share
                known[ids] += moved
                rows[name] = ids, moved
            else:
                moved = (np.asarray(self._value(scope, name), np.float32) - known) * share
                known += moved
                blocks |= param.split(moved)

        def travel() -> "PullResult":
            from jfluid.ps_server.store import Change

            return connection.client.exchange(rows, blocks, touched, list(blocks), change=Change.ADD)

        self._under_way = self._thread.submit(travel), touched, scope, connection

    def _take(self) -> None:
        """Take over the servers' new values."""
        if self._under_way is None:
            return
        future, touched, scope, connection = self._under_way
        self._under_way = None
        pulled = future.result()
        for name, param in connection.params.items():
            known, tensor = self._known[name], scope.var(name).get_tensor()
            if name in self._tables:
                ids = touched[name]
                values = pulled.rows[name].all().reshape(len(ids), *known.shape[1:])
                tensor.value = self._added(tensor.value, ids, values - known[ids])
                known[ids] = values
            else:
                value = param.join(pulled.blocks).reshape(known.shape)
                tensor.value = np.asarray(tensor.value) + (value - known)
                self._known[name] = np.array(value)

    # ---- the trainer's own values ----

    @staticmethod
    def _value(scope: Scope, name: str) -> Any:
        found = scope.find_var(name)
        if found is None or found.get_tensor().value is None:
            raise errors.UninitializedError(
                f"{name} has no value in the scope: run the startup program first (exe.run(fleet.startup_program))"
            )
        return found.get_tensor().value

    def _rows(self, scope: Scope, name: str, ids: Array) -> Array:
        value = self._value(scope, name)
        if not isinstance(value, jax.Array):
            return np.asarray(value)[ids]
        with jax.enable_x64(True):
            return np.asarray(_rows_of(value, _padded(ids, value.shape[0])))[: len(ids)]

    @staticmethod
    def _added(value: Any, ids: Array, differences: Array) -> Any:
        if not isinstance(value, jax.Array):
            value = np.array(value)
            value[ids] += differences
            return value
        room = np.zeros((ladder(len(ids)), *differences.shape[1:]), np.float32)
        room[: len(ids)] = differences
        with jax.enable_x64(True):
            return _add_rows(value, _padded(ids, value.shape[0]), room)


def _padded(ids: Array, beyond: int) -> Array:
    """Return the ids, padded to a bucket with an id that no row has."""
    room = np.full(ladder(len(ids)), beyond, np.int64)
    room[: len(ids)] = ids
    return room
