"""Ragged rows: the form of a LoD tensor inside a compiled step.

The rows of all sequences lie in one array, padded at the end to a size that many batches share
(`capacity`), so that batches of different lengths run the same compiled program. A padding row is a copy of
a real row: values that are finite for real data are finite for padding. Padding rows must not reach a sum,
a fetched value or a gradient: gradients of padding rows are zero.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ops import static_values


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["given", "count"], meta_fields=["longest", "uniform", "tight"]
)
@dataclass(frozen=True)
class Level:
    """Level of a LoD: groups the sequences of the next level, or rows.

    Attributes:
        given: int32 [number + 1], the offsets; padding sequences are empty and come last. None when
            uniform.
        longest: a bound, known while tracing, on the length of a sequence.
        uniform: the number of sequences when each has exactly `longest` entries, else 0.
        count: int32 scalar, the number of sequences that are no padding, where it depends on data
            and no level above tells it; else None.
        tight: True if `longest` is known to be the length of the longest sequence, and not only a bound.
    """

    given: Any
    longest: int
    uniform: int = 0
    count: Any = None
    tight: bool = False

    @property
    def number(self) -> int:
        """Return the number of sequences, including padding."""
        return self.uniform or self.given.shape[0] - 1

    @property
    def offsets(self) -> Any:
        """Offsets, int32 [number + 1]: the first row of each sequence, and the end of the last sequence."""
        return jnp.arange(self.uniform + 1, dtype=jnp.int32) * self.longest if self.uniform else self.given

    @property
    def starts(self) -> Any:
        """First row of each sequence, int32 [number]."""
        return self.offsets[:-1]

    @property
    def lengths(self) -> Any:
        """int32 [number]: how many entries each sequence has."""
        return jnp.full(self.uniform, self.longest, jnp.int32) if self.uniform else jnp.diff(self.given)

    def steps(self) -> Any:
        """int32 scalar: the length of the longest sequence of this batch (at most `longest`)."""
        return jnp.max(self.lengths, initial=0)

    def tightened(self, longest: int) -> "Level":
        """Return the level with `longest` set to the exact length of the longest sequence."""
        return self if self.uniform else replace(self, longest=longest, tight=True)

    def mask(self) -> Any:
        """Return the mask of the padded form, bool [number, longest]: True for entries of a sequence."""
        return jnp.arange(self.longest, dtype=jnp.int32) < self.lengths[:, None]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "levels", "total", "columns"], meta_fields=["exact"]
)
@dataclass(frozen=True)
class Ragged:
    """Rows in sequences: the value of a variable with a LoD.

    Attributes:
        values: [capacity, ...]: the rows of all sequences, then padding rows.
        levels: the coarsest first; the last groups rows. Empty where only the number of rows
            varies.
        total: int32 scalar, the number of real rows, where `levels` do not tell it (else None).
        exact: True if it is known while tracing that no row is padding.
        columns: int32 scalar, how many columns users see, where that depends on data (else None).
    """

    values: Any
    levels: tuple[Level, ...] = ()
    total: Any = None
    exact: bool = False
    columns: Any = None

    @property
    def capacity(self) -> int:
        return self.values.shape[0]

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def last(self) -> Level:
        """The level that groups rows."""
        return self.levels[-1]

    def count(self) -> Any:
        """Return the number of real rows: an int if known while tracing, else an int32 scalar."""
        if self.exact:
            return self.capacity
        return self.total if self.total is not None else self.last.offsets[-1]

    def mask(self) -> Any:
        """Return the mask of real rows, bool [capacity]."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.count()

    def zeroed(self) -> Any:
        """Return the values with zeros in padding rows."""
        return self.values if self.exact else jnp.where(column(self.mask(), self.values.ndim), self.values, 0)

    def like(self, values: Any) -> "Ragged":
        """Return `values` with the levels of this tensor."""
        return replace(self, values=values, columns=None)

    def refilled(self) -> "Ragged":
        """Return the rows with copies of the first row in padding rows."""
        return (
            self if self.exact else self.like(jnp.where(column(self.mask(), self.ndim), self.values, self.values[:1]))
        )

    def segments(self) -> Any:
        """Return int32 [capacity]: the sequence that each row belongs to; `last.number` for padding rows."""
        return segments(self.last, self.capacity)

    def pad(self, time_major: bool = False) -> Any:
        """Return [number, longest, ...] (or [longest, number, ...]): a row for each sequence, padded with zeros."""
        return pad(self.values, self.last, self.capacity, time_major)

    def unpad(self, dense: Any, time_major: bool = False) -> "Ragged":
        """Gather the rows from the padded form `dense`: the inverse of `pad`."""
        return self.like(unpad(dense, self.last, self.capacity, time_major))


def is_counted(value: Any) -> bool:
    """Return True for a value with a padded number of sequences, or of rows without sequences."""
    if not isinstance(value, Ragged):
        return False
    return value.total is not None or (bool(value.levels) and value.levels[0].count is not None)


# Values of operators that work by sequences: an array or `Ragged`, sparse rows, an
# array of tensors. The first lines of an operator check the kind (`need`).
Value = Any


def column(vector: Any, ndim: int) -> Any:
    """Return a vector [n] as [n, 1, ..., 1] of `ndim` dimensions."""
    return vector.reshape(vector.shape + (1,) * (ndim - 1))


def segments(level: Level, capacity: int) -> Any:
    """Return int32 [capacity]: the sequence that each row belongs to; `level.number` for rows after the last."""
    rows = jnp.arange(capacity, dtype=jnp.int32)
    if level.uniform and level.longest:
        return rows // level.longest
    return jnp.searchsorted(level.offsets[1:], rows, side="right", method="scan_unrolled").astype(jnp.int32)


def _dense_index(level: Level, capacity: int, time_major: bool) -> tuple[Any, Any]:
    """Return, for each place of the padded form, the row that it has, and whether it has one."""
    index, mask = level.starts[:, None] + jnp.arange(level.longest, dtype=jnp.int32), level.mask()
    index = jnp.clip(index, 0, max(capacity - 1, 0))
    return (index.T, mask.T) if time_major else (index, mask)


def _row_index(level: Level, capacity: int, time_major: bool) -> tuple[Any, Any]:
    """Return each row's index in the flattened padded form, and the mask of real rows.

    A padding row has the index of row 0.
    """
    rows = jnp.arange(capacity, dtype=jnp.int32)
    real = rows < level.offsets[-1]
    sequence = segments(level, capacity)
    sequence = jnp.minimum(jnp.where(real, sequence, sequence[0]), level.number - 1)
    position = jnp.where(real, rows - level.starts[sequence], 0)
    return (position * level.number + sequence if time_major else sequence * level.longest + position), real


def _is_reshape(level: Level, capacity: int) -> bool:
    return bool(level.uniform) and level.uniform * level.longest == capacity


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def pad(values: Any, level: Level, capacity: int, time_major: bool = False) -> Any:
    """Return sequences [number, longest, ...], padded with zeros, from rows [capacity, ...] grouped by `level`."""
    if _is_reshape(level, capacity):
        dense = values.reshape(level.uniform, level.longest, *values.shape[1:])
        return dense.swapaxes(0, 1) if time_major else dense
    index, mask = _dense_index(level, capacity, time_major)
    return jnp.where(
        mask.reshape(mask.shape + (1,) * (values.ndim - 1)), jnp.take(values, index, axis=0, mode="clip"), 0
    )


def _pad_forward(values: Any, level: Level, capacity: int, time_major: bool) -> tuple[Any, Level]:
    return pad(values, level, capacity, time_major), level


def _pad_backward(capacity: int, time_major: bool, level: Level, grad: Any) -> tuple[Any, None]:
    grad = unpad(grad, level, capacity, time_major)
    if not _is_reshape(level, capacity):
        real = jnp.arange(capacity, dtype=jnp.int32) < level.offsets[-1]
        grad = jnp.where(column(real, grad.ndim), grad, 0)
    return grad, None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def unpad(dense: Any, level: Level, capacity: int, time_major: bool = False) -> Any:
    """Return rows [capacity, ...] from the padded form; padding rows are copies of the first row."""
    if _is_reshape(level, capacity):
        return (dense.swapaxes(0, 1) if time_major else dense).reshape(capacity, *dense.shape[2:])
    index, _ = _row_index(level, capacity, time_major)
    return jnp.take(dense.reshape(-1, *dense.shape[2:]), index, axis=0, mode="clip")


def _unpad_forward(dense: Any, level: Level, capacity: int, time_major: bool) -> tuple[Any, Level]:
    return unpad(dense, level, capacity, time_major), level


def _unpad_backward(capacity: int, time_major: bool, level: Level, grad: Any) -> tuple[Any, None]:
    return pad(grad, level, capacity, time_major), None


pad.defvjp(_pad_forward, _pad_backward)
unpad.defvjp(_unpad_forward, _unpad_backward)


def totals(x: Ragged) -> Any:
    """Return [number, ...]: the sum of each sequence's rows."""
    level = x.last
    if _is_reshape(level, x.capacity) or level.number * level.longest <= 4 * x.capacity:
        return x.pad().sum(axis=1)
    return jax.ops.segment_sum(x.zeroed(), x.segments(), level.number + 1, indices_are_sorted=True)[:-1]


def rows_of(x: Any) -> Any:
    """Return the rows of a ragged or dense value."""
    return x.values if isinstance(x, Ragged) else x


def need(x: Any, op_type: str, slot: str, levels: int = 1) -> Ragged:
    """Return `x` as ragged rows of at least `levels` levels.

    Raises OpError for a value without LoD.

    While shapes are inferred a variable whose LoD is not declared counts as having one.
    """
    if isinstance(x, Ragged) and len(x.levels) >= levels:
        return x
    if static_values.placeholder() is not None:
        values = rows_of(x)
        return Ragged(values, (placeholder_level(values.shape[0]),) * levels)
    found = f"{len(x.levels)} levels" if isinstance(x, Ragged) else "none (a dense tensor)"
    raise errors.OpError(
        f"{op_type}: {slot} needs a LoD of {levels} level{'s' if levels > 1 else ''}, found {found}; feed it "
        "as a LoDTensor (fluid.create_lod_tensor) or set a LoD with layers.lod_reset"
    )


def placeholder_level(number: int) -> Level:
    """Return a level of unknown lengths, for shape inference."""
    return Level(jnp.zeros(number + 1, jnp.int32), number)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def spread(values: Any, level: Level, capacity: int) -> Any:
    """Repeat the value of each sequence for its rows: [capacity, ...] from [number, ...].

    Padding rows get the value of the last sequence.
    """
    return jnp.take(values, segments(level, capacity), axis=0, mode="clip")


def _spread_forward(values: Any, level: Level, capacity: int) -> tuple[Any, Level]:
    return spread(values, level, capacity), level


def _spread_backward(capacity: int, level: Level, grad: Any) -> tuple[Any, None]:
    return totals(Ragged(grad, (level,))), None


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def moved(values: Any, source: Any, back: Any, real: Any) -> Any:
    """Gather rows: values[source].

    The gradient gathers, too: row i gets the gradient of row `back[i]`, or zero where `real[i]` is False.
    """
    return jnp.take(values, source, axis=0, mode="clip")


def _moved_forward(values: Any, source: Any, back: Any, real: Any) -> tuple[Any, tuple[Any, ...]]:
    return moved(values, source, back, real), (back, real)


def _moved_backward(kept: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    back, real = kept
    return (jnp.where(column(real, grad.ndim), jnp.take(grad, back, axis=0, mode="clip"), 0), None, None, None)


moved.defvjp(_moved_forward, _moved_backward)


def positions(level: Level, capacity: int) -> tuple[Any, Any, Any]:
    """Return each row's sequence index, its position in the sequence, and the mask of rows in a sequence.

    Rows past the end have the index of the last sequence.
    """
    sequence = jnp.minimum(segments(level, capacity), max(level.number - 1, 0))
    rows = jnp.arange(capacity, dtype=jnp.int32)
    return sequence, rows - level.starts[sequence], rows < level.offsets[-1]


def fitted(offsets: Any, rows: Any) -> Any:
    """Return offsets [..., number + 1], clipped to start at 0, never fall and end at or below `rows`.

    Valid offsets are returned unchanged, as int32.
    """
    wide = jnp.clip(offsets, 0, rows).astype(jnp.int32)
    return jax.lax.cummax(wide.at[..., 0].set(0), axis=wide.ndim - 1)


def within(numbers: Any, most: Any) -> Any:
    """Clip integers of any dtype to [0, most], as int32 [number]."""
    return jnp.clip(rows_of(numbers).reshape(-1), 0, most).astype(jnp.int32)


def offsets_of(lengths: Any) -> Any:
    """Return offsets, int32 [number + 1], from lengths [number]."""
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])


def grouped(x: Ragged, values: Any) -> Any:
    """Return values, one row for each sequence of the last level of `x`, as rows of the levels above it."""
    if len(x.levels) > 1:
        return Ragged(values, x.levels[:-1], exact=x.exact).refilled()
    return values if x.last.count is None else Ragged(values, (), x.last.count).refilled()


def resized(values: Any, capacity: int) -> Any:
    """Truncate to `capacity` rows, or pad with copies of the first row."""
    missing = capacity - values.shape[0]
    if missing <= 0:
        return values[:capacity]
    row = values[:1] if values.shape[0] else jnp.zeros((1, *values.shape[1:]), values.dtype)
    return jnp.concatenate([values, jnp.broadcast_to(row, (missing, *values.shape[1:]))])


def appended(xs: list[Any]) -> Ragged:
    """Return the rows of all values, ragged or dense, one value after the other.

    Where all have a LoD of one level the sequences follow each other, too; else the rows are in no sequences.
    """
    rows = [x if isinstance(x, Ragged) else Ragged(x, exact=True) for x in xs]
    values = jnp.concatenate([x.values for x in rows])
    ends = offsets_of(jnp.stack([jnp.asarray(x.count(), jnp.int32) for x in rows]))
    exact = all(x.exact for x in rows)
    if not exact:
        bases = np.cumsum([0] + [x.capacity for x in rows[:-1]], dtype=np.int32)
        places = jnp.arange(values.shape[0], dtype=jnp.int32)
        own = jnp.searchsorted(ends[1:], places, side="right", method="scan_unrolled")
        own = jnp.minimum(own, len(rows) - 1)
        source = jnp.asarray(bases)[own] + places - ends[own]
        source = jnp.where(places < ends[-1], source, source[0])
        back = [ends[i] + jnp.arange(x.capacity, dtype=jnp.int32) for i, x in enumerate(rows)]
        real = jnp.concatenate([x.mask() for x in rows])
        values = moved(values, source, jnp.concatenate(back), real)
    if any(len(x.levels) != 1 for x in rows):
        return Ragged(values, (), None if exact else ends[-1], exact)
    longest = max(x.last.longest for x in rows)
    if any(x.last.count is not None for x in rows):
        lengths = appended([Ragged(x.last.lengths, (), x.last.count, x.last.count is None) for x in rows])
        return Ragged(values, (Level(offsets_of(lengths.zeroed()), longest, count=lengths.total),), exact=exact)
    offsets = [ends[:1]] + [x.last.offsets[1:] + ends[i] for i, x in enumerate(rows)]
    return Ragged(values, (Level(jnp.concatenate(offsets), longest),), exact=exact)
