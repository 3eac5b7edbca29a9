"""What is pending, as a point in a tree: the same calls upon values of the same kinds lead to the same node.

A loop's step goes through the points of the last one. What a call gives, and all that follows from what was
called before it, is found at its node: nothing is looked up or compared again.
"""

from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.calls import Call
from jfluid.dygraph.compiled_trace import Record
from jfluid.dygraph.lazy_values import Aval


class TraceNode:
    """Some calls, one after the other. Two are equal where they compute the same.

    Args:
        before: the node before the last call; None for that of no calls, and for a call alone.
        record: of the last call.
        kinds: of those of its inputs that no call before it has read or given.
        made: what it gives, for all its output slots one after the other: an Aval, an array that is
            known, or None.
        slots: name and number of outputs of each of these slots.
        flows: whether gradients flow through it.

    Attributes:
        call: of the record.
        assigned: for each variable that is given its place among the outputs.
        first: the number of its first output.
        place: of its node among those of all calls that gradients flow through.
        after: the points that other calls lead to, by what `Tracer.call` and `LazyGraph.after` know
            of these.
        together: what several calls lead to at once, by what these know of them (see `chains`, `updates`).
        depth, leaves, outputs, draws, nodes: how many calls there are, inputs, outputs, random numbers,
            and calls that gradients flow through.
        bytes: of the inputs.
        sparse: whether a call works on sparse rows.
        number: of this object.
    """

    __slots__ = (
        "assigned",
        "bytes",
        "call",
        "children",
        "depth",
        "draws",
        "first_output",
        "flows",
        "grad_nodes",
        "grad_place",
        "hash",
        "leaf_avals",
        "leaves",
        "made",
        "outputs",
        "parent",
        "record",
        "replays",
        "slots",
        "sparse",
    )

    def __init__(
        self,
        parent: "TraceNode | None" = None,
        record: Record | None = None,
        leaf_avals: tuple[Aval, ...] = (),
        made: Sequence[Any] = (),
        slots: tuple[tuple[str, int], ...] = (),
        flows: bool = False,
    ):
        self.parent, self.record, self.leaf_avals = parent, record, leaf_avals
        self.made, self.slots, self.flows = made, slots, flows
        self.children: dict[Any, TraceNode] = {}
        self.replays: dict[Any, Any] = {}
        self.depth = self.leaves = self.outputs = self.draws = self.grad_nodes = self.bytes = 0
        self.first_output, self.grad_place, self.sparse, self.hash = 0, 0, False, 0
        self.call: Any = record and record.call
        self.assigned = assigned(record.call, slots) if record is not None else ()
        if parent is not None and record is not None:
            self.first_output, self.grad_place = parent.outputs, parent.grad_nodes
            self.depth = parent.depth + 1
            self.leaves = parent.leaves + len(leaf_avals)
            self.outputs = parent.outputs + len(made)
            self.draws = parent.draws + (record.draw >= 0)
            self.grad_nodes = parent.grad_nodes + flows
            self.bytes = parent.bytes + sum(k.bytes for k in leaf_avals)
            self.sparse = parent.sparse or bool(record.call.attrs.get("is_sparse"))
            self.hash = hash((parent.hash, self._same()))

    def _same(self) -> Any:
        """What is equal where the last call is the same."""
        record = self.record
        return record and (record.call.number, record.inputs, self.leaf_avals)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TraceNode) or (self.hash, self.depth) != (other.hash, other.depth):
            return False
        pairs = zip(self.since(None), other.since(None))
        return all(a is b or a._same() == b._same() for a, b in pairs)

    def since(self, before: "TraceNode | None") -> list["TraceNode"]:
        """Return the points after one that lies before this one, and this one; all for None."""
        found: list[TraceNode] = []
        node: TraceNode | None = self
        while node is not None and node is not before:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def records(self, before: "TraceNode | None" = None) -> list[Record]:
        """Return the calls after a point; all for None."""
        return [node.record for node in self.since(before) if node.record is not None]

    def follows(self, other: "TraceNode") -> bool:
        """Whether another one lies before this one, or is this one."""
        node: TraceNode | None = self
        while node is not None and node.depth > other.depth:
            node = node.parent
        return node is other

    def forget(self) -> None:
        """Forget all points that lie behind this one."""
        left = [self]
        while left:
            node = left.pop()
            left += node.children.values()
            node.children, node.replays = {}, {}


def numbered(outputs: Sequence[Any], first: int) -> list[Any]:
    """Return the numbers of outputs, slot by slot (see `Record`).

    Args:
        outputs: what `Call.outputs` says.
        first: the number of the first one.
    """
    found: list[Any] = []
    for out in outputs:
        many = out if type(out) is list else [out]
        given = [None if o is None else first + i for i, o in enumerate(many)]
        first += len(many)
        found.append(given if type(out) is list else given[0])
    return found


def flat(call: Call, outputs: Sequence[Any]) -> tuple[list[Any], tuple[tuple[str, int], ...]]:
    """Return the outputs of a call one after the other, and name and number of those of each slot."""
    found: list[Any] = []
    slots = []
    for name, out in zip(call.writes, outputs):
        given = out if type(out) is list else [out]
        found += given
        slots.append((name, len(given)))
    return found, tuple(slots)


def assigned(call: Call, slots: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return for each variable that a call is given its place among the outputs.

    Args:
        slots: name and number of outputs of each slot.

    Raises ShapeError where there are fewer.
    """
    first, numbers, at = {}, dict(slots), 0
    for name, n in slots:
        first[name], at = at, at + n
    for name, i in reversed(call.places):
        if i >= numbers.get(name, 0):
            raise errors.ShapeError(
                f"operator {call.definition.type}: output {name} has {numbers.get(name, 0)} tensors, but "
                f"{i + 1} variables are named"
            )
    return tuple([first[name] + i for name, i in call.places])
