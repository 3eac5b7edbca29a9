"""Why a server refuses a call. Each kind becomes a status code of its own on the wire.

A plain ServerError is INVALID_ARGUMENT: something in the call itself is wrong.
"""
from jfluid import errors


class UnknownNameError(errors.ServerError):
    """A table or block that the server does not hold (NOT_FOUND)."""


class TooLargeError(errors.ServerError):
    """A message, a reply or a count beyond the server's limits (RESOURCE_EXHAUSTED)."""


class StateError(errors.ServerError):
    """A call that does not fit what went before it: an ended incarnation, a round that is over (FAILED_PRECONDITION)."""


class RollbackError(StateError):
    """What this trainer or server needs is gone: gradients of rounds that nobody keeps any more. All processes of the job have
    to start again, from the newest snapshots that all servers have (OUT_OF_RANGE)."""

    restarts_all = True  # tells the launcher that starting this process again by itself does not help


class DamagedError(errors.ServerError):
    """A file of a snapshot is missing, or not as it was written (INVALID_ARGUMENT)."""


class NotReadyError(errors.ServerError):
    """The server is finding out which snapshot to go on from, or reads it (UNAVAILABLE: callers try again)."""


class RestartedError(errors.ServerError):
    """The server is not the one that the caller knew: it has started again, from a snapshot or empty (DATA_LOSS)."""


class JobFailedError(errors.ServerError):
    """The job has failed, for example because a trainer fell silent (ABORTED)."""
