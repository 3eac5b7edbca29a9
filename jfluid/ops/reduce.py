"""Reductions and norms. A full reduction has shape (1,), as everywhere in Fluid."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import np_dtype
from jfluid.ops import row_rules
from jfluid.ops.elementwise import aligned, is_float, magnitude, quotient
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Float, Int, Ints, op, table
from jfluid.ops.selected_rows import SelectedRows


def axes_of(x: Any, dim: Ints, everything: bool, what: str) -> tuple[int, ...]:
    """Return the axes to reduce, none negative. Raises ShapeError for one that `x` does not have."""
    if everything:
        return tuple(range(x.ndim))
    if not dim or any(not -x.ndim <= d < x.ndim for d in dim):
        raise errors.ShapeError(f"{what}: dim must name dimensions of a tensor of shape {x.shape}, found {list(dim)}")
    return tuple(sorted({d % x.ndim for d in dim}))


def at_least_1d(x: Any) -> Any:
    """Return a scalar as a tensor of one element."""
    return x if x.ndim else x.reshape(1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 2, 3))
def _extreme(reduce: str, x: Array, axes: Sequence[int], keep: bool) -> Array:
    return getattr(x, reduce)(axis=axes, keepdims=keep)


@_extreme.defjvp
def _extreme_jvp(
    reduce: str, axes: Sequence[int], keep: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Array, Array]:
    # Each of several equal extremes gets the whole gradient.
    (x,) = primals
    out = _extreme(reduce, x, axes, True)
    tangent = jnp.where(x == out, tangents[0], 0.0).sum(axes, keepdims=keep)
    return out.reshape(tangent.shape), tangent


def extreme(reduce: str, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """Return the largest (`reduce` "max") or smallest ("min") element along `axes`."""
    if isinstance(x, np.ndarray) or not is_float(x):
        return getattr(x, reduce)(axis=axes, keepdims=keep)
    return _extreme(reduce, x, axes, keep)


def _mean(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    if is_float(x):
        return x.mean(axis=axes, keepdims=keep)
    count = np.asarray(max(1, int(np.prod([x.shape[a] for a in axes]))), x.dtype)
    return quotient(x.sum(axis=axes, keepdims=keep, dtype=x.dtype), count)


_REDUCE = {
    "sum": lambda x, axes, keep: x.sum(axis=axes, keepdims=keep, dtype=x.dtype),
    "mean": _mean,
    "max": lambda x, axes, keep: extreme("max", x, axes, keep),
    "min": lambda x, axes, keep: extreme("min", x, axes, keep),
    "prod": lambda x, axes, keep: x.prod(axis=axes, keepdims=keep, dtype=x.dtype),
    "all": lambda x, axes, keep: x.all(axis=axes, keepdims=keep),
    "any": lambda x, axes, keep: x.any(axis=axes, keepdims=keep),
}


def _neutral(name: str, dtype: Any) -> Any:
    """Return the identity element of a reduction, to fill padding rows."""
    if name in ("reduce_max", "reduce_min"):
        if jnp.issubdtype(dtype, jnp.inexact):
            return -jnp.inf if name == "reduce_max" else jnp.inf
        return jnp.iinfo(dtype).min if name == "reduce_max" else jnp.iinfo(dtype).max
    return {"reduce_prod": 1, "reduce_all": True}.get(name, 0)


def reduction(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a reducing operator."""

    def apply(
        x: Array,
        *,
        dim: Ints = (0,),
        keep_dim: bool = False,
        reduce_all: bool = False,
        in_dtype: int = -1,
        out_dtype: int = -1,
        rows: RowMask | None = None,
    ) -> Array:
        if out_dtype >= 0:
            x = x.astype(np_dtype(out_dtype))
        elif in_dtype >= 0:
            x = x.astype(np_dtype(in_dtype))
        axes = axes_of(x, dim, reduce_all, name)
        if rows is None:
            return at_least_1d(compute(x, axes, keep_dim))
        out = compute(rows.zero(x, _neutral(name, x.dtype)), axes, keep_dim)
        if name == "reduce_mean":
            out = quotient(out * np.asarray(x.shape[0], x.dtype), jnp.maximum(rows.count, 1).astype(x.dtype))
        return at_least_1d(out)

    apply.__doc__ = f"Compute {name} over the dimensions `dim`, or over all of them."
    return apply


table(
    {f"reduce_{n}": reduction(f"reduce_{n}", _REDUCE[n]) for n in ("sum", "mean", "max", "min", "prod")},
    ins=("X",),
    outs=("Out",),
    fold=True,
    rows=row_rules.by_dim,
)
table(
    {f"reduce_{n}": reduction(f"reduce_{n}", _REDUCE[n]) for n in ("all", "any")},
    ins=("X",),
    outs=("Out",),
    grad=False,
    fold=True,
    rows=row_rules.by_dim,
)


@op("mean", ins=("X",), outs=("Out",), rows="mask")
def mean(x: Array, *, rows: RowMask | None = None) -> Array:
    """Return the mean of all elements."""
    if rows is None:
        return jnp.mean(x).reshape(1)
    count = jnp.maximum(rows.count, 1).astype(x.dtype) * (x.size // x.shape[0])
    return (jnp.sum(rows.zero(x)) / count).reshape(1)


def root(squares: Any) -> Any:
    """Return the square root, with gradient zero at zero."""
    return power(squares, 0.5)


def power(base: Any, exponent: float) -> Any:
    """Return base ** exponent for base >= 0, with gradient zero at base zero."""
    positive = base > 0
    safe = jnp.where(positive, base, 1.0)
    return jnp.where(positive, jnp.sqrt(safe) if exponent == 0.5 else safe**exponent, 0.0)


table(
    {"frobenius_norm": reduction("frobenius_norm", lambda x, axes, keep: root((x * x).sum(axes, keepdims=keep)))},
    ins=("X",),
    outs=("Out",),
    rows=row_rules.by_dim,
)


def _power_sum(x: Any, order: float, axis: Any, keep: bool) -> Any:
    """Return (sum of |x| ** order) ** (1 / order)."""
    if order == 1:
        return magnitude(x).sum(axis, keepdims=keep)
    if order == 2:
        return root((x * x).sum(axis, keepdims=keep))
    return power(power(magnitude(x), order).sum(axis, keepdims=keep), 1 / order)


@op("p_norm", ins=("X",), outs=("Out",), rows=row_rules.by_axis("axis"))
def p_norm(x: Array, *, porder: float = 2.0, axis: int = -1, epsilon: float = 1e-12, keepdim: bool = False) -> Array:
    """Return the norm of order `porder` along one axis.

    Where it is zero it has no gradient, so epsilon is not needed.
    """
    if not 0 < porder < float("inf"):
        raise errors.ShapeError(f"p_norm: porder must be positive and finite, found {porder}")
    return _power_sum(x, porder, axis, keepdim)


@op("dist", ins=("X", "Y"), outs=("Out",))
def dist(x: Array, y: Array, *, p: float = 2.0) -> Array:
    """Return the norm of order p of x - y, broadcast against each other."""
    x, y = aligned(x, y, -1, "dist")
    away = (x - y).reshape(-1)
    if p == 0:
        return jnp.count_nonzero(away).astype(x.dtype).reshape(1)
    if abs(p) == float("inf"):
        return extreme("max" if p > 0 else "min", magnitude(away), (0,), True)
    return _power_sum(away, p, 0, True)


@op("l1_norm", ins=("X",), outs=("Out",), rows="mask")
def l1_norm(x: Array, *, rows: RowMask | None = None) -> Array:
    """Return the sum of magnitudes."""
    return magnitude(x if rows is None else rows.zero(x)).sum().reshape(1)


@op("squared_l2_norm", ins=("X",), outs=("Out",), rows="mask")
def squared_l2_norm(x: Array, *, rows: RowMask | None = None) -> Array:
    """Return the sum of squares."""
    return jnp.square(x if rows is None else rows.zero(x)).sum().reshape(1)


@op("norm", ins=("X",), outs=("Norm~", "Out"), rows=row_rules.by_axis("axis"))
def norm(x: Array, *, axis: Int, epsilon: Float = 1e-10) -> tuple[Array, Array]:
    """Divide x by its Euclidean norm along `axis`; epsilon is added to the sum of squares."""
    length = jnp.sqrt(jnp.square(x).sum(axis, keepdims=True) + epsilon)
    return length, x / length


@op("clip_by_norm", ins=("X",), outs=("Out",), grad=False, sparse=True, rows="mask", row_outs=("Out",), entire=True)
def clip_by_norm(x: Array, *, max_norm: Float, rows: RowMask | None = None) -> Array | SelectedRows:
    """Scale x to the Euclidean norm `max_norm` if its norm is larger.

    Duplicate sparse rows are summed first.
    """
    if isinstance(x, SelectedRows):
        return x.merged().map(lambda v: _clipped_to_norm(v, v, max_norm))
    return _clipped_to_norm(x, x if rows is None else rows.zero(x), max_norm)


def _clipped_to_norm(x: Array, measured: Array, max_norm: float) -> Array:
    """Scale x by the norm of `measured`."""
    length = jnp.sqrt(jnp.square(measured).sum())
    return jnp.where(length > max_norm, x * (max_norm / jnp.maximum(length, max_norm)), x)


def _rows(x: Any) -> Any:
    """Return x as a matrix with one row for each sample."""
    return x.reshape(x.shape[0], int(np.prod(x.shape[1:])))


@op("squared_l2_distance", ins=("X", "Y"), outs=("sub_result~", "Out"), rows="map")
def squared_l2_distance(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the squared Euclidean distance between rows of x and y; y may have a single row."""
    x, y = aligned(_rows(x), _rows(y), -1, "squared_l2_distance")
    return x - y, jnp.square(x - y).sum(1, keepdims=True)


@op("cos_sim", ins=("X", "Y"), outs=("Out", "XNorm~", "YNorm~"), rows="map")
def cos_sim(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the cosine similarity of rows of x and y; y may have a single row."""
    x, y = aligned(_rows(x), _rows(y), -1, "cos_sim")
    # Fluid's 1e-8 keeps the norm of a zero row away from zero.
    x_norm, y_norm = (jnp.sqrt(jnp.square(v).sum(1, keepdims=True) + 1e-8) for v in (x, y))
    return (x * y).sum(1, keepdims=True) / (x_norm * y_norm), x_norm, y_norm
