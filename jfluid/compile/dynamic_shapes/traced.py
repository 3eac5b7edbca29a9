"""Segment that is traced at samples of the sizes that vary, with the buckets that it is compiled for."""

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from jfluid.compile.dynamic_shapes.buckets import Buckets, Form
from jfluid.compile.dynamic_shapes.dims import Dim, Sizes, Table, constant, is_constant
from jfluid.compile.dynamic_shapes.feed_symbols import (
    SAMPLES,
    FeedLayout,
    FeedSymbols,
    Sampled,
    Shapes,
    symbols_in,
)
from jfluid.compile.dynamic_shapes.history import Batch, TracedHistory
from jfluid.compile.dynamic_shapes.history import Sizes as HistorySizes
from jfluid.compile.dynamic_shapes.interpreter import Interpreter, Padded, compare
from jfluid.compile.dynamic_shapes.unpadded import Unpadded
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.host import collector

# How often a segment is compiled, and how many batches are remembered as listings.
_MOST_EXECUTABLES = 16
_MOST_LISTINGS = 16
_TIMED = 3  # measured runs of a bucket, which steps wait for
_MOST_LAYOUTS = 256  # batches whose places in buckets are remembered
_MOST_BATCHES = 256  # whose sizes are remembered: an imperative step has dozens of arguments
_UNTRACED = 6  # seconds to trace and compile, for a second of tracing

Record = Callable[[Shapes], Any]  # returns the jaxpr of a segment for shapes of its feeds
Witness = tuple[Mapping[str, int], Shapes]  # sizes of a batch, and shapes of its feeds


class CompiledCall(Protocol):
    """A function that is compiled when it is called, or beside the steps (`executables.Executables`)."""

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, /) -> Any:
        """Return the results and flags."""

    def begin(self, arguments: Sequence[Any], at_once: bool = True) -> bool:
        """Begin to compile beside the steps, or only ask for an executable; returns False until it exists."""


class Traced(Sampled):
    """Segment that is traced at samples of the varying sizes at its first evaluation.

    Args:
        low, high: sizes of each symbol between which the segment runs.
        record: returns the jaxpr of the segment for shapes of the feeds.
        said: sizes of symbols that the user has given.
        origin: number of the observed shapes that the symbols follow from, number of the range of sizes, and constant
            sizes of 0 and 1.
        others: returns the number of the stream's executables for other symbols, and without padding.

    Attributes:
        compiled: sizes of the buckets that have executables, or that steps wait for.
        begun: sizes of the buckets that a thread compiles or has compiled.
        results: dimensions of each result, after the evaluation.
        varying_results: numbers of the results of varying size.
        witness: sizes and feeds of the batch for which the segment was traced last; None before.
        witnesses: sizes and feeds of a batch that checks the samples, for each bucket.
        stored: sizes of the buckets that the file of the stream has, or the state of a trainer.
    """

    def __init__(
        self,
        symbols: FeedSymbols,
        low: Mapping[str, int],
        high: Mapping[str, int],
        record: Record,
        said: Mapping[str, Sequence[int]],
        origin: tuple[int, int, HistorySizes],
        others: Callable[[], int] = int,
    ):
        super().__init__(symbols, low, high)
        self._origin = origin
        self.buckets = Buckets(symbols.work, symbols.unit, said, others)
        self.executables = LruCache[CompiledCall](_MOST_EXECUTABLES)
        self.compiled: set[Form] = set()
        self.begun: set[Form] = set()
        self.results = list[tuple[Dim, ...]]()
        self.varying_results = list[int]()
        self.tracing, self.interpreting, self.padding = 0.0, 0.0, 0.0  # seconds, the last two since a bucket came
        self.runs = defaultdict[Form, list[float]](list)  # seconds of the first padded runs, by bucket
        self.interprets = True  # until a rule is missing
        self.witnesses: dict[Form, Witness] = {}
        self.witness: Witness | None = None
        self._at_witness: Any = None  # the trace at the latest witness
        self._traced_before = 0.0  # seconds of the witness's trace, made before
        self.stored: set[Form] = set()
        self._record = record
        self._unpadded: Unpadded | None = None
        self._listings = LruCache[Listing](_MOST_LISTINGS)
        self._layouts = LruCache[list[tuple[int, FeedLayout]]](_MOST_LAYOUTS)
        self._batches = LruCache[list[dict[str, int]] | None](_MOST_BATCHES)

    @property
    def has_executables(self) -> bool:
        """True if a bucket is compiled, begun to be compiled, or was so in an earlier process."""
        return bool(self.compiled or self.begun or self.stored)

    def compiled_bucket(self, need: Mapping[str, int]) -> Mapping[str, int] | None:
        """Return the bucket of least work that holds a batch and is compiled."""
        return next((b for b in self.buckets.holding(need) if tuple(b.items()) in self.compiled), None)

    def begun_buckets(self, need: Mapping[str, int]) -> list[Mapping[str, int]]:
        """Return the buckets without an executable that hold a batch and that this or an earlier process has begun."""
        begun = (self.begun | self.stored) - self.compiled
        return [b for b in self.buckets.holding(need) if tuple(b.items()) in begun]

    def pays(self, seconds: float) -> bool:
        """Return True if seconds of padding, or of interpreted steps, are as many as those of all traces.

        A compilation takes that long, or longer. Without traces, after an earlier process, it takes all of that time.
        """
        wanted = self.tracing * (1 if self._unpadded else _UNTRACED)
        return not self.interprets or 0 < wanted <= seconds

    def run(self, bucket: Mapping[str, int], call: CompiledCall, given: tuple[Any, ...]) -> Any:
        """Run a bucket; the first runs are measured, if steps are interpreted until a bucket is compiled."""
        runs = self.runs[tuple(bucket.items())]
        if len(runs) >= _TIMED or not self.tracing:
            return call(*given)
        start = time.perf_counter()
        found = jax.block_until_ready(call(*given))
        runs.append(time.perf_counter() - start)
        return found

    def note_padding(self, need: Mapping[str, int], bucket: Mapping[str, int]) -> None:
        """Count the time that the run of a batch in a bucket takes for padding."""
        self.padding += self.buckets.waste(need, bucket) * min(self.runs[tuple(bucket.items())], default=0.0)

    def identity(self, bucket: Mapping[str, int], batch: Mapping[str, int]) -> tuple[Any, ...]:
        """Return the values that identify the segment at the sizes of a bucket, in all processes.

        Args:
            batch: sizes of the batch that checks the samples.
        """
        return (*self.form, bucket, batch)

    @property
    def form(self) -> tuple[Any, ...]:
        """Values that identify the segment at the sizes of any bucket."""
        symbols = self.symbols
        return symbols.names, symbols.dims, symbols.unit, self.samples

    def history(self) -> TracedHistory:
        """Return what the choice of further buckets, and the executables of buckets, follow from."""
        there = self.compiled | self.begun | self.stored
        witnesses = [(dict(form), shapes) for form, (_, shapes) in self.witnesses.items() if form in there]
        observed, number, small = self._origin
        return TracedHistory(observed, number, self.buckets.history(), witnesses, self.tracing, small)

    def recall(self, history: TracedHistory) -> None:
        """Choose buckets as after the batches of an earlier process."""
        self.buckets.recall(history.buckets)
        self.tracing = history.tracing
        for sizes, shapes in history.witnesses:
            batch = self.symbols.sizes(shapes)
            assert batch is not None  # the history has been checked
            self.witnesses[tuple(sizes.items())] = batch, shapes
        self.stored = set(self.witnesses)

    def noted(self) -> Any:
        """See `executable_cache.TraceResults`."""
        return self.results

    def learn(self, noted: Any) -> None:
        """See `executable_cache.TraceResults`."""
        self.results = noted
        self.varying_results = [i for i, dims in enumerate(noted) if not all(map(is_constant, dims))]

    @functools.cached_property
    def _ends(self) -> list[Any]:
        """The jaxprs at the lowest and at the highest sample. Raises NoRule if no other sizes can be traced."""
        ends = [self._record(self.shapes(0)), self._record(self.shapes(SAMPLES - 1))]
        compare(*(closed.jaxpr for closed in ends))  # most that cannot be padded show it here
        return ends

    @functools.cached_property
    def _middle(self) -> Any:
        """The jaxpr at the middle sample."""
        return self._record(self.shapes(1))

    def _is_sample(self, batch: Mapping[str, int]) -> bool:
        """Return True if a batch stands for the middle sample: it is between the others, and not all three are odd.

        Images have a further sample: their sizes are divided by strides.
        """
        ends = {name: (own[0], own[-1]) for name, own in self.samples.items()}
        return all(
            self.symbols.unit[name] == 1 and low < size < high and low * size * high % 2 == 0
            for name, size in batch.items()
            for low, high in [ends[name]]
        )

    def _with(self, batch: Mapping[str, int], shapes: Shapes) -> tuple[list[Any], Table, list[tuple[Dim, ...]]]:
        """Return the traces at the samples and at a batch, a table of their sizes, and the dimensions of each feed."""
        places = [0, SAMPLES - 1] if self._is_sample(batch) else [0, SAMPLES - 1, 1]
        traces = [*self._ends, *([self._middle] if len(places) == SAMPLES else [])]
        if self.witness is None or self.witness[1] != shapes:
            self.witness, self._at_witness = (batch, shapes), self._record(shapes)
        traces.append(self._at_witness)
        factors = {
            name: replace(symbol, samples=(*(symbol.samples[at] for at in places), batch[name]))
            for name, symbol in self.factors.items()
        }
        fed = self.symbols.dims_of(factors)
        table = Table(symbols_in(fed), len(traces))
        for dim in (d for dims in fed for d in dims if not is_constant(d)):
            table.learn(dim)
        return traces, table, fed

    def witnessed(self, batch: Mapping[str, int], shapes: Shapes, closed: Any, seconds: float) -> None:
        """Take the jaxpr of an earlier batch, and the time that its trace took."""
        self.witness, self._at_witness, self._traced_before = (batch, shapes), closed, seconds

    def listing(self, batch: Mapping[str, int], shapes: Shapes) -> Listing:
        """Return the segment at the true sizes of a batch, for NumPy. Raises NoRule if it cannot be interpreted."""
        with collector.paused(settle=True):  # it stays, and has very many objects
            if self._unpadded is None:
                start = time.perf_counter()
                traces, table, _ = self._with(*(self.witness or (batch, shapes)))
                self._unpadded = Unpadded(traces, table)
                self.tracing = self._traced_before + time.perf_counter() - start
            unpadded, sizes = self._unpadded, Sizes(batch, batch)
            return self._listings.get_or_make(tuple(batch.values()), lambda: unpadded.at(sizes))

    def each(self, batch: Batch) -> list[dict[str, int]] | None:
        """Return the sizes of each share of a batch; None where the traces do not hold for one."""
        return self._batches.get_or_make(batch, lambda: self._each(batch))

    def layouts(self, bucket: Mapping[str, int], sizes: Sequence[Mapping[str, int]]) -> list[tuple[int, FeedLayout]]:
        """Return the number and the layout of each feed of varying size, for a batch in a bucket.

        Args:
            sizes: sizes of each share of the batch.
        """

        def found() -> list[tuple[int, FeedLayout]]:
            padded, true = Sizes(bucket, {}), [Sizes(own, {}) for own in sizes]
            return [(at, FeedLayout(self.fed[at], padded, true)) for at in self.varying]

        return self._layouts.get_or_make((*bucket.values(), *(tuple(own.values()) for own in sizes)), found)

    def _each(self, batch: Batch) -> list[dict[str, int]] | None:
        found = [own for shapes in batch if (own := self.sizes(shapes)) is not None]
        return found if len(found) == len(batch) else None

    def evaluate(
        self,
        bucket: Mapping[str, int],
        true: Any,
        arguments: Mapping[int, Any],
        platform: str,
        witness: Witness,
    ) -> list[Any]:
        """Trace the segment at the sizes of a bucket; return the results. Raises NoRule.

        Args:
            true: int64 [number of symbols], the true sizes of the batch.
            arguments: arrays by number: feeds by their number among all feeds, all further arguments by negative
                numbers.
            witness: sizes of a batch, and shapes of its feeds. The segment is also traced for the witness, which
                checks that the samples hold.
        """
        traces, table, fed = self._with(*witness)
        values = [Padded(v, fed[i] if i >= 0 else tuple(map(constant, np.shape(v)))) for i, v in arguments.items()]
        sizes = Sizes(bucket, {name: true[i] for i, name in enumerate(self.symbols.names)})
        found = Interpreter(table, sizes, platform).run(traces, values)
        self.learn([value.dims for value in found])
        return [value.array for value in found]
