"""Buckets: the few sizes to which batches of many sizes are padded."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jfluid.compile.dynamic_shapes.history import BucketsHistory, Sizes
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.padding import ladder

MOST = 12  # executables of a stream: buckets of all traces, and exact shapes
# A new bucket holds all batches so far once 6 are left. The last 3 are for sizes beyond all buckets: each has more room
# than the bucket before, so that sizes may grow a thousandfold.
_LEFT_WIDE, _LEFT_BEYOND = 6, 3
# After so many batches sizes rarely grow: one of the last 3 may be a finer bucket.
_STEADY, _LEFT_STEADY = 256, 2
_MOST_ROOM = 16  # most work of such a bucket, in times of the work without room
_COARSE, _FINE = 2, 8  # sizes of an octave
# Work of a bucket for all batches so far, in times of the largest batch's work, from which on few batches need it.
_CURVE = 2.0
_SLIGHT = 1.04  # most work of a bucket with more room in dimensions that cost little, in times of the work without
# Padded steps whose work is wasted until a finer bucket is compiled: compiling takes about as long.
_PATIENCE = 16
_INTERPRETED = 4.0  # time of an interpreted step, in times of a compiled step of the same sizes
_MOST_FORMS = 64  # sizes that are counted
_MOST_WORKS = 4096  # sizes whose work is remembered: each step compares the work of several buckets

Form = tuple[tuple[str, int], ...]


class Buckets:
    """Sizes for which a step is compiled.

    A batch that fits no bucket gets a coarse bucket, which holds many sizes. A finer bucket comes once padding has
    wasted the work of a number of steps: the bucket that would have saved most for the batches so far. Only sizes
    decide, and no clock: the same stream is padded in the same way each time.

    Args:
        work: returns the number of elements of the feeds at given sizes.
        unit: a divisor of each size.
        said: sizes that the user has given, the smallest first; a batch gets the smallest size that holds it.
        others: returns the number of the stream's executables for other symbols, and without padding.
    """

    def __init__(
        self,
        work: Callable[[Mapping[str, int]], int],
        unit: Mapping[str, int],
        said: Mapping[str, Sequence[int]] = MappingProxyType({}),
        others: Callable[[], int] = int,
    ):
        names = tuple(unit)
        known = functools.lru_cache(_MOST_WORKS)(lambda own: work(dict(zip(names, own))))
        self._work: Callable[[Mapping[str, int]], int] = lambda sizes: known(tuple([sizes[n] for n in names]))
        self._unit = unit
        self._said = {n: [-(-s // unit[n]) * unit[n] for s in own] for n, own in said.items()}
        self._known: list[Sizes] = []
        self._others = others
        self._came: Counter[Form] = Counter()  # batches by their fine sizes
        self._wasted = 0.0  # in steps
        self._holding = LruCache[list[Sizes]](_MOST_WORKS)  # of the known buckets, by the sizes of a batch

    def __len__(self) -> int:
        return len(self._known)

    @property
    def _left(self) -> int:
        """Number of buckets that the stream may still get, without sizes that the user has given."""
        return MOST + sum(map(len, self._said.values())) - len(self) - self._others()

    def history(self) -> BucketsHistory:
        """Return what further choices follow from."""
        return BucketsHistory(list(self._known), [(dict(form), n) for form, n in self._came.items()], self._wasted)

    def recall(self, history: BucketsHistory) -> None:
        """Choose as after the batches of an earlier process."""
        self._known, self._wasted = list(history.known), history.wasted
        self._holding.clear()
        self._came = Counter({tuple(sizes.items()): count for sizes, count in history.came})

    def count(self, need: Mapping[str, int]) -> None:
        """Note the sizes of a batch."""
        form = tuple(self._rounded({n: self._given(n, size) or size for n, size in need.items()}, _FINE).items())
        if form not in self._came and len(self._came) >= _MOST_FORMS:
            del self._came[min(self._came, key=self._came.__getitem__)]
        self._came[form] += 1

    def choose(self, need: Mapping[str, int]) -> Sizes:
        """Return the sizes to pad a batch to: the sizes of a known bucket, or of a new bucket."""
        self.count(need)
        best = self.best(need)
        if best is None:
            return self._add({n: self._given(n, size) or size for n, size in need.items()})
        self._wasted += self.waste(need, best)
        if self._wasted < _PATIENCE or not self.refine():
            return best
        return self.best(need) or best

    def waste(self, need: Mapping[str, int], bucket: Mapping[str, int]) -> float:
        """Return the share of a bucket's work that a finer bucket saves for a batch."""
        return max(1 - self._work(self._rounded(need, _FINE)) / max(self._work(bucket), 1), 0.0)

    def refine(self) -> bool:
        """Add the bucket that would have saved most for all batches so far; returns False without such a bucket."""
        if self._left <= (_LEFT_BEYOND if self._came.total() < _STEADY else _LEFT_STEADY):
            return False
        self._wasted = 0.0
        known = [(dict(form), count) for form, count in self._came.items()]
        finer, saved = self._saving([(own, n, self._work(held)) for own, n in known if (held := self.best(own))])
        if saved > 0:
            self.know(finer)
        return saved > 0

    def worth_most(self, need: Mapping[str, int]) -> Sizes:
        """Add the bucket for a batch that saves most for all batches so far, where batches without one are interpreted.

        A bucket for all batches saves most, unless padding takes longer than the interpreter: batches of a few long or
        many short sentences have little room in common.
        """
        need = {n: self._given(n, size) or size for n, size in need.items()}
        if self._left <= _LEFT_BEYOND:
            return self._add(need)
        costs = list[tuple[Sizes, int, float]]()
        for form, count in self._came.items():
            own = dict(form)
            held = self.best(own)
            costs.append((own, count, min([_INTERPRETED * self._work(own), *([self._work(held)] if held else [])])))
        return self.know(self._saving(costs, need)[0])

    def know(self, sizes: Sizes) -> Sizes:
        """Add a bucket, unless it is known; return the bucket."""
        if sizes not in self._known:
            self._known.append(sizes)
            self._holding.clear()
        return sizes

    def forget(self, sizes: Mapping[str, int]) -> None:
        """Remove a known bucket."""
        self._known = [own for own in self._known if own != sizes]
        self._holding.clear()

    def holding(self, need: Mapping[str, int]) -> list[Sizes]:
        """Return the known buckets that hold a batch, in order of work."""

        def found() -> list[Sizes]:
            return sorted((b for b in self._known if self._fits(need, b)), key=self._work)

        return self._holding.get_or_make(tuple(need.values()), found)

    def best(self, need: Mapping[str, int]) -> Sizes | None:
        """Return the known bucket of least work for a batch."""
        return next(iter(self.holding(need)), None)

    def _given(self, name: str, size: int) -> int:
        """Return the smallest size that the user has given for a symbol and that holds `size`; 0 without any."""
        return next((s for s in self._said.get(name, ()) if s >= size), 0)

    def _fits(self, need: Mapping[str, int], bucket: Mapping[str, int]) -> bool:
        """Return True if a bucket holds a batch, and has the sizes that the user has given."""
        given = {n: self._given(n, size) for n, size in need.items()}
        return all(bucket[n] == given[n] if given[n] else bucket[n] >= size for n, size in need.items())

    def _add(self, need: Mapping[str, int]) -> Sizes:
        """Add a coarse bucket for a batch; if few buckets are left, a bucket that holds all batches so far, or more."""
        coarse = self._rounded(need, _COARSE)
        coarse = self._roomy(coarse, self._rounded({n: size + size // 4 for n, size in need.items()}, _COARSE))
        if self._left > _LEFT_WIDE:
            return self.know(coarse)
        if self._left > _LEFT_BEYOND:
            came = [need, *map(dict, self._came)]
            every = {n: size if self._given(n, size) else max(own[n] for own in came) for n, size in need.items()}
            every = self._rounded(every, _COARSE)
            # One size is large where another is small.
            curve = self._work(every) > _CURVE * max(map(self._work, came)) and self._left > _LEFT_BEYOND + 1
            return self.know(coarse if curve else every)
        times = max(_LEFT_BEYOND + 1 - max(self._left, 1), 0)
        wide = [self._beyond(need, 1 << i) for i in range(times, -1, -1)]
        most = _MOST_ROOM * self._work(wide[-1])
        return self.know(next(sizes for sizes in wide if self._work(sizes) <= most))

    def _beyond(self, need: Mapping[str, int], times: int) -> Sizes:
        """Return sizes that hold a batch and all known buckets, with `times` the room in dimensions that grow."""
        found = dict(need)
        for n, size in need.items():
            known = {b[n] for b in self._known} or {0}
            grows = size > max(known) or (len(known) > 1 and (2 * size > max(known) or self._left <= 1))
            if not self._given(n, size):
                found[n] = max(times * size if grows else size, max(known))
        return self._rounded(found, 1)

    def _saving(self, costs: Sequence[tuple[Sizes, int, float]], need: Sizes | None = None) -> tuple[Sizes, float]:
        """Return the bucket by which batches would have saved most work, and that work.

        Candidates hold a batch, two batches or all batches so far.

        Args:
            costs: sizes, the number of batches of these sizes, and the work of one batch.
            need: sizes that the bucket holds, in sizes of the coarse ladder; None for any bucket.
        """
        own = [sizes for sizes, _, _ in costs]
        every = {n: max(sizes[n] for sizes in own) for n in own[0]}
        pairs = [{n: max(size, b[n]) for n, size in a.items()} for a, b in itertools.combinations(own, 2)]
        found = [every, *own, *pairs, *([need] if need else [])]
        found = [self._roomy(self._rounded(sizes, _COARSE) if need else sizes, every) for sizes in found]
        found = [dict(form) for form in dict.fromkeys(tuple(sizes.items()) for sizes in found)]
        found = [sizes for sizes in found if self._fits(need or {}, sizes)]
        fits = np.array([[self._fits(sizes, bucket) for sizes in own] for bucket in found])
        gains = np.array([cost for _, _, cost in costs]) - np.array(list(map(self._work, found)))[:, None]
        saved = np.where(fits, np.maximum(gains, 0), 0) @ np.array([n for _, n, _ in costs])
        best = int(saved.argmax())
        return found[best], float(saved[best])

    def _roomy(self, sizes: Sizes, wide: Sizes) -> Sizes:
        """Return the larger of two sizes in each dimension in which that costs little."""
        found, most = sizes, _SLIGHT * self._work(sizes)
        for n in sizes:
            wider = found | {n: max(found[n], wide[n])}
            if n not in self._said and self._work(wider) <= most:
                found = wider
        return found

    def _rounded(self, need: Mapping[str, int], rungs: int) -> Sizes:
        """Return the next sizes of a ladder that has `rungs` sizes an octave; sizes that the user has given stay."""
        unit = self._unit
        return {
            n: s if self._given(n, s) == s else unit[n] * ladder(-(-s // unit[n]), rungs, 2) for n, s in need.items()
        }
