"""Layers that change the shape or the order of elements."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import LayerHelper, emit
from jfluid.layers.tensor import Integers, integers

__all__ = [
    "crop",
    "crop_tensor",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "meshgrid",
    "pad",
    "pad2d",
    "pad_constant_like",
    "pixel_shuffle",
    "reshape",
    "reverse",
    "roll",
    "shuffle_channel",
    "split",
    "squeeze",
    "stack",
    "t",
    "temporal_shift",
    "transpose",
    "unsqueeze",
    "unstack",
]


def reshape(
    x: Variable,
    shape: Integers,
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """`x` with another shape.

    Args:
        shape: integers, integers and Variables mixed, or a Variable that holds them all; one entry
            may be -1 (worked out), and 0 copies the dimension of `x` at that place. Variables must
            follow from shapes and constants.
        actual_shape: a Variable that overrules `shape` when the program runs.
        act: an activation applied to the result.
        inplace: write the result into the variable `x`, which then has the new shape.

    Raises:
        ShapeError: the shape has two -1, a 0 without a dimension to copy, or does not fit the
            number of elements.
    """
    inputs, attrs = integers(shape, "shape", "Shape", "ShapeTensor", "reshape, shape")
    fixed = attrs.get("shape", []) if "ShapeTensor" not in inputs else []
    if list(fixed).count(-1) > 1 or any(d < -1 for d in fixed):
        raise errors.ShapeError(
            f"reshape: expected a shape with at most one -1, found {list(fixed)}"
        )
    if any(d == 0 and i >= len(x.shape) for i, d in enumerate(fixed)):
        raise errors.ShapeError(
            f"reshape: a 0 in shape {list(fixed)} has no dimension to copy in {list(x.shape)}"
        )
    if actual_shape is not None and not inputs:
        inputs = {"Shape": actual_shape}
    helper = LayerHelper("reshape2", name=name, act=act)
    out = x if inplace else helper.create_variable_for_type_inference(x.dtype)
    x_shape = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type="reshape2",
        inputs={"X": x, **inputs},
        outputs={"Out": out, "XShape": x_shape},
        attrs=attrs,
    )
    return helper.append_activation(out)


def _with_x_shape(
    op_type: str, layer: str, inputs: dict[str, Any], attrs: dict[str, Any], name: str | None
) -> Variable:
    out, _ = emit(op_type, inputs, attrs, outs=("Out", "XShape"), layer=layer, name=name)
    return out


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """`x` with its dimensions in the order `perm`.

    Raises:
        ShapeError: `perm` is no permutation of the dimensions of `x`.
    """
    if sorted(perm) != list(range(len(x.shape))):
        raise errors.ShapeError(
            f"transpose: expected perm to order the {len(x.shape)} dimensions of {list(x.shape)}, "
            f"found {list(perm)}"
        )
    return _with_x_shape("transpose2", "transpose", {"X": x}, {"axis": list(perm)}, name)


def t(input: Variable, name: str | None = None) -> Variable:
    """The transpose of a matrix; a vector or scalar as it is.

    Raises:
        ShapeError: the input has more than two dimensions.
    """
    if len(input.shape) > 2:
        raise errors.ShapeError(
            f"t: expected at most 2 dimensions, found shape {list(input.shape)}; use transpose"
        )
    if len(input.shape) < 2:
        return input
    return _with_x_shape("transpose2", "t", {"X": input}, {"axis": [1, 0]}, name)


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """`input` without the dimensions `axes`, all of size 1; without every such dimension when
    `axes` is empty.
    """
    return _with_x_shape("squeeze2", "squeeze", {"X": input}, {"axes": list(axes)}, name)


def unsqueeze(input: Variable, axes: int | Integers, name: str | None = None) -> Variable:
    """`input` with dimensions of size 1 inserted at `axes`, one after another."""
    axes = [axes] if isinstance(axes, (int, np.integer)) else axes
    inputs, attrs = integers(axes, "axes", "AxesTensor", "AxesTensorList", "unsqueeze, axes")
    if "AxesTensorList" in inputs:
        attrs = {}
    return _with_x_shape("unsqueeze2", "unsqueeze2", {"X": input, **inputs}, attrs, name)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """`x` as a matrix: the dimensions before `axis` become its rows, the others its columns.

    Raises:
        ShapeError: `axis` is not between 0 and the number of dimensions.
    """
    if not isinstance(axis, int) or not 0 <= axis <= len(x.shape):
        raise errors.ShapeError(
            f"flatten: expected an axis from 0 to {len(x.shape)}, found {axis!r}"
        )
    return _with_x_shape("flatten2", "flatten", {"X": x}, {"axis": axis}, name)


def split(
    input: Variable,
    num_or_sections: int | Sequence[int | Variable],
    dim: int | Variable = -1,
    name: str | None = None,
) -> list[Variable]:
    """`input` cut along `dim` into equal parts, or into parts of the given sizes (one may be -1:
    the rest).

    Raises:
        ShapeError: the dimension cannot be cut so.
    """
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {}
    size = -1
    if isinstance(dim, Variable):
        inputs["AxisTensor"] = dim
    else:
        attrs["axis"] = dim % len(input.shape)
        size = input.shape[attrs["axis"]]
    if isinstance(num_or_sections, (int, np.integer)):
        if num_or_sections < 1 or (size > 0 and size % num_or_sections):
            raise errors.ShapeError(
                f"split: dimension {dim} of size {size} cannot be cut into {num_or_sections} parts"
            )
        attrs["num"] = count = int(num_or_sections)
    else:
        given, sections = integers(
            list(num_or_sections), "sections", "", "SectionsTensorList", "split, sections"
        )
        inputs, attrs, count = inputs | given, attrs | sections, len(num_or_sections)
    return emit("split", inputs, attrs, outs={"Out": count}, name=name)


def stack(x: Sequence[Variable] | Variable, axis: int = 0) -> Variable:
    """Tensors of one shape joined along a new dimension `axis`."""
    return emit(
        "stack",
        {"X": list(x) if isinstance(x, (list, tuple)) else [x]},
        {"axis": axis},
        outs=("Y",),
    )


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The slices of `x` along `axis`, without that dimension; `num` says how many where the program
    cannot.

    Raises:
        ShapeError: the number of slices is not known.
    """
    num = x.shape[axis] if num is None else num
    if num < 1:
        raise errors.ShapeError(
            f"unstack: dimension {axis} of {list(x.shape)} is unknown; give its size as num"
        )
    return emit("unstack", {"X": x}, {"axis": axis, "num": num}, outs={"Y": num})


def expand(x: Variable, expand_times: Integers, name: str | None = None) -> Variable:
    """`x` repeated `expand_times[i]` times along dimension i."""
    inputs, attrs = integers(
        expand_times, "expand_times", "ExpandTimes", "expand_times_tensor", "expand, expand_times"
    )
    return emit("expand", {"X": x, **inputs}, attrs, name=name)


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """`x` repeated until it has the shape of `target_tensor`, each dimension of which is a multiple
    of x's.
    """
    return emit("expand_as", {"X": x, "target_tensor": target_tensor}, name=name)


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """`x` backwards along `axis`, or along each of them."""
    return emit("reverse", {"X": x}, {"axis": [axis] if isinstance(axis, int) else list(axis)})


def flip(input: Variable, dims: Sequence[int], name: str | None = None) -> Variable:
    """`input` backwards along each of `dims`."""
    return emit("flip", {"X": input}, {"dims": list(dims)}, name=name)


def roll(
    input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Variable:
    """`input` rotated: element i moves to i + shift. Without `dims` it is rotated as one long row.

    Raises:
        ShapeError: as many shifts as dims are needed.
    """
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else dims
    if dims is not None and len(dims) != len(shifts):
        raise errors.ShapeError(
            f"roll: expected one shift for each of the dims {list(dims)}, found {shifts}"
        )
    return emit(
        "roll", {"X": input}, {"shifts": shifts, "dims": [] if dims is None else list(dims)}
    )


def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """For each of the vectors a tensor with one dimension per vector, constant along all dimensions
    but its own.
    """
    return emit("meshgrid", {"X": list(input)}, outs={"Out": len(input)}, name=name)


def pad(
    x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """`x` with `paddings[2i]` values before and `paddings[2i + 1]` after along dimension i."""
    return emit(
        "pad", {"X": x}, {"paddings": list(paddings), "pad_value": float(pad_value)}, name=name
    )


def pad2d(
    input: Variable,
    paddings: Sequence[int] | Variable = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """An image batch padded above, below, left and right.

    Args:
        paddings: four integers, or a Variable that holds them.
        mode: "constant" (`pad_value`), "reflect" (mirrored without the edge) or "edge" (the edge
            repeated).
        data_format: "NCHW" or "NHWC".

    Raises:
        AttributeTypeError: an unknown mode or data format.
    """
    if mode not in ("constant", "reflect", "edge"):
        raise errors.AttributeTypeError(
            f"pad2d: expected mode to be constant, reflect or edge, found {mode!r}"
        )
    if data_format not in ("NCHW", "NHWC"):
        raise errors.AttributeTypeError(
            f"pad2d: expected data_format to be NCHW or NHWC, found {data_format!r}"
        )
    given = isinstance(paddings, Variable)
    attrs = {
        "paddings": [] if isinstance(paddings, Variable) else list(paddings),
        "mode": mode,
        "pad_value": float(pad_value),
        "data_format": data_format,
    }
    return emit("pad2d", {"X": input, "Paddings": paddings if given else None}, attrs, name=name)


def pad_constant_like(
    x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """`y` padded after its end along every dimension until it has the shape of `x`."""
    return emit("pad_constant_like", {"X": x, "Y": y}, {"pad_value": float(pad_value)}, name=name)


def crop(
    x: Variable,
    shape: Sequence[int] | Variable | None = None,
    offsets: Sequence[int] | Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The part of `x` at `offsets` (zeros by default) with the given shape, or with the shape of a
    Variable.

    Raises:
        AttributeTypeError: `shape` is missing.
    """
    if shape is None:
        raise errors.AttributeTypeError(
            "crop: expected shape to be a list of integers or a Variable, found None"
        )
    inputs: dict[str, Any] = {"X": x}
    attrs: dict[str, Any] = {}
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    else:
        attrs["shape"] = list(shape)
    if isinstance(offsets, Variable):
        inputs["Offsets"] = offsets
    else:
        attrs["offsets"] = [0] * len(x.shape) if offsets is None else list(offsets)
    return emit("crop", inputs, attrs, name=name)


def crop_tensor(
    x: Variable,
    shape: Integers | None = None,
    offsets: Integers | None = None,
    name: str | None = None,
) -> Variable:
    """The part of `x` at `offsets` (zeros by default) with the given shape, where -1 is the rest.

    Both may mix integers and Variables, or be one Variable.

    Raises:
        AttributeTypeError: `shape` is missing.
    """
    if shape is None:
        raise errors.AttributeTypeError(
            "crop_tensor: expected shape to be integers or a Variable, found None"
        )
    offsets = [0] * len(x.shape) if offsets is None else offsets
    at, at_attrs = integers(offsets, "offsets", "Offsets", "OffsetsTensor", "crop_tensor, offsets")
    size, attrs = integers(shape, "shape", "Shape", "ShapeTensor", "crop_tensor, shape")
    return emit("crop_tensor", {"X": x, **at, **size}, at_attrs | attrs, name=name)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """[N, C * r * r, H, W] with channels moved into space: [N, C, H * r, W * r], r being
    `upscale_factor`.

    Raises:
        AttributeTypeError: the factor is no positive integer.
    """
    if not isinstance(upscale_factor, int) or upscale_factor < 1:
        raise errors.AttributeTypeError(
            f"pixel_shuffle: expected a positive upscale_factor, found {upscale_factor!r}"
        )
    return emit("pixel_shuffle", {"X": x}, {"upscale_factor": upscale_factor})


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """The channels of [N, C, H, W], in `group` groups, interleaved (ShuffleNet)."""
    if not isinstance(group, int) or group < 1:
        raise errors.AttributeTypeError(
            f"shuffle_channel: expected a positive group, found {group!r}"
        )
    return emit("shuffle_channel", {"X": x}, {"group": group}, name=name)


def temporal_shift(
    x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None
) -> Variable:
    """[N * seg_num, C, H, W] with the first share of channels moved a time step later and the next
    share earlier (TSM).

    Args:
        seg_num: the number of time steps.
        shift_ratio: each share, as a fraction of the channels.
    """
    return emit(
        "temporal_shift",
        {"X": x},
        {"seg_num": seg_num, "shift_ratio": float(shift_ratio)},
        name=name,
    )
