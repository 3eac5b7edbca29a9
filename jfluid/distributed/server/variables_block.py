"""Variables of a server's scope as blocks, which snapshots contain and checkpoints pull."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from jfluid import errors
from jfluid.ps_server.manifest import PiecePart
from jfluid.ps_server.snapshot_reassembly import SnapshotReassembly

Array = np.ndarray[Any, Any]


def packed(arrays: Sequence[Array]) -> Array:
    """Return the bytes of arrays, as float32."""
    data = b"".join(a.tobytes() for a in arrays)
    return np.frombuffer(data + b"\0" * (-len(data) % 4), np.float32)


def unpacked(numbers: Array, described: Sequence[Any]) -> list[Array]:
    """Return arrays from their bytes, by (name, dtype, shape)."""
    data, at, arrays = numbers.tobytes(), 0, []
    for _, dtype, shape in described:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
        at += size
    return arrays


class Values(Protocol):
    """Values of a server's variables, as a `ProgramStore` has."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while several variables are read or set together."""
        ...

    def value(self, name: str) -> Array:
        """Return the value of a variable now."""
        ...

    def tensor(self, name: str) -> Any:
        """Return the tensor of a variable."""
        ...

    def begins_as(self, name: str) -> PiecePart:
        """Return the piece of a divided variable that a variable begins as, when snapshots are resharded."""
        ...


class VariablesBlock:
    """Variables of the server's scope, as a block that holds their bytes."""

    def __init__(self, store: Values, name: str, names: Sequence[str]):
        self.name, self._store, self._names = name, store, list(names)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.read()[0].size,)

    @property
    def version(self) -> int:
        """Version that was never seen before, since operators change the variables."""
        return time.time_ns()

    def read(self) -> tuple[Array, int]:
        """Return (the bytes as float32, version)."""
        with self._store.lock:
            return packed([self._store.value(n) for n in self._names]), self.version

    def push(self, gradient: Array, learning_rate: float | None = None) -> int:
        raise errors.ServerError(f"{self.name}: the server's program computes it; it takes no changes")

    add = assign = push

    def state(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        with self._store.lock:
            arrays = [self._store.value(n) for n in self._names]
            return {"numbers": packed(arrays), "variables": self._described(arrays)}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ServerError if `state` holds different variables."""
        arrays = [self._store.value(n) for n in self._names]
        there, size = self._described(arrays), packed(arrays).size
        if there != state.get("variables"):
            raise errors.ServerError(f"block {self.name}: expected {there}, found {str(state.get('variables'))[:1000]}")
        if len(state["numbers"]) != size:
            raise errors.ServerError(f"block {self.name}: expected {size} numbers, found {len(state['numbers'])}")

    def reshard(self, reassembly: SnapshotReassembly) -> dict[str, Any]:
        """Return the state that other servers' pieces make.

        Raises DamagedError and ServerError, as `SnapshotReassembly.read` does.
        """
        there = [self._store.value(n) for n in self._names]
        arrays = [
            reassembly.read(self._store.begins_as(n), str(a.dtype)) for n, a in zip(self._names, there, strict=True)
        ]
        return {"numbers": packed(arrays), "variables": self._described(arrays)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`. Raises ServerError when it is that of other variables."""
        with self._store.lock:
            self.check(state)
            for name, array in zip(self._names, unpacked(state["numbers"], state["variables"]), strict=True):
                self._store.tensor(name).set(array)

    def _described(self, arrays: Sequence[Array]) -> list[Any]:
        return [[n, str(a.dtype), list(a.shape)] for n, a in zip(self._names, arrays, strict=True)]
