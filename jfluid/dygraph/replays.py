"""Replays of recorded operators: of a layer, of an optimizer and of a backward pass.

A training loop calls the same operators in each step. `replay_or_record` names the inputs of several operators,
looks up a replay at the current node of the trace trie, and adds the recorded nodes at once. Without a replay it runs
the function that calls the operators, and keeps a replay for the next step.

The function must depend on its key and its inputs alone. That holds for the layers of `nn`, for optimizers and for
backward passes, but not for the `forward` of a user's layer, which may read any Python object. A user's layer gains
from the layers of `nn` that it calls, and each other operator finds its own trie node.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

from jfluid.dygraph.calls import frozen
from jfluid.dygraph.lazy_graph import LazyGraph
from jfluid.dygraph.lazy_values import Aval, LazyValue
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.trace_trie import TraceNode
from jfluid.dygraph.varbase import VarBase

# Inputs and outputs by slot, and attributes.
Update = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]


class Inputs(NamedTuple):
    """Values that some operators read, and the edges of their gradients."""

    values: list[LazyValue | None]
    edges: list[Any]


def replay_or_record(
    graph: LazyGraph,
    key: Sequence[Hashable],
    variables: Sequence[VarBase | None],
    records: bool,
    run: Callable[[], Any],
    replay: Callable[[Any, Inputs], Any],
    record: Callable[[TraceNode, Inputs, Any], Any],
) -> Any:
    """Replay recorded operators, or call the operators and record a replay.

    Args:
        graph: the lazy graph.
        key: equal for calls of the same operators upon equal inputs.
        variables: all variables that the operators read.
        records: True if gradients are recorded.
        run: calls the operators.
        replay: adds a replay to the graph; returns None if the replay cannot be used.
        record: returns a replay of the operators behind a node, or None. The last argument is the result of `run`.
    """
    before, leaves = graph.node, len(graph.leaves)
    named: list[Any] = [*key]
    inputs = Inputs([], [])
    if not graph.name(variables, records, named, *inputs):
        graph.take_back(leaves)
        return run()
    full = tuple(named)
    known = before.replays.get(full)
    if known is not None and (result := replay(known, inputs)) is not None:
        return result
    new, owner = graph.leaves[leaves:], graph.leaves
    graph.take_back(leaves)
    result = run()
    # The operators must have read exactly the named inputs, in this order.
    if owner is graph.leaves and owner[leaves:] == new and graph.node.follows(before):
        made = record(before, inputs, result)
        if made is not None:
            graph.keep_replay(before, full, made)
    return result


def _gives(graph: LazyGraph, before: TraceNode, values: Sequence[LazyValue | None]) -> bool:
    """Return True if operators behind a node give all values, which have not been computed yet."""
    return all(v is not None and graph.has(v) and v.source >= before.outputs for v in values)


class LayerReplay(NamedTuple):
    """Chain of operators; each operator reads the result of the operator before it.

    Attributes:
        links: for each operator its trie node and the sources of its inputs, in the order of the call. A source from
            0 is a
            place among the layer's inputs; -1 and less is an output of the operator before. Operators without gradients
            have no sources.
        place: place of the result among the outputs of the last operator.
    """

    links: Sequence[tuple[TraceNode, Sequence[int]]]
    place: int


def call_layer(
    graph: LazyGraph,
    records: bool,
    token: Hashable,
    variables: Sequence[VarBase | None],
    function: Callable[[], VarBase],
) -> VarBase:
    """Return the result of a function that calls a chain of operators.

    Args:
        graph: the lazy graph.
        records: True if gradients are recorded.
        token: equal for functions that call the same operators.
        variables: all variables that the function reads.
        function: calls the operators, each upon the result of the operator before it.
    """

    def replay(known: LayerReplay, inputs: Inputs) -> VarBase:
        return _replay_layer(graph, known, inputs)

    def record(before: TraceNode, inputs: Inputs, result: VarBase) -> LayerReplay | None:
        return _record_layer(graph, before, inputs, result.held)

    found: VarBase = replay_or_record(graph, (token, records), variables, records, function, replay, record)
    return found


def _replay_layer(graph: LazyGraph, replay: LayerReplay, inputs: Inputs) -> VarBase:
    owner, nodes, (values, edges) = graph.leaves, graph.grad_nodes, inputs
    results: list[LazyValue | None] = []
    node: Any = None
    for trace_node, sources in replay.links:
        before, results = results, graph.advance(trace_node, None)
        if trace_node.flows:
            node = GradNode(
                trace_node,
                [values[at] if at >= 0 else before[-1 - at] for at in sources],
                [edges[at] if at >= 0 else Edge(node, -1 - at) for at in sources],
                results,
                None,
                owner,
            )
            nodes.append(ref(node))
        else:
            node = None
    made = VarBase.__new__(VarBase)
    made.assign(results[replay.place], node, replay.place)  # type: ignore[arg-type]
    return made


def _record_layer(graph: LazyGraph, before: TraceNode, inputs: Inputs, result: LazyValue) -> LayerReplay | None:
    """Return a replay of the operators behind a node, or None if the operators form no chain."""
    trace_nodes = graph.node.since(before)
    if not trace_nodes or graph.node.draws != before.draws:
        return None
    grad_nodes = {id(n.trace_node): n for held in graph.grad_nodes[before.grad_nodes :] if (n := held())}
    links = []
    node: GradNode | None = None
    for trace_node in trace_nodes:
        previous, node = node, grad_nodes.get(id(trace_node)) if trace_node.flows else None
        sources: list[int] | None = []
        if trace_node.flows:
            sources = None if node is None else _sources(node, previous, inputs)
            if node is None or sources is None or not _gives(graph, before, [v for v in node.outputs if v is not None]):
                return None
        links.append((trace_node, tuple(sources or ())))
    place = result.source - trace_nodes[-1].first_output
    if not graph.has(result) or not 0 <= place < len(trace_nodes[-1].made):
        return None
    return LayerReplay(links, place)


def _sources(node: GradNode, previous: GradNode | None, inputs: Inputs) -> list[int] | None:
    """Return the sources of a node's inputs (see `LayerReplay`), or None if an input comes from elsewhere."""
    given, sources = [*zip(*inputs)], []
    for value, edge in zip(node.values, node.edges, strict=True):
        at = next((i for i, (v, e) in enumerate(given) if v is value and e is edge), None)
        if at is None and previous is not None and type(edge) is Edge and edge.node is previous:
            at = -1 - edge.index if previous.outputs[edge.index] is value else None
        if at is None:
            return None
        sources.append(at)
    return sources


class OptimizerReplay(NamedTuple):
    """Updates of all parameters by one type of operator.

    Attributes:
        end: the trie node of the last update.
        written: the output number and kind of each variable that the updates write.
    """

    end: TraceNode
    written: list[tuple[int, Aval]]


def call_updates(graph: LazyGraph, type_: str, updates: Sequence[Update], call: Callable[[Update], Any]) -> None:
    """Call an operator for each update, in order, without gradients.

    Args:
        graph: the lazy graph.
        type_: type of the operators.
        updates: inputs, outputs and attributes of each operator.
        call: calls the operator of an update.
    """
    written = [v for _, outputs, _ in updates for v in outputs.values()]

    def run() -> bool:
        for update in updates:
            call(update)
        return True

    def replay(known: OptimizerReplay, inputs: Inputs) -> bool:
        return _replay_updates(graph, known, written)

    def record(before: TraceNode, inputs: Inputs, result: bool) -> OptimizerReplay | None:
        values = [v.held for v in written]
        end = graph.node
        if end.depth != before.depth + len(updates) or end.draws != before.draws or not _gives(graph, before, values):
            return None
        return OptimizerReplay(end, [(v.source, v.aval) for v in values])

    key = _update_key(type_, updates)
    if key is None:
        run()
        return
    read = [v for inputs, _, _ in updates for v in inputs.values()]
    replay_or_record(graph, key, read, False, run, replay, record)


def _replay_updates(graph: LazyGraph, replay: OptimizerReplay, written: Sequence[VarBase]) -> bool:
    held: dict[int, LazyValue] = {}
    for variable, (number, aval) in zip(written, replay.written, strict=True):
        held[number] = LazyValue(aval)
        variable.assign(held[number])
    graph.append(replay.end, held, ())
    return True


def _update_key(type_: str, updates: Sequence[Update]) -> list[Hashable] | None:
    """Return the key of updates without the inputs, or None if a replay is impossible."""
    key: list[Hashable] = [type_, len(updates)]
    written: set[int] = set()
    for inputs, outputs, attrs in updates:
        if attrs:
            key.append(frozen(attrs))
        places: dict[int, str] = {}
        for slot, v in inputs.items():
            if not isinstance(v, VarBase) or id(v) in written:
                return None
            key.append(slot)
            places[id(v)] = slot
        for slot, v in outputs.items():
            if not isinstance(v, VarBase):
                return None
            key += (slot, places.get(id(v)))  # an operator in place is another call
            written.add(id(v))
    return key


class BackwardReplay(NamedTuple):
    """A backward pass.

    Attributes:
        end: the trie node of its last operator.
        nodes: places of the nodes that the pass goes through.
        drawing: places of the nodes whose random numbers the pass draws again.
        gradients: for each gradient the place of the node and of the node's output to which it flows (or -1, and the
            place of a variable that no operator gave), and the gradient's output number and kind; by that number.
    """

    end: TraceNode
    nodes: tuple[int, ...]
    drawing: tuple[int, ...]
    gradients: tuple[tuple[int, int, int, Aval], ...]


# Gradients and the edges to which they flow, by the edges' keys.
Totals = Mapping[Any, tuple[Edge, VarBase]]


def call_backward(
    graph: LazyGraph,
    outputs: Sequence[VarBase],
    order: Callable[[], Sequence[GradNode]],
    walk: Callable[[Sequence[GradNode]], Totals],
) -> None:
    """Give all variables their gradients.

    Args:
        graph: the lazy graph.
        outputs: variables with which the pass begins.
        order: returns the nodes of the pass.
        walk: calls the gradient operators of these nodes.
    """

    def run() -> tuple[Sequence[GradNode], Totals]:
        nodes = order()
        return nodes, walk(nodes)

    def replay(known: BackwardReplay, inputs: Inputs) -> bool | None:
        return _replay_backward(graph, known) or None

    def record(before: TraceNode, inputs: Inputs, result: tuple[Sequence[GradNode], Totals]) -> BackwardReplay | None:
        return _record_backward(graph, before, *result)

    flows = [graph.flow(out.edge()) for out in outputs]
    if all(graph.has(out.held) and type(flow) is int for out, flow in zip(outputs, flows)):
        key = ["backward", *[(out.held.source, flow) for out, flow in zip(outputs, flows)]]
        replay_or_record(graph, key, (), False, run, replay, record)
    else:
        run()


def _replay_backward(graph: LazyGraph, replay: BackwardReplay) -> bool:
    """Record a backward pass again; return False if an earlier pass has released a node."""
    nodes: dict[int, Any] = {place: graph.grad_nodes[place]() for place in replay.nodes}
    for node in nodes.values():
        if node is None or node.released:
            return False
    held: dict[int, LazyValue] = {}
    for place, index, number, aval in replay.gradients:
        variable = graph.variables[index] if place < 0 else nodes[place].variable(index)
        if variable is not None:
            if number not in held:
                held[number] = LazyValue(aval)
            variable.hold_gradient(held[number])
    graph.append(replay.end, held, [nodes[place].draw for place in replay.drawing])
    for node in nodes.values():
        node.release()
    return True


def _record_backward(
    graph: LazyGraph, before: TraceNode, nodes: Sequence[GradNode], totals: Totals
) -> BackwardReplay | None:
    """Return a replay of the backward pass behind a node, or None if the pass depends on more than its key."""
    end, owner = graph.node, graph.leaves
    drawing = [
        next((n.trace_node.grad_place for n in nodes if n.draw is draw), None) for draw in graph.draws[before.draws :]
    ]
    if (
        any(record.call.constants for record in end.records(before))
        or None in drawing
        or not all(node.owner is owner for node in nodes)
        or not _gives(graph, before, [total.held for _, total in totals.values()])
    ):
        return None
    gradients = []
    for edge, total in totals.values():
        if edge.node is None:
            place, index = -1, -1 - graph.flow(edge.leaf)
        else:
            place, index = edge.node.trace_node.grad_place, edge.index
        gradients.append((place, index, total.held.source, total.held.aval))
    return BackwardReplay(
        end,
        tuple([node.trace_node.grad_place for node in nodes]),
        tuple([place for place in drawing if place is not None]),
        tuple(sorted(gradients, key=lambda found: found[2])),  # as they were recorded
    )
