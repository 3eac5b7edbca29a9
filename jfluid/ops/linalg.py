"""Products of matrices and vectors."""

from collections.abc import Mapping
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import row_rules, unrolled
from jfluid.ops.reduce import at_least_1d
from jfluid.ops.registry import Ints, op
from jfluid.ops.shape import is_unknown


def _check_equal(what: str, x: Any, y: Any, x_size: int, y_size: int) -> bool:
    """Return True if two sizes are equal; False if a size is unknown; raise ShapeError otherwise.

    Raises ShapeError if they differ.
    """
    if x_size == y_size:
        return True
    if is_unknown(x_size) or is_unknown(y_size):
        return False
    raise errors.ShapeError(
        f"{what}: shapes {x.shape} and {y.shape} do not match: expected equal sizes, found {x_size} and {y_size}"
    )


@op("mul", ins=("X", "Y"), outs=("Out",), rows=row_rules.product, examples=("X",))
def mul(x: Array, y: Array, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> Array:
    """Multiply x and y as matrices, each flattened to two dimensions."""
    if not 0 < x_num_col_dims < x.ndim or not 0 < y_num_col_dims < y.ndim:
        raise errors.ShapeError(
            f"mul: num_col_dims must split the dimensions in two, found {x_num_col_dims} for "
            f"{x.shape} and {y_num_col_dims} for {y.shape}"
        )
    rows, width = x.shape[:x_num_col_dims], prod(x.shape[x_num_col_dims:])
    height, columns = prod(y.shape[:y_num_col_dims]), y.shape[y_num_col_dims:]
    if not _check_equal("mul", x, y, width, height):
        return jnp.zeros(rows + columns, x.dtype)
    return (x.reshape(prod(rows), width) @ y.reshape(height, prod(columns))).reshape(rows + columns)


def _as_matrix(x: Any, column: bool, transpose: bool) -> Any:
    """Return a vector as one column or one row; then exchange the last two dimensions if asked."""
    if x.ndim == 1:
        x = x[:, None] if column else x[None, :]
    return jnp.swapaxes(x, -1, -2) if transpose else x


def _batched(x: Any, y: Any) -> Any:
    """Multiply matrices in the last two dimensions.

    A single matrix is multiplied with each matrix of a batch. Two batches must have the same number of
    matrices.
    """
    if not _check_equal("matmul", x, y, x.shape[-1], y.shape[-2]):
        batch = x.shape[:-2] if x.ndim > 2 else y.shape[:-2]
        return jnp.zeros((*batch, x.shape[-2], y.shape[-1]), x.dtype)
    if x.ndim == 2 or y.ndim == 2 or x.shape[:-2] == y.shape[:-2]:
        return x @ y
    batch = x.shape[:-2]
    if not _check_equal("matmul", x, y, prod(batch), prod(y.shape[:-2])):
        return jnp.zeros((*batch, x.shape[-2], y.shape[-1]), x.dtype)
    out = x.reshape(-1, *x.shape[-2:]) @ y.reshape(-1, *y.shape[-2:])
    return out.reshape(*batch, *out.shape[-2:])


def _by_heads(x: Array, y: Array, heads: int) -> Array:
    """Return the products of each head's columns of x with the head's rows of y (or columns, if y has fewer rows)."""
    axis = -2 if y.shape[-2] == x.shape[-1] else -1
    if heads < 1 or x.shape[-1] % heads or y.shape[axis] % heads:
        raise errors.ShapeError(
            f"matmul: head_number {heads} must divide the columns of X and the {'rows' if axis == -2 else 'columns'} "
            f"of Y, found shapes {x.shape} and {y.shape}"
        )
    return jnp.concatenate([_batched(*parts) for parts in zip(jnp.split(x, heads, -1), jnp.split(y, heads, axis))], -1)


@op("matmul", ins=("X", "Y"), outs=("Out",), rows=row_rules.matrix_product, examples=("X",))
def matmul(
    x: Array,
    y: Array,
    *,
    transpose_X: bool = False,
    transpose_Y: bool = False,
    alpha: float = 1.0,
    head_number: int = 1,
    fused_reshape_Out: Ints = (),
    fused_transpose_Out: Ints = (),
) -> Array:
    """Return alpha * x @ y over the last two dimensions; a vector is a row of x or a column of y."""
    matrices = _as_matrix(x, False, transpose_X), _as_matrix(y, True, transpose_Y)
    out = _batched(*matrices) if head_number == 1 else _by_heads(*matrices, head_number)
    if x.ndim == 1 and out.shape[-2] == 1:
        out = out.reshape(*out.shape[:-2], out.shape[-1])
    if y.ndim == 1 and out.shape[-1] == 1:
        out = out.reshape(out.shape[:-1])
    out = at_least_1d(out if alpha == 1 else alpha * out)
    if fused_reshape_Out:
        out = out.reshape([out.shape[i] if n == 0 else n for i, n in enumerate(fused_reshape_Out)])
    return out.transpose(fused_transpose_Out) if fused_transpose_Out else out


@op("bmm", ins=("X", "Y"), outs=("Out",), rows="map")
def bmm(x: Array, y: Array) -> Array:
    """Multiply the matrices of two batches."""
    if x.ndim != 3 or y.ndim != 3:
        raise errors.ShapeError(f"bmm: both tensors need 3 dimensions, found shapes {x.shape} and {y.shape}")
    if not (_check_equal("bmm", x, y, x.shape[0], y.shape[0]) and _check_equal("bmm", x, y, x.shape[2], y.shape[1])):
        return jnp.zeros((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    return x @ y


@op("dot", ins=("X", "Y"), outs=("Out",), rows=row_rules.last_axis)
def dot(x: Array, y: Array) -> Array:
    """Return the inner product of two vectors, or of each row of two matrices."""
    if x.ndim not in (1, 2) or x.ndim != y.ndim:
        raise errors.ShapeError(
            f"dot: expected two tensors of one shape with 1 or 2 dimensions, found {x.shape} and {y.shape}"
        )
    if not all(_check_equal("dot", x, y, a, b) for a, b in zip(x.shape, y.shape, strict=True)):
        return jnp.zeros((*x.shape[:-1], 1), x.dtype)
    return (x * y).sum(-1, keepdims=True)


@op("addmm", ins=("Input", "X", "Y"), outs=("Out",), rows=row_rules.product)
def addmm(addend: Array, x: Array, y: Array, *, Alpha: float = 1.0, Beta: float = 1.0) -> Array:
    """Return Beta * addend + Alpha * x @ y."""
    if {addend.ndim, x.ndim, y.ndim} != {2}:
        raise errors.ShapeError(f"addmm: expected three matrices, found shapes {addend.shape}, {x.shape} and {y.shape}")
    return Beta * addend + Alpha * _batched(x, y)


@op("kron", ins=("X", "Y"), outs=("Out",))
def kron(x: Array, y: Array) -> Array:
    """Return the Kronecker product."""
    return jnp.kron(x, y)


def _cross_rows(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> str | None:
    """Return "map" if `dim` is given and is not the dimension of rows.

    Without `dim` Fluid takes the first dimension of size 3, which may be the rows.
    """
    dim = attrs.get("dim", 9)
    return "map" if dim != 9 and dim % ins["X"].ndim else None


@op("cross", ins=("X", "Y"), outs=("Out",), rows=_cross_rows)
def cross(x: Array, y: Array, *, dim: int = 9) -> Array:
    """Return cross products of 3-vectors along `dim`; 9 means the first dimension of size 3."""
    if x.shape != y.shape and not any(map(is_unknown, (*x.shape, *y.shape))):
        raise errors.ShapeError(f"cross: the shapes must be equal, found {x.shape} and {y.shape}")
    axis = x.shape.index(3) if dim == 9 and 3 in x.shape else dim
    if not -x.ndim <= axis < x.ndim or x.shape[axis] != 3:
        raise errors.ShapeError(
            f"cross: expected a dimension of size 3 ({'any' if dim == 9 else f'dim {dim}'}), found shape {x.shape}"
        )
    return jnp.cross(x, y, axis=axis) if x.shape == y.shape else x


def _trace_rows(attrs: Mapping[str, Any], ins: Mapping[str, Any]) -> str | None:
    return (
        "map" if all(attrs.get(d, default) % ins["Input"].ndim for d, default in (("dim1", -2), ("dim2", -1))) else None
    )


@op("trace", ins=("Input",), outs=("Out",), rows=_trace_rows)
def trace(x: Array, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Return the sum of the diagonal `offset` above the main one, of each matrix along dim1 and dim2."""
    return at_least_1d(jnp.trace(x, offset, dim1, dim2, dtype=x.dtype))


@op("fsp", ins=("X", "Y"), outs=("Out",), rows="map")
def fsp(x: Array, y: Array) -> Array:
    """Return the products of all channel pairs of x and y, averaged over the pixels.

    The result is the flow of a solution procedure (Yim et al., CVPR 2017).
    """
    if x.ndim != 4 or x.shape[2:] != y.shape[2:]:
        raise errors.ShapeError(
            "fsp: expected X [N, A, H, W] and Y [N, B, H, W] of the same height and width, found "
            f"{list(x.shape)} and {list(y.shape)}"
        )
    return jnp.einsum("nahw,nbhw->nab", x, y) / (x.shape[2] * x.shape[3])


@op("bilinear_tensor_product", ins=("X", "Y", "Weight", "Bias?"), outs=("Out",), rows=row_rules.unless("Weight"))
def bilinear_tensor_product(x: Array, y: Array, weight: Array, bias: Array | None) -> Array:
    """Return x[b] @ weight[s] @ y[b] for each row b and matrix s: [batch, size].

    x is [batch, M], the weight [size, M, N], y [batch, N].
    """
    if x.ndim != 2 or y.ndim != 2 or weight.shape[1:] != (x.shape[1], y.shape[1]):
        raise errors.ShapeError(
            "bilinear_tensor_product: expected X [batch, M], Y [batch, N] and Weight [size, M, N], "
            f"found {list(x.shape)}, {list(y.shape)} and {list(weight.shape)}"
        )
    out = jnp.einsum("bm,smn,bn->bs", x, weight, y)
    return out if bias is None else out + bias.reshape(1, -1)


@op("conv_shift", ins=("X", "Y"), outs=("Out",), rows="map")
def conv_shift(x: Array, y: Array) -> Array:
    """Correlate each row of x [batch, M] circularly with the row of y [batch, N].

    out[i] is the sum of x[i + j - (N - 1) / 2 mod M] * y[j] (Neural Turing Machines, arXiv:1410.5401).
    """
    if x.ndim != 2 or y.ndim != 2 or y.shape[1] % 2 == 0 or y.shape[1] > x.shape[1]:
        raise errors.ShapeError(
            "conv_shift: expected X [batch, M] and Y [batch, N], N odd and not more than M, found "
            f"{list(x.shape)} and {list(y.shape)}"
        )
    half = y.shape[1] // 2

    def term(j: Any) -> Array:
        return jnp.roll(x, half - j, 1) * unrolled.part(y, j, 1, axis=1)

    return unrolled.total(y.shape[1], term)
