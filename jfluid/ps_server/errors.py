"""Errors with which a server refuses a call. Each kind has a separate gRPC status code.

A plain ServerError is INVALID_ARGUMENT: something in the call itself is wrong.
"""

from jfluid import errors


class UnknownNameError(errors.ServerError):
    """A table or block that the server does not hold (NOT_FOUND)."""


class TooLargeError(errors.ServerError):
    """A message, a reply or a count beyond the server's limits (RESOURCE_EXHAUSTED)."""


class StateError(errors.ServerError):
    """A call that is no longer valid: an incarnation that has ended, a round that is over (FAILED_PRECONDITION)."""


class RollbackError(StateError):
    """This trainer or server needs gradients of rounds that no process has any more.

    All processes of the job have to restart from the newest snapshots that all servers have (OUT_OF_RANGE).
    """

    restarts_all = True  # tells the launcher that restarting this process alone does not help


class DamagedError(errors.ServerError):
    """A file of a snapshot is missing or corrupt (INVALID_ARGUMENT)."""


class NotReadyError(errors.ServerError):
    """The server is choosing the snapshot to continue from, or reading it (UNAVAILABLE: callers retry)."""


class RestartedError(errors.ServerError):
    """The call is for an earlier incarnation of a restarted server (DATA_LOSS)."""


class JobFailedError(errors.ServerError):
    """The job has failed, for example because a trainer became silent (ABORTED)."""
