"""Output shapes of operators by formula: a call upon inputs of new sizes needs no tracing.

JAX infers shapes by tracing the operator, which takes as long as Fluid takes to run several operators. A call with a
third shape is inferred at three samples of the varying sizes. Each output size becomes a formula: a size, a product, a
sum, or one of these plus a constant. A formula holds for sizes between the samples, and agrees with all observed
shapes. Other calls are inferred by tracing.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.dynamic_shapes.dims import Dim, NoRule, Table, samples_of, size_of
from jfluid.compile.dynamic_shapes.feed_symbols import (
    SAMPLES,
    Sampled,
    Shapes,
    is_large,
    ranges,
    symbols_in,
    symbols_of,
)
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph.lazy_values import Aval, aval_of

_EXACT_FIRST = 2  # shapes that are inferred by tracing before there are formulas
_MOST_OBSERVED = 16
_MOST_TRIED = 4  # times that formulas are looked for
_MOST_CALLS = 4096

Avals = Sequence[Aval | None]
# What a call gives: an Aval, a known array or None for each output, in lists where a slot has several.
Outputs = Any
Infer = Callable[[Avals], Outputs]
# A size of an output: dimensions whose sizes are added, and a constant.
_Size = tuple[tuple[Dim, ...], int]

_known = LruCache["ShapeFormulas"](_MOST_CALLS)


def outputs(call: int, avals: Avals, infer: Infer) -> Outputs:
    """Infer the outputs of a call, by formula if possible.

    Args:
        call: number of the call.
        avals: kinds of the inputs.
        infer: infers the outputs by tracing; raises the errors of `Call.infer`.
    """
    kinds = tuple([a and (a.dtype, len(a.shape)) for a in avals])
    if not any(kinds) or not all(a is None or a.plain for a in avals):
        return infer(avals)
    return _known.get_or_make((call, kinds), ShapeFormulas).outputs(avals, infer)


class ShapeFormulas:
    """Formulas of one call, for inputs of equal dtypes and ranks."""

    def __init__(self) -> None:
        self._observed: dict[Shapes, Outputs] = {}
        self._formulas: _Formulas | None = None
        self._tried = 0

    def outputs(self, avals: Avals, infer: Infer) -> Outputs:
        """Infer the outputs of the call."""
        shapes = tuple([a.shape for a in avals if a is not None])
        found = self._evaluated(shapes)
        if found is not None:
            return found
        found = infer(avals)
        if len(self._observed) < _MOST_OBSERVED:
            self._observed[shapes] = found
        if len(self._observed) > _EXACT_FIRST and self._tried < _MOST_TRIED:
            self._tried += 1
            self._formulas = self._found(shapes, avals, infer) or self._formulas
        return found

    def _evaluated(self, shapes: Shapes) -> Outputs | None:
        if self._formulas is None:
            return None
        return self._formulas.outputs(shapes)

    def _found(self, shapes: Shapes, avals: Avals, infer: Infer) -> "_Formulas | None":
        """Return formulas that hold for all observed shapes, or None."""
        try:
            symbols = symbols_of(self._observed)
        except NoRule:
            return None
        if symbols is None or not is_large(symbols.sizes(shapes)):
            return None
        for low, high in ranges(symbols):
            try:
                sampled = Sampled(symbols, low, high)
                found = _Formulas(sampled, self._inferred(sampled, avals, infer))
            except (NoRule, errors.JFluidError):  # an attribute that holds for a size, for one
                continue
            if all(found.agrees(own, made) for own, made in self._observed.items()):
                return found
        return None

    def _inferred(self, sampled: Sampled, avals: Avals, infer: Infer) -> list[Outputs]:
        """Infer the outputs of the call at each sample."""
        made = []
        for sample in range(SAMPLES):
            own = iter(sampled.shapes(sample))
            kinds = [a and aval_of(jax.ShapeDtypeStruct(next(own), a.dtype)) for a in avals]
            made.append(infer(kinds))
        return made


class _Formulas:
    """Formulas of all outputs of a call. Raises NoRule for a size without formula.

    Args:
        sampled: samples of the sizes.
        made: outputs of the call at each sample.
    """

    def __init__(self, sampled: Sampled, made: Sequence[Outputs]):
        self._sampled = sampled
        self._table = Table(symbols_in(sampled.fed), SAMPLES)
        self._slots = [self._slot(own) for own in zip(*made, strict=True)]

    def outputs(self, shapes: Shapes) -> Outputs | None:
        """Return the outputs for inputs of these shapes, or None outside of the samples' range."""
        sizes = self._sampled.sizes(shapes)
        if sizes is None:
            return None
        return tuple(
            [
                [_evaluated(own, sizes) for own in slot] if isinstance(slot, list) else _evaluated(slot, sizes)
                for slot in self._slots
            ]
        )

    def agrees(self, shapes: Shapes, made: Outputs) -> bool:
        """Return True unless the formulas contradict inferred outputs."""
        found = self.outputs(shapes)
        return found is None or all(
            a is b or _same_arrays([a, b]) for a, b in zip(_flat(found), _flat(made), strict=True)
        )

    def _slot(self, made: Sequence[Any]) -> Any:
        if isinstance(made[0], list):
            if len(set(map(len, made))) > 1:
                raise NoRule("other sizes lead to other numbers of outputs")
            return [self._output(own) for own in zip(*made)]
        return self._output(made)

    def _output(self, made: Sequence[Any]) -> Any:
        """Return a constant output, or dtype and size formulas of a varying output."""
        first = made[0]
        if all(own is first for own in made) or _same_arrays(made):
            return first
        if not all(isinstance(own, Aval) and own.plain for own in made):
            raise NoRule("other sizes lead to other numbers")
        if len({(own.dtype, len(own.shape)) for own in made}) > 1:
            raise NoRule("other sizes lead to other ranks")
        return first.dtype, [self._size(own) for own in zip(*[own.shape for own in made])]

    def _size(self, samples: tuple[int, ...]) -> _Size:
        if len(set(samples)) == 1:
            return (), samples[0]
        for dims in self._forms(samples):
            own = [sum(sizes) for sizes in zip(*[samples_of(dim, SAMPLES) for dim in dims])]
            rest = {size - n for size, n in zip(samples, own)}
            if len(rest) == 1:
                return dims, rest.pop()
        raise NoRule("a size that no formula gives")

    def _forms(self, samples: tuple[int, ...]) -> Iterator[tuple[Dim, ...]]:
        found = self._table.find(samples)
        if found is not None:
            yield (found,)
        dims = self._table.products()
        yield from ((dim,) for dim in dims)
        yield from itertools.combinations(dims, 2)


def _evaluated(output: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(output, tuple):
        return output
    dtype, shape = output
    whole = tuple([sum([size_of(dim, sizes) for dim in dims]) + more for dims, more in shape])
    return aval_of(jax.ShapeDtypeStruct(whole, dtype))


def _same_arrays(made: Sequence[Any]) -> bool:
    first = made[0]
    return all(
        isinstance(own, np.ndarray)
        and own.dtype == first.dtype
        and np.array_equal(own, first, equal_nan=own.dtype.kind == "f")
        for own in made
    )


def _flat(made: Outputs) -> Iterator[Any]:
    for slot in made:
        yield from slot if isinstance(slot, list) else (slot,)
