"""Released operators: Programs that ran as one operator and were garbage collected.

A recorded call holds its operator, and the operator its Program. Recorded operators and gradients therefore run after
the Program was dropped. The caches of `calls` and `lazy_graph` would hold the operator, too. The caches are cleared
here, and again after each new call of such an operator, because a backward pass may call it later.
"""

from collections.abc import Iterable

from jfluid.ops import registry
from jfluid.ops.definition import OpDef

_types: set[str] = set()
_changes = 0


def release(types: Iterable[str]) -> None:
    """Note that the operators of these types have lost their owner.

    The garbage collector may call this at any time, so that caches are cleared later.
    """
    global _changes
    _types.update(types)
    _changes += 1


def changes() -> int:
    """Return a number that changes with each released operator."""
    return _changes


def is_released(definition: OpDef) -> bool:
    """Return True for a released operator or its gradient."""
    return bool(_types) and registry.root(definition).type in _types


def note(definition: OpDef) -> None:
    """Note a new call of an operator, so that caches of a released operator are cleared again."""
    global _changes
    if is_released(definition):
        _changes += 1


def forget_ended() -> None:
    """Forget the types of operators that no object holds."""
    _types.difference_update([t for t in list(_types) if registry.find(t) is None])
