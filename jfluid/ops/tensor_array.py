"""Tensor arrays, which loops read and write, and rank tables, which order sequences for loops.

An array is a list while its indices are known (outside loops, or in a loop that is unrolled), and one
stacked buffer inside a compiled loop, where indices are traced.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Level, Ragged

# Whether the iteration of the loop being traced counts: a compiled loop runs on, without effect, up
# to its bound.
_MOST_UNWRITTEN = 1024  # elements between an array's last element and the next one that is written

_active: contextvars.ContextVar[Any] = contextvars.ContextVar("active", default=None)


@contextlib.contextmanager
def writing_where(active: Any) -> Iterator[None]:
    """Write arrays in this context only if `active`, a traced boolean, is true."""
    token = _active.set(active)
    try:
        yield
    finally:
        _active.reset(token)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["items", "buffer", "length"], meta_fields=["fixed"])
@dataclass(frozen=True)
class TensorArray:
    """Value of a LoDTensorArray.

    Attributes:
        items: the elements, where they are a list (None: not written yet).
        buffer: the elements stacked along a first dimension, where they are not; else None.
        length: int64 scalar, the number of elements of a buffer; else None.
        fixed: True if a compiled loop or condition carries the buffer, so that it cannot grow; it
            has room for all that is written there.
    """

    items: tuple[Any, ...] = ()
    buffer: Any = None
    length: Any = None
    fixed: bool = False

    @property
    def capacity(self) -> int:
        """The number of elements of a list, or of places in a buffer."""
        return len(self.items) if self.buffer is None else jax.tree.leaves(self.buffer)[0].shape[0]

    def size(self) -> Any:
        """Return how many elements it has: an int for a list, else an int64 scalar."""
        return len(self.items) if self.buffer is None else self.length

    def read(self, index: Any) -> Any:
        """Return the element at `index`.

        Raises OpError when a known index is outside, or the element was never written.
        """
        if self.buffer is None and static_values.is_static(index):
            at = int(np.asarray(index).reshape(()))
            if not 0 <= at < len(self.items) or self.items[at] is None:
                raise errors.OpError(f"the array holds nothing at {at}; it has {len(self.items)} elements")
            return self.items[at]
        stacked = self.stacked(self.capacity)
        traced = jnp.clip(jnp.asarray(index).reshape(()).astype(jnp.int32), 0, stacked.capacity - 1)
        return jax.tree.map(functools.partial(_element, place=traced), stacked.buffer)

    def write(self, index: Any, value: Any) -> "TensorArray":
        """Return the array with `value` at `index`."""
        if self.buffer is None and static_values.is_static(index):
            at = int(np.asarray(index).reshape(()))
            if not 0 <= at <= len(self.items) + _MOST_UNWRITTEN:
                raise errors.OpError(
                    f"the array has {len(self.items)} elements: expected an index from 0 to "
                    f"{len(self.items) + _MOST_UNWRITTEN} to write at, found {at}"
                )
            items = self.items + (None,) * (at + 1 - len(self.items))
            return TensorArray(items[:at] + (value,) + items[at + 1 :])
        # first trace of a loop's body, which finds the shape of an element
        if self.buffer is None and not self.items:
            return TensorArray(buffer=jax.tree.map(lambda v: jnp.asarray(v)[None], value), length=jnp.int64(1))
        stacked = self.stacked(self.capacity + (not self.fixed))
        place = jnp.clip(jnp.asarray(index).reshape(()).astype(jnp.int32), 0, stacked.capacity - 1)
        active = _active.get()

        if isinstance(value, Ragged) and not isinstance(stacked.buffer, Ragged):
            # the count of rows changes from step to step: readers take it from the rank table
            value = value.values
        elif isinstance(stacked.buffer, Ragged) and not isinstance(value, Ragged):
            value = stacked.read(index).like(value)

        def put(buffer: Any, new: Any) -> Any:
            if active is not None:
                new = jnp.where(active, new, _element(buffer, place))
            if buffer.shape[1:] != jnp.shape(new):
                raise errors.ShapeError(
                    f"write_to_array in a loop: expected an element of shape {list(buffer.shape[1:])}, "
                    f"found {list(jnp.shape(new))}"
                )
            new = jnp.asarray(new, buffer.dtype)
            return jax.lax.dynamic_update_index_in_dim(buffer, new, place, 0, allow_negative_indices=False)

        length = jnp.maximum(stacked.length, place.astype(jnp.int64) + 1)
        return TensorArray(
            buffer=jax.tree.map(put, stacked.buffer, value),
            length=length if active is None else jnp.where(active, length, stacked.length),
            fixed=self.fixed,
        )

    def stacked(self, capacity: int) -> "TensorArray":
        """Return the array as a buffer of at least `capacity` places.

        Raises OpError when elements differ in shape.
        """
        if self.buffer is not None:
            missing = capacity - self.capacity
            if missing <= 0:
                return self
            widen = functools.partial(_widen, missing)
            return replace(self, buffer=jax.tree.map(widen, self.buffer))
        filled = [v for v in self.items if v is not None]
        if not filled:
            raise errors.OpError("the array is empty: its elements' shape is not known")
        items = [filled[0] if v is None else v for v in self.items]
        shapes = {tuple(jnp.shape(x) for x in jax.tree.leaves(v)) for v in items}
        if len(shapes) > 1:
            raise errors.OpError(f"a loop reads an array with elements of different shapes: {sorted(shapes)}")
        items += [items[-1]] * (capacity - len(items))
        buffer = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *items)
        return TensorArray(buffer=buffer, length=jnp.asarray(len(self.items), jnp.int64))


def _element(buffer: Any, place: Any) -> Any:
    """Return the element of a buffer at a place, which is not negative."""
    return jax.lax.dynamic_index_in_dim(buffer, place, 0, keepdims=False, allow_negative_indices=False)


def _widen(missing: int, buffer: Any) -> Any:
    """Extend a buffer with copies of the last element, so that padding is finite."""
    return jnp.concatenate([buffer, jnp.broadcast_to(buffer[-1:], (missing, *buffer.shape[1:]))])


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["order", "level", "above"], meta_fields=["rows", "capacity"]
)
@dataclass(frozen=True)
class RankTable:
    """Value of a LoDRankTable: sequences of a level from longest to shortest, in stable order.

    Attributes:
        order: int32 [number], the sequence of each rank.
        level: the level that the table was made of.
        above: the levels above it.
        rows: the number of rows (or sub-sequences), padding included, that the level groups.
        capacity: the number of rows of the tensor that it was made of, padding included.
    """

    order: Any
    level: Level
    rows: int
    capacity: int
    above: tuple[Level, ...] = ()

    @property
    def lengths(self) -> Any:
        """int32 [number]: the length of each rank's sequence."""
        return self.level.lengths[self.order]

    @property
    def ranks(self) -> Any:
        """int32 [number]: the rank of each sequence."""
        return jnp.argsort(self.order).astype(jnp.int32)

    def active(self, step: Any) -> Any:
        """Return how many sequences are longer than `step`: int32 scalar."""
        return jnp.sum(self.lengths > jnp.asarray(step).reshape(()), dtype=jnp.int32)
