"""Symbols of a segment's feeds: sizes that vary, alone or together, found from observed shapes."""

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Sizes,
    Symbol,
    constant,
    is_constant,
)
from jfluid.host import aligned_memory

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Longer:
    """Fed dimension that is longer than a symbol by a constant, as a sentence with its end."""

    name: str
    by: int


# A fed dimension: a constant size, the names of the factors of a product, or a `Longer`.
FedDim = int | tuple[str, ...] | Longer
# Few sizes have a small divisor in common by chance: random sizes have the same divisor once in so many times.
_PLAUSIBLE = 8
_SLIGHTLY = 3  # places, by which a size may be longer in two batches by chance
# Batches may be so many times smaller or larger than those that have come: a segment is traced again beyond. Small
# images do not hold the windows of some programs. Sentences may be shorter than images may be small.
_MARGINS, _SHORTER = (4, 2), 16
_GROWN = 16  # margin for sizes that have grown beyond an earlier trace
SAMPLES = 3  # sizes of each symbol at which a segment is traced
SMALLEST = 2  # programs treat a size of 1 differently: it is broadcast


@dataclass(frozen=True)
class FeedSymbols:
    """Symbols of the feeds of a segment.

    Attributes:
        names: names of the symbols.
        dims: each dimension of each feed.
        low: smallest observed size of each symbol.
        high: largest observed size of each symbol.
        unit: a divisor of all sizes of a symbol, such as 32 of images.
    """

    names: tuple[str, ...]
    dims: tuple[tuple[FedDim, ...], ...]
    low: Mapping[str, int]
    high: Mapping[str, int]
    unit: Mapping[str, int]

    @classmethod
    def of(cls, observed: Sequence[Shapes]) -> "FeedSymbols":
        """Find the symbols of batches of these shapes. Raises NoRule if ranks differ."""
        ranks = {tuple(map(len, shapes)) for shapes in observed}
        if len(ranks) > 1:
            raise NoRule("feeds change their ranks")
        sizes = [list(zip(*(shapes[i] for shapes in observed))) for i in range(len(observed[0]))]
        varying = [s for own in sizes for s in own if len(set(s)) > 1]
        known: dict[tuple[int, ...], tuple[str, ...] | Longer] = {}
        for samples in sorted(set(varying), key=lambda s: (max(s), s)):
            found = _longer(samples, known) or _product(samples, known)
            known[samples] = found or (f"n{len(known)}",)
        single = {names[0]: samples for samples, names in _single(known)}
        dims = tuple(tuple(s[0] if s not in known else known[s] for s in own) for own in sizes)
        low = {name: min(samples) for name, samples in single.items()}
        high = {name: max(samples) for name, samples in single.items()}
        unit = {name: _unit(samples) for name, samples in single.items()}
        return cls(tuple(single), dims, low, high, unit)

    def sizes(self, shapes: Shapes) -> dict[str, int] | None:
        """Return the size of each symbol for one batch, or None if the batch contradicts the symbols."""
        found: dict[str, int] = {}
        products = []
        longer = []
        for shape, dims in zip(shapes, self.dims):
            if len(shape) != len(dims):
                return None
            for size, dim in zip(shape, dims):
                if isinstance(dim, int):
                    if size != dim:
                        return None
                elif isinstance(dim, Longer):
                    longer.append((size, dim))
                elif len(dim) > 1:
                    products.append((size, dim))
                elif found.setdefault(dim[0], size) != size:
                    return None
        if any(size != math.prod(found[n] for n in names) for size, names in products):
            return None
        if any(size != found[dim.name] + dim.by for size, dim in longer):
            return None
        return found

    def with_constants(self, sizes: Mapping[str, int]) -> "FeedSymbols":
        """Return the symbols of batches in which some symbols have constant sizes of 0 or 1."""

        def own(dim: FedDim) -> FedDim:
            if isinstance(dim, int):
                return dim
            if isinstance(dim, Longer):
                return sizes[dim.name] + dim.by if dim.name in sizes else dim
            names = tuple(n for n in dim if n not in sizes)
            product = math.prod(sizes.get(n, 1) for n in dim)
            return names if names and product else product

        names = tuple(n for n in self.names if n not in sizes)
        low, high, unit = ({n: numbers[n] for n in names} for numbers in (self.low, self.high, self.unit))
        return FeedSymbols(names, tuple(tuple(map(own, dims)) for dims in self.dims), low, high, unit)

    def dims_of(self, symbols: Mapping[str, Symbol]) -> list[tuple[Dim, ...]]:
        """Return the dimensions of each feed."""
        return [tuple(_dim_of(d, symbols) for d in own) for own in self.dims]

    def said(self, names: Sequence[str], given: Mapping[str, Mapping[int, Sequence[int]]]) -> dict[str, list[int]]:
        """Return the sizes that the user has given for each symbol.

        Raises FeedError for a dimension that does not exist, or is a product of symbols.

        Args:
            names: names of the feeds.
            given: sizes by the name of a feed and its dimension.
        """
        found: dict[str, set[int]] = {}
        for name, dims in zip(names, self.dims):
            for at, sizes in given.get(name, {}).items():
                if at >= len(dims):
                    raise errors.FeedError(
                        f"shape_buckets: {name} has {len(dims)} dimensions, and sizes are given for number {at}"
                    )
                own = dims[at]
                if isinstance(own, int):
                    continue  # all batches have this size
                if isinstance(own, Longer):
                    own_sizes = [size - own.by for size in sizes if size > own.by]
                    found.setdefault(own.name, set()).update(own_sizes)
                    continue
                if len(own) > 1:
                    raise errors.FeedError(
                        f"shape_buckets: dimension {at} of {name} is a product of varying sizes: give the sizes of "
                        "the factors"
                    )
                found.setdefault(own[0], set()).update(sizes)
        return {symbol: sorted(sizes) for symbol, sizes in found.items()}

    def work(self, sizes: Mapping[str, int]) -> int:
        """Return how many elements the feeds have at these sizes."""
        return sum(math.prod(_size_of(d, sizes) for d in own) for own in self.dims)


class Sampled:
    """Samples at which a computation is traced, or its shapes are inferred.

    Args:
        low, high: sizes of each symbol between which the samples hold.

    Attributes:
        symbols: as given.
        samples: sizes of each symbol, by name.
        factors: the symbols of these samples, by name.
        fed: the dimensions of each feed.
        varying: the numbers of the feeds of varying size.

    Raises NoRule where two sizes are the same at each sample.
    """

    def __init__(self, symbols: FeedSymbols, low: Mapping[str, int], high: Mapping[str, int]):
        self.symbols, self.samples = symbols, samples_between(symbols, low, high)
        self.factors = {name: Symbol(own, operator.itemgetter(name)) for name, own in self.samples.items()}
        self.fed = symbols.dims_of(self.factors)
        self.varying = [i for i, dims in enumerate(self.fed) if not all(map(is_constant, dims))]
        longer = {dim for own in symbols.dims for dim in own if isinstance(dim, Longer)}
        if len(symbols_in(self.fed)) < len(symbols.names) + len(longer):
            raise NoRule("sizes that the samples do not tell apart")

    def shapes(self, sample: int) -> Shapes:
        """Return the shapes of the feeds at a sample."""
        sizes = Sizes({name: own[sample] for name, own in self.samples.items()}, {})
        return tuple(sizes.shape(dims) for dims in self.fed)

    def sizes(self, shapes: Shapes) -> dict[str, int] | None:
        """Return the sizes of a batch; None for a batch that the samples do not hold for."""
        sizes = self.symbols.sizes(shapes)
        if sizes is None:
            return None
        for name, size in sizes.items():
            low, *_, high = self.samples[name]
            if not low <= size <= high or size % self.symbols.unit[name]:
                return None
        return sizes


def symbols_in(fed: Iterable[Sequence[Dim]]) -> list[Symbol]:
    """Return the symbols of fed dimensions, each once."""
    factors = [f for dims in fed for dim in dims for segment in dim for f in segment]
    return list(dict.fromkeys([f for f in factors if isinstance(f, Symbol)]))


def is_large(sizes: Mapping[str, int] | None) -> bool:
    """Return True if symbols can have these sizes: programs treat sizes of 0 and 1 differently."""
    return sizes is not None and not small_sizes(sizes)


def run_together(batch: Sequence[Shapes]) -> bool:
    """Return True if shares of a batch differ in their rows alone: the batch then runs without padding."""
    return all(own[1:] == first[1:] for shapes in batch for own, first in zip(shapes, batch[0]))


def small_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of 0 and 1."""
    return {name: size for name, size in sizes.items() if size < SMALLEST}


def symbols_with(shapes: Sequence[Shapes], small: Mapping[str, int]) -> FeedSymbols | None:
    """Return the symbols of observed batches that have these sizes of 0 and 1; None for too few batches.

    Raises NoRule if ranks differ.
    """
    return FeedSymbols.of(shapes).with_constants(small) if small else symbols_of(shapes)


def symbols_of(shapes: Iterable[Shapes]) -> FeedSymbols | None:
    """Return the symbols of observed batches, without batches of sizes 0 and 1; None for too few batches.

    Raises NoRule if ranks differ.
    """
    observed = list(shapes)
    while len(observed) > 1:
        symbols = FeedSymbols.of(observed)
        kept = [s for s in observed if is_large(symbols.sizes(s))]
        if len(kept) == len(observed):
            return symbols
        observed = kept
    return None


def ranges(symbols: FeedSymbols) -> Iterator[tuple[Mapping[str, int], Mapping[str, int]]]:
    """Yield the least and the most sizes between which to trace.

    Wide ranges come first, then the sizes that have come, then the range for sizes that have grown.
    """
    rows = {own[0][0] for own in symbols.dims if own and isinstance(own[0], tuple) and len(own[0]) == 1}
    for margin in (*_MARGINS, None, _GROWN):
        if margin is None:
            yield symbols.low, symbols.high
            continue
        low = {}
        for name, size in symbols.low.items():
            below = margin
            if margin >= _MARGINS[0] and symbols.unit[name] == 1:
                below = size if name in rows else _SHORTER  # the last batch may have any number of examples
            # Strides may divide the unit of an image's height down to a size of 1, which is broadcast.
            least = SMALLEST * (1 if name in rows else symbols.unit[name])
            low[name] = max(min(least, size), size // below // 2 * 2)  # even: the highest sample is odd
        yield low, {name: margin * size for name, size in symbols.high.items()}


_Known = Mapping[tuple[int, ...], tuple[str, ...] | Longer]


def _dim_of(dim: FedDim, symbols: Mapping[str, Symbol]) -> Dim:
    if isinstance(dim, int):
        return constant(dim)
    if isinstance(dim, Longer):
        own, by = symbols[dim.name], dim.by
        samples = tuple(n + by for n in own.samples)
        return ((Symbol(samples, functools.partial(_longer_size, own, by)),),)
    return (tuple(symbols[n] for n in dim),)


def _longer_size(own: Symbol, by: int, of: Mapping[str, Any]) -> Any:
    return own.size(of) + by


def _size_of(dim: FedDim, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    return sizes[dim.name] + dim.by if isinstance(dim, Longer) else math.prod(sizes[n] for n in dim)


def _single(known: _Known) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    return [(own, d) for own, d in known.items() if not isinstance(d, Longer) and len(d) == 1]


def _unit(samples: tuple[int, ...]) -> int:
    """Return the common divisor of sizes; 1 for a divisor that the sizes may have by chance."""
    found = math.gcd(*samples)
    return found if found ** (len(set(samples)) - 1) >= _PLAUSIBLE else 1


def _longer(samples: tuple[int, ...], known: _Known) -> Longer | None:
    """Return the symbol that a size is longer than by the same in each batch."""
    for own, names in _single(known):
        more = {size - n for size, n in zip(samples, own)}
        if len(more) == 1 and (len(samples) > 2 or max(more) <= _SLIGHTLY):
            return Longer(names[0], more.pop())
    return None


def _product(samples: tuple[int, ...], known: _Known) -> tuple[str, ...] | None:
    """Return two symbols that have a size as their product in each batch."""
    single = _single(known)
    for (a, names), (b, others) in itertools.permutations(single, 2):
        if len(samples) > 2 and all(x * y == s for x, y, s in zip(a, b, samples)):
            return names + others
    return None


def samples_between(
    symbols: FeedSymbols, low: Mapping[str, int], high: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return three sizes of each symbol at which a step is traced: the lowest, one between, the highest.

    No two symbols have the same sizes: the sizes above the lowest follow from different primes, so that
    products of symbols are told apart. The sizes include even and odd numbers: a program may treat these
    differently.
    """
    found: dict[str, tuple[int, ...]] = {}
    used = set[int]()
    for name in symbols.names:
        unit = symbols.unit[name]
        first = max(low[name] // unit, 1 if unit > 1 else SMALLEST)
        top = _prime(max(-(-high[name] // unit), first + 2), used)
        middle = 2 * _prime((first + top) // 4, used)
        found[name] = (unit * first, unit * middle, unit * max(top, middle + 1))
    return found


def _prime(start: int, used: set[int]) -> int:
    """Return the first prime from `start` on that was not used, and note that it is."""
    n = max(start, 3)
    while n in used or any(n % d == 0 for d in range(2, math.isqrt(n) + 1)):
        n += 1
    used.add(n)
    return n


class FeedLayout:
    """Places of the data of a feed of varying size in the array of a bucket; zeros are behind the data.

    Args:
        dims: dimensions of the feed.
        padded: sizes of the bucket.
        true: sizes of each share of the feed.
    """

    def __init__(self, dims: Sequence[Dim], padded: Sizes, true: Sequence[Sizes]):
        factors = [f for dim in dims for f in dim[0]]
        self._shape = len(true), *padded.shape(dims)
        self._view = len(true), *map(padded.padded_factor, factors)
        self._data = [[own.padded_factor(f) for f in factors] for own in true]
        self._places = [tuple(map(slice, data)) for data in self._data]

    def filled(self, shares: Sequence[Any]) -> np.ndarray:
        """Return the shares of a feed, stacked, each at the sizes of the bucket."""
        given = [np.asarray(share) for share in shares]
        found = aligned_memory.empty(self._shape, given[0].dtype)
        found[...] = 0
        for view, share, data, places in zip(found.reshape(self._view), given, self._data, self._places):
            view[places] = share.reshape(data)
        return found


def trimmed_array(array: Any, dims: Sequence[Dim], sizes: Sizes, true: Sizes) -> np.ndarray:
    """Return the data of a padded result."""
    found = np.asarray(array)
    for axis, dim in enumerate(dims):
        if is_constant(dim):
            continue
        parts, begin = [], 0
        for segment in dim:
            own = [sizes.padded_factor(f) for f in segment]
            data = [true.padded_factor(f) for f in segment]
            length = math.prod(own)
            part = found[(slice(None),) * axis + (slice(begin, begin + length),)]
            begin += length
            before, after = part.shape[:axis], part.shape[axis + 1 :]
            part = part.reshape(*before, *own, *after)
            part = part[(slice(None),) * axis + tuple(map(slice, data))]
            parts.append(part.reshape(*before, math.prod(data), *after))
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
    return found
