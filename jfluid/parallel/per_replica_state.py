"""State of the Scope with a value for each replica of a device, such as batch norm's running statistics.

The Scope holds the first replica's value, which users read and save.
"""

import functools
import weakref
from typing import Any

import jax


class PerReplicaState:
    """Values of all replicas, by the first replica's value, for as long as that value lives."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, first: jax.Array, stacked: jax.Array) -> None:
        """Keep the values of all replicas, [replicas, ...]."""
        number = id(first)
        self._found[number] = weakref.ref(first, functools.partial(self._drop, number)), stacked

    def get(self, first: Any) -> Any:
        """Return the values of all replicas, or None if all replicas have the same value."""
        reference, stacked = self._found.get(id(first), (None, None))
        return stacked if reference is not None and reference() is first else None

    def _drop(self, number: int, reference: "weakref.ref[Any]") -> None:
        if number in self._found and self._found[number][0] is reference:
            del self._found[number]


PER_REPLICA = PerReplicaState()  # of this process: several programs train and test with the same Scope
