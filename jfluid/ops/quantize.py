"""Quantization: floats as integers of few bits with a scale, and back.

With b bits a value x of scale s is the integer round(clip(x, -s, s) * (2^(b-1) - 1) / s), half away
from zero. The "fake" operators keep such integers in floats, so that training computes with the values of the
quantized model. The operators have no gradient: in a rewritten program gradients bypass the
operators (`jfluid.contrib.quantize`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops.ragged_dispatch import RowMask
from jfluid.ops.registry import Ints, op


def _largest(op_type: str, bits: int) -> int:
    """Return the largest signed integer of `bits` bits."""
    if not 1 <= bits <= 16:
        raise errors.ProgramError(f"{op_type}: bit_length: expected a number from 1 to 16, found {bits}")
    return (1 << (bits - 1)) - 1


def _absolute(x: Array, rows: RowMask | None) -> Array:
    """Return |x|, with zeros in padding rows and in place of NaN."""
    size = jnp.abs(x if rows is None else rows.zero(x))
    return jnp.where(jnp.isnan(size), jnp.zeros((), x.dtype), size)


def _peak(x: Array, rows: RowMask | None = None) -> Array:
    """Return the maximum of |x|, [1]; zero for an empty tensor."""
    return jnp.max(_absolute(x, rows), initial=0).reshape(1)


def _integers(x: Array, scale: Array, largest: int) -> Array:
    """Quantize x: round x / scale to integers of at most `largest`, as floats."""
    inverse = jnp.where(scale <= 1e-30, 1 / (scale + 1e-6), 1 / scale)
    scaled = largest * inverse * jnp.clip(x, -scale, scale)
    return jnp.where(scaled < 0, -1.0, 1.0).astype(x.dtype) * jnp.floor(jnp.abs(scaled) + 0.5)


@op("fake_quantize_abs_max", ins=("X",), outs=("Out", "OutScale"), grad=False, rows="mask", row_outs=("Out",))
def fake_quantize_abs_max(x: Array, *, bit_length: int = 8, rows: RowMask | None = None) -> tuple[Array, Array]:
    """Quantize x by the scale max |x|, [1]."""
    scale = _peak(x, rows)
    return _integers(x, scale, _largest("fake_quantize_abs_max", bit_length)), scale


@op("fake_channel_wise_quantize_abs_max", ins=("X",), outs=("Out", "OutScale"), grad=False)
def fake_channel_wise_quantize_abs_max(x: Array, *, bit_length: int = 8) -> tuple[Array, Array]:
    """Quantize each x[i] by its maximum absolute value; the scales are [x.shape[0]]."""
    largest = _largest("fake_channel_wise_quantize_abs_max", bit_length)
    scale = jnp.max(_absolute(x, None), axis=tuple(range(1, x.ndim)), initial=0)
    return _integers(x, scale.reshape(-1, *(1,) * (x.ndim - 1)), largest), scale


@op(
    "fake_quantize_range_abs_max",
    ins=("X", "InScale", "Iter?"),
    outs=("Out", "OutScale", "OutScales?"),
    carries=("OutScales",),
    grad=False,
    rows="mask",
    row_outs=("Out",),
)
def fake_quantize_range_abs_max(
    x: Array,
    in_scale: Array,
    iteration: Array | None,
    kept: Array | None,
    *,
    bit_length: int = 8,
    is_test: bool = False,
    window_size: int = 10000,
    rows: RowMask | None = None,
) -> tuple[Array, Array, Array | None]:
    """Quantize x by the maximum |x| of the last `window_size` steps (OutScales); in tests by InScale."""
    largest = _largest("fake_quantize_range_abs_max", bit_length)
    if is_test:
        return _integers(x, in_scale, largest), in_scale, kept
    if iteration is None:
        raise errors.ProgramError("fake_quantize_range_abs_max: training needs the input Iter, the number of the step")
    step = iteration.reshape(()).astype(jnp.int32)
    window = jnp.zeros(window_size, x.dtype) if kept is None else kept.reshape(-1)
    place = step % window_size
    now, dropped = _peak(x, rows), jax.lax.dynamic_slice(window, (place,), (1,))
    window = jax.lax.dynamic_update_slice(window, now, (place,))
    # The largest may be the one that has just left the window: only then it is looked for anew.
    # The slots counted are `step`, without that of this step, as in Fluid.
    counted = jnp.arange(window_size) < jnp.maximum(jnp.minimum(step, window_size), 1)
    again = jnp.max(jnp.where(counted, window, -jnp.inf)).reshape(1)
    left = jnp.abs(dropped - in_scale) < 1e-6
    scale = jnp.where(in_scale < now, now, jnp.where(left, again, in_scale))
    return _integers(x, scale, largest), scale, window


def _moving_average(
    x: Array, accumulated: Array | None, state: Array | None, rate: float, rows: RowMask | None
) -> tuple[Array, Array, Array]:
    """Return the average of the largest |x| of all steps, later ones weighing more, and the sums that it comes from."""
    zero = jnp.zeros(1, x.dtype)
    state = rate * (zero if state is None else state) + 1
    accumulated = rate * (zero if accumulated is None else accumulated) + _peak(x, rows)
    return (accumulated / state).astype(x.dtype), state, accumulated


def _by_moving_average(op_type: str, dequantizes: bool) -> None:
    """Register quantization by a moving average of max |x|, with dequantization or without; in tests by InScale."""

    def quantized(
        x: Array,
        in_scale: Array,
        accumulated: Array | None,
        state: Array | None,
        *,
        moving_rate: float = 0.9,
        bit_length: int = 8,
        is_test: bool = False,
        rows: RowMask | None = None,
    ) -> tuple[Array, Array, Array | None, Array | None]:
        largest = _largest(op_type, bit_length)
        scale = in_scale
        if not is_test:
            scale, state, accumulated = _moving_average(x, accumulated, state, moving_rate, rows)
        out = _integers(x, scale, largest)
        return out * scale / largest if dequantizes else out, scale, state, accumulated

    op(
        op_type,
        ins=("X", "InScale", "InAccum?", "InState?"),
        outs=("Out", "OutScale", "OutState?", "OutAccum?"),
        grad=False,
        rows="mask",
        row_outs=("Out",),
    )(quantized)


_by_moving_average("fake_quantize_moving_average_abs_max", dequantizes=False)
_by_moving_average("fake_quantize_dequantize_moving_average_abs_max", dequantizes=True)


@op(
    "moving_average_abs_max_scale",
    ins=("X", "InAccum?", "InState?"),
    outs=("Out?", "OutScale", "OutState?", "OutAccum?"),
    carries=("OutScale",),
    grad=False,
    rows="mask",
    row_outs=("Out",),
)
def moving_average_abs_max_scale(
    x: Array,
    accumulated: Array | None,
    state: Array | None,
    kept: Array | None,
    *,
    moving_rate: float = 0.9,
    is_test: bool = False,
    rows: RowMask | None = None,
) -> tuple[Array, Array | None, Array | None, Array | None]:
    """Return x, and the moving average of max |x|, which does not change in tests."""
    if is_test:
        return x, kept, state, accumulated
    scale, state, accumulated = _moving_average(x, accumulated, state, moving_rate, rows)
    return x, scale, state, accumulated


@op("fake_dequantize_max_abs", ins=("X", "Scale"), outs=("Out",), grad=False, rows="map")
def fake_dequantize_max_abs(x: Array, scale: Array, *, max_range: float) -> Array:
    """Return x * scale / max_range."""
    return x * scale.reshape(()) / jnp.asarray(max_range, x.dtype)


@op("fake_channel_wise_dequantize_max_abs", ins=("X", "Scales*"), outs=("Out",), grad=False)
def fake_channel_wise_dequantize_max_abs(x: Array, scales: list[Array], *, quant_bits: Ints = (8,)) -> Array:
    """Dequantize integers with a scale for each index of the first dimension.

    With a second scale, for all, the first scales are of the second dimension.
    """
    name = "fake_channel_wise_dequantize_max_abs"
    if len(scales) not in (1, 2) or len(quant_bits) < len(scales):
        raise errors.ProgramError(
            f"{name}: expected one or two Scales and a number of quant_bits for each, found "
            f"{len(scales)} and {list(quant_bits)}"
        )
    axis = len(scales) - 1
    if scales[0].size != x.shape[axis]:
        raise errors.ShapeError(
            f"{name}: expected {x.shape[axis]} scales, one for each entry of dimension {axis} of "
            f"X {list(x.shape)}, found {scales[0].size}"
        )
    out = x * scales[0].reshape(-1, *(1,) * (x.ndim - 1 - axis)) / _largest(name, quant_bits[0])
    return out if axis == 0 else out * scales[1].reshape(()) / _largest(name, quant_bits[1])


@op("dequantize_abs_max", ins=("X", "Scale"), outs=("Out",), grad=False, rows="map")
def dequantize_abs_max(x: Array, scale: Array, *, max_range: float) -> Array:
    """Return int8 x as x * scale / max_range."""
    _int8("dequantize_abs_max", x)
    return x.astype(scale.dtype) * scale.reshape(()) / jnp.asarray(max_range, scale.dtype)


@op("dequantize_log", ins=("X", "Dict"), outs=("Out",), grad=False)
def dequantize_log(x: Array, values: Array) -> Array:
    """Dequantize int8 codes by a table: values[x], or -values[x + 128] for negative codes."""
    _int8("dequantize_log", x)
    if values.size != 128:
        raise errors.ShapeError(f"dequantize_log: expected a Dict of 128, found {values.size}")
    code = x.astype(jnp.int32)
    found = values.reshape(-1)[jnp.where(code < 0, code + 128, code)]
    return jnp.where(code < 0, -found, found)


def _int8(op_type: str, x: Array) -> None:
    if x.dtype != jnp.int8:
        raise errors.DtypeError(f"{op_type}: expected X of dtype int8, found {x.dtype}")


def _saturated(x: Array, dtype: Any) -> Array:
    """Round to even, and return the nearest integers of `dtype`; NaN is the smallest, as on CPUs."""
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(jnp.where(jnp.isnan(x), limits.min, x)), limits.min, limits.max).astype(dtype)


@op("quantize", ins=("Input",), outs=("Output",), grad=False, rows="map")
def quantize(x: Array, *, Scale: float = 1.0, is_negative_input: bool = False, output_format: str = "NHWC") -> Array:
    """Return Input * Scale as int8, or as uint8 if `is_negative_input` is false.

    `output_format` is the memory layout of the result, which XLA decides.
    """
    return _saturated(x * jnp.asarray(Scale, x.dtype), jnp.int8 if is_negative_input else jnp.uint8)


@op("dequantize", ins=("Input",), outs=("Output",), grad=False, rows="map")
def dequantize(x: Array, *, Scale: float = 1.0) -> Array:
    """Return integers as float32: Input / Scale."""
    return x.astype(jnp.float32) / jnp.float32(Scale)


@op("requantize", ins=("Input",), outs=("Output",), grad=False, rows="map")
def requantize(x: Array, *, Scale_in: float = 1.0, Scale_out: float = 1.0) -> Array:
    """Return integers of scale Scale_in as ones of scale Scale_out."""
    return _saturated(x.astype(jnp.float32) * jnp.float32(Scale_out / Scale_in), x.dtype)
