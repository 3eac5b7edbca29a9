"""Names of `fluid.reader` and `fluid.contrib.reader`: order of loaders, batches of a trainer."""

from collections.abc import Callable, Iterator
from typing import Any

from jfluid.environment.process import RoleVariables
from jfluid.errors import ProgramError

_keeps_order = True


def keep_data_loader_order(*args: bool) -> bool | None:
    """Return True if loaders keep the order of batches, or set that with an argument.

    The setting has no effect: loaders always keep the order.
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
    """Return a reader of this trainer's share of batches.

    Of each PADDLE_TRAINERS_NUM batches the trainer gets the batch with the number PADDLE_TRAINER_ID. An incomplete
    group at the end is dropped, so that all trainers have equally many batches.

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
