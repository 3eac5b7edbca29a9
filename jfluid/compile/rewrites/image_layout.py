"""Images inside a compiled step on CPUs: channels last, as XLA's convolutions there want them.

Fluid's images have their channels first. XLA:CPU turns the operands of each convolution round, and
the result back: a quarter of the time of a step of YOLOv3 went there. Here a traced step is
rewritten so that what comes out of a convolution stays as it is through whatever follows it
(activations, normalisation, pooling, sums), forward and backward. Only what looks at the order of
the dimensions (a reshape, a loop) gets channels first. Users see no difference. The gradients of
the weights of products are computed the way round that the step wants them (`matmul_dispatch.py`), which says
which products are computed by machine code of our own.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from jfluid.compile.rewrites import (
    concat_of_slices,
    embedding_concat,
    image_convolution,
    matmul_dispatch,
    matmul_epilogues,
)
from jfluid.compile.rewrites.image_convolution import HELD, Filter
from jfluid.compile.rewrites.primitives import CALLS, ELEMENTWISE
from jfluid.compile.rewrites.traced_value import TURNED, Order, Value, inverse, permuted
from jfluid.ops.norm import CHANNEL_MOMENTS, CHANNEL_PRODUCTS

_REDUCTIONS = frozenset("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split())
_WINDOWS = frozenset("reduce_window_max reduce_window_min reduce_window_sum".split())
# Parameters of a window's primitives that have an entry for each dimension.
_PER_DIMENSION = (
    "window_dimensions",
    "window_strides",
    "padding",
    "base_dilation",
    "window_dilation",
)


_RANKS = (4, 5)  # of images and of volumes


def _last(rank: int) -> Order:
    """Return the dimensions of images in the order of channels last."""
    return (0, *range(2, rank), 1)


def _result(array: Array, order: Order) -> list[Value]:
    return [Value(laid=array, order=order)]


def channels_last(
    function: Callable[[dict[str, Any]], dict[str, Any]],
    held: Mapping[str, tuple[Array, Order]] = MappingProxyType({}),
    orders: Mapping[str, Order] = MappingProxyType({}),
    wanted: Container[str] | None = None,
) -> dict[str, Any]:
    """Call a function under a trace of `jax.jit` for a CPU, with images channels last inside it.

    Its results may be of any kind; those that are traced come out in the order that they have in
    it.

    Args:
        held: arguments by name that are held in another order.
        orders: of results by name, of those that come out in another order.
        wanted: names of results that are read; None for all.
    """
    leaves: list[Any] = []
    names: list[str | None] = []
    read: list[bool] = []  # which results are
    structure: Any = None

    def traced(arguments: dict[str, Any]) -> list[Any]:
        nonlocal structure
        found = function(arguments)
        paths, structure = jax.tree.flatten_with_path(found)
        for path, leaf in paths:
            leaves.append(leaf)
            if isinstance(leaf, jax.core.Tracer):
                key = path[0].key
                read.append(wanted is None or key in wanted)
                names.append(key if key in orders and len(path) == 1 else None)
        return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    shapes = {
        name: jax.ShapeDtypeStruct(permuted(array.shape, inverse(order)), array.dtype)
        for name, (array, order) in held.items()
    }
    image_convolution.expect([shape.shape for shape in shapes.values()])
    recorded = jax.make_jaxpr(traced)(shapes)
    arguments = [Value(laid=held[name][0], order=held[name][1]) for name in sorted(held)]
    found = iter(_evaluate(recorded.jaxpr, recorded.consts, arguments, read))
    places = iter(names)

    def result(leaf: Any) -> Any:
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        value, name = next(found), next(places)
        return value.given() if name is None else value.laid(orders[name])

    return jax.tree.unflatten(structure, [result(leaf) for leaf in leaves])  # type: ignore[no-any-return]


def _evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Value],
    results_read: Sequence[bool] | None = None,
) -> list[Value]:
    from jax.extend import core  # it comes with Pallas, which a second start does without

    readers = matmul_epilogues.readers(jaxpr, results_read)
    env: dict[Any, Value] = dict(zip(jaxpr.constvars, map(Value, consts)))
    env.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Value:
        return Value(atom.val) if isinstance(atom, core.Literal) else env[atom]

    for variable, value in zip(jaxpr.invars, arguments):
        value.read_by(readers.get(variable, ()))
    for equation in jaxpr.eqns:
        values = [read(a) for a in equation.invars]
        with jax.named_scope(matmul_epilogues.scope(equation, values)):
            results = _apply(equation, values)
        for variable, value in zip(equation.outvars, results):
            value.read_by(readers.get(variable, ()))
            env[variable] = value
    return [read(a) for a in jaxpr.outvars]


def _apply(equation: Any, values: list[Value]) -> list[Value]:
    """Apply a primitive, to images with channels last where that is possible."""
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        sums = _channel_sums(equation, values)
        if sums is not None:
            return sums
        inner = params[CALLS[name]]
        if matmul_epilogues.waits(equation):
            shapes = [a.aval.shape for a in equation.invars]
            values = list(map(matmul_epilogues.awaited, values, shapes))
        for value in values:  # its readers are among the equations inside
            value.readers = [r for r in value.readers if r is not equation]
        return _evaluate(inner.jaxpr, inner.consts, values)
    if name == "platform_index":
        cpu = [i for i, names in enumerate(params["platforms"]) if names and "cpu" in names]
        return [Value(np.int32(cpu[0] if cpu else len(params["platforms"]) - 1))]
    if name == "cond" and isinstance(values[0].given(), np.integer):
        branch = params["branches"][int(values[0].given())]
        return _evaluate(branch.jaxpr, branch.consts, values[1:])
    if (finished := matmul_epilogues.apply(equation, values)) is not None:
        return [finished]
    if name == "conv_general_dilated":
        found = _convolution(values, params)
    elif name == "dot_general":
        found = _product(equation, values)
    elif name == "transpose" and values[0].order is None and params["permutation"] == TURNED:
        found = [Value(values[0].laid(TURNED))]
    elif name == "concatenate" and (joined := _joined(equation, values)) is not None:
        found = [joined]
    elif name in embedding_concat.CALL and (called := _from_strips(equation, values)) is not None:
        found = called
    elif all(v.order is None for v in values):
        found = None
    elif name in ELEMENTWISE:
        found = _elementwise(equation, values)
    else:
        found = _RULES.get(name, _as_given)(equation, values)
    if found is None:
        results = equation.primitive.bind(*(v.given() for v in values), **params)
        found = [Value(r) for r in (results if equation.primitive.multiple_results else [results])]
    if name == "broadcast_in_dim" and found[0].order is None:
        found[0].broadcast = params, values[0].given()
    if name in concat_of_slices.FOLLOWED and values[0].order is None:
        parts = concat_of_slices.of(equation, values[0].given(), values[0].columns)
        for value, part in zip(found, parts):
            value.columns = part
    if name in embedding_concat.FOLLOWED and values[0].order is None:
        arrays = [v.given() for v in values] if name in embedding_concat.CALL else []
        found[0].taken = embedding_concat.of(equation, arrays, values[0].taken)
    if name == "rev" and params["dimensions"] == tuple(range(2, equation.outvars[0].aval.ndim)):
        found[0].mirror = values[0]
    return found


def _joined(equation: Any, values: list[Value]) -> Value | None:
    """Parts of a matrix below one another, or rows of a table side by side."""
    if equation.outvars[0].aval.ndim != 2:
        return None
    if equation.params["dimension"]:
        beside = embedding_concat.beside([v.taken for v in values], lambda i: values[i].given(), equation)
        return None if beside is None else Value(beside)
    strips = concat_of_slices.stacked([v.columns for v in values])
    if strips is None or strips.shape != equation.outvars[0].aval.shape:
        return None
    found = Value(strips.array())
    found.strips = strips
    return found


def _from_strips(equation: Any, values: list[Value]) -> list[Value] | None:
    found = embedding_concat.from_strips(equation, [v.strips for v in values], [v.given() for v in values])
    return None if found is None else list(map(Value, found))


def _as_given(equation: Any, values: list[Value]) -> None:
    return None


def _elementwise(equation: Any, values: list[Value]) -> list[Value]:
    if equation.primitive.multiple_results:  # each result is one of the operands
        operands = [v.laid(v.order) if v.order else v.given() for v in values]
        out = equation.primitive.bind(*operands, **equation.params)
        return [Value(laid=o, order=v.order) if v.order else Value(o) for o, v in zip(out, values)]
    order, rank = _order(values), equation.outvars[0].aval.ndim
    operands = [v.laid(order) if a.aval.ndim == rank else v.given() for v, a in zip(values, equation.invars)]
    return _result(equation.primitive.bind(*operands, **equation.params), order)


def _maximum(equation: Any, values: list[Value]) -> list[Value]:
    """Apply a maximum; that with a number, as in relu, as a selection.

    XLA computes what depends on one image again in each loop that reads it, so that behind a few
    residual blocks every loop would compute all of them. A selection depends on two: what a
    convolution reads is then computed once, for all who read it.
    """
    (x, number), (_, scalar) = values, equation.invars
    if scalar.aval.ndim or x.order is None:
        return _elementwise(equation, values)
    image, least = x.laid(x.order), number.given()
    return _result(lax.select(image <= least, lax.full_like(image, least), image), x.order)


def _order(values: list[Value]) -> Order:
    return next(v.order for v in values if v.order)


def _broadcast(equation: Any, values: list[Value]) -> list[Value] | None:
    """Repeat images, also along new dimensions: these stay behind the ones that they follow."""
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    order = _order(values)
    if places[0] != 0:
        return None
    ends = [*places[1:], len(shape)]
    after = tuple(new for d in order for new in range(places[d], ends[d]))
    sizes, laid = permuted(shape, after), values[0].laid(order)
    at = [after.index(places[d]) for d in order]
    return _result(lax.broadcast_in_dim(laid, sizes, at), after)


def _reduction(equation: Any, values: list[Value]) -> list[Value]:
    order, params = _order(values), dict(equation.params)
    axes = params["axes"]
    params["axes"] = tuple(sorted(inverse(order)[a] for a in axes))
    out = equation.primitive.bind(values[0].laid(order), **params)
    held = [d for d in order if d not in axes]  # the dimension that each one is of
    return [Value(lax.transpose(out, np.argsort(held).tolist()) if held != sorted(held) else out)]


def _reshape(equation: Any, values: list[Value]) -> list[Value] | None:
    """Divide dimensions, as the examples of images among replicas, or join those that are neighbours however they
    are held, as windows and what is inside them.
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
    """Which dimensions of a shape become which ones of another, each time as few as have one size, and those of 1
    that only one shape has, with what is before them; None where that cannot be said.
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


def _pad(equation: Any, values: list[Value]) -> list[Value] | None:
    order = values[0].order
    if order is None:
        return None
    config = permuted(equation.params["padding_config"], order)
    return _result(lax.pad(values[0].laid(order), values[1].given(), config), order)


def _slice(equation: Any, values: list[Value]) -> list[Value]:
    p, order = equation.params, _order(values)
    strides = p["strides"] and permuted(p["strides"], order)
    starts, limits = (permuted(p[k], order) for k in ("start_indices", "limit_indices"))
    return _result(lax.slice(values[0].laid(order), starts, limits, strides), order)


def _concatenate(equation: Any, values: list[Value]) -> list[Value]:
    order = _order(values)
    at = inverse(order)[equation.params["dimension"]]
    return _result(lax.concatenate([v.laid(order) for v in values], at), order)


def _reverse(equation: Any, values: list[Value]) -> list[Value]:
    order = _order(values)
    dimensions = [inverse(order)[d] for d in equation.params["dimensions"]]
    return _result(lax.rev(values[0].laid(order), dimensions), order)


def _transpose(equation: Any, values: list[Value]) -> list[Value]:
    order = _order(values)
    turned = [inverse(order)[d] for d in equation.params["permutation"]]
    return [Value(lax.transpose(values[0].laid(order), turned))]


def _window(equation: Any, values: list[Value]) -> list[Value]:
    order, params = _order(values), dict(equation.params)
    params.update({k: permuted(params[k], order) for k in _PER_DIMENSION if k in params})
    return _result(equation.primitive.bind(values[0].laid(order), **params), order)


def _convolution(values: list[Value], params: dict[str, Any]) -> list[Value] | None:
    """Apply a convolution of images, or the gradient of one with respect to its filter."""
    lhs, rhs = values
    numbers = params["dimension_numbers"]
    plain = tuple(range(len(numbers.lhs_spec)))
    if params["batch_group_count"] != 1 or len(plain) not in _RANKS:
        return None
    swapped, last = (1, 0, *plain[2:]), _last(len(plain))
    if numbers.lhs_spec == plain and numbers.out_spec == plain:
        x = lhs.laid(last)
        if numbers.rhs_spec == swapped and rhs.mirror is not None:
            return _result(image_convolution.input_gradient(x, _filter(rhs.mirror), _filter(rhs), params), last)
        return _result(image_convolution.forward(x, _filter(rhs), params), last)
    if lhs.order == last or rhs.order == last:
        if numbers.lhs_spec == numbers.rhs_spec == numbers.out_spec == swapped:
            x, grad = lhs.laid(last), rhs.laid(last)
            return [Value(make=lambda held: image_convolution.filter_gradient(x, grad, held, params))]
    return None


def _product(equation: Any, values: list[Value]) -> list[Value] | None:
    """Apply a product of two matrices in single precision.

    `jax.vjp` gives a weight's gradient as that of the gradient and what came in, and turns it round: it may
    be computed either way.
    """
    arrays = [a.aval for a in (*equation.invars, *equation.outvars)]
    if any(a.ndim != 2 or a.dtype != np.float32 for a in arrays):
        return None
    left, right = equation.params["dimension_numbers"][0]
    if not len(left) == len(right) == 1:
        return None
    x, y, over = values[0].given(), values[1].given(), (left[0], right[0])
    if over != (0, 0) and not matmul_dispatch.is_own(x, y, over):
        return None

    return [matmul_epilogues.product(x, y, over, str(equation.source_info.name_stack))]


def _channel_sums(equation: Any, values: list[Value]) -> list[Value] | None:
    """Apply a function of `jfluid/ops/norm.py` that sums over images for each channel."""
    name = equation.params.get("name")
    if name not in (CHANNEL_MOMENTS, CHANNEL_PRODUCTS):
        return None
    last = _last(equation.invars[0].aval.ndim)
    if all(v.order != last for v in values):
        return None
    from jfluid.machine_code import channel_sums  # LLVM, which few programs need

    images = [v.laid(last) for v, a in zip(values, equation.invars) if a.aval.ndim == len(last)]
    if not channel_sums.suits(images[0]):
        return None
    shape = equation.outvars[0].aval.shape  # [channels], or those of each group of rows
    groups = shape[0] if len(shape) == 2 else 1
    if name == CHANNEL_MOMENTS:
        found = channel_sums.moments(images[0], groups)
    else:
        grad, x = images
        found = channel_sums.products(grad, x, values[-1].given(), groups)
    return [Value(lax.reshape(v, shape)) for v in found]


def _filter(value: Value) -> Filter:
    held = value.order is not None and value.order == HELD[len(value.order)]
    return Filter(value.laid(value.order) if held else value.given(), held)  # type: ignore[arg-type]


_RULES: dict[str, Callable[[Any, list[Value]], list[Value] | None]] = {
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
