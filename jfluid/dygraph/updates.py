"""Updates of parameters that repeat.

An optimizer calls one operator for each parameter, all of one type. Together they are found again by what
is pending before them and what they read, as one call is (see `points`), and are added at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jfluid.dygraph.calls import frozen
from jfluid.dygraph.pending import Pending
from jfluid.dygraph.points import Point
from jfluid.dygraph.values import Aval, Value
from jfluid.dygraph.varbase import VarBase

# Inputs and outputs by slot, and attributes.
Update = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]


def call_all(pending: Pending, type_: str, updates: Sequence[Update], call: Callable[[Update], Any]) -> None:
    """Call one operator for each of some updates, in their order, while no gradients are recorded.

    Args:
        call: calls one.
    """
    before, leaves = pending.point, len(pending.leaves)
    key = _key(pending, type_, updates)
    known: Updated | None = None if key is None else before.together.get(key)
    if known is not None:
        _repeat(pending, known, updates)
        return
    named = pending.leaves[leaves:]
    pending.take_back(leaves)
    owner = pending.leaves
    for update in updates:
        call(update)
    # what was named must be what the operators have read, in this order
    if key is None or owner is not pending.leaves or owner[leaves:] != named:
        return
    written = [v.held for _, outputs, _ in updates for v in outputs.values()]
    if (
        pending.point.follows(before)
        and pending.point.depth == before.depth + len(updates)
        and pending.point.draws == before.draws
        and all(pending.has(v) and v.source >= before.outputs for v in written)
    ):
        updated = Updated(pending.point, [(v.source, v.aval) for v in written])
        pending.keep_together(before, key, updated)


class Updated(NamedTuple):
    """What some updates lead to.

    Attributes:
        end: what is pending after them.
        written: of each variable that is written the number among all outputs, and the kind.
    """

    end: Point
    written: list[tuple[int, Aval]]


def _repeat(pending: Pending, known: Updated, updates: Sequence[Update]) -> None:
    held: dict[int, Value] = {}
    variables = [v for _, outputs, _ in updates for v in outputs.values()]
    for variable, (number, aval) in zip(variables, known.written, strict=True):
        value = held[number] = Value(aval)
        variable.assign(value)
    pending.repeat(known.end, held, ())


def _key(pending: Pending, type_: str, updates: Sequence[Update]) -> Any:
    """Return what is equal for updates that record the same; None where that is not known.

    Names the inputs that are new to what is pending.
    """
    key: list[Any] = [type_, len(updates)]
    given: list[VarBase] = []
    written: set[int] = set()
    for inputs, outputs, attrs in updates:
        if attrs:
            key.append(frozen(attrs))
        places: dict[int, str] = {}
        for slot, v in inputs.items():
            if not isinstance(v, VarBase) or id(v) in written:
                return None
            key.append(slot)
            given.append(v)
            places[id(v)] = slot
        for slot, v in outputs.items():
            if not isinstance(v, VarBase):
                return None
            key.append(slot)
            key.append(places.get(id(v)))  # what an operator overwrites is another call
            written.add(id(v))
    return tuple(key) if pending.name(given, False, key, [], []) else None
