"""DenseBlock: a slice of a dense parameter.

Readers get the array itself, since an update creates a new one.
"""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jfluid import errors
from jfluid.ps_server import row_initializers, specs
from jfluid.ps_server.update_rule import UpdateRule, rule_of

Array = np.ndarray[Any, Any]


class ServedBlock(Protocol):
    """The interface of dense blocks to trainers.

    `DenseBlock` implements it; a server program may have its own kind.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def version(self) -> int: ...
    def read(self) -> tuple[Array, int]: ...
    def push(self, gradient: Array, learning_rate: float | None = None) -> int: ...
    def add(self, difference: Array) -> int: ...
    def assign(self, value: Array) -> int: ...


class SavedBlock(ServedBlock, Protocol):
    """A block that snapshots store."""

    def state(self) -> dict[str, Any]: ...
    def check(self, state: dict[str, Any]) -> None: ...
    def restore(self, state: dict[str, Any]) -> None: ...


def updated(rule: UpdateRule, numbers: Array, gradients: Sequence[Array], rate: np.float32, widths: Array) -> Array:
    """Return the numbers of blocks after one update: float32 [n], by block the values, then the optimizer's slots.

    Args:
        widths: of each block the size of its gradient, int64 [blocks].
    """
    # it is None for the optimizer program, which only tables have
    assert rule.definition is not None
    # messages are read where they lie, unless that is where no float32 may
    read = [np.ascontiguousarray(g) if g.flags.aligned else g.copy() for g in gradients]
    places = np.array([g.__array_interface__["data"][0] for g in read], np.int64)
    new = np.empty_like(numbers)
    groups = 1 + len(rule.slots)
    rule.definition.renew(numbers, new, groups, widths, places, rate, rule.hyper)
    return new


class DenseBlock:
    """A float32 array of `spec.shape` with its optimizer. Safe for threads.

    Attributes:
        version: counts the changes of the value, from 0.
        step: counts the updates by the optimizer, from 0.
        learning_rate: of pushes without one of their own.
    """

    def __init__(self, spec: specs.BlockSpec):
        self.spec, self.name, self.shape = spec, spec.name, spec.shape
        self.rule = rule_of(spec.optimizer)
        self.learning_rate: float = spec.optimizer.learning_rate
        self.version = self.step = 0
        self._lock = threading.Lock()
        self._widths = np.array([spec.size], np.int64)
        # The values, then the slots of the optimizer: one row of the kernels.
        self._numbers = np.empty(spec.size * (1 + len(self.rule.slots)), np.float32)
        row_initializers.fill(self._numbers[: spec.size], spec.seed, 0, *row_initializers.encoded(spec.initializer))
        self._numbers[spec.size :] = np.repeat(self.rule.slots, spec.size)

    @staticmethod
    def bytes_of(spec: specs.BlockSpec) -> int:
        """Return the bytes of the value and the slots of a block."""
        return 4 * spec.size * (1 + len(rule_of(spec.optimizer).slots))

    def read(self) -> tuple[Array, int]:
        """Return (value, version). The array is never changed afterwards, and must not be changed."""
        with self._lock:
            value, version = self._numbers[: self.spec.size].reshape(self.shape), self.version
        value.flags.writeable = False
        return value, version

    def push(self, gradient: Array, learning_rate: float | None = None) -> int:
        """Apply a gradient (float32, of the block's shape); returns the new version."""
        self._check("gradient", gradient)
        with self._lock:
            self.step += 1
            base = self.learning_rate if learning_rate is None else learning_rate
            rate = self.rule.rate(base, self.step, sparse=False)
            return self._take(updated(self.rule, self._numbers, [gradient], rate, self._widths))

    def add(self, difference: Array) -> int:
        """Add to the value, without the optimizer; returns the new version."""
        self._check("difference", difference)
        with self._lock:
            numbers = self._numbers.copy()
            numbers[: self.spec.size] += difference.ravel()
            return self._take(numbers)

    def assign(self, value: Array) -> int:
        """Set the value; the optimizer's slots stay. Returns the new version."""
        self._check("value", value)
        with self._lock:
            numbers = self._numbers.copy()
            numbers[: self.spec.size] = value.ravel()
            return self._take(numbers)

    def state(self) -> dict[str, Any]:
        """Return everything that a snapshot needs: numbers, version, step, learning_rate."""
        with self._lock:
            return {
                "numbers": self._numbers,
                "version": self.version,
                "step": self.step,
                "learning_rate": self.learning_rate,
            }

    def check(self, state: dict[str, Any]) -> None:
        """Raise ServerError for the `state` of a block of a different kind or size."""
        if missing := {"version", "step", "learning_rate"} - state.keys():
            raise errors.ServerError(
                f"block {self.name}: the state is of a different kind of block: it has no {', '.join(sorted(missing))}"
            )
        if state["numbers"].shape != self._numbers.shape or state["numbers"].dtype != np.float32:
            raise errors.ServerError(
                f"block {self.name}: expected {self._numbers.size} numbers float32, found "
                f"{state['numbers'].dtype} {list(state['numbers'].shape)}"
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`. Raises ServerError when the state belongs to a different block."""
        self.check(state)
        with self._lock:
            self._numbers = state["numbers"]
            self.version, self.step, self.learning_rate = (state["version"], state["step"], state["learning_rate"])

    def _take(self, numbers: Array) -> int:
        self._numbers = numbers
        self.version += 1
        return self.version

    def _check(self, what: str, array: Array) -> None:
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != self.shape:
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise errors.ServerError(f"block {self.name}: {what}: expected float32 {list(self.shape)}, found {found}")
