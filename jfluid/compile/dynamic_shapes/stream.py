"""Segment for a stream of feeds with many shapes: a few executables serve all shapes.

The first shapes are compiled without padding. From the third on the segment is traced at samples of the
sizes that vary, and batches are padded to buckets: one executable for each bucket, in which padding is
masked. A segment that cannot be padded is compiled for each shape, and warns once.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jfluid import errors, known_sizes
from jfluid.compile.dynamic_shapes import exact_shapes, index_rules, loop_rules, rules, window_rules
from jfluid.compile.dynamic_shapes.buckets import MOST
from jfluid.compile.dynamic_shapes.dims import Dim, NoRule, Sizes, first_line
from jfluid.compile.dynamic_shapes.exact_shapes import EXACT_FIRST, OperatorWithoutRule
from jfluid.compile.dynamic_shapes.feed_symbols import (
    FeedSymbols,
    Shapes,
    ranges,
    run_together,
    small_sizes,
    symbols_of,
    symbols_with,
    trimmed_array,
)
from jfluid.compile.dynamic_shapes.history import Batch, StreamHistory, TracedHistory
from jfluid.compile.dynamic_shapes.segment import FeedShares, StreamSegment
from jfluid.compile.dynamic_shapes.traced import CompiledCall, Record, Traced, Witness
from jfluid.compile.numpy_steps import interpreter as numpy_steps
from jfluid.compile.numpy_steps.beside import needed
from jfluid.compile.runtime.covers import Notes
from jfluid.host import collector
from jfluid.ops.selected_rows import SelectedRows

_RULES = (rules, index_rules, loop_rules, window_rules)  # their import registers the rules
_MOST_OBSERVED = 64
# How often a segment is traced for sizes that earlier traces do not hold for, and in vain.
_MOST_TRACED, _MOST_REFUSED = 16, 2
_NOT_LOWERED = "Cannot lower jaxpr"  # beginning of JAX's error for contradicting sizes
_MOST_EXACT = 1024  # most remembered shapes without padding
_MOST_KEPT = 4  # histories in the file of a stream: models of other widths have the same operators

# Returns the segment at the sizes of a bucket, and its arguments.
_Prepared = Callable[[Mapping[str, int]], tuple[CompiledCall, tuple[Any, ...]]]


class _Given(NamedTuple):
    """Batch with all arguments of a segment; `shares` has the feeds of each replica, `batch` their shapes."""

    donated: tuple[Any, ...]
    kept: tuple[Any, ...]
    key: Any
    shares: Sequence[Sequence[Any]]
    batch: Batch


class _Second(NamedTuple):
    """Trace of the segment for the second shape of a stream, and the seconds that the trace took."""

    shapes: Shapes
    closed: Any
    seconds: float


class ShapeStream:
    """Runner of a segment for a stream of shapes.

    Args:
        exact: runs the segment, compiled for the shapes of the arguments; None if the caller does.
        state: names of arguments with constant shapes.
        platform: "cpu" or "gpu".
        replicas: division of a batch among replicas, where the sizes of shares differ; None for an undivided batch.
        lengths: names of arguments with a varying size. Once all of these have varied, no further shape runs without
            padding.
        divides: True to raise `OperatorWithoutRule` where one operator keeps the segment from being padded.
    """

    def __init__(
        self,
        segment: StreamSegment,
        exact: Any,
        state: Sequence[str],
        platform: str,
        replicas: FeedShares | None = None,
        lengths: Sequence[str] = (),
        divides: bool = False,
    ):
        self._segment = weakref.ref(segment)  # which has this stream
        self.divides = divides
        self._exact_call, self._platform = exact, platform
        keeps = set(state)
        self._fed = [i for i, name in enumerate(segment.kept) if name not in keeps]
        self._names = [segment.kept[i] for i in self._fed]
        self._lengths = [self._names.index(name) for name in lengths]
        self._said = known_sizes.said()
        self._replicas = replicas
        self._exact: dict[Batch, bool] = {}  # True for shapes with an executable, or that wait for one
        self._observed: dict[Shapes, None] = {}
        self._traces: list[Traced] = []  # the oldest first
        self._traced_times = 0
        self._recalled: list[TracedHistory] = []  # until the segment is traced again
        self._file: Notes | None = None
        self._earlier: list[StreamHistory] | None = None  # of earlier processes, once the file is read
        self._second: _Second | None = None
        self._refused = ""  # reason for exact shapes
        self._refused_at: int | None = None  # position of the operator that is the reason
        self._refused_times = 0
        self._refused_small: list[dict[str, int]] = []  # sizes of 0 and 1 with which the segment cannot be padded
        self._warned = self._warned_of_many = False
        self._pads = True  # until a feed is no dense array

    def operator_without_rule(self) -> OperatorWithoutRule | None:
        """Return the operator at which the segment is divided, since it cannot be padded; None without one."""
        if not self.divides or self._refused_at is None or self._traces or not self._refused_times:
            return None
        return OperatorWithoutRule(self._refused_at, self._refused)

    @property
    def is_refused(self) -> bool:
        """True if the latest attempt to run the segment at padded sizes failed."""
        return bool(self._refused)

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
        if batch in self._exact and (self._exact[batch] or not self._traces):
            return None
        if not self._are_arrays(shares):
            self._pads = False
            return None
        given = _Given(donated, kept, key, shares, batch)
        if batch not in self._exact:
            self._trace_again(given)
        if batch in self._exact and self._stays_exact(given):
            return None
        for traced, sizes, covers in self._ways(given):
            try:
                found = self._run_padded(traced, sizes, given, covers)
            except NoRule as error:
                self._refuse(error)
                self._traces = [t for t in self._traces if t is not traced]
            else:
                if found is not None:
                    self._refused, self._refused_at = "", None
                    return found
        is_second = batch not in self._exact and len(self._exact) == 1
        self._run_exactly(batch)
        return self._run_second(given) if is_second else None

    def observe(self, shapes: Shapes) -> None:
        """Note the shapes of a batch that the caller has run."""
        self._observed[shapes] = None

    def history(self) -> StreamHistory:
        """Return what the sizes of further batches follow from."""
        exact = list(self._exact)
        if not self._traces and self._is_given_up:  # any batches will do: all shapes are exact
            exact = exact[: EXACT_FIRST + 1]
        return StreamHistory(
            list(self._observed),
            exact,
            [*self._recalled, *(traced.history() for traced in self._traces)],
            self._traced_times,
            self._refused,
            self._refused_times,
            self._pads,
            self._refused_at,
        )

    def recall(self, history: StreamHistory) -> None:
        """Pad batches as after the batches of an earlier process. Raises FeedError for other feeds."""
        shapes = [*history.observed, *(own for batch in history.exact for own in batch)]
        if any(len(own) != len(self._fed) for own in shapes):
            raise errors.FeedError(
                f"sizes of an earlier process are not sizes of {', '.join(self._names) or 'no feed'}"
            )
        if history.refused_at is not None and history.refused_at not in {at for at, _, _ in self._own().items}:
            raise errors.FeedError(
                f"sizes of an earlier process name operator {history.refused_at}, which is none here"
            )
        self._observed, self._exact = dict.fromkeys(history.observed), dict.fromkeys(history.exact, False)
        self._traces, self._recalled = [], history.traced
        self._traced_times, self._pads = history.traced_times, history.pads
        self._refused, self._refused_times = history.refused, history.refused_times
        self._refused_at = history.refused_at

    @property
    def _is_given_up(self) -> bool:
        """True if the segment is not traced again."""
        return self._traced_times >= _MOST_TRACED or self._refused_times >= _MOST_REFUSED

    def _trace_again(self, given: _Given) -> None:
        """Have the traced segments of an earlier process, if its history holds for a batch."""
        if self._earlier is None:
            self._file = self._own().histories()
            self._earlier = [] if self._file is None else self._file.noted_sizes()
        if not self._traces and not self._recalled:
            for history in self._earlier:
                if history.holds(given.batch):
                    self._earlier.remove(history)
                    exact = [*self._exact, *history.exact]
                    self.recall(replace(history, exact=exact))
                    self._divide()
                    break
        recalled, self._recalled = self._recalled, []
        for own in recalled:
            symbols, low, high = own.samples(list(self._observed))
            traced = self._traced(given, symbols, low, high, (own.observed, own.range, own.small))
            traced.recall(own)
            if self._own().waits:
                traced.compiled.update(traced.witnesses)
            self._traces.append(traced)

    def _traced(
        self,
        given: _Given,
        symbols: FeedSymbols,
        low: Mapping[str, int],
        high: Mapping[str, int],
        origin: tuple[int, int, dict[str, int]],
    ) -> Traced:
        """Return the segment, to be traced at samples of symbols. Raises NoRule for samples that are alike."""
        record, said = self._record(given), symbols.said(self._names, self._said)

        def others() -> int:
            return self._exact_count() + sum(len(t.buckets) for t in self._traces if t is not traced)

        traced = Traced(symbols, low, high, record, said, origin, others)
        second = self._second
        if second and (sizes := traced.sizes(second.shapes)) is not None:
            traced.witnessed(sizes, *second)
        return traced

    def _exact_count(self) -> int:
        """Return the number of executables without padding."""
        return len(self._exact) if self._own().waits else sum(self._exact.values())

    def _has_room(self) -> bool:
        """Return True if the stream may compile; warn once if it may not."""
        count = self._exact_count() + sum(len(t.compiled | t.begun) for t in self._traces)
        most = MOST + sum(len(sizes) for dims in self._said.values() for sizes in dims.values())
        if count >= most and not self._warned_of_many:
            self._warned_of_many = True
            exact_shapes.warn_of_many(count)
        return count < most

    def _keep(self) -> None:
        """Write the history of this stream to its file, for later processes."""
        if self._file is not None:
            own = self.history()
            if self._traces:
                own = replace(own, refused="", refused_times=0, refused_at=None, traced_times=len(self._traces))
            own.exact = own.exact[:EXACT_FIRST]
            self._file.note_sizes([own, *(self._earlier or ())][:_MOST_KEPT])

    def _stays_exact(self, given: _Given) -> bool:
        """Return True if shapes that ran without padding run so again: no traced segment spares their compilation."""
        if any(traced.each(given.batch) for traced in self._traces):
            self._exact[given.batch] = self._own().is_ready(given.donated, given.kept, given.key)
            return self._exact[given.batch]
        return True

    def _shares(self, kept: tuple[Any, ...]) -> Sequence[Sequence[Any]]:
        """Return the feeds of each replica."""
        if self._replicas is None:
            return ([kept[i] for i in self._fed],)
        found = [self._replicas.shares(n, kept[i]) for n, i in zip(self._names, self._fed)]
        return ((None,),) if None in found else list(zip(*found))

    def _own(self) -> StreamSegment:
        segment = self._segment()
        assert segment is not None  # it is called
        return segment

    def _are_arrays(self, shares: Sequence[Sequence[Any]]) -> bool:
        """Return True if all feeds are arrays without sequences."""
        kinds = {type(v) for own in shares for v in own}
        return all(issubclass(kind, np.ndarray | jax.Array) for kind in kinds)

    def _ways(self, given: _Given) -> Iterator[tuple[Traced, list[dict[str, int]], bool]]:
        """Yield traced segments that hold for a batch, to be tried one after the other, with the sizes of each share.

        The third value is True for a segment in which the batch only runs if it has a compiled bucket for the batch.
        """
        batch, traces = given.batch, self._traces
        held = [(traced, sizes) for traced in traces if (sizes := traced.each(batch)) is not None]
        yield from ((traced, sizes, True) for traced, sizes in held[:-1])
        if held:
            yield *held[-1], False
            return
        if len(self._observed) < _MOST_OBSERVED:
            self._observed.update(dict.fromkeys(batch))
        if len(self._exact) < EXACT_FIRST and run_together(batch) and not self._lengths_vary():
            return
        if self._is_given_up:
            return
        try:
            small = self._small(batch)
            symbols = None if small is None else symbols_with(list(self._observed), small)
        except NoRule as error:
            self._traced_times += 1
            self._refuse(error)
            return
        if small is None or symbols is None or not symbols.names:
            return
        self._traced_times += 1
        several = list(enumerate(ranges(symbols)))
        if not (traces and traces[-1].symbols.dims == symbols.dims):  # other sizes vary; sizes have not just grown
            several.pop()
        for number, (low, high) in [*several[3:], *several[:3]]:
            try:
                traced = self._traced(given, symbols, low, high, (len(self._observed), number, small))
            except NoRule as error:
                self._refuse(error)
                continue
            sizes = traced.each(batch)
            if sizes is None:  # it came after the last one that was observed
                continue
            # The new segment holds for all batches so far: only executables of the earlier ones are of use.
            self._traces = [*(t for t in traces if t.has_executables), traced]
            traced.interpreting = sum(t.interpreting for t in traces if not t.has_executables)
            yield traced, sizes, False
        self._traces = traces
        if small:
            self._refused_small.append(small)
        else:
            self._refused_times += 1
            self._divide()

    def _divide(self) -> None:
        """Raise OperatorWithoutRule, if there is such an operator."""
        if (found := self.operator_without_rule()) is not None:
            self._keep()
            raise found

    def _refuse(self, error: NoRule) -> None:
        """Note why a batch runs without padding."""
        self._refused, self._refused_at = exact_shapes.reason_of(error, self._own().items)

    def _small(self, batch: Batch) -> dict[str, int] | None:
        """Return the sizes of 0 and 1 of a batch, which programs treat differently; None if the batch runs exactly.

        Raises NoRule if ranks differ.
        """
        symbols = FeedSymbols.of(list(self._observed))
        sizes = [symbols.sizes(own) for own in batch]
        each = [None if own is None else small_sizes(own) for own in sizes]
        return each[0] if all(own == each[0] for own in each) and each[0] not in self._refused_small else None

    def _lengths_vary(self) -> bool:
        """Return True if there are arguments of varying size, and all of these have varied."""
        try:
            symbols = symbols_of(self._observed) if self._lengths else None
        except NoRule:
            return False
        return symbols is not None and not any(isinstance(dim, int) for at in self._lengths for dim in symbols.dims[at])

    def _run_padded(self, traced: Traced, sizes: list[dict[str, int]], given: _Given, covers: bool) -> Any:
        """Run the segment at the sizes of a bucket. Raises NoRule before anything has run.

        Args:
            covers: return None without a compiled bucket that holds the batch.
        """
        need = {n: max(own[n] for own in sizes) for n in sizes[0]}
        witness = sizes[0], given.batch[0]

        def prepared(bucket: Mapping[str, int]) -> tuple[CompiledCall, tuple[Any, ...]]:
            arguments = given.donated, self._arguments(traced, bucket, sizes, given.shares, given.kept), given.key
            return self._call(traced, bucket, witness), arguments

        if covers and not self._wait(traced, need, prepared) and traced.compiled_bucket(need) is None:
            return None
        bucket: Mapping[str, int] | None = None
        if traced.interprets and not self._own().waits:
            bucket = self._compiled_bucket(traced, need, prepared)
            if bucket is None and (found := self._interpreted(traced, witness, given)):
                return tuple(self._own().structured(found)), ()
        bucket = bucket or traced.buckets.choose(need)
        call, arguments = prepared(bucket)
        try:
            self._is_compiled(traced, bucket, call, arguments)  # if it is not, the call waits
            results, flags = traced.run(bucket, call, arguments)
        except NoRule:
            traced.executables.pop(tuple(bucket.items()), None)
            raise
        except ValueError as error:
            if not str(error).startswith(_NOT_LOWERED):
                raise
            traced.executables.pop(tuple(bucket.items()), None)
            raise NoRule("XLA does not take its operators at padded sizes") from error
        if not traced.varying_results:
            return results, flags
        padded, true = Sizes(bucket, {}), [Sizes(own, {}) for own in sizes]
        arrays, structure = jax.tree.flatten(results, is_leaf=_is_array)
        for at in traced.varying_results:
            arrays[at] = self._trimmed(arrays[at], traced.results[at], padded, true)
        return jax.tree.unflatten(structure, arrays), flags

    def _is_compiled(
        self, traced: Traced, bucket: Mapping[str, int], call: CompiledCall, given: Sequence[Any], at_once: bool = False
    ) -> bool:
        """Return True if a bucket has an executable; with `at_once`, begin to compile it."""
        form, begins = tuple(bucket.items()), at_once or not traced.interprets
        if (begins or self._own().waits) and form not in traced.compiled | traced.begun and not self._has_room():
            begins = not traced.interprets
        if form not in traced.compiled and call.begin(given, at_once=begins):
            traced.compiled.add(form)
        elif begins and form not in traced.begun:
            traced.begun.add(form)
        else:
            return form in traced.compiled
        if form not in traced.stored:
            traced.stored.add(form)
            self._keep()
        return form in traced.compiled

    def _wait(self, traced: Traced, need: Mapping[str, int], prepared: _Prepared) -> bool:
        """Return True if a bucket for a batch is being compiled; note the buckets that have executables by now."""
        waits = False
        for bucket in traced.begun_buckets(need):
            if not self._is_compiled(traced, bucket, *prepared(bucket)):
                form = tuple(bucket.items())
                if form in traced.begun:
                    waits = True
                else:  # it has no file
                    traced.stored.remove(form)
                    traced.buckets.forget(bucket)
        return waits

    def _compiled_bucket(
        self, traced: Traced, need: Mapping[str, int], prepared: _Prepared
    ) -> Mapping[str, int] | None:
        """Return the compiled bucket of least work for a batch, or None to interpret the batch.

        Compilations begin once they pay: of the bucket that saves most for all batches so far.
        """
        buckets = traced.buckets
        buckets.count(need)
        waits = self._wait(traced, need, prepared)
        found = traced.compiled_bucket(need)
        if found is not None:
            traced.note_padding(need, found)
            if not waits and traced.pays(traced.padding):
                traced.padding = 0.0
                buckets.refine()
        elif not waits and traced.pays(traced.interpreting):
            traced.interpreting = 0.0
            buckets.worth_most(need)
        wanted = buckets.best(need)
        if wanted is None or tuple(wanted.items()) in traced.compiled | traced.begun:
            return found
        return wanted if self._is_compiled(traced, wanted, *prepared(wanted), at_once=True) else found

    def _run_second(self, given: _Given) -> Any:
        """Return the results of NumPy for the second shape, or None to trace the shape for XLA.

        The trace serves as a sample once a third shape comes. If the second shape comes again, it is traced for XLA.
        """
        own = self._own()
        if self._exact_call is None or own.waits or symbols_of(self._observed) is None:
            return None
        named = own.recorded_arguments(given.donated, given.kept)
        if named is None or own.is_ready(given.donated, given.kept, given.key):
            return None
        start = time.perf_counter()
        try:
            with collector.paused(settle=True):  # the trace stays, and has very many objects
                closed = self._record(given)(given.batch[0])
                seconds = time.perf_counter() - start
                found = own.interpret(numpy_steps.Listing(needed(closed)), named, given.key)
        except (NoRule, numpy_steps.NotInterpretable):
            return None
        self._second = _Second(given.batch[0], closed, seconds)
        return tuple(own.structured(found)), ()

    def _interpreted(self, traced: Traced, witness: Witness, given: _Given) -> list[jax.Array] | None:
        """Return the results of NumPy at true sizes; None for a segment that NumPy cannot interpret without padding."""
        if not traced.interprets:
            return None
        named = self._own().recorded_arguments(given.donated, given.kept)
        start = time.perf_counter()
        try:
            listing = traced.listing(*witness)
            start = time.perf_counter()
            found = self._own().interpret(listing, named, given.key)
        except (NoRule, numpy_steps.NotInterpretable):
            traced.interprets = False
            return None
        traced.interpreting += time.perf_counter() - start
        return found

    def _call(self, traced: Traced, bucket: Mapping[str, int], witness: Witness) -> CompiledCall:
        """Return the segment at the sizes of a bucket."""
        form = tuple(bucket.items())
        # One batch checks the samples of all buckets, so that it is traced once; a later process chooses the same.
        first = next(iter(traced.witnesses.values()), traced.witness or witness)
        witness = traced.witnesses.setdefault(form, first)

        def made() -> CompiledCall:
            evaluate = self._evaluation(traced, bucket, witness)
            return self._own().padded(evaluate, traced.identity(bucket, witness[0]), traced)

        return traced.executables.get_or_make(form, made)

    def _arguments(
        self,
        traced: Traced,
        bucket: Mapping[str, int],
        sizes: Sequence[Mapping[str, int]],
        shares: Sequence[Sequence[Any]],
        kept: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """Return the arguments `kept` at the sizes of a bucket, followed by the true sizes."""
        arguments: list[Any] = list(kept)
        for at, layout in traced.layouts(bucket, sizes):
            filled = layout.filled([own[at] for own in shares])
            arguments[self._fed[at]] = filled if self._replicas else filled[0]
        numbers = [[own[n] for n in traced.symbols.names] for own in sizes]
        return (*arguments, np.array(numbers if self._replicas else numbers[0], np.int64))

    def _trimmed(self, result: Any, dims: tuple[Dim, ...], padded: Sizes, true: Sequence[Sizes]) -> Any:
        """Return a result without its padding."""
        if self._replicas is None:
            return trimmed_array(result, dims, padded, true[0])
        each = zip(self._replicas.divided(result), true, strict=True)
        return self._replicas.together([trimmed_array(r, dims, padded, t) for r, t in each])

    def _record(self, given: _Given) -> Record:
        """Return a function that traces the segment, as one replica runs it, for shapes of the feeds."""
        own: list[Any] = list(given.kept)
        for i, value in zip(self._fed, given.shares[0]):
            own[i] = value
        arguments, key = (tuple(map(_shapes_of, given.donated)), tuple(map(_shapes_of, own))), given.key

        def record(feeds: Shapes) -> Any:
            return self._own().recorded(*arguments, key, dict(zip(self._fed, feeds)))

        return record

    def _evaluation(self, traced: Traced, bucket: Mapping[str, int], witness: Witness) -> Any:
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
        self._exact[batch] = False
        if self._is_given_up and not self._refused:
            self._refused = "the sizes of the feeds follow no rule that lasts"
        if len(self._exact) > _MOST_EXACT:
            del self._exact[next(iter(self._exact))]
        if self._refused and len(self._exact) > EXACT_FIRST and not self._warned:
            self._warned = True
            exact_shapes.warn(self._refused)


def _is_array(value: Any) -> bool:
    """Return True if a result is one array of a trace, or the same array for each replica; sparse rows are two."""
    return not isinstance(value, tuple | SelectedRows)


def _shapes_of(value: Any) -> Any:
    """Return the abstract arrays of an argument."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(np.shape(v), v.dtype), value)
