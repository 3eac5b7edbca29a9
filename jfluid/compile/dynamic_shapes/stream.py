"""Segment for a stream of feeds with many shapes: a few executables serve all shapes.

The first shapes are compiled without padding. From the third on the segment is traced at three samples of the
sizes that vary, and batches are padded to buckets: one executable for each bucket, in which padding is
masked. A segment that cannot be padded is compiled for each shape, and warns once.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from jfluid import errors, known_sizes
from jfluid.compile.dynamic_shapes import index_rules, loop_rules, rules, window_rules
from jfluid.compile.dynamic_shapes.dims import (
    Dim,
    NoRule,
    Sizes,
    first_line,
    is_constant,
)
from jfluid.compile.dynamic_shapes.exact_shapes import EXACT_FIRST, warn
from jfluid.compile.dynamic_shapes.feed_symbols import (
    Shapes,
    filled_array,
    is_large,
    padded_array,
    ranges,
    symbols_of,
    trimmed_array,
)
from jfluid.compile.dynamic_shapes.history import Batch, StreamHistory, TracedHistory
from jfluid.compile.dynamic_shapes.interpreter import parts_of
from jfluid.compile.dynamic_shapes.traced import Call, Record, Traced, Witness
from jfluid.compile.numpy_steps import interpreter as numpy_steps
from jfluid.compile.plan import Item
from jfluid.compile.runtime.covers import Notes
from jfluid.compile.runtime.executable_cache import Beside
from jfluid.ops.selected_rows import SelectedRows

_RULES = (rules, index_rules, loop_rules, window_rules)  # their import registers the rules
_MOST_OBSERVED = 64
# How often a segment is traced for sizes that earlier traces do not hold for, and in vain.
_MOST_TRACED, _MOST_REFUSED = 8, 2
_TIMED = 3  # measured runs of a bucket, which steps wait for
_NOT_LOWERED = "Cannot lower jaxpr"  # beginning of JAX's error for contradicting sizes
_MOST_EXACT = 1024  # most remembered shapes without padding


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

    def notes(self, identity: Sequence[Any]) -> Notes | None:
        """Return the file of the buckets that are kept; None without any, and where steps wait for their bucket.

        Args:
            identity: values that identify the padded forms of the segment.
        """

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
        self._recalled: TracedHistory | None = None  # until the segment is traced again
        self._refused = ""  # reason for exact shapes
        self._refused_times = 0
        self._warned = False
        self._pads = True  # until a feed is no dense array

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
        if batch in self._exact:
            return None
        if not self._are_arrays(shares):
            self._pads = False
            return None
        for traced, sizes in self._ways(batch, shares, donated, kept, key):
            try:
                found = self._run_padded(traced, sizes, batch, shares, donated, kept, key)
            except NoRule as error:
                self._refused, self._traced = self._reason(error), None
            else:
                self._refused = ""
                return found
        self._run_exactly(batch)
        return None

    def history(self) -> StreamHistory:
        """Return what the sizes of further batches follow from."""
        exact = list(self._exact)
        if self._traced is None and self._is_given_up:  # any batches will do: all shapes are exact
            exact = exact[: EXACT_FIRST + 1]
        return StreamHistory(
            list(self._observed),
            exact,
            self._recalled if self._traced is None else self._traced.history(),
            self._traced_times,
            self._refused,
            self._refused_times,
            self._pads,
        )

    def recall(self, history: StreamHistory) -> None:
        """Pad batches as after the batches of an earlier process. Raises FeedError for other feeds."""
        shapes = [*history.observed, *(own for batch in history.exact for own in batch)]
        if any(len(own) != len(self._fed) for own in shapes):
            raise errors.FeedError(
                f"sizes of an earlier process are not sizes of {', '.join(self._names) or 'no feed'}"
            )
        self._observed, self._exact = dict.fromkeys(history.observed), dict.fromkeys(history.exact)
        self._traced, self._recalled = None, history.traced
        self._traced_times, self._pads = history.traced_times, history.pads
        self._refused, self._refused_times = history.refused, history.refused_times

    @property
    def _is_given_up(self) -> bool:
        """True if the segment is not traced again."""
        return self._traced_times >= _MOST_TRACED or self._refused_times >= _MOST_REFUSED

    def _traced_again(
        self,
        history: TracedHistory,
        shares: Sequence[Sequence[Any]],
        donated: tuple[Any, ...],
        kept: tuple[Any, ...],
        key: Any,
    ) -> Traced:
        """Return the traced segment of an earlier process."""
        symbols, low, high = history.samples(list(self._observed))
        record, said = self._record(shares, donated, kept, key), symbols.said(self._names, self._said)
        traced = Traced(symbols, low, high, record, said, (history.observed, history.range))
        traced.recall(history)
        return traced

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
        if self._recalled is not None:
            self._traced, self._recalled = self._traced_again(self._recalled, shares, donated, kept, key), None
        if self._traced is not None and (sizes := self._traced.each(batch)) is not None:
            yield self._traced, sizes
            return
        if len(self._observed) < _MOST_OBSERVED:
            self._observed.update(dict.fromkeys(batch))
        if len(self._exact) < EXACT_FIRST and _run_together(batch):
            return
        if self._is_given_up:
            return
        self._traced_times += 1
        try:
            symbols = symbols_of(self._observed)
            if symbols is None or not all(is_large(symbols.sizes(own)) for own in batch):
                self._traced_times -= 1
                return
        except NoRule as error:
            self._refused = self._reason(error)
            return
        record, said = self._record(shares, donated, kept, key), symbols.said(self._names, self._said)
        for number, (low, high) in enumerate(ranges(symbols)):
            try:
                traced = Traced(symbols, low, high, record, said, (len(self._observed), number))
            except NoRule as error:
                self._refused = self._reason(error)
                continue
            traced.use(self._own().notes(traced.form))
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
        witness = sizes[0], batch[0]
        bucket: Mapping[str, int] = traced.buckets.choose(need)

        def prepared(bucket: Mapping[str, int]) -> tuple[Call, tuple[Any, ...]]:
            given = donated, self._arguments(traced, bucket, sizes, shares, kept), key
            return self._call(traced, bucket, witness), given

        call, given = prepared(bucket)
        try:
            if not self._is_compiled(traced, bucket, call, given):
                if (cover := self._cover(traced, bucket, need, prepared)) is not None:
                    bucket, (call, given) = cover, prepared(cover)
                elif found := self._interpreted(traced, witness, call, donated, kept, key):
                    return tuple(self._own().structured(found)), ()
            results, flags = self._timed(traced, bucket, call, given)
        except NoRule:
            traced.executables.pop(tuple(bucket.items()), None)
            raise
        except ValueError as error:
            if not str(error).startswith(_NOT_LOWERED):
                raise
            traced.executables.pop(tuple(bucket.items()), None)
            raise NoRule("XLA does not take its operators at padded sizes") from error
        padded, true = Sizes(bucket, {}), [Sizes(own, {}) for own in sizes]
        arrays, structure = jax.tree.flatten(results, is_leaf=_is_array)
        found = [
            r if all(map(is_constant, dims)) else self._trimmed(r, dims, padded, true)
            for r, dims in zip(arrays, traced.results)  # the results of the segment come first
        ]
        return jax.tree.unflatten(structure, found), flags

    def _is_compiled(
        self, traced: Traced, bucket: Mapping[str, int], call: Call, given: Sequence[Any], at_once: bool = False
    ) -> bool:
        """Return True if a bucket has an executable; with `at_once`, begin to compile it."""
        form = tuple(bucket.items())
        if form not in traced.compiled and call.begin(given, at_once=at_once or not traced.interprets):
            traced.compiled.add(form)
            traced.note(form)
        elif at_once:
            traced.begun.add(form)
        return form in traced.compiled

    def _cover(
        self,
        traced: Traced,
        bucket: Mapping[str, int],
        need: Mapping[str, int],
        prepared: Callable[[Mapping[str, int]], tuple[Call, tuple[Any, ...]]],
    ) -> Mapping[str, int] | None:
        """Return the compiled bucket in which a batch runs until its bucket is compiled, or None without any.

        Compilations begin once they pay: of the batch's bucket, or without any compiled bucket of a bucket for all
        batches so far.
        """
        waits = False
        for begun in traced.begun_buckets(need):
            if not self._is_compiled(traced, begun, *prepared(begun)):
                waits = waits or tuple(begun.items()) in traced.begun
        found = traced.compiled_bucket(need)
        if found is not None:
            traced.note_padding(bucket, found)
        elif waits:
            return None
        wanted, waiting = (bucket, tuple(bucket.items())) if found else (traced.buckets.holding_all(), None)
        if not traced.pays(waiting):
            return found
        if found is None:
            traced.waited[None] = 0.0
        return wanted if self._is_compiled(traced, wanted, *prepared(wanted), at_once=True) else found

    def _timed(self, traced: Traced, bucket: Mapping[str, int], call: Call, given: tuple[Any, ...]) -> Any:
        """Run a bucket; the first runs are measured, if steps are interpreted until a bucket is compiled."""
        runs = traced.runs[tuple(bucket.items())]
        if len(runs) >= _TIMED or not traced.tracing:
            return call(*given)
        start = time.perf_counter()
        found = jax.block_until_ready(call(*given))
        runs.append(time.perf_counter() - start)
        return found

    def _interpreted(
        self,
        traced: Traced,
        witness: Witness,
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
            listing = traced.listing(*witness)
            start = time.perf_counter()
            found = call.interpret(listing, (named, key))
        except (NoRule, numpy_steps.NoRule):
            traced.interprets = False
            return None
        traced.waited[None] += time.perf_counter() - start
        return found

    def _call(self, traced: Traced, bucket: Mapping[str, int], witness: Witness) -> Call:
        """Return the segment at the sizes of a bucket."""
        form = tuple(bucket.items())
        # One batch checks the samples of all buckets, so that it is traced once; a later process chooses the same.
        first = next(iter(traced.witnesses.values()), traced.witness or witness)
        witness = traced.witnesses.setdefault(form, first)

        def made() -> Call:
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
        self._exact[batch] = None
        if len(self._exact) > _MOST_EXACT:
            del self._exact[next(iter(self._exact))]
        if self._refused and len(self._exact) > EXACT_FIRST and not self._warned:
            self._warned = True
            warn(self._refused)

    def _reason(self, error: NoRule) -> str:
        """Return the reason for exact shapes: which operator has no rule, and the user's line that made it."""
        ops = {at: op for at, op, _ in self._own().items}
        for kind, position in reversed(list(parts_of(error.scope))):
            line = getattr(ops.get(position), "callsite", "")
            return f"{error} (operator {kind}{f', made at {line}' if line else ''})"
        return str(error)


def _run_together(batch: Batch) -> bool:
    """Return True if shares of a batch differ in their rows alone: the batch then runs without padding."""
    return all(own[1:] == first[1:] for shapes in batch for own, first in zip(shapes, batch[0]))


def _is_array(value: Any) -> bool:
    """Return True if a result is one array of a trace, or the same array for each replica; sparse rows are two."""
    return not isinstance(value, tuple | SelectedRows)


def _shapes_of(value: Any) -> Any:
    """Return the abstract arrays of an argument."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(np.shape(v), v.dtype), value)
