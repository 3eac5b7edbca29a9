"""Donation of a step's inputs: which arrays results overwrite."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from jfluid.compile.lowering.plan import Item
from jfluid.dygraph.lazy_values import LazyValue


def donated(leaves: list[LazyValue], holders: list[LazyValue]) -> tuple[int, ...]:
    """Return the places of leaves that a result of equal shape may overwrite.

    A leaf qualifies if no Python object references its value. Empties `leaves` to find out.
    """
    room: dict[int, int] = {}
    for value in holders:
        room[value.aval.number] = room.get(value.aval.number, 0) + 1
    chosen = [
        (i, ref(v))
        for i, v in enumerate(leaves)
        if v.aval.large and v.aval.number in room and not isinstance(v.array, np.ndarray)
    ]
    avals = [v.aval.number for v in leaves]
    leaves.clear()
    places = []
    for i, held in chosen:
        if held() is None and room[avals[i]]:
            room[avals[i]] -= 1
            places.append(i)
    return tuple(places)


def usable(given: Sequence[tuple[str, Any]], made: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the donated inputs that have a result of the same kind.

    Args:
        given, made: as for `match_outputs`.
    """
    room = Counter(kind for _, kind in made)
    found = []
    for name, kind in given:
        if room[kind]:
            room[kind] -= 1
            found.append((name, kind))
    return found


def replaced(items: Iterable[Item]) -> dict[str, str]:
    """Return the name of each operator's in-place result, by the name of the replaced variable."""
    return {
        old: new
        for _, op, definition in items
        for written, read in definition.inplace.items()
        for new, old in zip(op.outputs.get(written, ()), op.inputs.get(read, ()))
    }


def match_outputs(
    given: Sequence[tuple[str, Any]], made: Sequence[tuple[str, Any]], replaced: dict[str, str]
) -> list[int]:
    """Return the places of results in an order that pairs each result with the input that it replaces.

    JAX pairs the first donated input of a kind with the first result of that kind. A wrong pair costs a copy.

    Args:
        given: name and kind of each donated input.
        made: name and kind of each result.
        replaced: names of results, by name of the replaced input.
    """
    left = dict.fromkeys(range(len(made)))
    places = {name: at for at, (name, _) in enumerate(made)}
    chosen: list[int | None] = []
    for name, kind in given:
        at = places.get(replaced.get(name, ""))
        if at is not None and (at not in left or made[at][1] != kind):
            at = None
        if at is not None:
            del left[at]
        chosen.append(at)
    for i, (_, kind) in enumerate(given):
        if chosen[i] is None:
            chosen[i] = other = next(at for at in left if made[at][1] == kind)
            del left[other]
    return [*(at for at in chosen if at is not None), *left]
