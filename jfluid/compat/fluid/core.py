"""Of `fluid.core`: what scripts reach for beyond the types that `jfluid.core` has."""

import enum
from collections.abc import Iterator, MutableMapping
from typing import Any

from jfluid import flags
from jfluid.compat.fluid.framework import get_all_op_protos
from jfluid.places import Place
from jfluid.scope import Scope, ScopeVariable

__all__ = [
    "AttrType",
    "PassVersionChecker",
    "Place",
    "Variable",
    "get_all_op_protos",
    "globals",
    "init_devices",
    "set_num_threads",
]

_Scope = Scope
Variable = ScopeVariable


class AttrType(enum.IntEnum):
    """Types of attributes; the numbers are those of saved programs."""

    INT = 0
    FLOAT = 1
    STRING = 2
    INTS = 3
    FLOATS = 4
    STRINGS = 5
    BOOL = 6
    BOOLS = 7
    BLOCK = 8
    LONG = 9
    BLOCKS = 10
    LONGS = 11


class PassVersionChecker:
    """Tells of passes over inference programs (it is in Fluid from 2.0 on)."""

    @staticmethod
    def IsCompatible(pass_name: str) -> bool:
        """Return False: there are no passes here; XLA optimises what it compiles."""
        return False


class _Flags(MutableMapping[str, Any]):
    """Flags by name, as `fluid.get_flags` and `fluid.set_flags` have them."""

    def __getitem__(self, name: str) -> Any:
        return flags.get_flags(name)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        flags.set_flags({name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("flags are set, and not deleted")

    def __iter__(self) -> Iterator[str]:
        return iter({**flags.EFFECTIVE, **dict.fromkeys(flags.NO_EFFECT)})

    def __len__(self) -> int:
        return len([*self])


def globals() -> MutableMapping[str, Any]:
    """Return all flags, to be read and set by name."""
    return _Flags()


def set_num_threads(number: int) -> None:
    """No effect: XLA uses the CPUs that the process may use."""


def init_devices(*arguments: Any) -> None:
    """No effect: JAX finds its devices by itself, when the first program runs."""


def _set_eager_deletion_mode(threshold: int, fraction: float, use_fast: bool) -> None:
    """No effect: XLA frees what a step no longer needs."""
