"""Layers that change the shape or the order of elements."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.arrays import is_array, tensor_array_to_tensor
from jfluid.layers.creation import Integers, integers
from jfluid.layers.helper import LayerHelper, check_variable, emit

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
    """Reshape `x`, with its elements in the same order.

    Args:
        x: tensor.
        shape: integers, integers and Variables mixed, or a Variable with all integers. One entry may be
            -1, which is inferred; 0 copies the dimension of `x` at that index. Variables must be computed
            from shapes and constants.
        actual_shape: a Variable that overrules `shape` when the program runs.
        act: the name of an activation of the result; None for none.
        inplace: write the result into the variable `x`, which then has the new shape.
        name: see `jfluid.layers`.

    Raises ShapeError for two -1 in the shape, a 0 without a dimension to copy, or a wrong number of elements.
    """
    check_variable(x, "reshape", "x")
    inputs, attrs = integers(shape, "shape", "Shape", "ShapeTensor", "reshape, shape")
    fixed = attrs.get("shape", []) if "ShapeTensor" not in inputs else []
    if list(fixed).count(-1) > 1 or any(d < -1 for d in fixed):
        raise errors.ShapeError(f"reshape: expected a shape with at most one -1, found {list(fixed)}")
    if any(d == 0 and i >= len(x.shape) for i, d in enumerate(fixed)):
        raise errors.ShapeError(f"reshape: a 0 in shape {list(fixed)} has no dimension to copy in {list(x.shape)}")
    if actual_shape is not None and not inputs:
        inputs = {"Shape": actual_shape}
    helper = LayerHelper("reshape2", name=name, act=act)
    out = x if inplace else helper.create_variable_for_type_inference(x.dtype)
    x_shape = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="reshape2", inputs={"X": x, **inputs}, outputs={"Out": out, "XShape": x_shape}, attrs=attrs)
    return helper.append_activation(out)


def _with_x_shape(
    op_type: str, layer: str, inputs: dict[str, Any], attrs: dict[str, Any], name: str | None
) -> Variable:
    out, _ = emit(op_type, inputs, attrs, outs=("Out", "XShape"), layer=layer, name=name)
    return out


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Bring the dimensions of `x` into the order `perm`: dimension i of the result is dimension perm[i] of `x`.

    Raises ShapeError if `perm` is no permutation of the dimensions of `x`.
    """
    check_variable(x, "transpose", "x")
    if sorted(perm) != list(range(len(x.shape))):
        raise errors.ShapeError(
            f"transpose: expected perm to order the {len(x.shape)} dimensions of {list(x.shape)}, found {list(perm)}"
        )
    return _with_x_shape("transpose2", "transpose", {"X": x}, {"axis": list(perm)}, name)


def t(input: Variable, name: str | None = None) -> Variable:
    """Transpose a matrix; return a vector or scalar unchanged.

    Raises ShapeError if the input has more than two dimensions.
    """
    check_variable(input, "t", "input")
    if len(input.shape) > 2:
        raise errors.ShapeError(f"t: expected at most 2 dimensions, found shape {list(input.shape)}; use transpose")
    if len(input.shape) < 2:
        return input
    return _with_x_shape("transpose2", "t", {"X": input}, {"axis": [1, 0]}, name)


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Remove the dimensions `axes` of size 1; remove every dimension of size 1 if `axes` is empty."""
    return _with_x_shape("squeeze2", "squeeze", {"X": input}, {"axes": list(axes)}, name)


def unsqueeze(input: Variable, axes: int | Integers, name: str | None = None) -> Variable:
    """Insert dimensions of size 1 at `axes`, in sequence.

    `axes` may be a Variable that is computed from shapes and constants.
    """
    axes = [axes] if isinstance(axes, (int, np.integer)) else axes
    inputs, attrs = integers(axes, "axes", "AxesTensor", "AxesTensorList", "unsqueeze, axes")
    if "AxesTensorList" in inputs:
        attrs = {}
    return _with_x_shape("unsqueeze2", "unsqueeze2", {"X": input, **inputs}, attrs, name)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """Flatten `x` to a matrix: dimensions before `axis` become rows, all further dimensions columns.

    Raises ShapeError if `axis` is not between 0 and the number of dimensions.
    """
    check_variable(x, "flatten", "x")
    if not isinstance(axis, int) or not 0 <= axis <= len(x.shape):
        raise errors.ShapeError(f"flatten: expected an axis from 0 to {len(x.shape)}, found {axis!r}")
    return _with_x_shape("flatten2", "flatten", {"X": x}, {"axis": axis}, name)


def split(
    input: Variable, num_or_sections: int | Sequence[int | Variable], dim: int | Variable = -1, name: str | None = None
) -> list[Variable]:
    """Divide `input` along a dimension into a list of tensors.

    Args:
        input: tensor.
        num_or_sections: the number of equal parts, or the size of each part; a size of -1 takes the rest.
        dim: the dimension; negative numbers count from the last. A Variable must follow from shapes and
            constants.
        name: see `jfluid.layers`.

    Raises ShapeError if the dimension cannot be divided in this way.
    """
    check_variable(input, "split", "input")
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
            raise errors.ShapeError(f"split: dimension {dim} of size {size} cannot be cut into {num_or_sections} parts")
        attrs["num"] = count = int(num_or_sections)
    else:
        given, sections = integers(list(num_or_sections), "sections", "", "SectionsTensorList", "split, sections")
        inputs, attrs, count = inputs | given, attrs | sections, len(num_or_sections)
    return emit("split", inputs, attrs, outs={"Out": count}, name=name)


def stack(x: Sequence[Variable] | Variable, axis: int = 0) -> Variable:
    """Join tensors of one shape, or the elements of a tensor array, along a new dimension `axis`."""
    inputs: list[Any] = list(x) if isinstance(x, (list, tuple)) else [x]
    if is_array(inputs, "stack"):
        return tensor_array_to_tensor(inputs[0], axis, use_stack=True)[0]
    return emit("stack", {"X": inputs}, {"axis": axis}, outs=("Y",))


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Return the slices of `x` along `axis`, without that dimension, as a list.

    Args:
        x: tensor.
        axis: the dimension.
        num: how many there are, where the program does not know.

    Raises ShapeError if the number of slices is not known.
    """
    check_variable(x, "unstack", "x")
    num = x.shape[axis] if num is None else num
    if num < 1:
        raise errors.ShapeError(f"unstack: dimension {axis} of {list(x.shape)} is unknown; give its size as num")
    return emit("unstack", {"X": x}, {"axis": axis, "num": num}, outs={"Y": num})


def expand(x: Variable, expand_times: Integers, name: str | None = None) -> Variable:
    """Repeat `x` expand_times[i] times along dimension i.

    Args:
        x: tensor.
        expand_times: integers, integers and Variables mixed, or a Variable that holds them all.
        name: see `jfluid.layers`.
    """
    inputs, attrs = integers(expand_times, "expand_times", "ExpandTimes", "expand_times_tensor", "expand, expand_times")
    return emit("expand", {"X": x, **inputs}, attrs, name=name)


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Tile `x` to the shape of `target_tensor`, in which each dimension is a multiple of the dimension of `x`."""
    return emit("expand_as", {"X": x, "target_tensor": target_tensor}, name=name)


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Reverse the order of the elements along `axis`, or along each of several."""
    return emit("reverse", {"X": x}, {"axis": [axis] if isinstance(axis, int) else list(axis)})


def flip(input: Variable, dims: Sequence[int], name: str | None = None) -> Variable:
    """Reverse the order of the elements along each of `dims`."""
    return emit("flip", {"X": input}, {"dims": list(dims)}, name=name)


def roll(input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Variable:
    """Roll elements along dimensions: element i moves to i + shift, and wraps around at the end.

    Args:
        input: tensor.
        shifts: shift for each of `dims`.
        dims: the dimensions; when None, the tensor is rolled as one flat row.

    Raises ShapeError if the numbers of shifts and dims differ.
    """
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else dims
    if dims is not None and len(dims) != len(shifts):
        raise errors.ShapeError(f"roll: expected one shift for each of the dims {list(dims)}, found {shifts}")
    return emit("roll", {"X": input}, {"shifts": shifts, "dims": [] if dims is None else list(dims)})


def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Return k tensors of k dimensions: tensor i repeats vector i along all dimensions but i."""
    return emit("meshgrid", {"X": list(input)}, outs={"Out": len(input)}, name=name)


def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Add values to `x`: `paddings[2i]` before and `paddings[2i + 1]` after it along dimension i.

    Args:
        x: tensor.
        paddings: the numbers before and after each dimension, in turn.
        pad_value: the value.
        name: see `jfluid.layers`.
    """
    return emit("pad", {"X": x}, {"paddings": list(paddings), "pad_value": float(pad_value)}, name=name)


def pad2d(
    input: Variable,
    paddings: Sequence[int] | Variable = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Pad a batch of images above, below, left and right.

    Args:
        input: [N, C, H, W], or [N, H, W, C] with data_format "NHWC".
        paddings: the numbers of pixels [top, bottom, left, right], or a Variable that holds them.
        mode: "constant" (`pad_value`), "reflect" (mirrored, without the edge itself) or "edge" (the edge
            repeated).
        pad_value: of the mode "constant".
        data_format: "NCHW" or "NHWC".
        name: see `jfluid.layers`.

    Raises AttributeTypeError for another mode or format.
    """
    if mode not in ("constant", "reflect", "edge"):
        raise errors.AttributeTypeError(f"pad2d: expected mode to be constant, reflect or edge, found {mode!r}")
    if data_format not in ("NCHW", "NHWC"):
        raise errors.AttributeTypeError(f"pad2d: expected data_format to be NCHW or NHWC, found {data_format!r}")
    given = isinstance(paddings, Variable)
    attrs = {
        "paddings": [] if isinstance(paddings, Variable) else list(paddings),
        "mode": mode,
        "pad_value": float(pad_value),
        "data_format": data_format,
    }
    return emit("pad2d", {"X": input, "Paddings": paddings if given else None}, attrs, name=name)


def pad_constant_like(x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Pad `y` after its end, along every dimension, until it has the shape of `x`."""
    return emit("pad_constant_like", {"X": x, "Y": y}, {"pad_value": float(pad_value)}, name=name)


def crop(
    x: Variable,
    shape: Sequence[int] | Variable | None = None,
    offsets: Sequence[int] | Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return a part of `x`.

    Args:
        x: tensor.
        shape: of the part: integers, or a Variable of that shape.
        offsets: where the part begins: integers, or a Variable that holds them; zeros when None.
        name: see `jfluid.layers`.

    Raises AttributeTypeError if `shape` is missing.
    """
    check_variable(x, "crop", "x")
    if shape is None:
        raise errors.AttributeTypeError("crop: expected shape to be a list of integers or a Variable, found None")
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
    x: Variable, shape: Integers | None = None, offsets: Integers | None = None, name: str | None = None
) -> Variable:
    """Return a part of `x`.

    Args:
        x: tensor.
        shape: of the part; -1 takes all that is left. Integers, integers and Variables mixed, or a Variable that
            holds them all.
        offsets: where the part begins, in the same forms; zeros when None.
        name: see `jfluid.layers`.

    Raises AttributeTypeError if `shape` is missing.
    """
    check_variable(x, "crop_tensor", "x")
    if shape is None:
        raise errors.AttributeTypeError("crop_tensor: expected shape to be integers or a Variable, found None")
    offsets = [0] * len(x.shape) if offsets is None else offsets
    at, at_attrs = integers(offsets, "offsets", "Offsets", "OffsetsTensor", "crop_tensor, offsets")
    size, attrs = integers(shape, "shape", "Shape", "ShapeTensor", "crop_tensor, shape")
    return emit("crop_tensor", {"X": x, **at, **size}, at_attrs | attrs, name=name)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Rearrange channels [N, C * r * r, H, W] to pixels [N, C, H * r, W * r] for r = `upscale_factor`.

    Raises AttributeTypeError if the factor is no positive integer.
    """
    if not isinstance(upscale_factor, int) or upscale_factor < 1:
        raise errors.AttributeTypeError(f"pixel_shuffle: expected a positive upscale_factor, found {upscale_factor!r}")
    return emit("pixel_shuffle", {"X": x}, {"upscale_factor": upscale_factor})


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Interleave the `group` groups of channels of [N, C, H, W] (ShuffleNet)."""
    if not isinstance(group, int) or group < 1:
        raise errors.AttributeTypeError(f"shuffle_channel: expected a positive group, found {group!r}")
    return emit("shuffle_channel", {"X": x}, {"group": group}, name=name)


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> Variable:
    """Move the first share of channels one time step later, and the next share one earlier (TSM).

    Args:
        x: [N * seg_num, C, H, W].
        seg_num: the number of time steps.
        shift_ratio: each share, as a fraction of the channels.
        name: see `jfluid.layers`.
    """
    return emit("temporal_shift", {"X": x}, {"seg_num": seg_num, "shift_ratio": float(shift_ratio)}, name=name)
