"""Symbolic dimensions: the varying sizes of a traced step, as functions of the feeds' sizes.

A step is traced at several samples of the sizes that vary. A size in the trace is therefore a tuple of
integers, one for each sample; a size that is the same at all samples is a constant.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

Samples = tuple[int, ...]


class NoRule(Exception):
    """Error of a traced step that cannot run at padded sizes.

    Attributes:
        scope: name stack of the operation without a rule; empty where it is not one operation.
    """

    scope = ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Symbol:
    """Size that varies.

    Attributes:
        samples: its size at each sample. Two symbols with the same samples are the same symbol.
        size: returns the size for sizes of the feeds by name: integers, or traced scalars.
    """

    samples: Samples
    size: Callable[[Mapping[str, Any]], Any] = field(compare=False)


# Factors of a stretch of a dimension in row-major order: a dimension that a reshape merged has several.
Segment = tuple[int | Symbol, ...]
# Stretches of a dimension one after the other: a dimension that a concatenation made has several.
Dim = tuple[Segment, ...]


def constant(size: int) -> Dim:
    """Return the dimension of a size that does not vary."""
    return ((int(size),),)


ONE = constant(1)


def is_constant(dim: Dim) -> bool:
    """Return True if no size of the dimension varies."""
    return all(isinstance(factor, int) for segment in dim for factor in segment)


def samples_of(dim: Dim, count: int) -> Samples:
    """Return the size of a dimension at each of `count` samples."""
    return tuple(
        sum(math.prod(f.samples[i] if isinstance(f, Symbol) else f for f in s) for s in dim) for i in range(count)
    )


def size_of(dim: Dim, sizes: Mapping[str, Any]) -> Any:
    """Return the size of a dimension for sizes of the feeds by name."""
    total: Any = 0
    for segment in dim:
        total = total + _product(f.size(sizes) if isinstance(f, Symbol) else f for f in segment)
    return total


def merged(factors: Iterable[int | Symbol]) -> Segment:
    """Return a segment of factors in which neighbouring constants are one factor."""
    found: list[int | Symbol] = []
    for factor in factors:
        if isinstance(factor, int) and found and isinstance(found[-1], int):
            found[-1] *= factor
        elif factor != 1:
            found.append(factor)
    return tuple(found) or (1,)


class Table:
    """Dimensions that a step has met, by their samples."""

    def __init__(self, symbols: Iterable[Symbol], count: int):
        self.count = count
        self._known: dict[Samples, Dim] = {s.samples: ((s,),) for s in symbols}
        self._symbols = [dim[0][0] for dim in self._known.values()]

    def learn(self, dim: Dim) -> Dim:
        """Remember a dimension; return it."""
        self._known.setdefault(samples_of(dim, self.count), dim)
        return dim

    def find(self, samples: Samples) -> Dim | None:
        """Return the dimension of these samples, or None for unknown samples."""
        if len(set(samples)) == 1:
            return constant(samples[0])
        found = self._known.get(samples)
        if found is not None:
            return found
        for dim in self.products():
            own = samples_of(dim, self.count)
            times = {s // o if o and s % o == 0 else 0 for s, o in zip(samples, own)}
            if len(times) == 1 and (factor := times.pop()):
                return self.learn((merged((factor, *dim[0])),) if factor > 1 else dim)
        return None

    def named(self, samples: Samples) -> Dim:
        """Return the dimension of these samples. Raises NoRule if it follows from no known size."""
        found = self.find(samples)
        if found is None:
            raise NoRule(f"a size that does not follow from sizes of the feeds: {samples}")
        return found

    def products(self) -> list[Dim]:
        """Return known dimensions, and products of up to three symbols."""
        several: list[Dim] = [
            (tuple(factors),)
            for number in (2, 3)
            for factors in itertools.combinations_with_replacement(self._symbols, number)
        ]
        return [d for d in self._known.values() if len(d) == 1] + several


class Sizes:
    """Sizes of one padded step: the bucket that its arrays have, and the true sizes of a batch.

    Args:
        bucket: padded size of each feed symbol, by name.
        true: true size of each feed symbol, by name: traced int64 scalars.
    """

    def __init__(self, bucket: Mapping[str, int], true: Mapping[str, Any]):
        self._bucket, self._true = bucket, true

    def padded_factor(self, factor: int | Symbol) -> int:
        """Return the padded size of a factor."""
        return factor if isinstance(factor, int) else int(factor.size(self._bucket))

    def true_factor(self, factor: int | Symbol) -> Any:
        """Return the true size of a factor."""
        return factor if isinstance(factor, int) else factor.size(self._true)

    def padded(self, dim: Dim) -> int:
        """Return the padded size of a dimension."""
        return sum(math.prod(map(self.padded_factor, segment)) for segment in dim)

    def shape(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        """Return the padded shape of an array of these dimensions."""
        return tuple(map(self.padded, dims))

    def true(self, dim: Dim) -> Any:
        """Return the true size of a dimension."""
        return size_of(dim, self._true)

    def mask(self, dim: Dim) -> Array:
        """Return bool [padded size]: which places hold data."""
        parts = []
        for segment in dim:
            mask = jnp.ones((), bool)
            for factor in segment:
                size = self.padded_factor(factor)
                own = jnp.ones(size, bool)
                if isinstance(factor, Symbol):
                    own = jnp.arange(size) < self.true_factor(factor)
                mask = mask[..., None] & own
            parts.append(mask.reshape(-1))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def true_index(self, dim: Dim) -> Array:
        """Return int64 [padded size]: the index of each place among the places that hold data."""
        parts, before = [], 0
        for segment in dim:
            index: Any = jnp.zeros((), jnp.int64)
            for factor in segment:
                own = jnp.arange(self.padded_factor(factor), dtype=jnp.int64)
                index = index[..., None] * self.true_factor(factor) + own
            parts.append(index.reshape(-1) + before)
            before = before + _product(map(self.true_factor, segment))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def padded_index(self, dim: Dim, index: Array) -> Array:
        """Return the places of indices among data; the padded size for an index at or beyond the end.

        Negative indices stay.
        """
        if is_constant(dim):
            return index
        found = jnp.full_like(index, self.padded(dim))
        begins_true: Any = 0
        begins = 0
        for segment in dim:
            rest, place, stride = index - begins_true, jnp.zeros_like(index), 1
            own: Any = jnp.maximum(rest, 0)
            for factor in reversed(segment):
                size = jnp.maximum(jnp.asarray(self.true_factor(factor), index.dtype), 1)
                place = place + lax.rem(own, size) * stride
                own, stride = lax.div(own, size), stride * self.padded_factor(factor)
            length = jnp.asarray(_product(map(self.true_factor, segment)), index.dtype)
            found = jnp.where((rest >= 0) & (rest < length), place + begins, found)
            begins_true, begins = begins_true + length, begins + stride
        return jnp.where(index < 0, index, found)


def leads(dim: Dim) -> bool:
    """Return True if the data of a dimension come first and its padding last."""
    (segment, *more) = dim
    return not more and not any(isinstance(f, Symbol) for f in segment[1:])


def _product(values: Iterable[Any]) -> Any:
    found: Any = 1
    for value in values:
        found = found * value
    return found


def common(found: Sequence[Any], what: str) -> Any:
    """Return the value that all samples have in common. Raises NoRule if the samples differ."""
    if any(other != found[0] for other in found[1:]):
        raise NoRule(f"{what} differs with the sizes: {list(found)}")
    return found[0]
