"""Backward passes that repeat.

A training loop's backward passes call the same gradient operators in the same order, step by step. What one
pass has recorded is kept by what determines it: all that was pending before it, and where
gradients go. The next pass of that kind adds the same records at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jfluid.dygraph.pending import Pending, Sizes
from jfluid.dygraph.step import Record
from jfluid.dygraph.tape import Edge, GradNode
from jfluid.dygraph.values import Aval, Value
from jfluid.dygraph.varbase import VarBase

# Where a gradient goes: (place of a node, slot, place in it), or (-1, "", place of a leaf).
Place = tuple[int, str, int]


class Tape:
    """The nodes that lead to some outputs.

    Attributes:
        nodes: each before those that gave its inputs.
        kind: equal for tapes whose backward passes record the same; None where that is not known.
    """

    def __init__(self, pending: Pending, outputs: Sequence[VarBase], nodes: Sequence[GradNode]):
        self.nodes = nodes
        self._places = {id(node): i for i, node in enumerate(nodes)}
        self._leaves: dict[int, Place] = {}
        self._leaf_variables: list[Any] = []
        self.kind = self._kind(pending, outputs)

    def _kind(self, pending: Pending, outputs: Sequence[VarBase]) -> Any:
        goes: list[Any] = []
        for out in outputs:
            if not pending.has(out.held):
                return None
            goes += (out.held.slot, self.place(out.edge()))
        places = self._places
        for node in self.nodes:
            slot = -1 if node.released else pending.slot_of(node.outputs.values())
            if slot < 0:
                return None
            goes.append(slot)  # says which call it is
            for given in node.inputs.values():
                for _, edge in given:
                    if edge is None:
                        goes.append(None)
                    elif edge.node is not None:
                        goes.append((places[id(edge.node)], edge.slot, edge.index))
                    else:
                        goes.append(self.place(edge))
        return pending.recorded(), tuple(goes)

    def place(self, edge: Edge) -> Place:
        """Return where an edge leads."""
        if edge.node is not None:
            return self._places[id(edge.node)], edge.slot, edge.index
        found = self._leaves.get(id(edge.leaf))
        if found is None:
            found = self._leaves[id(edge.leaf)] = (-1, "", len(self._leaves))
            self._leaf_variables.append(edge.leaf)
        return found

    def variable(self, place: Place) -> Any:
        """Return the variable that a gradient goes to, if there still is one."""
        node, slot, index = place
        if node < 0:
            return self._leaf_variables[index]
        found = self.nodes[node].variables.get((slot, index))
        return None if found is None else found()


@dataclass(frozen=True)
class Walk:
    """What a backward pass has recorded.

    Attributes:
        records: its calls.
        outputs: how many outputs they have.
        drawing: the places of the nodes whose random numbers they draw again.
        gradients: for each where it goes, and its number among all outputs and kind.
    """

    records: tuple[Record, ...]
    outputs: int
    drawing: tuple[int, ...]
    gradients: tuple[tuple[Place, int, Aval], ...]

    @classmethod
    def since(
        cls, before: Sizes, pending: Pending, tape: Tape, totals: Mapping[Any, tuple[Edge, VarBase]]
    ) -> "Walk | None":
        """Return what was recorded after a moment; None where it depends on more than the tape's kind.

        Args:
            totals: the gradients, and where they went.
        """
        found = pending.since(before)
        if found is None:
            return None
        records, draws, outputs = found
        drawing = [next((i for i, n in enumerate(tape.nodes) if n.draw is d), None) for d in draws]
        values = [total.held for _, total in totals.values()]
        if (
            any(record.call.constants for record in records)
            or any(place is None for place in drawing)
            or not all(pending.has(v) and v.slot >= before.outputs for v in values)
        ):
            return None
        return cls(
            tuple(records),
            outputs,
            tuple([place for place in drawing if place is not None]),
            tuple(
                [
                    (tape.place(edge), total.held.slot, total.held.aval)
                    for edge, total in totals.values()
                ]
            ),
        )

    def repeat(self, pending: Pending, tape: Tape) -> None:
        """Record it again for a tape of the same kind, and give its variables their gradients."""
        held: dict[int, Value] = {}
        for place, number, aval in self.gradients:
            variable = tape.variable(place)
            if variable is None:
                continue
            if number not in held:
                held[number] = Value(aval, None, number)
            variable.hold_gradient(held[number])
        draws = [tape.nodes[i].draw for i in self.drawing]
        pending.repeat(self.records, self.outputs, held, [d for d in draws if d is not None])
