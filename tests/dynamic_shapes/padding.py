"""Run a function at padded sizes, with NaN in the padding, beside the function at exact sizes."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from jfluid.compile.dynamic_shapes import stream
from jfluid.compile.dynamic_shapes.dims import NoRule, Sizes, is_constant
from jfluid.compile.dynamic_shapes.feed_symbols import FeedLayout, FeedSymbols, trimmed_array

# (number of an argument, its dimension)
Place = tuple[int, int]


def places_alike(arguments) -> Iterator[list[Place]]:
    """Yield sets of dimensions that may vary together: those of one size, and each by itself."""
    of_size: dict[int, list[Place]] = {}
    for i, argument in enumerate(arguments):
        for axis, size in enumerate(argument.shape):
            of_size.setdefault(size, []).append((i, axis))
    seen = []
    for places in of_size.values():
        for group in [places, *([p] for p in places)]:
            if group not in seen and arguments[group[0][0]].shape[group[0][1]] >= 2:
                seen.append(group)
                yield group


def symbols_of(arguments, groups) -> FeedSymbols:
    """Return symbols n0, n1 ... for groups of dimensions."""
    names = {place: f"n{k}" for k, group in enumerate(groups) for place in group}
    dims = tuple(
        tuple((names[i, axis],) if (i, axis) in names else size for axis, size in enumerate(a.shape))
        for i, a in enumerate(arguments)
    )
    sizes = {names[i, axis]: arguments[i].shape[axis] for i, axis in names}
    high = {name: size + 7 for name, size in sizes.items()}
    return FeedSymbols(tuple(sizes), dims, sizes, high, dict.fromkeys(sizes, 1))


def recorder(function, arguments):
    """What traces a function for shapes of its arguments."""

    def record(shapes):
        structs = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, arguments, strict=True)]
        try:
            return jax.make_jaxpr(function)(*structs)
        except Exception as error:
            raise NoRule(f"fixed: {type(error).__name__} {error}"[:200]) from error

    return record


def traced(function, arguments, groups) -> stream.Traced:
    """Trace a function at samples of sizes. Raises NoRule."""
    symbols = symbols_of(arguments, groups)
    found = stream.Traced(symbols, symbols.low, symbols.high, recorder(function, arguments), {}, (0, 0))
    assert found._ends  # it is traced now, not when it is first evaluated
    return found


def poisoned(padded, argument):
    """Return a padded array with NaN, or a huge number, where `argument` has no data."""
    if padded.shape == argument.shape:
        return padded
    if padded.dtype.kind == "b":
        worst = True
    else:
        worst = np.nan if padded.dtype.kind in "fc" else np.iinfo(padded.dtype).max // 2
    found = np.full_like(padded, worst)
    corner = tuple(map(slice, argument.shape))
    found[corner] = argument
    return found


def run_padded(function, found: stream.Traced, arguments, extra=3, poison=True):
    """Return the results of a traced function at sizes that are `extra` larger."""
    sizes = {name: own[0] for name, own in found.samples.items()}
    bucket = {n: s + extra for n, s in sizes.items()}
    padded, true = Sizes(bucket, {}), Sizes(sizes, {})
    given = [np.asarray(a) for a in arguments]
    for i in found.varying:
        given[i] = FeedLayout(found.fed[i], padded, [true]).filled([arguments[i]])[0]
    if poison:
        given = [poisoned(p, np.asarray(a)) for p, a in zip(given, arguments)]

    between = {n: s + 2 - s % 2 for n, s in sizes.items()}  # a batch that stands for the middle sample
    witness = between, tuple([Sizes(between, {}).shape(dims) for dims in found.fed])

    @jax.jit
    def run(true_sizes, *arrays):
        values = dict(enumerate(arrays))
        return found.evaluate(bucket, true_sizes, values, "cpu", witness)

    results = run(np.array([sizes[n] for n in found.symbols.names], np.int64), *given)
    return [
        np.asarray(r) if all(map(is_constant, d)) else trimmed_array(r, d, padded, true)
        for r, d in zip(results, found.results, strict=True)
    ]


def difference(found, exact) -> float:
    """Return the largest difference of two lists of arrays, relative to the largest number; infinite
    for other shapes, or NaN in other places.
    """
    worst = 0.0
    for a, b in itertools.zip_longest(found, exact):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return np.inf
        if a.dtype.kind not in "fc":
            worst = max(worst, 0.0 if np.array_equal(a, b) else np.inf)
            continue
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return np.inf
        a, b = (np.where(np.isfinite(v), v, 0).astype("float64") for v in (a, b))
        scale = max(np.abs(b).max(initial=0), 1e-3)
        worst = max(worst, np.abs(a - b).max(initial=0) / scale)
    return worst
