"""Calls operators on eager variables, and their gradient operators backwards."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jfluid import errors
from jfluid.compile.host import Host
from jfluid.compile.plan import Segment
from jfluid.dygraph import tape, walks
from jfluid.dygraph.calls import Call, call_of, frozen
from jfluid.dygraph.pending import array_of, pending_on
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.values import Value, constant
from jfluid.dygraph.varbase import VarBase
from jfluid.ir.operator import Operator
from jfluid.ops import gradients, registry, static_values
from jfluid.scope import Scope

Variables = Mapping[str, Sequence[VarBase | None]]
_GRAD = gradients.GRAD
_SMALL = 64  # elements: numbers up to here are computed at once where they are known
_MOST_PREPARED = 8192
_OUTPUTS = ""  # stands before the outputs in a key: no slot has this name
_MOST_KNOWN = 4096  # elements of an input that an operator may have to know


class Tracer:
    """Runs the operators of one `guard`.

    Args:
        place: its device runs them.

    Attributes:
        records: whether operators are recorded for gradients.
        seed: of random operators; 0 draws one.
    """

    def __init__(self, place: Any):
        self.place = place
        self.device: jax.Device = place.device()
        self.pending = pending_on(self.device)
        self.records = True
        self.seed = 0
        self._entropy = secrets.randbits(63)
        self._drawn = 0

    @contextlib.contextmanager
    def recording(self, records: bool) -> Iterator[None]:
        """A context in which operators are, or are not, recorded for gradients."""
        before, self.records = self.records, records
        try:
            yield
        finally:
            self.records = before

    def reseed(self, seed: int) -> None:
        """Begin the random numbers of a seed anew; 0 draws one."""
        self.seed, self._drawn = seed, 0

    def give(self, value: Value) -> None:
        """Note an array that the script gives (see `Pending.give`)."""
        self.pending.give(value, (self.seed or self._entropy, self._drawn))

    # ---- operators --------------------------------------------------------------------------------

    def call(
        self,
        type_: str,
        inputs: Variables,
        outputs: Variables,
        attrs: Mapping[str, Any] | None = None,
        draw: tuple[int, int] | None = None,
    ) -> None:
        """Call an operator, and give its outputs their values.

        Args:
            inputs: by slot; None where an input of a list is missing.
            outputs: by slot; None for an output that is not wanted.
            draw: the random numbers of an operator that draws; new ones when None.

        Raises what `Block.append_op` does.
        """
        key, values = _kind(type_, inputs, outputs, attrs)
        prepared = _prepared.get(key)
        if prepared is not None and prepared.in_place and _shares(prepared, inputs, outputs):
            prepared = prepared.shared
        if prepared is None:
            prepared = _prepare(type_, inputs, outputs, attrs, key, values)
        call = prepared.call
        if prepared.order is not None:
            values = [None if at < 0 else values[at] for at in prepared.order]
        if call.draws_numbers and draw is None:
            draw = self.seed or self._entropy, self._drawn
            self._drawn += 1
        if call.on_host:
            results = self._on_host(call, inputs, outputs)
        elif call.definition.fold and (known := self._folded(call, values)) is not None:
            results = known
        else:
            given = draw if call.draws_numbers else None
            if prepared.outputs is None:
                results = self._add(call, values, given)
            else:
                results = self.pending.add(call, prepared.outputs, values, given)
        node = None
        if self.records and call.has_gradient:
            node = _node(call, inputs, attrs, values, draw)
        for name, result in zip(call.writes, results):
            variables = outputs.get(name, ())
            if type(result) is not list:
                result = (result,)
            if len(variables) > len(result):
                raise errors.ShapeError(
                    f"operator {type_}: output {name} has {len(result)} tensors, but "
                    f"{len(variables)} variables are named"
                )
            if node is not None:
                node.outputs[name] = [*result]
            for i, variable in enumerate(variables):
                if variable is not None and result[i] is not None:
                    variable.assign(result[i], node, name, i)

    def _add(
        self, call: Call, values: list[Value | None], draw: tuple[int, int] | None
    ) -> list[Any]:
        """Record a call whose outputs have shapes that follow from numbers among its inputs."""
        constants = {}
        for i, v in enumerate(values):
            if v is not None and _may_be_known(v):
                constants[i] = np.asarray(array_of(v))
        rest = [None if i in constants else v for i, v in enumerate(values)]
        known = call.specialised(constants)
        try:
            outputs = known.outputs([None if v is None else v.aval for v in rest])
        except static_values.Unknown:
            call.outputs([None if v is None else v.aval for v in values])  # says what is unknown
            raise
        return self.pending.add(known, outputs, rest, draw)

    def _folded(self, call: Call, values: list[Value | None]) -> list[Any] | None:
        """The outputs of an operator whose inputs are known numbers; None where they are not."""
        for v in values:
            if v is not None and not v.known:
                return None
        arrays = [None if v is None else v.array for v in values]
        if all(a is None for a in arrays):
            return None
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
            names[slot] = [v.name for v in given if v is not None]
            env.update((v.name, array_of(v.held)) for v in given if v is not None)
        made = {s: [f"{s}:{i}" for i in range(len(vs))] for s, vs in outputs.items()}
        op = Operator(call.op.block, definition.type, names, made, call.op.attrs, callsite=False)
        with jax.enable_x64(True):
            Host(lambda plan: None, self.place).run(
                Segment([(0, op, definition)], True), env, None, Scope()
            )
        return [
            [constant(_array(env[n])) if n in env else None for n in made.get(s.name, ())]
            for s in definition.outs
        ]

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
            seeds: the gradient of each output; ones when None.
            targets: the variables whose gradients are returned; when None, all variables hold
                theirs afterwards.
            retain: keep what another backward pass needs.
            create: record the gradient operators, so that their results have gradients, too.
            stops: variables that no gradient passes through.

        Raises DygraphError where a part was released by an earlier pass.
        """
        roots = [node for out in outputs if (node := out.edge().node) is not None]
        nodes = tape.order(roots)
        plain = targets is None and not (retain or create or stops)
        if plain and all(seed is None for seed in seeds):
            self._backward_plainly(outputs, nodes)
            return []
        totals = self._walk(outputs, seeds, nodes, targets, retain, create, stops)
        if targets is not None:
            return [totals[key][1] if (key := v.edge().key) in totals else None for v in targets]
        _hold(totals)
        return []

    def _backward_plainly(self, outputs: Sequence[VarBase], nodes: Sequence[GradNode]) -> None:
        """Give all variables their gradients: as the last pass of this kind did, where there was one."""
        of_nodes = walks.Tape(self.pending, outputs, nodes)
        known = of_nodes.kind and self.pending.walks.get(of_nodes.kind)
        if known:
            known.repeat(self.pending, of_nodes)
            for node in nodes:
                node.release()
            return
        before = self.pending.sizes()
        totals = self._walk(outputs, [None] * len(outputs), nodes)
        if of_nodes.kind:
            walk = walks.Walk.since(before, self.pending, of_nodes, totals)
            self.pending.walks.get_or_make(of_nodes.kind, lambda: walk)
        _hold(totals)

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
        """Call the gradient operators of nodes; returns the gradients and where they go, by the key of
        that.
        """
        gradients_of: dict[tuple[int, str, int], list[VarBase]] = {}
        edges: dict[tuple[int, str, int], Edge] = {}
        blocked = {e.key for v in stops if (e := v.edge()) is not None}
        with self.recording(create):
            for out, seed in zip(outputs, seeds, strict=True):
                edge = out.edge()
                if seed is None:
                    seed = VarBase(None, f"{out.name}{_GRAD}")
                    self.call(
                        "fill_any_like", {"X": [out]}, {"Out": [seed]}, {"value": 1.0, "dtype": -1}
                    )
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
        total = VarBase(None, parts[0].name)
        self.call("sum", {"X": parts}, {"Out": [total]})
        return total

    def _through(
        self,
        node: GradNode,
        gradients_of: dict[tuple[int, str, int], list[VarBase]],
        edges: dict[tuple[int, str, int], Edge],
        blocked: set[tuple[int, str, int]],
    ) -> None:
        """Call the gradient operator of a node, and hand its results on to the nodes before."""
        definition = registry.get(node.type + "_grad")
        cotangents: dict[str, list[VarBase | None]] = {}
        for name, values in node.outputs.items():
            found = []
            for i in range(len(values)):
                key = (id(node), name, i)
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
                    values = node.outputs[name.removesuffix(_GRAD)]
                    given = [
                        self._zeros(v) if c is None and v is not None else c
                        for c, v in zip(given, values)
                    ]
                if any(c is not None for c in given):
                    inputs[name] = given
            elif name in node.inputs:
                inputs[name] = [
                    None if v is None else VarBase.of(v, e) for v, e in node.inputs[name]
                ]
            elif definition.forward is None and name in node.outputs:
                inputs[name] = [
                    None if v is None else VarBase.of(v, Edge(node, name, i, None))
                    for i, v in enumerate(node.outputs[name])
                ]
        outputs: dict[str, list[VarBase | None]] = {}
        targets: list[tuple[Edge, VarBase]] = []
        for slot in definition.outs:
            entries = node.inputs.get(slot.name.removesuffix(_GRAD))
            if entries and any(e is not None for _, e in entries):
                made: list[VarBase | None] = []
                for _, edge in entries:
                    result = None if edge is None else VarBase(None, "gradient")
                    made.append(result)
                    if edge is not None and result is not None:
                        targets.append((edge, result))
                outputs[slot.name] = made
        attrs = {n: v for n, v in (node.attrs or {}).items() if n in definition.attrs}
        self.call(definition.type, inputs, outputs, attrs, node.draw)
        for edge, variable in targets:
            if variable.is_empty:
                continue
            gradients_of.setdefault(edge.key, []).append(variable)
            edges.setdefault(edge.key, edge)

    def _zeros(self, value: Value) -> VarBase:
        zeros = VarBase(None, "zeros")
        self.call("fill_zeros_like", {"X": [VarBase.of(value, None)]}, {"Out": [zeros]})
        return zeros


@dataclass(slots=True)
class _Prepared:
    """What `Tracer.call` has looked up for arguments of one kind.

    Attributes:
        call: the operator.
        order: for each value of the call its place among those that are given, -1 for none; None where
            they are given in this order.
        outputs: what `Call.outputs` says; None where it follows from numbers.
        in_place: output and input slots for which it matters whether they are the same variables.
        shared: for the same arguments where they are.
    """

    call: Call
    order: tuple[int, ...] | None
    outputs: Sequence[Any] | None
    in_place: tuple[tuple[str, str], ...]
    shared: "_Prepared | None" = None


_prepared: dict[Any, _Prepared] = {}


def _prepare(
    type_: str,
    inputs: Variables,
    outputs: Variables,
    attrs: Mapping[str, Any] | None,
    key: Any,
    values: Sequence[Value | None],
) -> _Prepared:
    """Look up what `Tracer.call` does for arguments, and keep it.

    Args:
        key, values: of the arguments, as `_kind` gives them.
    """
    layout = tuple([(slot, len(vs)) for slot, vs in inputs.items()])
    wanted = tuple([(slot, tuple([v is not None for v in vs])) for slot, vs in outputs.items()])
    call = call_of(type_, layout, wanted, attrs, False)
    places, given = {}, 0
    for slot, n in layout:
        places[slot] = range(given, given + n)
        given += n
    order: list[int] = []
    for slot, n, _ in call.reads:
        order += places.get(slot) or ([-1] if n < 0 else [])
    found = None
    if not call.on_host:
        # not known where it follows from numbers: then these belong to the call
        with contextlib.suppress(static_values.Unknown):
            found = call.outputs(
                [None if at < 0 or (v := values[at]) is None else v.aval for at in order]
            )
    definition = call.definition
    prepared = _Prepared(
        call,
        None if order == [*range(given)] else tuple(order),
        found,
        tuple(definition.inplace.items()) if definition.wants_shared else (),
    )
    if len(_prepared) >= _MOST_PREPARED:
        _prepared.clear()
    _prepared[key] = prepared
    if prepared.in_place and _shares(prepared, inputs, outputs):
        call = call_of(type_, layout, wanted, attrs, True)
        prepared.shared = replace(prepared, call=call)
        return prepared.shared
    return prepared


def _kind(
    type_: str, inputs: Variables, outputs: Variables, attrs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], list[Value | None]]:
    """Return what is equal for calls that do the same with values of the same kinds, and the values."""
    # One pass: a step of XLA evicts this from the core's caches, so that every function call counts.
    key: list[Any] = [type_]
    values: list[Value | None] = []
    for slot, given in inputs.items():
        key.append(slot)
        for v in given:
            if v is None:
                values.append(None)
                key.append(None)
            else:
                value = v._value or v.held  # `held` raises for one without a value
                values.append(value)
                key.append(value.aval.number)
    key.append(_OUTPUTS)
    for slot, made in outputs.items():
        key.append(slot)
        for v in made:
            key.append(v is None)
    if attrs:
        key.append(frozen(attrs))
    return tuple(key), values


def _node(
    call: Call,
    inputs: Variables,
    attrs: Mapping[str, Any] | None,
    values: Sequence[Value | None],
    draw: tuple[int, int] | None,
) -> GradNode | None:
    """The node of an operator that was called; None where no gradient goes through it."""
    node_inputs: dict[str, list[tuple[Value | None, Edge | None]]] = {}
    wanted, at = False, 0
    for slot, n, flows in call.reads:
        given = inputs.get(slot)
        if not given:
            at += n < 0
            continue
        entries: list[tuple[Value | None, Edge | None]] = []
        for v in given:
            edge = None
            if flows and v is not None and not v._stop_gradient:
                edge, wanted = v._edge or v.edge(), True
            entries.append((values[at], edge))
            at += 1
        node_inputs[slot] = entries
    return GradNode(call.definition.type, attrs, node_inputs, draw) if wanted else None


def _hold(totals: Mapping[Any, tuple[Edge, VarBase]]) -> None:
    """Give variables their gradients."""
    for edge, total in totals.values():
        variable = edge.variable()
        if variable is not None:
            variable.hold_gradient(total.held)


def _shares(prepared: _Prepared, inputs: Variables, outputs: Variables) -> bool:
    """Whether outputs are the variables that the operator may overwrite."""
    for written, read in prepared.in_place:
        first, second = outputs.get(written, ()), inputs.get(read, ())
        if len(first) != len(second) or not all(a is b for a, b in zip(first, second)):
            return False
    return True


def _may_be_known(value: Value) -> bool:
    aval = value.aval
    return aval.plain and aval.dtype.kind in "iub" and int(np.prod(aval.shape)) <= _MOST_KNOWN


def _array(value: Any) -> Any:
    return np.asarray(value) if not isinstance(value, jax.Array) else value
