"""Rules of operations at padded sizes: convolutions and windows."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jax import lax

from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Samples,
    Symbol,
    Table,
    common,
    constant,
    is_constant,
    leads,
    size_of,
)
from jfluid.compile.dynamic_shapes.interpreter import (
    RULES,
    Interpreter,
    Operation,
    Padded,
    highest,
    lowest,
    rule,
)

# Operations whose results have sizes of their own.
WINDOWS = frozenset("conv_general_dilated reduce_window_sum reduce_window_max reduce_window_min".split())


def _window_dim(table: Table, dim: Dim, result: tuple[int, ...], window: int, operation: Operation, at: int) -> Dim:
    """Return the dimension that windows over a dimension give. Raises NoRule.

    Args:
        result: its size at each sample.
        window: places from the first of a window to behind its last.
        at: number of the dimension in the operation's parameters.
    """
    found = table.find(result)
    if found is not None and leads(found):
        return found
    if not leads(dim):
        raise NoRule("windows over a dimension that is padded between its data")
    before, after = common([p[at] for p in operation.each("padding")], "the padding of windows")
    stride = operation.params["window_strides"][at]
    holes = _dilations(operation)[at]
    more = 1 + before + after - window
    size = functools.partial(_number_of_windows, dim, holes, more, stride)
    return table.learn(((Symbol(result, size),),))


def learn_windows(table: Table, operation: Operation, image: Sequence[Dim | None], filters: Sequence[Samples]) -> None:
    """Learn the sizes that windows give. Raises NoRule for padding that differs with the sizes.

    Args:
        image: the dimensions of the first operand, None for unknown dimensions.
        filters: the size of each dimension of filters at each sample; empty for a reduction.
    """
    params, results = operation.params, operation.results()
    if filters:
        numbers = params["dimension_numbers"]
        places = list(zip(numbers.lhs_spec[2:], numbers.out_spec[2:]))
        widths, holes = [filters[place] for place in numbers.rhs_spec[2:]], params["rhs_dilation"]
    else:
        places = [(axis, axis) for axis in range(len(image))]
        widths, holes = [(n,) for n in params["window_dimensions"]], params["window_dilation"]
    for at, ((own, goal), width, hole) in enumerate(zip(places, widths, holes)):
        dim = image[own]
        if dim is not None and len(set(width)) == 1 and table.find(results[goal]) is None:
            _window_dim(table, dim, results[goal], (width[0] - 1) * hole + 1, operation, at)


def _number_of_windows(dim: Dim, holes: int, more: int, stride: int, of: Mapping[str, Any]) -> Any:
    return ((size_of(dim, of) - 1) * holes + more) // stride + 1


def _dilations(operation: Operation) -> Sequence[int]:
    found = operation.params.get("lhs_dilation") or operation.params.get("base_dilation")
    return found or (1,) * len(operation.params["window_strides"])


def _padding(run: Interpreter, dim: Dim, result: Dim, window: int, operation: Operation, at: int) -> tuple[int, int]:
    """Return the padding of windows for which their number is that of the padded result."""
    before = common([p[at][0] for p in operation.each("padding")], "the padding of windows")
    holes, stride = _dilations(operation)[at], operation.params["window_strides"][at]
    covered = (run.sizes.padded(result) - 1) * stride + window
    return before, covered - before - ((run.sizes.padded(dim) - 1) * holes + 1)


@rule("conv_general_dilated")
def _convolution(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    image, filters = values
    numbers = operation.params["dimension_numbers"]
    batch, feature, *spatial = numbers.lhs_spec
    out, into, *window = numbers.rhs_spec
    groups = operation.params["feature_group_count"] * operation.params["batch_group_count"]
    varying = [image.dims[batch], image.dims[feature], filters.dims[out], filters.dims[into]]
    if groups > 1 and not all(map(is_constant, varying[1:])):
        raise NoRule("a grouped convolution over a varying number of channels")
    if operation.params["batch_group_count"] > 1 and not is_constant(varying[0]):
        raise NoRule("a grouped convolution over a batch that varies")
    dims: list[Dim] = [constant(0)] * len(image.dims)
    out_batch, out_feature, *out_spatial = numbers.out_spec
    samples = operation.results()
    dims[out_batch] = run.table.named(samples[out_batch])
    dims[out_feature] = run.table.named(samples[out_feature])
    paddings = []
    for at, (own, place, goal) in enumerate(zip(spatial, window, out_spatial)):
        dim, width = image.dims[own], filters.dims[place]
        holes = operation.params["rhs_dilation"][at]
        span = (run.sizes.padded(width) - 1) * holes + 1
        if is_constant(dim) and is_constant(width) and len(set(samples[goal])) == 1:
            dims[goal] = constant(samples[goal][0])
            paddings.append(common([p[at] for p in operation.each("padding")], "a padding"))
            continue
        dims[goal] = _window_dim(run.table, dim, samples[goal], span, operation, at)
        paddings.append(_padding(run, dim, dims[goal], span, operation, at))
    array = operation.bind(
        run.masked(image, [feature, *spatial], 0),
        run.masked(filters, [into, *window], 0),
        padding=tuple(paddings),
    )
    return Padded(array, tuple(dims))


def _windows(fill: Any) -> Any:
    def reduce(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
        (value,), samples = values, operation.results()
        dims, paddings = [], []
        for at, dim in enumerate(value.dims):
            window = operation.params["window_dimensions"][at]
            span = (window - 1) * operation.params["window_dilation"][at] + 1
            if is_constant(dim):
                dims.append(constant(samples[at][0]))
                paddings.append(common([p[at] for p in operation.each("padding")], "a padding"))
                continue
            dims.append(_window_dim(run.table, dim, samples[at], span, operation, at))
            paddings.append(_padding(run, dim, dims[-1], span, operation, at))
        neutral = fill(value.array.dtype) if callable(fill) else fill
        mixed = [i for i, n in enumerate(operation.params["window_dimensions"]) if n > 1]
        array = operation.bind(run.masked(value, mixed, neutral), padding=tuple(paddings))
        return Padded(array, tuple(dims))

    return reduce


RULES["reduce_window_sum"] = _windows(0)
RULES["reduce_window_max"] = _windows(lowest)
RULES["reduce_window_min"] = _windows(highest)


@rule("select_and_scatter_add")
def _scatter_to_largest(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    source, operand = values
    window = operation.params["window_dimensions"]
    strides = operation.params["window_strides"]
    paddings = []
    for at, (dim, own) in enumerate(zip(operand.dims, source.dims)):
        before, after = common([p[at] for p in operation.each("padding")], "a padding")
        if not is_constant(dim):
            covered = (run.sizes.padded(own) - 1) * strides[at] + window[at]
            after = covered - before - run.sizes.padded(dim)
        paddings.append((before, after))
    least = lowest if operation.params["select_prim"] is lax.ge_p else highest
    mixed = [i for i, n in enumerate(window) if n > 1]
    array = operation.bind(
        run.masked(source, mixed, 0),
        run.masked(operand, mixed, least(operand.array.dtype)),
        padding=tuple(paddings),
    )
    return Padded(array, operand.dims)
