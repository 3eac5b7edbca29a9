"""Operators that select, write, pad or sort elements.

An index outside its array is an error in Fluid, where the kernel checks it, and undefined where it
does not. A compiled program cannot raise: here a read outside gives NaN (the smallest number of an
integer type), which can be seen, and a write outside is dropped. Negative indices count as outside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops import row_rules, static_values
from jfluid.ops.axes import dimension
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.registry import Int, Ints, Long, op
from jfluid.ops.shape import given_ints, is_unknown, numpy_of, shaped, unified


def take_rows(x: Array, index: Array, axis: int = 0) -> Array:
    """Gather slices of x along axis at the indices; an index out of range reads NaN."""
    where = (slice(None),) * axis + (index,)
    return jnp.asarray(x).at[where].get(mode="fill", wrap_negative_indices=False)


def _last_writer(index: Array, rows: int) -> Array:
    """Return for each entry of index the position of the last equal entry.

    Writes to the same place then carry the same value, so that their order, which XLA leaves open,
    does not matter.
    """
    positions = jnp.arange(index.shape[0], dtype=jnp.int32)
    last = jnp.zeros((rows,), jnp.int32).at[index].max(positions, mode="drop", wrap_negative_indices=False)
    return last.at[index].get(mode="clip")


def _flat_index(index: Array, what: str) -> Array:
    if index.ndim == 2 and index.shape[1] == 1:
        return index[:, 0]
    if index.ndim != 1:
        raise errors.ShapeError(f"{what}: expected indices of shape [n] or [n, 1], found {index.shape}")
    return index


# Gather's `overwrite` is about its gradient: of equal indices only the last one's gradient reaches
# the row.
@jax.custom_vjp
def _gather_overwriting(x: Array, index: Array, written: Array) -> Array:
    return take_rows(x, index)


def _gather_forward(x: Array, index: Array, written: Array) -> tuple[Array, tuple[Any, ...]]:
    return take_rows(x, index), (jnp.zeros_like(x), written)


def _gather_backward(kept: tuple[Any, ...], out_grad: Array) -> tuple[Any, None, None]:
    zeros, written = kept
    rows = out_grad[_last_writer(written, zeros.shape[0])]
    return zeros.at[written].set(rows, mode="drop", wrap_negative_indices=False), None, None


_gather_overwriting.defvjp(_gather_forward, _gather_backward)


@op("gather", ins=("X", "Index"), outs=("Out",), nograd=("Index",), fold=True, rows="sequence", counts=True)
def gather(x: Value, index: Value, *, overwrite: bool = True) -> Value:
    """Return rows of x at the indices.

    With overwrite the gradient of equal indices is that of the last one, not the sum.
    """
    table, at = rows_of(x), _flat_index(rows_of(index), "gather")
    if numpy_of(table, at) is np:
        return table[at]
    if isinstance(x, Ragged) and not x.exact:
        at = jnp.where(at < x.count(), at, x.capacity)
    padded = isinstance(index, Ragged) and not index.exact
    written = jnp.where(index.mask(), at, table.shape[0]) if padded else at
    out = _gather_overwriting(table, at, written) if overwrite else take_rows(table, at)
    return Ragged(out, (), index.count()) if padded else out


def _split_index(index: Array) -> tuple[Array, ...]:
    return tuple(index[..., i] for i in range(index.shape[-1]))


@op("gather_nd", ins=("X", "Index"), outs=("Out",), nograd=("Index",), rows=row_rules.unless("X"))
def gather_nd(x: Array, index: Array) -> Array:
    """Return slices of x at coordinates: the last dimension of index has one for each leading dimension of x."""
    if index.shape[-1] > x.ndim:
        raise errors.ShapeError(f"gather_nd: {index.shape[-1]} coordinates for an input of shape {x.shape}")
    return jnp.asarray(x).at[_split_index(index)].get(mode="fill", wrap_negative_indices=False)


def _scatter(x: Array, index: Array, updates: Array, overwrite: Array) -> Array:
    if overwrite:
        updates = updates[_last_writer(index, x.shape[0])]
        return x.at[index].set(updates, mode="drop", wrap_negative_indices=False)
    cleared = x.at[index].set(jnp.zeros((), x.dtype), mode="drop", wrap_negative_indices=False)
    return cleared.at[index].add(updates, mode="drop", wrap_negative_indices=False)


# Fluid passes the gradient of a scatter on to x whole, also for the rows that were replaced.
_scatter_like_fluid = jax.custom_vjp(_scatter, nondiff_argnums=(3,))
_scatter_like_fluid.defvjp(
    lambda x, index, updates, overwrite: (_scatter(x, index, updates, overwrite), index),
    lambda overwrite, index, out_grad: (out_grad, None, take_rows(out_grad, index)),
)


@op("scatter", ins=("X", "Ids", "Updates"), outs=("Out",), nograd=("Ids",))
def scatter(x: Array, ids: Array, updates: Array, *, overwrite: bool = True) -> Array:
    """Overwrite rows `ids` of x with updates.

    With `overwrite` the last of equal ids wins; without it the updates of equal ids are summed.
    """
    ids = _flat_index(ids, "scatter")
    if updates.shape[1:] != x.shape[1:] or updates.shape[0] != ids.shape[0]:
        if not any(map(is_unknown, (*x.shape, *updates.shape, *ids.shape))):
            raise errors.ShapeError(
                f"scatter: expected updates of shape {(ids.shape[0], *x.shape[1:])}, found {updates.shape}"
            )
        return x
    return _scatter_like_fluid(jnp.asarray(x), ids, jnp.asarray(updates), overwrite)


@op("scatter_nd_add", ins=("X", "Index", "Updates"), outs=("Out",), nograd=("Index",))
def scatter_nd_add(x: Array, index: Array, updates: Array) -> Array:
    """Add updates to x at coordinates (see gather_nd); updates at equal coordinates accumulate."""
    expected = (*index.shape[:-1], *x.shape[index.shape[-1] :])
    if updates.shape != expected:
        if not any(map(is_unknown, (*expected, *updates.shape))):
            raise errors.ShapeError(f"scatter_nd_add: expected updates of shape {expected}, found {updates.shape}")
        return x
    return jnp.asarray(x).at[_split_index(index)].add(updates, mode="drop", wrap_negative_indices=False)


def _select_rows(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> str | None:
    return None if isinstance(ins["Index"], Ragged) else row_rules.by_axis("dim", 0)(attrs, ins)


@op("index_select", ins=("X", "Index"), outs=("Out",), nograd=("Index",), rows=_select_rows)
def index_select(x: Array, index: Array, *, dim: int = 0) -> Array:
    """Return slices of x along dim at the indices."""
    return take_rows(x, _flat_index(index, "index_select"), dimension(dim, x.ndim, "index_select"))


@op("index_sample", ins=("X", "Index"), outs=("Out",), nograd=("Index",), rows="map")
def index_sample(x: Array, index: Array) -> Array:
    """Return, for each row of the matrix x, its elements at that row of index."""
    rows = unified([x.shape[:1], index.shape[:1]], "index_sample")
    x, index = shaped(x, (*rows, x.shape[1])), shaped(index, (*rows, index.shape[1]))
    at = (jnp.arange(x.shape[0], dtype=index.dtype)[:, None], index)
    return jnp.asarray(x).at[at].get(mode="fill", wrap_negative_indices=False)


@op("multiplex", ins=("Ids", "X*"), outs=("Out",), nograd=("Ids",), rows="map")
def multiplex(ids: Array, xs: list[Array]) -> Array:
    """Return row i of input number ids[i], for each i."""
    common = unified([x.shape for x in xs], "multiplex")
    ids = shaped(ids, (common[0],))
    rows = jnp.arange(common[0], dtype=ids.dtype)
    stacked = jnp.stack([shaped(x, common) for x in xs])
    return stacked.at[ids, rows].get(mode="fill", wrap_negative_indices=False)


def _bounds(size: int, start: int, end: int) -> tuple[int, int]:
    start, end = (n + size if n < 0 else n for n in (start, end))
    return min(max(start, 0), size), min(max(end, 0), size)


def _decreased(x: Array, axes: Sequence[int]) -> Array:
    """Remove the dimensions axes of x, but never its last one (Fluid gives [1], not [])."""
    if not axes:
        return x
    kept = [d for i, d in enumerate(x.shape) if i not in set(axes)]
    return shaped(x, kept or [1])


class _Element(NamedTuple):
    """Index expression of an element of a tensor."""

    tensor: Any
    at: int


def _one(x: Array, place: _Element, axis: int) -> Array:
    """Return the slice of size 1 at a position that is known only when the program runs."""
    start = place.tensor.reshape(-1)[place.at]
    return jax.lax.dynamic_slice_in_dim(x, jnp.where(start < 0, start + x.shape[axis], start), 1, axis)


def _listed(listed: list[Array] | None, tensor: Array | None, attr: tuple[int, ...], count: int) -> list[Any]:
    """Return a start or end for each axis: a number, or an `_Element`."""
    if listed:
        return [_Element(each, 0) for each in listed]
    if tensor is not None:
        return [_Element(tensor, i) for i in range(count)]
    return list(attr)


def _number(value: Any, attr: Sequence[int], i: int, flags: Sequence[int]) -> int | None:
    """Return the number in value; None while shapes are inferred and it is known only when the program runs."""
    if isinstance(value, int):
        return value
    if static_values.placeholder() is None:
        return static_values.ints(value.tensor, "a bound of the slice")[value.at]
    return attr[i] if i < len(attr) and i < len(flags) and flags[i] != -1 else None


@op(
    "slice",
    ins=("Input", "StartsTensor?", "EndsTensor?", "StartsTensorList*?", "EndsTensorList*?"),
    outs=("Out",),
    nograd=("StartsTensor", "EndsTensor", "StartsTensorList", "EndsTensorList"),
    fold=True,
    rows=row_rules.other_axes("axes", "Input"),
)
def slice_(
    x: Array,
    starts_tensor: Array | None,
    ends_tensor: Array | None,
    start_tensors: list[Array] | None,
    end_tensors: list[Array] | None,
    *,
    axes: Ints,
    starts: Ints = (),
    ends: Ints = (),
    infer_flags: Ints = (),
    decrease_axis: Ints = (),
) -> Array:
    """Return x from starts to ends along axes, without the dimensions decrease_axis."""
    first = _listed(start_tensors, starts_tensor, starts, len(axes))
    last = _listed(end_tensors, ends_tensor, ends, len(axes))
    for i, axis in enumerate(axes):
        axis = dimension(axis, x.ndim, "slice")
        if (
            static_values.placeholder() is None
            and axis in decrease_axis
            and isinstance(first[i], _Element)
            and not static_values.is_static(first[i].tensor)
        ):
            x = _one(x, first[i], axis)
            continue
        size = x.shape[axis]
        start, end = (_number(first[i], starts, i, infer_flags), _number(last[i], ends, i, infer_flags))
        if start is None or end is None or is_unknown(size):
            x = _resized(x, axis, 1 if axis in decrease_axis else static_values.placeholder())
            continue
        # `x[i]` with i = -1 asks for i to i + 1
        if (start, end) == (-1, 0) and axis in decrease_axis:
            end = size
        low, high = _bounds(size, start, end)
        if high <= low:
            raise errors.ShapeError(f"slice: [{start}:{end}] of dimension {axis} is empty for shape {x.shape}")
        x = x[(slice(None),) * axis + (slice(low, high),)]
    return _decreased(x, decrease_axis)


def _resized(x: Array, axis: int, size: int | None) -> Array:
    """Return an array with the dtype of x and the given size along axis, for shape inference."""
    return jnp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)


def _strided(size: int, start: int, end: int, stride: int) -> slice | None:
    """Return a strided slice in ascending order with Fluid's bounds, or None if it is empty.

    A negative stride takes the elements from the lower bound upwards; they are reversed afterwards.
    So `[3:0:-2]` reads 1 and 3, `[4:0:-3]` reads 1 and 4, but `[3:-1:-2]` (-1: down to the first)
    reads 0 and 2.
    """
    start = start + size if start < 0 else start
    if end < 0 and not (end == -1 and stride < 0):
        end += size
    if stride < 0:
        start, end = end + 1, start + 1
    low, high = min(max(start, 0), size), min(max(end, 0), size)
    return slice(low, high, abs(stride)) if high > low else None


@op(
    "strided_slice",
    ins=(
        "Input",
        "StartsTensor?",
        "EndsTensor?",
        "StridesTensor?",
        "StartsTensorList*?",
        "EndsTensorList*?",
        "StridesTensorList*?",
    ),
    outs=("Out",),
    nograd=("StartsTensor", "EndsTensor", "StridesTensor", "StartsTensorList", "EndsTensorList", "StridesTensorList"),
    fold=True,
    rows=row_rules.other_axes("axes", "Input"),
)
def strided_slice(
    x: Array,
    starts_tensor: Array | None,
    ends_tensor: Array | None,
    strides_tensor: Array | None,
    start_tensors: list[Array] | None,
    end_tensors: list[Array] | None,
    stride_tensors: list[Array] | None,
    *,
    axes: Ints,
    starts: Ints = (),
    ends: Ints = (),
    strides: Ints = (),
    infer_flags: Ints = (),
    decrease_axis: Ints = (),
) -> Array:
    """Return x from starts to ends by strides along axes, without the dimensions decrease_axis."""
    n = len(axes)
    groups = (
        (_listed(start_tensors, starts_tensor, starts, n), starts),
        (_listed(end_tensors, ends_tensor, ends, n), ends),
        (_listed(stride_tensors, strides_tensor, strides, n), strides),
    )
    for i, axis in enumerate(axes):
        axis = dimension(axis, x.ndim, "strided_slice")
        begin, end, stride = (_number(given[i], attr, i, infer_flags) for given, attr in groups)
        if begin is None or end is None or stride is None or is_unknown(x.shape[axis]):
            x = _resized(x, axis, 1 if axis in decrease_axis else static_values.placeholder())
            continue
        part = _strided(x.shape[axis], begin, end, stride)
        if part is None:
            raise errors.ShapeError(
                f"strided_slice: [{begin}:{end}:{stride}] of dimension {axis} is empty; the input has shape {x.shape}"
            )
        x = x[(slice(None),) * axis + (part,)]
        x = numpy_of(x).flip(x, axis) if stride < 0 else x
    return _decreased(x, decrease_axis)


@op("pad", ins=("X",), outs=("Out",), rows=lambda attrs, ins: "map" if not any(attrs["paddings"][:2]) else None)
def pad(x: Array, *, paddings: Ints, pad_value: float = 0.0) -> Array:
    """Add paddings[2i] values before and paddings[2i+1] after x along dimension i."""
    if len(paddings) != 2 * x.ndim:
        raise errors.ShapeError(f"pad: expected {2 * x.ndim} paddings for shape {x.shape}, found {len(paddings)}")
    pairs = list(zip(paddings[::2], paddings[1::2], strict=True))
    return jnp.pad(x, pairs, constant_values=jnp.asarray(pad_value, x.dtype))


@op("pad2d", ins=("X", "Paddings?"), outs=("Out",), nograd=("Paddings",), rows="map")
def pad2d(
    x: Array,
    paddings_tensor: Array | None,
    *,
    paddings: Ints,
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
) -> Array:
    """Pad a batch of images (top, bottom, left, right) by a value, by reflection or by its edge."""
    if x.ndim != 4:
        raise errors.ShapeError(f"pad2d: expected an image batch of 4 dimensions, found shape {x.shape}")
    top, bottom, left, right = given_ints(None, paddings_tensor, paddings, "the paddings of pad2d")
    pairs = [(0, 0), (top, bottom), (left, right)]
    pairs.insert(3 if data_format == "NHWC" else 1, (0, 0))
    if static_values.placeholder() is not None:
        return jnp.zeros([d + low + high for d, (low, high) in zip(x.shape, pairs, strict=True)], x.dtype)
    if mode == "constant":
        return jnp.pad(x, pairs, constant_values=jnp.asarray(pad_value, x.dtype))
    return jnp.pad(x, pairs, mode=mode)


@op("pad_constant_like", ins=("X", "Y"), outs=("Out",), nograd=("X",))
def pad_constant_like(x: Array, y: Array, *, pad_value: float = 0.0) -> Array:
    """Pad y after its end along every dimension until it has the shape of x."""
    if any(map(is_unknown, (*x.shape, *y.shape))):
        return jnp.zeros(x.shape, y.dtype)
    if x.ndim != y.ndim or any(b > a for a, b in zip(x.shape, y.shape, strict=True)):
        raise errors.ShapeError(f"pad_constant_like: Y of shape {y.shape} is larger than X of shape {x.shape}")
    pairs = [(0, a - b) for a, b in zip(x.shape, y.shape, strict=True)]
    return jnp.pad(y, pairs, constant_values=jnp.asarray(pad_value, y.dtype))


def _crop(
    x: Array,
    dims: Sequence[int],
    offset_tensors: list[Array] | None,
    offset_tensor: Array | None,
    offsets: tuple[int, ...],
    what: str,
) -> Array:
    tensors = offset_tensors or ([] if offset_tensor is None else [offset_tensor])
    if (
        tensors
        and -1 not in dims
        and static_values.placeholder() is None
        and not all(map(static_values.is_static, tensors))
    ):
        at = jnp.concatenate([o.reshape(-1) for o in tensors])
        return jax.lax.dynamic_slice(x, list(at), dims)
    offsets = given_ints(offset_tensors, offset_tensor, offsets or (0,) * x.ndim, f"the offsets of {what}")
    if len(dims) != x.ndim or len(offsets) != x.ndim:
        raise errors.ShapeError(f"{what}: expected {x.ndim} sizes and offsets, found {tuple(dims)} and {offsets}")
    dims = [n - o if d == -1 else d for d, n, o in zip(dims, x.shape, offsets, strict=True)]
    if (tensors and static_values.placeholder() is not None) or any(map(is_unknown, (*dims, *x.shape))):
        return jnp.zeros(dims, x.dtype)
    if any(o < 0 or d < 1 or o + d > n for o, d, n in zip(offsets, dims, x.shape, strict=True)):
        raise errors.ShapeError(f"{what}: shape {tuple(dims)} at offsets {offsets} is not inside shape {x.shape}")
    return x[tuple(slice(o, o + d) for o, d in zip(offsets, dims, strict=True))]


@op("crop", ins=("X", "Y?", "Offsets?"), outs=("Out",), nograd=("Y", "Offsets"))
def crop(x: Array, y: Array | None, offsets_tensor: Array | None, *, offsets: Ints = (), shape: Ints = ()) -> Array:
    """Crop x at offsets to the given shape or to the shape of y; -1 takes the rest."""
    return _crop(x, shape if y is None else y.shape, None, offsets_tensor, offsets, "crop")


@op(
    "crop_tensor",
    ins=("X", "Shape?", "Offsets?", "ShapeTensor*?", "OffsetsTensor*?"),
    outs=("Out",),
    nograd=("Shape", "Offsets", "ShapeTensor", "OffsetsTensor"),
)
def crop_tensor(
    x: Array,
    shape_tensor: Array | None,
    offsets_tensor: Array | None,
    shape_tensors: list[Array] | None,
    offset_tensors: list[Array] | None,
    *,
    offsets: Ints = (),
    shape: Ints = (),
) -> Array:
    """Return the part of x at offsets with the given shape; -1 takes the rest."""
    dims = given_ints(shape_tensors, shape_tensor, shape, "the shape of crop_tensor")
    return _crop(x, dims, offset_tensors, offsets_tensor, offsets, "crop_tensor")


@op("top_k", ins=("X", "K?"), outs=("Out", "Indices"), nograd=("K",), rows=row_rules.last_axis)
def top_k(x: Array, k_tensor: Array | None, *, k: int = 1) -> tuple[Array, Array]:
    """Return the k largest values along the last dimension in falling order, and their indices (ties: first)."""
    if k_tensor is not None:
        k = static_values.ints(k_tensor, "K of top_k")[0]
    if static_values.placeholder() is not None and (k_tensor is not None or is_unknown(x.shape[-1])):
        return _resized(x, x.ndim - 1, k), jnp.zeros((*x.shape[:-1], k), np.int64)
    if not 1 <= k <= x.shape[-1]:
        raise errors.ShapeError(f"top_k: expected k from 1 to {x.shape[-1]} for shape {x.shape}, found {k}")
    values, indices = jax.lax.top_k(jnp.asarray(x), k)
    return values, indices.astype(np.int64)


@op("argsort", ins=("X",), outs=("Out", "Indices"), rows=row_rules.by_axis("axis"))
def argsort(x: Array, *, axis: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Return x sorted along axis, and the positions that sort it."""
    indices = jnp.argsort(x, axis, stable=True, descending=descending)
    return jnp.take_along_axis(x, indices, axis), indices.astype(np.int64)


def _arg(find: Callable[..., Any], x: Array, axis: int, dtype: Any, keepdims: bool) -> Array:
    return find(x, axis=axis, keepdims=keepdims).astype(np.int64 if dtype < 0 else np_dtype(dtype))


@op("arg_max", ins=("X",), outs=("Out",), grad=False, rows=row_rules.by_axis("axis"))
def arg_max(x: Array, *, axis: Long, keepdims: bool = False, dtype: int = -1) -> Array:
    """Return the positions of the largest elements along axis."""
    return _arg(jnp.argmax, x, axis, dtype, keepdims)


@op("arg_min", ins=("X",), outs=("Out",), grad=False, rows=row_rules.by_axis("axis"))
def arg_min(x: Array, *, axis: Long, keepdims: bool = False, dtype: int = -1) -> Array:
    """Return the positions of the smallest elements along axis."""
    return _arg(jnp.argmin, x, axis, dtype, keepdims)


@op("where", ins=("Condition", "X", "Y"), outs=("Out",), nograd=("Condition",), rows="map")
def where(condition: Array, x: Array, y: Array) -> tuple[Array, ...]:
    """Select elements of x where condition is true, else of y."""
    common = unified([condition.shape, x.shape, y.shape], "where")
    return jnp.where(*(shaped(v, common) for v in (condition, x, y)))


@op("where_index", ins=("Condition",), outs=("Out",), grad=False, host=True, reaches=None)
def where_index(condition: np.ndarray) -> np.ndarray:
    """Return the coordinates [n, rank] of the elements that are not zero."""
    return np.argwhere(condition).astype(np.int64)


def _unique(x: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, first, inverse, counts = np.unique(np.ravel(x), return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return values[order], rank[inverse].astype(dtype), counts[order].astype(dtype)


@op("unique", ins=("X",), outs=("Out", "Index"), grad=False, host=True, reaches=None)
def unique(x: np.ndarray, *, dtype: Int) -> tuple[np.ndarray, np.ndarray]:
    """Return the unique values of x in order of first occurrence, and the index of each element's value."""
    return _unique(x, np_dtype(dtype))[:2]


@op("unique_with_counts", ins=("X",), outs=("Out", "Index", "Count"), grad=False, host=True, reaches=None)
def unique_with_counts(x: np.ndarray, *, dtype: Int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the outputs of `unique` and the count of each unique value."""
    return _unique(x, np_dtype(dtype))


@op("shard_index", ins=("X",), outs=("Out",), grad=False, rows="map")
def shard_index(x: Array, *, index_num: Int, nshards: Int, shard_id: Int, ignore_value: int = -1) -> Array:
    """Map global indices to local indices of shard `shard_id`.

    The range is divided into nshards equal parts of index_num. An index of a different shard becomes
    ignore_value.
    """
    width = (index_num + nshards - 1) // nshards
    return jnp.where(x // width == shard_id, x % width, jnp.asarray(ignore_value, x.dtype))
