"""Segments that are compiled for each shape of the feeds, with a warning at the third shape, and the reasons."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.compile.dynamic_shapes.feed_symbols import Shapes
from jfluid.compile.dynamic_shapes.interpreter import parts_of
from jfluid.compile.lowering.plan import Item
from jfluid.ops.ragged import Ragged

EXACT_FIRST = 2  # shapes that are compiled without padding at first
# `(donated, kept, key) -> (results, flags)`
Run = Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any]


class OperatorWithoutRule(Exception):
    """Signal that one operator keeps a segment from being padded. Nothing has run.

    Attributes:
        position: the operator's position in the block of the segment.
        reason: why the operator keeps exact shapes.
    """

    def __init__(self, position: int, reason: str):
        super().__init__(reason)
        self.position, self.reason = position, reason


def reason_of(error: NoRule, items: Sequence[Item]) -> tuple[str, int | None]:
    """Return why a segment cannot be padded, and the position of the operator without a rule.

    The text has the operator's type, and the user's line that made it. The position is None if the reason is not one
    operator of the segment.

    Args:
        items: the segment's operators.
    """
    ops = {at: op for at, op, _ in items}
    found = list(parts_of(error.scope))
    if not found:
        return str(error), None
    (_, position), (kind, inner) = found[0], found[-1]
    line = getattr(ops.get(inner), "callsite", "")
    text = f"{error} (operator {kind}{f', made at {line}' if line else ''})"
    return text, position if position in ops else None


class ExactShapes:
    """Segment that is compiled for each shape of the feeds; it warns at the third shape.

    Args:
        exact: runs the segment.
        fed: numbers of the arguments that are feeds, without the donated arguments.
        because: the reason for exact shapes.
    """

    def __init__(self, exact: Run, fed: Sequence[int], because: str):
        self._exact, self._fed, self._because = exact, fed, because
        self._seen: set[Shapes] | None = set()  # None once there is nothing more to say

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        if self._seen is not None:
            self._note([kept[i] for i in self._fed])
        return self._exact(donated, kept, key)

    def _note(self, feeds: Sequence[Any]) -> None:
        # The rows of replicas with uneven shares have no levels.
        arrays = [v.values if isinstance(v, Ragged) and not v.levels else v for v in feeds]
        if self._seen is None or not all(isinstance(v, np.ndarray | jax.Array) for v in arrays):
            self._seen = None  # sequences have buckets of their own
            return
        self._seen.add(tuple([v.shape for v in arrays]))
        if len(self._seen) > EXACT_FIRST:
            self._seen = None
            warn(self._because)


def warn_of_many(count: int) -> None:
    """Warn that a stream has as many executables as it may have, and more shapes come."""
    warnings.warn(
        f"this program has {count} executables for the shapes of its feeds. NumPy runs further shapes where it can, "
        "slowly; elsewhere each is compiled. Pad batches to few shapes, or name the sizes in fluid.shape_buckets",
        RuntimeWarning,
        stacklevel=2,
    )


def warn_of_part(because: str) -> None:
    """Warn that one operator is compiled for each shape, and the rest of its program is padded."""
    warnings.warn(
        f"one operator of this program is compiled anew for each new shape of its feeds: {because}. The operators "
        "before and after it are padded. Pad batches to few shapes",
        RuntimeWarning,
        stacklevel=2,
    )


def warn(because: str) -> None:
    """Warn that a program is compiled for each shape."""
    warnings.warn(
        f"this program is compiled anew for each new shape of its feeds: {because}. Pad batches to few shapes",
        RuntimeWarning,
        stacklevel=2,
    )
