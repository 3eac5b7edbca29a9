"""Segment for a stream of feeds with many shapes: a few executables serve all shapes.

The first shapes are compiled without padding. From the third on the segment is traced at three samples of the
sizes that vary, and batches are padded to buckets: one executable for each bucket, in which padding is
masked. A segment that cannot be padded is compiled for each shape, and warns once.
"""

import functools
import time
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from jfluid import known_sizes
from jfluid.compile.dynamic_shapes import index_rules, loop_rules, rules, window_rules
from jfluid.compile.dynamic_shapes.buckets import Buckets, Form
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
    filled_array,
    is_large,
    padded_array,
    ranges,
    symbols_in,
    symbols_of,
    trimmed_array,
)
from jfluid.compile.dynamic_shapes.interpreter import Interpreter, Padded, compare, parts_of
from jfluid.compile.dynamic_shapes.unpadded import Unpadded
from jfluid.compile.numpy_steps import interpreter as numpy_steps
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.plan import Item
from jfluid.compile.runtime.executable_cache import Beside
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.ops.ragged import Ragged
from jfluid.ops.selected_rows import SelectedRows

_RULES = (rules, index_rules, loop_rules, window_rules)  # their import registers the rules
_EXACT_FIRST = 2  # shapes that are compiled without padding at first
_MOST_OBSERVED = 64
# How often a segment is traced for sizes that earlier traces do not hold for, and in vain.
_MOST_TRACED, _MOST_REFUSED = 8, 2
_MOST_EXECUTABLES = 16
_MOST_LISTINGS = 16
_NOT_LOWERED = "Cannot lower jaxpr"  # beginning of JAX's error for contradicting sizes
_MOST_EXACT = 1024  # most remembered shapes without padding

# `(donated, kept, key) -> (results, flags)`
Run = Callable[[tuple[Any, ...], tuple[Any, ...], Any], Any]
Record = Callable[[Shapes], Any]  # returns the jaxpr of a segment for shapes of its feeds
Batch = tuple[Shapes, ...]  # of the feeds of each replica


class Call(Protocol):
    """A function that is compiled when it is called, or beside the steps (`executables.Executables`)."""

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, /) -> Any:
        """Return the results and flags."""

    def begin(self, arguments: Sequence[Any], at_once: bool = True) -> bool:
        """Begin to compile beside the steps, or only ask for an executable; returns False until it exists."""

    def interpret(self, listing: Listing, arguments: Sequence[Any]) -> list[jax.Array]:
        """Return the results of a listing that stands for the function."""


class Segment(Protocol):
    """Interface of segments that a stream runs.

    Attributes:
        kept: names of arguments that are not donated.
        items: the segment's operators.
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

    def recorded_arguments(self, donated: tuple[Any, ...], kept: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the arguments of a jaxpr of `recorded` by name; None if the jaxpr takes other layouts."""

    def structured(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the segment from the arrays of a jaxpr of `recorded`: sparse rows are two arrays."""

    def padded(
        self,
        evaluate: Callable[[Mapping[str, Any], Any, Any], list[Any]],
        identity: Sequence[Any],
        beside: Beside,
    ) -> Call:
        """Return the jitted segment that `evaluate` computes at padded sizes.

        `evaluate` takes arguments by name, the key, and the true sizes, which follow the other arguments.

        Args:
            identity: values that identify the padded segment among the segment's padded forms.
            beside: further contents of the executable's file.
        """


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


class Traced(Sampled):
    """Segment that is traced at samples of the varying sizes at its first evaluation.

    Args:
        low, high: sizes of each symbol between which the segment runs.
        record: returns the jaxpr of the segment for shapes of the feeds.
        said: sizes of symbols that the user has given.

    Attributes:
        compiled: sizes of the buckets that have executables, or that steps wait for.
        results: dimensions of each result, after the evaluation.
    """

    def __init__(
        self,
        symbols: FeedSymbols,
        low: Mapping[str, int],
        high: Mapping[str, int],
        record: Record,
        said: Mapping[str, Sequence[int]],
    ):
        super().__init__(symbols, low, high)
        self.buckets = Buckets(symbols.work, symbols.unit, said)
        self.executables = LruCache[Call](_MOST_EXECUTABLES)
        self.compiled: set[Form] = set()
        self.results: list[tuple[Dim, ...]] = []
        self.interpreted = defaultdict[Form, float](float)  # seconds, by the bucket that the steps wait for
        self.tracing = 0.0  # seconds
        self.interprets = True  # until a rule is missing
        self._record = record
        self._unpadded: Unpadded | None = None
        self._listings = LruCache[Listing](_MOST_LISTINGS)

    def compiled_bucket(self, need: Mapping[str, int]) -> Mapping[str, int] | None:
        """Return the bucket of least work that holds a batch and is compiled."""
        return next((b for b in self.buckets.holding(need) if tuple(b.items()) in self.compiled), None)

    def identity(self, bucket: Mapping[str, int], batch: Mapping[str, int]) -> tuple[Any, ...]:
        """Return the values that identify the segment at the sizes of a bucket, in all processes.

        Args:
            batch: sizes of the first batch in the bucket.
        """
        symbols = self.symbols
        return symbols.names, symbols.dims, symbols.unit, self.samples, bucket, batch

    def noted(self) -> Any:
        """See `executable_cache.Beside`."""
        return self.results

    def learn(self, noted: Any) -> None:
        """See `executable_cache.Beside`."""
        self.results = noted

    @functools.cached_property
    def _traces(self) -> list[Any]:
        """The jaxpr at each sample. Raises NoRule if the segment cannot be traced at other sizes."""
        at_low = self._record(self.shapes(0))
        at_high = self._record(self.shapes(SAMPLES - 1))
        compare(at_low.jaxpr, at_high.jaxpr)  # most that cannot be padded show it here
        return [at_low, self._record(self.shapes(1)), at_high]

    def _with(self, batch: Mapping[str, int], shapes: Shapes) -> tuple[list[Any], Table, list[tuple[Dim, ...]]]:
        """Return the traces at the samples and at a batch, a table of their sizes, and the dimensions of each feed."""
        traces = [*self._traces, self._record(shapes)]
        factors = {
            name: replace(symbol, samples=(*symbol.samples, batch[name])) for name, symbol in self.factors.items()
        }
        fed = self.symbols.dims_of(factors)
        table = Table(symbols_in(fed), SAMPLES + 1)
        for dim in (d for dims in fed for d in dims if not is_constant(d)):
            table.learn(dim)
        return traces, table, fed

    def listing(self, bucket: Mapping[str, int], batch: Mapping[str, int], shapes: Shapes) -> Listing:
        """Return the segment at the true sizes of a batch, for NumPy. Raises NoRule if it cannot be interpreted."""
        if self._unpadded is None:
            start = time.perf_counter()
            traces, table, _ = self._with(batch, shapes)
            self._unpadded = Unpadded(traces, table)
            self.tracing = time.perf_counter() - start
        unpadded, sizes = self._unpadded, Sizes(bucket, batch)
        return self._listings.get_or_make((*bucket.values(), *batch.values()), lambda: Listing(unpadded.at(sizes)))

    def each(self, batch: Batch) -> list[dict[str, int]] | None:
        """Return the sizes of each share of a batch; None where the traces do not hold for one."""
        found = [own for shapes in batch if (own := self.sizes(shapes)) is not None]
        return found if len(found) == len(batch) else None

    def evaluate(
        self,
        bucket: Mapping[str, int],
        true: Any,
        arguments: Mapping[int, Any],
        platform: str,
        witness: tuple[Mapping[str, int], Shapes],
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
        self.results = [value.dims for value in found]
        return [value.array for value in found]


class ShapeStream:
    """Runner of a segment for a stream of shapes.

    Args:
        exact: runs the segment, compiled for the shapes of the arguments; None if the caller does.
        state: names of arguments with constant shapes.
        platform: "cpu" or "gpu".
        replicas: division of a batch among replicas, where the sizes of shares differ; None for an undivided batch.
    """

    def __init__(
        self,
        segment: Segment,
        exact: Any,
        state: Sequence[str],
        platform: str,
        replicas: FeedShares | None = None,
    ):
        self._segment = weakref.ref(segment)  # which has this stream
        self._exact_call, self._platform = exact, platform
        keeps = set(state)
        self._fed = [i for i, name in enumerate(segment.kept) if name not in keeps]
        self._names = [segment.kept[i] for i in self._fed]
        self._said = known_sizes.said()
        self._replicas = replicas
        self._exact: dict[Batch, None] = {}
        self._observed: dict[Shapes, None] = {}
        self._traced: Traced | None = None
        self._traced_times = 0
        self._refused: NoRule | None = None
        self._refused_times = 0
        self._warned = False
        self._pads = True  # until a feed is no dense array

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        found = self.padded(donated, kept, key)
        if found is not None:
            return found
        if self._replicas is not None:
            self._replicas.check_exact(dict(zip(self._own().kept, kept)))
        return self._exact_call(donated, kept, key)

    def padded(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        """Return the results of a run at padded sizes, or None for shapes that run without padding."""
        if not self._pads:
            return None
        shares = self._shares(kept)
        try:
            batch = tuple([tuple([v.shape for v in own]) for own in shares])
        except AttributeError:  # slots of sequences, or absent values
            self._pads = False
            return None
        if batch in self._exact:
            return None
        if not self._are_arrays(shares):
            self._pads = False
            return None
        for traced, sizes in self._ways(batch, shares, donated, kept, key):
            try:
                found = self._run_padded(traced, sizes, batch, shares, donated, kept, key)
            except NoRule as error:
                self._refused, self._traced = error, None
            else:
                self._refused = None
                return found
        self._run_exactly(batch)
        return None

    def _shares(self, kept: tuple[Any, ...]) -> Sequence[Sequence[Any]]:
        """Return the feeds of each replica."""
        if self._replicas is None:
            return ([kept[i] for i in self._fed],)
        found = [self._replicas.shares(n, kept[i]) for n, i in zip(self._names, self._fed)]
        return ((None,),) if None in found else list(zip(*found))

    def _own(self) -> Segment:
        segment = self._segment()
        assert segment is not None  # it is called
        return segment

    def _are_arrays(self, shares: Sequence[Sequence[Any]]) -> bool:
        """Return True if all feeds are arrays without sequences."""
        return all(isinstance(v, np.ndarray | jax.Array) for own in shares for v in own)

    def _ways(
        self,
        batch: Batch,
        shares: Sequence[Sequence[Any]],
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> Iterator[tuple[Traced, list[dict[str, int]]]]:
        """Yield traced segments that hold for a batch, and the sizes of each share, to be tried one after the other."""
        if self._traced is not None and (sizes := self._traced.each(batch)) is not None:
            yield self._traced, sizes
            return
        if len(self._observed) < _MOST_OBSERVED:
            self._observed.update(dict.fromkeys(batch))
        if len(self._exact) < _EXACT_FIRST and _run_together(batch):
            return
        if self._traced_times >= _MOST_TRACED:
            return
        if self._refused_times >= _MOST_REFUSED:
            return
        self._traced_times += 1
        try:
            symbols = symbols_of(self._observed)
            if symbols is None or not all(is_large(symbols.sizes(own)) for own in batch):
                self._traced_times -= 1
                return
        except NoRule as error:
            self._refused = error
            return
        record = self._record(shares, donated, kept, key)
        said = symbols.said(self._names, self._said)
        for low, high in ranges(symbols):
            try:
                traced = Traced(symbols, low, high, record, said)
            except NoRule as error:
                self._refused = error
                continue
            sizes = traced.each(batch)
            if sizes is None:  # it came after the last one that was observed
                continue
            self._traced = traced
            yield traced, sizes
        self._refused_times += 1

    def _run_padded(
        self,
        traced: Traced,
        sizes: list[dict[str, int]],
        batch: Batch,
        shares: Sequence[Sequence[Any]],
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> Any:
        """Run the segment at the sizes of a bucket. Raises NoRule before anything has run."""
        need = {n: max(own[n] for own in sizes) for n in sizes[0]}
        true = [Sizes(own, {}) for own in sizes]
        bucket: Mapping[str, int] = traced.buckets.choose(need)
        call = self._call(traced, bucket, (sizes[0], batch[0]))
        arguments = self._arguments(traced, bucket, sizes, shares, kept)
        form = tuple(bucket.items())
        try:
            if form not in traced.compiled and not self._is_compiled(traced, form, call, (donated, arguments, key)):
                # Random numbers are those of a bucket, which must not follow from the clock.
                if not jax.tree.leaves(key) and (other := traced.compiled_bucket(need)) is not None:
                    call.begin((donated, arguments, key))
                    bucket, call = other, self._call(traced, other, (sizes[0], batch[0]))
                    arguments = self._arguments(traced, bucket, sizes, shares, kept)
                elif found := self._interpreted(traced, bucket, (sizes[0], batch[0]), call, donated, kept, key):
                    return tuple(self._own().structured(found)), ()
            results, flags = call(donated, arguments, key)
        except NoRule:
            traced.executables.pop(form, None)
            raise
        except ValueError as error:
            if not str(error).startswith(_NOT_LOWERED):
                raise
            traced.executables.pop(form, None)
            raise NoRule("XLA does not take its operators at padded sizes") from error
        padded = Sizes(bucket, {})
        arrays, structure = jax.tree.flatten(results, is_leaf=_is_array)
        found = [
            r if all(map(is_constant, dims)) else self._trimmed(r, dims, padded, true)
            for r, dims in zip(arrays, traced.results)  # the results of the segment come first
        ]
        return jax.tree.unflatten(structure, found), flags

    def _is_compiled(self, traced: Traced, form: Form, call: Call, arguments: Sequence[Any]) -> bool:
        """Return True if a bucket has an executable; begin to compile once that pays."""
        if call.begin(arguments, at_once=self._pays(traced, form)):
            traced.compiled.add(form)
        return form in traced.compiled

    def _pays(self, traced: Traced, form: Form) -> bool:
        """Return True once interpreted steps took as long as all traces: a compilation takes that long, or longer."""
        return not traced.interprets or 0 < traced.tracing <= traced.interpreted[form]

    def _interpreted(
        self,
        traced: Traced,
        bucket: Mapping[str, int],
        witness: tuple[Mapping[str, int], Shapes],
        call: Call,
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> list[jax.Array] | None:
        """Return the results of NumPy at true sizes; None for a segment that NumPy cannot interpret without padding."""
        named = self._own().recorded_arguments(donated, kept) if traced.interprets else None
        if named is None:
            return None
        start = time.perf_counter()
        try:
            listing = traced.listing(bucket, *witness)
            start = time.perf_counter()
            found = call.interpret(listing, (named, key))
        except (NoRule, numpy_steps.NoRule):
            traced.interprets = False
            return None
        traced.interpreted[tuple(bucket.items())] += time.perf_counter() - start
        return found

    def _call(self, traced: Traced, bucket: Mapping[str, int], witness: tuple[Mapping[str, int], Shapes]) -> Call:
        """Return the segment at the sizes of a bucket."""

        def made() -> Call:
            evaluate = self._evaluation(traced, bucket, witness)
            return self._own().padded(evaluate, traced.identity(bucket, witness[0]), traced)

        return traced.executables.get_or_make(tuple(bucket.items()), made)

    def _arguments(
        self,
        traced: Traced,
        bucket: Mapping[str, int],
        sizes: Sequence[Mapping[str, int]],
        shares: Sequence[Sequence[Any]],
        kept: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """Return the arguments `kept` at the sizes of a bucket, followed by the true sizes."""
        padded, true = Sizes(bucket, {}), [Sizes(own, {}) for own in sizes]
        arguments: list[Any] = list(kept)
        for at, (i, dims) in enumerate(zip(self._fed, traced.fed)):
            if self._replicas is None:
                arguments[i] = padded_array(kept[i], dims, padded, true[0])
            elif not all(map(is_constant, dims)):
                arguments[i] = filled_array([own[at] for own in shares], dims, padded, true)
        numbers = [[own[n] for n in traced.symbols.names] for own in sizes]
        return (*arguments, np.array(numbers if self._replicas else numbers[0], np.int64))

    def _trimmed(self, result: Any, dims: tuple[Dim, ...], padded: Sizes, true: Sequence[Sizes]) -> Any:
        """Return a result without its padding."""
        if self._replicas is None:
            return trimmed_array(result, dims, padded, true[0])
        each = zip(self._replicas.divided(result), true, strict=True)
        return self._replicas.together([trimmed_array(r, dims, padded, t) for r, t in each])

    def _record(
        self,
        shares: Sequence[Sequence[Any]],
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> Record:
        """Return a function that traces the segment, as one replica runs it, for shapes of the feeds."""
        own: list[Any] = list(kept)
        for i, value in zip(self._fed, shares[0]):
            own[i] = value
        given = tuple(map(_shapes_of, donated)), tuple(map(_shapes_of, own))

        def record(feeds: Shapes) -> Any:
            return self._own().recorded(*given, key, dict(zip(self._fed, feeds)))

        return record

    def _evaluation(self, traced: Traced, bucket: Mapping[str, int], witness: tuple[Mapping[str, int], Shapes]) -> Any:
        number = {self._own().kept[i]: at for at, i in enumerate(self._fed)}

        def evaluate(values: Mapping[str, Any], key: Any, true: Any) -> list[Any]:
            given = [*values.items(), *([] if key is None else [("", key)])]
            arguments = {number.get(n, -1 - i): v for i, (n, v) in enumerate(given)}
            try:
                return traced.evaluate(bucket, true, arguments, self._platform, witness)
            except NoRule:
                raise
            except Exception as error:  # for example a size that is 1 at one sample only
                text = f"its operators do not take padded sizes ({first_line(error)})"
                raise NoRule(text) from error

        return evaluate

    def _run_exactly(self, batch: Batch) -> None:
        """Note that a shape is compiled as it is; warn of the third one that cannot be padded."""
        self._exact[batch] = None
        if len(self._exact) > _MOST_EXACT:
            del self._exact[next(iter(self._exact))]
        if self._refused is not None and len(self._exact) > _EXACT_FIRST and not self._warned:
            self._warned = True
            _warn(f"{self._refused}{self._where(self._refused)}")

    def _where(self, error: NoRule) -> str:
        """Return which operator has no rule, and the user's line that made it."""
        ops = {at: op for at, op, _ in self._own().items}
        for kind, position in reversed(list(parts_of(error.scope))):
            line = getattr(ops.get(position), "callsite", "")
            return f" (operator {kind}{f', made at {line}' if line else ''})"
        return ""


class ExactShapes:
    """Segment that is compiled for each shape of the feeds; it warns at the third shape.

    Args:
        exact: runs the segment.
        fed: numbers of the arguments that are feeds, without the donated arguments.
        because: the reason for exact shapes.
    """

    def __init__(self, exact: Run, fed: Sequence[int], because: str):
        self._exact, self._fed, self._because = exact, fed, because
        self._seen: set[Shapes] | None = set()  # None once there is nothing more to say

    def __call__(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> Any:
        if self._seen is not None:
            self._note([kept[i] for i in self._fed])
        return self._exact(donated, kept, key)

    def _note(self, feeds: Sequence[Any]) -> None:
        # The rows of replicas with uneven shares have no levels.
        arrays = [v.values if isinstance(v, Ragged) and not v.levels else v for v in feeds]
        if self._seen is None or not all(isinstance(v, np.ndarray | jax.Array) for v in arrays):
            self._seen = None  # sequences have buckets of their own
            return
        self._seen.add(tuple([v.shape for v in arrays]))
        if len(self._seen) > _EXACT_FIRST:
            self._seen = None
            _warn(self._because)


def _warn(because: str) -> None:
    warnings.warn(
        f"this program is compiled anew for each new shape of its feeds: {because}. Pad batches to few shapes",
        RuntimeWarning,
        stacklevel=2,
    )


def _run_together(batch: Batch) -> bool:
    """Return True if shares of a batch differ in their rows alone: the batch then runs without padding."""
    return all(own[1:] == first[1:] for shapes in batch for own, first in zip(shapes, batch[0]))


def _is_array(value: Any) -> bool:
    """Return True if a result is one array of a trace, or the same array for each replica; sparse rows are two."""
    return not isinstance(value, tuple | SelectedRows)


def _shapes_of(value: Any) -> Any:
    """Return the abstract arrays of an argument."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(np.shape(v), v.dtype), value)
