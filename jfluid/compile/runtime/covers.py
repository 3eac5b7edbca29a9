"""Covering sizes: a batch of sequences whose sizes have no executable runs at larger sizes that have one.

Padding is harmless, and a compilation takes as long as hundreds of steps. So the executables of a function are few at
first: one for sizes that hold the batches so far. Narrower sizes are compiled once the measured excess of padded steps
has paid for it. The sizes of executables on disk are noted in a file, for the first steps of the next process.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from jfluid.compile.numpy_steps.beside import Beside
from jfluid.compile.runtime.wider_slots import Layouts, are_alike, fit, room, roomy

# Seconds that a compilation is taken to last, while executables come from files.
_UNKNOWN = 5.0
_MOST = 12  # compilations of a function, over which no narrower sizes are compiled


class Sized(Protocol):
    """Executable with the sizes of its arguments.

    Attributes:
        layouts: layouts of slots among the arguments.
        seconds: shortest measured run; infinite before any measurement.
    """

    layouts: Layouts | None
    seconds: float


class Notes(Protocol):
    """File of the sizes of a function's executables."""

    def noted_sizes(self) -> list[Any]:
        """Return the sizes of executables on disk."""

    def note_sizes(self, sizes: list[Any]) -> None:
        """Write the sizes of executables on disk."""


class Covers:
    """Choice of larger sizes.

    Args:
        notes: file of sizes; None for a function without files.
    """

    def __init__(self, notes: Notes | None):
        self._notes = notes
        self._noted: list[Layouts] | None = None
        self._first: tuple[bytes, ...] | None = None  # offsets of the batch before, if it is the first one
        self._excess = defaultdict[Layouts, float](float)  # seconds, by the layouts of batches
        self.compiling = 0.0  # most seconds of a compilation
        self.compiled = 0

    def noted(self) -> list[Layouts]:
        """Return the sizes of executables on disk, the smallest first."""
        if self._noted is None:
            self._noted = [] if self._notes is None else sorted(self._notes.noted_sizes(), key=room)
        return self._noted

    def note(self, layouts: Layouts, seconds: float) -> None:
        """Note the sizes of a new executable, and the time of its compilation."""
        self.compiled, self.compiling = self.compiled + 1, max(self.compiling, seconds)
        if self._notes is not None and layouts not in self.noted():
            self._noted = sorted([*self.noted(), layouts], key=room)
            self._notes.note_sizes(self._noted)

    def least(self, own: Layouts, executables: Iterable[Sized]) -> Sized | None:
        """Return the executable of least size that a batch fits."""
        found = [(room(e.layouts), i, e) for i, e in enumerate(executables) if e.layouts and fit(own, e.layouts)]
        return min(found)[2] if found else None

    def pays(self, own: Layouts, cover: Sized) -> bool:
        """Count a run of a batch at larger sizes; return True once a compilation for its own sizes pays."""
        assert cover.layouts is not None  # `least` has found it
        if cover.seconds < float("inf"):
            self._excess[own] += cover.seconds * (1 - room(own) / max(room(cover.layouts), 1))
        return self.compiled < _MOST and self._excess[own] >= (self.compiling or _UNKNOWN)

    def traced(
        self, own: Layouts, offsets: tuple[bytes, ...], begun: Mapping[Any, Beside], sizes: Mapping[Any, Layouts]
    ) -> Layouts:
        """Return the sizes at which to interpret a batch: of the latest trace that it fits, or sizes for all so far.

        The first batch gets room for later batches, unless the same sequences come again.
        """
        repeats, self._first = offsets == self._first, None
        if repeats:
            return own
        for forms in reversed(begun):
            if forms in sizes and fit(own, sizes[forms]):
                return sizes[forms]
        earlier = [sizes[forms] for forms in begun if forms in sizes and are_alike(own, sizes[forms])]
        found = roomy([*earlier, own]) or own
        if not earlier and found != own:
            self._first = offsets
        return found

    @property
    def is_guess(self) -> bool:
        """True if the first batch, and no other so far, was given room for later batches."""
        return self._first is not None
