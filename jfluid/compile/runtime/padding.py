"""Buckets: sizes that ragged feeds are padded to, so that batches of different lengths share a program.

Sizes are taken from a geometric ladder. A step remembers the sizes that it was compiled for and
uses a remembered size again if the batch fits and wastes little. After `MOST` sizes a new size includes all
earlier sizes with a margin, so that the number of compilations stays small for any number of ragged feeds.
"""

import bisect
import functools
import math
from collections.abc import Mapping
from operator import itemgetter, le
from typing import Any, NamedTuple

import jax
import numpy as np

from jfluid.host import aligned_memory
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows
from jfluid.ops import selected_rows as ops_rows
from jfluid.ops.ragged import Level, Ragged
from jfluid.ops.tensor_array import TensorArray

MOST = 6
MOST_NUMBERS = 1024  # of sequences in a batch, for which sizes are known
WASTE = 0.3  # of the rows that a batch is padded to, at most, while there are fewer than MOST sizes
SMALLEST = 8
_SPREAD = 1.2  # 3.5 standard deviations of a random length, divided by its mean: of lengths up to twice the mean


def ladder(n: int, rungs: int = 4, smallest: int = SMALLEST) -> int:
    """Return the smallest size >= n of the ladder, which has `rungs` sizes an octave, from `smallest` on."""
    if n <= smallest:
        return smallest
    octave = 1 << (n - 1).bit_length() - 1  # octave < n <= 2 * octave
    step = max(octave // rungs, 1)
    return octave + -(-(n - octave) // step) * step


class Size(NamedTuple):
    """Size that one ragged feed needs, or is padded to.

    Attributes:
        rows: rows of the values.
        numbers: sequences of each level; the first number is always exact.
        longest: longest sequence of each level.
        uniform: True if all sequences have `longest` rows, which a compiled program may rely on.
    """

    rows: int
    numbers: tuple[int, ...]
    longest: tuple[int, ...]
    uniform: bool = False

    @classmethod
    def of(cls, lod: list[np.ndarray]) -> "Size":
        lengths = [level[1:] - level[:-1] for level in lod]
        numbers = tuple([len(n) for n in lengths])
        longest = tuple([int(np.maximum.reduce(n)) if len(n) else 0 for n in lengths])
        rows, uniform = int(lod[-1][-1]), False
        if len(lod) == 1 and numbers[0] > 1 and longest[0] > 0:
            uniform = numbers[0] * longest[0] == rows - int(lod[0][0])  # none is shorter
        return cls(rows, numbers, longest, uniform)

    def rounded(self) -> "Size":
        if self.uniform:
            return self
        numbers = self.numbers[:1] + tuple(map(ladder, self.numbers[1:]))
        return Size(ladder(self.rows), numbers, tuple(ladder(n, 2) for n in self.longest))

    def fits(self, other: "Size") -> bool:
        """Return True if a batch that needs the size `self` can be padded to `other`."""
        if other.uniform:
            return self == other
        if len(self.numbers) == 1:  # dozens of slots a step are of one level
            return self.rows <= other.rows and self.longest <= other.longest and self.numbers == other.numbers
        if self.numbers[:1] != other.numbers[:1]:
            return False
        return (
            self.rows <= other.rows
            and all(map(le, self.longest, other.longest))
            and all(map(le, self.numbers, other.numbers))
        )

    def joined(self, other: "Size") -> "Size":
        """Return the smallest size that both sizes fit."""
        if self.uniform and self == other:
            return self
        a, b = self.plain(), other.plain()
        return Size(
            max(a.rows, b.rows),
            a.numbers[:1] + tuple(map(max, a.numbers[1:], b.numbers[1:])),
            tuple(map(max, a.longest, b.longest)),
        )

    def roomier(self, longest: tuple[int, ...] | None = None) -> "Size":
        """Return a size one rung larger, so that the next batch that needs more of one feed still fits.

        Args:
            longest: longest sequence of each level; None for a rung more.
        """
        if self.uniform:
            return self
        numbers = self.numbers[:1] + tuple(ladder(n + n // 4) for n in self.numbers[1:])
        longest = longest or tuple(ladder(n + n // 4, 2) for n in self.longest)
        return Size(ladder(self.rows + self.rows // 4), numbers, longest)

    def for_later(self) -> "Size":
        """Return a size with room for the batches after a first batch of this size.

        Sums of more lengths differ less: rows get room for 3.5 standard deviations of the sum of random lengths.
        """
        if self.uniform:
            return self
        rows = self.rows + int(_SPREAD * self.rows / math.sqrt(max(self.numbers[-1], 1)))
        longest = tuple(ladder(n + n // 8, 2) for n in self.longest)
        return Size(ladder(rows), self.roomier().numbers, longest)

    def plain(self) -> "Size":
        return Size(self.rows, self.numbers, self.longest).rounded() if self.uniform else self


class Measures:
    """Lods of a batch as int32, with their sizes.

    Click models feed the same sequences to dozens of slots: each sequence is measured once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[list[np.ndarray], Size]] = {}

    def of(self, tensor: LoDTensor) -> tuple[list[np.ndarray], Size]:
        """(lod, needed size) of a tensor."""
        key = tuple([level.tobytes() for level in tensor._lod])
        found = self._known.get(key)
        if found is None:
            lod = [level.astype(np.int32) for level in tensor._lod]
            found = self._known[key] = lod, Size.of(lod)
        return found


Sizes = dict[str, Size]


class SequenceBuckets:
    """Sizes that one step was compiled for.

    Attributes:
        exact: True disables padding, for an operator that does not support it.
    """

    def __init__(self) -> None:
        self.exact = False
        # by names and numbers of sequences: the sizes, and their rows together, the fewest first
        self._known: dict[frozenset[Any], list[tuple[Sizes, int]]] = {}

    def pad(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feeds with every LoDTensor as `Ragged`."""
        return self.pad_beside(feeds, {})[0]

    def pad_beside(self, feeds: Mapping[str, Any], beside: Sizes) -> tuple[dict[str, Any], Sizes]:
        """Return the feeds with every LoDTensor as `Ragged`, and the sizes of all LoDTensors.

        Args:
            beside: sizes that further feeds need; the returned sizes include them.
        """
        measures, padded = Measures(), dict(feeds)
        found = {n: measures.of(v) for n, v in feeds.items() if isinstance(v, LoDTensor)}
        need = {n: size for n, (_, size) in found.items()} | beside
        sizes = need if self.exact or not need else self.choose(need)
        for name, (lod, _) in found.items():
            padded[name] = fill(padded[name].value, lod, sizes[name], self.exact)
        return padded, sizes

    def history(self) -> list[list[Sizes]]:
        """Return what the choice of further sizes follows from: the known sizes of feeds with the same names."""
        return [[sizes for sizes, _ in known] for known in self._known.values()]

    def recall(self, history: list[list[Sizes]]) -> None:
        """Choose sizes as after the batches of an earlier process."""
        self._known.clear()
        for known in history:
            for sizes in known:
                self.alike(sizes).append((sizes, sum(s.rows for s in sizes.values())))

    def alike(self, need: Sizes) -> list[tuple[Sizes, int]]:
        """Return the known sizes of feeds with the same names, and the sum of rows, sorted by rows."""
        names = frozenset([(n, s.numbers[:1]) for n, s in need.items()])
        found = self._known.get(names)
        if found is None:
            if len(self._known) >= MOST_NUMBERS:
                self._known.clear()
            found = self._known[names] = []
        return found

    def suits(self, known: int, most: int, rows: int) -> bool:
        """Return True if a known size of `most` rows, among `known` sizes, suits a batch of fewer `rows`."""
        return known >= MOST or most * (1 - WASTE) <= max(rows, SMALLEST)

    def choose(self, need: Sizes) -> Sizes:
        """Return the sizes to pad feeds to that need `need`."""
        alike, rows = self.alike(need), sum([s.rows for s in need.values()])
        for sizes, most in alike:
            if most >= rows and all(s.fits(sizes[n]) for n, s in need.items()):
                if self.suits(len(alike), most, rows):
                    return sizes
                break
        new = {n: s.rounded() for n, s in need.items()}
        if len(alike) >= MOST:
            for k, _ in alike:
                new = {n: s.joined(k[n]) for n, s in new.items()}
            new = {n: s.roomier() for n, s in new.items()}
        bisect.insort(alike, (new, sum(s.rows for s in new.values())), key=itemgetter(1))
        return new


def fill(values: Any, lod: list[np.ndarray], size: Size, exact: bool) -> Ragged:
    """Return the rows padded to `size`, with copies of the first row."""
    if size.uniform:
        return Ragged(values, (Level(None, size.longest[0], size.numbers[0]),), exact=True)
    levels = tuple(
        [Level(extended(offsets, n), longest) for offsets, n, longest in zip(lod, size.numbers, size.longest)]
    )
    if values.shape[0] < size.rows:
        rows = np.asarray(values)
        values = aligned_memory.empty((size.rows, *rows.shape[1:]), rows.dtype)
        fill_rows(values, rows)
    return Ragged(values, levels, exact=exact)


def fill_rows(array: np.ndarray, rows: np.ndarray) -> None:
    """Fill an array with rows, followed by copies of the first row."""
    count = len(rows)
    array[:count] = rows
    array[count:] = rows[0] if count else 0


def extended(offsets: np.ndarray, number: int) -> np.ndarray:
    """Return the offsets of a level with empty sequences at its end, `number` sequences in all."""
    missing = number + 1 - len(offsets)
    return np.concatenate([offsets, np.full(missing, offsets[-1], np.int32)]) if missing else offsets


def trimmed(value: Any) -> Any:
    """Return an output of a step without padding, in users' types: LoDTensors in place of `Ragged`."""
    if isinstance(value, TensorArray):
        if value.buffer is not None:
            length = int(np.asarray(value.length))
            return LoDTensorArray(trimmed(jax.tree.map(lambda b, i=i: b[i], value.buffer)) for i in range(length))
        return LoDTensorArray(map(trimmed, value.items))
    if isinstance(value, ops_rows.SelectedRows):
        rows = np.asarray(value.rows)
        kept = rows < value.height
        rows, values = rows[kept], np.asarray(value.values)[kept]
        if value.summed:
            rows, values = _added_up(rows, values)
        return SelectedRows(rows.tolist(), value.height, values)
    if not isinstance(value, Ragged):
        return value
    lod, number = [], None
    for level in value.levels:
        if level.uniform:
            offsets = _evenly(level.uniform, level.longest)
        else:
            offsets = np.asarray(level.given)
        if level.count is not None:
            number = int(np.asarray(level.count))
        offsets = offsets if number is None else offsets[: number + 1]
        lod.append(offsets)
        number = int(offsets[-1])
    if value.total is not None:
        number = int(np.asarray(value.total))
    rows = np.asarray(value.values)
    if value.columns is not None:
        rows = rows[:, : int(np.asarray(value.columns))]
    return LoDTensor(rows if number is None or value.exact else rows[:number].copy(), lod)


@functools.lru_cache(64)
def _evenly(number: int, length: int) -> np.ndarray:
    """Return the offsets of sequences of one length, cached: dozens of slots of a click model have the same offsets."""
    offsets = np.arange(number + 1) * length
    offsets.flags.writeable = False
    return offsets


def _added_up(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row once, with the sum of the row's values."""
    once, place = np.unique(rows, return_inverse=True)
    total = np.zeros((len(once), *values.shape[1:]), values.dtype)
    np.add.at(total, place, values)
    return once, total


def padded(tensor: LoDTensor) -> Ragged:
    """Return the output of a host operator, padded to a bucket, so that later segments are compiled for few sizes."""
    values = np.asarray(tensor.value)
    lod = [level.astype(np.int32) for level in tensor._lod]
    if lod:
        return fill(values, lod, Size.of(lod).plain().rounded(), False)
    size = Size(ladder(len(values)), (), ())
    return Ragged(fill(values, [], size, False).values, (), np.int32(len(values)))


def exact(value: Any) -> Any:
    """Return a padded `Ragged` without its padding."""
    if not isinstance(value, Ragged) or value.exact:
        return value
    tensor = trimmed(value)
    lod = [level.astype(np.int32) for level in tensor._lod]
    if not lod:
        return tensor.value
    return fill(tensor.value, lod, Size.of(lod), True)
