"""Wider layouts of slots: a batch of sequences runs in any layout that has room for its rows.

A padding row is a copy of a real row, so a batch can move to a wider layout without its tensors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid.compile.runtime.padding import fill_rows
from jfluid.compile.runtime.slots import Joined, Layout
from jfluid.host import aligned_memory

Layouts = tuple[Layout | None, ...]  # of the arguments; None for an argument that is no slot


def layouts_of(arguments: Sequence[Any]) -> Layouts | None:
    """Return the layouts of the second of a function's arguments, a tuple; None without slots of one device."""
    if len(arguments) < 2 or type(arguments[1]) is not tuple:
        return None
    found = tuple([v.layout if isinstance(v, Joined) else None for v in arguments[1]])
    return found if any(found) and not any(own.replicas for own in found if own) else None


def room(layouts: Layouts) -> int:
    """Return the rows of all slots."""
    return sum(own.room for own in layouts if own)


def fit(narrow: Layouts, wide: Layouts) -> bool:
    """Return True if batches of layouts can move to other layouts."""
    return _are_alike(narrow, wide) and all(
        all(s.fits(t) or _fits_plain(s, t) for s, t in zip(a.sizes, b.sizes))
        for a, b in zip(narrow, wide)
        if a is not None and b is not None
    )


def roomy(several: Sequence[Layouts]) -> Layouts | None:
    """Return layouts that batches of several layouts fit, with room for more; None if sequences differ in number."""
    first, *others = several
    if not all(_are_alike(first, own) for own in others):
        return None
    return tuple([_roomy([own[i] for own in several]) for i in range(len(first))])


def widened(arguments: Sequence[Any], layouts: Layouts) -> tuple[Any, ...]:
    """Return the arguments with slots moved to layouts that they fit."""
    first, kept, *others = arguments
    moved = [v if at is None or v.layout == at else _moved(v, at) for v, at in zip(kept, layouts, strict=True)]
    return (first, tuple(moved), *others)


def _are_alike(some: Layouts, other: Layouts) -> bool:
    return len(some) == len(other) and all(
        a is b if a is None or b is None else a.names == b.names and _numbers(a) == _numbers(b)
        for a, b in zip(some, other)
    )


def _numbers(layout: Layout) -> list[tuple[int, ...]]:
    return [size.numbers for size in layout.sizes]


def _fits_plain(narrow: Any, wide: Any) -> bool:
    """Return True if sequences of one length fit a size for sequences of different lengths."""
    return not wide.uniform and narrow.rows <= wide.rows and narrow.longest <= wide.longest


def _roomy(several: Sequence[Layout | None]) -> Layout | None:
    first = several[0]
    if first is None:
        return None
    sizes = list(first.sizes)
    for own in several[1:]:
        assert own is not None  # they are alike
        sizes = [a.joined(b) for a, b in zip(sizes, own.sizes)]
    return Layout(first.names, tuple([size.roomier() for size in sizes]))


def _moved(value: Joined, layout: Layout) -> Joined:
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
    return Joined(values, np.stack(offsets) if offsets else None, layout)
