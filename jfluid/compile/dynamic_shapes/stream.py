"""A segment whose feeds change shape: a few executables for a stream of many shapes.

The first shapes are compiled as they are. From the third on the segment is traced at three samples of the
sizes that vary, and batches are padded to buckets: one executable for each bucket, in which padding is
masked. A segment for which that is not possible is compiled for each shape, and says so once.
"""

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
    Table,
    constant,
    first_line,
    is_constant,
)
from jfluid.compile.dynamic_shapes.feed_symbols import (
    SAMPLES,
    FeedSymbols,
    Sampled,
    Shapes,
    is_large,
    padded_array,
    ranges,
    symbols_in,
    symbols_of,
    trimmed_array,
)
from jfluid.compile.dynamic_shapes.interpreter import Interpreter, Padded, compare, parts_of
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

    def padded(self, evaluate: Callable[[Mapping[str, Any], Any, Any], list[Any]]) -> Call:
        """Return the jitted segment whose results `evaluate` computes, from arguments by name, the key,
        and the true sizes, which follow the other arguments.
        """


class Traced(Sampled):
    """A segment that was traced at samples of the sizes that vary.

    Args:
        low, high: sizes of each symbol between which the segment runs.
        record: returns the jaxpr of the segment for shapes of its feeds.

    Raises NoRule if the segment cannot be traced at other sizes.
    """

    def __init__(
        self,
        symbols: FeedSymbols,
        low: Mapping[str, int],
        high: Mapping[str, int],
        record: Record,
    ):
        super().__init__(symbols, low, high)
        self.buckets = Buckets(symbols.work, symbols.unit)
        self.executables = LruCache[Call](_MOST_EXECUTABLES)
        self.results: list[tuple[Dim, ...]] = []
        at_low, at_high = record(self.shapes(0)), record(self.shapes(SAMPLES - 1))
        compare(at_low.jaxpr, at_high.jaxpr)  # most that cannot be padded show it here
        self._traces = [at_low, record(self.shapes(1)), at_high]

    def evaluate(
        self,
        bucket: Mapping[str, int],
        true: Any,
        arguments: Mapping[int, Any],
        platform: str,
        witness: tuple[Mapping[str, int], Any],
    ) -> list[Any]:
        """Trace the segment at the sizes of a bucket; returns its results. Raises NoRule.

        Args:
            true: int64 [number of symbols], the true sizes of the batch.
            arguments: arrays, those that are fed by their number among all feeds, others by less than 0.
            witness: sizes of a batch, and the jaxpr of the segment for them: it holds the samples
                against sizes that come.
        """
        batch, trace = witness
        factors = {
            name: replace(symbol, samples=(*symbol.samples, batch[name]))
            for name, symbol in self.factors.items()
        }
        fed = self.symbols.dims_of(factors)
        table = Table(symbols_in(fed), SAMPLES + 1)
        for dim in (d for dims in fed for d in dims if not is_constant(d)):
            table.learn(dim)
        values = [
            Padded(v, fed[i] if i >= 0 else tuple(map(constant, np.shape(v))))
            for i, v in arguments.items()
        ]
        sizes = Sizes(bucket, {name: true[i] for i, name in enumerate(self.symbols.names)})
        found = Interpreter(table, sizes, platform).run([*self._traces, trace], values)
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
            symbols = symbols_of(self._observed)
            if symbols is None or not is_large(symbols.sizes(shapes)):
                self._traced_times -= 1
                return
        except NoRule as error:
            self._refused = error
            return
        for low, high in ranges(symbols):
            try:
                traced = Traced(symbols, low, high, self._record(donated, kept, key))
            except NoRule as error:
                self._refused = error
                continue
            sizes = traced.sizes(shapes)
            assert sizes is not None  # it was among the observed ones
            self._traced = traced
            yield traced, sizes
        self._refused_times += 1

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
            batch = self._record(donated, kept, key)(shapes)
            return self._own().padded(self._evaluation(traced, bucket, (sizes, batch)))

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

        def record(feeds: Shapes) -> Any:
            return self._own().recorded(donated, kept, key, dict(zip(self._fed, feeds)))

        return record

    def _evaluation(
        self, traced: Traced, bucket: Mapping[str, int], witness: tuple[Mapping[str, int], Any]
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
