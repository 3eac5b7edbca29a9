"""Resizing of images and volumes: nearest, linear and cubic interpolation.

Sizes are known while tracing, and each axis is interpolated by itself: an element of the result is
a sum of a few elements of the input, the taps; NumPy computes their indices and weights with the
rounding of Fluid's kernels.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid import errors
from jfluid.ops import static_values, windows
from jfluid.ops.ragged import column
from jfluid.ops.registry import table

# Sharpness of the cubic kernel (Keys 1981, with Fluid's choice of the free parameter).
_CUBIC = np.float32(-0.75)
# By the number of dimensions of the input.
_METHODS = {4: ("bilinear", "nearest", "bicubic"), 5: ("trilinear",)}


class _Taps:
    """Interpolation taps along one axis: source indices and weights.

    Attributes:
        index: int32 [taps, size of the result].
        weight: float32 [taps, size of the result].
        size: the size of the input.

    It is a static argument of a jitted function: equal if both arrays are equal.
    """

    def __init__(self, index: np.ndarray, weight: np.ndarray, size: int):
        self.index, self.weight, self.size = index.astype(np.int32), weight, size
        self.key = (size, self.index.shape, self.index.tobytes(), weight.tobytes())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Taps) and self.key == other.key

    def repeats(self) -> int:
        """Return the repetition factor of elements for pure repetition, else 0."""
        times, rest = divmod(self.index.shape[1], self.size)
        whole = not rest and len(self.index) == 1 and bool((self.weight == 1).all())
        return times if whole and (self.index[0] == np.arange(times * self.size) // times).all() else 0

    def reversed(self) -> "_Taps":
        """Return the taps of the gradient: for each input element, the output elements that it contributes to."""
        used = np.flatnonzero(self.weight)
        source, target = self.index.ravel()[used], used % self.index.shape[1]
        order = np.argsort(source, kind="stable")
        source, target = source[order], target[order]
        counts = np.bincount(source, minlength=self.size)
        place = np.arange(source.size) - (np.cumsum(counts) - counts)[source]
        shape = (max(int(counts.max(initial=0)), 1), self.size)
        index, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        index[place, source] = target
        weight[place, source] = self.weight.ravel()[used][order]
        return _Taps(index, weight, self.index.shape[1])


def _taps(size: int, out: int, method: str, align_corners: bool, align_mode: int) -> _Taps:
    """Compute the taps of `out` elements from `size`."""
    one = np.float32(1)
    if out <= 1:
        ratio = np.float32(0)
    elif align_corners:
        ratio = np.float32(size - 1) / np.float32(out - 1)
    else:
        ratio = np.float32(size) / np.float32(out)
    at = np.arange(out)
    scaled = ratio * at.astype(np.float32)
    centred = np.float64(ratio) * (at + 0.5) - 0.5
    if method == "nearest":
        index = (scaled + 0.5 * align_corners).astype(np.int64)
        return _Taps(np.minimum(index, size - 1)[None], np.ones((1, out), np.float32), size)
    if method != "bicubic":
        by_centre = align_mode == 0 and not align_corners
        low = np.maximum((centred if by_centre else scaled).astype(np.int64), 0)
        exact = np.maximum(centred, 0).astype(np.float32) if by_centre else scaled
        share = exact - low.astype(np.float32)
        index = np.minimum(np.stack([low, low + 1]), size - 1)
        return _Taps(index, np.stack([one - share, share]), size)
    exact = scaled if align_corners else centred.astype(np.float32)
    low = np.floor(exact)
    t = exact - low
    near = [((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1 for x in (t, one - t)]
    far = [((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC for x in (t + 1, 2 - t)]
    index = np.clip(low.astype(np.int64) + np.arange(-1, 3)[:, None], 0, size - 1)
    return _Taps(index, np.stack([far[0], *near, far[1]]).astype(np.float32), size)


def _gathered(x: Array, axis: int, taps: _Taps) -> Array:
    rows = jnp.moveaxis(x, axis, 0)  # XLA gathers whole rows faster than columns
    parts = []
    for index, weight in zip(taps.index, taps.weight):
        part = jnp.take(rows, index, axis=0, mode="clip")
        whole = (weight == 1).all()
        parts.append(part if whole else part * column(weight.astype(x.dtype), x.ndim))
    return jnp.moveaxis(functools.reduce(jnp.add, parts), 0, axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _along(x: Array, axis: int, taps: _Taps) -> Array:
    """Interpolate along one axis. The gradient gathers, too: XLA scatters slowly on CPUs."""
    return _gathered(x, axis, taps)


def _along_forward(x: Array, axis: int, taps: _Taps) -> tuple[Array, None]:
    return _along(x, axis, taps), None


def _along_backward(axis: int, taps: _Taps, kept: None, grad: Array) -> tuple[Array]:
    return (_gathered(grad, axis, taps.reversed()),)


_along.defvjp(_along_forward, _along_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _repeated(x: Array, axis: int, times: int) -> Array:
    """Repeat each element along one axis.

    The gradient of `jnp.repeat` has other operations for a size of 1, and a stream of shapes would be exact.
    """
    sizes = [*x.shape[: axis + 1], times, *x.shape[axis + 1 :]]
    places = [a for a in range(x.ndim + 1) if a != axis + 1]
    return lax.collapse(lax.broadcast_in_dim(x, sizes, places), axis, axis + 2)


def _repeated_forward(x: Array, axis: int, times: int) -> tuple[Array, None]:
    return _repeated(x, axis, times), None


def _repeated_backward(axis: int, times: int, kept: None, grad: Array) -> tuple[Array]:
    sizes = [*grad.shape[:axis], grad.shape[axis] // times, times, *grad.shape[axis + 1 :]]
    return (grad.reshape(sizes).sum(axis + 1),)


_repeated.defvjp(_repeated_forward, _repeated_backward)


def _sizes(
    method: str,
    current: list[int],
    attributes: tuple[int, ...],
    out_size: Array | None,
    each_size: list[Array],
    scale_tensor: Array | None,
    scale: float,
) -> list[int]:
    """Return the sizes of the result.

    Tensors go before attributes: one for each axis, then one for all, then a scale.
    """
    what = f"the size of {method} interpolation"
    if each_size:
        wanted = list(static_values.sizes(each_size, what))
    elif out_size is not None:
        wanted = list(static_values.sizes(out_size, what))
    else:
        wanted = list(attributes)
        if scale_tensor is not None:
            scale = _number(scale_tensor, f"the scale of {method} interpolation")
        if scale > 0:
            wanted = [int(n * np.float32(scale)) for n in current]
    if len(wanted) != len(current) or min(wanted) < 1:
        raise errors.ShapeError(
            f"{method} interpolation: expected {len(current)} positive sizes to resize {current} to, found {wanted}"
        )
    return wanted


def _number(value: Array, what: str) -> float:
    if static_values.is_static(value):
        return float(np.asarray(value).ravel()[0])
    return float(static_values.ints(value, what)[0])


def _interpolate(
    x: Array,
    out_size: Array | None,
    each_size: list[Array],
    scale_tensor: Array | None,
    *,
    data_layout: str = "NCHW",
    out_d: int = 0,
    out_h: int = 0,
    out_w: int = 0,
    scale: float = 0.0,
    interp_method: str = "bilinear",
    align_corners: bool = True,
    align_mode: int = 1,
) -> Array:
    """Resize images or volumes. As in Fluid interp_method tells how, not the operator's name."""
    methods = _METHODS.get(x.ndim, ())
    if interp_method not in methods:
        raise errors.ShapeError(
            f"interp_method {interp_method!r} does not resize an X of {x.ndim} dimensions: expected "
            f"one of {', '.join(_METHODS[4])} for 4, or of {', '.join(_METHODS[5])} for 5"
        )
    axes = windows.spatial_axes(x.ndim, data_layout)
    current = [x.shape[a] for a in axes]
    sizes = (out_d, out_h, out_w)[-len(axes) :]
    wanted = _sizes(interp_method, current, sizes, out_size, each_size, scale_tensor, scale)
    if static_values.inference() is not None:  # only shapes, partly placeholders
        shape = dict(enumerate(x.shape)) | dict(zip(axes, wanted))
        return jnp.zeros(tuple(shape.values()), x.dtype)
    kind = x.dtype
    if interp_method != "nearest" and not jnp.issubdtype(kind, jnp.floating):
        x = x.astype(jnp.float32)  # weights are fractions; the result is cut off, as in Fluid
    for axis, size, out in zip(axes, current, wanted):
        taps = _taps(size, out, interp_method, align_corners, align_mode)
        if times := taps.repeats():
            x = x if times == 1 else _repeated(x, axis, times)
        else:
            x = _along(x, axis, taps)
    return x.astype(kind)


table(
    dict.fromkeys(("nearest_interp", "bilinear_interp", "trilinear_interp", "bicubic_interp"), _interpolate),
    ins=("X", "OutSize?", "SizeTensor*?", "Scale?"),
    outs=("Out",),
    nograd=("OutSize", "SizeTensor", "Scale"),
    rows="map",
)
