"""Gradients of eager variables: a graph of operators, walked backwards.

Each output of an operator refers to its node, and the node to its inputs. There is no separate list: a node without a
variable that leads to it is garbage. An operator's gradient operator computes the gradient through an ordinary call, so
that gradients of gradients need no further code.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.lazy_values import LazyValue
from jfluid.dygraph.trace_trie import TraceNode

_numbers = itertools.count()


class Edge:
    """Destination of a gradient: an output of a node, or a VarBase without an operator."""

    __slots__ = ("index", "leaf", "node")

    def __init__(self, node: "GradNode | None", index: int, leaf: Any = None):
        self.node, self.index, self.leaf = node, index, leaf

    def variable(self) -> Any:
        """Return the variable, or None if it was garbage collected."""
        return self.leaf if self.node is None else self.node.variable(self.index)

    @property
    def key(self) -> tuple[int, int]:
        return (id(self.leaf), -1) if self.node is None else (id(self.node), self.index)


class GradNode:
    """An operator that was called while gradients were recorded.

    Args:
        trace_node: trie node of the call; a node without a parent for an operator that has run.
        values: inputs in the order of the call.
        edges: destination of each input's gradient: an Edge, a VarBase without an operator, or None.
        outputs: output values, slot after slot.
        draw: random numbers of the operator.
        owner: inputs of the lazy graph that records the call.

    Attributes:
        number: greater than the numbers of the nodes of its inputs.
        variables: variables of the outputs, by place in `outputs`.
        released: True after a backward pass that does not retain the graph.
    """

    __slots__ = (
        "__weakref__",
        "draw",
        "edges",
        "number",
        "outputs",
        "owner",
        "released",
        "trace_node",
        "values",
        "variables",
    )

    def __init__(
        self,
        trace_node: TraceNode,
        values: Sequence[LazyValue | None],
        edges: Sequence[Any],
        outputs: Sequence[LazyValue | None],
        draw: tuple[int, int] | None,
        owner: Any = None,
    ):
        self.trace_node, self.values, self.edges = trace_node, values, edges
        self.outputs, self.draw, self.owner = outputs, draw, owner
        self.number = next(_numbers)
        self.variables: dict[int, weakref.ref[Any]] = {}
        self.released = False

    def inputs(self) -> dict[str, list[tuple[LazyValue | None, Edge | None]]]:
        """Return by slot the inputs and the destinations of gradients (None for no gradient)."""
        pairs = zip(self.values, self.edges)
        found = {}
        for slot, n, flows in self.trace_node.call.given:
            found[slot] = [
                (v, None if not flows or e is None else e if type(e) is Edge else Edge(None, 0, e))
                for v, e in itertools.islice(pairs, n)
            ]
        return found

    def slot_outputs(self) -> dict[str, list[tuple[LazyValue | None, int]]]:
        """Return by slot the outputs and output places."""
        pairs = zip(self.outputs, itertools.count())
        return {slot: [*itertools.islice(pairs, n)] for slot, n in self.trace_node.slots}

    def variable(self, index: int) -> Any:
        """Return the variable of an output, or None if it was garbage collected."""
        found = self.variables.get(index)
        return None if found is None else found()

    def release(self) -> None:
        self.values = self.edges = self.outputs = ()
        self.released = True


def order(roots: Sequence[GradNode]) -> list[GradNode]:
    """Return all nodes that lead to `roots`, the last call first."""
    found: dict[int, GradNode] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.number not in found:
            found[node.number] = node
            for given in () if node.released else node.inputs().values():
                for _, edge in given:
                    if edge is not None and edge.node is not None:
                        stack.append(edge.node)
    return [found[number] for number in sorted(found, reverse=True)]


def check(node: GradNode) -> None:
    """Raise DygraphError for a node that a backward pass has released."""
    if node.released:
        raise errors.DygraphError(
            f"backward: an earlier pass computed the gradient of operator {node.trace_node.call.definition.type}, and "
            "released its inputs: pass retain_graph=True to the first call, or compute the loss again"
        )
