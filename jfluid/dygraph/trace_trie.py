"""Trie of recorded operators.

A repeated step walks the nodes of the step before it. Each node stores the results of checks and shape inference, so
that a repeated call is one dictionary lookup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jfluid import errors
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph.calls import Call
from jfluid.dygraph.compiled_trace import Record
from jfluid.dygraph.lazy_values import Aval


@dataclass(slots=True)
class CallForm:
    """A call with everything that is the same wherever a script makes it upon inputs of the same kinds.

    Attributes:
        call: the call.
        outputs: result of `Call.outputs`.
        made, slots: see `flat`.
        places: see `assigned`.
        flows: True if gradients flow through the call.
        parts: values of `rerolled_steps.ops_of` that follow from the form; None before the first use.
    """

    call: Call
    outputs: Sequence[Any]
    made: list[Any]
    slots: tuple[tuple[str, int], ...]
    places: tuple[int, ...]
    flows: bool
    parts: Any = None


forms = LruCache[CallForm](8192)  # by the pattern of a call (see `Tracer.call`)


def form_of(call: Call, outputs: Sequence[Any], edges: Sequence[Any] | None) -> CallForm:
    """Return the form of a call. Raises ShapeError as `assigned`.

    Args:
        edges: edges as of a GradNode, or None if no gradient is recorded.
    """
    made, slots = flat(call, outputs)
    return CallForm(call, outputs, made, slots, assigned(call, slots), edges is not None and call.flows(edges))


class TraceNode:
    """A sequence of recorded operators. Equal nodes compute the same.

    Args:
        parent: node of the operators before the last; None for the root, and for a single operator that has run.
        record: the last operator.
        leaf_avals: kinds of the inputs that no earlier operator has read or computed.
        form: the form of the last call; None for the root.

    Attributes:
        call: call of the record.
        made: outputs, slot after slot: an Aval, a known array, or None.
        slots: name and number of outputs of each output slot.
        flows: True if gradients flow through the operator.
        assigned: place among the outputs of each output variable of the call.
        first_output: number of the first output among all outputs.
        grad_place: place of the operator's GradNode among all GradNodes.
        children: nodes of next operators, by the keys of `Tracer.call` and `LazyGraph.child`.
        replays: replays that begin at this node, by key (see `replays`).
        depth, leaves, outputs, draws, grad_nodes: number of operators, inputs, outputs, random draws and GradNodes.
    """

    __slots__ = (
        "assigned",
        "call",
        "children",
        "depth",
        "draws",
        "first_output",
        "flows",
        "form",
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
    )

    def __init__(
        self,
        parent: "TraceNode | None" = None,
        record: Record | None = None,
        leaf_avals: tuple[Aval, ...] = (),
        form: CallForm | None = None,
    ):
        self.parent, self.record, self.leaf_avals = parent, record, leaf_avals
        self.form = form or _NO_FORM
        self.made, self.slots, self.assigned = self.form.made, self.form.slots, self.form.places
        flows = self.flows = self.form.flows
        self.children: dict[Any, TraceNode] = {}
        self.replays: dict[Any, Any] = {}
        self.depth = self.leaves = self.outputs = self.draws = self.grad_nodes = 0
        self.first_output, self.grad_place, self.hash = 0, 0, 0
        self.call: Any = record and record.call
        if parent is not None and record is not None:
            self.first_output, self.grad_place = parent.outputs, parent.grad_nodes
            self.depth = parent.depth + 1
            self.leaves = parent.leaves + len(leaf_avals)
            self.outputs = parent.outputs + len(self.made)
            self.draws = parent.draws + (record.draw >= 0)
            self.grad_nodes = parent.grad_nodes + flows
            self.hash = hash((parent.hash, self._same()))

    def _same(self) -> Any:
        """Return a key that is equal for equal last operators."""
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
        """Return the nodes after an ancestor, up to this node; all for None."""
        found: list[TraceNode] = []
        node: TraceNode | None = self
        while node is not None and node is not before:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def records(self, before: "TraceNode | None" = None) -> list[Record]:
        """Return the operators after an ancestor; all for None."""
        return [node.record for node in self.since(before) if node.record is not None]

    def follows(self, other: "TraceNode") -> bool:
        """Return True if `other` is this node or an ancestor."""
        node: TraceNode | None = self
        while node is not None and node.depth > other.depth:
            node = node.parent
        return node is other

    def forget(self) -> None:
        """Drop all descendants."""
        left = [self]
        while left:
            node = left.pop()
            left += node.children.values()
            node.children, node.replays = {}, {}


_ROOT: Any = None  # the root has no call
_NO_FORM = CallForm(_ROOT, (), [], (), (), False)


def numbered(outputs: Sequence[Any], first: int) -> list[Any]:
    """Return the numbers of outputs, slot by slot (see `Record`).

    Args:
        outputs: result of `Call.outputs`.
        first: number of the first output.
    """
    found: list[Any] = []
    for out in outputs:
        many = out if type(out) is list else [out]
        given = [None if o is None else first + i for i, o in enumerate(many)]
        first += len(many)
        found.append(given if type(out) is list else given[0])
    return found


def flat(call: Call, outputs: Sequence[Any]) -> tuple[list[Any], tuple[tuple[str, int], ...]]:
    """Return the outputs of a call in one list, and the name and size of each slot."""
    found: list[Any] = []
    slots = []
    for name, out in zip(call.writes, outputs):
        given = out if type(out) is list else [out]
        found += given
        slots.append((name, len(given)))
    return found, tuple(slots)


def assigned(call: Call, slots: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return the place among the outputs of each output variable of a call.

    Args:
        call: the call.
        slots: name and number of outputs of each slot.

    Raises ShapeError if the call names more variables than a slot has outputs.
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
