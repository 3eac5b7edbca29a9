"""Buckets: sizes that ragged feeds are padded to, so that batches of different lengths share a program.

Sizes are taken from a geometric ladder. A step remembers the sizes that it was compiled for and
uses a remembered size again if the batch fits and wastes little. After `MOST` sizes a new size includes all
earlier sizes with a margin, so that the number of compilations stays small for any number of ragged feeds.
"""

import bisect
import functools
import math
import warnings
from collections.abc import Mapping
from operator import itemgetter, le
from typing import Any, NamedTuple

import jax
import numpy as np

from jfluid.compile.dynamic_shapes.exact_shapes import EXACT_FIRST
from jfluid.host import aligned_memory
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows
from jfluid.ops import selected_rows as ops_rows
from jfluid.ops.ragged import Level, Ragged, is_counted
from jfluid.ops.tensor_array import TensorArray

MOST = 6
MOST_NUMBERS = 1024  # of sequences in a batch, for which sizes are known
WASTE = 0.3  # of the rows that a batch is padded to, at most, while there are fewer than MOST sizes
SMALLEST = 8
_ROOM = 0.25  # of a size that holds all earlier sizes
_GROWS = 9  # sizes, after which a further size has twice, four times, ... the room
_SPREAD = 1.2  # 3.5 standard deviations of a random length, divided by its mean: of lengths up to twice the mean


def ladder(n: int, rungs: int = 4, smallest: int = SMALLEST) -> int:
    """Return the smallest size >= n of the ladder, which has `rungs` sizes an octave, from `smallest` on."""
    if n <= smallest:
        return smallest
    octave = 1 << (n - 1).bit_length() - 1  # octave < n <= 2 * octave
    step = max(octave // rungs, 1)
    return octave + -(-(n - octave) // step) * step


class Size(NamedTuple):
    """Size that one feed needs, or is padded to: a feed with a LoD, or a dense feed with a row for each sequence.

    Attributes:
        rows: rows of the values.
        numbers: sequences of each level; of a dense feed the number of rows.
        longest: longest sequence of each level; empty for a dense feed.
        uniform: True if all sequences have `longest` rows, which a compiled program may rely on.
        counted: True if the first number has room for more, and the step is given the true number; else it is exact.
    """

    rows: int
    numbers: tuple[int, ...]
    longest: tuple[int, ...]
    uniform: bool = False
    counted: bool = False

    @classmethod
    def of(cls, lod: list[np.ndarray]) -> "Size":
        lengths = [level[1:] - level[:-1] for level in lod]
        numbers = tuple([len(n) for n in lengths])
        longest = tuple([int(np.maximum.reduce(n)) if len(n) else 0 for n in lengths])
        rows, uniform = int(lod[-1][-1]), False
        if len(lod) == 1 and numbers[0] > 1 and longest[0] > 0:
            uniform = numbers[0] * longest[0] == rows - int(lod[0][0])  # none is shorter
        return cls(rows, numbers, longest, uniform)

    @classmethod
    def of_rows(cls, number: int) -> "Size":
        """Return the size of a dense feed."""
        return cls(number, (number,), ())

    def rounded(self) -> "Size":
        if self.uniform:
            return self
        longest = tuple(ladder(n, 2) for n in self.longest)
        return self._resized(ladder(self.rows), tuple(map(ladder, self.numbers)), longest)

    def fits(self, other: "Size") -> bool:
        """Return True if a batch that needs the size `self` can be padded to `other`."""
        if other.uniform:
            return self == other
        if not other.counted and (self.counted or self.numbers[0] != other.numbers[0]):
            return False
        return (
            self.rows <= other.rows
            and all(map(le, self.longest, other.longest))
            and all(map(le, self.numbers, other.numbers))
        )

    def joined(self, other: "Size") -> "Size":
        """Return the smallest size that both sizes fit; it is counted if one is, or if the first numbers differ."""
        if self == other:
            return self
        a, b = self.plain(), other.plain()
        return Size(
            max(a.rows, b.rows),
            tuple(map(max, a.numbers, b.numbers)),
            tuple(map(max, a.longest, b.longest)),
            counted=a.counted or b.counted or a.numbers[0] != b.numbers[0],
        )

    def roomier(self, longest: tuple[int, ...] | None = None, more: float = _ROOM) -> "Size":
        """Return a size one rung larger, so that the next batch that needs more of one feed still fits.

        Args:
            longest: longest sequence of each level; None for a rung more.
            more: room for later batches, as a part of the size.
        """
        if self.uniform:
            return self
        longest = longest or tuple(ladder(n + int(n * more), 2) for n in self.longest)
        numbers = tuple(ladder(n + int(n * more)) for n in self.numbers)
        return self._resized(ladder(self.rows + int(self.rows * more)), numbers, longest)

    def for_later(self) -> "Size":
        """Return a size with room for the batches after a first batch of this size.

        Sums of more lengths differ less: rows get room for 3.5 standard deviations of the sum of random lengths. If the
        number of sequences varies as well, rows get as much room as the number.
        """
        if self.uniform:
            return self
        if self.counted:
            return self.roomier()
        rows = self.rows + int(_SPREAD * self.rows / math.sqrt(max(self.numbers[-1], 1)))
        longest = tuple(ladder(n + n // 8, 2) for n in self.longest)
        return Size(ladder(rows), self.roomier().numbers, longest)

    def plain(self) -> "Size":
        return Size(self.rows, self.numbers, self.longest).rounded() if self.uniform else self

    def with_room(self) -> "Size":
        """Return the size as a counted size, in which the first number may be padded."""
        return Size(self.rows, self.numbers, self.longest, counted=True)

    def _resized(self, rows: int, numbers: tuple[int, ...], longest: tuple[int, ...]) -> "Size":
        """Return a larger size; the first number stays unless it is counted."""
        if not self.counted:
            return Size(rows, self.numbers[:1] + numbers[1:], longest)
        return Size(rows, numbers, longest, counted=True)


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

    The first number of sequences is exact. Once the number varies, further sizes have room for more sequences.

    Args:
        counts: True if the step may be given the true number of sequences beside padded ones.

    Attributes:
        exact: True disables padding, for an operator that does not support it.
        counts: as the argument; False after `refuse_counts`.
    """

    def __init__(self, counts: bool = True) -> None:
        self.exact, self.counts = False, counts
        # by names of feeds: the sizes, and the rows of all sequences together, the fewest first
        self._known: dict[frozenset[Any], list[tuple[Sizes, int]]] = {}
        # dense feeds that had a row for each sequence in all batches so far; None before the first batch
        self._rows: set[str] | None = None
        self._refused = ""  # why numbers are exact, for a warning

    def pad(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feeds with every LoDTensor as `Ragged`."""
        return self.pad_beside(feeds, {})[0]

    def pad_beside(self, feeds: Mapping[str, Any], beside: Sizes) -> tuple[dict[str, Any], Sizes]:
        """Return the feeds with every LoDTensor as `Ragged`, and the sizes of all feeds with sequences.

        Where the number of sequences is padded, dense feeds with a row for each sequence are `Ragged`, too.

        Args:
            beside: sizes that further feeds need; the returned sizes include them.
        """
        measures, padded = Measures(), dict(feeds)
        found = {n: measures.of(v) for n, v in feeds.items() if isinstance(v, LoDTensor)}
        need = {n: size for n, (_, size) in found.items()} | beside
        if self.exact or not need:
            sizes = need
        else:
            sizes = self.choose(need | self._dense_rows(feeds, need))
        for name, (lod, _) in found.items():
            padded[name] = fill(padded[name].value, lod, sizes[name], self.exact)
        for name, size in sizes.items():
            if size.counted and not size.longest:
                padded[name] = fill(padded[name], [], size, False)
        return padded, sizes

    def history(self) -> list[list[Sizes]]:
        """Return what the choice of further sizes follows from: the known sizes of feeds with the same names."""
        return [[sizes for sizes, _ in known] for known in self._known.values()]

    def recall(self, history: list[list[Sizes]]) -> None:
        """Choose sizes as after the batches of an earlier process."""
        self._known.clear()
        self._rows = None
        for known in history:
            for sizes in known:
                self.alike(sizes).append((sizes, _rows_of(sizes)))
                self._rows = {n for n, size in sizes.items() if not size.longest}

    def refuse_counts(self, reason: str) -> None:
        """Keep the number of sequences of each batch from now on.

        Args:
            reason: for the warning at the third number.
        """
        self.counts, self._refused = False, reason
        self._known.clear()

    def alike(self, need: Sizes) -> list[tuple[Sizes, int]]:
        """Return the known sizes of feeds with the same names, and the sum of rows, sorted by rows."""
        names = frozenset(need if self.counts else [(n, s.numbers[:1]) for n, s in need.items()])
        found = self._known.get(names)
        if found is None:
            if self._refused and len(self._known) == EXACT_FIRST:
                warnings.warn(self._refused, RuntimeWarning, stacklevel=2)
            if len(self._known) >= MOST_NUMBERS:
                self._known.clear()
            found = self._known[names] = []
        return found

    def suits(self, known: int, most: int, rows: int) -> bool:
        """Return True if a known size of `most` rows, among `known` sizes, suits a batch of fewer `rows`."""
        return known >= MOST or most * (1 - WASTE) <= max(rows, SMALLEST)

    def choose(self, need: Sizes) -> Sizes:
        """Return the sizes to pad feeds to that need `need`."""
        alike, rows = self.alike(need), _rows_of(need)
        for sizes, most in alike:
            if most >= rows and all(s.fits(sizes[n]) for n, s in need.items()):
                if self.suits(len(alike), most, rows):
                    return sizes
                break
        known = [sizes for sizes, _ in alike]
        exact = not self.counts or self._keeps_numbers(need, known)
        new = {n: (s if exact else s.with_room()).rounded() for n, s in need.items()}
        is_first_counted = not exact and not any(size.counted for k in known for size in k.values())
        if len(alike) >= MOST or is_first_counted:
            for k in known:
                new = {n: s.joined(k[n]) for n, s in new.items()}
        if len(alike) >= MOST:
            more = _ROOM if len(alike) < _GROWS else 2.0 ** (len(alike) - _GROWS + 1) - 1
            new = {n: s.roomier(more=more) for n, s in new.items()}
        bisect.insort(alike, (new, _rows_of(new)), key=itemgetter(1))
        return new

    def _keeps_numbers(self, need: Sizes, known: list[Sizes]) -> bool:
        """Return True if a batch has the first numbers of sequences that came."""
        return not known or any(
            all(not k[n].counted and k[n].numbers[0] == s.numbers[0] for n, s in need.items()) for k in known
        )

    def _dense_rows(self, feeds: Mapping[str, Any], need: Sizes) -> Sizes:
        """Return the sizes of dense feeds that have had a row for each sequence of a feed in all batches."""
        if not self.counts or self._rows == set():
            return {}
        numbers = {size.numbers[0] for size in need.values()}
        found = {
            n: Size.of_rows(v.shape[0])
            for n, v in feeds.items()
            if n not in need and isinstance(v, np.ndarray | jax.Array) and v.ndim and v.shape[0] in numbers
        }
        if self._rows is not None and (gone := self._rows - found.keys()):
            found = {n: size for n, size in found.items() if n in self._rows}
            known, self._known = self._known, {}
            for names, alike in known.items():
                self._known[names - gone] = [
                    ({n: s for n, s in sizes.items() if n not in gone}, rows) for sizes, rows in alike
                ]
        elif self._rows is not None:
            found = {n: size for n, size in found.items() if n in self._rows}
        self._rows = set(found)
        return found


def _rows_of(sizes: Sizes) -> int:
    """Return the rows of all feeds with a LoD."""
    return sum([s.rows for s in sizes.values() if s.longest])


def fill(values: Any, lod: list[np.ndarray], size: Size, exact: bool, count: int | None = None) -> Ragged:
    """Return the rows padded to `size`, with copies of the first row.

    Args:
        lod: offsets of each level; none for rows without a LoD.
        count: number of sequences, or of rows without a LoD; None if nothing in `lod` and `values` is padding.
    """
    if size.uniform:
        return Ragged(values, (Level(None, size.longest[0], size.numbers[0]),), exact=True)
    own = None
    if size.counted:
        given = len(lod[0]) - 1 if lod else values.shape[0]
        own = np.asarray(given if count is None else count, np.int32)
    levels = tuple(
        [
            Level(extended(offsets, n), longest, count=None if at else own)
            for at, (offsets, n, longest) in enumerate(zip(lod, size.numbers, size.longest))
        ]
    )
    if values.shape[0] < size.rows:
        rows = np.asarray(values)
        values = aligned_memory.empty((size.rows, *rows.shape[1:]), rows.dtype)
        fill_rows(values, rows)
    return Ragged(values, levels, None if lod else own, exact=exact)


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


def uncounted(value: Any) -> Any:
    """Return a fed `Ragged` with its true number of sequences, or dense rows without padding."""
    if not is_counted(value):
        return value
    tensor = trimmed(value)
    lod = [level.astype(np.int32) for level in tensor._lod]
    return fill(tensor.value, lod, Size.of(lod).plain().rounded(), False) if lod else tensor.value


def exact(value: Any) -> Any:
    """Return a padded `Ragged` without its padding."""
    if not isinstance(value, Ragged) or value.exact:
        return value
    tensor = trimmed(value)
    lod = [level.astype(np.int32) for level in tensor._lod]
    if not lod:
        return tensor.value
    return fill(tensor.value, lod, Size.of(lod), True)
