"""Buckets: the few sizes to which batches of many sizes are padded."""

from collections.abc import Callable, Mapping

from jfluid.compile.padding import ladder

Sizes = dict[str, int]
_WASTE = 1.3  # elements of a bucket for each one of the batch, at most, while there are few buckets
_RUNGS = (4, 4, 4, 4, 2, 2, 2, 1, 1)  # sizes of an octave, by how many buckets there are already


class Buckets:
    """The sizes for which a step is compiled.

    Args:
        work: how many elements the feeds have at some sizes.
        unit: of which each size is a multiple.
    """

    def __init__(self, work: Callable[[Mapping[str, int]], int], unit: Mapping[str, int]):
        self._work, self._unit = work, unit
        self._known: list[Sizes] = []

    def choose(self, need: Mapping[str, int]) -> Sizes:
        """Return the sizes to pad a batch to: those of a known bucket, or of a new one."""
        fitting = [b for b in self._known if all(n <= b[s] for s, n in need.items())]
        if fitting:
            best = min(fitting, key=self._work)
            full = len(self._known) >= len(_RUNGS)
            if full or self._work(best) <= _WASTE * max(self._work(need), 1):
                return best
        rungs = _RUNGS[min(len(self._known), len(_RUNGS) - 1)]
        new = {name: self._rounded(name, size, rungs) for name, size in need.items()}
        if len(self._known) >= len(_RUNGS):  # the last one: it holds whatever came, and more
            most = {n: max(s, *(b[n] for b in self._known)) for n, s in new.items()}
            new = {name: self._rounded(name, size, 1) for name, size in most.items()}
        if new not in self._known:
            self._known.append(new)
        return new

    def _rounded(self, name: str, size: int, rungs: int) -> int:
        """Return a size of the ladder of a symbol, which has `rungs` sizes an octave."""
        unit = self._unit[name]
        return unit * ladder(size // unit, rungs, 2)
