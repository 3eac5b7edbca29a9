"""Rules for operators that work along an axis: whether row i of the output depends on row i of the input only.

Each rule takes the attributes and the inputs by slot, and returns "map", "mask", "sequence" or None
(see `jfluid.ops.ragged_dispatch`).
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from jfluid.ops.ragged import Ragged

Attrs = Mapping[str, Any]
Ins = Mapping[str, Any]
Rule = Callable[[Attrs, Ins], str | None]


def _first(ins: Ins, slot: str) -> Any:
    return ins[slot][0] if isinstance(ins[slot], list) else ins[slot]


def by_axis(attribute: str, default: int = -1, slot: str = "X") -> Rule:
    """Return the rule for operators along one axis: "map" unless the axis is the dimension of rows.

    A tensor in place of the attribute gives None.
    """

    def rule(attrs: Attrs, ins: Ins) -> str | None:
        if ins.get("AxisTensor") is not None:
            return None
        return "map" if attrs.get(attribute, default) % max(_first(ins, slot).ndim, 1) else None

    return rule


def concatenation(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for a concatenation of columns, "sequence" for a concatenation of rows."""
    if ins.get("AxisTensor") is not None:
        return None
    return "map" if attrs.get("axis", 0) % max(_first(ins, "X").ndim, 1) else "sequence"


def last_axis(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for operators along the last axis if all ragged inputs have several dimensions."""
    return "map" if all(_first(ins, s).ndim > 1 for s in ins if isinstance(_first(ins, s), Ragged)) else None


def by_dim(attrs: Attrs, ins: Ins) -> str:
    """Return "mask" for a reduction over rows, "map" for a reduction within each row."""
    x = ins["X"]
    over_rows = attrs.get("reduce_all", False) or any(d % x.ndim == 0 for d in attrs.get("dim", (0,)))
    return "mask" if over_rows else "map"


def by_reduction(attrs: Attrs, ins: Ins) -> str:
    """Return "map" for a loss of each row, "mask" for a loss over all rows."""
    return "map" if attrs.get("reduction", "mean") == "none" else "mask"


def unless(slot: str) -> Rule:
    """Return the rule of operators that read all rows of `slot` for each row: "map" if the rows are not padded."""
    return lambda attrs, ins: None if isinstance(ins[slot], Ragged) else "map"


def without(slot: str) -> Rule:
    """Return the rule of operators that work by sequences, or on rows with lengths in `slot`: these must be exact."""
    return lambda attrs, ins: "sequence" if ins.get(slot) is None else None


def product(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for a `mul` that multiplies each row of X by one matrix."""
    return None if isinstance(ins["Y"], Ragged) else "map"


def matrix_product(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for a `matmul` of rows of X with one matrix, or of batches of matrices."""
    x, y = ins["X"], ins["Y"]
    if isinstance(y, Ragged):
        return "map" if isinstance(x, Ragged) and min(x.ndim, y.ndim) > 2 else None
    if x.ndim > 2:
        return "map" if y.ndim == 2 else None
    return "map" if x.ndim == 2 and y.ndim == 2 and not attrs.get("transpose_X", False) else None


def reshape(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for a reshape that keeps the first dimension, given as 0 or implied by -1."""
    shape, x = attrs.get("shape", ()), ins["X"]
    if not shape or ins.get("Shape") is not None or ins.get("ShapeTensor"):
        return None
    rest = [x.shape[i] if d == 0 and i < x.ndim else d for i, d in enumerate(shape)][1:]
    if shape[0] == 0:
        return "map"
    return "map" if shape[0] == -1 and -1 not in rest and prod(rest) == prod(x.shape[1:]) else None


def transpose(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for a transposition that keeps the first dimension."""
    return "map" if attrs["axis"] and attrs["axis"][0] == 0 else None


def other_axes(attribute: str, slot: str = "X") -> Rule:
    """Return the rule for operators along several axes: "map" if no axis is the dimension of rows.

    An unknown or empty list gives None.
    """

    def rule(attrs: Attrs, ins: Ins) -> str | None:
        axes, x = attrs.get(attribute, ()), _first(ins, slot)
        return "map" if axes and all(a % max(x.ndim, 1) for a in axes) else None

    return rule


def new_axes(attrs: Attrs, ins: Ins) -> str | None:
    """Return "map" for an `unsqueeze` that inserts no dimension before the rows."""
    axes = attrs.get("axes", ())
    return "map" if axes and all(a > 0 or (a < 0 and -a <= ins["X"].ndim) for a in axes) else None


def flatten(attrs: Attrs, ins: Ins) -> str | None:
    return "map" if attrs.get("axis", 1) == 1 else None


def stack(attrs: Attrs, ins: Ins) -> str | None:
    return "map" if attrs.get("axis", 0) % (_first(ins, "X").ndim + 1) else None


def expand(attrs: Attrs, ins: Ins) -> str | None:
    times = attrs.get("expand_times", ())
    return (
        "map"
        if times and times[0] == 1 and ins.get("ExpandTimes") is None and not ins.get("expand_times_tensor")
        else None
    )


def fully_connected(attrs: Attrs, ins: Ins) -> str | None:
    """`fc` is a map: the first dimension is never multiplied by the weight."""
    return None if isinstance(ins["W"], Ragged) or isinstance(ins["Bias"], Ragged) else "map"
