"""Histories of padded sizes: a process that is started again pads its batches as its earlier life would have.

The sizes of a batch follow from the batches before it. A synchronous job with servers promises the same bits after a
restart, so the histories of its steps are a part of each trainer's state.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jfluid.compile.dynamic_shapes.history import StreamHistory
from jfluid.compile.runtime.padding import Sizes


@dataclass(slots=True)
class StepHistory:
    """History of the padded sizes of a step.

    Attributes:
        sequences: known sizes of feeds with a LoD (see `padding.SequenceBuckets`).
        segments: history of the dense feeds of each segment, by the names of segments.
    """

    sequences: list[list[Sizes]] = field(default_factory=list)
    segments: dict[str, StreamHistory] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError for values that no step has."""
        for known in self.sequences:
            for size in (size for sizes in known for size in sizes.values()):
                if min(size.rows, *size.numbers, *size.longest, 0) < 0 or not size.numbers:
                    raise ValueError("a size of sequences is negative, or missing")
        for stream in self.segments.values():
            stream.check()


class HasSizeHistory(Protocol):
    """Step with padded sizes."""

    def size_history(self) -> StepHistory:
        """Return what the padded sizes of further batches follow from."""

    def recall(self, history: StepHistory) -> None:
        """Pad batches as after the batches of an earlier process. Raises FeedError for other feeds."""


class SizeHistories:
    """Histories of all steps of a process whose results must not depend on its restarts."""

    def __init__(self) -> None:
        self._steps: weakref.WeakValueDictionary[str, HasSizeHistory] = weakref.WeakValueDictionary()
        self._recalled: dict[str, StepHistory] = {}

    def __iter__(self) -> Iterator[tuple[str, StepHistory]]:
        """Yield the name and the history of each step, also of steps that only the earlier life has run."""
        yield from self._recalled.items()
        for name, step in sorted(self._steps.items()):
            yield name, step.size_history()

    def add(self, name: str, step: HasSizeHistory) -> None:
        """Add a step, which gets the history of the step of the same name in the earlier life."""
        self._steps[name] = step
        if (history := self._recalled.pop(name, None)) is not None:
            step.recall(history)

    def recall(self, histories: Mapping[str, StepHistory]) -> None:
        """Give the steps of this process the histories of an earlier life."""
        self._recalled = dict(histories)
        for name, step in list(self._steps.items()):
            self.add(name, step)
