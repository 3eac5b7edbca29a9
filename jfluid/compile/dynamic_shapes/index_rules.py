"""Rules of operations at padded sizes: positions that are data, and orders."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    common,
    constant,
    is_constant,
    leads,
    samples_of,
)
from jfluid.compile.dynamic_shapes.interpreter import (
    RULES,
    Interpreter,
    Operation,
    Padded,
    along,
    highest,
    lowest,
    rule,
)

_DROPS = lax.GatherScatterMode.FILL_OR_DROP


@rule("gather")
def _gather(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    operand, indices = values
    numbers = operation.params["dimension_numbers"]
    sizes, kept = [], []
    for i, dim in enumerate(operand.dims):
        samples = tuple(s[i] for s in operation.each("slice_sizes"))
        whole = samples == samples_of(dim, run.table.count)
        own = dim if whole else constant(common(samples, "a slice"))
        if not whole and not is_constant(dim) and own != constant(1):
            raise NoRule("a gather of several places of a dimension that varies")
        sizes.append(run.sizes.padded(own))
        if i not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims):
            kept.append(own)
    places = _places(run, operation, operand, indices, numbers.start_index_map, sizes)
    array = operation.bind(operand.array, places, slice_sizes=tuple(sizes))
    inside, batch = iter(kept), iter(indices.dims[:-1])
    rank = len(operation.results())
    dims = [next(inside if i in numbers.offset_dims else batch) for i in range(rank)]
    return Padded(array, tuple(dims))


def _places(
    run: Interpreter,
    operation: Operation,
    operand: Padded,
    indices: Padded,
    axes: Sequence[int],
    sizes: Sequence[int] | None,
) -> Any:
    """Return indices into data as indices into padded arrays.

    Args:
        axes: the dimension of the operand that each column of the indices is of.
        sizes: of the slices that are read; None for slices that are written.
    """
    if all(is_constant(operand.dims[axis]) for axis in axes):
        return indices.array
    columns = []
    for column, axis in enumerate(axes):
        index, dim = indices.array[..., column], operand.dims[axis]
        if sizes is not None and sizes[axis] == run.sizes.padded(dim) and not is_constant(dim):
            index = jnp.zeros_like(index)  # all of it: there is one place to begin
        elif not is_constant(dim):
            if operation.params["mode"] == lax.GatherScatterMode.CLIP:
                last = jnp.asarray(run.sizes.true(dim), index.dtype) - 1
                index = jnp.clip(index, 0, last)
            index = run.sizes.padded_index(dim, index)
        columns.append(index)
    return jnp.stack(columns, -1)


def _scatter(fill: Any) -> Any:
    def scatter(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
        operand, indices, updates = values
        numbers = operation.params["dimension_numbers"]
        axes = numbers.scatter_dims_to_operand_dims
        inside = [
            i
            for i in range(len(operand.dims))
            if i not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        ]
        for i, own in zip(inside, numbers.update_window_dims):
            varies = not (is_constant(operand.dims[i]) and is_constant(updates.dims[own]))
            if varies and operand.dims[i] != updates.dims[own]:
                raise NoRule("a scatter of several places of a dimension that varies")
        places = _places(run, operation, operand, indices, axes, None)
        batch = [i for i in range(len(updates.dims)) if i not in numbers.update_window_dims]
        if fill is None:
            places = _dropped(run, operation, updates, places, batch)
            array = updates.array
        else:
            neutral = fill(updates.array.dtype) if callable(fill) else fill
            array = run.masked(updates, batch, neutral)
        return Padded(operation.bind(operand.array, places, array), operand.dims)

    return scatter


def _dropped(run: Interpreter, operation: Operation, updates: Padded, places: Array, batch: Sequence[int]) -> Array:
    """Return places for updates; the places of padding are beyond the operand's end."""
    for column, i in enumerate(batch):
        if not is_constant(updates.dims[i]):
            if operation.params["mode"] != _DROPS:
                raise NoRule("a scatter that does not drop indices out of bounds")
            mask = along(run.sizes.mask(updates.dims[i]), column, places.ndim)
            places = jnp.where(mask, places, np.iinfo(places.dtype).max)
    return places


RULES["scatter"] = _scatter(None)
RULES["scatter-add"] = RULES["scatter-sub"] = RULES["scatter_add"] = _scatter(0)
RULES["scatter-mul"] = RULES["scatter_mul"] = _scatter(1)
RULES["scatter-max"] = RULES["scatter_max"] = _scatter(lowest)
RULES["scatter-min"] = RULES["scatter_min"] = _scatter(highest)


@rule("dynamic_slice")
def _dynamic_slice(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    operand, *starts = values
    dims: list[Dim] = []
    for i, dim in enumerate(operand.dims):
        samples = tuple(s[i] for s in operation.each("slice_sizes"))
        whole = samples == samples_of(dim, run.table.count)
        dims.append(dim if whole else constant(common(samples, "a slice")))
    places = _starts(run, operand, starts, dims)
    return Padded(lax.dynamic_slice(operand.array, places, run.sizes.shape(dims)), tuple(dims))


@rule("dynamic_update_slice")
def _dynamic_update(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    operand, update, *starts = values
    places = _starts(run, operand, starts, update.dims)
    return Padded(lax.dynamic_update_slice(operand.array, update.array, places), operand.dims)


def _starts(run: Interpreter, operand: Padded, starts: Sequence[Padded], dims: Sequence[Dim]) -> list[Any]:
    """Return where slices of these dimensions begin, moved inside the data as JAX does."""
    places = []
    for dim, part, start in zip(operand.dims, dims, starts):
        place = start.array
        if dim == part:
            place = jnp.zeros_like(place)
        elif not is_constant(dim):
            if not (leads(dim) and len(dim[0]) == 1 and is_constant(part)):
                raise NoRule("a slice of a dimension that is padded between its data")
            last = run.sizes.true(dim) - run.sizes.padded(part)
            place = jnp.clip(place, 0, jnp.asarray(last, jnp.result_type(place)))
        places.append(place)
    return places


@rule("sort")
def _sort(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    axis, dims = operation.params["dimension"], values[0].dims
    if is_constant(dims[axis]):
        results = operation.bind(*(v.array for v in values))
        return [Padded(r, v.dims) for r, v in zip(results, values)]
    if not leads(dims[axis]):
        raise NoRule("a sort along a dimension that is padded between its data")
    beyond = ~along(run.sizes.mask(dims[axis]), axis, len(dims))
    beyond = jnp.broadcast_to(beyond, values[0].array.shape)
    _, *results = lax.sort(
        (beyond, *(v.array for v in values)),
        dimension=axis,
        is_stable=operation.params["is_stable"],
        num_keys=operation.params["num_keys"] + 1,
    )
    return [Padded(r, v.dims) for r, v in zip(results, values)]


@rule("top_k")
def _top(run: Interpreter, operation: Operation, values: Sequence[Padded]) -> Any:
    (value,), axis = values, operation.params.get("axis", -1) % len(values[0].dims)
    if not leads(value.dims[axis]):
        raise NoRule("a top_k along a dimension that is padded between its data")
    k = common(operation.each("k"), "the k of a top_k")
    found = operation.bind(run.masked(value, (axis,), lowest(value.array.dtype)))
    dims = (*value.dims[:axis], constant(k), *value.dims[axis + 1 :])
    return [Padded(array, dims) for array in found]
