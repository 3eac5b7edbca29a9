"""Operators that were called and have not run yet.

A call in dygraph mode only records its operator: shapes are known, numbers are not. When a number
is asked for, or a step of an optimizer ends, all that is pending runs. The record (operators,
attributes, which output is whose input, shapes: see `points`; which results anybody still holds) is the key of a
compiled function: a loop whose body repeats finds it again, so that its step is one call of XLA, as
in a static program, or two where the script waits for the loss of each step. Nothing has to be
guarded: a step that differs is another key.

A record that was not seen before is compiled whole, too. Where nearly every one is new (attributes
or shapes that change all the time), operators are compiled and run one by one instead, until
records repeat again.
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import jax

from jfluid import collector, errors, flags, kept_files
from jfluid.compile import memory
from jfluid.compile.executables import Executables, most_bytes
from jfluid.compile.kept_executables import entry_of_items
from jfluid.compile.lru_cache import LruCache
from jfluid.compile.numpy_steps.beside import device_of_interpreter
from jfluid.compile.options import options
from jfluid.dygraph import calls, donation, released
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
    overwrites,
    seeds_of,
)
from jfluid.dygraph.lazy_values import Aval, LazyValue, constant, in_order
from jfluid.dygraph.shape_streams import EagerStreams
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.trace_trie import TraceNode, assigned, flat, numbered

logger = logging.getLogger(__name__)

MOST_RECORDED = 20_000  # operators; then they run, though nobody asks
_MOST_NODES = 32_768  # and what else is found by them, of 3 KB each
_MANY = 32  # operators, from which on their objects would have those of the whole program looked through
_MOST_NEW = 12  # of the last 16 records, for which operators are compiled one by one
_SMALL = 24  # operators; a record as short as this is compiled whole in any case


_BEFORE = "before"
_graphs: dict[jax.Device, "LazyGraph"] = {}


def graph_on(device: jax.Device) -> "LazyGraph":
    """Return what is pending on a device."""
    found = _graphs.get(device)
    if found is None:
        found = _graphs[device] = LazyGraph(device)
    return found


def array_of(value: LazyValue) -> Any:
    """Return the array of a value, after all that is pending has run if it has none."""
    if value.array is None:
        for graph in _graphs.values():
            graph.run()
    if value.array is None:
        raise errors.OpError("the operator that gives this value has failed before")
    return in_order(value.array, value.order)


class LazyGraph:
    """What is pending on one device.

    Args:
        device: runs the operators.
    """

    def __init__(self, device: jax.Device):
        kept_files.use()
        self.device = device
        self.compiled = 0  # functions for whole records
        self._whole = LruCache[CompiledTrace](256, lambda step: step.bytes, most_bytes)
        self._single = LruCache[Executables](8192)
        self._seen = LruCache[bool](4096)  # by hashes: the records themselves may be large
        self._recent: list[bool] = []  # whether the latest records were new
        self._one_by_one = False
        self._streams = EagerStreams(device)
        self._collects = 0  # how often objects were collected before those of the records were made
        self._root, self._trie_size = TraceNode(), 0  # nothing is pending; how many points follow
        self._released = released.changes()
        self._begin()

    def _forget_trie(self) -> None:
        self._root.forget()
        self._root, self._trie_size = TraceNode(), 0

    def _forget_released(self) -> None:
        """Forget what is kept of operators that were released, when nothing is pending."""
        self._released = released.changes()
        calls.forget_released()
        self._forget_trie()
        whole: list[Any] = list(self._whole)
        for key in whole:
            if _has_released(key[0].records()):
                del self._whole[key]
        single: list[Any] = list(self._single)
        for key in single:
            if released.is_released(key[0].definition):
                del self._single[key]
        self._streams.forget_released()
        released.forget_ended()
        self._begin()

    def _begin(self) -> None:
        if self._trie_size > _MOST_NODES:
            self._forget_trie()
        self.node = self._root  # the operators
        self.leaves: list[LazyValue] = []  # their inputs
        self.outs: list[ref[LazyValue]] = []  # outputs that somebody may hold
        self.draws: list[tuple[int, int]] = []  # (seed, number) of each random operator
        self.grad_nodes: list[ref[GradNode]] = []  # of operators that gradients flow through
        self.variables: list[Any] = []  # VarBases that gradients flow to and no operator gave
        self.places: dict[int, int] = {}  # theirs, by id
        self.initializes = False  # whether all of it gives first values
        self.step_ended = False  # whether a step of training has ended, which runs before the next begins

    @property
    def records(self) -> list[Record]:
        """The calls that are pending."""
        return self.node.records()

    def child(
        self,
        call: Call,
        outputs: Sequence[Any],
        inputs: Sequence[LazyValue | None],
        edges: Sequence[Any] | None,
    ) -> TraceNode:
        """Return the point that a call leads to.

        Args:
            outputs: what `Call.outputs` says of such inputs.
            inputs: as they are given.
            edges: as of a GradNode; None where no gradient is recorded.
        """
        before, leaves = self.node, len(self.leaves)
        made, slots = flat(call, outputs)
        assigned(call, slots)  # before anything is changed: it may raise
        sources = [NONE if v is None else self._source(v) for v in inputs]
        sources = [NONE if at < 0 else sources[at] for at in call.order]
        kinds = tuple([v.aval for v in self.leaves[leaves:]])
        known = tuple([v.known for v in self.leaves[leaves:]])
        goes = None if edges is None else tuple([self.flow(edge) for edge in edges])
        key = (call, tuple(sources), kinds, known, goes)
        found = before.children.get(key)
        if found is None:
            draw = before.draws if call.draws_numbers else -1
            record = Record(call, tuple(sources), numbered(outputs, before.outputs), draw)
            flows = edges is not None and call.flows(edges)
            found = before.children[key] = TraceNode(before, record, kinds, made, slots, flows)
            self._trie_size += 1
        return found

    def keep_replay(self, node: TraceNode, key: Any, replay: Any) -> None:
        """Keep a replay that begins at a node (see `replays`)."""
        if key not in node.replays:
            self._trie_size += 1
        node.replays[key] = replay

    def flow(self, edge: Any) -> Any:
        """Return how what is pending names where a gradient goes: an output by its number, from 0, a
        variable that no operator gave by -1 and less, an output of what has run by a word; None where no
        gradient is wanted.

        Args:
            edge: as of a GradNode.
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
        """Name what variables hold as inputs of the next call; return whether all have a value here.

        Args:
            variables: VarBases, or None for one that is missing.
            records: whether gradients are recorded.
            key: gets what tells them from others, as far as results depend on it.
            values, edges: get what each holds, and where its gradient goes, as of a GradNode.
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
                    return False  # it has none, or is pending on another device
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
        """Record the call that leads to a point; returns its outputs, for all slots one after the other.

        Args:
            draw: (seed, number) of the random numbers of an operator that draws some.
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
        """Take inputs back that no call reads, all but the first so many."""
        for value in self.leaves[leaves:]:
            value.owner = None
        del self.leaves[leaves:]

    def has(self, value: LazyValue) -> bool:
        """Whether the operator that gives a value is pending here."""
        return value.array is None and value.owner is self.leaves

    def append(self, end: TraceNode, held: Mapping[int, LazyValue], draws: Sequence[tuple[int, int]]) -> None:
        """Record the calls that lead to a point behind this one.

        Args:
            held: of the outputs, by number, those that somebody holds.
            draws: the random numbers.
        """
        for number, value in held.items():
            value.owner, value.source = self.leaves, number
            self.outs.append(ref(value))
        self.draws += draws
        self.node = end

    def _source(self, value: LazyValue) -> int:
        """Return how a value is named, from now on where it is neither input nor output yet."""
        if value.owner is not self.leaves:
            value.owner, value.source = self.leaves, -1 - len(self.leaves)
            self.leaves.append(value)
        return value.source

    def run(self) -> None:
        """Run all that is pending, as far as somebody still holds its results."""
        if not self.node.depth:
            return
        collects, self._collects = self._collects, 0
        try:
            self._run()
            if self._released != released.changes() and not self.node.depth:
                self._forget_released()
        except (MemoryError, RuntimeError, ValueError) as error:
            if (lack := memory.named(error)) is not None:
                raise lack from error
            raise
        finally:
            if collects:
                collector.often(collects)  # what was recorded has gone

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
        donated: tuple[int, ...] = ()
        if overwrites(trace_node.bytes, trace_node.sparse):
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
        """Run a step whose calls have come with other shapes before; None where it runs as it is."""
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
        """Whether operators of a record run one by one.

        Args:
            known: whether it was compiled.
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
                "nearly every step differs from those before (operators, attributes, shapes): their "
                "operators are compiled and run one by one until steps repeat"
                if often
                else "steps repeat: each is compiled as a whole again",
            )
        return often and not known and size > _SMALL

    def _singly(self, records: Sequence[Record], arrays: list[Any], seeds: Seeds, live: Sequence[int]) -> list[Any]:
        """Run operators one by one, without those whose results nobody needs."""
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
    return any(released.is_released(record.call.definition) for record in records)
