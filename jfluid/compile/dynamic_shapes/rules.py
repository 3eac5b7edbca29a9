"""Rules of operations at padded sizes: elements, shapes, sums, products, calls."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import threefry2x32_p

from jfluid.compile.dynamic_shapes.dims import (
    ONE,
    Dim,
    NoRule,
    Samples,
    Symbol,
    Table,
    common,
    constant,
    is_constant,
    leads,
    merged,
    samples_of,
    size_of,
)
from jfluid.compile.dynamic_shapes.interpreter import (
    RULES,
    Interpreter,
    Operation,
    Padded,
    along,
    highest,
    lowest,
    resized,
    rule,
)
from jfluid.compile.rewrites.primitives import CALLS, ELEMENTWISE
from jfluid.ops import dependency

_OTHER_ELEMENTWISE = (
    "random_wrap random_unwrap random_fold_in bessel_i0e bessel_i1e digamma lgamma igamma igammac "
    "regularized_incomplete_beta population_count clz shift_left shift_right_arithmetic "
    "shift_right_logical real imag conj complex max min lt_to le_to eq_to acosh asinh atanh "
    "random_seed random_clone"
).split()


@rule(*ELEMENTWISE, *_OTHER_ELEMENTWISE)
def _elementwise(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    arrays, dims = _together(run, values)
    results = operation.bind(*arrays)
    if operation.primitive.multiple_results:  # each result is one of the operands
        return [Padded(r, v.dims) for r, v in zip(results, values)]
    return Padded(results, dims)


def _together(run: Interpreter, values: Sequence[Padded]) -> tuple[list[Any], tuple[Dim, ...]]:
    """Return arrays with padding at the same places, and the dimensions of an elementwise result."""
    rank = max(len(v.dims) for v in values)
    full = [v.dims for v in values if len(v.dims) == rank]
    dims = []
    for own in zip(*full):
        others = [d for d in own if d != ONE]
        dims.append(next((d for d in others if leads(d)), others[0] if others else ONE))
    arrays = []
    for value in values:
        if len(value.dims) == rank and value.dims != tuple(dims):
            goal = [ONE if own == ONE else d for own, d in zip(value.dims, dims)]
            arrays.append(run.laid_out(value, goal))
        else:
            arrays.append(value.array)
    return arrays, tuple(dims)


@rule(*CALLS)
def _call(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    if operation.params.get("name") == dependency.AWAITED:
        return Padded(dependency.zero_of(values[0].array))
    return run.inline(operation.each(CALLS[operation.name]), values)


_call.inlines = True  # type: ignore[attr-defined]


@rule("platform_index")
def _platform(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    platforms = operation.params["platforms"]
    own = [i for i, names in enumerate(platforms) if names and run.platform in names]
    return Padded(np.int32(own[0] if own else len(platforms) - 1))


_platform.inlines = True  # type: ignore[attr-defined]


# Shapes


@rule("broadcast_in_dim")
def _broadcast(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, places = values[0], operation.params["broadcast_dimensions"]
    dims = []
    for i, samples in enumerate(operation.results()):
        own = value.dims[places.index(i)] if i in places else None
        same = own is not None and samples_of(own, run.table.count) == samples
        dims.append(own if same and own is not None else run.table.named(samples))
    array = lax.broadcast_in_dim(value.array, run.sizes.shape(dims), places)
    return Padded(array, tuple(dims))


@rule("stack")
def _stack(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    arrays, together = _together(run, values)
    dims = list(together)
    dims.insert(operation.params["axis"], constant(len(values)))
    return Padded(operation.bind(*arrays), tuple(dims))


@rule("unstack")
def _unstack(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    (value,), axis = values, operation.params["axis"]
    if not is_constant(value.dims[axis]):
        raise NoRule("a number of results that varies")
    dims = tuple(d for i, d in enumerate(value.dims) if i != axis)
    return [Padded(array, dims) for array in operation.bind(value.array)]


@rule("tile")
def _tile(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    (value,), times = values, list(zip(*operation.each("reps")))
    dims, reps = [], []
    for dim, own in zip(value.dims, times):
        n = 1 if dim == ONE else common(own, "how often an array is repeated")
        found = run.table.named(own) if dim == ONE else dim
        if n != 1:
            found = joined([*dim] * n)
            if not is_constant(found):
                run.table.learn(found)
        dims.append(found)
        reps.append(run.sizes.padded(found) if dim == ONE else n)
    return Padded(operation.bind(value.array, reps=tuple(reps)), tuple(dims))


@rule("bitcast_convert_type")
def _bitcast(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    array = operation.bind(values[0].array)
    if array.ndim != len(values[0].dims):
        raise NoRule("a cast of bits that divides or joins numbers")
    return Padded(array, values[0].dims)


@rule("iota")
def _iota(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    dims, at = run.results(operation), operation.params["dimension"]
    index = run.sizes.true_index(dims[at]).astype(operation.params["dtype"])
    return Padded(jnp.broadcast_to(along(index, at, len(dims)), run.sizes.shape(dims)), dims)


@rule("reshape")
def _reshape(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    if operation.params["dimensions"] is not None:
        raise NoRule("a reshape that changes the order of dimensions")
    if 0 in values[0].array.shape:
        dims = run.results(operation)
        return Padded(jnp.zeros(run.sizes.shape(dims), values[0].array.dtype), dims)
    try:
        dims = regrouped(run.table, values[0].dims, operation.results())
    except NoRule:
        return _reshaped_by_index(run, operation, values[0])
    return Padded(lax.reshape(values[0].array, run.sizes.shape(dims)), dims)


def _reshaped_by_index(run: Interpreter, operation: Operation, value: Padded) -> Padded:
    """Reshape an array if its padding moves to other places. Raises NoRule."""
    dims = run.results(operation)
    flat: Any = _index_among_data(run, dims)
    place, stride = jnp.zeros_like(flat), 1
    for dim in reversed(value.dims):
        size = jnp.maximum(jnp.asarray(run.sizes.true(dim), flat.dtype), 1)
        own = jnp.minimum(run.sizes.padded_index(dim, flat % size), run.sizes.padded(dim) - 1)
        place, flat, stride = place + own * stride, flat // size, stride * run.sizes.padded(dim)
    return Padded(jnp.take(value.array.reshape(-1), place, mode="clip"), dims)


def regrouped(table: Table, dims: Sequence[Dim], wanted: Sequence[Samples]) -> tuple[Dim, ...]:
    """Return the dimensions after a reshape: the same factors in row-major order, grouped anew.

    Args:
        wanted: size of each new dimension, at each sample.

    Raises NoRule if a new dimension is no product of factors that follow each other.
    """
    if any(len(dim) > 1 for dim in dims):
        return _regrouped_whole(table, dims, wanted)
    left: list[int | Symbol] = [f for dim in dims for f in dim[0] if f != 1]
    found = []
    for samples in wanted:
        own: list[int | Symbol] = []
        missing = samples
        while any(n != 1 for n in missing):
            factor = left.pop(0) if left else 0
            if isinstance(factor, int) and factor:
                taken = math.gcd(factor, *missing)
                if factor // taken > 1:
                    left.insert(0, factor // taken)
                factor = taken
            sizes = factor.samples if isinstance(factor, Symbol) else (factor,) * table.count
            if factor in (0, 1) or any(not s or m % s for m, s in zip(missing, sizes)):
                raise NoRule(f"a reshape of {_text(dims)} to sizes {list(wanted)}")
            missing = tuple(m // s for m, s in zip(missing, sizes))
            own.append(factor)
        dim = (merged(own),)
        found.append(dim if is_constant(dim) else table.learn(dim))
    return tuple(found)


def _regrouped_whole(table: Table, dims: Sequence[Dim], wanted: Sequence[Samples]) -> tuple[Dim, ...]:
    """Regroup dimensions, as `regrouped`, if dimensions stay whole and dimensions of 1 come and go."""
    left = [dim for dim in dims if dim != ONE]
    found = []
    for samples in wanted:
        if set(samples) == {1}:
            found.append(ONE)
            continue
        dim = left.pop(0) if left else ONE
        if samples_of(dim, table.count) != samples:
            raise NoRule(f"a reshape of {_text(dims)} to sizes {list(wanted)}")
        found.append(dim)
    return tuple(found)


def _text(dims: Sequence[Dim]) -> str:
    return " x ".join("+".join("*".join(map(_name, s)) for s in dim) for dim in dims)


def _name(factor: int | Symbol) -> str:
    return str(factor) if isinstance(factor, int) else f"n{list(factor.samples)}"


@rule("squeeze")
def _squeeze(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, axes = values[0], operation.params["dimensions"]
    dims = tuple(d for i, d in enumerate(value.dims) if i not in axes)
    return Padded(lax.squeeze(value.array, axes), dims)


@rule("expand_dims")
def _expand(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, axes = values[0], operation.params["dimensions"]
    own = iter(value.dims)
    dims = tuple(ONE if i in axes else next(own) for i in range(len(value.dims) + len(axes)))
    return Padded(lax.expand_dims(value.array, axes), dims)


@rule("transpose")
def _transpose(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, order = values[0], operation.params["permutation"]
    return Padded(lax.transpose(value.array, order), tuple(value.dims[i] for i in order))


@rule("concatenate")
def _concatenate(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    at = operation.params["dimension"]
    dims = [next((d for d in own if d != ONE), ONE) for own in zip(*(v.dims for v in values))]
    arrays = []
    for value in values:
        dims[at] = value.dims[at]
        arrays.append(run.laid_out(value, dims))
    found = joined([segment for v in values for segment in v.dims[at]])
    dims[at] = found if is_constant(found) else run.table.learn(found)
    return Padded(lax.concatenate(arrays, at), tuple(dims))


@rule("split")
def _split(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, axis = values[0], operation.params["axis"]
    found, begin = [], (0,) * run.table.count
    for sizes in zip(*operation.each("sizes")):
        end = tuple(b + s for b, s in zip(begin, sizes))
        found.append(_taken(run, value, axis, begin, end, 1))
        begin = end
    return found


@rule("slice")
def _slice(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    found, strides = values[0], operation.params["strides"]
    for axis in range(len(found.dims)):
        begin = tuple(s[axis] for s in operation.each("start_indices"))
        end = tuple(s[axis] for s in operation.each("limit_indices"))
        found = _taken(run, found, axis, begin, end, 1 if strides is None else strides[axis])
    return found


def _taken(run: Interpreter, value: Padded, axis: int, begin: Samples, end: Samples, step: int) -> Padded:
    """Return a stretch of one dimension of an array, or every `step`-th place of it."""
    dim, count = value.dims[axis], run.table.count
    whole = samples_of(dim, count)
    if step == 1 and not any(begin) and end == whole:
        return value
    length = tuple(-(-(e - b) // step) for b, e in zip(begin, end))
    place: int | None = None
    known = _place(run, dim, begin, end) if step == 1 else None
    if is_constant(dim) and len(set(length)) == 1 == len(set(begin)):
        place, part = begin[0], constant(length[0])
    elif known is not None:
        place, part = known
    else:
        part = run.table.find(length) or _shorter(run, dim, begin, whole, end, step)
    dims = (*value.dims[:axis], part, *value.dims[axis + 1 :])
    if place is not None:
        last = place + (run.sizes.padded(part) - 1) * step + 1 if run.sizes.padded(part) else place
        return Padded(lax.slice_in_dim(value.array, place, last, step, axis), dims)
    if leads(dim) and leads(part) and len(set(begin)) == 1:
        size = run.sizes.padded(part)
        reach = max(min(begin[0] + (size - 1) * step + 1, run.sizes.padded(dim)), begin[0])
        array = lax.slice_in_dim(value.array, begin[0], reach, step, axis)
        return Padded(resized(array, axis, size), dims)
    first = run.number(begin, np.dtype(np.int64))
    index = run.sizes.padded_index(dim, run.sizes.true_index(part) * step + first)
    return Padded(jnp.take(value.array, index, axis=axis, mode="clip"), dims)


def _place(run: Interpreter, dim: Dim, begin: Samples, end: Samples) -> tuple[int, Dim] | None:
    """Return the padded start and the dimension of a range, or None if the trace does not determine both."""
    segments, count = _divided(dim), run.table.count
    places = [(0,) * count]  # where segments begin and end, at each sample
    for segment in segments:
        size = samples_of((segment,), count)
        places.append(tuple(p + s for p, s in zip(places[-1], size)))
    if begin in places and end in places and places.index(begin) < places.index(end):
        at, to = places.index(begin), places.index(end)
        part = joined(segments[at:to])
        before = run.sizes.padded(segments[:at]) if at else 0
        return before, part if is_constant(part) else run.table.learn(part)
    if len(set(begin)) > 1 or not leads(dim):
        return None
    if len(set(end)) == 1:
        return begin[0], constant(end[0] - begin[0])
    whole = samples_of(dim, count)
    cut = {n - e for n, e in zip(whole, end)}
    if len(cut) > 1 or len(dim[0]) > 1:
        return None
    return begin[0], _shorter(run, dim, begin, whole, end, 1)


def _shorter(run: Interpreter, dim: Dim, begin: Samples, whole: Samples, end: Samples, step: int) -> Dim:
    """Return the dimension of every `step`-th place but some first and last ones. Raises NoRule."""
    first = common(begin, "where a slice begins")
    cut = common([n - e for n, e in zip(whole, end)], "where a slice ends")
    samples = tuple(-(-(e - first) // step) for e in end)
    size = functools.partial(_sliced_size, dim, first + cut, step)
    return run.table.learn(((Symbol(samples, size),),))


def _sliced_size(dim: Dim, less: int, step: int, of: Mapping[str, Any]) -> Any:
    return (size_of(dim, of) - less + step - 1) // step


def _longer_size(symbol: Symbol, number: int, of: Mapping[str, Any]) -> Any:
    return symbol.size(of) + number


def _divided(dim: Dim) -> Dim:
    """Return a dimension with segments for the copies of a segment that is repeated."""
    (segment, *others) = dim
    if others or len(segment) < 2 or not isinstance(segment[0], int):
        return dim
    return (segment[1:],) * segment[0]


def joined(segments: Sequence[tuple[int | Symbol, ...]]) -> Dim:
    """Return the dimension of segments one after the other: equal ones as one that is repeated."""
    segments = [s for s in segments if s != (0,)] or [(0,)]
    if all(isinstance(f, int) for s in segments for f in s):
        return constant(sum(map(math.prod, segments)))  # type: ignore[arg-type]
    first = segments[0]
    if len(segments) > 1 and all(s == first for s in segments):
        return (merged((len(segments), *first)),)
    if len(segments) == 2 and len(segments[0]) == 1 == len(segments[1]):
        number, symbol = first[0], segments[1][0]
        if isinstance(number, int) and isinstance(symbol, Symbol):  # data come first: it is one
            samples = tuple(n + number for n in symbol.samples)
            return ((Symbol(samples, functools.partial(_longer_size, symbol, number)),),)
    return tuple(segments)


@rule("pad")
def _pad(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    found, fill = values
    results = operation.results()
    for axis, dim in enumerate(found.dims):
        config = [c[axis] for c in operation.each("padding_config")]
        if all(c == (0, 0, 0) for c in config):
            continue
        if len(set(config)) == 1 and (is_constant(dim) or min(config[0]) >= 0 == config[0][2]):
            found = _extended(run, found, fill.array, axis, config[0])
        else:
            found = _spread(run, found, fill.array, axis, config, results[axis])
    return found


def _extended(run: Interpreter, value: Padded, fill: Any, axis: int, config: tuple[int, int, int]) -> Padded:
    """Pad one dimension by the same number of places at all sizes."""
    before, after, inside = map(int, config)
    dim, changes = value.dims[axis], [(0, 0, 0)] * len(value.dims)
    changes[axis] = before, after, inside
    array = lax.pad(value.array, fill, changes)
    if is_constant(dim):
        new = constant(array.shape[axis])
    else:
        new = run.table.learn(joined([(before,), *dim, (after,)]))
    return Padded(array, (*value.dims[:axis], new, *value.dims[axis + 1 :]))


def _spread(
    run: Interpreter,
    value: Padded,
    fill: Any,
    axis: int,
    config: Sequence[tuple[int, int, int]],
    result: Samples,
) -> Padded:
    """Pad one dimension in any way, by the index of each place of the result."""
    dim, new = value.dims[axis], run.table.named(result)
    dims = (*value.dims[:axis], new, *value.dims[axis + 1 :])
    step = common([c[2] for c in config], "padding between places") + 1
    if leads(dim) and leads(new) and len({c[0] for c in config}) == 1:
        begin = int(config[0][0])
        covered = begin + (run.sizes.padded(dim) - 1) * step + 1
        changes = [(0, 0, 0)] * len(value.dims)
        changes[axis] = begin, run.sizes.padded(new) - covered, step - 1
        return Padded(lax.pad(run.masked(value, (axis,), fill), fill, changes), dims)
    before = run.number([int(c[0]) for c in config], np.dtype(np.int64))
    index = run.sizes.true_index(new) - before
    place = run.sizes.padded_index(dim, jnp.maximum(index // step, 0))
    known = (index >= 0) & (index % step == 0) & (index // step < run.sizes.true(dim))
    array = jnp.take(value.array, place, axis=axis, mode="clip")
    array = jnp.where(along(known, axis, len(value.dims)), array, fill)
    return Padded(array, dims)


@rule("rev")
def _reverse(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    value, array = values[0], values[0].array
    for axis in operation.params["dimensions"]:
        dim = value.dims[axis]
        if is_constant(dim):
            array = lax.rev(array, (axis,))
            continue
        index = run.sizes.true(dim) - 1 - run.sizes.true_index(dim)
        place = run.sizes.padded_index(dim, jnp.maximum(index, 0))
        array = jnp.take(array, place, axis=axis, mode="clip")
    return Padded(array, value.dims)


# Sums


def _reduction(fill: Any) -> Any:
    def reduce(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
        (value,), axes = values, operation.params["axes"]
        neutral = fill(value.array.dtype) if callable(fill) else fill
        array = operation.bind(run.masked(value, axes, neutral))
        return Padded(array, tuple(d for i, d in enumerate(value.dims) if i not in axes))

    return reduce


for _name_, _fill in {
    "reduce_sum": 0,
    "reduce_prod": 1,
    "reduce_or": 0,
    "reduce_and": -1,  # all bits
    "reduce_xor": 0,
    "reduce_max": lowest,
    "reduce_min": highest,
}.items():
    RULES[_name_] = _reduction(_fill)


def _position(fill: Any) -> Any:
    def find(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
        (value,), (axis,) = values, operation.params["axes"]
        array = operation.bind(run.masked(value, (axis,), fill(value.array.dtype)))
        if not leads(value.dims[axis]):
            array = run.sizes.true_index(value.dims[axis]).astype(array.dtype)[array]
        return Padded(array, tuple(d for i, d in enumerate(value.dims) if i != axis))

    return find


RULES["argmax"], RULES["argmin"] = _position(lowest), _position(highest)


def _cumulative(fill: Any) -> Any:
    def cumulate(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
        (value,), axis = values, operation.params["axis"]
        neutral = fill(value.array.dtype) if callable(fill) else fill
        return Padded(operation.bind(run.masked(value, (axis,), neutral)), value.dims)

    return cumulate


for _name_, _fill in {
    "cumsum": 0,
    "cumprod": 1,
    "cummax": lowest,
    "cummin": highest,
    "cumlogsumexp": lowest,
}.items():
    RULES[_name_] = _cumulative(_fill)


@rule("dot_general")
def _product(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    a, b = values
    (over_a, over_b), (batch_a, batch_b) = operation.params["dimension_numbers"]
    goal = list(b.dims)
    for i, j in zip((*over_a, *batch_a), (*over_b, *batch_b)):
        goal[j] = a.dims[i]
    b = Padded(run.laid_out(b, goal), tuple(goal))
    array = operation.bind(run.masked(a, over_a, 0), run.masked(b, over_b, 0))
    dims = [a.dims[i] for i in batch_a]
    dims += [d for i, d in enumerate(a.dims) if i not in (*over_a, *batch_a)]
    dims += [d for i, d in enumerate(b.dims) if i not in (*over_b, *batch_b)]
    return Padded(array, tuple(dims))


@rule("random_bits")
def _random_bits(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    """Draw the numbers of the true sizes: Threefry of the index of each element among data."""
    dims, width, key = run.results(operation), operation.params["bit_width"], values[0].array
    if key.shape or str(jax.random.key_impl(key)) != "threefry2x32":
        raise NoRule("random numbers of several keys, or not of Threefry")
    index = _index_among_data(run, dims).astype(jnp.uint64)
    words = jax.random.key_data(key)
    high, low = lax.shift_right_logical(index, jnp.uint64(32)), index
    x, y = threefry2x32_p.bind(words[0], words[1], high.astype(jnp.uint32), low.astype(jnp.uint32))
    if width == 64:
        bits = lax.shift_left(x.astype(jnp.uint64), jnp.uint64(32)) | y.astype(jnp.uint64)
    else:
        bits = (x ^ y).astype(f"uint{width}")
    return Padded(bits, dims)


def _index_among_data(run: Interpreter, dims: tuple[Dim, ...]) -> Array:
    """Return int64 [padded sizes]: the row-major index of each element in the array without padding."""
    flat: Any = jnp.zeros((), jnp.int64)
    for dim in dims:
        flat = flat[..., None] * run.sizes.true(dim) + run.sizes.true_index(dim)
    found: Array = flat
    return found
