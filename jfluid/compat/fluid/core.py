"""Names of `fluid.core` that scripts use beyond the types of `jfluid.core`."""

import enum
import os
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from jfluid import errors, flags
from jfluid.compat.fluid.core_ops import Operators
from jfluid.compat.fluid.framework import get_all_op_protos
from jfluid.compat.fluid.no_need_buffers import infer_no_need_buffer_slots
from jfluid.lod_tensor import LoDTensor
from jfluid.places import Place
from jfluid.scope import Scope, ScopeVariable

__all__ = [
    "AttrType",
    "PassVersionChecker",
    "Place",
    "Variable",
    "_erase_process_pids",
    "_set_process_pids",
    "_throw_error_if_process_failed",
    "get_all_op_protos",
    "globals",
    "infer_no_need_buffer_slots",
    "init_devices",
    "ops",
    "set_feed_variable",
    "set_num_threads",
]

_Scope = Scope
ops = Operators()
Variable = ScopeVariable


class AttrType(enum.IntEnum):
    """Types of attributes, with the numbers of saved programs."""

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
        """Return False: there are no passes; XLA optimises programs."""
        return False


class _Flags(MutableMapping[str, Any]):
    """Flags by name, backed by `fluid.get_flags` and `fluid.set_flags`."""

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


def set_feed_variable(scope: Scope, tensor: LoDTensor, name: str, index: int) -> None:
    """Put a tensor at a place of the array of feeds that a variable of the scope holds; the array grows to that place.

    `Executor.run` takes its feeds as an argument, and reads no such array.
    """
    feeds = scope.var(name).get_lod_tensor_array()
    feeds.extend(LoDTensor() for _ in range(index + 1 - len(feeds)))
    feeds[index] = tensor


def set_num_threads(number: int) -> None:
    """No effect: XLA uses the CPUs that the process may use."""


def init_devices(*arguments: Any) -> None:
    """No effect: JAX finds its devices by itself, when the first program runs."""


def _set_eager_deletion_mode(threshold: int, fraction: float, use_fast: bool) -> None:
    """No effect: XLA frees dead values."""


_processes: dict[int, tuple[int, ...]] = {}  # of loaders that scripts write, by what names a loader


def _set_process_pids(key: int, pids: Sequence[int]) -> None:
    """Have `_throw_error_if_process_failed` look after child processes.

    Raises TypeError for what is no list of their ids.
    """
    if not isinstance(pids, (list, tuple)) or not all(isinstance(pid, int) for pid in pids):
        raise TypeError(f"_set_process_pids: expected a list of process ids, found {pids!r}")
    _processes[key] = tuple(pids)


def _erase_process_pids(key: int) -> None:
    """Forget the processes of `_set_process_pids`."""
    _processes.pop(key, None)


def _throw_error_if_process_failed() -> None:
    """Raise EnforceNotMet where a process of `_set_process_pids` was killed, or ended with an error."""
    for pid in [pid for pids in _processes.values() for pid in pids]:
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody has waited for it
            continue
        if ended is None or (ended.si_code == os.CLD_EXITED and ended.si_status == 0):
            continue
        how = "with code" if ended.si_code == os.CLD_EXITED else "by signal"
        raise errors.JFluidError(f"FatalError: DataLoader process (pid {pid}) ended {how} {ended.si_status}")
