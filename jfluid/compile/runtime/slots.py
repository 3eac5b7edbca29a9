"""Slots: feeds of sequences of one level. Click models have dozens of slots.

Slots of one element type and row shape are checked in one pass and go to XLA as one array, which the
compiled step divides: each argument costs a step microseconds, and so does each call of NumPy.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, le, sub
from typing import Any, NamedTuple

import jax
import numpy as np

from jfluid.compile.runtime.feed_signature import FeedSignature, signature_of
from jfluid.compile.runtime.padding import MOST_NUMBERS, SequenceBuckets, Size, Sizes
from jfluid.host import aligned_memory
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Level, Ragged, is_counted

_PACKED, _ROWS, _LONGEST = map(attrgetter, ("packed", "rows", "longest"))
_MOST_ROWS = 2**31  # offsets are int32
_SMALL = 1 << 15  # bytes that XLA copies sooner than NumPy says where an array begins


@dataclass(eq=False, slots=True)
class Measured:
    """Sequences of all slots of a batch.

    Attributes:
        offsets: int32 [slots, sequences + 1].
        number: sequences of each slot, in each replica.
        rows: rows that each slot needs; for replicas, the most of any replica.
        total: sum of `rows`.
        longest: longest sequence of each slot.
        cuts: for replicas, the first row of each replica in each slot, and the end; else empty.
    """

    offsets: np.ndarray
    number: int
    rows: list[int]
    total: int
    longest: list[int]
    cuts: list[list[int]]

    def sizes(self) -> list[Size]:
        """Return the size that each slot needs."""
        number, sequences = self.number, self.offsets.shape[1] - 1
        ends: Any = self.cuts or zip(self.offsets[:, 0].tolist(), self.rows)
        return [
            Size(
                rows,
                (number,),
                (most,),
                number > 1 and most > 0 and sequences * most == end[-1] - end[0],
            )
            for rows, most, end in zip(self.rows, self.longest, ends)
        ]


class Batch(NamedTuple):
    """Feeds of some slots.

    Attributes:
        tensors: the tensor of each slot, in the order of `names`.
        values: the arrays of the tensors.
    """

    names: tuple[str, ...]
    tensors: Sequence[LoDTensor]
    values: list[np.ndarray]
    measured: Measured


class Slots:
    """Feeds with the same number of sequences of one level, of one element type and row shape.

    Args:
        replicas: number of replicas that divide batches, with the same number of sequences each; None for one device.
    """

    def __init__(
        self,
        names: Sequence[str],
        signature: FeedSignature,
        replicas: int | None = None,
    ):
        self.names, self._replicas = tuple(names), replicas
        self._dtype, self._row = signature.dtype, list(signature.shape)
        self._latest: tuple[list[bytes], Measured] | None = None  # the offsets of the latest batch

    def read(self, feed: Mapping[str, Any]) -> Batch | None:
        """Return the slots' batch in a feed, or None if a slot's form differs or a lod does not describe the rows."""
        dtype, row, values, lods, rows = self._dtype, self._row, [], [], []
        try:
            tensors = [feed[name] for name in self.names]
            for tensor in tensors:
                value = tensor.value
                if type(value) is not np.ndarray or type(tensor) is not LoDTensor:
                    return None
                count, *own = value.shape
                if own != row or value.dtype != dtype:
                    return None
                values.append(value)
                lods.append(tensor._lod)
                rows.append(count)
            measured = self._measure(lods, rows)
        except (KeyError, AttributeError, ValueError):
            return None  # a slot is missing, is no tensor, or has no rows or sequences
        return None if measured is None else Batch(self.names, tensors, values, measured)

    def _measure(self, lods: list[Any], rows: list[int]) -> Measured | None:
        """Measure sequences.

        Returns None if slots have other rows, or replicas different numbers of sequences. Raises ValueError if
        slots have different numbers of sequences or of levels.
        """
        if list(map(_ROWS, lods)) != rows:
            return None
        packed, longest = list(map(_PACKED, lods)), list(map(_LONGEST, lods))
        latest = self._latest  # a second thread may change it
        if latest is not None and latest[0] == packed:
            return latest[1]
        (size,) = set(map(len, packed))
        if sum(rows) >= _MOST_ROWS or not size:
            return None
        size //= 4
        together = np.ndarray((len(rows), size), np.int32, b"".join(packed))
        number, cuts = size - 1, []
        if self._replicas is not None:
            number, rest = divmod(number, self._replicas)
            if not number or rest:
                return None
            cuts = together[:, ::number].tolist()
            rows = [max(map(sub, c[1:], c)) for c in cuts]
        found = Measured(together, number, rows, sum(rows), longest, cuts)
        self._latest = packed, found
        return found


def of(feed: Mapping[str, Any], replicas: int | None = None) -> list[Slots]:
    """Return the slots among feeds, checked or not: all feeds of sequences of one level.

    Args:
        replicas: as of `Slots`.
    """
    kinds: dict[tuple[FeedSignature, int], list[str]] = {}
    for name, value in feed.items():
        signature = signature_of(value)
        if signature is not None and signature.levels == 1:
            kinds.setdefault((signature, len(value._lod[0])), []).append(name)
    return [Slots(sorted(names), signature, replicas) for (signature, _), names in kinds.items()]


class Layout:
    """Places of the rows of slots in one array, slot after slot.

    Attributes:
        sizes: the padded size of each of `names`.
        replicas: number of replicas, with consecutive rows in each slot; None for one device.
        room: rows of the array.
        varied: True for each slot with sequences of different lengths.
        varies: True if all slots have sequences of different lengths.
        number: the padded number of sequences, if it may be padded; else 0.
    """

    def __init__(self, names: tuple[str, ...], sizes: tuple[Size, ...], replicas: int | None = None):
        self.names, self.sizes, self.replicas = names, sizes, replicas
        self.varied = [not s.uniform for s in sizes]
        self.varies = all(self.varied)
        self.rows, self._longest = [s.rows for s in sizes], [s.longest[0] for s in sizes]
        self.room = sum(self.rows) * (replicas or 1)
        self.number = sizes[0].numbers[0] if sizes[0].counted else 0
        self._key = names, sizes, replicas
        self._hash = hash(self._key)  # every call of a compiled step asks for it

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout{self._key}"

    def __reduce__(self) -> Any:
        return Layout, self._key  # hashes of names differ by process

    def holds(self, measured: Measured) -> bool:
        """Return True if the sequences of a batch fit a layout that `varies`."""
        if self.number and measured.number > self.number:
            return False
        return False not in map(le, measured.rows, self.rows) and False not in map(le, measured.longest, self._longest)


def sizes_of(layout: Layout | Size | None) -> Sequence[Size]:
    """Return the sizes of slots, or of one feed; nothing for an argument without sequences."""
    if layout is None:
        return ()
    return layout.sizes if isinstance(layout, Layout) else (layout,)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values", "offsets", "count"], meta_fields=["layout"])
@dataclass(eq=False, slots=True)
class Joined:
    """Values of slots in one array.

    Attributes:
        values: [rows of all slots, ...].
        offsets: int32 [slots with sequences of different lengths, sequences + 1]; None without such slots.
        count: int32 scalar, the number of sequences of each slot, where the layout has room for more; else None.
    """

    values: Any
    offsets: Any
    layout: Layout
    count: Any = None

    def parts(self) -> dict[str, Ragged]:
        """Return the value of each slot."""
        found, at, varied, replicas = {}, 0, 0, self.layout.replicas
        offsets = self.offsets if replicas is None else self._by_replica(replicas)
        for name, size in zip(self.layout.names, self.layout.sizes):
            end = at + (replicas or 1) * size.rows
            values = self.values[at:end]
            if replicas is not None:
                values = values.reshape(replicas, size.rows, *values.shape[1:])
            if size.uniform:
                level = Level(None, size.longest[0], size.numbers[0])
            else:
                level = Level(offsets[varied], size.longest[0], count=self.count)
                varied += 1
            found[name] = Ragged(values, (level,), exact=size.uniform)
            at = end
        return found

    def _by_replica(self, replicas: int) -> Any:
        """Return the offsets of each replica, [slots, replicas, number + 1]."""
        if self.offsets is None:
            return None
        each = (self.offsets.shape[1] - 1) // replicas
        windows = np.arange(0, each * replicas, each)[:, None] + np.arange(each + 1)
        own = self.offsets[:, windows]
        return own - own[:, :, :1]


def is_counted_batch(values: Iterable[Any]) -> bool:
    """Return True if a value of a batch has a padded number of sequences."""
    return any(value.count is not None if isinstance(value, Joined) else is_counted(value) for value in values)


def joined(batch: Batch, layout: Layout) -> Joined:
    """Return a batch as one array, every slot of every replica padded with rows of the slot."""
    values, offsets, cuts = batch.values, batch.measured.offsets, batch.measured.cuts
    if layout.room != sum(map(len, values)):
        begins: Iterable[Sequence[int]] = [c[:-1] for c in cuts] if cuts else repeat((0,))
        values = _padded(values, begins, layout.rows)
    small = layout.room * values[0].strides[0] <= _SMALL
    if len(values) == 1:
        (together,) = values
    else:
        shape = layout.room, *values[0].shape[1:]
        out = None if small else aligned_memory.empty(shape, values[0].dtype)
        together = np.concatenate(values, out=out)
    if layout.number:
        count = np.asarray(batch.measured.number, np.int32)
        return Joined(together, extended_together(offsets, layout.number), layout, count)
    if layout.varies:
        return Joined(together, offsets, layout)
    return Joined(together, offsets[layout.varied] if any(layout.varied) else None, layout)


def extended_together(offsets: np.ndarray, number: int) -> np.ndarray:
    """Return the offsets of slots, [slots, number + 1], with empty sequences at the end of each slot."""
    missing = number + 1 - offsets.shape[1]
    return np.concatenate([offsets, np.repeat(offsets[:, -1:], missing, axis=1)], axis=1) if missing else offsets


def _padded(arrays: Sequence[np.ndarray], begins: Iterable[Sequence[int]], rows: Sequence[int]) -> list[np.ndarray]:
    """Return `rows` rows of each array from each place in `begins` on, cyclically."""
    found = []
    for array, places, most in zip(arrays, begins, rows):
        count = len(array)
        for begin in places:
            end = begin + most
            found.append(array[begin:end] if begin or end < count else array)
            if end > count:
                found.append(
                    array[: end - count] if end <= 2 * count else np.resize(array, (end - count, *array.shape[1:]))
                )
    return found


class SlotBuckets(SequenceBuckets):
    """Buckets with the slots in one array.

    Args:
        replicas: as of `Layout`.
        counts: as of `SequenceBuckets`.
    """

    def __init__(self, replicas: int | None = None, counts: bool = True) -> None:
        super().__init__(counts)
        self._replicas = replicas
        self._slots: list[Slots] = []  # of the latest feed
        # by the names of slots and their numbers of sequences: the known layouts, with their rows, in order of rows
        self._layouts: dict[Any, list[tuple[int, list[Layout]]]] = {}
        self._latest: tuple[list[Measured], list[Layout]] = [], []

    def history(self) -> list[list[Sizes]]:
        self._latest = [], []  # a process that is started again has no latest batch
        return super().history()

    def recall(self, history: list[list[Sizes]]) -> None:
        self._layouts.clear()
        super().recall(history)

    def refuse_counts(self, reason: str) -> None:
        self._layouts.clear()
        self._latest = [], []
        super().refuse_counts(reason)

    def join(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return checked feeds with slots as `Joined`, and all further LoDTensors as `Ragged`."""
        batches = read(self._slots, feeds) if self._slots else None
        if batches is None:
            self._slots = of(feeds)
            batches = read(self._slots, feeds) or []
        joined = {n for b in batches for n in b.names}
        return self.pad_with_slots({n: v for n, v in feeds.items() if n not in joined}, batches)

    def pad_with_slots(self, feeds: Mapping[str, Any], batches: Sequence[Batch]) -> dict[str, Any]:
        """Return the feeds besides the slots with every LoDTensor as `Ragged`, and batches as `Joined`.

        A batch has the name of its first slot.
        """
        layouts = None
        if not feeds or not any(isinstance(v, LoDTensor) for v in feeds.values()):
            layouts = self.known_layouts(batches)
        if layouts is None:
            feeds, sizes = self.pad_beside(feeds, needed(batches))
            layouts = self.layouts(batches, sizes)
        found = laid_out(batches, layouts)
        return {**feeds, **found} if feeds else found

    def known_layouts(self, batches: Sequence[Batch]) -> list[Layout] | None:
        """Return the layouts of batches without further sequences, if all sizes that `choose` compares are known."""
        measured, (latest, layouts) = [b.measured for b in batches], self._latest
        if measured == latest:  # the same ones
            return layouts
        known = self._layouts.get(tuple([(b.names, b.measured.number) for b in batches]), ())
        rows = sum([m.total for m in measured])
        for most, layouts in known:
            if most >= rows:
                for at, needs in zip(layouts, measured):
                    if not at.varies:
                        return None
                    if not at.holds(needs):
                        break
                else:  # dense feeds beside a padded number are padded, too
                    return layouts if self.suits(len(known), most, rows) and not layouts[0].number else None
        return None

    def layouts(self, batches: Sequence[Batch], sizes: Sizes) -> list[Layout]:
        """Return the layouts of batches with slots padded to `sizes`, which holds the sizes of all feeds."""

        def layouts(sizes: Sizes) -> list[Layout]:
            return [Layout(b.names, tuple([sizes[n] for n in b.names]), self._replicas) for b in batches]

        found = layouts(sizes)
        if any(at.number for at in found):
            self._layouts.clear()
            self._latest = [], []
        elif sum([len(b.names) for b in batches]) == sum([1 for s in sizes.values() if s.longest]):  # of no other feeds
            self._latest = [b.measured for b in batches], found
            key = tuple([(b.names, b.measured.number) for b in batches])
            if len(self._layouts) >= MOST_NUMBERS:
                self._layouts.clear()
            self._layouts[key] = [(most, layouts(known)) for known, most in self.alike(sizes)]
        return found


def laid_out(batches: Sequence[Batch], layouts: Sequence[Layout]) -> dict[str, Any]:
    """Return batches as `Joined`, each by the name of the batch's first slot."""
    return {b.names[0]: joined(b, at) for b, at in zip(batches, layouts)}


def needed(batches: Sequence[Batch]) -> Sizes:
    """Return the sizes that the slots of batches need."""
    return {n: size for b in batches for n, size in zip(b.names, b.measured.sizes())}


def read(every: Sequence[Slots], feed: Mapping[str, Any]) -> list[Batch] | None:
    """Return the batches of slots in a feed, or None if a slot's form differs."""
    found = []
    for each in every:
        batch = each.read(feed)
        if batch is None:
            return None
        found.append(batch)
    return found


def opened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, with a value for each slot in place of `Joined`."""
    found = dict(values)
    for value in values.values():
        if isinstance(value, Joined):
            found.update(value.parts())
    return found


def named_by_reads(values: Mapping[str, Any], unread: Sequence[str], reads: Sequence[str]) -> Mapping[str, Any]:
    """Return values with every `Joined` by the name of a slot that is read."""
    found = [v for n in unread if isinstance(v := values.get(n), Joined)]
    if not found:
        return values
    read = set(reads)
    given = {n: v for n, v in values.items() if n in read}
    for value in found:
        given.update((n, value) for n in [n for n in value.layout.names if n in read][:1])
    return given


def opened_arguments(names: Sequence[str], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of these names, with a value for each slot in place of `Joined`."""
    if not any(isinstance(v, Joined) for v in values):
        return values
    by_name = opened({n: v for n, v in zip(names, values) if v is not None})
    return tuple([by_name.get(n) for n in names])
