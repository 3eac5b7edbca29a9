"""Similarity focus: a mask of the salient elements of a plane."""

import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops.registry import Ints, op


@op("similarity_focus", ins=("X",), outs=("Out",), grad=False, rows="map")
def similarity_focus(x: Array, *, axis: int, indexes: Ints) -> Array:
    """Return a mask of x [N, A, B, C] with the salient elements of the planes x[:, index] along `axis`.

    They are the largest elements of a plane that share no row and no column with a larger selected element. The
    mask is the same for all planes along the axis.
    """
    if x.ndim != 4 or axis not in (1, 2, 3):
        raise errors.ShapeError(
            f"similarity_focus: expected X of 4 dimensions and axis 1, 2 or 3, found {list(x.shape)} and {axis}"
        )
    if not indexes or not all(0 <= i < x.shape[axis] for i in indexes):
        raise errors.AttributeTypeError(
            f"similarity_focus, indexes: expected indices from 0 to {x.shape[axis] - 1}, found {list(indexes)}"
        )
    planes = jnp.moveaxis(x, axis, 1)[:, jnp.array(indexes)]
    height, width = planes.shape[2:]
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)

    def choose(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, chosen = state
        best = jnp.argmax(left.reshape(*left.shape[:2], -1), -1)[..., None, None]
        row, column = best // width == rows, best % width == columns
        return jnp.where(row | column, -jnp.inf, left), chosen | (row & column)

    start = planes, jnp.zeros(planes.shape, bool)
    chosen = lax.fori_loop(0, min(height, width), choose, start)[1].any(1, keepdims=True)
    return jnp.broadcast_to(jnp.moveaxis(chosen, 1, axis), x.shape).astype(x.dtype)
