"""Gradients of eager variables: which operators gave them, walked backwards.

Each output of an operator refers to its node, and the node to its inputs. There is no other list: what
no variable leads to any more is gone. A gradient is computed by the operator's own gradient
operator, called as any other, so that gradients of gradients come by themselves.
"""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.values import Value

_numbers = itertools.count()


class Edge:
    """Where a gradient goes: to an output of a node, or to a VarBase that no operator gave."""

    __slots__ = ("index", "leaf", "node", "slot")

    def __init__(self, node: "GradNode | None", slot: str, index: int, leaf: Any):
        self.node, self.slot, self.index, self.leaf = node, slot, index, leaf

    def variable(self) -> Any:
        """The variable, if there still is one."""
        if self.leaf is not None:
            return self.leaf
        found = self.node.variables.get((self.slot, self.index)) if self.node else None
        return None if found is None else found()

    @property
    def key(self) -> tuple[int, str, int]:
        return (
            (id(self.leaf), "", 0) if self.node is None else (id(self.node), self.slot, self.index)
        )


class GradNode:
    """An operator that was called while gradients were wanted.

    Attributes:
        inputs: by slot, the values when it was called, and where their gradients go (None where
            none is wanted). Empty after a backward pass that does not retain it.
        outputs: by slot, its values.
        draw: its random numbers.
        number: greater than those of the nodes that gave its inputs.
        variables: those that hold its outputs, by slot and place.
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "draw",
        "inputs",
        "number",
        "outputs",
        "released",
        "type",
        "variables",
    )

    def __init__(
        self,
        type_: str,
        attrs: Mapping[str, Any] | None,
        inputs: dict[str, list[tuple[Value | None, Edge | None]]],
        draw: tuple[int, int] | None,
    ):
        self.type, self.attrs, self.inputs, self.draw = type_, attrs, inputs, draw
        self.number = next(_numbers)
        self.outputs: dict[str, list[Value | None]] = {}
        self.variables: dict[tuple[str, int], weakref.ref[Any]] = {}
        self.released = False

    def release(self) -> None:
        self.inputs, self.outputs, self.released = {}, {}, True


def order(roots: Sequence[GradNode]) -> list[GradNode]:
    """Return all nodes that lead to `roots`, each before those that gave its inputs: the last call
    first.
    """
    found: dict[int, GradNode] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.number not in found:
            found[node.number] = node
            for given in node.inputs.values():
                for _, edge in given:
                    if edge is not None and edge.node is not None:
                        stack.append(edge.node)
    return [found[number] for number in sorted(found, reverse=True)]


def check(node: GradNode) -> None:
    """Raise DygraphError for a node that a backward pass has released."""
    if node.released:
        raise errors.DygraphError(
            f"backward: the gradient of operator {node.type} was computed before, and what it needs "
            "was released then: keep it with retain_graph=True in the first call, or compute "
            "the loss again"
        )
