"""Dividing a feed among replicas."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jfluid import errors, processes
from jfluid.compile.runtime import slots
from jfluid.compile.runtime.padding import Measures, Size, extended, fill, fill_rows
from jfluid.compile.runtime.slots import Batch, Measured, SlotBuckets, laid_out, needed
from jfluid.host import aligned_memory
from jfluid.lod_tensor import LoDTensor
from jfluid.ops.ragged import Level, Ragged


def rows(value: Any) -> int:
    """Return the largest number of replicas that can divide a feed: its rows or sequences."""
    if isinstance(value, LoDTensor) and value._lod:
        return len(value._lod[0]) - 1
    shape = value.shape() if isinstance(value, LoDTensor) else np.shape(value)
    return int(shape[0]) if shape else 0


def shares(feeds: Mapping[str, Any], replicas: int, whole: set[str]) -> list[dict[str, Any]]:
    """Return the feed of each replica: consecutive rows, or sequences of ragged rows.

    The first replicas get the remainder. Names in `whole` (persistable variables) are not divided. Raises FeedError for
    fewer rows than replicas.
    """
    parts: list[dict[str, Any]] = [{} for _ in range(replicas)]
    for name, value in feeds.items():
        if name in whole:
            pieces = [value] * replicas
        else:
            ragged = isinstance(value, LoDTensor)
            count = rows(value)
            if count < replicas:
                raise errors.FeedError(
                    f"feed {name}: {count} {'sequences' if ragged else 'rows'} for {replicas} replicas: "
                    "each needs at least one. Feed more, or use fewer replicas (CPU_NUM, places)"
                )
            ends = np.cumsum([0] + [count // replicas + (i < count % replicas) for i in range(replicas)])
            pieces = [_sequences(value, a, b) if ragged else value[a:b] for a, b in zip(ends, ends[1:])]
        for part, piece in zip(parts, pieces):
            part[name] = piece
    return parts


def _sequences(tensor: LoDTensor, begin: int, end: int) -> LoDTensor:
    lod = []
    for level in tensor._lod:
        lod.append(level[begin : end + 1] - level[begin])
        begin, end = int(level[begin]), int(level[end])
    return LoDTensor(tensor.value[begin:end], lod)


def the_same(name: str, parts: np.ndarray, joins: bool) -> np.ndarray:
    """Return the value of `name` that shapes depend on, from the values of all replicas.

    Raises UnsupportedError if the values differ.

    Args:
        joins: True if replicas of this kind run as one program with FLAGS_cpu_replicas_joined, which takes the values.
    """
    if any(not np.array_equal(part, parts[0]) for part in parts):
        remedy = "set FLAGS_cpu_replicas_joined to 1, or " if joins else ""
        raise errors.UnsupportedError(
            f"{name}: shapes depend on its value, which differs by replica "
            f"({parts.tolist()}), but replicas on separate devices have equal shapes: {remedy}feed "
            "each replica the same (a list of feeds, one for each), or run on one device"
        )
    return np.asarray(parts[0])


def uneven(error: Exception, replicas: int) -> errors.UnsupportedError:
    """Return the error of an operator that does not take the padding of uneven replicas."""
    return errors.UnsupportedError(
        f"{str(error).splitlines()[0]}, and replicas have different numbers of rows: feed batches with a number of "
        f"rows that {replicas} divides, or run the program on one device"
    )


class Uneven(list[Any]):
    """Arrays of the replicas of this process that no array holds together: their shapes differ."""


def opened(value: Any) -> Sequence[Any] | None:
    """Return the array of each replica from the stacked form of a dense feed; None for any other feed."""
    if isinstance(value, np.ndarray | jax.Array | Uneven):
        return list(value)
    if isinstance(value, Ragged) and not value.levels and value.total is not None:
        return [own[:count] for own, count in zip(value.values, value.total)]
    return None


def together(parts: Sequence[np.ndarray]) -> Any:
    """Return arrays of the replicas as one, if their shapes are alike."""
    alike = len({part.shape for part in parts}) == 1
    return np.stack(parts) if alike else Uneven(parts)


def of_other_shapes(name: str, values: Sequence[Any]) -> errors.FeedError:
    """Return the error for replicas with arrays that differ in more than their rows."""
    shapes = " and ".join(dict.fromkeys(str(tuple(np.shape(v))) for v in values))
    return errors.FeedError(
        f"feed {name}: replicas have arrays of different shapes, {shapes}, and this program does not run padded "
        "ones: pad the batches of a step to one shape"
    )


def check_even(values: Mapping[str, Any]) -> None:
    """Raise FeedError for replicas with arrays, by the name of a feed, that differ in more than their rows."""
    for name, value in values.items():
        if isinstance(value, Uneven):
            raise of_other_shapes(name, value)


class Stacker:
    """Stacker of replicas' feeds along a new first dimension; ragged feeds and uneven rows are padded.

    Attributes:
        buckets: sizes to which feeds with a LoD are padded.
    """

    def __init__(self, agree: bool = False, joins: int | None = None, uneven: bool = False) -> None:
        self.buckets = SlotBuckets(joins, counts=False)
        self._uneven = uneven  # whether arrays of different shapes are left `Uneven`, or refused
        self._agree = agree  # whether all processes must pad alike
        self._joins = joins  # number of replicas with joined slots; None without joined slots

    def stack(self, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the feeds by name, arrays or `Ragged` with leaves [replicas, ...].

        Slots are `Joined`, each by the name of its first slot.
        """
        batches = _slots_of(parts) if self._joins is not None else []
        joined = {n for b in batches for n in b.names}
        names = sorted(parts[0].keys() - joined)
        measures = Measures()
        measured = {n: [measures.of(p[n]) for p in parts] for n in names if isinstance(parts[0][n], LoDTensor)}
        lods = {n: [lod for lod, _ in found] for n, found in measured.items()}
        needs = {n: _largest([size for _, size in found]) for n, found in measured.items()}
        counts = {n: [v.shape[0] if (v := p[n]).ndim else 0 for p in parts] for n in names if n not in lods}
        bounds = {n: (min(c), max(c)) for n, c in counts.items()}
        uneven = {n: len({len(lod[0]) for lod in found}) > 1 for n, found in lods.items()}
        if self._agree:
            needs, bounds, uneven = _agreed(needs, bounds, uneven)
        needs |= needed(batches)
        sizes = self.buckets.choose(needs) if needs else {}
        found: dict[str, Any] = laid_out(batches, self.buckets.layouts(batches, sizes))
        for name in names:
            values = [p[name] for p in parts]
            if name in lods:
                found[name] = _stacked(
                    [_filled(v.value, lod, sizes[name], uneven[name]) for v, lod in zip(values, lods[name])]
                )
            elif len({np.shape(v)[1:] for v in values}) > 1:
                if not self._uneven:
                    raise of_other_shapes(name, values)
                found[name] = Uneven(values)
            elif bounds[name][0] == bounds[name][1]:
                found[name] = aligned_memory.stacked(values)
            else:
                rows = bounds[name][1]
                found[name] = _stacked(
                    [Ragged(fill(v, [], Size(rows, (), ()), False).values, (), np.int32(len(v))) for v in values]
                )
        return found

    def divided(
        self, tensors: Mapping[str, LoDTensor], replicas: int, batches: Sequence[Batch] = ()
    ) -> dict[str, Any] | None:
        """Return the result of `stack` for the shares of one process's replicas.

        Returns None if replicas have different numbers of sequences. Click models feed the same sequences to dozens of
        slots, which are divided once.

        Args:
            batches: batches of slots, divided among the same number of replicas, besides `tensors`.
        """
        layouts = None if tensors else self.buckets.known_layouts(batches)
        if layouts is not None:
            return laid_out(batches, layouts)
        known: dict[tuple[bytes, ...], _Divided] = {}
        found: dict[str, _Divided] = {}
        for name in sorted(tensors):  # the order of `stack`, by which sizes are remembered
            lod = tensors[name]._lod
            if len(lod[0]) == 1 or (len(lod[0]) - 1) % replicas:
                return None
            key = tuple([level.tobytes() for level in lod])
            if key not in known:
                known[key] = _Divided.of(lod, replicas)
            found[name] = known[key]
        sizes = self.buckets.choose({n: d.size for n, d in found.items()} | needed(batches))
        return {
            **{n: d.stacked(tensors[n].value, sizes[n]) for n, d in found.items()},
            **laid_out(batches, self.buckets.layouts(batches, sizes)),
        }


def _slots_of(parts: Sequence[Mapping[str, Any]]) -> list[Batch]:
    """Return the batches of slots in the feeds of replicas with the same number of sequences."""
    every = slots.of(parts[0])
    own = [slots.read(every, part) for part in parts]
    found = []
    for batches in zip(*[b or [] for b in own], strict=False):
        measured = [b.measured for b in batches]
        if len({m.number for m in measured}) > 1:
            continue
        rows = list(zip(*[m.rows for m in measured]))
        most = list(map(max, rows))
        cuts = [[0, *itertools.accumulate(n)] for n in rows]
        begins = np.array(cuts, np.int32)[:, :-1, None]
        # [slots, replicas, number + 1]
        offsets = np.stack([m.offsets for m in measured], 1) + begins
        found.append(
            Batch(
                batches[0].names,
                batches[0].tensors,
                [np.concatenate(v) for v in zip(*[b.values for b in batches])],
                Measured(
                    np.concatenate([offsets[:, :, :-1].reshape(len(rows), -1), offsets[:, -1, -1:]], 1),
                    measured[0].number,
                    most,
                    sum(most),
                    list(map(max, zip(*[m.longest for m in measured]))),
                    cuts,
                ),
            )
        )
    return found


@dataclass(frozen=True)
class _Divided:
    """Sequences of a tensor, divided among replicas with the same number of sequences each.

    Attributes:
        lods: each replica's lod, int32.
        rows: the first row of each replica, and the end.
        size: the size that fits each replica.
        levels: by the padded size.
    """

    lods: list[list[np.ndarray]]
    rows: list[int]
    size: Size
    levels: dict[Size, tuple[Level, ...]]

    @classmethod
    def of(cls, lod: list[np.ndarray], replicas: int) -> "_Divided":
        each = (len(lod[0]) - 1) // replicas
        lods: list[list[np.ndarray]] = []
        rows = [0]
        for i in range(replicas):
            begin, end, own = i * each, (i + 1) * each, []
            for level in lod:
                own.append((level[begin : end + 1] - level[begin]).astype(np.int32))
                begin, end = int(level[begin]), int(level[end])
            lods.append(own)
            rows.append(end)
        return cls(lods, rows, _largest([Size.of(own) for own in lods]), {})

    def stacked(self, values: Any, size: Size) -> Ragged:
        """Return the rows of all replicas, each padded to `size`."""
        replicas = len(self.rows) - 1
        if size.uniform:
            level = Level(None, size.longest[0], size.numbers[0])
            return Ragged(values.reshape(replicas, -1, *values.shape[1:]), (level,), exact=True)
        values = np.asarray(values)
        found = aligned_memory.empty((replicas, size.rows, *values.shape[1:]), values.dtype)
        for own, begin, end in zip(found, self.rows, self.rows[1:]):
            fill_rows(own, values[begin:end])
        if size not in self.levels:
            self.levels[size] = tuple(
                [
                    Level(np.array([extended(own, number) for own in level]), longest)
                    for level, number, longest in zip(zip(*self.lods), size.numbers, size.longest)
                ]
            )
        return Ragged(found, self.levels[size])


def _agreed(
    needs: dict[str, Size], bounds: dict[str, tuple[int, int]], uneven: dict[str, bool]
) -> tuple[dict[str, Size], dict[str, tuple[int, int]], dict[str, bool]]:
    """Return the sizes that the feeds of all processes need; each process must have the same names."""
    own: list[int] = []
    for name, size in needs.items():
        own += [size.rows, *size.numbers, *size.longest, size.uniform, uneven[name]]
    for low, high in bounds.values():
        own += [low, high]
    everyone = processes.all_gather(np.array(own, np.int64))
    most, least = everyone.max(0).tolist(), everyone.min(0).tolist()
    sizes, at = {}, 0
    for name, size in needs.items():
        levels = len(size.numbers)
        end = at + 1 + 2 * levels
        uneven[name] = bool(most[end + 1]) or least[at + 1] != most[at + 1]
        sizes[name] = Size(
            most[at],
            tuple(most[at + 1 : at + 1 + levels]),
            tuple(most[at + 1 + levels : end]),
            bool(least[end]) and least[at:end] == most[at:end],
        )
        at = end + 2
    return (
        sizes,
        {n: (least[at + 2 * i], most[at + 2 * i + 1]) for i, n in enumerate(bounds)},
        uneven,
    )


def _largest(sizes: list[Size]) -> Size:
    """Return a size that fits the sequences of all replicas, with the largest number of sequences."""
    alike = len(set(sizes)) == 1
    return (
        sizes[0]
        if alike
        else Size(
            max(s.rows for s in sizes),
            tuple(map(max, zip(*(s.numbers for s in sizes)))),
            tuple(map(max, zip(*(s.longest for s in sizes)))),
        )
    )


def _filled(values: Any, lod: list[np.ndarray], size: Size, uneven: bool) -> Ragged:
    """Return the rows padded to `size`, with the number of sequences if replicas have different numbers."""
    made = fill(values, lod, size, False)
    if not uneven:
        return made
    first = made.levels[0]
    return Ragged(
        made.values,
        (Level(first.given, first.longest, count=np.int32(len(lod[0]) - 1)), *made.levels[1:]),
    )


def _stacked(parts: list[Ragged]) -> Ragged:
    stacked: Ragged = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
    return stacked
