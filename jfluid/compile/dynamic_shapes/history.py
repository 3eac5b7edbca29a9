"""History of a stream of shapes: what the choice of padded sizes follows from, as plain values.

A process that is started again takes the history of its earlier life, and pads the next batches as the earlier life
would have.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.compile.dynamic_shapes.feed_symbols import SMALLEST, FeedSymbols, Sampled, Shapes, ranges, symbols_with

_MOST_SIZE = 1 << 40

Batch = tuple[Shapes, ...]  # of the feeds of each replica
Sizes = dict[str, int]  # by the names of symbols


@dataclass(slots=True)
class BucketsHistory:
    """History of the choice of buckets.

    Attributes:
        known: sizes of the buckets.
        came: fine sizes of the batches, with the number of batches.
        wasted: work of padding, in steps.
    """

    known: list[Sizes] = field(default_factory=list)
    came: list[tuple[Sizes, int]] = field(default_factory=list)
    wasted: float = 0.0


@dataclass(slots=True)
class TracedHistory:
    """History of a segment that is traced at samples.

    Attributes:
        observed: number of the stream's observed shapes from which the symbols follow.
        range: number of the range of sizes (see `feed_symbols.ranges`).
        buckets: history of the buckets.
        witnesses: sizes of each bucket that has run, with the shapes of its first batch.
        tracing: seconds of the traces; 0 where steps wait for their compilation.
        small: constant sizes of 0 and 1 that all batches of the segment have.
    """

    observed: int
    range: int
    buckets: BucketsHistory
    witnesses: list[tuple[Sizes, Shapes]]
    tracing: float = 0.0
    small: Sizes = field(default_factory=dict)

    def samples(self, observed: list[Shapes]) -> tuple[FeedSymbols, Mapping[str, int], Mapping[str, int]]:
        """Return the symbols of the segment, and the range of sizes in which the segment is traced."""
        symbols = symbols_with(observed[: self.observed], self.small)
        if symbols is None or not symbols.names:
            raise NoRule("too few shapes for symbols")
        return symbols, *list(ranges(symbols))[self.range]

    def sizes(self) -> list[Sizes]:
        """Return the sizes of the buckets, and of the batches that the choice of buckets counts."""
        return [*self.buckets.known, *(sizes for sizes, _ in self.buckets.came), *(b for b, _ in self.witnesses)]

    def check(self, observed: list[Shapes]) -> None:
        """Raise ValueError for values that no traced segment of a stream with these observed shapes has."""
        if not all(0 <= size < SMALLEST for size in self.small.values()):
            raise ValueError("a constant size is neither 0 nor 1")
        try:
            symbols = Sampled(*self.samples(observed)).symbols
        except (NoRule, IndexError) as error:
            raise ValueError(f"the shapes do not have the symbols of a trace: {error}") from None
        if not all(set(sizes) == set(symbols.names) for sizes in self.sizes()):
            raise ValueError("a bucket has no size for a symbol, or too many sizes")
        if any(symbols.sizes(own) is None for _, own in self.witnesses):
            raise ValueError("a batch contradicts the symbols of its bucket")


@dataclass(slots=True)
class StreamHistory:
    """History of a stream of shapes.

    Attributes:
        observed: shapes of the batches from which symbols follow.
        exact: shapes of the batches that run without padding.
        traced: histories of the traced segments, the oldest first.
        traced_times: number of tries to trace the segment.
        refused: reason for exact shapes; empty without any.
        refused_times: number of tries in vain.
        pads: False once a feed was no dense array.
        refused_at: position of the operator that is the reason for exact shapes; None if it is not one operator.
    """

    observed: list[Shapes]
    exact: list[Batch]
    traced: list[TracedHistory]
    traced_times: int
    refused: str
    refused_times: int
    pads: bool
    refused_at: int | None = None

    def holds(self, batch: Batch) -> bool:
        """Return True if a traced segment holds for a batch, or if no batch can be padded."""
        if len(self.observed[0]) != len(batch[0]):
            return False
        if self.refused_at is not None:
            return all(len(a) == len(b) for own in batch for a, b in zip(own, self.observed[0]))
        traced = [Sampled(*own.samples(self.observed)) for own in self.traced]
        return any(all(one.sizes(own) is not None for own in batch) for one in traced)

    def check(self) -> None:
        """Raise ValueError for values that no stream has."""
        buckets = [b for own in self.traced for b in own.sizes()]
        witnesses = [shapes for own in self.traced for _, shapes in own.witnesses]
        shapes = [*self.observed, *itertools.chain(*self.exact), *witnesses]
        sizes = [size for own in shapes for shape in own for size in shape] + [s for b in buckets for s in b.values()]
        if not all(0 <= size < _MOST_SIZE for size in sizes):
            raise ValueError("a size is negative or too large")
        if len(set(map(len, shapes))) > 1:
            raise ValueError("batches have different numbers of feeds")
        for traced in self.traced:
            traced.check(self.observed)
