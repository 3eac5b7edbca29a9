"""Gradients of eager variables: which operators gave them, walked backwards.

Each output of an operator refers to its node, and the node to its inputs. There is no other list: what
no variable leads to any more is gone. A gradient is computed by the operator's own gradient
operator, called as any other, so that gradients of gradients come by themselves.
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
    """Where a gradient goes: to an output of a node, or to a VarBase that no operator gave."""

    __slots__ = ("index", "leaf", "node")

    def __init__(self, node: "GradNode | None", index: int, leaf: Any = None):
        self.node, self.index, self.leaf = node, index, leaf

    def variable(self) -> Any:
        """The variable, if there still is one."""
        return self.leaf if self.node is None else self.node.variable(self.index)

    @property
    def key(self) -> tuple[int, int]:
        return (id(self.leaf), -1) if self.node is None else (id(self.node), self.index)


class GradNode:
    """An operator that was called while gradients were wanted.

    Args:
        trace_node: to which the call leads; one that none lies before for an operator that has run at once.
        values: its inputs, in the order in which they were given.
        edges: where the gradient of each goes: an Edge, a VarBase that no operator gave, or None.
        outputs: its values, for all slots one after the other.
        draw: its random numbers.

    Attributes:
        number: greater than those of the nodes that gave its inputs.
        variables: those that hold its outputs, by their places among `outputs`.
        released: whether a backward pass that does not retain it was here.
        owner: the inputs of what was pending when it was called, with its call.
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
        """Return by slot its inputs, and where their gradients go (None where none is wanted)."""
        pairs = zip(self.values, self.edges)
        found = {}
        for slot, n, flows in self.trace_node.call.given:
            found[slot] = [
                (v, None if not flows or e is None else e if type(e) is Edge else Edge(None, 0, e))
                for v, e in itertools.islice(pairs, n)
            ]
        return found

    def slot_outputs(self) -> dict[str, list[tuple[LazyValue | None, int]]]:
        """Return by slot its outputs, with their places among all."""
        pairs = zip(self.outputs, itertools.count())
        return {slot: [*itertools.islice(pairs, n)] for slot, n in self.trace_node.slots}

    def variable(self, index: int) -> Any:
        """Return the variable that holds an output, if there still is one."""
        found = self.variables.get(index)
        return None if found is None else found()

    def release(self) -> None:
        self.values = self.edges = self.outputs = ()
        self.released = True


def order(roots: Sequence[GradNode]) -> list[GradNode]:
    """Return all nodes that lead to `roots`, each before those that gave its inputs: the last call first."""
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
