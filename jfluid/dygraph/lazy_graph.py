"""Lazy graph: operators that were called and have not run yet.

A call in dygraph mode records its operator. Shapes are known, numbers are not. The graph runs if a number is needed, or
at the end of an optimizer's step. The cache key of the compiled function is the graph's node in the trace trie, and
the results that Python still references. A loop with equal steps finds its function again, so that a step is one call
of XLA, as in a static program. Guards are not needed: a different step has a different key.

A new graph is compiled as a whole. If nearly all graphs are new (attributes or shapes that change in each step),
operators are compiled and run one by one, until graphs repeat again.
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import jax

from jfluid import errors, flags
from jfluid.caches import kept_files
from jfluid.compile.numpy_steps.beside import device_of_interpreter
from jfluid.compile.runtime import memory
from jfluid.compile.runtime.executable_cache import entry_of_items
from jfluid.compile.runtime.executables import Executables, most_bytes
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.compile.runtime.options import options
from jfluid.dygraph import calls, donation, kept_shapes, released_ops
from jfluid.dygraph.calls import Call
from jfluid.dygraph.compiled_trace import (
    NONE,
    CompiledTrace,
    Kind,
    Record,
    Seeds,
    hold_filters,
    jitted,
    key_of,
    seeds_of,
)
from jfluid.dygraph.lazy_values import Aval, LazyValue, constant, in_order
from jfluid.dygraph.shape_streams import EagerStreams
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.trace_trie import CallForm, TraceNode, forms, numbered
from jfluid.host import collector
from jfluid.record.phases import PHASES

logger = logging.getLogger(__name__)

MOST_RECORDED = 20_000  # operators, after which the graph runs unasked
_MOST_NODES = 32_768  # and replays, of 3 KB each
_MANY = 32  # operators, after which Python's garbage collector would scan the whole heap
_MOST_NEW = 12  # of the last 16 graphs, at which operators are compiled one by one
_SMALL = 24  # operators; a graph of this size is compiled as a whole in any case


_BEFORE = "before"
_graphs: dict[jax.Device, "LazyGraph"] = {}


def graph_on(device: jax.Device) -> "LazyGraph":
    """Return the lazy graph of a device."""
    found = _graphs.get(device)
    if found is None:
        found = _graphs[device] = LazyGraph(device)
    return found


def array_of(value: LazyValue) -> Any:
    """Return the array of a value; runs the lazy graphs if the value has no array yet."""
    if value.array is None:
        for graph in _graphs.values():
            graph.run()
    if value.array is None:
        raise errors.OpError("the operator that gives this value has failed before")
    return in_order(value.array, value.order)


class LazyGraph:
    """Recorded operators of one device, and the caches of compiled functions.

    Args:
        device: device of the operators.
    """

    def __init__(self, device: jax.Device):
        kept_files.use()
        self.device = device
        self.compiled = 0  # number of compiled steps
        self._whole = LruCache[CompiledTrace](256, lambda step: step.bytes, most_bytes)
        self._single = LruCache[Executables](8192)
        self._seen = LruCache[bool](4096)  # by hash: keys may be large
        self._recent: list[bool] = []  # True for each of the latest graphs that was new
        self._one_by_one = False
        self._streams = EagerStreams(device)
        self._collects = 0  # threshold of the garbage collector before the records were made
        self._root, self._trie_size = TraceNode(), 0  # the empty graph; number of nodes
        self._released = released_ops.changes()
        self._begin()

    def _forget_trie(self) -> None:
        self._root.forget()
        self._root, self._trie_size = TraceNode(), 0

    def _forget_released(self) -> None:
        """Remove released operators from all caches; the graph must be empty."""
        self._released = released_ops.changes()
        calls.forget_released()
        forms.clear()
        self._forget_trie()
        whole: list[Any] = list(self._whole)
        for key in whole:
            if _has_released(key[0].records()):
                del self._whole[key]
        single: list[Any] = list(self._single)
        for key in single:
            if released_ops.is_released(key[0].definition):
                del self._single[key]
        self._streams.forget_released()
        released_ops.forget_ended()
        self._begin()

    def _begin(self) -> None:
        if self._trie_size > _MOST_NODES:
            self._forget_trie()
        self.node = self._root  # last recorded operator
        self.leaves: list[LazyValue] = []  # inputs of the operators
        self.outs: list[ref[LazyValue]] = []  # outputs that Python may reference
        self.draws: list[tuple[int, int]] = []  # (seed, number) of each random operator
        self.grad_nodes: list[ref[GradNode]] = []  # nodes of operators with gradients
        self.variables: list[Any] = []  # VarBases without an operator that gradients flow to
        self.places: dict[int, int] = {}  # places of these variables, by id
        self.initializes = False  # True if all operators compute first values
        self.step_ended = False  # True after an optimizer's step: the graph runs before the next operator

    @property
    def records(self) -> list[Record]:
        """The recorded operators."""
        return self.node.records()

    def child(self, form: CallForm, inputs: Sequence[LazyValue | None], edges: Sequence[Any] | None) -> TraceNode:
        """Return the trie node of a call behind the current node.

        Args:
            form: the call, for these inputs.
            inputs: values of the inputs, in the order of the call.
            edges: edges as of a GradNode, or None if no gradient is recorded.
        """
        before, leaves, call = self.node, len(self.leaves), form.call
        sources = [NONE if v is None else self._source(v) for v in inputs]
        sources = [NONE if at < 0 else sources[at] for at in call.order]
        kinds = tuple([v.aval for v in self.leaves[leaves:]])
        known = tuple([v.known for v in self.leaves[leaves:]])
        goes = None if edges is None else tuple([self.flow(edge) for edge in edges])
        key = (call, tuple(sources), kinds, known, goes)
        found = before.children.get(key)
        if found is None:
            draw = before.draws if call.draws_numbers else -1
            record = Record(call, tuple(sources), numbered(form.outputs, before.outputs), draw)
            found = before.children[key] = TraceNode(before, record, kinds, form)
            self._trie_size += 1
        return found

    def keep_replay(self, node: TraceNode, key: Any, replay: Any) -> None:
        """Keep a replay that begins at a node (see `replays`)."""
        if key not in node.replays:
            self._trie_size += 1
        node.replays[key] = replay

    def flow(self, edge: Any) -> Any:
        """Return a name of a gradient's destination, for cache keys.

        An output of the graph is named by its number, from 0. A variable without an operator is named by -1 and less.
        Outputs of earlier graphs share one word. None stands for no gradient.

        Args:
            edge: edge as of a GradNode.
        """
        if edge is None:
            return None
        if type(edge) is Edge:
            if edge.node is not None:
                here = edge.node.owner is self.leaves
                return edge.node.trace_node.first_output + edge.index if here else _BEFORE
            edge = edge.leaf
        found = self.places.get(id(edge))
        if found is None:
            self.variables.append(edge)
            found = self.places[id(edge)] = -len(self.variables)
        return found

    def name(
        self,
        variables: Iterable[Any],
        records: bool,
        key: list[Any],
        values: list[LazyValue | None],
        edges: list[Any],
    ) -> bool:
        """Name the values of variables as inputs of the next call.

        Returns False if a variable has no value on this device.

        Args:
            variables: VarBases, or None for a missing variable.
            records: True if gradients are recorded.
            key: gets the names and kinds that results depend on.
            values, edges: get each variable's value and the edge of its gradient, as of a GradNode.
        """
        # One pass: a step of XLA evicts this from the core's caches, so that every function call counts.
        leaves, places = self.leaves, self.places
        for v in variables:
            value: LazyValue | None = None
            edge: Any = None
            if v is None:
                key.append(None)
            else:
                value = v._value
                if value is not None and value.owner is leaves:
                    key.append(value.source)
                elif value is None or value.array is None:
                    return False  # no value, or in the graph of a different device
                else:
                    value.owner, value.source = leaves, -1 - len(leaves)
                    leaves.append(value)
                    key.append((value.aval,) if value.known else value.aval)
                if records:
                    if v._stop_gradient:
                        key.append(None)
                    elif (edge := v._edge) is None:
                        edge = v
                        flow = places.get(id(v))
                        key.append(self.flow(v) if flow is None else flow)
                    elif (node := edge.node) is not None and node.owner is leaves:
                        key.append(node.trace_node.first_output + edge.index)
                    else:
                        key.append(self.flow(edge))
            values.append(value)
            edges.append(edge)
        return True

    def advance(self, trace_node: TraceNode, draw: tuple[int, int] | None) -> list[LazyValue | None]:
        """Record the call of a trie node, and return its outputs, slot after slot.

        Args:
            trace_node: child of the current node.
            draw: (seed, number) of the random numbers, or None.
        """
        if trace_node.depth == _MANY:
            self._collects = collector.seldom()
        self.node = trace_node
        if draw is not None:
            self.draws.append(draw)
        owner, number = self.leaves, trace_node.first_output
        values: list[LazyValue | None] = []
        for kind in trace_node.made:
            value = None
            if type(kind) is Aval:
                value = LazyValue(kind, None, number, owner)
                self.outs.append(ref(value))
            elif kind is not None:
                value = constant(kind, known=True)
            values.append(value)
            number += 1
        return values

    def take_back(self, leaves: int) -> None:
        """Remove the inputs behind the first `leaves` inputs, which no call has read."""
        for value in self.leaves[leaves:]:
            value.owner = None
        del self.leaves[leaves:]

    def has(self, value: LazyValue) -> bool:
        """Return True if an operator of this graph computes a value."""
        return value.array is None and value.owner is self.leaves

    def append(self, end: TraceNode, held: Mapping[int, LazyValue], draws: Sequence[tuple[int, int]]) -> None:
        """Record all calls that lead to a later node.

        Args:
            end: trie node behind the current node.
            held: referenced outputs, by number.
            draws: random numbers of the calls.
        """
        for number, value in held.items():
            value.owner, value.source = self.leaves, number
            self.outs.append(ref(value))
        self.draws += draws
        self.node = end

    def _source(self, value: LazyValue) -> int:
        """Return the name of a value in this graph; a new value becomes an input."""
        if value.owner is not self.leaves:
            value.owner, value.source = self.leaves, -1 - len(self.leaves)
            self.leaves.append(value)
        return value.source

    def run(self) -> None:
        """Run the recorded operators, and compute all referenced results."""
        if not self.node.depth:
            return
        collects, self._collects = self._collects, 0
        try:
            with PHASES.phase("compute"):
                self._run()
            kept_shapes.KEPT.settle()
            if self._released != released_ops.changes() and not self.node.depth:
                self._forget_released()
        except (MemoryError, RuntimeError, ValueError) as error:
            if (lack := memory.named(error)) is not None:
                raise lack from error
            raise
        finally:
            if collects:
                collector.often(collects)  # the records are garbage

    def _run(self) -> None:
        trace_node, leaves, outs, draws = self.node, self.leaves, self.outs, self.draws
        self._begin()
        holders: dict[int, LazyValue] = {}
        for held in outs:
            if (value := held()) is not None and value.array is None:
                holders[value.source] = value
        if not holders:
            leaves.clear()
            return
        arrays, kinds = [v.array for v in leaves], [(v.aval, v.order) for v in leaves]
        donated = donation.donated(leaves, list(holders.values()))
        leaves.clear()

        def key_of_all() -> Any:
            orders = tuple([order for _, order in kinds])
            return trace_node, tuple(holders), orders, donated, flags.get("FLAGS_cpu_kernels")

        key = key_of_all()
        step = self._whole.get(key)
        orders: Sequence[tuple[int, Any]] = ()
        padded = None if step is not None else self._padded(trace_node, arrays, kinds, holders, draws)
        if padded is not None:
            results = padded
        elif self._goes_one_by_one(key, step is not None, trace_node.depth):
            given = [in_order(v, order) for v, (_, order) in zip(arrays, kinds)]
            with jax.enable_x64(True), jax.default_device(self.device):
                results = self._singly(trace_node.records(), given, seeds_of(draws), list(holders))
        else:
            if step is None:
                records = trace_node.records()
                with jax.enable_x64(True), jax.default_device(self.device):
                    if hold_filters(records, arrays, kinds, self.device):
                        key = key_of_all()
                    step = self._whole.get_or_make(key, lambda: self._step(records, kinds, donated, holders))
            else:
                self._whole.move_to_end(key)
            with jax.enable_x64(True):
                results = step.run(arrays, seeds_of(draws))
            orders = step.orders
        values = list(holders.values())
        for value, result in zip(values, results, strict=True):
            value.array = result
        for place, order in orders:
            values[place].order = order

    def _padded(
        self,
        trace_node: TraceNode,
        arrays: Sequence[Any],
        kinds: Sequence[Kind],
        holders: Mapping[int, LazyValue],
        draws: Sequence[tuple[int, int]],
    ) -> list[Any] | None:
        """Run a step on padded inputs, or return None if the step runs with exact shapes."""
        with jax.enable_x64(True), jax.default_device(self.device):
            return self._streams.run(trace_node, arrays, kinds, list(holders), seeds_of(draws))

    def _step(
        self,
        records: Sequence[Record],
        kinds: Sequence[Kind],
        donated: Sequence[int],
        holders: Mapping[int, LazyValue],
    ) -> CompiledTrace:
        self.compiled += 1
        results = {number: value.aval for number, value in holders.items()}
        return CompiledTrace(records, kinds, donated, results, self.device)

    def _goes_one_by_one(self, key: Any, known: bool, size: int) -> bool:
        """Return True if operators run one by one.

        Args:
            key: cache key of the step.
            known: True if the step is compiled.
            size: number of operators.
        """
        if not known:
            known = hash(key) in self._seen
            self._seen.get_or_make(hash(key), lambda: True)
        self._recent = [*self._recent[-15:], not known]
        often = sum(self._recent) >= _MOST_NEW
        if often != self._one_by_one:
            self._one_by_one = often
            logger.warning(
                "dygraph: %s",
                "nearly every step differs from earlier steps (operators, attributes, shapes): "
                "operators are compiled and run one by one until steps repeat"
                if often
                else "steps repeat: each is compiled as a whole again",
            )
        return often and not known and size > _SMALL

    def _singly(self, records: Sequence[Record], arrays: list[Any], seeds: Seeds, live: Sequence[int]) -> list[Any]:
        """Run operators one by one, without operators of unused results."""
        needed, used = set(live), []
        for record in reversed(records):
            if not needed.isdisjoint(record.numbers()):
                used.append(record)
                needed.update(i for i in record.inputs if i >= 0)
        used.reverse()
        last = {i: at for at, record in enumerate(used) for i in record.inputs}
        found: dict[int, Any] = {-1 - i: a for i, a in enumerate(arrays)}
        kept, own = set(live), flags.get("FLAGS_cpu_kernels")
        for at, record in enumerate(used):
            call = record.call
            inputs = [None if i == NONE else found[i] for i in record.inputs]
            function = self._single.get_or_make((call, own), functools.partial(self._jitted, call))
            outs = function(inputs, seeds[0][record.draw] if record.draw >= 0 else None)
            for number, out in zip(record.outputs, outs, strict=True):
                if type(number) is list:
                    found.update((n, o) for n, o in zip(number, out) if n is not None and o is not None)
                elif number is not None:
                    found[number] = out
            for i in record.inputs:
                if last.get(i) == at and i not in kept and i >= 0:
                    found.pop(i, None)
        if memory.is_large(found.values()):
            jax.block_until_ready([found[i] for i in live])
        return [found[i] for i in live]

    def _jitted(self, call: Call) -> Executables:
        def fresh() -> Any:
            def function(inputs: list[Any], seed: Any) -> Any:
                return call(inputs, None if seed is None else key_of(seed))

            return jitted(function, self.device)

        known = [(i, str(v.dtype), v.shape, v.tobytes()) for i, v in sorted(call.constants.items())]
        identity = "call", call.layout, call.wanted, call.shared, known
        items = [(0, call.op, call.definition)]
        entry = entry_of_items(items, identity, self.device, options(self.device))
        return Executables(fresh, entry, device_of_interpreter(self.device))


def _has_released(records: Iterable[Record]) -> bool:
    return any(released_ops.is_released(record.call.definition) for record in records)
