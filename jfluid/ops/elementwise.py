"""Arithmetic of two tensors with Fluid's broadcasting, and functions of one tensor other than activations."""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import row_rules
from jfluid.ops.axes import check_one_dtype, dimension
from jfluid.ops.ragged import Ragged
from jfluid.ops.registry import op, table
from jfluid.ops.selected_rows import SelectedRows, densified, joined
from jfluid.ops.shape import is_unknown, numpy_of


def _placed(array: Any, rank: int, axis: int, what: str) -> Any:
    """Reshape `array` to broadcast against `rank` dimensions from dimension `axis`.

    Trailing dimensions of size 1 may be left out.
    """
    shape = array.shape
    while axis + len(shape) > rank and shape and shape[-1] == 1:
        shape = shape[:-1]
    if axis < 0 or axis + len(shape) > rank:
        raise errors.ShapeError(
            f"{what}: shape {array.shape} cannot be broadcast at axis {axis} of a tensor of {rank} dimensions"
        )
    return array.reshape((1,) * axis + shape + (1,) * (rank - axis - len(shape)))


def aligned(x: Any, y: Any, axis: int, what: str) -> tuple[Any, ...]:
    """Reshape `x` and `y` so that NumPy broadcasts the tensors as Fluid's `axis` asks.

    The tensor with fewer dimensions is placed at dimension `axis` of the larger tensor; -1 means its last
    dimensions. `what` names the operator in errors. Raises ShapeError or DtypeError for tensors that do not
    match.
    """
    check_one_dtype([x, y], what)
    rank = max(x.ndim, y.ndim)
    if x.ndim != y.ndim:
        start = abs(x.ndim - y.ndim) if axis == -1 else axis
        x, y = (v if v.ndim == rank else _placed(v, rank, start, what) for v in (x, y))
    return _fitted(x, y, what)


def _fitted(x: Any, y: Any, what: str) -> tuple[Any, ...]:
    """Compare the dimensions; while shapes are inferred an unknown one fits every other."""
    shapes = [list(x.shape), list(y.shape)]
    for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)):
        if a == b or 1 in (a, b):
            continue
        if not is_unknown(a) and not is_unknown(b):
            raise errors.ShapeError(
                f"{what}: shapes {x.shape} and {y.shape} do not broadcast: "
                f"dimension {i} is {a} in the first and {b} in the second"
            )
        shapes[0][i] = shapes[1][i] = b if is_unknown(a) else a
    return tuple(v if list(v.shape) == s else jnp.zeros(s, v.dtype) for v, s in zip((x, y), shapes, strict=True))


def only(tensor: Any, dtype: Any) -> Any:
    """Return the number in a tensor of one element."""
    return tensor.ravel()[0].astype(dtype)


def is_float(array: Any) -> bool:
    """Return True if the array has floating-point numbers."""
    return jnp.issubdtype(array.dtype, jnp.floating)


def quotient(x: Any, y: Any) -> Any:
    """Divide integers, rounding towards zero as in C."""
    if numpy_of(x, y) is np:
        return np.sign(x) * np.sign(y) * (abs(x) // abs(y))
    return jax.lax.div(*jnp.broadcast_arrays(x, y))


def _divide(x: Array, y: Array) -> Array:
    return x / y if is_float(x) else quotient(x, y)


def _remainder(x: Array, y: Array) -> Array:
    """Return the remainder, with the sign of the divisor for floats and of the dividend (as in C) for integers."""
    return x % y if is_float(x) else numpy_of(x, y).fmod(x, y)


def _power(x: Array, y: Array) -> Array:
    if is_float(x):
        return numpy_of(x, y).power(x, y)
    module = numpy_of(x, y)
    return module.rint(module.power(x.astype(np.float64), y.astype(np.float64))).astype(x.dtype)


def _larger(x: Array, y: Array) -> Array:
    # At a tie the whole gradient goes to y, so this is not jnp.maximum.
    return numpy_of(x, y).where(x > y, x, y)


def _smaller(x: Array, y: Array) -> Array:
    return numpy_of(x, y).where(x < y, x, y)


def binary(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an operator (X, Y) -> Out with attribute `axis`."""

    def apply(x: Array, y: Array, *, axis: int = -1) -> Array:
        return compute(*aligned(x, y, axis, name))

    apply.__name__ = name
    apply.__doc__ = f"Compute {name.replace('_', ' ')} of x and y, the one with fewer dimensions placed at `axis`."
    return apply


def _by_example(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> bool:
    """Return True if X and Y pair by example, or if all examples share Y."""
    x, y = ins["X"], ins["Y"]
    if isinstance(y, Ragged):
        return isinstance(x, Ragged) and x.shape == y.shape
    start = x.ndim - y.ndim if attrs.get("axis", -1) == -1 else attrs["axis"]
    return bool(0 < start and y.ndim < x.ndim)


_BINARY = {"add": operator.add, "sub": operator.sub, "max": _larger, "min": _smaller, "pow": _power}
table(
    {f"elementwise_{n}": binary(f"elementwise_{n}", f) for n, f in _BINARY.items()},
    ins=("X", "Y"),
    outs=("Out",),
    fold=True,
    examples=_by_example,
)
table(
    {f"elementwise_{n}": binary(f"elementwise_{n}", f) for n, f in {"mod": _remainder, "floordiv": quotient}.items()},
    ins=("X", "Y"),
    outs=("Out",),
    grad=False,
    fold=True,
    rows="map",
)


def _scaled_rows(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `binary`'s that also takes sparse rows with one number."""
    dense = binary(name, compute)

    def apply(x: Array, y: Array, *, axis: int = -1) -> Array | SelectedRows:
        if not isinstance(x, SelectedRows):
            return dense(x, y, axis=axis)
        if y.size != 1:
            raise errors.ShapeError(f"{name}: sparse rows go with one number, found shape {list(y.shape)}")
        return x.map(lambda v: compute(v, y.reshape(()).astype(v.dtype)))

    apply.__doc__ = dense.__doc__
    return apply


table(
    {f"elementwise_{n}": _scaled_rows(f"elementwise_{n}", f) for n, f in {"mul": operator.mul, "div": _divide}.items()},
    ins=("X", "Y"),
    outs=("Out",),
    fold=True,
    sparse=True,
    examples=_by_example,
)


@op("minus", ins=("X", "Y"), outs=("Out",), rows="map")
def minus(x: Array, y: Array) -> Array:
    """Return x - y for equal shapes."""
    return operator.sub(*_equal_shapes("minus", x, y))


@op("sum", ins=("X*",), outs=("Out",), fold=True, sparse=True, examples=("X",))
def sum_(xs: list[Array | SelectedRows]) -> Array | SelectedRows:
    """Add up tensors of equal shape; of sparse rows alone, the result has the rows of all."""
    if not xs:
        raise errors.ShapeError("sum: the list of tensors is empty")
    sparse = [x for x in xs if isinstance(x, SelectedRows)]
    if len(sparse) == len(xs):
        return joined(sparse)
    xs = [densified(x) for x in xs]
    return functools.reduce(lambda a, b: operator.add(*_equal_shapes("sum", a, b)), xs)


def _equal_shapes(what: str, x: Any, y: Any) -> tuple[Any, Any]:
    if x.ndim != y.ndim:
        raise errors.ShapeError(f"{what}: the shapes must be equal, found {x.shape} and {y.shape}")
    x, y = aligned(x, y, -1, what)
    if x.shape != y.shape:
        raise errors.ShapeError(f"{what}: the shapes must be equal, found {x.shape} and {y.shape}")
    return x, y


@op("scale", ins=("X", "ScaleTensor?"), outs=("Out",), nograd=("ScaleTensor",), fold=True, sparse=True, examples=("X",))
def scale(
    x: Array, scale_tensor: Array | None, *, scale: float = 1.0, bias: float = 0.0, bias_after_scale: bool = True
) -> Array | SelectedRows:
    """Return x * scale + bias, or (x + bias) * scale.

    Of integers only the whole parts of scale and bias are used.
    """
    if isinstance(x, SelectedRows):
        return (x.settled() if bias else x).map(lambda v: _scaled(v, scale_tensor, scale, bias, bias_after_scale))
    return _scaled(x, scale_tensor, scale, bias, bias_after_scale)


def _scaled(x: Array, scale_tensor: Array | None, scale: float, bias: float, bias_after_scale: bool) -> Array:
    if scale_tensor is not None:
        scale = only(scale_tensor, x.dtype)
    elif not is_float(x):
        scale = int(scale)
    bias = bias if is_float(x) else int(bias)
    out = (x * scale + bias if bias_after_scale else (x + bias) * scale) if bias else x * scale
    return out.astype(x.dtype)


@op("pow", ins=("X", "FactorTensor?"), outs=("Out",), nograd=("FactorTensor",), rows="map")
def pow_(x: Array, factor_tensor: Array | None, *, factor: float = 1.0) -> Array:
    """Return x to the power of `factor`, element by element."""
    if factor_tensor is not None:
        return jnp.power(x, only(factor_tensor, x.dtype))
    if factor.is_integer() and (is_float(x) or factor >= 0):
        return jax.lax.integer_pow(x, int(factor))
    return jnp.power(x, factor).astype(x.dtype)


def between(x: Any, low: Any, high: Any) -> Any:
    """Clip x to [low, high]. The gradient is zero at the bounds, unlike that of jnp.clip."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x)).astype(x.dtype)


@op("clip", ins=("X", "Min?", "Max?"), outs=("Out",), nograd=("Min", "Max"), rows="map", sparse=True)
def clip(x: Array, low: Array | None, high: Array | None, *, min: float, max: float) -> Array | SelectedRows:
    """Limit x to min..max, given as numbers or as tensors of one element.

    Equal sparse rows are added up first.
    """
    if low is None and high is None and min >= max:
        raise errors.ShapeError(f"clip: min must be less than max, found {min} and {max}")
    bounds = [bound if tensor is None else only(tensor, x.dtype) for tensor, bound in ((low, min), (high, max))]
    if isinstance(x, SelectedRows):
        return x.merged().map(lambda v: between(v, *bounds))
    return between(x, *bounds)


@op("cumsum", ins=("X",), outs=("Out",), rows=row_rules.by_axis("axis"))
def cumsum(x: Array, *, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Array:
    """Return running sums along `axis`; exclusive ones leave the element itself out."""
    axis = dimension(axis, x.ndim, "cumsum")
    if exclusive:
        ahead = (slice(None),) * axis
        kept, lost = (slice(1, None), slice(0, 1)) if reverse else (slice(None, -1), slice(-1, None))
        zero = jnp.zeros_like(x[(*ahead, lost)])
        x = jnp.concatenate([x[(*ahead, kept)], zero] if reverse else [zero, x[(*ahead, kept)]], axis)
    return jax.lax.cumsum(x, axis, reverse)


def _round(x: Array) -> Array:
    return jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO)


def magnitude(x: Any) -> Any:
    """Return the absolute value with gradient zero at zero (jnp.abs has one)."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def _exponential(x: Array) -> Array:
    """Return e to the power of x; of integers in float64, and cut to integers."""
    return jnp.exp(x.astype(jnp.float64)).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else jnp.exp(x)


def unary(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Give `compute` the signature of an operator X -> Out; JAX's functions have parameters that are no attributes."""
    return lambda x: compute(x)


def _unary_of_rows(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `unary`'s that maps the values of sparse rows."""
    return lambda x: x.settled().map(compute) if isinstance(x, SelectedRows) else compute(x)


_UNARY = {
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "square": jnp.square,
    "exp": _exponential,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "abs": magnitude,
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "round": _round,
    "reciprocal": jnp.reciprocal,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "erf": jax.lax.erf,
    "sign": jnp.sign,
}
_OF_SPARSE = ("abs", "sqrt", "square")
table(
    {name: unary(compute) for name, compute in _UNARY.items() if name not in _OF_SPARSE},
    ins=("X",),
    outs=("Out",),
    examples=("X",),
)
table(
    {name: _unary_of_rows(_UNARY[name]) for name in _OF_SPARSE}, ins=("X",), outs=("Out",), examples=("X",), sparse=True
)
