"""Ways of large messages past gRPC, and pushes that are under way through them."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jfluid.ps_server.pipe_calls import CallError
from jfluid.ps_server.sharded_pull import ShardedPull
from jfluid.ps_server.zero_copy import OutgoingRequest


class Through(Protocol):
    """Shared memory, or a stream. Calls are answered in turn."""

    @property
    def idle(self) -> bool: ...
    def fits(self, size: int) -> bool: ...
    def post(self, method: str, parts: Sequence[Any], reply_at: int = 0) -> None: ...
    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = ...) -> bytes | memoryview: ...


class Lane:
    """One of them, taken for some calls; as a context for the last of them.

    Args:
        give: takes it back.
        drop: discards it, where an answer may still come.
    """

    def __init__(self, through: Through, give: Callable[[], None], drop: Callable[[], None]):
        self.through, self.give, self._drop = through, give, drop

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        refused = isinstance(error, CallError) and error.told
        if (error is None or refused) and self.through.idle:
            self.give()
        else:
            self._drop()


class BegunPush:
    """A push to one server that may be under way.

    Attributes:
        sent: it is; else its lane has failed.
        asks: it pulls blocks, too, and has one answer for both.

    Args:
        life: the incarnation of the server that it is for.
        reply_bytes: the most that it is answered.
    """

    def __init__(self, lane: Lane, life: int, reply_bytes: int):
        self.lane, self.life, self.reply_bytes = lane, life, reply_bytes
        self.sent = self.asks = False

    def post(self, request: OutgoingRequest) -> None:
        """Send it, and what it pulls, without waiting for the answer."""
        request.push.message.caller.server_incarnation = self.life
        if request.pulls:
            request.pull.server_incarnation = self.life
            self.asks = True
        method, parts = request.single()
        with contextlib.suppress(CallError):  # it is made again
            if self.lane.through.fits(sum(map(len, parts))):
                self.lane.through.post(method, parts)
                self.sent = True


@dataclass
class BegunPushes:
    """A push to all servers that is under way.

    Attributes:
        requests: to each server; rows are still to be added, which are pulled behind it.
        pushes: to each server; each is to be followed once.
        places: the numbers of the calls, which are pending until this is closed.
        round: of the gradients, 0 for none.
        pull: what it asks for itself.
    """

    requests: list[OutgoingRequest]
    pushes: list[BegunPush]
    places: contextlib.ExitStack
    round: int
    pull: ShardedPull
