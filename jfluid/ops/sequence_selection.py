"""Reordering, selection, splitting and joining of sequences with any number of levels.

Rank tables, DynamicRNN and IfElse use these functions.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.ragged import Level, Ragged, column, fitted, moved, offsets_of, positions, rows_of
from jfluid.ops.tensor_array import RankTable, TensorArray


def permute(values: Array, order: Array, inverse: Array, axis: int) -> Array:
    """Return values[order] along an axis, for a permutation; its gradient gathers by the inverse."""
    return _permute(axis, values, order, inverse)


def _permute_forward(axis: int, values: Array, order: int, inverse: Array) -> tuple[Array, tuple[Any, ...]]:
    return _permute(axis, values, order, inverse), (order, inverse)


def _permute_backward(axis: int, kept: tuple[Any, ...], grad: Array) -> tuple[Array, None, None]:
    order, inverse = kept
    return _permute(axis, grad, inverse, order), None, None


_permute = jax.custom_vjp(
    lambda axis, values, order, inverse: jnp.take(values, order, axis=axis, mode="clip"), nondiff_argnums=(0,)
)
_permute.defvjp(_permute_forward, _permute_backward)


def reorder(x: Ragged, order: Array, inverse: Array) -> Ragged:
    """Permute the sequences of the first level of x, together with their nested sequences."""
    levels = []
    for at, old in enumerate(x.levels):
        below = x.levels[at + 1].number if at + 1 < len(x.levels) else x.capacity
        new = Level(offsets_of(old.lengths[order]), old.longest)
        order, inverse = _entries(new, old, order, below), _entries(old, new, inverse, below)
        levels.append(new)
    return Ragged(permute(x.values, order, inverse, 0), tuple(levels), exact=x.exact)


def _entries(target: Level, origin: Level, order: Array, number: int) -> Array:
    """Return the source index of each of `number` entries; padding entries keep their index.

    Sequence i of `target` is sequence order[i] of `origin`.
    """
    sequence, position, real = positions(target, number)
    return jnp.where(real, origin.starts[order[sequence]] + position, jnp.arange(number, dtype=jnp.int32))


def first_sequences(levels: tuple[Level, ...], count: Array) -> tuple[Level, ...]:
    """Truncate the levels to the first `count` sequences of the first level; all later sequences become empty."""
    found: list[Level] = []
    kept = count
    for level in levels:
        end = level.offsets[jnp.clip(kept, 0, level.number)]
        told = None if found else count
        found.append(Level(jnp.minimum(level.offsets, end), level.longest, count=told))
        kept = end
    return tuple(found)


def selected(x: Array | Ragged, chosen: Array) -> Ragged:
    """Return the rows, or the sequences of the first level, that are chosen, in their order."""
    order = jnp.argsort(~chosen, stable=True).astype(jnp.int32)
    inverse, count = jnp.argsort(order).astype(jnp.int32), jnp.sum(chosen, dtype=jnp.int32)
    if isinstance(x, Ragged) and x.levels:
        found = reorder(x, order, inverse)
        return Ragged(found.values, first_sequences(found.levels, count))
    return Ragged(permute(rows_of(x), order, inverse, 0), (), count)


def merged(true: Ragged, false: Ragged, chosen: Array, real: Array, counted: bool) -> Ragged:
    """Join sequences that `selected` took apart, in their former order.

    Two branches with room for as many rows are taken for what `selected` gave, so that the result
    needs no more room; should it, its values are no numbers.

    Args:
        true: sequences of the rows with a true condition.
        false: sequences of the rows with a false condition.
        chosen: True if a sequence comes from `true`, False if it comes from `false`.
        real: which of them are no padding.
        counted: True if the number of those depends on data, and no level above tells it.
    """
    if len(true.levels) != len(false.levels):
        raise errors.ShapeError(
            "merge_lod_tensor: expected branches with the same number of levels, "
            f"found {len(true.levels)} and {len(false.levels)}"
        )
    where = [jnp.clip(jnp.cumsum(m) - 1, 0) for m in (chosen & real, ~chosen & real)]
    from_true, levels = chosen, []
    sizes = [(v.levels[1:], v.capacity) for v in (true, false)]
    too_many: Any = False
    for at, (a, b) in enumerate(zip(true.levels, false.levels)):
        ours, theirs = (v.lengths[jnp.minimum(i, v.number - 1)] for v, i in zip((a, b), where))
        below = [lower[at].number if at < len(lower) else rows for lower, rows in sizes]
        room = below[0] if below[0] == below[1] else sum(below)
        ends = offsets_of(jnp.where(real, jnp.where(from_true, ours, theirs), 0))
        too_many |= ends[-1] > room
        new = Level(
            fitted(ends, room),
            max(a.longest, b.longest),
            count=jnp.sum(real, dtype=jnp.int32) if at == 0 and counted else None,
        )
        sequence, position, inside = positions(new, room)
        where = [
            jnp.where(inside, v.starts[jnp.minimum(i[sequence], v.number - 1)] + position, 0)
            for v, i in zip((a, b), where)
        ]
        from_true, real = from_true[sequence], inside
        levels.append(new)
    ours, theirs = (jnp.take(v.values, i, axis=0, mode="clip") for v, i in zip((true, false), where))
    found = jnp.where(column(from_true, true.ndim), ours, theirs)
    wrong = jnp.nan if jnp.issubdtype(found.dtype, jnp.inexact) else jnp.iinfo(found.dtype).min
    found = jnp.where(too_many, jnp.asarray(wrong, found.dtype), found)
    return Ragged(found, tuple(levels)).refilled()


def _step_rows(rows: int, sequences: int, longest: int) -> int:
    """Return the capacity for the rows of one step: a sub-sequence of each sequence."""
    return min(rows, sequences * longest)


def steps_of(x: Ragged, table: RankTable) -> TensorArray:
    """Split nested sequences into steps: element t has sub-sequence t of each sequence longer than t.

    The order is the order of the rank table.
    """
    top, inner = x.levels
    times = jnp.arange(top.longest, dtype=jnp.int32)[:, None]
    active = times < table.lengths  # [steps, ranks]
    entry = jnp.clip(top.starts[table.order] + times, 0, inner.number - 1)
    room = _step_rows(x.capacity, top.number, inner.longest)
    # a table of other sequences than these may ask for more than there is
    offsets = fitted(jax.vmap(offsets_of)(jnp.where(active, inner.lengths[entry], 0)), room)
    rank, position, real = jax.vmap(lambda o: positions(Level(o, inner.longest), room))(offsets)
    source = inner.starts[jnp.take_along_axis(entry, rank, 1)] + position
    # the way back, for gradients: the step and the place of each row
    of_entry, place, is_row = positions(inner, x.capacity)
    sequence, time, _ = positions(top, inner.number)
    rank_of, time_of = table.ranks[sequence[of_entry]], time[of_entry]
    back = time_of * room + offsets[time_of, rank_of] + place
    dense = moved(x.values, jnp.where(real, source, 0).reshape(-1), back, is_row)
    dense = dense.reshape(top.longest, room, *x.values.shape[1:])
    # values of steps without a row: finite if the data is
    spare = jax.lax.stop_gradient(x.values[0])
    dense = jnp.where(real.reshape(real.shape + (1,) * (x.ndim - 1)), dense, spare)
    level = Level(offsets, inner.longest, count=jnp.sum(active, axis=1, dtype=jnp.int32))
    return TensorArray(buffer=Ragged(dense, (level,)), length=top.steps().astype(jnp.int64))


def joined_steps(array: TensorArray, table: RankTable) -> Ragged:
    """Join the steps of `steps_of` to nested sequences in their original order."""
    top = table.level
    buffer = jax.tree.map(lambda leaf: leaf[: top.longest], array.stacked(top.longest).buffer)
    inner, room = buffer.levels[0], buffer.values.shape[1]
    steps = buffer.values.shape[0]
    if table.capacity and room == _step_rows(table.capacity, top.number, inner.longest):
        capacity = table.capacity
    else:
        capacity = steps * room
    lengths = jnp.diff(inner.given, axis=1)  # [steps, ranks]
    sequence, time, inside = positions(top, table.rows)
    rank, time = table.ranks[sequence], jnp.clip(time, 0, steps - 1)
    ends = offsets_of(jnp.where(inside, lengths[time, rank], 0))
    new = Level(fitted(ends, capacity), inner.longest)
    entry, position, is_row = positions(new, capacity)
    source = time[entry] * room + inner.given[time[entry], rank[entry]] + position
    # the way back, for gradients: the row at each place of a step
    ranks, places, real = jax.vmap(lambda o: positions(Level(o, inner.longest), room))(inner.given)
    times = jnp.arange(steps, dtype=jnp.int32)[:, None]
    origin = jnp.clip(top.starts[table.order[ranks]] + times, 0, table.rows - 1)
    back = new.starts[origin] + places
    flat = buffer.values.reshape(steps * room, *buffer.values.shape[2:])
    live = real & (times < table.lengths[ranks])
    values = moved(flat, jnp.where(is_row, source, 0), back.reshape(-1), live.reshape(-1))
    return Ragged(values, (*table.above, top, new)).refilled()
