"""NumPy rules of reductions, sorts, products, convolutions and windows."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfluid.compile.numpy_steps.elementwise import ranks
from jfluid.compile.numpy_steps.interpreter import RULES, NotInterpretable, bound, rule
from jfluid.compile.numpy_steps.shapes import padded

Params = dict[str, Any]
_FEW_TAPS = 32  # most elements of a window, of one channel, that a loop computes
_COPIED = 1 << 17  # numbers of windows that a convolution copies at a time
_FEW_TERMS = 16  # terms of a sum that needs no double precision
_MOST_TAPS = 4096  # most elements of a window whose greatest element is selected: a loop in Python


def _reduction(name: str, reduce: Callable[..., Any]) -> None:
    def run(params: Params, x: Any) -> Any:
        axes = tuple(params["axes"])
        return reduce(x, axes)

    RULES[name] = run


def _extreme(name: str, function: Any, of_nothing: Callable[[Any], Any]) -> None:
    def run(params: Params, x: Any) -> Any:
        return function.reduce(x, axis=tuple(params["axes"]), initial=of_nothing(x.dtype))

    RULES[name] = run


def lowest(dtype: Any) -> Any:
    """Return the least value of a type."""
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else dtype.type(-np.inf)


def highest(dtype: Any) -> Any:
    """Return the greatest value of a type."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else dtype.type(np.inf)


def _sum(x: Any, axes: tuple[int, ...]) -> Any:
    """Return a sum over axes. NumPy adds pairwise along the last axis only, and else loses digits of float32."""
    if x.dtype == np.float32 and x.ndim - 1 not in axes and math.prod(x.shape[at] for at in axes) > _FEW_TERMS:
        return np.add.reduce(x, axes, np.float64).astype(np.float32)
    return np.add.reduce(x, axes, x.dtype)


_reduction("reduce_sum", _sum)
_reduction("reduce_prod", lambda x, axes: np.prod(x, axes, dtype=x.dtype))
_reduction("reduce_and", lambda x, axes: np.bitwise_and.reduce(x, axis=axes))
_reduction("reduce_or", lambda x, axes: np.bitwise_or.reduce(x, axis=axes))
_reduction("reduce_xor", lambda x, axes: np.bitwise_xor.reduce(x, axis=axes))
_extreme("reduce_max", np.maximum, lowest)
_extreme("reduce_min", np.minimum, highest)


@rule("argmax")
def _argmax(params: Params, x: Any) -> Any:
    return np.argmax(x, params["axes"][0]).astype(params["index_dtype"])


@rule("argmin")
def _argmin(params: Params, x: Any) -> Any:
    return np.argmin(x, params["axes"][0]).astype(params["index_dtype"])


def _cumulative(name: str, function: Callable[..., Any]) -> None:
    def run(params: Params, x: Any) -> Any:
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(function(np.flip(x, axis), axis), axis)
        return function(x, axis)

    RULES[name] = run


_cumulative("cumsum", lambda x, axis: np.cumsum(x, axis, dtype=x.dtype))
_cumulative("cumprod", lambda x, axis: np.cumprod(x, axis, dtype=x.dtype))
_cumulative("cummax", lambda x, axis: np.maximum.accumulate(x, axis))
_cumulative("cummin", lambda x, axis: np.minimum.accumulate(x, axis))


@rule("sort")
def _sort(params: Params, *values: Any) -> Any:
    axis, keys = params["dimension"], params["num_keys"]
    if keys == 1:
        order = np.argsort(values[0], axis, kind="stable")
    else:
        order = np.lexsort(values[:keys][::-1], axis)
    return [np.take_along_axis(v, order, axis) for v in values]


@rule("top_k")
def _top_k(params: Params, x: Any) -> Any:
    """Return the largest elements in the total order; equal elements keep their order."""
    axis, size = params.get("axis", x.ndim - 1), params["k"]
    x = np.moveaxis(x, axis, -1)
    order = x.shape[-1] - 1 - np.argsort(ranks(x)[..., ::-1], kind="stable")[..., ::-1][..., :size]
    found = np.take_along_axis(x, order, -1), order.astype(np.int32)
    return [np.moveaxis(v, -1, axis) for v in found]


# Products


class _Dot(NamedTuple):
    """Orders of dimensions and shapes of operands that make a product one of matrices, and the shape of the result."""

    left: tuple[int, ...]
    left_shape: tuple[int, ...]
    right: tuple[int, ...]
    right_shape: tuple[int, ...]
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _as_matrices(numbers: Any, x: tuple[int, ...], y: tuple[int, ...]) -> _Dot:
    ((into_x, into_y), (batch_x, batch_y)) = numbers
    free_x = [i for i in range(len(x)) if i not in into_x and i not in batch_x]
    free_y = [i for i in range(len(y)) if i not in into_y and i not in batch_y]
    batch = [x[i] for i in batch_x]
    depth = math.prod(x[i] for i in into_x)
    rows, columns = [x[i] for i in free_x], [y[i] for i in free_y]
    return _Dot(
        (*batch_x, *free_x, *into_x),
        (*batch, math.prod(rows), depth),
        (*batch_y, *into_y, *free_y),
        (*batch, depth, math.prod(columns)),
        (*batch, *rows, *columns),
    )


@rule("dot_general")
def _dot(params: Params, x: Any, y: Any) -> Any:
    goal, plan = params["results"][0].dtype, _as_matrices(params["dimension_numbers"], x.shape, y.shape)
    left = x.transpose(plan.left).reshape(plan.left_shape).astype(goal, copy=False)
    right = y.transpose(plan.right).reshape(plan.right_shape).astype(goal, copy=False)
    multiply = np.multiply if left.shape[-1] == 1 else np.matmul  # outer products: half of the time
    return multiply(left, right).reshape(plan.shape)


@rule("conv_general_dilated")
def _convolution(params: Params, image: Any, filters: Any) -> Any:
    numbers = params["dimension_numbers"]
    image = np.transpose(image, numbers.lhs_spec)
    filters = np.transpose(filters, numbers.rhs_spec)
    groups, parts = params["feature_group_count"], params["batch_group_count"]
    if parts > 1:  # the same as groups of features
        batch, features, *space = image.shape
        image = np.moveaxis(image.reshape(parts, batch // parts, features, *space), 0, 1)
        image = image.reshape(batch // parts, parts * features, *space)
        groups = parts
    config = [
        (0, 0, 0),
        (0, 0, 0),
        *((*edges, hole - 1) for edges, hole in zip(params["padding"], params["lhs_dilation"])),
    ]
    image = padded(image, 0, config)
    sizes = filters.shape[2:]
    strides, holes = params["window_strides"], params["rhs_dilation"]
    found = _grouped(image, filters, groups, sizes, strides, holes)
    order = [0] * found.ndim
    for at, place in enumerate(numbers.out_spec):
        order[place] = at
    return np.transpose(found, order).astype(params["results"][0].dtype, copy=False)


def _places(shape: Sequence[int], sizes: Sequence[int], strides: Sequence[int], holes: Sequence[int]) -> list[int]:
    """Return the number of windows along each dimension."""
    spans = [(size - 1) * hole + 1 for size, hole in zip(sizes, holes)]
    return [max((n - span) // s + 1, 0) for n, span, s in zip(shape, spans, strides)]


def _windows(x: Any, sizes: Sequence[int], strides: Sequence[int], holes: Sequence[int]) -> Any:
    """Return a view of the windows along the last dimensions: [..., number of windows ..., size ...]."""
    rank = len(sizes)
    counts = _places(x.shape[-rank:], sizes, strides, holes)
    steps = x.strides[-rank:]
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:-rank], *counts, *sizes),
        (
            *x.strides[:-rank],
            *(a * b for a, b in zip(steps, strides)),
            *(a * b for a, b in zip(steps, holes)),
        ),
        writeable=False,
    )


def _taps(
    x: Any, sizes: Sequence[int], strides: Sequence[int], holes: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Return the places of a window, and which elements all windows have there."""
    counts = _places(x.shape[-len(sizes) :], sizes, strides, holes)
    found = []
    for tap in np.ndindex(*sizes):
        ranges = [
            slice(t * hole, t * hole + (count - 1) * stride + 1, stride)
            for t, hole, stride, count in zip(tap, holes, strides, counts)
        ]
        found.append((tap, (..., *ranges)))
    return found  # type: ignore[return-value]  # an ellipsis leads


def _grouped(
    image: Any,
    filters: Any,
    groups: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    holes: Sequence[int],
) -> Any:
    """Convolve an image [N, C, ...] with filters [O, C / groups, ...].

    Raises NotInterpretable if a copy of windows, as a matrix, takes more than `MOST_BYTES`.
    """
    batch, features = image.shape[:2]
    out, depth = filters.shape[0], features // groups
    counts = _places(image.shape[2:], sizes, strides, holes)
    kind = np.result_type(image, filters)
    if 0 in (batch, features, out, *counts, *sizes):
        return np.zeros((batch, out, *counts), kind)
    if depth == 1 and math.prod(sizes) <= _FEW_TAPS and groups > 1:
        found = np.zeros((batch, groups, out // groups, *counts), kind)
        each = filters.reshape(groups, out // groups, *sizes)
        ones = (1,) * len(sizes)
        for tap, places in _taps(image, sizes, strides, holes):
            weights = each[(..., *tap)].reshape(groups, out // groups, *ones)
            found += image[places][:, :, None] * weights
        return found.reshape(batch, out, *counts)
    windows = _windows(image, sizes, strides, holes)
    weights = filters.reshape(groups, out // groups, depth * math.prod(sizes))
    if sizes and math.prod(counts) >= math.prod(sizes):
        return _by_images(windows, weights, len(sizes), kind).reshape(batch, out, *counts)
    bound(image.dtype.itemsize * math.prod(windows.shape))
    rank = len(sizes)
    # [group, N and places, depth and window]
    parts = windows.reshape(batch, groups, depth, *counts, *sizes) if groups > 1 else windows[:, None]
    order = [1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
    columns = np.transpose(parts, order).reshape(groups, batch * math.prod(counts), -1)
    product = np.matmul(columns, np.swapaxes(weights, 1, 2))
    product = product.reshape(groups, batch, *counts, out // groups)
    return np.moveaxis(product, (0, -1), (1, 2)).reshape(batch, out, *counts)


def _by_images(windows: Any, weights: Any, rank: int, kind: Any) -> Any:
    """Return the products of weights [group, O, depth and window] with windows [N, C, places ..., window ...].

    The windows of some rows of places are copied at a time, so that the copy stays in a processor's cache. Along a row
    the copy is contiguous. The result is [N, group, O, places]. Raises NotInterpretable for a copy
    of more than `MOST_BYTES`.
    """
    batch, features, *rest = windows.shape
    counts, sizes = rest[:rank], rest[rank:]
    groups, out, depth_of = weights.shape
    row = math.prod(counts[1:])
    rows = min(max(1, _COPIED // (features * math.prod(sizes) * row)), counts[0])
    bound(windows.dtype.itemsize * features * math.prod(sizes) * row * rows)
    found = np.empty((batch, groups, out, counts[0] * row), kind)
    order = [0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank)]
    for image, result in zip(windows, found):
        for at in range(0, counts[0], rows):
            columns = image[:, at : at + rows].transpose(order).reshape(groups, depth_of, -1)
            np.matmul(weights, columns, out=result[:, :, at * row : at * row + columns.shape[2]])
    return found


# Windows


def _padding_of_windows(params: Params, rank: int) -> list[tuple[int, int, int]]:
    holes = params.get("base_dilation") or (1,) * rank
    return [(*edges, hole - 1) for edges, hole in zip(params["padding"], holes)]


def _forms(params: Params, rank: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return the sizes, the strides and the dilations of windows."""
    return params["window_dimensions"], params["window_strides"], params.get("window_dilation") or (1,) * rank


def _window_reduction(name: str, function: Any, filling: Callable[[Any], Any]) -> None:
    def run(params: Params, x: Any) -> Any:
        forms = _forms(params, x.ndim)
        x = padded(x, filling(x.dtype), _padding_of_windows(params, x.ndim))
        if math.prod(forms[0]) > _FEW_TAPS:
            return function.reduce(_windows(x, *forms), axis=tuple(range(x.ndim, 2 * x.ndim)), dtype=x.dtype)
        taps = _taps(x, *forms)
        found = np.array(x[taps[0][1]])
        for _, places in taps[1:]:
            function(found, x[places], out=found)
        return found

    RULES[name] = run


_window_reduction("reduce_window_sum", np.add, lambda dtype: 0)
_window_reduction("reduce_window_max", np.maximum, lowest)
_window_reduction("reduce_window_min", np.minimum, highest)


@rule("select_and_scatter_add")
def _select_and_scatter(params: Params, source: Any, x: Any) -> Any:
    """Add each element of `source` where its window has the greatest element, the first of equal ones.

    Raises NotInterpretable for windows of many elements.
    """
    if math.prod(params["window_dimensions"]) > _MOST_TAPS:
        raise NotInterpretable("it selects in windows of many elements")
    largest = params["select_prim"].name == "ge"
    filling = lowest(x.dtype) if largest else highest(x.dtype)
    edges = params["padding"]
    whole = padded(x, filling, _padding_of_windows(params, x.ndim))
    taps = _taps(whole, *_forms(params, x.ndim))
    best = np.array(whole[taps[0][1]])
    chosen = np.zeros(best.shape, np.int32)
    for number, (_, places) in enumerate(taps[1:], 1):
        candidate = whole[places]
        better = candidate > best if largest else candidate < best
        better |= np.isnan(candidate) & ~np.isnan(best) if x.dtype.kind == "f" else False
        np.copyto(best, candidate, where=better)
        chosen[better] = number
    found = np.zeros(whole.shape, source.dtype)
    for number, (_, places) in enumerate(taps):
        found[places] += np.where(chosen == number, source, 0).astype(source.dtype)
    return found[tuple(slice(low, low + size) for (low, _), size in zip(edges, x.shape))]
