"""Operators on tensor arrays and rank tables, from which DynamicRNN and IfElse are built.

Fluid shortens the batch from step to step as sequences end. Here every step has a row for each
sequence, in the order of the rank table, and says how many of them count.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.ragged import Ragged, Value, column, need, rows_of, unpad
from jfluid.ops.registry import op
from jfluid.ops.sequence_selection import first_sequences, joined_steps, merged, permute, reorder, selected, steps_of
from jfluid.ops.tensor_array import RankTable, TensorArray


@op("write_to_array", ins=("X", "I"), outs=("Out",), nograd=("I",), rows="sequence", counts=True, carries=("Out",))
def write_to_array(x: Value, i: Value, array: Any) -> Value:
    """Return the array with x at index i."""
    return (array or TensorArray()).write(i, x)


@op("read_from_array", ins=("X", "I", "X_W?"), outs=("Out",), nograd=("I", "X_W"), rows="sequence", counts=True)
def read_from_array(x: Value, i: Value, _: Value | None) -> Value:
    """Return the element of the array at index i."""
    return x.read(i)


@op("lod_array_length", ins=("X",), outs=("Out",), grad=False, rows="sequence", counts=True)
def lod_array_length(x: Value) -> Value:
    """Return the number of elements: int64 [1]."""
    size = x.size()
    return np.full(1, size, np.int64) if isinstance(size, int) else size.reshape(1)


@op("tensor_array_to_tensor", ins=("X",), outs=("Out", "OutIndex"), rows="sequence")
def tensor_array_to_tensor(x: Value, *, axis: int = 0, use_stack: bool = False) -> tuple[Value, Value]:
    """Join the elements along an axis (with use_stack a new one); also return the size of each along it."""
    if x.buffer is not None:
        return _joined(x, axis, use_stack)
    items = [rows_of(v) for v in x.items]
    if not items:
        raise errors.OpError("tensor_array_to_tensor: the array is empty")
    sizes = jnp.asarray([1 if use_stack else v.shape[axis] for v in items], jnp.int32)
    return (jnp.stack if use_stack else jnp.concatenate)(items, axis=axis), sizes


def _joined(x: TensorArray, axis: int, use_stack: bool) -> tuple[Array, Array]:
    """Join the elements of a buffer; the step is compiled for how many there are."""
    length = static_values.ints(x.length, "the length of an array that a loop wrote")[0]
    found = rows_of(x.buffer)
    dims = found.shape[1:]
    if static_values.placeholder() is None:
        found = found[:length]
    axis %= len(dims) + 1 if use_stack else len(dims)
    found = jnp.moveaxis(found, 0, axis)
    if use_stack:
        return found, jnp.ones(length, jnp.int32)
    joined = found.reshape(*dims[:axis], -1, *dims[axis + 1 :])
    return joined, jnp.full(length, dims[axis], jnp.int32)


@op("lod_rank_table", ins=("X",), outs=("Out",), grad=False, rows="sequence", counts=True)
def lod_rank_table(x: Value, *, level: int = 0) -> Value:
    """Rank the sequences of a level from the longest to the shortest."""
    x = need(x, "lod_rank_table", "X", level + 1)
    chosen = x.levels[level]
    below = x.capacity if level + 1 == len(x.levels) else x.levels[level + 1].number
    order = jnp.argsort(-chosen.lengths, stable=True).astype(jnp.int32)
    return RankTable(order, chosen, below, x.capacity, x.levels[:level])


@op("max_sequence_len", ins=("RankTable",), outs=("Out",), grad=False, rows="sequence", counts=True)
def max_sequence_len(table: Value) -> Value:
    """Return the length of the longest sequence: int64 [1]."""
    return table.level.steps().astype(jnp.int64).reshape(1)


@op("lod_tensor_to_array", ins=("X", "RankTable"), outs=("Out",), nograd=("RankTable",), rows="sequence", counts=True)
def lod_tensor_to_array(x: Value, table: Value) -> Value:
    """Split sequences into a tensor array with an element for each time step.

    Element t has row t (or sub-sequence t) of each sequence longer than t, in the order of the rank table.
    """
    x = _rows_of_table(x, table, "lod_tensor_to_array")
    if len(x.levels) > 1:
        return steps_of(x, table)
    dense = permute(x.pad(time_major=True), table.order, table.ranks, 1)
    times = jnp.arange(dense.shape[0], dtype=jnp.int32)
    real = times[:, None] < table.lengths
    # values after the end of a sequence: finite if the data is
    spare = jax.lax.stop_gradient(x.values[0])
    dense = jnp.where(real.reshape(real.shape + (1,) * (dense.ndim - 2)), dense, spare)
    return TensorArray(
        buffer=Ragged(dense, (), jnp.sum(real, axis=1, dtype=jnp.int32)), length=table.level.steps().astype(jnp.int64)
    )


@op("array_to_lod_tensor", ins=("X", "RankTable"), outs=("Out",), nograd=("RankTable",), rows="sequence", counts=True)
def array_to_lod_tensor(x: Value, table: Value) -> Value:
    """Return the rows in sequences, in their own order, that lod_tensor_to_array made the array of."""
    longest = table.level.longest
    stacked = x.stacked(longest)
    if isinstance(stacked.buffer, Ragged) and stacked.buffer.levels:
        return joined_steps(stacked, table)
    dense = rows_of(stacked.buffer)[:longest]
    dense = permute(dense, table.ranks, table.order, 1)
    return Ragged(unpad(dense, table.level, table.rows, True), (*table.above, table.level))


@op(
    "shrink_rnn_memory",
    ins=("X", "RankTable", "I"),
    outs=("Out",),
    nograd=("RankTable", "I"),
    rows="sequence",
    counts=True,
)
def shrink_rnn_memory(x: Value, table: Value, i: Value) -> Value:
    """Keep the rows of x, in the order of the rank table, for sequences longer than i steps."""
    count = table.active(i)
    if isinstance(x, Ragged) and x.levels:
        return Ragged(x.values, first_sequences(x.levels, count))
    return Ragged(rows_of(x), (), count)


@op(
    "reorder_lod_tensor_by_rank",
    ins=("X", "RankTable"),
    outs=("Out",),
    nograd=("RankTable",),
    rows="sequence",
    counts=True,
)
def reorder_lod_tensor_by_rank(x: Value, table: Value) -> Value:
    """Bring the rows (or sequences) of x into the order of the table."""
    number = x.levels[0].number if isinstance(x, Ragged) and x.levels else rows_of(x).shape[0]
    if number < table.level.number and static_values.placeholder() is None:
        raise errors.ShapeError(
            f"reorder_lod_tensor_by_rank: X has {number} rows or sequences, the rank table {table.level.number}"
        )
    if not (isinstance(x, Ragged) and x.levels):
        values = rows_of(x)
        moved = permute(values, table.order, table.ranks, 0)
        return x.like(moved) if isinstance(x, Ragged) else moved
    return reorder(x, table.order, table.ranks)


@op("split_lod_tensor", ins=("X", "Mask"), outs=("OutTrue", "OutFalse"), nograd=("Mask",), rows="sequence")
def split_lod_tensor(x: Value, mask: Value, *, level: int = 0) -> tuple[Value, Value]:
    """Split the rows (or the sequences of a level) of x by the mask into OutTrue and OutFalse."""
    if isinstance(x, Ragged) and x.levels:
        x = need(x, "split_lod_tensor", "X", level + 1)
        x = Ragged(x.values, x.levels[level:], exact=x.exact)
    chosen, real = _mask_of(mask, x)
    return selected(x, chosen & real), selected(x, ~chosen & real)


@op("merge_lod_tensor", ins=("X", "Mask", "InTrue", "InFalse"), outs=("Out",), nograd=("X", "Mask"), rows="sequence")
def merge_lod_tensor(x: Value, mask: Value, in_true: Value, in_false: Value, *, level: int = 0) -> Value:
    """Merge InTrue and InFalse into one tensor by the mask: the inverse of split_lod_tensor."""
    above = x.levels[:level] if isinstance(x, Ragged) else ()
    branches = [v for v in (in_true, in_false) if isinstance(v, Ragged) and v.levels]
    if branches:
        if len(branches) == 1:
            raise errors.ShapeError("merge_lod_tensor: one branch gives sequences, the other rows; pool the sequences")
        chosen, real = _mask_of(mask, None)
        counted = isinstance(mask, Ragged) and not above
        joined = merged(in_true, in_false, chosen, real, counted)
        return Ragged(joined.values, above + joined.levels, joined.total)
    chosen = rows_of(mask).reshape(-1).astype(bool)
    true, false = rows_of(in_true), rows_of(in_false)

    def rank(mask: Array) -> Array:
        return jnp.clip(jnp.cumsum(mask) - 1, 0, max(chosen.shape[0] - 1, 0))

    out = jnp.where(column(chosen, true.ndim), true[rank(chosen)], false[rank(~chosen)])
    return mask.like(out) if isinstance(mask, Ragged) else out


# Fluid's second kernel of it is for graphs without gradients.
op(
    "merge_lod_tensor_infer",
    ins=("X", "Mask", "InTrue", "InFalse"),
    outs=("Out",),
    nograd=("X", "Mask"),
    rows="sequence",
)(merge_lod_tensor)


def _mask_of(mask: Value, x: Value) -> tuple[Array, Array]:
    """Return the masks of chosen and of real rows (or sequences) of x; without x, a mask for each mask row."""
    chosen = jnp.asarray(rows_of(mask)).reshape(-1).astype(bool)
    real = mask.mask() if isinstance(mask, Ragged) else jnp.ones(chosen.shape, bool)
    if x is None:
        return chosen, real
    number = x.levels[0].number if isinstance(x, Ragged) and x.levels else rows_of(x).shape[0]
    if len(chosen) > number and static_values.placeholder() is None and not isinstance(mask, Ragged):
        raise errors.ShapeError(f"split_lod_tensor: the mask has {len(chosen)} rows, X has {number} rows or sequences")
    missing = max(number - len(chosen), 0)
    return jnp.pad(chosen, (0, missing))[:number], jnp.pad(real, (0, missing))[:number]


@op("select_input", ins=("X*", "Mask"), outs=("Out",), nograd=("Mask",), rows="sequence", counts=True)
def select_input(branches: list[Value], mask: Value) -> Value:
    """Return the value of X that Mask, an index, names."""
    if static_values.is_static(mask):
        return branches[int(np.asarray(mask).reshape(()))]
    index = jnp.clip(mask.reshape(()).astype(jnp.int32), 0, len(branches) - 1)
    if len({tuple(map(jnp.shape, jax.tree.leaves(b))) for b in branches}) > 1:
        stand_in = static_values.placeholder()
        if stand_in is None:
            raise static_values.unknown(mask, "the choice between values of different shapes")
        first, *others = map(rows_of, branches)
        shapes = [v.shape for v in others if v.ndim == first.ndim]
        sizes = (stand_in if {*dims} != {size} else size for size, *dims in zip(first.shape, *shapes))
        return jnp.zeros(tuple(sizes), first.dtype)
    return jax.tree.map(lambda *leaves: jax.lax.select_n(index, *map(jnp.asarray, leaves)), *branches)


def _rows_of_table(x: Value, table: RankTable, op_type: str) -> Ragged:
    x = need(x, op_type, "X", len(table.above) + 1)
    x = Ragged(x.values, x.levels[len(table.above) :], exact=x.exact)
    if len(x.levels) > 2:
        raise errors.UnsupportedError(
            f"{op_type}: sequences of {len(x.levels)} levels are not supported; "
            "reset the LoD to two levels with layers.lod_reset"
        )
    if x.levels[0].number != table.level.number and static_values.placeholder() is None:
        raise errors.ShapeError(f"{op_type}: X has {x.levels[0].number} sequences, the rank table {table.level.number}")
    return x
