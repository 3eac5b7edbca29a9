"""A segment whose feeds change shape: a few executables for a stream of many shapes.

The first shapes are compiled as they are. From the third on the segment is traced at three samples of the
sizes that vary, and batches are padded to buckets: one executable for each bucket, in which padding is
masked. A segment for which that is not possible is compiled for each shape, and says so once.
"""

import functools
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from jfluid.compile.dynamic_shapes import index_rules, loop_rules, rules, window_rules
from jfluid.compile.dynamic_shapes.buckets import Buckets
from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Sizes,
    Symbol,
    Table,
    constant,
    first_line,
    is_constant,
)
from jfluid.compile.dynamic_shapes.feed_symbols import (
    SAMPLES,
    SMALLEST,
    FeedSymbols,
    Shapes,
    padded_array,
    samples_between,
    trimmed_array,
)
from jfluid.compile.dynamic_shapes.interpreter import Interpreter, Padded, compare, parts_of
from jfluid.compile.kept_executables import Beside
from jfluid.compile.lru_cache import LruCache
from jfluid.compile.plan import Item

_RULES = (rules, index_rules, loop_rules, window_rules)  # to import them registers their rules
_EXACT_FIRST = 2  # shapes that are compiled as they are before any is padded
_MOST_OBSERVED = 64
# How often a segment is traced for sizes that earlier traces do not hold for, and in vain.
_MOST_TRACED, _MOST_REFUSED = 8, 2
_MOST_EXECUTABLES = 16
_MOST_EXACT = 1024  # shapes that are remembered to be compiled as they are

# `(donated, kept, key) -> (results, flags)`
Call = Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any]
Record = Callable[[Shapes], Any]  # returns the jaxpr of a segment for shapes of its feeds


class Segment(Protocol):
    """A segment, as a stream sees it.

    Attributes:
        kept: names of arguments that are not donated.
        items: its operators.
    """

    kept: list[str]
    items: list[Item]

    def recorded(
        self,
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
        shapes: Mapping[int, tuple[int, ...]],
    ) -> Any:
        """Return the jaxpr of the segment, with other shapes for some of the arguments `kept`."""

    def padded(
        self,
        evaluate: Callable[[Mapping[str, Any], Any, Any], list[Any]],
        identity: Sequence[Any],
        beside: Beside,
    ) -> Call:
        """Return the jitted segment whose results `evaluate` computes, from arguments by name, the key,
        and the true sizes, which follow the other arguments.

        Args:
            identity: what tells it from others that are padded.
            beside: what is kept on disk with its executable.
        """


class Traced:
    """A segment that is traced at samples of the sizes that vary, when it is first evaluated.

    Args:
        low, high: sizes of each symbol between which the segment runs.
        record: returns the jaxpr of the segment for shapes of its feeds.

    Attributes:
        results: dimensions of each result, once it was evaluated.
    """

    def __init__(
        self,
        symbols: FeedSymbols,
        low: Mapping[str, int],
        high: Mapping[str, int],
        record: Record,
    ):
        self.symbols, self.samples = symbols, samples_between(symbols, low, high)
        self.factors = {
            name: Symbol(own, operator.itemgetter(name)) for name, own in self.samples.items()
        }
        self.fed = symbols.dims_of(self.factors)
        self.buckets = Buckets(symbols.work, symbols.unit)
        self.executables = LruCache[Call](_MOST_EXECUTABLES)
        self.results: list[tuple[Dim, ...]] = []
        self._record = record

    def identity(self, bucket: Mapping[str, int], batch: Mapping[str, int]) -> tuple[Any, ...]:
        """Return what tells the segment at the sizes of a bucket from others, in all processes.

        Args:
            batch: sizes of the first one that it is for.
        """
        symbols = self.symbols
        return symbols.names, symbols.dims, symbols.unit, self.samples, bucket, batch

    def noted(self) -> Any:
        """See `kept_executables.Beside`."""
        return self.results

    def learn(self, noted: Any) -> None:
        """See `kept_executables.Beside`."""
        self.results = noted

    @functools.cached_property
    def _traces(self) -> list[Any]:
        """The jaxpr at each sample. Raises NoRule if the segment cannot be traced at other sizes."""
        at_low, at_high = self._recorded(0), self._recorded(SAMPLES - 1)
        compare(at_low.jaxpr, at_high.jaxpr)  # most that cannot be padded show it here
        return [at_low, self._recorded(1), at_high]

    def _recorded(self, sample: int) -> Any:
        sizes = Sizes({name: own[sample] for name, own in self.samples.items()}, {})
        return self._record(tuple(sizes.shape(dims) for dims in self.fed))

    def sizes(self, shapes: Shapes) -> dict[str, int] | None:
        """Return the sizes of a batch; None for a batch that the traces do not hold for."""
        sizes = self.symbols.sizes(shapes)
        if sizes is None:
            return None
        for name, size in sizes.items():
            low, *_, high = self.samples[name]
            if not low <= size <= high or size % self.symbols.unit[name]:
                return None
        return sizes

    def evaluate(
        self,
        bucket: Mapping[str, int],
        true: Any,
        arguments: Mapping[int, Any],
        platform: str,
        witness: tuple[Mapping[str, int], Shapes],
    ) -> list[Any]:
        """Trace the segment at the sizes of a bucket; returns its results. Raises NoRule.

        Args:
            true: int64 [number of symbols], the true sizes of the batch.
            arguments: arrays, those that are fed by their number among all feeds, others by less than 0.
            witness: sizes of a batch, and shapes of its feeds, for which the segment is traced, too: it
                holds the samples against sizes that come.
        """
        batch, shapes = witness
        traces = [*self._traces, self._record(shapes)]
        factors = {
            name: replace(symbol, samples=(*symbol.samples, batch[name]))
            for name, symbol in self.factors.items()
        }
        fed = self.symbols.dims_of(factors)
        table = Table(factors.values(), SAMPLES + 1)
        for dim in (d for dims in fed for d in dims if not is_constant(d)):
            table.learn(dim)
        values = [
            Padded(v, fed[i] if i >= 0 else tuple(map(constant, np.shape(v))))
            for i, v in arguments.items()
        ]
        sizes = Sizes(bucket, {name: true[i] for i, name in enumerate(self.symbols.names)})
        found = Interpreter(table, sizes, platform).run(traces, values)
        self.results = [value.dims for value in found]
        return [value.array for value in found]


class ShapeStream:
    """Runs a segment for a stream of shapes.

    Args:
        exact: runs the segment, compiled for the shapes of its arguments; None where the caller does.
        state: names of arguments whose shapes do not change.
        platform: "cpu" or "gpu".
    """

    def __init__(self, segment: Segment, exact: Any, state: Sequence[str], platform: str):
        self._segment = weakref.ref(segment)  # which has this stream
        self._exact_call, self._platform = exact, platform
        keeps = set(state)
        self._fed = [i for i, name in enumerate(segment.kept) if name not in keeps]
        self._exact: dict[Shapes, None] = {}
        self._observed: dict[Shapes, None] = {}
        self._traced: Traced | None = None
        self._traced_times = 0
        self._refused: NoRule | None = None
        self._refused_times = 0
        self._warned = False
        self._pads = True  # until a feed is no dense array

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        found = self.padded(donated, kept, key)
        return found if found is not None else self._exact_call(donated, kept, key)

    def padded(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Return what a run at padded sizes gives; None for shapes that run as they are."""
        if not self._pads:
            return None
        try:
            shapes = tuple([kept[i].shape for i in self._fed])
        except AttributeError:  # slots of sequences, or absent values
            self._pads = False
            return None
        if shapes in self._exact:
            return None
        if not self._are_arrays(kept):
            self._pads = False
            return None
        for traced, sizes in self._ways(shapes, donated, kept, key):
            try:
                return self._run_padded(traced, sizes, shapes, donated, kept, key)
            except NoRule as error:
                self._refused, self._traced = error, None
        self._run_exactly(shapes)
        return None

    def _own(self) -> Segment:
        segment = self._segment()
        assert segment is not None  # it is called
        return segment

    def _are_arrays(self, kept: tuple[Any, ...]) -> bool:
        """True if all feeds are arrays without sequences."""
        return all(isinstance(kept[i], np.ndarray | jax.Array) for i in self._fed)

    def _ways(
        self, shapes: Shapes, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any
    ) -> Iterator[tuple[Traced, dict[str, int]]]:
        """Yield traced segments that hold for a batch, and its sizes, to be tried one after the other."""
        if self._traced is not None and (sizes := self._traced.sizes(shapes)) is not None:
            yield self._traced, sizes
            return
        if len(self._observed) < _MOST_OBSERVED:
            self._observed[shapes] = None
        if len(self._observed) <= _EXACT_FIRST or self._traced_times >= _MOST_TRACED:
            return
        if self._refused_times >= _MOST_REFUSED:
            return
        self._traced_times += 1
        try:
            symbols = self._symbols()
            if symbols is None or not _is_large(symbols.sizes(shapes)):
                self._traced_times -= 1
                return
            wide = {n: max(SMALLEST, s // 2) for n, s in symbols.low.items()}  # and twice the most
            far = {n: 2 * s for n, s in symbols.high.items()}
        except NoRule as error:
            self._refused = error
            return
        for low, high in ((wide, far), (symbols.low, symbols.high)):
            traced = Traced(symbols, low, high, self._record(donated, kept, key))
            sizes = traced.sizes(shapes)
            assert sizes is not None  # it was among the observed ones
            self._traced = traced
            yield traced, sizes
        self._refused_times += 1

    def _symbols(self) -> FeedSymbols | None:
        """Return the symbols of the shapes that have come, without sizes of 0 and 1, which programs
        treat in another way; None for too few shapes.
        """
        observed = list(self._observed)
        while len(observed) > 1:
            symbols = FeedSymbols.of(observed)
            kept = [s for s in observed if _is_large(symbols.sizes(s))]
            if len(kept) == len(observed):
                return symbols
            observed = kept
        return None

    def _run_padded(
        self,
        traced: Traced,
        sizes: dict[str, int],
        shapes: Shapes,
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> Any:
        """Run the segment at the sizes of a bucket. Raises NoRule before anything has run."""
        bucket = traced.buckets.choose(sizes)
        padded, true = Sizes(bucket, {}), Sizes(sizes, {})
        arguments: list[Any] = list(kept)
        for i, dims in zip(self._fed, traced.fed):
            arguments[i] = padded_array(kept[i], dims, padded, true)
        arguments.append(np.array([sizes[n] for n in traced.symbols.names], np.int64))
        form = tuple(bucket.items())

        def made() -> Call:
            evaluate = self._evaluation(traced, bucket, (sizes, shapes))
            return self._own().padded(evaluate, traced.identity(bucket, sizes), traced)

        call = traced.executables.get_or_make(form, made)
        try:
            results, flags = call(donated, tuple(arguments), key)
        except NoRule:
            del traced.executables[form]
            raise
        found = [
            r if all(map(is_constant, dims)) else trimmed_array(r, dims, padded, true)
            for r, dims in zip(results, traced.results, strict=True)
        ]
        return tuple(found), flags

    def _record(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Record:
        """Return what traces the segment for shapes of its feeds."""

        given = tuple(map(_shape_of, donated)), tuple(map(_shape_of, kept))

        def record(feeds: Shapes) -> Any:
            return self._own().recorded(*given, key, dict(zip(self._fed, feeds)))

        return record

    def _evaluation(
        self, traced: Traced, bucket: Mapping[str, int], witness: tuple[Mapping[str, int], Shapes]
    ) -> Any:
        number = {self._own().kept[i]: at for at, i in enumerate(self._fed)}

        def evaluate(values: Mapping[str, Any], key: Any, true: Any) -> list[Any]:
            given = [*values.items(), *([] if key is None else [("", key)])]
            arguments = {number.get(n, -1 - i): v for i, (n, v) in enumerate(given)}
            try:
                return traced.evaluate(bucket, true, arguments, self._platform, witness)
            except NoRule:
                raise
            except Exception as error:  # a size of 1 at a sample that is none at others, for one
                text = f"its operators do not take padded sizes ({first_line(error)})"
                raise NoRule(text) from error

        return evaluate

    def _run_exactly(self, shapes: Shapes) -> None:
        """Note that a shape is compiled as it is; warn of the third one that cannot be padded."""
        self._exact[shapes] = None
        if len(self._exact) > _MOST_EXACT:
            del self._exact[next(iter(self._exact))]
        if self._refused is not None and len(self._exact) > _EXACT_FIRST and not self._warned:
            self._warned = True
            warnings.warn(
                "this program is compiled anew for each new shape of its feeds: "
                f"{self._refused}{self._where(self._refused)}. Pad batches to few shapes",
                RuntimeWarning,
                stacklevel=2,
            )

    def _where(self, error: NoRule) -> str:
        """Return which operator has no rule, and the user's line that made it."""
        ops = {at: op for at, op, _ in self._own().items}
        for kind, position in reversed(list(parts_of(error.scope))):
            line = getattr(ops.get(position), "callsite", "")
            return f" (operator {kind}{f', made at {line}' if line else ''})"
        return ""


def _is_large(sizes: Mapping[str, int] | None) -> bool:
    return sizes is not None and all(size >= SMALLEST for size in sizes.values())


def _shape_of(value: Any) -> Any:
    """What tracing needs of an argument; None for one that is absent."""
    return None if value is None else jax.ShapeDtypeStruct(np.shape(value), value.dtype)
