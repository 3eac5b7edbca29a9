"""Operators of a layer, one upon the result of the other, that repeat.

A layer of `nn` that calls three operators (a product, a bias, an activation) calls the same ones in each
step. They are found again together, by what is pending before them and what the first ones read, as one
call is (see `points`): what lies between them is neither named nor looked up.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from jfluid.dygraph.pending import Pending
from jfluid.dygraph.points import Point
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.values import Value
from jfluid.dygraph.varbase import VarBase

# Where an input of an operator comes from: the place of its variable among those that are given, from 0; an
# output of the operator before by -1 and less.
Source = int


class Chain(NamedTuple):
    """Operators that were called one after the other.

    Attributes:
        links: for each the point to which it leads, and where its inputs come from, in the order in which
            they are given; none where no gradients flow through it.
        place: of the result among the outputs of the last one.
    """

    links: Sequence[tuple[Point, Sequence[Source]]]
    place: int


def call(
    pending: Pending,
    records: bool,
    token: Hashable,
    variables: Sequence[VarBase | None],
    function: Callable[[], Any],
) -> Any:
    """Return what a function does that calls operators upon variables, each upon results of the one before it.

    Args:
        records: whether gradients are recorded.
        token: is another one where the function calls other operators.
        variables: all that the function reads.
    """
    before, leaves = pending.point, len(pending.leaves)
    key: list[Any] = [token, records]
    values: list[Value | None] = []
    edges: list[Any] = []
    if not pending.name(variables, records, key, values, edges):
        pending.take_back(leaves)
        return function()
    kind = tuple(key)
    known: Chain | None = before.together.get(kind)
    if known is not None:
        return _repeat(pending, known, values, edges)
    named = pending.leaves[leaves:]
    pending.take_back(leaves)
    owner = pending.leaves
    result = function()
    # what was named must be what the operators have read, in this order
    if owner is pending.leaves and owner[leaves:] == named:
        chain = _chain(pending, before, values, edges, result.held)
        if chain is not None:
            pending.keep_together(before, kind, chain)
    return result


def _repeat(pending: Pending, chain: Chain, values: list[Value | None], edges: list[Any]) -> VarBase:
    owner, nodes = pending.leaves, pending.nodes
    results: list[Value | None] = []
    node: Any = None
    for point, sources in chain.links:
        before, results = results, pending.go(point, None)
        if point.flows:
            node = GradNode(
                point,
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
    made.assign(results[chain.place], node, chain.place)  # type: ignore[arg-type]
    return made


def _chain(
    pending: Pending,
    before: Point,
    values: Sequence[Value | None],
    edges: Sequence[Any],
    result: Value,
) -> Chain | None:
    """Return what was called after a point upon some inputs; None where that is no chain."""
    points = pending.point.since(before)
    if not points or points[0].before is not before or pending.point.draws != before.draws:
        return None
    nodes = {n.point.number: n for held in pending.nodes[before.nodes :] if (n := held())}
    given = [*zip(values, edges)]
    links = []
    node: GradNode | None = None
    for point in points:
        sources: list[Source | None] = []
        if point.flows:
            previous, node = node, nodes.get(point.number)
            if node is None:
                return None
            for value, edge in zip(node.values, node.edges, strict=True):
                same = (at for at, (v, e) in enumerate(given) if v is value and e is edge)
                sources.append(next(same, None))
                if sources[-1] is None and previous is not None and type(edge) is Edge:
                    if edge.node is previous and previous.outputs[edge.index] is value:
                        sources[-1] = -1 - edge.index
            if None in sources or not all(pending.has(v) for v in node.outputs if v is not None):
                return None
        else:
            node = None
        links.append((point, tuple([at for at in sources if at is not None])))
    place = result.source - points[-1].first
    if not pending.has(result) or not 0 <= place < len(points[-1].made):
        return None
    return Chain(links, place)
