"""Operators on tensor arrays and rank tables: what DynamicRNN and IfElse are made of.

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
from jfluid.ops.ragged import Level, Ragged, Value, column, need, rows_of, segments, unpad
from jfluid.ops.registry import op
from jfluid.ops.tensor_array import RankTable, TensorArray


@op(
    "write_to_array",
    ins=("X", "I"),
    outs=("Out",),
    nograd=("I",),
    rows="sequence",
    carries=("Out",),
)
def write_to_array(x: Value, i: Value, array: Any) -> Value:
    """Return the array with x at index i."""
    return (array or TensorArray()).write(i, x)


@op("read_from_array", ins=("X", "I", "X_W?"), outs=("Out",), nograd=("I", "X_W"), rows="sequence")
def read_from_array(x: Value, i: Value, _: Value | None) -> Value:
    """Return the element of the array at index i."""
    return x.read(i)


@op("lod_array_length", ins=("X",), outs=("Out",), grad=False, rows="sequence")
def lod_array_length(x: Value) -> Value:
    """Return the number of elements: int64 [1]."""
    size = x.size()
    return np.full(1, size, np.int64) if isinstance(size, int) else size.reshape(1)


@op("tensor_array_to_tensor", ins=("X",), outs=("Out", "OutIndex"), rows="sequence")
def tensor_array_to_tensor(
    x: Value, *, axis: int = 0, use_stack: bool = False
) -> tuple[Value, Value]:
    """Join the elements along an axis (with use_stack a new one); also return the size of each
    along it.
    """
    if x.buffer is not None:
        if static_values.placeholder() is None:
            raise errors.OpError(
                "tensor_array_to_tensor: the length of an array that a compiled loop wrote depends on data; "
                "bound the loop by a constant, or read the elements that are needed"
            )
        items = [rows_of(x.read(np.zeros(1, np.int64)))]
    else:
        items = [rows_of(v) for v in x.items]
    if not items:
        raise errors.OpError("tensor_array_to_tensor: the array is empty")
    sizes = jnp.asarray([1 if use_stack else v.shape[axis] for v in items], jnp.int32)
    return (jnp.stack if use_stack else jnp.concatenate)(items, axis=axis), sizes


@op("lod_rank_table", ins=("X",), outs=("Out",), grad=False, rows="sequence")
def lod_rank_table(x: Value, *, level: int = 0) -> Value:
    """Rank the sequences of a level from the longest to the shortest."""
    x = need(x, "lod_rank_table", "X", level + 1)
    chosen = x.levels[level]
    below = x.capacity if level + 1 == len(x.levels) else x.levels[level + 1].number
    return RankTable(jnp.argsort(-chosen.lengths, stable=True).astype(jnp.int32), chosen, below)


@op("max_sequence_len", ins=("RankTable",), outs=("Out",), grad=False, rows="sequence")
def max_sequence_len(table: Value) -> Value:
    """Return the length of the longest sequence: int64 [1]."""
    return table.level.steps().astype(jnp.int64).reshape(1)


@op(
    "lod_tensor_to_array",
    ins=("X", "RankTable"),
    outs=("Out",),
    nograd=("RankTable",),
    rows="sequence",
)
def lod_tensor_to_array(x: Value, table: Value) -> Value:
    """Return the steps of the sequences: element t has row t of each sequence that is so long, in
    the order of the table.
    """
    x = _rows_of_table(x, table, "lod_tensor_to_array")
    dense = permute(x.pad(time_major=True), table.order, table.ranks, 1)
    times = jnp.arange(dense.shape[0], dtype=jnp.int32)
    real = times[:, None] < table.lengths
    # what stands where a sequence has ended: as finite as the data
    spare = jax.lax.stop_gradient(x.values[0])
    dense = jnp.where(real.reshape(real.shape + (1,) * (dense.ndim - 2)), dense, spare)
    return TensorArray(
        buffer=Ragged(dense, (), jnp.sum(real, axis=1, dtype=jnp.int32)),
        length=table.level.steps().astype(jnp.int64),
    )


@op(
    "array_to_lod_tensor",
    ins=("X", "RankTable"),
    outs=("Out",),
    nograd=("RankTable",),
    rows="sequence",
)
def array_to_lod_tensor(x: Value, table: Value) -> Value:
    """Return the rows in sequences, in their own order, that lod_tensor_to_array made the array of."""
    longest = table.level.longest
    dense = rows_of(x.stacked(longest).buffer)[:longest]
    dense = permute(dense, table.ranks, table.order, 1)
    return Ragged(unpad(dense, table.level, table.rows, True), (table.level,))


@op(
    "shrink_rnn_memory",
    ins=("X", "RankTable", "I"),
    outs=("Out",),
    nograd=("RankTable", "I"),
    rows="sequence",
)
def shrink_rnn_memory(x: Value, table: Value, i: Value) -> Value:
    """Return those rows of x, in the order of the table, whose sequences have a step i."""
    count = table.active(i)
    if isinstance(x, Ragged) and x.levels:
        return Ragged(x.values, (_first(x.levels[0], count),) + x.levels[1:])
    return Ragged(rows_of(x), (), count)


@op(
    "reorder_lod_tensor_by_rank",
    ins=("X", "RankTable"),
    outs=("Out",),
    nograd=("RankTable",),
    rows="sequence",
)
def reorder_lod_tensor_by_rank(x: Value, table: Value) -> Value:
    """Bring the rows (or sequences) of x into the order of the table."""
    if not (isinstance(x, Ragged) and x.levels):
        values = rows_of(x)
        moved = permute(values, table.order, table.ranks, 0)
        return x.like(moved) if isinstance(x, Ragged) else moved
    return reorder(x, table.order, table.ranks)


@op(
    "split_lod_tensor",
    ins=("X", "Mask"),
    outs=("OutTrue", "OutFalse"),
    nograd=("Mask",),
    rows="sequence",
)
def split_lod_tensor(x: Value, mask: Value, *, level: int = 0) -> tuple[Value, Value]:
    """Return the rows (or sequences) of x for which the mask holds, and the others."""
    chosen = rows_of(mask).reshape(-1).astype(bool)
    _one_level("split_lod_tensor", level)
    return _selected(x, chosen), _selected(x, ~chosen)


@op(
    "merge_lod_tensor",
    ins=("X", "Mask", "InTrue", "InFalse"),
    outs=("Out",),
    nograd=("X", "Mask"),
    rows="sequence",
)
def merge_lod_tensor(
    x: Value, mask: Value, in_true: Value, in_false: Value, *, level: int = 0
) -> Value:
    """Join what split_lod_tensor has split."""
    chosen = rows_of(mask).reshape(-1).astype(bool)
    _one_level("merge_lod_tensor", level)
    if any(isinstance(v, Ragged) and v.levels for v in (in_true, in_false)):
        raise errors.UnsupportedError(
            "merge_lod_tensor: both branches must give one row for each row of the mask, found "
            "sequences; pool them first"
        )
    true, false = rows_of(in_true), rows_of(in_false)

    def rank(mask: Array) -> Array:
        return jnp.clip(jnp.cumsum(mask) - 1, 0, max(chosen.shape[0] - 1, 0))

    out = jnp.where(column(chosen, true.ndim), true[rank(chosen)], false[rank(~chosen)])
    return mask.like(out) if isinstance(mask, Ragged) else out


@op("select_input", ins=("X*", "Mask"), outs=("Out",), nograd=("Mask",), rows="sequence")
def select_input(branches: list[Value], mask: Value) -> Value:
    """Return the value of X that Mask, an index, names."""
    if static_values.is_static(mask):
        return branches[int(np.asarray(mask).reshape(()))]
    index = jnp.clip(mask.reshape(()).astype(jnp.int32), 0, len(branches) - 1)
    return jax.tree.map(
        lambda *leaves: jax.lax.select_n(index, *map(jnp.asarray, leaves)), *branches
    )


def permute(values: Array, order: Array, inverse: Array, axis: int) -> Array:
    """Return values[order] along an axis, for a permutation; its gradient gathers by the inverse."""
    return _permute(axis, values, order, inverse)


def _permute_forward(
    axis: int, values: Array, order: int, inverse: Array
) -> tuple[Array, tuple[Any, ...]]:
    return _permute(axis, values, order, inverse), (order, inverse)


def _permute_backward(axis: int, kept: tuple[Any, ...], grad: Array) -> tuple[Array, None, None]:
    order, inverse = kept
    return _permute(axis, grad, inverse, order), None, None


_permute = jax.custom_vjp(
    lambda axis, values, order, inverse: jnp.take(values, order, axis=axis, mode="clip"),
    nondiff_argnums=(0,),
)
_permute.defvjp(_permute_forward, _permute_backward)


def reorder(x: Ragged, order: Array, inverse: Array) -> Ragged:
    """Bring the sequences of x, of one level, into another order."""
    if len(x.levels) > 1:
        raise errors.UnsupportedError(
            f"reordering sequences of {len(x.levels)} levels is not supported; "
            "reset the LoD to one level with layers.lod_reset"
        )
    old = x.last
    new = Level(
        jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(old.lengths[order], dtype=jnp.int32)]),
        old.longest,
    )
    rows = jnp.arange(x.capacity, dtype=jnp.int32)

    def source(target: Level, origin: Level, ranks: Array) -> Array:
        sequence = jnp.minimum(segments(target, x.capacity), target.number - 1)
        return jnp.where(
            rows < target.offsets[-1],
            origin.starts[ranks[sequence]] + rows - target.starts[sequence],
            rows,
        )

    return Ragged(
        permute(x.values, source(new, old, order), source(old, new, inverse), 0),
        (new,),
        exact=x.exact,
    )


def _first(level: Level, count: Array) -> Level:
    """Return the level with its first `count` sequences only; the others become empty."""
    offsets = level.offsets
    return Level(
        jnp.minimum(offsets, offsets[jnp.clip(count, 0, level.number)]), level.longest, count=count
    )


def _selected(x: Array, chosen: Array) -> Array | Ragged:
    """Return the rows or sequences of x that are chosen, in their order."""
    order = jnp.argsort(~chosen, stable=True).astype(jnp.int32)
    inverse, count = jnp.argsort(order).astype(jnp.int32), jnp.sum(chosen, dtype=jnp.int32)
    if isinstance(x, Ragged) and x.levels:
        moved = reorder(x, order, inverse)
        return Ragged(moved.values, (_first(moved.last, count),))
    return Ragged(permute(rows_of(x), order, inverse, 0), (), count)


def _rows_of_table(x: Value, table: RankTable, op_type: str) -> Ragged:
    x = need(x, op_type, "X")
    if len(x.levels) > 1:
        raise errors.UnsupportedError(
            f"{op_type}: sequences of {len(x.levels)} levels are not supported; "
            "reset the LoD to one level with layers.lod_reset"
        )
    if x.last.number != table.level.number and static_values.placeholder() is None:
        raise errors.ShapeError(
            f"{op_type}: X has {x.last.number} sequences, the rank table {table.level.number}"
        )
    return x


def _one_level(op_type: str, level: int) -> None:
    if level:
        raise errors.UnsupportedError(
            f"{op_type}: level={level} is not supported; rows are split by level 0"
        )
