"""Layers that select, write or sort elements."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.program import default_main_program
from jfluid.ir.types import VarType, var_type
from jfluid.ir.variable import Variable
from jfluid.layers.creation import Integers, integers, zeros
from jfluid.layers.helper import check_variable, emit

__all__ = [
    "argsort",
    "gather",
    "gather_nd",
    "index_sample",
    "index_select",
    "multiplex",
    "nonzero",
    "scatter",
    "scatter_nd",
    "scatter_nd_add",
    "shard_index",
    "slice",
    "strided_slice",
    "topk",
    "tril",
    "triu",
    "unique",
    "unique_with_counts",
    "where",
]


def _bounds(op_type: str, input: Variable, axes: Sequence[int], **given: Integers) -> Variable:
    """Append a slicing operator with bounds that are integers, Variables, or a mix."""
    inputs: dict[str, Any] = {"Input": input}
    attrs: dict[str, Any] = {"axes": list(axes), "infer_flags": [1] * len(axes)}
    for attr, values in given.items():
        if not isinstance(values, Variable) and len(values) != len(axes):
            raise errors.ShapeError(
                f"{op_type}: expected {len(axes)} {attr} for axes {list(axes)}, found {len(values)}"
            )
        slot = attr.capitalize() + "Tensor"
        extra, numbers = integers(values, attr, slot, slot + "List", f"{op_type}, {attr}")
        if isinstance(values, Variable):
            attrs["infer_flags"] = [-1] * len(axes)
        elif extra:
            attrs["infer_flags"] = [
                -1 if isinstance(v, Variable) else f for v, f in zip(values, attrs["infer_flags"], strict=True)
            ]
        inputs, attrs = inputs | extra, attrs | numbers
    return emit(op_type, inputs, attrs)


def slice(input: Variable, axes: Sequence[int], starts: Integers, ends: Integers) -> Variable:
    """Return `input[start:end]` along each of `axes`.

    Args:
        input: tensor.
        axes: dimensions.
        starts: lower bounds of `axes`. Negative bounds count from the end, bounds out of range are clipped. They
            may be Variables that are computed from shapes and constants.
        ends: upper bounds, exclusive, like `starts`.

    Raises ShapeError if a slice is empty.
    """
    return _bounds("slice", input, axes, starts=starts, ends=ends)


def strided_slice(
    input: Variable, axes: Sequence[int], starts: Integers, ends: Integers, strides: Integers
) -> Variable:
    """Return `input[start:end:stride]` along each of `axes`.

    With a negative stride Fluid takes every |stride|-th element counted from the lower bound, and
    reverses them: `[4:0:-2]` reads elements 3 and 1 where NumPy reads 4 and 2. An end of -1 then
    means "down to the first".

    Args:
        input: tensor.
        axes: dimensions.
        starts: lower bounds of `axes`: integers, or Variables that are computed from shapes and constants.
        ends: upper bounds, exclusive, like `starts`.
        strides: strides, like `starts`.

    Raises ShapeError if a slice is empty.
    """
    return _bounds("strided_slice", input, axes, starts=starts, ends=ends, strides=strides)


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Return rows of `input`.

    Args:
        input: [rows, ...].
        index: row numbers, [n] or [n, 1]. A number outside reads NaN (the smallest number of an
            integer type).
        overwrite: where an index occurs twice, whether the row's gradient is that of the last
            occurrence (as in Fluid) or the sum.

    Returns:
        [n, ...].
    """
    return emit("gather", {"X": input, "Index": index}, {"overwrite": overwrite})


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Gather slices of `input` at coordinates of the leading dimensions.

    Args:
        input: tensor.
        index: integers [..., k]: each last dimension is a coordinate.
        name: see `jfluid.layers`.

    Returns:
        A tensor of shape `index.shape[:-1] + input.shape[k:]`.
    """
    return emit("gather_nd", {"X": input, "Index": index}, name=name)


def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """Replace rows of `input` by the rows of `updates`.

    As in Fluid, the gradient flows to `input` whole, to the replaced rows, too.

    Args:
        input: [rows, ...].
        index: row numbers [n]; one outside is ignored.
        updates: [n, ...].
        name: see `jfluid.layers`.
        overwrite: where an index occurs twice, whether its last row counts, or the sum of its rows.
    """
    return emit("scatter", {"X": input, "Ids": index, "Updates": updates}, {"overwrite": overwrite}, name=name)


def scatter_nd_add(ref: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """Add `updates` to slices of `ref` at coordinates.

    Args:
        ref: tensor.
        index: see `gather_nd`.
        updates: of the shape that `gather_nd` would return.
        name: see `jfluid.layers`.

    Raises AttributeTypeError if the dtypes of `ref` and `updates` differ.
    """
    check_variable(ref, "scatter_nd_add", "ref")
    if ref.dtype != updates.dtype:
        raise errors.AttributeTypeError(
            f"scatter_nd_add: expected ref and updates of one dtype, found {ref.dtype.name} and {updates.dtype.name}"
        )
    return emit("scatter_nd_add", {"X": ref, "Index": index, "Updates": updates}, layer="scatter_nd_add", name=name)


def scatter_nd(index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Add `updates` to slices of zeros of the given shape.

    For the arguments see `scatter_nd_add`.
    """
    return scatter_nd_add(zeros(shape, updates.dtype), index, updates, name)


def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """Return the slices of `input` along `dim` at the indices in the vector `index`."""
    return emit("index_select", {"X": input, "Index": index}, {"dim": dim})


def index_sample(x: Variable, index: Variable) -> Variable:
    """Return elements of each row of the matrix `x`: out[i, j] = x[i, index[i, j]]."""
    return emit("index_sample", {"X": x, "Index": index})


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Choose rows from several tensors: row i of the result is row i of `inputs[index[i]]`.

    Args:
        inputs: tensors of the same shape [rows, ...].
        index: int32 [rows, 1].

    Raises AttributeTypeError if there are fewer than two inputs.
    """
    if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
        raise errors.AttributeTypeError("multiplex: expected inputs to be a list of at least two Variables")
    return emit("multiplex", {"X": list(inputs), "Ids": index})


def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """Return (the `k` largest values of each last dimension, largest first; their positions, int64): both [..., k].

    Args:
        input: tensor [..., n].
        k: a number, or a Variable of one element computed from shapes and constants.
        name: see `jfluid.layers`.
    """
    given = isinstance(k, Variable)
    return emit(
        "top_k",
        {"X": input, "K": k if given else None},
        {} if given else {"k": k},
        outs=("Out", "Indices"),
        name=name,
        stop_gradient=True,
    )


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return (`input` sorted along `axis`, the positions (int64) that sort it).

    Equal elements keep their order. As in Fluid gradients flow through the sorted elements in dygraph mode
    alone.
    """
    return emit(
        "argsort",
        {"X": input},
        {"axis": axis, "descending": descending},
        outs=("Out", "Indices"),
        name=name,
        stop_gradient=not default_main_program().eager,
    )


def where(condition: Variable) -> Variable:
    """Return the coordinates of the true elements: int64 [n, rank].

    The number of rows depends on values, so this runs on the host in NumPy, between two compiled
    parts of the step.
    """
    out = emit("where_index", {"Condition": condition})
    out.set_shape_dtype((-1, len(condition.shape)), VarType.INT64)
    return out


def nonzero(input: Variable, as_tuple: bool = False) -> Variable | tuple[Variable, ...]:
    """Return the coordinates [n, rank] of nonzero elements; with `as_tuple` a tensor [n, 1] per dimension."""
    found = where(input)
    if not as_tuple:
        return found
    return tuple(slice(found, [1], [i], [i + 1]) for i, _ in enumerate(input.shape))


def _index_type(op_type: str, dtype: Any) -> VarType:
    kind = var_type(dtype)
    if kind not in (VarType.INT32, VarType.INT64):
        raise errors.AttributeTypeError(f"{op_type}: expected dtype to be int32 or int64, found {dtype!r}")
    return kind


def unique(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable]:
    """Return the unique values of the vector `x` in order of first occurrence, and each element's index.

    The number of values depends on data, so this runs on the host in NumPy, between two compiled
    parts of the step.

    Args:
        x: vector.
        dtype: dtype of the indices: int32 or int64.
    """
    kind = _index_type("unique", dtype)
    values, places = emit("unique", {"X": x}, {"dtype": int(kind)}, outs=("Out", "Index"))
    values.set_shape_dtype((-1,), x.dtype)
    places.set_shape_dtype(x.shape, kind)
    return values, places


def unique_with_counts(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable, Variable]:
    """Return the results of `unique`, and the count of each value."""
    kind = _index_type("unique_with_counts", dtype)
    values, places, counts = emit("unique_with_counts", {"X": x}, {"dtype": int(kind)}, outs=("Out", "Index", "Count"))
    values.set_shape_dtype((-1,), x.dtype)
    places.set_shape_dtype(x.shape, kind)
    counts.set_shape_dtype((-1,), kind)
    return values, places, counts


def shard_index(input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Map global indices to local indices of shard `shard_id`.

    The range of `index_num` indices is divided into `nshards` equal parts.

    Args:
        input: integers.
        index_num: size of the range.
        nshards: number of shards.
        shard_id: the shard.
        ignore_value: the result for indices of all other shards.

    Raises AttributeTypeError if `shard_id` is not between 0 and `nshards` - 1.
    """
    if not 0 <= shard_id < nshards:
        raise errors.AttributeTypeError(f"shard_index: expected shard_id from 0 to {nshards - 1}, found {shard_id}")
    return emit(
        "shard_index",
        {"X": input},
        {"index_num": index_num, "nshards": nshards, "shard_id": shard_id, "ignore_value": ignore_value},
    )


def _triangle(x: Variable, diagonal: int, lower: bool, name: str | None) -> Variable:
    layer = "tril" if lower else "triu"
    if len(x.shape) < 2:
        raise errors.ShapeError(f"{layer}: expected matrices, found shape {list(x.shape)}")
    return emit("tril_triu", {"X": x}, {"diagonal": diagonal, "lower": lower}, layer=layer, name=name)


def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Keep the lower triangles of the matrices in `input` and set the rest to zero.

    Args:
        input: [..., m, n].
        diagonal: the last diagonal that is kept: 0 is the main one, positive numbers lie above it.
        name: see `jfluid.layers`.
    """
    check_variable(input, "tril", "input")
    return _triangle(input, diagonal, True, name)


def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Keep the upper triangles of the matrices in `input` and set the rest to zero.

    Args:
        input: [..., m, n].
        diagonal: the first diagonal that is kept: 0 is the main one, positive numbers lie above it.
        name: see `jfluid.layers`.
    """
    check_variable(input, "triu", "input")
    return _triangle(input, diagonal, False, name)
