"""Backward passes that repeat.

A training loop's backward passes call the same gradient operators in the same order, step by step. What one
pass has recorded is kept by what determines it: all that was pending before it, and where it
began. The next pass from there adds the same calls at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jfluid.dygraph.pending import Pending
from jfluid.dygraph.points import Point
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.values import Aval, Value
from jfluid.dygraph.varbase import VarBase


def kind_of(pending: Pending, outputs: Sequence[VarBase]) -> Any:
    """Return what is equal for passes from some outputs that record the same; None where that is not known."""
    key = [pending.point.number]
    for out in outputs:
        flow = pending.flow(out.edge())
        if not pending.has(out.held) or type(flow) is not int:
            return None
        key += (out.held.source, flow)
    return tuple(key)


@dataclass(frozen=True)
class Walk:
    """What a backward pass has recorded.

    Attributes:
        end: what is pending after it.
        nodes: the places of the nodes that it goes through.
        drawing: of those whose random numbers it draws again.
        gradients: for each the place of the node and of its output where it goes (or -1, and the place of
            a variable that no operator gave), and its number among all outputs and kind; by that number.
    """

    end: Point
    nodes: tuple[int, ...]
    drawing: tuple[int, ...]
    gradients: tuple[tuple[int, int, int, Aval], ...]

    @classmethod
    def since(
        cls,
        before: Point,
        pending: Pending,
        nodes: Sequence[GradNode],
        draws: Sequence[tuple[int, int] | None],
        totals: Mapping[Any, tuple[Edge, VarBase]],
    ) -> "Walk | None":
        """Return what was recorded after a point; None where it depends on more than that.

        Args:
            nodes: those that it went through.
            draws: their random numbers.
            totals: the gradients, and where they went.
        """
        end, owner = pending.point, pending.leaves
        if not end.follows(before) or end.leaves != before.leaves:
            return None
        drawing = [
            next((n.point.place for n, d in zip(nodes, draws) if d is draw), None)
            for draw in pending.draws[before.draws :]
        ]
        values = [total.held for _, total in totals.values()]
        if (
            any(record.call.constants for record in end.records(before))
            or any(place is None for place in drawing)
            or not all(node.owner is owner for node in nodes)
            or not all(pending.has(v) and v.source >= before.outputs for v in values)
        ):
            return None
        gradients = []
        for edge, total in totals.values():
            place, index = -1, -1 - pending.flow(edge.leaf) if edge.node is None else 0
            if edge.node is not None:
                place, index = edge.node.point.place, edge.index
            gradients.append((place, index, total.held.source, total.held.aval))
        return cls(
            end,
            tuple([node.point.place for node in nodes]),
            tuple([place for place in drawing if place is not None]),
            tuple(sorted(gradients, key=lambda found: found[2])),  # as they were recorded
        )

    def repeat(self, pending: Pending) -> bool:
        """Record it again, and give the variables their gradients; False where what it needs was released."""
        nodes: dict[int, Any] = {place: pending.nodes[place]() for place in self.nodes}
        for node in nodes.values():
            if node is None or node.released:
                return False
        held: dict[int, Value] = {}
        for place, index, number, aval in self.gradients:
            variable = pending.variables[index] if place < 0 else nodes[place].variable(index)
            if variable is not None:
                if number not in held:
                    held[number] = Value(aval)
                variable.hold_gradient(held[number])
        pending.repeat(self.end, held, [nodes[place].draw for place in self.drawing])
        for node in nodes.values():
            node.release()
        return True
