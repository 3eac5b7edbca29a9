"""Shape streams of imperative steps: equal calls with varying sizes share executables.

`jfluid.compile.dynamic_shapes` does this for programs. The calls of a step determine its stream: steps of a loop with
varying batch lengths have equal calls, unless an attribute depends on a length. If the number of calls depends on a
length, because the script calls a cell for each word, the outline of the step determines its stream (see
`loop_reroll`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jfluid import flags
from jfluid.caches import kept_files
from jfluid.compile.dynamic_shapes.segment import Evaluate, StreamSegment
from jfluid.compile.dynamic_shapes.stream import ShapeStream
from jfluid.compile.lowering import trace
from jfluid.compile.lowering.plan import Item
from jfluid.compile.numpy_steps.beside import device_of_interpreter, interpreted, placed
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.compile.runtime.executable_cache import DiskEntry, TraceResults, entry_of_items
from jfluid.compile.runtime.executables import Executables
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.options import options
from jfluid.dygraph import released_ops
from jfluid.dygraph.calls import Call
from jfluid.dygraph.compiled_trace import Kind, Record, Seeds, jitted, key_of, outline, program
from jfluid.dygraph.lazy_values import in_order
from jfluid.dygraph.loop_reroll import Op, Outline, Span, form_of, outline_of, spans_of
from jfluid.dygraph.rerolled_steps import RerolledStep, arguments, identity_of, ops_of, outline_calls
from jfluid.dygraph.trace_trie import TraceNode
from jfluid.ops.registry import is_local

FLAG = "FLAGS_dynamic_shapes"
_MOST = 32
_MOST_OUTLINES = 256
_FEWEST = 4  # calls of a step in a stream, unless a call is a Program


class _Segment(StreamSegment):
    """A step in the form that a stream needs.

    Attributes:
        live: names of the results.
    """

    def __init__(self, items: list[Item], kept: list[str], live: list[str], device: jax.Device):
        super().__init__(items, [], kept, "step")
        self.live, self._device = live, device

    @abstractmethod
    def results(self, env: dict[str, Any], seeds: Any) -> list[Any]:
        """Trace the step with exact shapes, and return its results.

        Args:
            env: arguments by name.
            seeds: seeds of random numbers.
        """

    def outline(self) -> Any:
        """Return the part of the disk cache key beside items, or None for a step not saved on disk."""
        return None

    @property
    def waits(self) -> bool:
        """See `StreamSegment.waits`."""
        return device_of_interpreter(self._device) is None

    def is_ready(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> bool:
        """Return True if steps wait: a step whose exact shapes are compiled does not reach its stream."""
        return self.waits

    def interpret(self, listing: Listing, values: Mapping[str, Any], key: Any) -> list[Any]:
        """See `StreamSegment.interpret`."""
        return interpreted(listing, (values, key), self._device)

    def jaxpr(self, values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], key: Any) -> Any:
        """See `StreamSegment.jaxpr`."""
        given = {n: jax.ShapeDtypeStruct(shapes.get(n, np.shape(v)), v.dtype) for n, v in values.items()}
        return trace.jaxpr_of(self.results, given, key)

    def lower_padded(
        self, evaluate: Evaluate, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any, true: Any
    ) -> Any:
        """See `StreamSegment.lower_padded`."""
        return self._laid_out(lambda given: evaluate(given, key, true), kept), ()

    def _laid_out(self, compute: Callable[[dict[str, Any]], list[Any]], values: Sequence[Any]) -> tuple[Any, ...]:
        """Trace a function of arguments by name that returns the results, with the rewrites for CPUs."""

        def with_results(given: dict[str, Any]) -> dict[str, Any]:
            given.update(zip(self.live, compute(given), strict=True))
            return given

        on_cpu = self._device.platform == "cpu"
        found = trace.laid_out(with_results, self.items, dict(zip(self.kept, values)), on_cpu)
        return tuple([found[name] for name in self.live])

    def executables(self, run: Callable[..., Any], entry: DiskEntry | None) -> Executables:
        """See `StreamSegment.executables`."""
        return Executables(lambda: jitted(run, self._device), entry, device_of_interpreter(self._device))

    def entry_of(self, identity: Sequence[Any], beside: TraceResults | None = None) -> DiskEntry | None:
        """See `StreamSegment.entry_of`."""
        own = self.outline()
        if own is None:
            return None
        whole = own, self.kept, self.live, identity
        return entry_of_items(self.items, whole, self._device, options(self._device), beside)


class EagerSegment(_Segment):
    """The calls of a step.

    Args:
        live: numbers of the referenced results.
    """

    def __init__(self, records: Sequence[Record], leaves: int, live: Sequence[int], device: jax.Device):
        items, self._drawing, self._constants = program(records)
        names = [f"l{i}" for i in range(leaves)]
        super().__init__(items, names, [f"v{number}" for number in live], device)

    def results(self, env: dict[str, Any], seeds: Any) -> list[Any]:
        """See `_Segment`."""
        keys = {at: key_of(seeds[place]) for at, place in self._drawing}
        found = trace.recorded(self.items, env | self._constants, keys=keys)
        return [trace.dense(name, found.get(name)) for name in self.live]

    def outline(self) -> Any:
        """See `_Segment`."""
        return outline(self.items, self._drawing, self._constants)


class RerolledSegment(_Segment):
    """Calls and loops of a step with loops of varying length.

    Args:
        calls: calls of the step from which the outline was derived.
        names: names of the arguments.

    Attributes:
        exact: runs the step at the sizes of the arguments.
    """

    def __init__(self, outline: Outline, calls: Sequence[Call], names: list[str], device: jax.Device):
        items = [(at, call.op, call.definition) for at, call in outline_calls(outline, calls)]
        super().__init__(items, names, [f"r{i}" for i in range(len(outline.results))], device)
        self._step = RerolledStep(outline, calls)
        self._identity = identity_of(outline, calls)

        def run(*values: Any) -> tuple[Any, ...]:
            return self._laid_out(lambda given: self.results(given, None), values)

        self.exact = self.executables(run, self.entry_of(["exact"]))

    def is_ready(self, donated: tuple[Any, ...], kept: tuple[Any, ...], key: Any) -> bool:
        """See `StreamSegment.is_ready`."""
        return self.exact.begin(kept, at_once=False)

    def results(self, env: dict[str, Any], seeds: Any) -> list[Any]:
        """See `_Segment`."""
        return [trace.dense(n, v) for n, v in zip(self.live, self._step(env), strict=True)]

    def outline(self) -> Any:
        """See `_Segment`."""
        return self._identity


class _First(NamedTuple):
    """The first step of a form.

    Attributes:
        node, live: trie node and results of the step.
        lengths: lengths of its loops.
        differ: places of the loops whose lengths vary in later steps.
    """

    node: TraceNode
    live: tuple[int, ...]
    lengths: list[int]
    differ: set[int]


class EagerStreams:
    """Streams of the steps of one device."""

    def __init__(self, device: jax.Device):
        self._device = device
        self._streams = LruCache[tuple[_Segment, ShapeStream]](_MOST)
        self._firsts = LruCache[_First](_MOST)  # by form of a step
        self._outlines = LruCache[tuple[Outline, _First] | None](_MOST_OUTLINES)
        self._same = LruCache[_First](_MOST_OUTLINES)  # of steps whose loops have not varied

    def run(
        self,
        trace_node: TraceNode,
        arrays: Sequence[Any],
        kinds: Sequence[Kind],
        live: Sequence[int],
        seeds: Seeds,
    ) -> list[Any] | None:
        """Return the results of a step at padded sizes; None for one that runs as it is.

        Args:
            kinds: of the arrays.
            live: numbers of the results.
        """
        records = trace_node.records()
        if not flags.get(FLAG):
            return None
        if len(records) < _FEWEST and not any(is_local(r.call.definition.type) for r in records):
            return None
        if not all(aval.plain for aval, _ in kinds):
            return None
        given = tuple([in_order(v, order) for v, (_, order) in zip(arrays, kinds)])
        found = self._outline(trace_node, live)
        if found is not None:
            return self._rerolled(*found, records, given, live, seeds)
        form = (
            tuple([(record.call.number, record.inputs) for record in records]),
            tuple([aval.dtype for aval, _ in kinds]),
            tuple(live),
            flags.get("FLAGS_cpu_kernels"),
        )
        _, stream = self._streams.get_or_make(
            form, lambda: self._stream(EagerSegment(records, len(arrays), live, self._device))
        )
        padded = stream.padded((), given, seeds[0] if seeds else None)
        return None if padded is None else [self._here(v) for v in padded[0]]

    def forget_released(self) -> None:
        """Forget the streams of steps with operators that were released, and the outlines of all."""
        self._outlines.clear()  # trie nodes hold calls
        self._same.clear()
        self._firsts.clear()
        for key, (segment, _) in list(self._streams.items()):
            if any(released_ops.is_released(definition) for _, _, definition in segment.items):
                del self._streams[key]

    def _here(self, value: Any) -> Any:
        return placed([value], self._device)[0] if isinstance(value, np.ndarray) else value

    def _stream(self, segment: _Segment, lengths: Sequence[str] = ()) -> tuple[_Segment, ShapeStream]:
        platform = "cpu" if self._device.platform == "cpu" else "gpu"
        return segment, ShapeStream(segment, None, (), platform, lengths=lengths)

    def _rerolled(
        self,
        outline: Outline,
        first: _First,
        records: Sequence[Record],
        arrays: Sequence[Any],
        live: Sequence[int],
        seeds: Seeds,
    ) -> list[Any] | None:
        """Run a step with loops of varying length, or return None if the step runs as it is."""
        names, given = arguments(outline, arrays, seeds[0] if seeds else None)

        def made() -> tuple[_Segment, ShapeStream]:
            segment = RerolledSegment(outline, [r.call for r in records], names, self._device)
            found = self._stream(segment, [f"k{i}" for i in range(len(outline.counts))])
            if (shapes := _shapes_of(first, outline)) is not None:
                found[1].observe(shapes)
            return found

        dtypes = tuple([v.dtype for v in given])
        segment, stream = self._streams.get_or_make((outline.key, dtypes, flags.get("FLAGS_cpu_kernels")), made)
        padded = stream.padded((), given, None)
        if padded is None and stream.is_refused:
            return None
        assert isinstance(segment, RerolledSegment)  # the key is of an outline
        found = segment.exact(*given) if padded is None else padded[0]
        results: dict[int, Any] = {}
        for numbers, name, value in zip(outline.held, outline.results, found, strict=True):
            rows = value if name[0] == "whole" else [value]
            results.update(zip(numbers, rows, strict=True))
        return [self._here(results[number]) for number in live]

    def _outline(self, trace_node: TraceNode, live: Sequence[int]) -> tuple[Outline, _First] | None:
        """Return the outline of a step with loops of varying length, or None for other steps."""
        key = trace_node, tuple(live)
        if key in self._outlines:
            return self._outlines[key]
        if (same := self._same.get(key)) is not None and not same.differ:
            return None
        ops = ops_of(trace_node)
        spans = spans_of(ops)
        if not spans:
            return self._outlines.get_or_make(key, lambda: None)
        lengths = [span.times for span in spans]

        def new() -> _First:
            return _First(*key, lengths, self._varied_before(trace_node, ops, spans, live))

        first = self._firsts.get_or_make(form_of(ops, spans), new)
        first.differ.update(i for i, (a, b) in enumerate(zip(first.lengths, lengths)) if a != b)
        if not first.differ:
            self._same.get_or_make(key, lambda: first)
            return None
        outline = _outline_of(ops, spans, first.differ, live)
        self._outlines.get_or_make(key, lambda: None if outline is None else (outline, first))
        return self._outlines[key]

    def _varied_before(
        self, trace_node: TraceNode, ops: Sequence[Op], spans: Sequence[Span], live: Sequence[int]
    ) -> set[int]:
        """Return the places of the loops of a step, if the lengths of all loops varied in an earlier process."""
        outline = None if kept_files.folder() is None else outline_of(ops, spans, live)
        if outline is None:
            return set()
        names, _ = arguments(outline, *_stand_ins(trace_node))
        segment = RerolledSegment(outline, [r.call for r in trace_node.records()], names, self._device)
        file = segment.histories()
        return set(range(len(spans))) if file is not None and file.noted_sizes() else set()


def _outline_of(ops: Sequence[Op], spans: Sequence[Span], differ: set[int], live: Sequence[int]) -> Outline | None:
    """Return the outline of a step with loops at some of its spans, or else at all of its spans; None without any."""
    own = [span for i, span in enumerate(spans) if i in differ]
    outline = outline_of(ops, own, live)
    return outline_of(ops, spans, live) if outline is None and len(own) < len(spans) else outline


def _shapes_of(step: _First, outline: Outline) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of an outline's arguments in an earlier step; None for a step of another outline."""
    ops = ops_of(step.node)
    own = _outline_of(ops, spans_of(ops), step.differ, step.live)
    if own is None or own.key != outline.key:
        return None
    _, given = arguments(own, *_stand_ins(step.node))
    return tuple([v.shape for v in given])


def _stand_ins(trace_node: TraceNode) -> tuple[list[Any], Any]:
    """Return arrays in place of the inputs and the random numbers of a step, which take no memory."""
    kinds = [aval for own in trace_node.since(None) for aval in own.leaf_avals]
    arrays = [np.broadcast_to(np.zeros((), aval.dtype), aval.shape) for aval in kinds]
    return arrays, np.zeros((trace_node.draws, 3), np.uint32)
