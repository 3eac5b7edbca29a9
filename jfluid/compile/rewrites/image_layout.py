"""Layout of images inside a compiled step on CPUs: channels last, as XLA's convolutions want.

Fluid's images have channels first. XLA:CPU transposes the operands of each convolution, and its result back: a
quarter of a step of YOLOv3. Here the result of a convolution keeps the channels-last layout through activations,
normalization, pooling and sums, forward and backward. Equations that depend on the order of the dimensions (a general
reshape, a loop) get channels first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from jfluid.compile.rewrites.primitives import ELEMENTWISE
from jfluid.compile.rewrites.rewrite import Rewrite
from jfluid.compile.rewrites.traced_value import Order, TracedValue, inverse, permuted

_REDUCTIONS = frozenset("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split())
_WINDOWS = frozenset("reduce_window_max reduce_window_min reduce_window_sum".split())
# Parameters of window primitives that have an entry for each dimension.
_PER_DIMENSION = (
    "window_dimensions",
    "window_strides",
    "padding",
    "base_dilation",
    "window_dilation",
)
_RANKS = (4, 5)  # of images and of volumes


class ImageLayout(Rewrite):
    """Rewrite that keeps the layout of images through equations."""

    def apply(self, equation: Any, values: Sequence[TracedValue]) -> Sequence[TracedValue] | None:
        """Return the results in the layout of an operand, or None if no operand has a layout or no rule fits."""
        if all(v.order is None for v in values):
            return None
        name = equation.primitive.name
        rule = _elementwise if name in ELEMENTWISE else _RULES.get(name)
        return None if rule is None else rule(equation, list(values))


def _result(array: Array, order: Order) -> list[TracedValue]:
    return [TracedValue(laid=array, order=order)]


def _elementwise(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    if equation.primitive.multiple_results:  # each result is one of the operands
        operands = [v.laid(v.order) if v.order else v.given() for v in values]
        out = equation.primitive.bind(*operands, **equation.params)
        return [TracedValue(laid=o, order=v.order) if v.order else TracedValue(o) for o, v in zip(out, values)]
    order, rank = _order(values), equation.outvars[0].aval.ndim
    operands = [v.laid(order) if a.aval.ndim == rank else v.given() for v, a in zip(values, equation.invars)]
    return _result(equation.primitive.bind(*operands, **equation.params), order)


def _maximum(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    """Apply a maximum; a maximum with a number, as in relu, becomes a selection.

    XLA computes a function of one image again in each loop that reads it: behind a few residual blocks every loop would
    compute all of the blocks. A selection reads two images, so a convolution's input is computed once for all readers.
    """
    (x, number), (_, scalar) = values, equation.invars
    if scalar.aval.ndim or x.order is None:
        return _elementwise(equation, values)
    image, least = x.laid(x.order), number.given()
    return _result(lax.select(image <= least, lax.full_like(image, least), image), x.order)


def _order(values: list[TracedValue]) -> Order:
    return next(v.order for v in values if v.order)


def _broadcast(equation: Any, values: list[TracedValue]) -> list[TracedValue] | None:
    """Broadcast images, also along new dimensions, which follow the preceding dimension."""
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    order = _order(values)
    if places[0] != 0:
        return None
    ends = [*places[1:], len(shape)]
    after = tuple(new for d in order for new in range(places[d], ends[d]))
    sizes, laid = permuted(shape, after), values[0].laid(order)
    at = [after.index(places[d]) for d in order]
    return _result(lax.broadcast_in_dim(laid, sizes, at), after)


def _reduction(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    order, params = _order(values), dict(equation.params)
    axes = params["axes"]
    params["axes"] = tuple(sorted(inverse(order)[a] for a in axes))
    out = equation.primitive.bind(values[0].laid(order), **params)
    held = [d for d in order if d not in axes]  # the dimension that each one is of
    return [TracedValue(lax.transpose(out, np.argsort(held).tolist()) if held != sorted(held) else out)]


def _reshape(equation: Any, values: list[TracedValue]) -> list[TracedValue] | None:
    """Reshape images if each dimension is divided, or merged with dimensions that are adjacent in the layout.

    Replicas divide the examples of images so, and windows are merged with their elements.
    """
    order, sizes = _order(values), equation.params["new_sizes"]
    groups = _divided(equation.invars[0].aval.shape, sizes)
    if groups is None or equation.params["dimensions"] or len(sizes) not in _RANKS:
        return None
    of = {d: (old, new) for old, new in groups for d in old}
    if of[order[-1]] != ((order[-1],), of[order[-1]][1][:1]):  # channels stay whole
        return None
    after: list[int] = []
    at = 0
    while at < len(order):
        old, new = of[order[at]]
        if order[at : at + len(old)] != old:
            return None
        after += new
        at += len(old)
    found = lax.reshape(values[0].laid(order), permuted(sizes, tuple(after)))
    return _result(found, tuple(after))


def _divided(before: Sequence[int], after: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Return the groups of old dimensions and the new dimensions that each group becomes; None if there are none.

    Groups are as small as possible. A dimension of 1 that only one shape has belongs to the group before it.
    """
    found, i, j = [], 0, 0

    def one(shape: Sequence[int], at: int) -> bool:
        return at < len(shape) and shape[at] == 1

    while i < len(before) and j < len(after):
        first, size, then, other = i, before[i], j, after[j]
        i, j = i + 1, j + 1
        while size != other:
            if size < other and i < len(before):
                size, i = size * before[i], i + 1
            elif other < size and j < len(after):
                other, j = other * after[j], j + 1
            else:
                return None
        while one(before, i) != one(after, j):
            i, j = i + one(before, i), j + one(after, j)
        found.append((tuple(range(first, i)), tuple(range(then, j))))
    return found if i == len(before) and j == len(after) and 0 not in before else None


def _pad(equation: Any, values: list[TracedValue]) -> list[TracedValue] | None:
    order = values[0].order
    if order is None:
        return None
    config = permuted(equation.params["padding_config"], order)
    return _result(lax.pad(values[0].laid(order), values[1].given(), config), order)


def _slice(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    p, order = equation.params, _order(values)
    strides = p["strides"] and permuted(p["strides"], order)
    starts, limits = (permuted(p[k], order) for k in ("start_indices", "limit_indices"))
    return _result(lax.slice(values[0].laid(order), starts, limits, strides), order)


def _concatenate(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    order = _order(values)
    at = inverse(order)[equation.params["dimension"]]
    return _result(lax.concatenate([v.laid(order) for v in values], at), order)


def _reverse(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    order = _order(values)
    dimensions = [inverse(order)[d] for d in equation.params["dimensions"]]
    return _result(lax.rev(values[0].laid(order), dimensions), order)


def _transpose(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    order = _order(values)
    turned = [inverse(order)[d] for d in equation.params["permutation"]]
    return [TracedValue(lax.transpose(values[0].laid(order), turned))]


def _window(equation: Any, values: list[TracedValue]) -> list[TracedValue]:
    order, params = _order(values), dict(equation.params)
    params.update({k: permuted(params[k], order) for k in _PER_DIMENSION if k in params})
    return _result(equation.primitive.bind(values[0].laid(order), **params), order)


_RULES: dict[str, Callable[[Any, list[TracedValue]], list[TracedValue] | None]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "pad": _pad,
    "slice": _slice,
    "concatenate": _concatenate,
    "rev": _reverse,
    "transpose": _transpose,
    "max": _maximum,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_WINDOWS, _window),
}
