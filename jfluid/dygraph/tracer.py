"""Calls of operators upon eager variables, and of gradient operators in backward passes."""

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

import jax
import numpy as np

from jfluid import record
from jfluid.compile.lowering.plan import Segment
from jfluid.compile.runtime.host import Host
from jfluid.dygraph import replays, tape
from jfluid.dygraph.calls import Call, call_of, frozen
from jfluid.dygraph.compiled_trace import Record
from jfluid.dygraph.lazy_graph import array_of, graph_on
from jfluid.dygraph.lazy_values import LazyValue, constant
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.trace_trie import CallForm, TraceNode, assigned, flat, form_of, forms
from jfluid.dygraph.varbase import VarBase
from jfluid.ir import streams
from jfluid.ir.operator import Operator
from jfluid.ir.program import default_main_program
from jfluid.ops import gradients, registry
from jfluid.scope import Scope

Variables = Mapping[str, VarBase | Sequence[VarBase | None]]
_GRAD = gradients.GRAD
_SMALL = 64  # elements; smaller known numbers are computed immediately
_OUTPUTS = ""  # stands before the outputs in a key: no slot has this name
_MOST_KNOWN = 4096  # elements of an input that an operator may have to know


class Tracer:
    """Runs the operators of a `guard`.

    Args:
        place: place of the operators.

    Attributes:
        records: True if operators are recorded for gradients.
        seed: seed of random operators; 0 draws a seed.
    """

    def __init__(self, place: Any):
        self.place = place
        self.device: jax.Device = place.device()
        self.graph = graph_on(self.device)
        self.records = True
        self.seed = 0
        self._entropy = secrets.randbits(63)
        self._drawn = Counter[str]()  # random operators that were called, by type
        record.current()  # so that the first step counts

    @contextlib.contextmanager
    def recording(self, records: bool) -> Iterator[None]:
        """Return a context in which operators are, or are not, recorded for gradients."""
        before, self.records = self.records, records
        try:
            yield
        finally:
            self.records = before

    def reseed(self, seed: int) -> None:
        """Restart the random numbers from a seed; 0 draws a seed."""
        self.seed = seed
        self._drawn.clear()

    def train_mode(self) -> None:
        """Record gradients again, as `Layer.train` does."""
        self.records = True

    def eval_mode(self) -> None:
        """Record no gradients, as `Layer.eval` does."""
        self.records = False

    @property
    def observed(self) -> bool:
        """True if a `Recording` notes each operator."""
        return "call" in vars(self)

    @property
    def _train_mode(self) -> bool:
        """True if gradients are recorded; for layers of scripts."""
        return self.records

    def trace_op(
        self,
        type: str,
        inputs: Variables,
        outputs: Variables,
        attrs: Mapping[str, Any],
        stop_gradient: bool = False,
    ) -> None:
        """Call an operator, for scripts without layers, with the errors of `Block.append_op`."""
        block = default_main_program().current_block()
        block.append_op(type, inputs, outputs, attrs, stop_gradient=stop_gradient)

    # ---- operators --------------------------------------------------------------------------------

    def call(
        self,
        type_: str,
        inputs: Variables,
        outputs: Variables | tuple[str, ...],
        attrs: Mapping[str, Any] | None = None,
        draw: tuple[int, int] | None = None,
    ) -> Sequence[VarBase | None]:
        """Call an operator, and return its output variables with values.

        Args:
            type_: type of the operator.
            inputs: variables of each slot; None for a missing variable.
            outputs: variables of each slot, None for an unwanted output; or slot names, each for a new variable.
            attrs: attributes.
            draw: random numbers of the operator; new numbers when None.

        Raises the errors of `Block.append_op`.
        """
        graph, records = self.graph, self.records
        before = len(graph.leaves)
        key: list[Any] = [type_, records]
        if attrs:
            key.append(frozen(attrs))
        given: list[VarBase | None] = []
        for slot, variables in inputs.items():
            key.append(slot)
            if isinstance(variables, VarBase):
                given.append(variables)
            else:
                key.append((len(variables),))
                given += variables
        values, edges, layout = list[LazyValue | None](), list[Any](), len(key)
        if not graph.name(given, records, key, values, edges):
            graph.take_back(before)
            _compute(None if v is None else v.held for v in given)
            return self.call(type_, inputs, outputs, attrs, draw)
        made, names = list[VarBase | None](), len(key)
        if isinstance(outputs, tuple):
            key.append(outputs)
            kind = tuple(key)
            trace_node = graph.node.children.get(kind)
            made += [VarBase.__new__(VarBase) for _ in outputs]
            named: Variables = {} if trace_node is not None else dict(zip(outputs, [[v] for v in made]))
        else:
            named = outputs
            made += _keyed(outputs, key)
            kind = tuple(key)
            trace_node = graph.node.children.get(kind)
            if trace_node is not None and trace_node.call.in_place:
                trace_node = graph.node.children.get((kind, _shares(trace_node.call, inputs, named)))
        pattern: Any = None
        if trace_node is None:
            graph.take_back(before)
            pattern = _pattern(kind[:layout], kind[names:], values, edges)
            trace_node = self._in_new_place(kind, pattern, values, edges if records else None)
        if trace_node is None:
            call = _call_of(type_, inputs, named, attrs)
            if call.rules and any(v is not None and v.array is None for v in values):
                _compute(values)
                return self.call(type_, inputs, outputs, attrs, draw)
            if (found := self._at_once(call, inputs, named, values)) is not None:
                self._assign_at_once(call, found, made, values, edges, draw)
                return made
            trace_node = self._trace_node(call, kind, pattern, values, edges if records else None)
        draws = trace_node.call.draws_numbers
        if draws and draw is None:
            draw = self._draw(trace_node.call)
        results = graph.advance(trace_node, draw if draws else None)
        node = None
        if trace_node.flows:
            node = GradNode(trace_node, values, edges, results, draw, graph.leaves)
            graph.grad_nodes.append(ref(node))
        for variable, at in zip(made, trace_node.assigned):
            if variable is not None and (result := results[at]) is not None:
                variable.assign(result, node, at)
        return made

    def _draw(self, call: Call) -> tuple[int, int]:
        """Return the seed and the stream of a random operator: of a program's first run with that seed."""
        kind = call.definition.type
        number = self._drawn[kind]
        self._drawn[kind] += 1
        return self.seed or self._entropy, streams.uid_at(kind, number)

    def _in_new_place(
        self, kind: Any, pattern: Any, values: Sequence[LazyValue | None], edges: Sequence[Any] | None
    ) -> TraceNode | None:
        """Return the new trie node of a call with a known form, or None; the arguments are as of `_trace_node`."""
        form = forms.get(pattern)
        if form is None:
            return None
        found = self.graph.node.children[kind] = self.graph.child(form, values, edges)
        return found

    def _trace_node(
        self, call: Call, kind: Any, pattern: Any, values: Sequence[LazyValue | None], edges: Sequence[Any] | None
    ) -> TraceNode:
        """Return the new trie node of a call.

        Args:
            call: the call.
            kind: key of the node among its parent's children.
            pattern: key of the form of the call.
            values: the inputs.
            edges: edges as of a GradNode; None if no gradient is recorded.
        """
        graph = self.graph
        ordered = [None if at < 0 else values[at] for at in call.order]
        avals = [None if v is None else v.aval for v in ordered]
        if call.rules:
            call.refuse(avals, lambda i: None if (v := ordered[i]) is None else array_of(v))
        outputs = call.outputs(avals)
        if outputs is None:  # shapes follow from numbers among the inputs
            constants = {
                i: np.asarray(array_of(v)) for i, v in enumerate(ordered) if v is not None and _may_be_known(v)
            }
            known = call.specialised(constants)
            outputs = known.outputs([None if i in constants else a for i, a in enumerate(avals)])
            if outputs is None:
                call.infer(avals)  # raises an error that names the unknown value
            rest = [*values]
            for i in constants:
                rest[call.order[i]] = None
            return graph.child(form_of(known, outputs, edges), rest, edges)
        before, form = graph.node, form_of(call, outputs, edges)
        trace_node = graph.child(form, values, edges)
        if not (call.definition.fold and _known(values)) and not call.rules:
            before.children[kind] = trace_node
            if call.in_place:
                before.children[kind, call.shared] = trace_node
            elif not call.on_host and not any(v is not None and v.known for v in values):
                forms.get_or_make(pattern, lambda: form)
        return trace_node

    def _at_once(
        self, call: Call, inputs: Variables, outputs: Variables, values: Sequence[LazyValue | None]
    ) -> list[Any] | None:
        """Return the outputs of an operator that runs immediately, slot by slot, or None."""
        if call.on_host:
            return self._on_host(call, inputs, outputs)
        if call.definition.fold and _known(values):
            return self._folded(call, [None if at < 0 else values[at] for at in call.order])
        return None

    def _assign_at_once(
        self,
        call: Call,
        outputs: Sequence[Any],
        made: Sequence[VarBase | None],
        values: Sequence[LazyValue | None],
        edges: Sequence[Any],
        draw: tuple[int, int] | None,
    ) -> None:
        """Give variables the outputs of an operator that has run."""
        if call.draws_numbers and draw is None:
            draw = self._draw(call)
        results, slots = flat(call, outputs)
        form = CallForm(call, outputs, [], slots, assigned(call, slots), False)
        trace_node = TraceNode(record=Record(call, (), [], -1), form=form)
        node = None
        if self.records and call.flows(edges):
            node = GradNode(trace_node, values, edges, results, draw)
        for variable, at in zip(made, trace_node.assigned):
            if variable is not None and results[at] is not None:
                variable.assign(results[at], node, at)

    def _folded(self, call: Call, values: Sequence[LazyValue | None]) -> list[Any] | None:
        """Return the outputs of an operator upon known numbers, or None for large outputs."""
        arrays = [None if v is None else v.array for v in values]
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            outs = call(arrays)
        if any(v.size > _SMALL for v in jax.tree.leaves(outs)):
            return None
        return [
            [None if x is None else constant(np.asarray(x), known=True) for x in o]
            if isinstance(o, list)
            else (None if o is None else constant(np.asarray(o), known=True))
            for o in outs
        ]

    def _on_host(self, call: Call, inputs: Variables, outputs: Variables) -> list[Any]:
        """Run an operator that works on NumPy arrays."""
        definition = call.definition
        env: dict[str, Any] = {}
        names: dict[str, list[str]] = {}
        for slot, given in inputs.items():
            names[slot] = [v.name for v in listed(given) if v is not None]
            env.update((v.name, array_of(v.held)) for v in listed(given) if v is not None)
        made = {s: [f"{s}:{i}" for i in range(len(listed(vs)))] for s, vs in outputs.items()}
        op = Operator(call.op.block, definition.type, names, made, call.op.attrs, callsite=False)
        with jax.enable_x64(True):
            Host(lambda plan: None, self.place).run(Segment([(0, op, definition)], True), env, None, Scope())
        return [[constant(_array(env[n])) if n in env else None for n in made.get(s.name, ())] for s in definition.outs]

    # ---- gradients --------------------------------------------------------------------------------

    def backward(
        self,
        outputs: Sequence[VarBase],
        seeds: Sequence[VarBase | None],
        targets: Sequence[VarBase] | None = None,
        retain: bool = False,
        create: bool = False,
        stops: Sequence[VarBase] = (),
    ) -> list[VarBase | None]:
        """Compute the gradients of `outputs`.

        Args:
            outputs: variables with which the pass begins.
            seeds: gradient of each output; ones when None.
            targets: variables of the returned gradients; when None, all variables hold gradients afterwards.
            retain: keep the graph for a second backward pass.
            create: record the gradient operators, for gradients of gradients.
            stops: variables that no gradient passes through.

        Raises DygraphError for a graph that an earlier pass released.
        """
        if targets is None and not (retain or create or stops) and not any(seeds):

            def walk(nodes: Sequence[GradNode]) -> replays.Totals:
                found = self._walk(outputs, seeds, nodes)
                _hold(found)
                return found

            replays.call_backward(self.graph, outputs, lambda: _nodes(outputs), walk)
            return []
        totals = self._walk(outputs, seeds, _nodes(outputs), targets, retain, create, stops)
        if targets is not None:
            return [totals[key][1] if (key := v.edge().key) in totals else None for v in targets]
        _hold(totals)
        return []

    def _walk(
        self,
        outputs: Sequence[VarBase],
        seeds: Sequence[VarBase | None],
        nodes: Sequence[GradNode],
        targets: Sequence[VarBase] | None = None,
        retain: bool = False,
        create: bool = False,
        stops: Sequence[VarBase] = (),
    ) -> dict[Any, tuple[Edge, VarBase]]:
        """Call the gradient operators of nodes; returns edges and gradients by edge key."""
        gradients_of: dict[tuple[int, int], list[VarBase]] = {}
        edges: dict[tuple[int, int], Edge] = {}
        blocked = {e.key for v in stops if (e := v.edge()) is not None}
        with self.recording(create):
            for out, seed in zip(outputs, seeds, strict=True):
                edge = out.edge()
                if seed is None:
                    seed = VarBase(name=f"{out.name}{_GRAD}")
                    self.call("fill_any_like", {"X": [out]}, {"Out": [seed]}, {"value": 1.0, "dtype": -1})
                gradients_of.setdefault(edge.key, []).append(seed)
                edges[edge.key] = edge
            wanted = {v.edge().key: v for v in targets} if targets is not None else {}
            for node in nodes:
                tape.check(node)
                self._through(node, gradients_of, edges, blocked)
                if not retain:
                    node.release()
            return {
                key: (edges[key], self._sum(parts, edges[key]))
                for key, parts in gradients_of.items()
                if not wanted or key in wanted
            }

    def _sum(self, parts: list[VarBase], edge: Edge) -> VarBase:
        if len(parts) == 1:
            return parts[0]
        total = VarBase(name=parts[0].name)
        self.call("sum", {"X": parts}, {"Out": [total]})
        return total

    def _through(
        self,
        node: GradNode,
        gradients_of: dict[tuple[int, int], list[VarBase]],
        edges: dict[tuple[int, int], Edge],
        blocked: set[tuple[int, int]],
    ) -> None:
        """Call the gradient operator of a node, and add its results to `gradients_of`."""
        definition = registry.get(node.trace_node.call.definition.type + "_grad")
        node_inputs, node_outputs = node.inputs(), node.slot_outputs()
        cotangents: dict[str, list[VarBase | None]] = {}
        for name, values in node_outputs.items():
            found = []
            for _, at in values:
                key = (id(node), at)
                parts = gradients_of.get(key)
                if parts and len(parts) > 1:
                    parts[:] = [self._sum(parts, edges[key])]
                found.append(parts[0] if parts and key not in blocked else None)
            cotangents[name] = found
        if all(c is None for given in cotangents.values() for c in given):
            return
        inputs: dict[str, list[VarBase | None]] = {}
        for slot in definition.ins:
            name = slot.name
            if name.endswith(_GRAD) and name.removesuffix(_GRAD) in cotangents:
                given = cotangents[name.removesuffix(_GRAD)]
                if not slot.optional:
                    values = node_outputs[name.removesuffix(_GRAD)]
                    given = [self._zeros(v) if c is None and v is not None else c for c, (v, _) in zip(given, values)]
                if any(c is not None for c in given):
                    inputs[name] = given
            elif name in node_inputs:
                inputs[name] = [None if v is None else VarBase.of(v, e) for v, e in node_inputs[name]]
            elif definition.forward is None and name in node_outputs:
                inputs[name] = [None if v is None else VarBase.of(v, Edge(node, at)) for v, at in node_outputs[name]]
        outputs: dict[str, list[VarBase | None]] = {}
        targets: list[tuple[Edge, VarBase]] = []
        for slot in definition.outs:
            entries = node_inputs.get(slot.name.removesuffix(_GRAD))
            if entries and any(e is not None for _, e in entries):
                made: list[VarBase | None] = []
                for _, edge in entries:
                    result = None if edge is None else VarBase(name="gradient")
                    made.append(result)
                    if edge is not None and result is not None:
                        targets.append((edge, result))
                outputs[slot.name] = made
        attrs = {n: v for n, v in node.trace_node.call.named.items() if n in definition.attrs}
        self.call(definition.type, inputs, outputs, attrs, node.draw)
        for edge, variable in targets:
            if variable.is_empty:
                continue
            gradients_of.setdefault(edge.key, []).append(variable)
            edges.setdefault(edge.key, edge)

    def _zeros(self, value: LazyValue) -> VarBase:
        zeros = VarBase(name="zeros")
        self.call("fill_zeros_like", {"X": [VarBase.of(value, None)]}, {"Out": [zeros]})
        return zeros


def _compute(values: Iterable[LazyValue | None]) -> None:
    """Compute pending values."""
    for value in values:
        if value is not None:
            array_of(value)


def _call_of(type_: str, inputs: Variables, outputs: Variables, attrs: Mapping[str, Any] | None) -> Call:
    """Return the call of an operator upon variables."""
    layout = tuple([(slot, len(listed(vs))) for slot, vs in inputs.items()])
    wanted = tuple([(slot, tuple([v is not None for v in listed(vs)])) for slot, vs in outputs.items()])
    call = call_of(type_, layout, wanted, attrs, False)
    if call.in_place and _shares(call, inputs, outputs):
        return call_of(type_, layout, wanted, attrs, True)
    return call


def listed(given: VarBase | Sequence[VarBase | None]) -> Sequence[VarBase | None]:
    """Return the variables of a slot."""
    return [given] if isinstance(given, VarBase) else given


def _nodes(outputs: Sequence[VarBase]) -> list[GradNode]:
    return tape.order([node for out in outputs if (node := out.edge().node) is not None])


def _keyed(outputs: Variables, key: list[Any]) -> list[VarBase | None]:
    """Return the output variables of a call, slot after slot; the key gets the wanted outputs."""
    made: list[VarBase | None] = []
    key.append(_OUTPUTS)
    for slot, wanted in outputs.items():
        key.append(slot)
        for v in (wanted,) if isinstance(wanted, VarBase) else wanted:
            key.append(v is None)
            made.append(v)
    return made


def _pattern(
    layout: tuple[Any, ...], outputs: tuple[Any, ...], values: Sequence[LazyValue | None], edges: Sequence[Any]
) -> Any:
    """Return a key that is equal for equal calls upon values of the same kinds, wherever the values come from."""
    kinds = tuple([None if v is None else (v.aval,) if v.known else v.aval for v in values])
    return layout, outputs, kinds, tuple([edge is None for edge in edges])


def _known(values: Sequence[LazyValue | None]) -> bool:
    """Return True if there are values and all values are known numbers."""
    found = [v.known for v in values if v is not None]
    return bool(found) and all(found)


def _hold(totals: Mapping[Any, tuple[Edge, VarBase]]) -> None:
    """Give variables their gradients."""
    for edge, total in totals.values():
        variable = edge.variable()
        if variable is not None:
            variable.hold_gradient(total.held)


def _shares(call: Call, inputs: Variables, outputs: Variables) -> bool:
    """Return True if outputs are the variables that the operator may overwrite."""
    for written, read in call.in_place:
        first, second = listed(outputs.get(written, ())), listed(inputs.get(read, ()))
        if len(first) != len(second) or not all(a is b for a, b in zip(first, second)):
            return False
    return True


def _may_be_known(value: LazyValue) -> bool:
    aval = value.aval
    return aval.plain and aval.dtype.kind in "iub" and int(np.prod(aval.shape)) <= _MOST_KNOWN


def _array(value: Any) -> Any:
    return np.asarray(value) if not isinstance(value, jax.Array) else value
