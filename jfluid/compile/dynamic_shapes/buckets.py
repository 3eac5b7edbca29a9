"""Buckets: the few sizes to which batches of many sizes are padded."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from jfluid.compile.runtime.padding import ladder

Sizes = dict[str, int]
_MOST = 9
_COARSE, _FINE = 2, 4  # sizes of an octave
# Waste, in whole batches, after which a finer bucket is compiled;
# doubled by each finer bucket that exists.
_PATIENCE = 16


class Buckets:
    """Sizes for which a step is compiled.

    A batch that fits no bucket gets a coarse bucket, which holds many sizes. A finer bucket is compiled when its batches
    have wasted enough: a compilation takes as long as many steps. Only the observed sizes
    decide, and no clock: the same stream is padded in the same way each time.

    Args:
        work: returns the number of elements of the feeds at some sizes.
        unit: a divisor of each size.
        said: sizes that the user has given, the smallest first; a batch gets the smallest size that holds it.
    """

    def __init__(
        self,
        work: Callable[[Mapping[str, int]], int],
        unit: Mapping[str, int],
        said: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ):
        self._work, self._unit = work, unit
        self._said = {n: [-(-s // unit[n]) * unit[n] for s in own] for n, own in said.items()}
        self._known: list[Sizes] = []
        self._wasted: dict[tuple[int, ...], float] = {}  # by the finer sizes, in steps
        self._refined = 0

    def choose(self, need: Mapping[str, int]) -> Sizes:
        """Return the sizes to pad a batch to: the sizes of a known bucket, or of a new bucket."""
        said = self._given(need)
        fitting = [b for b in self._alike(said) if all(n <= b[s] for s, n in need.items())]
        if not fitting:
            return self._add(self._rounded(need, _COARSE), said)
        best = min(fitting, key=self._work)
        fine = self._rounded(need, _FINE) | said
        saved = 1 - self._work(fine) / max(self._work(best), 1)
        if saved <= 0 or len(self._known) >= _MOST:
            return best
        form = tuple(fine.values())
        self._wasted[form] = self._wasted.get(form, 0.0) + saved
        if self._wasted[form] < _PATIENCE << self._refined:
            return best
        self._refined += 1
        return self._add(fine, said)

    def _given(self, need: Mapping[str, int]) -> Sizes:
        """Return the user's size of each symbol that has a sufficient size."""
        found = {n: next((s for s in own if s >= need[n]), 0) for n, own in self._said.items()}
        return {n: size for n, size in found.items() if size}

    def _alike(self, said: Sizes) -> list[Sizes]:
        """Return the known buckets of given sizes."""
        return [b for b in self._known if said.items() <= b.items()]

    def _add(self, sizes: Sizes, said: Sizes) -> Sizes:
        if len(self._known) >= _MOST:  # the last one: it holds whatever came, and more
            alike = self._alike(said)
            most = {n: max([s, *(b[n] for b in alike)]) for n, s in sizes.items()}
            sizes = self._rounded(most, 1)
        self._known.append(sizes | said)
        return sizes | said

    def _rounded(self, need: Mapping[str, int], rungs: int) -> Sizes:
        """Return the next sizes of a ladder that has `rungs` sizes an octave."""
        unit = self._unit
        return {n: unit[n] * ladder(-(-s // unit[n]), rungs, 2) for n, s in need.items()}
