"""Spatial transformers: grids of points and bilinear image sampling (arXiv:1506.02025)."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ops import static_values
from jfluid.ops.bilinear import between_pixels
from jfluid.ops.registry import Ints, op


@op("grid_sampler", ins=("X", "Grid"), outs=("Output",), rows="map")
def grid_sampler(x: Array, grid: Array) -> Array:
    """Sample each image of x at its points (x, y); -1 and 1 are the centres of the outermost pixels.

    Points outside the image sample zero.
    """
    if x.ndim != 4 or grid.ndim != 4 or grid.shape[3] != 2 or grid.shape[0] != x.shape[0]:
        raise errors.ShapeError(
            f"grid_sampler: expected X [N, C, H, W] and Grid [N, H', W', 2], found {list(x.shape)} "
            f"and {list(grid.shape)}"
        )
    column, row = ((grid[..., i] + 1) * ((x.shape[3 - i] - 1) / 2) for i in (0, 1))
    image = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None, None]
    found = between_pixels(x.transpose(0, 2, 3, 1), image, row, column)
    return found.transpose(0, 3, 1, 2)


@op("affine_grid", ins=("Theta", "OutputShape?"), outs=("Output",), nograd=("OutputShape",), rows="map")
def affine_grid(theta: Array, wanted: Array | None, *, output_shape: Ints = ()) -> Array:
    """Return the points [N, H, W, 2] at which an affine map theta [N, 2, 3] samples images [N, C, H, W].

    Each point is theta (x, y, 1) for x and y from -1 to 1.
    """
    shape = output_shape
    if wanted is not None:
        shape = static_values.sizes(wanted, "the shape that affine_grid makes points for")
    if theta.shape[1:] != (2, 3) or len(shape) != 4:
        raise errors.ShapeError(
            "affine_grid: expected Theta [N, 2, 3] and an output shape [N, C, H, W], found "
            f"{list(theta.shape)} and {list(shape)}"
        )
    y, x = (jnp.asarray(np.linspace(-1, 1, n), theta.dtype) for n in shape[2:])
    x, y = jnp.meshgrid(x, y)
    return jnp.einsum("hwk,nik->nhwi", jnp.stack([x, y, jnp.ones_like(x)], -1), theta)
