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


class RestartedError(errors.ServerError):
    """The server is not the one that the caller knew: it has started again, from a snapshot or empty (DATA_LOSS)."""


class JobFailedError(errors.ServerError):
    """The job has failed, for example because a trainer fell silent (ABORTED)."""
