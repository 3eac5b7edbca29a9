"""Values of a Scope that each replica of a device has for itself, as batch norm's running statistics.

The Scope holds the first replica's, which is what users read and save.
"""

import functools
import weakref
from typing import Any

import jax


class PerReplicaState:
    """The values of all replicas by the first one's, for as long as that lives."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, first: jax.Array, stacked: jax.Array) -> None:
        """Keep the values of all replicas, [replicas, ...]."""
        number = id(first)
        self._found[number] = weakref.ref(first, functools.partial(self._drop, number)), stacked

    def get(self, first: Any) -> Any:
        """Return the values of all replicas; None where nothing is kept: they are alike."""
        reference, stacked = self._found.get(id(first), (None, None))
        return stacked if reference is not None and reference() is first else None

    def _drop(self, number: int, reference: "weakref.ref[Any]") -> None:
        if number in self._found and self._found[number][0] is reference:
            del self._found[number]


PER_REPLICA = PerReplicaState()  # of this process: several programs train and test with the same Scope
