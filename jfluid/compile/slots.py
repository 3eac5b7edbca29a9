"""Slots: feeds in sequences of one element type and row shape, of which click models have dozens.

They are checked in one pass and go to XLA as one array, which the compiled step divides: an argument costs
a step microseconds, and so does each call of NumPy.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from typing import Any

import jax
import numpy as np

from jfluid.compile.padding import Buckets, Size, fill_rows
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Level, Ragged

_VALUE, _LOD, _DTYPE, _SHAPE = map(attrgetter, ("value", "_lod", "dtype", "shape"))
_MOST_ROWS = 2**31  # offsets are int32
_LINE = 64  # bytes; XLA on CPUs reads arrays in place that begin at a multiple


@dataclass(frozen=True, eq=False)
class Measured:
    """The sequences of all slots of a batch.

    Attributes:
        offsets: int32 [slots, number + 1].
        rows: of each slot.
        alike: whether all slots have the same sequences.
    """

    offsets: np.ndarray
    rows: list[int]
    alike: bool

    @functools.cached_property
    def sizes(self) -> list[Size]:
        """What each slot needs."""
        if self.alike:
            return Size.of_all(self.offsets[:1]) * len(self.offsets)
        return Size.of_all(self.offsets)


@dataclass(frozen=True)
class Batch:
    """What is fed to some slots.

    Attributes:
        tensors: of each slot, in the order of `names`.
        values: their arrays.
    """

    names: tuple[str, ...]
    tensors: Sequence[LoDTensor]
    values: list[np.ndarray]
    measured: Measured


class Slots:
    """Feeds with equally many sequences of one level, of one element type and row shape."""

    def __init__(self, names: Sequence[str], dtype: np.dtype, row: tuple[int, ...]):
        self.names = tuple(names)
        self._take = itemgetter(*names)
        self._dtypes, self._row = [dtype] * len(names), row
        # of the latest batch; the offsets of slots that have the same sequences, else nothing
        self._latest: tuple[bytearray, Measured] | None = None

    def read(self, feed: Mapping[str, Any]) -> Batch | None:
        """Return what a feed has for the slots; None where something is not as they are, or a lod does
        not describe its rows.
        """
        try:
            tensors = self._take(feed)
            offsets = [level for (level,) in map(_LOD, tensors)]
        except (KeyError, AttributeError, ValueError):
            return None  # a slot is missing, is no tensor, or has other levels
        values = list(map(_VALUE, tensors))
        if set(map(type, tensors)) != {LoDTensor} or set(map(type, values)) != {np.ndarray}:
            return None
        shapes = list(map(_SHAPE, values))
        if list(map(_DTYPE, values)) != self._dtypes or any(s[1:] != self._row for s in shapes):
            return None
        if sum([s[0] for s in shapes]) >= _MOST_ROWS:
            return None
        measured = self._measure(offsets)
        if measured is None or measured.rows != [s[0] for s in shapes]:
            return None
        return Batch(self.names, tensors, values, measured)

    def _measure(self, offsets: list[np.ndarray]) -> Measured | None:
        """Measure sequences, in which batches and slots are often alike. None where slots have
        different numbers of them.
        """
        latest = self._latest  # another thread may change it
        if latest is not None and _all_are(latest[0], offsets):
            return latest[1]
        first = bytearray(offsets[0].tobytes())
        if alike := _all_are(first, offsets):
            together = np.tile(offsets[0].astype(np.int32), (len(offsets), 1))
        elif len(set(map(len, offsets))) == 1:
            together = np.concatenate(offsets, dtype=np.int32).reshape(len(offsets), -1)
        else:
            return None
        found = Measured(together, together[:, -1].tolist(), alike)
        self._latest = (first, found) if alike else None
        return found


def _all_are(known: bytearray, offsets: Sequence[np.ndarray]) -> bool:
    """Whether all arrays have these bytes. A bytearray compares with them where they are."""
    return set(map(known.__eq__, offsets)) == {True}


def of(feed: Mapping[str, Any]) -> list[Slots]:
    """Return the slots among feeds, checked or not; those that are alone of their kind are none."""
    kinds: dict[Any, list[str]] = {}
    for name, value in feed.items():
        if type(value) is LoDTensor and len(value._lod) == 1:
            array = value.value
            if type(array) is np.ndarray and array.ndim:
                kind = array.dtype, array.shape[1:], len(value._lod[0])
                kinds.setdefault(kind, []).append(name)
    return [
        Slots(sorted(names), dtype, row)
        for (dtype, row, _), names in kinds.items()
        if len(names) > 1
    ]


class Layout:
    """Where the rows of slots are in one array, one after another.

    Attributes:
        sizes: what each of `names` is padded to.
    """

    def __init__(self, names: tuple[str, ...], sizes: tuple[Size, ...]):
        self.names, self.sizes = names, sizes
        self._hash = hash((names, sizes))  # every call of a compiled step asks for it

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Layout) and (self.names, self.sizes) == (other.names, other.sizes)
        )

    def __hash__(self) -> int:
        return self._hash


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "offsets"], meta_fields=["layout"]
)
@dataclass(frozen=True)
class Joined:
    """The values of slots in one array.

    Attributes:
        values: [rows of all, ...].
        offsets: int32 [slots whose sequences differ in length, number + 1]; None if there is none.
    """

    values: Any
    offsets: Any
    layout: Layout

    def parts(self) -> dict[str, Ragged]:
        """Return the value of each slot."""
        found, at, varied = {}, 0, 0
        for name, size in zip(self.layout.names, self.layout.sizes):
            values = self.values[at : at + size.rows]
            if size.uniform:
                level = Level(None, size.longest[0], size.numbers[0])
            else:
                level = Level(self.offsets[varied], size.longest[0])
                varied += 1
            found[name] = Ragged(values, (level,), exact=size.uniform)
            at += size.rows
        return found


def joined(batch: Batch, layout: Layout) -> Joined:
    """Return a batch as one array, every slot padded with copies of its first row."""
    sizes, first = layout.sizes, batch.values[0]
    values = _empty((sum([s.rows for s in sizes]), *first.shape[1:]), first.dtype)
    if sizes == tuple(batch.measured.sizes):
        np.concatenate(batch.values, out=values)
    else:
        at = 0
        for rows, size in zip(batch.values, sizes):
            fill_rows(values[at : at + size.rows], rows)
            at += size.rows
    varied = [not s.uniform for s in sizes]
    offsets: Any = batch.measured.offsets
    if not all(varied):
        offsets = offsets[varied] if any(varied) else None
    return Joined(values, offsets, layout)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array that XLA on CPUs can read in place."""
    size = dtype.itemsize * math.prod(shape)
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class SlotBuckets(Buckets):
    """Buckets that make one array of slots."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: list[Slots] = []  # of the latest feed
        self._latest: tuple[list[Measured], list[Layout]] = [], []

    def join(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return checked feeds with slots as `Joined`, and every other LoDTensor as `Ragged`."""
        batches = read(self._slots, feeds) if self._slots else None
        if batches is None:
            self._slots = of(feeds)
            batches = read(self._slots, feeds) or []
        joined = {n for b in batches for n in b.names}
        return self.pad_with_slots({n: v for n, v in feeds.items() if n not in joined}, batches)

    def pad_with_slots(self, feeds: Mapping[str, Any], batches: Sequence[Batch]) -> dict[str, Any]:
        """Return other feeds with every LoDTensor as `Ragged`, and batches as `Joined`, each by the
        name of its first slot.
        """
        measured, (latest, layouts) = [b.measured for b in batches], self._latest
        again = len(measured) == len(latest) and all(map(is_, measured, latest))
        if not again or any(isinstance(v, LoDTensor) for v in feeds.values()):
            beside = {n: s for b in batches for n, s in zip(b.names, b.measured.sizes)}
            feeds, sizes = self.pad_beside(feeds, beside)
            layouts = [Layout(b.names, tuple([sizes[n] for n in b.names])) for b in batches]
            alone = len(sizes) == len(beside)  # otherwise other feeds change the sizes
            self._latest = (measured, layouts) if alone else ([], [])
        return dict(feeds) | {b.names[0]: joined(b, at) for b, at in zip(batches, layouts)}


def read(every: Sequence[Slots], feed: Mapping[str, Any]) -> list[Batch] | None:
    """Return what a feed has for slots; None where some are not as they are."""
    found = []
    for each in every:
        batch = each.read(feed)
        if batch is None:
            return None
        found.append(batch)
    return found


def opened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name with each slot for itself."""
    found = dict(values)
    for value in values.values():
        if isinstance(value, Joined):
            found.update(value.parts())
    return found


def opened_arguments(names: Sequence[str], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of these names with each slot for itself."""
    if not any(isinstance(v, Joined) for v in values):
        return values
    by_name = opened({n: v for n, v in zip(names, values) if v is not None})
    return tuple([by_name.get(n) for n in names])
