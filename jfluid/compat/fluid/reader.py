"""Of `fluid.reader`, `fluid.contrib.reader`: the order of loaders, batches of one trainer."""

from collections.abc import Callable, Iterator
from typing import Any

from jfluid.environment.process import RoleVariables
from jfluid.errors import ProgramError

_keeps_order = True


def keep_data_loader_order(*args: bool) -> bool | None:
    """Without an argument whether loaders hand out batches in their order; an argument sets that,
    and changes nothing: they always do.
    """
    global _keeps_order
    if not args:
        return _keeps_order
    if len(args) > 1 or not isinstance(args[0], bool):
        raise TypeError(f"keep_data_loader_order: expected True or False, found {args!r}")
    _keeps_order = args[0]
    return None


def distributed_batch_reader(
    batch_reader: Callable[[], Iterator[Any]],
) -> Callable[[], Iterator[Any]]:
    """Return a reader of this trainer's share of batches: of each PADDLE_TRAINERS_NUM of them the
    one with the number PADDLE_TRAINER_ID. Batches at the end that are fewer are left out, so that
    all trainers have as many.

    Raises ProgramError where the variables do not fit.
    """
    role = RoleVariables.from_env()
    trainers, own = role.trainers_num or 1, role.trainer_id or 0
    if own >= trainers:
        raise ProgramError(f"distributed_batch_reader: PADDLE_TRAINER_ID is {own} of PADDLE_TRAINERS_NUM={trainers}")

    def read() -> Iterator[Any]:
        turn = []
        for batch in batch_reader():
            turn.append(batch)
            if len(turn) == trainers:
                yield turn[own]
                turn = []

    return read
