"""Operators that make tensors: constants, copies, casts, counters."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops import static_values
from jfluid.ops.ragged import Value
from jfluid.ops.ragged_dispatch import NeedsExactRows
from jfluid.ops.registry import Bool, Floats, Int, Ints, Long, Longs, op
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ops.sequence_lod import number_like
from jfluid.ops.shape import given_shape, is_unknown, numpy_of

_MOST_NUMBERS = 1 << 56  # of a range
SMALL = 64  # a constant with at most this number of elements stays static


def _constant(shape: Sequence[int], dtype: np.dtype, value: Any) -> Array:
    small = prod(shape) <= SMALL
    return (np if small else jnp).full(shape, value, dtype)


def _parsed(text: str, value: float, dtype: np.dtype) -> Any:
    """Return the value of a constant: `text` if given, else `value`.

    Fluid passes numbers as text because a float32 attribute cannot represent every number.
    """
    if not text:
        number: Any = value
    else:
        try:
            number = int(text)
        except ValueError:
            number = float(text)
    if dtype.kind in "iu":
        return int(number)
    return bool(number) if dtype.kind == "b" else float(number)


@op("fill_constant", ins=("ValueTensor?", "ShapeTensor?", "ShapeTensorList*?"), outs=("Out",), grad=False, fold=True)
def fill_constant(
    value_tensor: Array | None,
    shape_tensor: Array | None,
    shape_tensors: list[Array] | None,
    *,
    shape: Longs = (),
    dtype: int = 5,
    value: float = 0.0,
    str_value: str = "",
) -> Array:
    """Make a tensor with one value everywhere."""
    dims = given_shape(shape_tensors, shape_tensor, shape, "the shape of fill_constant")
    elements = np_dtype(dtype)
    if value_tensor is None:
        return _constant(dims, elements, _parsed(str_value, value, elements))
    if isinstance(value_tensor, np.ndarray):
        return _constant(dims, elements, value_tensor.reshape(-1)[0])
    return jnp.full(dims, value_tensor.reshape(-1)[0], elements)


def like_batch(
    like: Array, shape: Sequence[int], input_dim_idx: int, output_dim_idx: int
) -> tuple[tuple[int, ...], Callable[..., Any]]:
    """Return `shape` with one dimension taken from `like`, and a function that wraps the result's rows.

    For a tensor of sequences the dimension is the number of sequences.
    """
    dims = list(shape)
    dims[output_dim_idx], source = number_like(like, input_dim_idx)
    if source is not None and output_dim_idx != 0:
        raise NeedsExactRows("a shape with the number of rows in a dimension other than the first needs exact rows")
    wrap = source.like if source is not None and output_dim_idx == 0 else lambda values: values
    return tuple(dims), wrap


@op("fill_constant_batch_size_like", ins=("Input",), outs=("Out",), grad=False, rows="sequence", counts=True)
def fill_constant_batch_size_like(
    like: Value,
    *,
    shape: Ints,
    dtype: int = 5,
    value: float = 0.0,
    str_value: str = "",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
) -> Value:
    """Return a constant tensor with one dimension taken from Input."""
    elements = np_dtype(dtype)
    dims, wrap = like_batch(like, shape, input_dim_idx, output_dim_idx)
    return wrap(jnp.full(dims, _parsed(str_value, value, elements), elements))


@op("fill_zeros_like", ins=("X",), outs=("Out",), grad=False, rows="map", sparse=True)
def fill_zeros_like(x: Array) -> Array | SelectedRows:
    """Return zeros of the shape and dtype of x; sparse rows keep their indices."""
    if isinstance(x, SelectedRows):
        return x.map(jnp.zeros_like)
    return jnp.zeros(x.shape, x.dtype)


@op("fill_zeros_like2", ins=("X",), outs=("Out",), grad=False, rows="map")
def fill_zeros_like2(x: Array, *, dtype: int = 5) -> Array:
    """Make zeros of the shape of x."""
    return jnp.zeros(x.shape, np_dtype(dtype))


@op("fill_any_like", ins=("X",), outs=("Out",), grad=False, rows="map")
def fill_any_like(x: Array, *, value: float = 0.0, dtype: int = -1) -> Array:
    """Return a constant tensor of the shape of x; dtype -1 keeps the dtype of x."""
    elements = np.dtype(x.dtype) if dtype < 0 else np_dtype(dtype)
    return jnp.full(x.shape, _parsed("", value, elements), elements)


@op("fill", outs=("Out",), grad=False, fold=True)
def fill(*, value: Floats, shape: Ints, dtype: int = 5) -> np.ndarray:
    """Make a tensor of the given values in the given shape."""
    return np.asarray(value).astype(np_dtype(dtype)).reshape(shape)


@op("assign_value", outs=("Out",), grad=False, fold=True)
def assign_value(
    *,
    shape: Ints,
    dtype: Int,
    bool_values: Ints = (),
    fp32_values: Floats = (),
    int32_values: Ints = (),
    int64_values: Longs = (),
) -> np.ndarray:
    """Make a tensor of the given values in the given shape."""
    values = bool_values or fp32_values or int32_values or int64_values
    if len(values) != np.prod(shape, dtype=np.int64):
        raise errors.ShapeError(f"assign_value: {len(values)} values cannot have shape {tuple(shape)}")
    return np.asarray(values).astype(np_dtype(dtype)).reshape(shape)


@op("assign", ins=("X?",), outs=("Out",), fold=True, rows="map", sparse=True)
def assign(x: Array | None) -> Array | None:
    """Copy x."""
    return x


@op("cast", ins=("X",), outs=("Out",), fold=True, rows="map", sparse=True)
def cast(x: Array, *, in_dtype: Int, out_dtype: Int) -> Array | SelectedRows:
    """Convert x to dtype `out_dtype`; `in_dtype` only records the dtype of x.

    Floating-point numbers outside int8 or uint8 keep their low bits, as in C on x86: -2.5 becomes 254.
    """
    if isinstance(x, SelectedRows):
        return x.map(lambda v: _cast(v, np_dtype(out_dtype)))
    return _cast(x, np_dtype(out_dtype))


def _cast(x: Array, dtype: np.dtype) -> Array:
    if dtype in (np.int8, np.uint8) and jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(np.int32)  # XLA alone would take the nearest number that there is
    return x.astype(dtype)


@op("increment", ins=("X",), outs=("Out",), inplace={"Out": "X"}, fold=True, rows="map")
def increment(x: Array, *, step: float = 1.0) -> Array:
    """Return x plus step, converted to the dtype of x."""
    return x + np.asarray(step).astype(x.dtype)


def _numbers(values: tuple[Array, Array, Array], what: str) -> list[Any] | None:
    """Return the numbers in tensors of one element; None while shapes are inferred."""
    traced = next((v for v in values if not static_values.is_static(v)), None)
    if traced is None:
        return [np.asarray(v).reshape(-1)[0].item() for v in values]
    if static_values.placeholder() is None:
        raise static_values.unknown(traced, what)
    return None


@op("range", ins=("Start", "End", "Step"), outs=("Out",), grad=False, fold=True)
def range_(start: Array, end: Array, step: Array) -> Array | np.ndarray:
    """Return the numbers from start up to end, without end, by step."""
    numbers = _numbers((start, end, step), "a bound of range")
    if numbers is None:
        return jnp.zeros((static_values.placeholder(),), start.dtype)
    first, last, by = numbers
    if by == 0 or (last - first) * by < 0:
        raise errors.OpError(f"range: from {first} to {last} is not reached by steps of {by}")
    if by * _MOST_NUMBERS < last - first if by > 0 else by * _MOST_NUMBERS > last - first:
        raise errors.OutOfMemoryError(f"range: from {first} to {last} by {by} are more numbers than any memory holds")
    return np.arange(first, last, by, dtype=np.dtype(start.dtype))


@op("linspace", ins=("Start", "Stop", "Num"), outs=("Out",), grad=False, fold=True)
def linspace(start: Array, stop: Array, num: Array) -> Array:
    """Return num evenly spaced numbers from start to stop, both included."""
    count = static_values.sizes(num, "the number of elements of linspace")[0]
    xp, start, stop = numpy_of(start, stop), start.reshape(-1)[0], stop.reshape(-1)[0]
    if count < 1:
        raise errors.OpError(f"linspace: expected a positive number of elements, found {count}")
    return xp.linspace(start, stop, count, dtype=start.dtype)


@op("eye", outs=("Out",), grad=False)
def eye(*, num_rows: Long, num_columns: Long = -1, dtype: int = 5) -> Array:
    """Make a matrix with ones on the diagonal and zeros elsewhere."""
    return jnp.eye(num_rows, num_rows if num_columns < 0 else num_columns, dtype=np_dtype(dtype))


@op("diag", ins=("Diagonal",), outs=("Out",), grad=False)
def diag(diagonal: Array) -> Array:
    """Make a square matrix with the vector on its diagonal."""
    return jnp.diag(diagonal)


def _diagonal_rows(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> str | None:
    axes = attrs.get("dim1", -2), attrs.get("dim2", -1)
    return "map" if ins["Input"].ndim > 1 and all(a % (ins["Input"].ndim + 1) for a in axes) else None


@op("diag_embed", ins=("Input",), outs=("Out",), grad=False, rows=_diagonal_rows)
def diag_embed(x: Array, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Put the last dimension of x on a diagonal of the new dimensions dim1 and dim2."""
    n = x.shape[-1]
    size = n + abs(offset)
    if is_unknown(n):
        size = static_values.placeholder() or size
        x = jnp.zeros((*x.shape[:-1], size - abs(offset)), x.dtype)
    at = np.arange(size - abs(offset))
    out = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
    out = out.at[..., at + max(-offset, 0), at + max(offset, 0)].set(x)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@op("tril_triu", ins=("X",), outs=("Out",), rows=lambda attrs, ins: "map" if ins["X"].ndim > 2 else None)
def tril_triu(x: Array, *, lower: Bool, diagonal: int = 0) -> Array:
    """Keep the lower or upper triangle of the matrices in x; the rest becomes zero."""
    return jnp.tril(x, diagonal) if lower else jnp.triu(x, diagonal)
