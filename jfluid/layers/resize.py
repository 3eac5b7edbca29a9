"""Layers that resize images and volumes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.creation import fill_constant
from jfluid.layers.helper import check_variable, emit

__all__ = ["image_resize", "image_resize_short", "interpolate", "resize_bilinear", "resize_nearest", "resize_trilinear"]

_DIMENSIONS = {"BILINEAR": 4, "NEAREST": 4, "BICUBIC": 4, "TRILINEAR": 5}
_FORMATS = {4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
Shape = Sequence[int | Variable] | Variable


class _Method(NamedTuple):
    """Arguments of a layer that say how it interpolates."""

    layer: str
    resample: str
    align_corners: bool
    align_mode: int
    data_format: str


def _check(method: _Method, methods: Sequence[str], input: Variable) -> None:
    layer, resample, align_corners, align_mode, data_format = method
    check_variable(input, layer, "input")
    if resample not in methods:
        raise errors.ProgramError(f"layers.{layer}: resample {resample!r}, expected one of {', '.join(methods)}")
    rank = len(input.shape)
    if rank != _DIMENSIONS[resample]:
        raise errors.ShapeError(
            f"layers.{layer}: {resample} takes an input of {_DIMENSIONS[resample]} dimensions, found "
            f"{list(input.shape)}"
        )
    if data_format not in _FORMATS[rank]:
        raise errors.ProgramError(
            f"layers.{layer}: data_format {data_format!r}, expected {' or '.join(_FORMATS[rank])}"
        )
    if not isinstance(align_corners, bool):
        raise TypeError(f"layers.{layer}: align_corners is True or False, found {align_corners!r}")
    if align_mode not in (0, 1):
        raise errors.ProgramError(f"layers.{layer}: align_mode {align_mode!r}, expected 0 or 1")


def _sizes(layer: str, rank: int, out_shape: Any) -> tuple[dict[str, Any], list[int]]:
    """Return the inputs and the attributes out_d, out_h, out_w that tell the size."""
    if isinstance(out_shape, Variable):
        return {"OutSize": out_shape}, [-1] * 3
    if not isinstance(out_shape, (list, tuple)):
        raise TypeError(f"layers.{layer}: out_shape is a list, a tuple or a Variable, found {out_shape!r:.60}")
    sizes = [-1 if isinstance(n, Variable) else int(n) for n in out_shape]
    if len(sizes) != rank - 2 or any(n < 1 for n, given in zip(sizes, out_shape) if not isinstance(given, Variable)):
        raise errors.ProgramError(
            f"layers.{layer}: out_shape {out_shape!r}, expected {rank - 2} positive sizes for an "
            f"input of {rank} dimensions"
        )
    attributes = [-1] * (5 - rank) + sizes
    if -1 not in sizes:
        return {}, attributes
    tensors = [n if isinstance(n, Variable) else fill_constant([1], "int32", n) for n in out_shape]
    return {"SizeTensor": tensors}, attributes


def _resize(
    method: _Method,
    methods: Sequence[str],
    input: Variable,
    out_shape: Shape | None,
    scale: float | Variable | None,
    actual_shape: Variable | None,
    name: str | None,
) -> Variable:
    _check(method, methods, input)
    layer, resample, align_corners, align_mode, data_format = method
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {}
    sizes = [-1] * 3
    if out_shape is not None:
        tensors, sizes = _sizes(layer, len(input.shape), out_shape)
        inputs |= tensors
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    elif isinstance(scale, (int, float)):
        if scale <= 0:
            raise errors.ProgramError(f"layers.{layer}: scale must be positive, found {scale!r}")
        attrs["scale"] = float(scale)
    elif scale is None:
        raise errors.ProgramError(f"layers.{layer}: give out_shape or scale")
    else:
        raise TypeError(f"layers.{layer}: scale is a number or a Variable, found {scale!r:.60}")
    if actual_shape is not None:
        check_variable(actual_shape, layer, "actual_shape")
        inputs["OutSize"] = actual_shape
    attrs |= {
        **dict(zip(("out_d", "out_h", "out_w"), sizes)),
        "interp_method": resample.lower(),
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_layout": "NHWC" if data_format.endswith("C") else "NCHW",
    }
    return emit(f"{resample.lower()}_interp", inputs, attrs, name=name)


def image_resize(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images or volumes.

    Args:
        input: [N, C, H, W], or with "TRILINEAR" [N, C, D, H, W]; channels last with the data_format
            "NHWC" or "NDHWC".
        out_shape: the new height and width, or depth, height and width: numbers, tensors of one
            integer among them, or one tensor of all of them.
        scale: how many times larger each of them becomes, rounded down; a number or a tensor of one.
            It counts where `out_shape` is None.
        name: the name of the result.
        resample: "BILINEAR", "TRILINEAR" or "NEAREST".
        actual_shape: a tensor of the sizes, which goes before `out_shape` and `scale`.
        align_corners: True if the centres of the outermost pixels of input and result are at the
            same place; otherwise their outer edges are.
        align_mode: where a pixel of the result is when `align_corners` is False and the
            interpolation linear: 0: (place + 0.5) / scale - 0.5, 1: place / scale.
        data_format: where the channels are.

    Returns:
        [N, C, H', W'] or [N, C, D', H', W'], in the same format.

    Raises ProgramError or TypeError for other arguments than these.
    """
    method = _Method("image_resize", resample, align_corners, align_mode, data_format)
    return _resize(method, ("BILINEAR", "TRILINEAR", "NEAREST"), input, out_shape, scale, actual_shape, name)


def interpolate(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize as `image_resize` does, also by "BICUBIC" interpolation (Keys 1981, sharpness -0.75)."""
    method = _Method("interpolate", resample, align_corners, align_mode, data_format)
    return _resize(method, tuple(_DIMENSIONS), input, out_shape, scale, actual_shape, name)


def resize_bilinear(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images by linear interpolation along both axes; see `image_resize`."""
    return image_resize(input, out_shape, scale, name, "BILINEAR", actual_shape, align_corners, align_mode, data_format)


def resize_trilinear(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """Resize volumes by linear interpolation along three axes; see `image_resize`."""
    return image_resize(
        input, out_shape, scale, name, "TRILINEAR", actual_shape, align_corners, align_mode, data_format
    )


def resize_nearest(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Resize images by nearest-neighbour interpolation; see `image_resize`.

    With `align_corners` source positions are rounded, else rounded down.
    """
    return image_resize(input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format)


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize images [N, C, H, W] so that the shorter side becomes `out_short_len`, at the same aspect ratio.

    Raises ShapeError for unknown height or width.
    """
    check_variable(input, "image_resize_short", "input")
    sizes = list(input.shape[2:])
    if len(sizes) != 2 or min(sizes) < 1:
        raise errors.ShapeError(
            "layers.image_resize_short: expected an input [N, C, H, W] of known height and width, "
            f"found {list(input.shape)}"
        )
    out = [int(n * (out_short_len / min(sizes)) + 0.5) for n in sizes]
    out[sizes.index(min(sizes))] = out_short_len
    return image_resize(input, out, resample=resample)
