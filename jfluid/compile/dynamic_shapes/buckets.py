"""Buckets: the few sizes to which batches of many sizes are padded."""

from collections.abc import Callable, Mapping

from jfluid.compile.padding import ladder

Sizes = dict[str, int]
_MOST = 9
_COARSE, _FINE, _FINEST = 2, 4, 8  # sizes of an octave
_MOST_WORK = 1.5  # of a new bucket, in terms of the batch that it is made for
# Batches that could have been as much smaller as they are, until a finer bucket is compiled for them;
# twice as many for each one that there is already.
_PATIENCE = 16


class Buckets:
    """The sizes for which a step is compiled.

    A batch that fits no bucket gets a coarse one, which holds many others. A finer bucket comes when the batches
    that it would have been for have wasted enough: to compile it takes as long as many steps. Only sizes that came
    decide, and no clock: the same stream is padded in the same way each time.

    Args:
        work: how many elements the feeds have at some sizes.
        unit: of which each size is a multiple.
    """

    def __init__(self, work: Callable[[Mapping[str, int]], int], unit: Mapping[str, int]):
        self._work, self._unit = work, unit
        self._known: list[Sizes] = []
        self._wasted: dict[tuple[int, ...], float] = {}  # by the finer sizes, in steps
        self._refined = 0

    def choose(self, need: Mapping[str, int]) -> Sizes:
        """Return the sizes to pad a batch to: those of a known bucket, or of a new one."""
        fitting = [b for b in self._known if all(n <= b[s] for s, n in need.items())]
        if not fitting:
            return self._add(self._coarse(need))
        best = min(fitting, key=self._work)
        fine = self._rounded(need, _FINE)
        saved = 1 - self._work(fine) / max(self._work(best), 1)
        if saved <= 0 or len(self._known) >= _MOST:
            return best
        form = tuple(fine.values())
        self._wasted[form] = self._wasted.get(form, 0.0) + saved
        if self._wasted[form] < _PATIENCE << self._refined:
            return best
        self._refined += 1
        return self._add(fine)

    def _add(self, sizes: Sizes) -> Sizes:
        if len(self._known) >= _MOST:  # the last one: it holds whatever came, and more
            most = {n: max(s, *(b[n] for b in self._known)) for n, s in sizes.items()}
            sizes = self._rounded(most, 1)
        self._known.append(sizes)
        return sizes

    def _coarse(self, need: Mapping[str, int]) -> Sizes:
        """Return sizes that hold many others: fewer where several vary, whose product is the work."""
        sizes: Sizes = {}
        for rungs in (_COARSE, _FINE, _FINEST):
            sizes = self._rounded(need, rungs)
            if self._work(sizes) <= _MOST_WORK * self._work(need):
                break
        return sizes

    def _rounded(self, need: Mapping[str, int], rungs: int) -> Sizes:
        """Return the next sizes of a ladder that has `rungs` sizes an octave."""
        unit = self._unit
        return {n: unit[n] * ladder(-(-s // unit[n]), rungs, 2) for n, s in need.items()}
