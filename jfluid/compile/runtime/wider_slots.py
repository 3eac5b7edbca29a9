"""Wider layouts of sequences: a batch of sequences runs in any layout that has room for its rows.

A padding row is a copy of a real row, so a batch can move to a wider layout without its tensors. Slots have a `Layout`,
sequences of several levels a `Size`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jfluid.compile.runtime.padding import Size, fill, fill_rows
from jfluid.compile.runtime.slots import Joined, Layout, extended_together, sizes_of
from jfluid.host import aligned_memory
from jfluid.ops.ragged import Level, Ragged

Layouts = tuple[Layout | Size | None, ...]  # of the arguments; None for an argument without sequences


def layouts_of(arguments: Sequence[Any]) -> Layouts | None:
    """Return the layouts of the second of a function's arguments, a tuple; None without sequences of one device."""
    if len(arguments) < 2 or type(arguments[1]) is not tuple:
        return None
    found = tuple([_layout_of(v) for v in arguments[1]])
    return found if any(found) and not any(own.replicas for own in found if isinstance(own, Layout)) else None


def room(layouts: Layouts) -> int:
    """Return the rows of all sequences."""
    return sum(own.room if isinstance(own, Layout) else own.rows for own in layouts if own)


def fit(narrow: Layouts, wide: Layouts) -> bool:
    """Return True if batches of layouts can move to other layouts."""
    return are_alike(narrow, wide) and all(
        s.fits(t) or _fits_plain(s, t) for a, b in zip(narrow, wide) for s, t in zip(sizes_of(a), sizes_of(b))
    )


def roomy(several: Sequence[Layouts]) -> Layouts | None:
    """Return layouts that batches of several layouts fit, with room for more; None if sequences differ in number.

    Rows and sequences of inner levels get room. Compiled loops run to the longest sequence, so it gets little room for
    a first batch, and more once it has grown.
    """
    first, *others = several
    if not all(are_alike(first, own) for own in others):
        return None
    return tuple([_roomy([own[i] for own in several]) for i in range(len(first))])


def widened(arguments: Sequence[Any], layouts: Layouts) -> tuple[Any, ...]:
    """Return the arguments with sequences moved to layouts that they fit."""
    first, kept, *others = arguments
    moved = [v if at is None or _layout_of(v) == at else _moved(v, at) for v, at in zip(kept, layouts, strict=True)]
    return (first, tuple(moved), *others)


def offsets_of(arguments: Sequence[Any]) -> tuple[bytes, ...]:
    """Return the offsets of all sequences of arguments, which tell whether a batch comes again."""
    levels = [own for value in arguments[1] if isinstance(value, Ragged) for own in value.levels]
    found = [own.given for own in levels] + [value.offsets for value in arguments[1] if isinstance(value, Joined)]
    return tuple([np.asarray(own).tobytes() for own in found if own is not None])


def _layout_of(value: Any) -> Layout | Size | None:
    if isinstance(value, Joined):
        return value.layout
    if not isinstance(value, Ragged) or value.exact or not all(map(_is_fed, value.levels)):
        return None
    levels = value.levels
    numbers, counted = tuple([own.number for own in levels]) or (value.capacity,), value.total is not None
    if levels:
        counted = levels[0].count is not None
    return Size(value.capacity, numbers, tuple([own.longest for own in levels]), counted=counted)


def _is_fed(level: Level) -> bool:
    """Return True if a level has the form that `padding.fill` makes, for one device."""
    return isinstance(level.given, np.ndarray | jax.Array) and level.given.ndim == 1


def _names(layout: Layout | Size | None) -> Any:
    return layout.names if isinstance(layout, Layout) else layout is None


def are_alike(some: Layouts, other: Layouts) -> bool:
    """Return True if layouts differ in no more than the sizes that padding changes."""
    return len(some) == len(other) and all(
        _names(a) == _names(b) and list(map(_fixed, sizes_of(a))) == list(map(_fixed, sizes_of(b)))
        for a, b in zip(some, other)
    )


def _fixed(size: Size) -> tuple[int, int, int | None]:
    """Return the parts of a size that padding keeps: the numbers of levels, and of sequences unless it is counted."""
    return len(size.numbers), len(size.longest), None if size.counted else size.numbers[0]


def _fits_plain(narrow: Size, wide: Size) -> bool:
    """Return True if sequences of one length fit a size for sequences of different lengths."""
    return narrow.uniform and not wide.uniform and narrow.rows <= wide.rows and narrow.longest <= wide.longest


def _roomy(several: Sequence[Layout | Size | None]) -> Layout | Size | None:
    first = several[0]
    if first is None:
        return None
    sizes = list(sizes_of(first))
    for own in several[1:]:
        sizes = [a.joined(b) for a, b in zip(sizes, sizes_of(own))]
    if len(several) == 1:
        sizes = [size.for_later() for size in sizes]
    else:
        before = [own.longest for own in sizes_of(first)]
        sizes = [s.roomier(longest if s.longest == longest else None) for s, longest in zip(sizes, before)]
    return Layout(first.names, tuple(sizes)) if isinstance(first, Layout) else sizes[0]


def _moved(value: Joined | Ragged, layout: Layout | Size) -> Joined | Ragged:
    if isinstance(value, Joined) and isinstance(layout, Layout):
        return _moved_slots(value, layout)
    assert isinstance(value, Ragged) and isinstance(layout, Size)  # the layouts are alike
    count = value.levels[0].count if value.levels else value.total
    return fill(value.values, [np.asarray(level.given) for level in value.levels], layout, False, count)


def _moved_slots(value: Joined, layout: Layout) -> Joined:
    given, own = np.asarray(value.values), value.layout
    values = aligned_memory.empty((layout.room, *given.shape[1:]), given.dtype)
    read, written, varied, offsets = 0, 0, 0, []
    for before, size in zip(own.sizes, layout.sizes):
        fill_rows(values[written : written + size.rows], given[read : read + before.rows])
        read, written = read + before.rows, written + size.rows
        if before.uniform and not size.uniform:
            offsets.append(np.arange(before.numbers[0] + 1, dtype=np.int32) * before.longest[0])
        elif not before.uniform:
            offsets.append(np.asarray(value.offsets)[varied])
            varied += 1
    if layout.number:
        return Joined(values, extended_together(np.stack(offsets), layout.number), layout, value.count)
    return Joined(values, np.stack(offsets) if offsets else None, layout)
