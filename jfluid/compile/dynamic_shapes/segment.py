"""Segment of a stream of shapes: its traces and executables at padded sizes, and its feeds by replica."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jfluid.compile.dynamic_shapes.traced import CompiledCall
from jfluid.compile.lowering.plan import Item
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime.covers import Notes
from jfluid.compile.runtime.executable_cache import DiskEntry, TraceResults

# `(arguments by name, key, true sizes) -> results`, at padded sizes
Evaluate = Callable[[Mapping[str, Any], Any, Any], list[Any]]


class StreamSegment(ABC):
    """Segment that a stream runs: a function `(donated, kept, key) -> (results, flags)`.

    Attributes:
        items: the segment's operators.
        donated: names of donated arguments.
        kept: names of arguments that are not donated.
        name: name of the function.
    """

    def __init__(self, items: list[Item], donated: list[str], kept: list[str], name: str):
        self.items, self.donated, self.kept, self.name = items, donated, kept, name

    @property
    @abstractmethod
    def waits(self) -> bool:
        """True if steps wait for their compilation."""

    @abstractmethod
    def is_ready(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> bool:
        """Return True if the shapes of the arguments have an executable without padding, or wait for one."""

    @abstractmethod
    def interpret(self, listing: Listing, values: Mapping[str, Any], key: Any) -> list[Any]:
        """Return the results of a listing of the segment for arguments by name. Raises as `beside.interpreted`."""

    @abstractmethod
    def jaxpr(self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], key: Any) -> Any:
        """Return the jaxpr of the segment for arguments by name, with other shapes for some of the arguments."""

    @abstractmethod
    def lower_padded(
        self, evaluate: Evaluate, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, true: Any
    ) -> Any:
        """Trace the segment at padded sizes by `evaluate`; return the results and flags."""

    @abstractmethod
    def executables(self, run: Callable[..., Any], entry: DiskEntry | None) -> CompiledCall:
        """Return the executables of a padded form of the segment."""

    @abstractmethod
    def entry_of(self, identity: Sequence[Any], beside: TraceResults | None = None) -> DiskEntry | None:
        """Return the entry on disk of a form of the segment; None for a segment that is not kept.

        Args:
            identity: values that identify the form among the forms of the segment.
            beside: further contents of the executable's file.
        """

    def recorded_arguments(self, donated: tuple[Any, ...], kept: tuple[Any, ...]) -> dict[str, Any]:
        """Return the arguments of a jaxpr of `recorded` by name, in the program's layout."""
        return self.by_name(donated, kept)

    def structured(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the segment from the arrays of a jaxpr of `recorded`.

        Sparse rows are two arrays; filters get their layout between steps.
        """
        return arrays

    def by_name(self, donated: tuple[Any, ...], kept: tuple[Any, ...]) -> dict[str, Any]:
        """Return the values of the arguments by name."""
        return dict(zip(self.donated, donated)) | {n: v for n, v in zip(self.kept, kept) if v is not None}

    def recorded(
        self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, shapes: Mapping[int, tuple[int, ...]]
    ) -> Any:
        """Return the jaxpr of the segment, with other shapes for some of the arguments `kept`."""
        return self.jaxpr(self.by_name(donated, kept), {self.kept[i]: shape for i, shape in shapes.items()}, key)

    def histories(self) -> Notes | None:
        """Return the file of the stream's histories; None without any, and where steps wait for their compilation."""
        return None if self.waits else self.entry_of(["stream"])

    def padded(self, evaluate: Evaluate, identity: Sequence[Any], beside: TraceResults) -> CompiledCall:
        """Return the jitted segment that `evaluate` computes at padded sizes.

        The true sizes follow the arguments `kept`.

        Args:
            identity: values that identify the padded segment among the segment's padded forms.
            beside: further contents of the executable's file.
        """
        own = weakref.ref(self)  # it goes at once when its step does

        def by_sorted_names(values: Mapping[str, Any], key: Any, true: Any) -> list[Any]:
            return evaluate({name: values[name] for name in sorted(values)}, key, true)

        def run(donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
            *values, true = kept
            segment = own()
            assert segment is not None  # it is called
            return segment.lower_padded(by_sorted_names, donated, tuple(values), key, true)

        run.__name__ = run.__qualname__ = f"{self.name}_padded"
        return self.executables(run, self.entry_of(("padded", *identity), beside))


class FeedShares(Protocol):
    """Division of feeds and results among replicas."""

    def shares(self, name: str, value: Any) -> Sequence[Any] | None:
        """Return the array that each replica has of a feed; None for a feed that is no dense array."""

    def divided(self, result: Any) -> Sequence[Any]:
        """Return the result of each replica."""

    def together(self, parts: Sequence[np.ndarray]) -> Any:
        """Return the joined result from the result of each replica."""

    def check_exact(self, values: Mapping[str, Any]) -> None:
        """Raise FeedError for feeds, by name, that only run padded."""
