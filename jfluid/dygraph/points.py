"""What is pending, as a point in a tree: the same calls upon values of the same kinds lead to the same point.

A loop's step goes through the points of the last one. What a call gives, and all that follows from what was
called before it, is found at its point: nothing is looked up or compared again.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from jfluid import errors
from jfluid.dygraph.calls import Call
from jfluid.dygraph.step import Record
from jfluid.dygraph.values import Aval

_numbers = itertools.count()


class Point:
    """Some calls, one after the other. Two are equal where they compute the same.

    Args:
        before: the point before the last call; None for that of no calls, and for a call alone.
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
        after: the points that other calls lead to, by what `Tracer.call` and `Pending.after` know
            of these.
        together: what several calls lead to at once, by what these know of them (see `chains`, `updates`).
        depth, leaves, outputs, draws, nodes: how many calls there are, inputs, outputs, random numbers,
            and calls that gradients flow through.
        bytes: of the inputs.
        sparse: whether a call works on sparse rows.
        number: of this object.
    """

    __slots__ = (
        "after",
        "assigned",
        "before",
        "bytes",
        "call",
        "depth",
        "draws",
        "first",
        "flows",
        "hash",
        "kinds",
        "leaves",
        "made",
        "nodes",
        "number",
        "outputs",
        "place",
        "record",
        "slots",
        "sparse",
        "together",
    )

    def __init__(
        self,
        before: "Point | None" = None,
        record: Record | None = None,
        kinds: tuple[Aval, ...] = (),
        made: Sequence[Any] = (),
        slots: tuple[tuple[str, int], ...] = (),
        flows: bool = False,
    ):
        self.before, self.record, self.kinds = before, record, kinds
        self.made, self.slots, self.flows = made, slots, flows
        self.after: dict[Any, Point] = {}
        self.together: dict[Any, Any] = {}
        self.number = next(_numbers)
        self.depth = self.leaves = self.outputs = self.draws = self.nodes = self.bytes = 0
        self.first, self.place, self.sparse, self.hash = 0, 0, False, 0
        self.call: Any = record and record.call
        self.assigned = assigned(record.call, slots) if record is not None else ()
        if before is not None and record is not None:
            self.first, self.place = before.outputs, before.nodes
            self.depth = before.depth + 1
            self.leaves = before.leaves + len(kinds)
            self.outputs = before.outputs + len(made)
            self.draws = before.draws + (record.draw >= 0)
            self.nodes = before.nodes + flows
            self.bytes = before.bytes + sum(k.bytes for k in kinds)
            self.sparse = before.sparse or bool(record.call.attrs.get("is_sparse"))
            self.hash = hash((before.hash, self._same()))

    def _same(self) -> Any:
        """What is equal where the last call is the same."""
        record = self.record
        return record and (record.call.number, record.inputs, self.kinds)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Point) or (self.hash, self.depth) != (other.hash, other.depth):
            return False
        pairs = zip(self.since(None), other.since(None))
        return all(a is b or a._same() == b._same() for a, b in pairs)

    def since(self, before: "Point | None") -> list["Point"]:
        """Return the points after one that lies before this one, and this one; all for None."""
        found: list[Point] = []
        point: Point | None = self
        while point is not None and point is not before:
            found.append(point)
            point = point.before
        found.reverse()
        return found

    def records(self, before: "Point | None" = None) -> list[Record]:
        """Return the calls after a point; all for None."""
        return [point.record for point in self.since(before) if point.record is not None]

    def follows(self, other: "Point") -> bool:
        """Whether another one lies before this one, or is this one."""
        point: Point | None = self
        while point is not None and point.depth > other.depth:
            point = point.before
        return point is other

    def forget(self) -> None:
        """Forget all points that lie behind this one."""
        left = [self]
        while left:
            point = left.pop()
            left += point.after.values()
            point.after, point.together = {}, {}


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
