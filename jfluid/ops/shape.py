"""Operators that change the shape or the order of elements, not their values."""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import row_rules, static_values, unrolled
from jfluid.ops.axes import check_one_dtype, dimension
from jfluid.ops.ragged import Ragged, Value, appended
from jfluid.ops.registry import Int, Ints, Longs, op

_MOST_PARTS = 1 << 14  # of an array: each part is written out


def numpy_of(*arrays: Any) -> Any:
    """Return NumPy if all arrays are NumPy arrays, which keeps the result static, else jax.numpy."""
    return np if all(isinstance(a, (np.ndarray, np.generic)) for a in arrays) else jnp


def is_unknown(size: int) -> bool:
    """Return True if the dimension is known only when the program runs; False while a program is lowered."""
    p = static_values.placeholder()
    return p is not None and size > 0 and size % p == 0


def given_ints(listed: Sequence[Any] | Array | None, tensor: Any, attr: Sequence[int], what: str) -> tuple[int, ...]:
    """Return integers given as a list of tensors, as one tensor, or as an attribute: the first of these that is there.

    While shapes are inferred, a positive number in the attribute tells what the tensors will hold.
    """
    if not listed and tensor is None:
        return tuple(int(n) for n in attr)
    numbers = static_values.sizes(listed if listed else tensor, what)
    if static_values.placeholder() is not None and len(attr) == len(numbers):
        return tuple(int(a) if a > 0 else n for a, n in zip(attr, numbers, strict=True))
    return numbers


def given_shape(listed: Sequence[Any] | None, tensor: Any, attr: Sequence[int], what: str) -> tuple[int, ...]:
    """Return the shape of a new array, as `given_ints`; raise ShapeError for a negative size."""
    dims = given_ints(listed, tensor, attr, what)
    if any(size < 0 for size in dims):
        raise errors.ShapeError(f"{what}: expected no negative number, found {list(dims)}")
    if static_values.placeholder() is None:  # a table of any height may be declared: the servers hold its rows
        static_values.check_elements(dims, what)
    return dims


def shaped(x: Array, shape: Sequence[int]) -> Array:
    """Return `x` with the given shape. While shapes are inferred an unknown size fits every other."""
    if prod(x.shape) != prod(shape) and any(map(is_unknown, (*x.shape, *shape))):
        return jnp.zeros(shape, x.dtype)
    return x.reshape(shape)


def unified(shapes: Sequence[tuple[int, ...]], what: str, apart_from: int | None = None) -> tuple[int, ...]:
    """Return the shape that all shapes agree on, apart from the dimension `apart_from`.

    While shapes are inferred a known dimension wins over an unknown one. Raises ShapeError if
    they disagree.
    """
    sizes = []
    for axis, dims in enumerate(zip(*shapes, strict=False)):
        found = {d for d in dims if not is_unknown(d)} or {dims[0]}
        if len(found) > 1 and axis != apart_from:
            break
        sizes.append(min(found))
    if len(sizes) != len(shapes[0]) or len({len(s) for s in shapes}) > 1:
        raise errors.ShapeError(f"{what}: expected inputs of one shape, found {', '.join(map(str, shapes))}")
    return tuple(sizes)


def _x_shape(x: Array) -> Array:
    return jnp.zeros((0, *x.shape), x.dtype)


def _reshape(x: Array, shape_tensor: Array | None, shape_tensors: list[Array] | None, target: tuple[int, ...]) -> Array:
    dims = list(given_ints(shape_tensors, shape_tensor, target, "the shape of reshape"))
    if dims.count(-1) > 1 or any(d < -1 for d in dims) or any(d == 0 and i >= x.ndim for i, d in enumerate(dims)):
        raise errors.ShapeError(
            "reshape: the shape may hold one -1, and 0 where the input has a dimension to copy; "
            f"found {dims} for an input of shape {x.shape}"
        )
    dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    unknown = any(map(is_unknown, (*x.shape, *dims)))
    if -1 in dims:
        rest = prod(d for d in dims if d != -1)
        size, left = divmod(prod(x.shape), rest) if rest else (0, 0)
        dims[dims.index(-1)] = (static_values.placeholder() or size) if left and unknown else size
    if prod(dims) != prod(x.shape) and not unknown:
        raise errors.ShapeError(f"reshape: the {prod(x.shape)} elements of shape {x.shape} cannot have shape {dims}")
    return shaped(x, dims)


@op(
    "reshape",
    ins=("X", "Shape?", "ShapeTensor*?"),
    outs=("Out",),
    nograd=("Shape", "ShapeTensor"),
    fold=True,
    rows=row_rules.reshape,
)
def reshape(x: Array, shape_tensor: Array | None, shape_tensors: list[Array] | None, *, shape: Ints = ()) -> Array:
    """Reshape x: 0 copies a dimension, -1 is inferred."""
    return _reshape(x, shape_tensor, shape_tensors, shape)


@op(
    "reshape2",
    ins=("X", "Shape?", "ShapeTensor*?"),
    outs=("Out", "XShape~"),
    nograd=("Shape", "ShapeTensor"),
    fold=True,
    rows=row_rules.reshape,
)
def reshape2(
    x: Array, shape_tensor: Array | None, shape_tensors: list[Array] | None, *, shape: Ints = ()
) -> tuple[Array, Array]:
    """Compute `reshape`, and return the shape of x as XShape."""
    return _reshape(x, shape_tensor, shape_tensors, shape), _x_shape(x)


def _transpose(x: Array, axis: tuple[int, ...]) -> Array:
    if sorted(a % max(x.ndim, 1) for a in axis) != list(range(x.ndim)):
        raise errors.ShapeError(f"transpose: expected axis to permute the {x.ndim} dimensions, found {tuple(axis)}")
    return numpy_of(x).transpose(x, axis)


@op("transpose", ins=("X",), outs=("Out",), fold=True, rows=row_rules.transpose)
def transpose(x: Array, *, axis: Ints, data_format: str = "AnyLayout") -> Array:
    """Bring the dimensions of x into the order axis."""
    return _transpose(x, axis)


@op("transpose2", ins=("X",), outs=("Out", "XShape~"), fold=True, rows=row_rules.transpose)
def transpose2(x: Array, *, axis: Ints, data_format: str = "AnyLayout") -> tuple[Array, Array]:
    """Compute `transpose`, and return the shape of x as XShape."""
    return _transpose(x, axis), _x_shape(x)


def _squeeze(x: Array, axes: Sequence[int]) -> Array:
    gone = {dimension(a, x.ndim, "squeeze") for a in axes} if axes else {a for a, d in enumerate(x.shape) if d == 1}
    wrong = [a for a in gone if x.shape[a] != 1 and not is_unknown(x.shape[a])]
    if wrong:
        raise errors.ShapeError(f"squeeze: expected dimensions of size 1 at {tuple(axes)}, found shape {x.shape}")
    return shaped(x, [d for a, d in enumerate(x.shape) if a not in gone])


@op("squeeze", ins=("X",), outs=("Out",), fold=True, rows=row_rules.other_axes("axes"))
def squeeze(x: Array, *, axes: Ints = ()) -> Array:
    """Remove the dimensions axes, all of size 1; every dimension of size 1 when axes is empty."""
    return _squeeze(x, axes)


@op("squeeze2", ins=("X",), outs=("Out", "XShape~"), fold=True, rows=row_rules.other_axes("axes"))
def squeeze2(x: Array, *, axes: Ints = ()) -> tuple[Array, Array]:
    """Compute `squeeze`, and return the shape of x as XShape."""
    return _squeeze(x, axes), _x_shape(x)


def _unsqueeze(x: Array, axes_tensor: Array | None, axes_tensors: list[Array] | None, axes: Sequence[int]) -> Array:
    unknown = static_values.placeholder() is not None and (axes_tensors or axes_tensor is not None)
    axes = given_ints(axes_tensors, axes_tensor, axes, "the axes of unsqueeze")
    if unknown:
        return jnp.zeros((static_values.placeholder(),) * (x.ndim + len(axes)), x.dtype)
    dims = list(x.shape)
    for axis in axes:
        if not -len(dims) - 1 <= axis <= len(dims):
            raise errors.ShapeError(f"unsqueeze: axis {axis} is outside a result of {len(dims) + 1} dimensions")
        dims.insert(axis + len(dims) + 1 if axis < 0 else axis, 1)
    return x.reshape(dims)


@op(
    "unsqueeze",
    ins=("X", "AxesTensor?", "AxesTensorList*?"),
    outs=("Out",),
    nograd=("AxesTensor", "AxesTensorList"),
    fold=True,
    rows=row_rules.new_axes,
)
def unsqueeze(x: Array, axes_tensor: Array | None, axes_tensors: list[Array] | None, *, axes: Ints = ()) -> Array:
    """Insert dimensions of size 1 at axes, in sequence."""
    return _unsqueeze(x, axes_tensor, axes_tensors, axes)


@op(
    "unsqueeze2",
    ins=("X", "AxesTensor?", "AxesTensorList*?"),
    outs=("Out", "XShape~"),
    nograd=("AxesTensor", "AxesTensorList"),
    fold=True,
    rows=row_rules.new_axes,
)
def unsqueeze2(
    x: Array, axes_tensor: Array | None, axes_tensors: list[Array] | None, *, axes: Ints = ()
) -> tuple[Array, Array]:
    """Compute `unsqueeze`, and return the shape of x as XShape."""
    return _unsqueeze(x, axes_tensor, axes_tensors, axes), _x_shape(x)


def _flatten(x: Array, axis: int) -> Array:
    if not 0 <= axis <= x.ndim:
        raise errors.ShapeError(f"flatten: expected an axis from 0 to {x.ndim}, found {axis}")
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


@op("flatten", ins=("X",), outs=("Out",), rows=row_rules.flatten)
def flatten(x: Array, *, axis: int = 1) -> Array:
    """Make x a matrix: the dimensions before axis are rows."""
    return _flatten(x, axis)


@op("flatten2", ins=("X",), outs=("Out", "XShape~"), rows=row_rules.flatten)
def flatten2(x: Array, *, axis: int = 1) -> tuple[Array, Array]:
    """Compute `flatten`, and return the shape of x as XShape."""
    return _flatten(x, axis), _x_shape(x)


def _known_axis(axis_tensor: Array | None, axis: int) -> int | None:
    """Return the axis as a number; None while shapes are inferred and a tensor gives it."""
    if axis_tensor is None:
        return axis
    if static_values.placeholder() is not None:
        return None
    return static_values.ints(axis_tensor, "the axis")[0]


@op(
    "concat",
    ins=("X*", "AxisTensor?"),
    outs=("Out",),
    nograd=("AxisTensor",),
    fold=True,
    rows=row_rules.concatenation,
    examples=("X",),
)
def concat(xs: list[Value], axis_tensor: Array | None, *, axis: int = 0) -> Value:
    """Join the arrays along axis; along the first one ragged rows are joined without padding."""
    check_one_dtype(xs, "concat")
    known = _known_axis(axis_tensor, axis)
    if known is None:
        return jnp.zeros((static_values.placeholder(),) * xs[0].ndim, xs[0].dtype)
    axis = dimension(known, xs[0].ndim, "concat")
    common = unified([x.shape for x in xs], "concat", apart_from=axis)
    if any(isinstance(x, Ragged) for x in xs):
        return appended(xs)
    xs = [shaped(x, (*common[:axis], x.shape[axis], *common[axis + 1 :])) for x in xs]
    return numpy_of(*xs).concatenate(xs, axis)


@op(
    "split",
    ins=("X", "AxisTensor?", "SectionsTensorList*?"),
    outs=("Out*",),
    nograd=("AxisTensor", "SectionsTensorList"),
    fold=True,
    rows=row_rules.by_axis("axis", 0),
)
def split(
    x: Array,
    axis_tensor: Array | None,
    section_tensors: list[Array] | None,
    *,
    axis: int = 0,
    num: int = 0,
    sections: Ints = (),
) -> list[Array]:
    """Split x along axis into num equal parts or into sections; a section of -1 takes the rest."""
    unrolled.times("split", "num", num, _MOST_PARTS)
    known = _known_axis(axis_tensor, axis)
    if known is None:
        return [jnp.zeros((static_values.placeholder(),) * x.ndim, x.dtype)] * (num or len(sections))
    axis = dimension(known, x.ndim, "split")
    sizes = list(given_ints(section_tensors, None, sections, "the sections of split"))
    total = x.shape[axis]
    if num:
        sizes = [total // num] * num
    elif sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = total - sum(s for s in sizes if s != -1)
    if any(map(is_unknown, (total, *sizes))):
        return [jnp.zeros((*x.shape[:axis], s, *x.shape[axis + 1 :]), x.dtype) for s in sizes]
    if sum(sizes) != total or min(sizes) < 0:
        raise errors.ShapeError(
            f"split: dimension {axis} of size {total} cannot be cut into "
            + (f"{num} equal parts" if num else f"sections {tuple(sections)}")
        )
    return list(numpy_of(x).split(x, np.cumsum(sizes)[:-1].tolist(), axis))


@op("stack", ins=("X*",), outs=("Y",), fold=True, rows=row_rules.stack)
def stack(xs: list[Array], *, axis: int = 0) -> Array:
    """Join arrays of one shape along a new dimension."""
    common = unified([x.shape for x in xs], "stack")
    return numpy_of(*xs).stack([shaped(x, common) for x in xs], axis)


def _unstack(x: Array, axis: int) -> list[Any]:
    if is_unknown(x.shape[axis]):  # only during inference
        return [jnp.zeros(np.delete(x.shape, axis), x.dtype)] * x.shape[axis]
    parts = unrolled.times("unstack", "number of parts", x.shape[axis], _MOST_PARTS)
    return [v.squeeze(axis) for v in numpy_of(x).split(x, parts, axis)]


@op("unstack", ins=("X",), outs=("Y*",), fold=True, rows=row_rules.by_axis("axis", 0))
def unstack(x: Array, *, axis: int = 0, num: Int) -> list[Array]:
    """Return the num slices of x along axis, without that dimension."""
    if x.shape[axis] != num and not is_unknown(x.shape[axis]):
        raise errors.ShapeError(f"unstack: dimension {axis} of shape {x.shape} is not of size num = {num}")
    return _unstack(x, axis)


@op("unbind", ins=("X",), outs=("Out*",), fold=True, rows=row_rules.by_axis("axis", 0))
def unbind(x: Array, *, axis: int = 0) -> list[Array]:
    """Return the slices of x along axis, without that dimension."""
    return _unstack(x, axis)


@op(
    "expand",
    ins=("X", "ExpandTimes?", "expand_times_tensor*?"),
    outs=("Out",),
    nograd=("ExpandTimes", "expand_times_tensor"),
    rows=row_rules.expand,
)
def expand(
    x: Array, times_tensor: Array | None, times_tensors: list[Array] | None, *, expand_times: Ints = ()
) -> Array:
    """Repeat x expand_times[i] times along dimension i."""
    times = given_ints(times_tensors, times_tensor, expand_times, "the times of expand")
    if len(times) != x.ndim or min(times, default=1) < 1:
        raise errors.ShapeError(f"expand: expected {x.ndim} positive numbers for shape {x.shape}, found {times}")
    static_values.check_elements([n * size for n, size in zip(times, x.shape)], "the result of expand")
    return jnp.tile(x, times)


@op("expand_as", ins=("X", "target_tensor"), outs=("Out",), nograd=("target_tensor",))
def expand_as(x: Array, target: Array) -> Array:
    """Repeat x until it has the shape of target."""
    if any(map(is_unknown, (*x.shape, *target.shape))):
        return jnp.zeros(target.shape, x.dtype)
    if x.ndim != target.ndim or any(t % d for d, t in zip(x.shape, target.shape, strict=True)):
        raise errors.ShapeError(f"expand_as: the target's shape {target.shape} is no multiple of shape {x.shape}")
    return jnp.tile(x, [t // d for d, t in zip(x.shape, target.shape, strict=True)])


@op("reverse", ins=("X",), outs=("Out",), rows=row_rules.other_axes("axis"))
def reverse(x: Array, *, axis: Ints) -> Array:
    """Reverse the order of the elements along each of axis."""
    return jnp.flip(x, axis)


@op("flip", ins=("X",), outs=("Out",), rows=row_rules.other_axes("dims"))
def flip(x: Array, *, dims: Ints) -> Array:
    """Reverse the order of the elements along each of dims."""
    return jnp.flip(x, dims)


@op("roll", ins=("X",), outs=("Out",), rows=row_rules.other_axes("dims"))
def roll(x: Array, *, shifts: Longs = (), dims: Longs = ()) -> Array:
    """Rotate x by shifts along dims; as one long row when dims is empty."""
    return jnp.roll(x, shifts, dims) if dims else jnp.roll(x, shifts[0])


@op("meshgrid", ins=("X*",), outs=("Out*",))
def meshgrid(xs: list[Array]) -> list[Array]:
    """Broadcast each vector along all other vectors' dimensions."""
    return list(jnp.meshgrid(*xs, indexing="ij"))


@op("shape", ins=("Input",), outs=("Out",), grad=False, fold=True, rows="sequence", counts=True)
def shape(x: Value) -> Value:
    """Return the shape of x as int32. The number of ragged rows is known when the step runs."""
    if isinstance(x, Ragged) and not x.exact:
        return jnp.stack([jnp.asarray(n, jnp.int32) for n in (x.count(), *x.shape[1:])])
    return np.array(x.shape, np.int32)


@op("size", ins=("Input",), outs=("Out",), grad=False, fold=True, rows="sequence", counts=True)
def size(x: Value) -> Value:
    """Return the number of elements of x as int64."""
    if isinstance(x, Ragged) and not x.exact:
        return jnp.reshape(x.count(), 1).astype(jnp.int64) * prod(x.shape[1:])
    return np.array([prod(x.shape)], np.int64)


@op("pixel_shuffle", ins=("X",), outs=("Out",), rows="map")
def pixel_shuffle(x: Array, *, upscale_factor: int = 1) -> Array:
    """Move channels of images [N, C*r*r, H, W] into space: [N, C, H*r, W*r]."""
    n, c, h, w = x.shape
    r = upscale_factor
    return x.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // r**2, h * r, w * r)


@op("shuffle_channel", ins=("X",), outs=("Out",), rows="map")
def shuffle_channel(x: Array, *, group: int = 1) -> Array:
    """Interleave the `group` groups of channels of [N, C, H, W]."""
    n, c, h, w = x.shape
    return x.reshape(n, group, c // group, h, w).swapaxes(1, 2).reshape(x.shape)


@op("temporal_shift", ins=("X",), outs=("Out",))
def temporal_shift(x: Array, *, seg_num: Int, shift_ratio: float = 0.25) -> Array:
    """Shift a share of channels of [N*T, C, H, W] forward by one step, and the next share backward."""
    v = x.reshape(-1, seg_num, *x.shape[1:])
    first, second = int(x.shape[1] * shift_ratio), int(x.shape[1] * 2 * shift_ratio)
    before = jnp.pad(v[:, :-1, :first], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    after = jnp.pad(v[:, 1:, first:second], ((0, 0), (0, 1), (0, 0), (0, 0), (0, 0)))
    return jnp.concatenate([before, after, v[:, :, second:]], 2).reshape(x.shape)
