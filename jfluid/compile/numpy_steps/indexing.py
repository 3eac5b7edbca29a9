"""NumPy rules of gathering and scattering."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.numpy_steps.interpreter import FORMS, RULES, rule
from jfluid.compile.rewrites.primitives import CALLS

Params = dict[str, Any]
_CLIP = jax.lax.GatherScatterMode.CLIP
_CLAMPED = (_CLIP, jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS)  # modes in which XLA clamps indices of a gather


def _filling(params: Params, dtype: Any) -> Any:
    given = params.get("fill_value")
    if given is not None:
        return given
    if np.issubdtype(dtype, np.signedinteger):
        return np.iinfo(dtype).min
    if np.issubdtype(dtype, np.unsignedinteger):
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.nan


def _starts(
    indices: Any, shape: Sequence[int], sizes: Sequence[int], dims: Sequence[int], clips: bool
) -> tuple[list[Any], Any]:
    """Return the clipped starts of slices along each dimension of `dims`, and a mask of slices that fit (None: all)."""
    found, fits = [], None
    for at, dim in enumerate(dims):
        given, most = indices[..., at], shape[dim] - sizes[dim]
        start = np.minimum(np.maximum(given, 0), max(most, 0)).astype(np.int64)
        found.append(start)
        if not clips:
            inside = given == start
            fits = inside if fits is None else fits & inside
    return found, None if fits is None or fits.all() else fits


def _places(
    starts: Sequence[Any],
    dims: Sequence[int],
    sizes: Sequence[int],
    dropped: Sequence[int],
    batch: Sequence[tuple[int, int]],
    batch_shape: Sequence[int],
) -> tuple[Any, ...]:
    """Return an index for each dimension of an operand; the indices together have the shape (batch, slices).

    Args:
        dropped: dimensions in which slices have one element, which the result drops.
        batch: dimensions of the operand, and of the indices, that run together.
    """
    rank = len(batch_shape)
    windows = [d for d in range(len(sizes)) if d not in dropped]
    total = rank + len(windows)
    found: list[Any] = []
    together = dict(batch)
    for dim, size in enumerate(sizes):
        index: Any = np.zeros((1,) * total, np.int64)
        if dim in together:
            spread = [1] * total
            spread[together[dim]] = batch_shape[together[dim]]
            index = index + np.arange(batch_shape[together[dim]]).reshape(spread)
        if dim in dims:
            start = starts[list(dims).index(dim)]
            index = index + start.reshape(*batch_shape, *(1,) * len(windows))
        if dim in windows:
            spread = [1] * total
            spread[rank + windows.index(dim)] = size
            index = index + np.arange(size).reshape(spread)
        found.append(index)
    return tuple(found)


def _are_rows(dims: Sequence[int], dropped: Sequence[int], sizes: Any, shape: Any) -> bool:
    """Return True if slices are whole rows of the operand."""
    return tuple(dims) == (0,) == tuple(dropped) and tuple(sizes[1:]) == tuple(shape[1:])


@rule("gather")
def _gather(params: Params, x: Any, indices: Any) -> Any:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch_shape = indices.shape[:-1]
    dims = numbers.start_index_map
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if 0 in x.shape:
        return np.full(params["results"][0].shape, _filling(params, x.dtype), x.dtype)
    clips = params["mode"] in _CLAMPED
    if _are_rows(dims, dropped, sizes, x.shape) and indices.dtype.kind == "i":
        rows = indices[..., 0]
        found, fits = np.take(x, rows, 0, mode="clip"), None
        if not clips and not (inside := (rows >= 0) & (rows < len(x))).all():
            fits = inside
    else:
        starts, fits = _starts(indices, x.shape, sizes, dims, clips)
        batch = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
        found = x[_places(starts, dims, sizes, dropped, batch, batch_shape)]
    if fits is not None:
        spread = fits.reshape(*fits.shape, *(1,) * (found.ndim - fits.ndim))
        found = np.where(spread, found, np.asarray(_filling(params, x.dtype), x.dtype))
    own = list(numbers.offset_dims)
    first = [i for i in range(found.ndim) if i not in own]
    order = [0] * found.ndim
    for at, place in enumerate([*first, *own]):
        order[place] = at
    return np.transpose(found, order)


def _scatter(name: str, combine: Callable[..., Any]) -> None:
    def run(params: Params, x: Any, indices: Any, updates: Any) -> Any:
        numbers = params["dimension_numbers"]
        windows = list(numbers.update_window_dims)
        own = [i for i in range(updates.ndim) if i not in windows]
        updates = np.transpose(updates, [*own, *windows])
        batch_shape = updates.shape[: len(own)]
        dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        left = iter(updates.shape[len(own) :])
        sizes = [1 if d in dropped else next(left) for d in range(x.ndim)]
        found = np.array(x)
        if 0 in updates.shape or 0 in x.shape:
            return found
        dims = numbers.scatter_dims_to_operand_dims
        starts, fits = _starts(indices, x.shape, sizes, dims, params["mode"] == _CLIP)
        if _are_rows(dims, dropped, sizes, x.shape):
            places: tuple[Any, ...] = (starts[0],)
        else:
            batch = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims))
            places = _places(starts, dims, sizes, dropped, batch, batch_shape)
        if fits is not None:
            shape = np.broadcast_shapes(*(p.shape for p in places))
            places = tuple(np.broadcast_to(p, (*shape[: fits.ndim], *p.shape[fits.ndim :]))[fits] for p in places)
            updates = updates[fits]
        combine(found, places, updates)
        return found

    RULES[name] = run


def _replace(x: Any, places: Any, updates: Any) -> None:
    x[places] = updates


_scatter("scatter", _replace)
for _name, _function in {
    "scatter-add": np.add,
    "scatter_add": np.add,
    "scatter-mul": np.multiply,
    "scatter_mul": np.multiply,
    "scatter-sub": np.subtract,
    "scatter_sub": np.subtract,
    "scatter-min": np.minimum,
    "scatter_min": np.minimum,
    "scatter-max": np.maximum,
    "scatter_max": np.maximum,
}.items():
    _scatter(_name, _function.at)


# Primitives of the body of JAX's binary search; one of `_SIDES` compares.
_OF_SEARCH = frozenset("sub add div convert_element_type broadcast_in_dim gather squeeze select_n".split())
_SIDES: dict[str, Any] = {"lt_to": "right", "le_to": "left"}


def _search(params: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the binary search of `jax.numpy.searchsorted` among integers, for which JAX has a slow loop."""
    jaxpr, consts, names = params["jaxpr"].jaxpr, params["num_consts"], list(_primitives(params["jaxpr"].jaxpr))
    sides = [_SIDES[name] for name in names if name in _SIDES]
    if (len(jaxpr.invars), len(jaxpr.outvars), params["num_carry"]) != (consts + 2, 2, 2) or len(sides) != 1:
        return None
    if names.count("gather") != 1 or not _OF_SEARCH.issuperset({*names} - {*_SIDES}):
        return None
    # The array, the values to search for, and, unless it is a literal, the number 2.
    first = {e.primitive.name: e.invars[0] for e in jaxpr.eqns if e.primitive.name in ("gather", *_SIDES)}
    ats = [at for var in first.values() for at, own in enumerate(jaxpr.invars[:consts]) if own is var]
    others = [at for at in range(consts) if at not in ats]
    if len(ats) != 2 or len(others) > 1 or any(jaxpr.invars[at].aval.ndim for at in others):
        return None
    (array, values), (side,) = ats, sides
    if jaxpr.invars[array].aval.ndim != 1 or jaxpr.invars[array].aval.dtype.kind not in "iu":
        return None

    def search(*given: Any) -> list[Any]:
        held, wanted, low, high = given[array], given[values], *given[consts:]
        if low.any() or (high != len(held)).any() or any(given[at] != 2 for at in others):
            return list(RULES["scan"](dict(params), *given))
        found = np.searchsorted(held, wanted, side)
        return [np.maximum(found - 1, 0).astype(low.dtype), found.astype(high.dtype)]

    return search


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the names of the primitives of a jaxpr, those of called functions included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLS:
            yield from _primitives(equation.params[CALLS[equation.primitive.name]].jaxpr)
        else:
            yield equation.primitive.name


FORMS["scan"] = _search
