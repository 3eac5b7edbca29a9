"""Layers of spatial transformers."""

from collections.abc import Sequence

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit

__all__ = ["affine_grid", "grid_sampler"]


def affine_grid(theta: Variable, out_shape: Sequence[int] | Variable, name: str | None = None) -> Variable:
    """Return the sampling points of affine transformations of images.

    Args:
        theta: float [N, 2, 3], the transformations: a point of the image is theta (x, y, 1).
        out_shape: [N, C, H, W] of the result, as numbers or a tensor of int32. x and y go from -1 to
            1 over its width and height; where that is 1, from -1 alone (NaN in Fluid).
        name: not used, as in Fluid.

    Returns:
        [N, H, W, 2], points (x, y) for `grid_sampler`.

    Raises ShapeError for other shapes. Source: Jaderberg et al., Spatial Transformer Networks
    (arXiv:1506.02025).
    """
    if isinstance(out_shape, Variable):
        return emit("affine_grid", {"Theta": theta, "OutputShape": out_shape}, outs=("Output",))
    if not isinstance(out_shape, (list, tuple)):
        raise errors.ProgramError(
            f"layers.affine_grid: out_shape is a list, a tuple or a Variable, found {out_shape!r:.60}"
        )
    attrs = {"output_shape": list(out_shape)}
    return emit("affine_grid", {"Theta": theta}, attrs, outs=("Output",))


def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Sample images at points, interpolated between the four pixels around; pixels outside are zero.

    Args:
        x: float [N, C, H, W].
        grid: float [N, H', W', 2], points (x, y): -1 is the centre of the first column or row, 1 that
            of the last. Fluid takes only H' = H and W' = W.
        name: the name of the result.

    Returns:
        [N, C, H', W'].

    Raises ShapeError for other shapes. Source: as `affine_grid`.
    """
    return emit("grid_sampler", {"X": x, "Grid": grid}, outs=("Output",), name=name)
