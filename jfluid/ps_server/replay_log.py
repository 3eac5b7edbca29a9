"""Pending calls of a trainer to one server, and the calls to replay when the server is restored."""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.zero_copy import OutgoingRequest


class SequenceNumbers:
    """The sequence numbers of the calls to one server, and which of these calls are pending.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._next, self._open, self._lock = 1, set[int](), threading.Lock()

    @contextlib.contextmanager
    def next(self) -> Iterator[tuple[int, int]]:
        """Take the next number for a call; yield (sequence, lowest pending sequence).

        It is pending while the context lasts.
        """
        with self._lock:
            sequence, self._next = self._next, self._next + 1
            self._open.add(sequence)
            outstanding = min(self._open)
        try:
            yield sequence, outstanding
        finally:
            with self._lock:
                self._open.discard(sequence)

    def outstanding(self, sequence: int) -> int:
        """Return the lowest of this sequence and the pending ones."""
        with self._lock:
            return min([sequence, *self._open])


@dataclass
class LoggedCall:
    """Acknowledged call: a push, a shrink, or a pull that counts shows.

    Attributes:
        caller: of the request.
        reply_bytes: an upper bound of the size of its reply.
        pulls: True for a pull; pulls have separate sequence numbers.
    """

    request: OutgoingRequest | pb.ShrinkRequest
    caller: pb.Caller
    size: int
    reply_bytes: int = 0
    pulls: bool = False


class ReplayLog:
    """Acknowledged calls that no snapshot has yet, in the order of their answers. Safe for threads.

    Args:
        most_bytes: the oldest calls are dropped when the log is larger than this; 0 logs none.
    """

    def __init__(self, most_bytes: int):
        self.most_bytes, self.bytes = most_bytes, 0
        self._calls: deque[LoggedCall] = deque()
        self._lock = threading.Lock()

    def add(self, request: OutgoingRequest, counted: bool, reply_bytes: int) -> None:
        """Log an acknowledged push, pull or both.

        Args:
            counted: the server counted shows of the pull that decide which ids get a row.
        """
        if not self.most_bytes:
            return
        if request.push:
            request.push.own()
            self._add(LoggedCall(OutgoingRequest(request.push), request.push.message.caller, len(request.push)))
        if counted:
            pull = OutgoingRequest()
            pull.pull.caller.CopyFrom(request.pull.caller)
            pull.pull.rows.extend(request.pull.rows)
            self._add(LoggedCall(pull, pull.pull.caller, pull.pull.ByteSize(), reply_bytes, pulls=True))

    def add_shrink(self, request: pb.ShrinkRequest) -> None:
        """Log an acknowledged shrink."""
        if self.most_bytes:
            self._add(LoggedCall(request, request.caller, request.ByteSize()))

    def _add(self, call: LoggedCall) -> None:
        with self._lock:
            self._calls.append(call)
            self.bytes += call.size
            while self.bytes > self.most_bytes:
                self.bytes -= self._calls.popleft().size

    def prune(self, pushes: int = 0, pulls: int = 0) -> None:
        """Drop the pushes and pulls up to these sequences, which are in a snapshot."""
        with self._lock:
            while self._calls and self._calls[0].caller.sequence <= (pulls if self._calls[0].pulls else pushes):
                self.bytes -= self._calls.popleft().size

    def beyond(self, sequence: int) -> list[LoggedCall]:
        """Return the logged calls in order, without pushes up to a sequence."""
        with self._lock:
            return [call for call in self._calls if call.pulls or call.caller.sequence > sequence]

    def clear(self) -> None:
        with self._lock:
            self._calls.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._calls)
