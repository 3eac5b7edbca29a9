"""Convolutions of images with channels last on CPUs, and their gradients, in the fastest form for each shape."""

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import TracedValue, channels_last
from jfluid.ops import dependency, windows

# The gradient of a filter is a convolution that has examples for channels: XLA gathers its windows
# fast if the number of examples is a multiple of a vector.
_VECTOR = 8
# From this ratio of an image's size to its convolution's, a gradient mostly reads borders.
_BORDER = 1.75
_MOST_PLACES = 1024  # in a window: the sum over places is written out
_MOST_PARTS = 8 << 20  # float32 that farther caches hold
# The order that XLA's products want filters in, by their rank: windows, in, out. No other is used but
# Fluid's.
HELD = {rank: (*range(2, rank), 1, 0) for rank in (4, 5)}
THREAD = "jfluid-convolutions"


@dataclass(frozen=True)
class Filter:
    """Filter of a convolution: [out, in, *kernel], or [*kernel, in, out] if `held`."""

    array: Array
    held: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of [out, in, *kernel] in the order of the array."""
        rank = self.array.ndim
        return HELD[rank] if self.held else tuple(range(rank))

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in, *kernel]."""
        return tuple(self.array.shape[self.order.index(d)] for d in range(self.array.ndim))


def expect(filters: Sequence[Sequence[int]], weights: Sequence[Sequence[int]] = ()) -> None:
    """Start a thread that compiles machine code for convolutions and layers while the step is traced.

    Args:
        filters: the shape of each filter, [out, in, *kernel].
        weights: the shape of each layer's weight, [in, out].
    """

    def prepare() -> None:
        from jfluid.machine_code import convolution_dispatch, product_dispatch  # LLVM: few need it

        convolution_dispatch.expect(filters)
        product_dispatch.expect(weights)

    if filters:
        threading.Thread(target=prepare, name=THREAD).start()


class Convolutions(Rewrite):
    """Rewrite of convolutions of images: their results have channels last."""

    def __init__(self) -> None:
        self._flipped: dict[TracedValue, TracedValue] = {}  # flipped filter -> filter

    def begin(self, filters: Sequence[Sequence[int]]) -> None:
        """Compile machine code for the filters in a thread."""
        expect(filters)

    def follow(self, equation: Any, values: Sequence[TracedValue], results: Sequence[TracedValue]) -> None:
        """Record a filter that is flipped in all its windows."""
        if equation.primitive.name == "rev":
            if equation.params["dimensions"] == tuple(range(2, equation.outvars[0].aval.ndim)):
                self._flipped[results[0]] = values[0]

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the result of a convolution, or the gradient of a convolution by its input or filter."""
        if equation.primitive.name != "conv_general_dilated":
            return None
        (lhs, rhs), params = values, equation.params
        numbers = params["dimension_numbers"]
        rank = len(numbers.lhs_spec)
        if params["batch_group_count"] != 1 or rank not in HELD:
            return None
        plain, last = tuple(range(rank)), channels_last(rank)
        swapped = (1, 0, *plain[2:])
        if numbers.lhs_spec == plain and numbers.out_spec == plain:
            x, flipped = lhs.laid(last), self._flipped.get(rhs)
            if numbers.rhs_spec == swapped and flipped is not None:
                found = input_gradient(x, _filter(flipped), _filter(rhs), params)
            else:
                found = forward(x, _filter(rhs), params)
            return [TracedValue(laid=found, order=last)]
        if lhs.order == last or rhs.order == last:
            if numbers.lhs_spec == numbers.rhs_spec == numbers.out_spec == swapped:
                x, grad = lhs.laid(last), rhs.laid(last)
                make, make_held = (functools.partial(filter_gradient, x, grad, held, params) for held in (False, True))
                return [TracedValue(make=make, make_laid=(HELD[rank], make_held))]
        return None


def _filter(value: TracedValue) -> Filter:
    if value.order is not None and value.order == HELD[len(value.order)]:
        return Filter(value.laid(value.order), held=True)
    return Filter(value.given())


def forward(x: Array, w: Filter, params: dict[str, Any]) -> Array:
    """Apply a convolution to images channels last, with the parameters of a convolution of images channels first.

    Args:
        x: [batch, ..., channels].
        w: the filter, in the order of the parameters.
    """
    last = (0, x.ndim - 1, *range(1, x.ndim - 1))
    rhs = params["dimension_numbers"].rhs_spec
    direct = _directly(x, w, params)
    if direct is not None:
        return direct
    return _library(x, w.array, params, (last, tuple(map(w.order.index, rhs)), last))


def input_gradient(grad: Array, w: Filter, mirrored: Filter, params: dict[str, Any]) -> Array:
    """Return the gradient of a convolution's image, with the parameters of the convolution that gives it.

    Args:
        grad: [batch, ..., out].
        mirrored: the filter turned round in its windows, which that convolution is of.
    """
    kernel, pads = w.shape[2:], params["padding"]
    sizes = [n + low + high - k + 1 for n, k, (low, high) in zip(grad.shape[1:], kernel, pads)]
    axes, channels = range(1, grad.ndim - 1), grad.ndim - 1  # of the parts
    # The products of each position with each place of its window; overlapping products are summed.
    if _many_filters(grad, w.shape[0], kernel, params):
        if w.held:
            # [*kernel, in, batch, ...]: a product of the filter as it is held
            parts = _dot(w.array, grad, ((w.array.ndim - 1,), (channels,)), params)
            axes, channels = range(2, grad.ndim), 0
            part = [parts[place] for place in _places(kernel)]
        else:
            # [batch, ..., in, *kernel]
            parts = _dot(grad, w.array, ((channels,), (0,)), params)
            part = [parts[..., *place] for place in _places(kernel)]
    elif math.prod(kernel) <= _MOST_PLACES and _much_border(grad, sizes, params):
        from jfluid.machine_code import convolution_dispatch  # LLVM, which few programs need

        low = [k - 1 - before for k, (before, _) in zip(kernel, pads)]
        inside = all(max(pad) < k for k, pad in zip(kernel, pads))
        columns = grad.shape[-2]
        if inside and convolution_dispatch.suits(grad, w.array, w.shape[1], w.array.size, columns):
            order = [w.order.index(d) for d in (2, 3, 0, 1)]
            return convolution_dispatch.of_images(grad, lax.transpose(w.array, order), low, sizes)
        if grad.size // grad.shape[-1] * math.prod(w.shape[1:]) > _MOST_PARTS:
            return forward(grad, mirrored, params)
        turned = lax.transpose(w.array, [w.order.index(d) for d in HELD[grad.ndim]])
        flat = turned.reshape(-1, w.shape[0])
        # [batch, ..., *kernel, in]
        parts = _dot(grad, flat, ((channels,), (1,)), params)
        parts = parts.reshape(*grad.shape[:-1], *kernel, w.shape[1])
        part = [parts[..., *place, :] for place in _places(kernel)]
    else:
        return forward(grad, mirrored, params)
    total = None
    for place, each in zip(_places(kernel), part):
        starts = [at + low - k + 1 for at, k, (low, _) in zip(place, kernel, pads)]
        ends = [size - n - at for size, n, at in zip(sizes, grad.shape[1:], starts)]
        each = windows.pad(each, tuple(axes), tuple(zip(starts, ends)), 0)
        total = each if total is None else total + each
    assert total is not None  # a window has a place
    return jnp.moveaxis(total, channels, -1)


def filter_gradient(x: Array, grad: Array, held: bool, params: dict[str, Any]) -> Array:
    """Return the gradient of a filter, [out, in, *kernel], or [*kernel, in, out] if `held`.

    Args:
        x: [batch, ..., in].
        grad: [batch, ..., out].
        params: the parameters of the convolution that computes the gradient for images channels first.
    """
    axes = tuple(range(1, x.ndim - 1))
    out, pads = grad.shape[1:-1], params["padding"]
    kernel = [n + low + high - m + 1 for n, m, (low, high) in zip(x.shape[1:], out, pads)]
    if _many_filters(grad, grad.shape[-1], kernel, params):
        return _product_of_windows(x, grad, kernel, held, params)
    direct = _directly_gradient(x, grad, params)
    if direct is not None:
        order = HELD[x.ndim]
        return direct if held else lax.transpose(direct, sorted(range(x.ndim), key=order.__getitem__))
    x = dependency.after(x, grad)  # else XLA would copy x in the forward pass, and hold the copy
    bands = _bands(grad, kernel, params)
    if bands > 1:
        x, grad, params = _in_bands(x, grad, params, bands)
    swapped = (x.ndim - 1, 0, *axes)
    out_spec = params["dimension_numbers"].out_spec
    if held:
        out_spec = tuple(map(HELD[x.ndim].index, out_spec))
    return _library(x, grad, params, (swapped, swapped, out_spec))


def _product_of_windows(x: Array, grad: Array, kernel: Sequence[int], held: bool, params: dict[str, Any]) -> Array:
    """Return a filter's gradient as the product of copies of all windows and `grad`."""
    filters, channels, out = grad.shape[-1], x.shape[-1], grad.shape[1:-1]
    positions = tuple(range(grad.ndim - 1))
    x = dependency.after(x, grad)  # else XLA would copy all windows in the forward pass, and hold the copies
    given = not held
    first = 1 if given else 2  # of the dimensions that windows move over
    x = x if given else jnp.moveaxis(x, -1, 0)
    axes = tuple(range(first, first + len(out)))
    padded = windows.pad(x, axes, tuple(params["padding"]), 0)
    taps = windows.taps(padded, axes, kernel, (1,) * len(axes), out)
    if given:
        columns = jnp.stack(taps, axis=-1)  # [batch, ..., in, kernel]
        return _dot(grad, columns, (positions, positions), params).reshape(filters, channels, *kernel)
    columns = jnp.stack(taps)  # [kernel, in, batch, ...]: the layout that the product reads
    return _dot(columns, grad, (tuple(range(2, columns.ndim)), positions), params).reshape(*kernel, channels, filters)


def _directly(x: Array, w: Filter, params: dict[str, Any]) -> Array | None:
    """Apply a convolution by machine code of our own, if that is faster."""
    rhs, pads, strides = (
        params["dimension_numbers"].rhs_spec,
        params["padding"],
        params["window_strides"],
    )
    low = [before for before, _ in pads]
    out = [(n + sum(pad) - k) // s + 1 for n, pad, k, s in zip(x.shape[1:], pads, w.shape[2:], strides)]
    if not _is_plain(params) or min(*low, *(n - 1 for n in out)) < 0:
        return None
    if not _reach_images(low, out, w.shape[2:], strides):
        return None
    from jfluid.machine_code import convolution_dispatch  # LLVM, which few programs need

    if not convolution_dispatch.suits(x, w.array, w.shape[rhs[0]], w.array.size, out[-1]):
        return None
    order = [w.order.index(rhs[d]) for d in HELD[x.ndim]]
    return convolution_dispatch.forward(x, lax.transpose(w.array, order), strides, low, out)


def _directly_gradient(x: Array, grad: Array, params: dict[str, Any]) -> Array | None:
    """Return a filter's gradient, [*kernel, in, out], by machine code of our own, if that is faster."""
    pads, strides = params["padding"], params["rhs_dilation"]
    low = [before for before, _ in pads]
    kernel = [n + sum(pad) - (m - 1) * s for n, pad, m, s in zip(x.shape[1:], pads, grad.shape[1:], strides)]
    if not _is_plain(params | {"rhs_dilation": ()}) or min(*low, *kernel) < 0:
        return None
    if any(s != 1 for s in params["window_strides"]):
        return None
    if not _reach_images(low, grad.shape[1:], kernel, strides):
        return None
    from jfluid.machine_code import convolution_dispatch  # as above

    if not convolution_dispatch.suits_gradient(x, grad, kernel):
        return None
    return convolution_dispatch.gradient(x, grad, kernel, strides, low)


def _reach_images(low: Sequence[int], out: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether windows read beyond the zeros that are before images."""
    return all(n <= (m - 1) * s + k for n, m, k, s in zip(low, out, kernel, strides))


def _library(x: Array, w: Array, params: dict[str, Any], specs: tuple[Any, Any, Any]) -> Array:
    numbers = {"dimension_numbers": lax.ConvDimensionNumbers(*specs)}
    out: Array = lax.conv_general_dilated_p.bind(x, w, **params | numbers)
    return out


def _dot(x: Array, y: Array, over: tuple[Sequence[int], Sequence[int]], params: Any) -> Array:
    return lax.dot_general(
        x,
        y,
        (over, ((), ())),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )


def _places(kernel: Sequence[int]) -> list[tuple[int, ...]]:
    places: list[tuple[int, ...]] = [()]
    for k in kernel:
        places = [(*place, i) for place in places for i in range(k)]
    return places


def _is_plain(params: dict[str, Any]) -> bool:
    ones = (*params["lhs_dilation"], *params["rhs_dilation"])
    return all(n == 1 for n in ones) and params["feature_group_count"] == 1


def _many_filters(grad: Array, filters: int, kernel: Sequence[int], params: dict[str, Any]) -> bool:
    """Return True if there are more filters than positions.

    Copies of the windows, for a matrix product with the untransposed filters, then cost less than transposed filters.
    """
    return (
        _is_plain(params)
        and all(s == 1 for s in params["window_strides"])
        and 1 < math.prod(kernel) <= _MOST_PLACES
        and math.prod(grad.shape[:-1]) <= filters
    )


def _much_border(grad: Array, sizes: Sequence[int], params: dict[str, Any]) -> bool:
    """Return True if windows mostly overlap borders.

    The product of each position with all places of its window, and the sum of overlapping windows, then cost less than
    a convolution.

    Args:
        grad: [batch, ..., out].
        sizes: of the image.
    """
    return (
        _is_plain(params)
        and all(s == 1 for s in params["window_strides"])
        and math.prod(sizes) >= _BORDER * math.prod(grad.shape[1:-1]) > 0
    )


def _bands(grad: Array, kernel: Sequence[int], params: dict[str, Any]) -> int:
    """Return the number of bands of rows to divide images into, so that the number of bands fills vectors."""
    bands = _VECTOR // math.gcd(_VECTOR, grad.shape[0])
    usable = (
        _is_plain(params)
        and all(s == 1 for s in params["window_strides"])
        and math.prod(kernel) > 1
        and grad.shape[1] % bands == 0
        and grad.shape[1] // bands >= kernel[0]
    )
    return bands if usable else 1


def _in_bands(x: Array, grad: Array, params: dict[str, Any], bands: int) -> tuple[Array, Array, dict[str, Any]]:
    """Return images and their gradients with each band of rows as an example, and the parameters.

    An image's band has the rows that the windows of the gradient's band reach over.
    """
    (low, high), *others = params["padding"]
    x = windows.pad(x, (1,), ((low, high),), 0)
    rows = grad.shape[1] // bands
    reach = x.shape[1] - grad.shape[1] + rows
    parts = [x[:, i * rows : i * rows + reach] for i in range(bands)]
    grad = grad.reshape(grad.shape[0], bands, rows, *grad.shape[2:]).swapaxes(0, 1)
    grad = grad.reshape(-1, rows, *grad.shape[3:])
    return jnp.concatenate(parts), grad, params | {"padding": ((0, 0), *others)}
