"""Comparisons, logical operators and predicates of tensors, without gradients."""

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops.elementwise import aligned, binary
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import op, table
from jfluid.ops.selected_rows import SelectedRows
from jfluid.ops.shape import is_unknown, numpy_of

_COMPARE = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less_than": operator.lt,
    "less_equal": operator.le,
    "greater_than": operator.gt,
    "greater_equal": operator.ge,
}
table(
    {name: binary(name, compute) for name, compute in _COMPARE.items()},
    ins=("X", "Y"),
    outs=("Out",),
    grad=False,
    fold=True,
    rows="map",
)


def _logical(name: str) -> Callable[..., Any]:
    def apply(x: Array, y: Array) -> Array:
        if any(map(is_unknown, (*x.shape, *y.shape))):
            return jnp.zeros(x.shape, bool)
        if x.size != y.size:
            raise errors.ShapeError(
                f"{name}: both tensors need the same number of elements, found shapes {x.shape} and {y.shape}"
            )
        return getattr(numpy_of(x, y), name)(x, y.reshape(x.shape))

    apply.__doc__ = f"Compute {name.replace('_', ' ')} of two boolean tensors."
    return apply


table(
    {name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor")},
    ins=("X", "Y"),
    outs=("Out",),
    grad=False,
    fold=True,
    rows="map",
)


@op("logical_not", ins=("X",), outs=("Out",), grad=False, fold=True, rows="map")
def logical_not(x: Array) -> Array:
    """Return not x, element by element."""
    return numpy_of(x).logical_not(x)


def _values(x: Array) -> Array:
    """Return the values to test: for sparse rows, the stored values.

    Padding rows need no mask, since they are copies of real ones.
    """
    return x.values if isinstance(x, SelectedRows) else x


@op("isfinite", ins=("X",), outs=("Out",), grad=False, rows="mask", sparse=True)
def isfinite(x: Array) -> Array:
    """Return True if all elements are finite numbers."""
    return jnp.isfinite(_values(x)).all().reshape(1)


@op("isinf", ins=("X",), outs=("Out",), grad=False, rows="mask", sparse=True)
def isinf(x: Array) -> Array:
    """Return True if an element is infinite."""
    return jnp.isinf(_values(x)).any().reshape(1)


@op("isnan", ins=("X",), outs=("Out",), grad=False, rows="mask", sparse=True)
def isnan(x: Array) -> Array:
    """Return True if an element is not a number."""
    return jnp.isnan(_values(x)).any().reshape(1)


@op("is_empty", ins=("X",), outs=("Out",), grad=False, rows="sequence", counts=True)
def is_empty(x: Value) -> Value:
    """Return True if the tensor has no elements: from the shape, or from the row count of padded rows."""
    if isinstance(x, Ragged) and not x.exact:
        return jnp.reshape(x.count() == 0, 1)
    return np.array([rows_of(x).size == 0])


@op("allclose", ins=("Input", "Other"), outs=("Out",), grad=False, rows="mask")
def allclose(
    x: Array,
    other: Array,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
    rows: RowMask | None = None,
) -> Array:
    """Return True if all elements differ by at most atol + rtol * |other|; infinities are close to nothing."""
    if x.ndim != other.ndim or any(
        a != b and not is_unknown(a) and not is_unknown(b) for a, b in zip(x.shape, other.shape, strict=True)
    ):
        raise errors.ShapeError(f"allclose: the shapes must be equal, found {x.shape} and {other.shape}")
    if x.shape != other.shape:
        return jnp.zeros(1, bool)
    close = jnp.abs(jnp.subtract(x, other)) <= atol + rtol * jnp.abs(other)
    if equal_nan:
        close |= jnp.isnan(x) & jnp.isnan(other)
    close = close if rows is None else rows.zero(close, True)
    return close.all().reshape(1)


@op("equal_reduce", ins=("X", "Y"), outs=("Out",), grad=False, rows="mask")
def equal_reduce(x: Array, y: Array, *, axis: int = -1, rows: RowMask | None = None) -> Array:
    """Return True if all elements of x equal the elements of y, which is broadcast from `axis` on."""
    x, y = aligned(x, y, axis, "equal_reduce")
    same = x == y
    same = same if rows is None else rows.zero(same, True)
    return same.all().reshape(1)
