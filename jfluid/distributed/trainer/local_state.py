"""State that only a trainer has: variables that no server holds, run counts of programs, histories of padded sizes.

Its program overwrites the variables. In a synchronous job that writes snapshots the state goes to server 0 with
the gradients of each step. A trainer that is started again gets it back with the round that it goes on with, so
that running statistics, metrics, random numbers and padded sizes are those of an undisturbed run. More than
LARGEST bytes are not sent: they begin anew then, and the log says so beforehand.
"""

import functools
import logging
import weakref
from typing import TYPE_CHECKING

import numpy as np

from jfluid import errors
from jfluid.compile.runtime.size_history import SizeHistories, StepHistory
from jfluid.distributed.programs.trainer_program import TrainerProgram
from jfluid.ir.operator import Operator
from jfluid.ir.program import Program
from jfluid.ir.types import ELEMENTS, VarType
from jfluid.scope import Scope

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from jfluid.ps_server import ps_pb2 as pb

LARGEST = 8 << 20  # bytes, which every step sends
_DTYPES = {str(dtype): dtype for dtype in ELEMENTS}
_LOG = logging.getLogger(__name__)
_SAID = weakref.WeakSet[Scope]()  # scopes with too large a state


def names(program: TrainerProgram) -> list[str]:
    """Return the variables that outlive a trainer's step, are written by the step, and do not come from servers."""
    served = {dense.name for dense in program.received} | set(program.tables)
    found = dict.fromkeys(n for op in _operators(program.local) for n in op.output_arg_names)
    block = program.local.global_block()
    return [
        n
        for n in found
        if n not in served
        and (var := block.vars.get(n)) is not None
        and var.persistable
        and var.type == VarType.LOD_TENSOR
    ]


def _operators(program: Program) -> list[Operator]:
    return [op for block in program.blocks for op in block.ops]


@functools.cache
def _histories() -> "TypeAdapter[dict[str, StepHistory]]":
    """Return the JSON form of histories of padded sizes."""
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, StepHistory])


def packed(program: TrainerProgram, scope: Scope, round: int, sizes: SizeHistories) -> bytes:
    """Return a serialized TrainerState (ps.proto) after the step of `round`'s gradients; empty if too large."""
    from jfluid.ps_server import ps_pb2 as pb

    state = pb.TrainerState(round=round, runs=scope.steps.as_dict(), sizes=_histories().dump_json(dict(sizes)))
    for name in names(program):
        found = scope.find_var(name)
        if found is None or not found.get_tensor()._is_initialized():
            continue
        value = np.asarray(found.get_tensor())
        state.variables.add(name=name, dtype=str(value.dtype), shape=value.shape, value=value.tobytes())
    data = state.SerializeToString()
    if len(data) <= LARGEST:
        return data
    if scope not in _SAID:
        _SAID.add(scope)
        _LOG.warning(
            "%s: this trainer's local state has %d bytes, more than the %d that go into snapshots: it begins anew "
            "when the trainer is started again",
            ", ".join(v.name for v in state.variables),
            len(data),
            LARGEST,
        )
    return b""


def install(state: "pb.TrainerState", scope: Scope, sizes: SizeHistories) -> None:
    """Restore the trainer's state into a scope, and histories of padded sizes.

    Raises ServerError for a state that is damaged, or of a different program.
    """
    values = []
    for variable in state.variables:
        found = scope.find_var(variable.name)
        if found is None:
            continue  # of a program that this process does not run
        try:
            if variable.dtype not in _DTYPES:
                raise TypeError(f"dtype {variable.dtype[:40]!r}")
            value = np.frombuffer(variable.value, _DTYPES[variable.dtype]).reshape(tuple(variable.shape))
        except (ValueError, TypeError, OverflowError) as error:
            raise errors.ServerError(
                f"{variable.name}: the state of this trainer at the servers is damaged: {error}"
            ) from None
        there = found.get_tensor()
        if there._is_initialized() and tuple(there.shape()) != value.shape:
            raise errors.ServerError(
                f"{variable.name}: the servers keep a value {list(value.shape)} of this trainer, and the "
                f"program has {list(there.shape())}: is it a different program?"
            )
        values.append((there, value))
    if any(count >= 2**62 for count in state.runs.values()):
        raise errors.ServerError("the state of this trainer at the servers is damaged: no program runs that often")
    try:
        histories = _histories().validate_json(state.sizes or b"{}")
        for history in histories.values():
            history.check()
        sizes.recall(histories)
    except (ValueError, errors.FeedError) as error:
        raise errors.ServerError(
            f"the state of this trainer at the servers is damaged: padded sizes: {error}"
        ) from None
    for there, value in values:
        there.set(value.copy())
    scope.steps.update(state.runs)
