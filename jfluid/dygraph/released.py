"""Operators that nobody calls any more: Programs that ran as one operator, and went.

A recorded call holds its operator, and the operator its Program, so that what is pending and what gradients
flow through runs however long ago the Program was dropped. What is kept of calls to find them again
(`calls`, `pending`) would hold it, too: it is forgotten here, and again after every new call of such an operator, since
a backward pass may come to it later.
"""

from collections.abc import Iterable

from jfluid.ops import registry
from jfluid.ops.definition import OpDef

_types: set[str] = set()
_changes = 0


def release(types: Iterable[str]) -> None:
    """Note that the operators of these types have lost their owner.

    It may run wherever objects are collected: nothing is forgotten at once.
    """
    global _changes
    _types.update(types)
    _changes += 1


def changes() -> int:
    """Return a number that is another one where there is something to forget since."""
    return _changes


def is_released(definition: OpDef) -> bool:
    """Return whether it is such an operator, or a gradient of one."""
    return bool(_types) and registry.root(definition).type in _types


def note(definition: OpDef) -> None:
    """Note an operator that is called anew: what is kept of its calls is forgotten again."""
    global _changes
    if is_released(definition):
        _changes += 1


def forget_ended() -> None:
    """Forget the types of operators that nobody holds any more."""
    _types.difference_update([t for t in list(_types) if registry.find(t) is None])
