"""Pooling layers."""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.ir.variable import Variable
from jfluid.layers.helper import emit
from jfluid.layers.windows import each, paddings_of

__all__ = ["adaptive_pool2d", "adaptive_pool3d", "pool2d", "pool3d"]

Size = int | Sequence[int]


def _check_type(layer: str, pool_type: str) -> None:
    if pool_type not in ("max", "avg"):
        raise errors.ProgramError(f'layers.{layer}: pool_type {pool_type!r}, expected "max" or "avg"')


def _attributes(
    layer: str, pool_size: Size, pool_stride: Size, pool_padding: Any, data_format: str, **attrs: Any
) -> dict[str, Any]:
    """Check the arguments of a pooling layer and return the attributes of the operator."""
    rank = 2 if layer == "pool2d" else 3
    _check_type(layer, attrs["pooling_type"])
    formats = ("NCHW", "NHWC") if rank == 2 else ("NCDHW", "NDHWC")
    if data_format not in formats:
        raise errors.ProgramError(f"layers.{layer}: data_format {data_format!r}, expected {' or '.join(formats)}")
    sizes = each(pool_size, rank, layer, "pool_size")
    if not attrs["global_pooling"] and any(n < 1 for n in sizes):
        raise errors.ProgramError(
            f"layers.{layer}: pool_size {pool_size!r} must be positive unless global_pooling is True"
        )
    pads, algorithm = paddings_of(pool_padding, rank, data_format == formats[1], layer)
    if algorithm == "VALID" and attrs["ceil_mode"]:
        raise errors.ProgramError(f'layers.{layer}: ceil_mode cannot be used with pool_padding "VALID"')
    return {
        **attrs,
        "ksize": sizes,
        "strides": each(pool_stride, rank, layer, "pool_stride"),
        "paddings": pads,
        "padding_algorithm": algorithm,
        "use_mkldnn": False,
        "data_format": data_format,
    }


def pool2d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Take the maximum or the mean over windows.

    Args:
        input: [N, C, H, W], or [N, H, W, C] with data_format "NHWC".
        pool_size: one number, or one for each of height and width.
        pool_type: "max" or "avg".
        pool_stride: see `pool_size`.
        pool_padding: see `padding` of `conv2d`.
        global_pooling: use one window over the whole plane, whatever `pool_size` is.
        use_cudnn: no effect: XLA chooses the kernel.
        ceil_mode: round the size of the output up, so that a last window may reach beyond the input.
        name: see `jfluid.layers`.
        exclusive: leave padding out of means.
        data_format: "NCHW" or "NHWC".

    Returns:
        [N, C, H', W'] in the same format, where H' = (H + top + bottom - height) / stride + 1,
            rounded down or up, and W' likewise.

    Raises ProgramError for a different type, size, padding or format.
    """
    attrs = _attributes(
        "pool2d",
        pool_size,
        pool_stride,
        pool_padding,
        data_format,
        pooling_type=pool_type,
        global_pooling=global_pooling,
        use_cudnn=use_cudnn,
        ceil_mode=ceil_mode,
        exclusive=exclusive,
    )
    return emit("pool2d", {"X": input}, attrs, name=name)


def pool3d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """Take the maximum or the mean over windows of [N, C, D, H, W], or of [N, D, H, W, C] with data_format "NDHWC".

    Otherwise it is as `pool2d`.
    """
    attrs = _attributes(
        "pool3d",
        pool_size,
        pool_stride,
        pool_padding,
        data_format,
        pooling_type=pool_type,
        global_pooling=global_pooling,
        use_cudnn=use_cudnn,
        ceil_mode=ceil_mode,
        exclusive=exclusive,
    )
    return emit("pool3d", {"X": input}, attrs, name=name)


def _adaptive(
    rank: int, input: Variable, pool_size: Size, pool_type: str, require_index: bool, name: str | None
) -> Any:
    layer = f"adaptive_pool{rank}d"
    _check_type(layer, pool_type)
    if require_index and pool_type == "avg":
        raise errors.ProgramError(f'layers.{layer}: require_index needs pool_type "max"')
    attrs = {"ksize": each(pool_size, rank, layer, "pool_size"), "adaptive": True}
    if pool_type == "avg":
        return emit(f"pool{rank}d", {"X": input}, attrs | {"pooling_type": pool_type}, name=name)
    out, index = emit(f"max_pool{rank}d_with_index", {"X": input}, attrs, outs=("Out", "Mask"), name=name)
    return (out, index) if require_index else out


def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Take the maximum or the mean over windows that divide each plane as evenly as possible.

    Args:
        input: [N, C, H, W].
        pool_size: height and width of the output, or one number for both.
        pool_type: "max" or "avg".
        require_index: also return the position of each maximum in its plane (int32).
        name: see `jfluid.layers`.

    Returns:
        [N, C, *pool_size]; or (that, positions) of the same shape.

    Raises ProgramError for a different type, and for `require_index` with "avg".
    """
    return _adaptive(2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Take the maximum or the mean over windows that divide each volume [N, C, D, H, W] as evenly as possible.

    Otherwise it is as `adaptive_pool2d`.
    """
    return _adaptive(3, input, pool_size, pool_type, require_index, name)
