"""Rows of a table by id, and one-hot vectors.

An id outside the table gives a row of NaN: a compiled program cannot raise, and a clamped id would
train the wrong row.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.reach import Reach
from jfluid.ir.types import VarType, np_dtype
from jfluid.ops import static_values, table_rows
from jfluid.ops.ragged import Ragged, Value, grouped, need, rows_of, spread, totals
from jfluid.ops.registry import Long, Longs, Strings, op
from jfluid.ops.selected_rows import SelectedRows


def look_up(table: Array, ids: Array, padding_idx: int) -> Array:
    """Return the rows of `table` at `ids`, and zeros, without a gradient, at `padding_idx`."""
    if table.ndim != 2:
        raise errors.ShapeError(f"look-up: expected a table W of two dimensions, found shape {list(table.shape)}")
    integer_ids("look-up", ids)
    if isinstance(table, SelectedRows):
        return _held_rows_at(table, ids, padding_idx)
    rows = _rows_at(table, ids)
    if padding_idx == -1:
        return rows
    return jnp.where((ids == padding_idx)[..., None], jnp.zeros((), table.dtype), rows)


def _held_rows_at(table: SelectedRows, ids: Array, padding_idx: int) -> Array:
    """Return the rows at `ids` of a table that holds only part of the rows."""
    flat = np.asarray(static_values.ints(ids, "look-up: Ids"), np.int64)
    padded = flat == padding_idx if padding_idx != -1 else np.zeros(flat.shape, bool)
    rows = jnp.zeros((len(flat), table.values.shape[1]), table.values.dtype)
    places = table.places(flat[~padded], "look-up: Ids")
    rows = rows.at[np.flatnonzero(~padded)].set(table.values[places])
    return rows.reshape(*ids.shape, table.values.shape[1])


def _rows_at(table: Array, ids: Array) -> Array:
    """Return the rows of `table` at `ids` of any shape."""
    found = table_rows.current().take(table, ids.reshape(-1))
    if found is not None:
        return found.reshape(*ids.shape, table.shape[1])
    height = table.shape[0]
    index = jnp.where((ids >= 0) & (ids < height), ids, height)
    index = index.astype(jnp.int32) if height < 2**31 else index
    return jnp.take(table, index, axis=0, mode="fill")


# Where servers have the rows, which jfluid.distributed asks.
_SERVERS = Reach("network", ("epmap",), (("epmap",), ("remote_prefetch", "is_distributed")))


@op("lookup_table", ins=("W", "Ids"), outs=("Out",), nograd=("Ids",), reaches=_SERVERS, examples=("Ids",), sparse=True)
def lookup_table(
    w: Array,
    ids: Array,
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Long = -1,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    height_sections: Longs = (),
    epmap: Strings = (),
    table_names: Strings = (),
    grad_inplace: bool = False,
) -> Array:
    """Return the rows of w at ids of shape [..., 1]."""
    return look_up(w, last_one("lookup_table", ids), padding_idx)


@op(
    "lookup_table_v2",
    ins=("W", "Ids"),
    outs=("Out",),
    nograd=("Ids",),
    reaches=_SERVERS,
    examples=("Ids",),
    sparse=True,
)
def lookup_table_v2(
    w: Array,
    ids: Array,
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Long = -1,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    height_sections: Longs = (),
    epmap: Strings = (),
    table_names: Strings = (),
) -> Array:
    """Return the rows of w at ids of any shape."""
    return look_up(w, ids, padding_idx)


def _table_grad(w: Array, ids: Value, grad: Value, is_sparse: bool, padding_idx: int) -> Any:
    """Return the gradient of a table, dense or as sparse rows, from the gradient of looked-up rows."""
    # Fluid's sparse gradient trains the padding row all the same
    found = gradient_rows(w, ids, grad, -1 if is_sparse else padding_idx)
    return found if is_sparse else found.dense()


def gradient_rows(w: Array, ids: Value, grad: Value, padding_idx: int) -> SelectedRows:
    """Return the sparse gradient of a table from the gradient of the looked-up rows."""
    height = w.shape[0]
    rows, values = rows_of(ids).reshape(-1), rows_of(grad)
    values = values.reshape(-1, w.shape[1]).astype(w.dtype)
    ignored = (rows < 0) | (rows >= height)
    if padding_idx != -1:
        ignored |= rows == padding_idx
    padded = isinstance(ids, Ragged) and not ids.exact
    if padded:
        ignored |= jnp.repeat(~ids.mask(), rows.shape[0] // ids.capacity)
    return SelectedRows(jnp.where(ignored, height, rows), values, height, full=not padded)


def _sparse_table(op: Any) -> dict[str, VarType]:
    return {"W@GRAD": VarType.SELECTED_ROWS} if op.attrs.get("is_sparse") else {}


@op(
    "lookup_table_grad",
    ins=("W", "Ids", "Out@GRAD"),
    outs=("W@GRAD",),
    rows="sequence",
    counts=True,
    types=_sparse_table,
    examples=("Ids", "Out@GRAD"),
)
def lookup_table_grad(
    w: Value,
    ids: Value,
    grad: Value,
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Long = -1,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    height_sections: Longs = (),
    epmap: Strings = (),
    table_names: Strings = (),
    grad_inplace: bool = False,
) -> Value:
    """Return the gradient of a table; `SelectedRows` when is_sparse."""
    return _table_grad(w, ids, grad, is_sparse, padding_idx)


@op(
    "lookup_table_v2_grad",
    ins=("W", "Ids", "Out@GRAD"),
    outs=("W@GRAD",),
    rows="sequence",
    counts=True,
    types=_sparse_table,
    examples=("Ids", "Out@GRAD"),
)
def lookup_table_v2_grad(
    w: Value,
    ids: Value,
    grad: Value,
    *,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: Long = -1,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    height_sections: Longs = (),
    epmap: Strings = (),
    table_names: Strings = (),
) -> Value:
    """Return the gradient of a table; `SelectedRows` when is_sparse."""
    return _table_grad(w, ids, grad, is_sparse, padding_idx)


@op("lookup_table_dequant", ins=("W", "Ids"), outs=("Out",), grad=False, rows="map")
def lookup_table_dequant(w: Array, ids: Array, *, padding_idx: Long = -1) -> Array:
    """Return rows of a table of bytes.

    A row of W, which is float32, has the smallest and the largest value of the row, then the memory of four
    bytes in each float: byte b stands for smallest + b * (largest - smallest) / 256.
    """
    if w.dtype != jnp.float32 or w.ndim != 2 or w.shape[1] < 3:
        raise errors.ShapeError(
            f"lookup_table_dequant: expected a W [rows, 2 + width / 4] of float32, found {w.dtype} {list(w.shape)}"
        )
    ids = last_one("lookup_table_dequant", ids)
    rows = look_up(w, ids, -1)
    low, high = rows[..., 0:1], rows[..., 1:2]
    packed = jax.lax.bitcast_convert_type(rows[..., 2:], jnp.uint8)
    found = low + packed.reshape(*ids.shape, -1).astype(w.dtype) * ((high - low) / 256)
    return found if padding_idx == -1 else jnp.where((ids == padding_idx)[..., None], 0, found)


@op("fused_embedding_seq_pool", ins=("W", "Ids"), outs=("Out",), nograd=("Ids",), rows="sequence", counts=True)
def fused_embedding_seq_pool(
    w: Value,
    ids: Value,
    *,
    is_sparse: bool = False,
    padding_idx: Long = -1,
    combiner: str = "sum",
    grad_inplace: bool = False,
) -> Value:
    """Return for each sequence of ids the sum of their rows."""
    ids = _pooled_ids(ids, combiner)
    rows = look_up(w, last_one("fused_embedding_seq_pool", ids.values), padding_idx)
    return grouped(ids, totals(ids.like(rows)))


def _pooled_ids(ids: Value, combiner: str) -> Ragged:
    if combiner != "sum":
        raise errors.UnsupportedError(
            f"fused_embedding_seq_pool: combiner: expected 'sum', found {combiner!r}; for other combiners use "
            "layers.embedding and layers.sequence_pool"
        )
    return need(ids, "fused_embedding_seq_pool", "Ids")


@op(
    "fused_embedding_seq_pool_grad",
    ins=("W", "Ids", "Out@GRAD"),
    outs=("W@GRAD",),
    rows="sequence",
    counts=True,
    types=_sparse_table,
    examples=("Ids", "Out@GRAD"),
)
def fused_embedding_seq_pool_grad(
    w: Value,
    ids: Value,
    grad: Value,
    *,
    is_sparse: bool = False,
    padding_idx: Long = -1,
    combiner: str = "sum",
    grad_inplace: bool = False,
) -> Value:
    """Return the gradient of a table; `SelectedRows` when is_sparse."""
    ids = _pooled_ids(ids, combiner)
    return _table_grad(w, ids, spread(rows_of(grad), ids.last, ids.capacity), is_sparse, padding_idx)


def integer_ids(type_: str, ids: Array) -> None:
    """Raise ShapeError for ids that are no integers."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise errors.DtypeError(f"{type_}: expected ids of an integer type, found {ids.dtype}")


def last_one(type_: str, ids: Array) -> Array:
    """Return the ids without their last dimension, which must be 1."""
    if ids.ndim == 0 or ids.shape[-1] != 1:
        raise errors.ShapeError(
            f"{type_}: expected ids of shape [..., 1], found {list(ids.shape)}; "
            f"use {type_}_v2 (fluid.embedding, fluid.one_hot) for ids of any shape"
        )
    return ids[..., 0]


def hot(ids: Array, depth_tensor: Array | None, depth: int, dtype: Any, allow_out_of_range: bool) -> Array:
    """Return one-hot vectors of length `depth`.

    An id out of range gives zeros if allowed, else NaN (-1 for integer dtypes).
    """
    if depth_tensor is not None:
        depth = static_values.sizes(depth_tensor, "one_hot's depth_tensor")[0]
    integer_ids("one_hot", ids)
    if depth < 1:
        raise errors.ShapeError(f"one_hot: depth: expected a positive number, found {depth}")
    dtype = np_dtype(dtype)
    out = (ids[..., None] == jnp.arange(depth, dtype=ids.dtype)).astype(dtype)
    if allow_out_of_range:
        return out
    wrong = jnp.asarray(jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else -1).astype(dtype)
    return jnp.where(((ids < 0) | (ids >= depth))[..., None], wrong, out)


@op("one_hot", ins=("X", "depth_tensor?"), outs=("Out",), grad=False, rows="map")
def one_hot(
    x: Array, depth_tensor: Array | None, *, depth: int = -1, dtype: int = 5, allow_out_of_range: bool = False
) -> Array:
    """Return one-hot vectors of ids of shape [..., 1]."""
    return hot(last_one("one_hot", x), depth_tensor, depth, dtype, allow_out_of_range)


@op("one_hot_v2", ins=("X", "depth_tensor?"), outs=("Out",), grad=False, rows="map")
def one_hot_v2(
    x: Array, depth_tensor: Array | None, *, depth: int = -1, dtype: int = 5, allow_out_of_range: bool = False
) -> Array:
    """Return one-hot vectors of ids, appended as a last dimension."""
    return hot(x, depth_tensor, depth, dtype, allow_out_of_range)
