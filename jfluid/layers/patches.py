"""Layers that rearrange or mark the pixels of images."""

from collections.abc import Sequence

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import check_variable, emit
from jfluid.layers.windows import each

__all__ = ["similarity_focus", "space_to_depth", "unfold"]

Size = int | Sequence[int]


def unfold(
    x: Variable, kernel_sizes: Size, strides: Size = 1, paddings: Size = 0, dilations: Size = 1, name: str | None = None
) -> Variable:
    """Return windows of images as columns (im2col).

    Args:
        x: float [N, C, H, W].
        kernel_sizes: one number, or one for each of height and width.
        strides: see `kernel_sizes`.
        paddings: one number, one for each of height and width, or [top, left, bottom, right].
        dilations: see `kernel_sizes`.
        name: the name of the result.

    Returns:
        [N, C * height * width of a window, windows], windows row by row.

    Raises ShapeError for an input of other dimensions, or smaller than a window; ProgramError for
    other sizes.
    """
    check_variable(x, "unfold", "x")
    if len(x.shape) != 4:
        raise errors.ShapeError(f"layers.unfold: x is [N, C, H, W], found {list(x.shape)}")
    if isinstance(paddings, (list, tuple)) and len(paddings) == 4:
        pads = list(paddings)
    else:
        pads = each(paddings, 2, "unfold", "paddings") * 2
    attrs = {
        "kernel_sizes": each(kernel_sizes, 2, "unfold", "kernel_sizes"),
        "strides": each(strides, 2, "unfold", "strides"),
        "paddings": pads,
        "dilations": each(dilations, 2, "unfold", "dilations"),
    }
    return emit("unfold", {"X": x}, attrs, outs=("Y",), name=name)


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Rearrange [N, C, H, W] to [N, C * blocksize ** 2, H / blocksize, W / blocksize].

    As in Fluid (and the "reorg" of YOLOv2) blocks of channels are spread over blocks of pixels, and
    the result is read in the new shape. C must be divisible by blocksize ** 2, H and W by blocksize;
    ShapeError is raised otherwise.
    """
    return emit("space_to_depth", {"X": x}, {"blocksize": blocksize}, name=name)


def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """Mark the largest elements of planes of [N, A, B, C].

    Args:
        input: float [N, A, B, C].
        axis: 1, 2 or 3.
        indexes: which planes along the axis count.
        name: the name of the result.

    Returns:
        The shape of `input`: 1 where, in one of those planes, an element is the largest that shares
            no row and no column with a larger one that was taken before, for all elements along the
            axis; else 0. It has no gradient.

    Raises ProgramError for another axis, and for no index. Source: He and Lin, Pairwise Word
    Interaction Modeling (NAACL 2016).
    """
    if axis not in (1, 2, 3):
        raise errors.ProgramError(f"layers.similarity_focus: axis is 1, 2 or 3, found {axis!r}")
    if not isinstance(indexes, (list, tuple)):
        raise TypeError(f"layers.similarity_focus: indexes is a list, found {indexes!r:.60}")
    if not indexes:
        raise errors.ProgramError("layers.similarity_focus: indexes is empty")
    attrs = {"axis": axis, "indexes": list(indexes)}
    return emit("similarity_focus", {"X": input}, attrs, name=name)
