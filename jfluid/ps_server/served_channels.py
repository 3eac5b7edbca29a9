"""Fast channels on a server: one thread for each channel waits for calls and answers."""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.cancellation import Alive
from jfluid.ps_server.metrics import Metrics
from jfluid.ps_server.transport import CallError, refuse

# The method of a call, the bytes of its request, and a function that returns the request.
Received = tuple[str, int, Callable[[], memoryview]]
# Answers a call: (method, bytes of the request, request, whether the caller is there) to a status of gRPC,
# and the reply, in pieces, or the reason for a refusal.
Answering = Callable[[str, int, Callable[[], memoryview], Alive], tuple[grpc.StatusCode, Sequence[Any]]]
# (name of the method, how a call is refused, bytes of the request, the call) -> the reply, in pieces
Answered = Callable[[str, Callable[[grpc.StatusCode, str], Any], int, Callable[[], Any]], list[Any]]


class Calls(Protocol):
    """The calls of a service that may be large."""

    def pull(self, request: pb.PullRequest, alive: Alive) -> Any: ...
    def push(self, request: pb.PushRequest, alive: Alive) -> Any: ...
    def exchange(self, request: pb.ExchangeRequest, alive: Alive) -> Any: ...


def answering(calls: Calls, metrics: Metrics, answered: Answered) -> Answering:
    """Return a function that answers the calls of fast channels.

    Args:
        calls: the service.
        answered: counts a call, and serializes its reply or error.
    """
    functions: dict[str, Callable[..., Any]] = {"Pull": calls.pull, "Push": calls.push, "Exchange": calls.exchange}

    def answer(
        method: str, size: int, request: Callable[[], memoryview], alive: Alive
    ) -> tuple[grpc.StatusCode, list[Any]]:
        def call() -> Any:
            if method not in functions:
                raise errors.ServerError(f"expected a LocalRequest of one of {', '.join(functions)}, found {method!r}")
            with metrics.part("parse"):
                parsed = wire.parsed(wire.METHODS[method][0], request())
            return functions[method](parsed, alive)

        try:
            return grpc.StatusCode.OK, answered(method if method in functions else "Local", refuse, size, call)
        except CallError as refused:
            return refused.code(), [refused.details().encode()]

    return answer


class ServedChannel(ABC):
    """A server's end of a fast channel, for one thread."""

    @abstractmethod
    def receive(self) -> Received | None:
        """Return the next call; None when the channel or the server ends.

        The request may lie in the channel's memory until the call is answered.
        Raises OSError when the caller has ended, or sends invalid data.
        """

    @abstractmethod
    def answer(self, code: grpc.StatusCode, parts: Sequence[Any]) -> None:
        """Answer the call. Raises OSError when the caller has ended."""

    @abstractmethod
    def there(self) -> bool:
        """Return True while the caller has its end of the channel."""

    @abstractmethod
    def shut(self) -> None:
        """Wake up the thread if it waits for the caller."""

    @abstractmethod
    def close(self) -> None:
        """Release the channel."""


Served = TypeVar("Served", bound=ServedChannel)


class ServedChannels(Generic[Served]):
    """The fast channels of one kind at a server. Safe for threads.

    Args:
        answering: answers a call.
        name: of the threads.
    """

    def __init__(self, answering: Answering, name: str):
        self._answering, self._name = answering, name
        self._lock = threading.Lock()
        self._threads: dict[Served, threading.Thread] = {}
        # The first hangs up when the second is closed.
        self._stopping: tuple[int, int] | None = None
        self._stopped = self._ended = False

    def _start(self, channel: Served) -> None:
        """Serve a channel. The lock is held."""
        thread = threading.Thread(target=self._serve, args=[channel], name=self._name, daemon=True)
        thread.start()
        self._threads[channel] = thread  # before the thread ends: it takes the lock for that

    def _hang_up(self) -> int:
        """Return a file descriptor that hangs up when the server stops. The lock is held."""
        if self._stopping is None:
            self._stopping = os.pipe()
        return self._stopping[0]

    def stop(self) -> None:
        """Take no more calls."""
        with self._lock:
            if self._stopping is not None and not self._stopped:
                os.close(self._stopping[1])
            self._stopped = True
            self._release()

    def end(self, grace_s: float) -> None:
        """After `stop`, wait at most `grace_s` seconds for pending calls; then drop their answers."""
        end = time.monotonic() + grace_s
        with self._lock:
            threads = dict(self._threads)
        for thread in threads.values():
            thread.join(max(end - time.monotonic(), 0.0))
        self._ended = True
        for channel in threads:
            channel.shut()

    def _serve(self, channel: Served) -> None:
        """Answer calls until the caller or the server ends."""

        def alive() -> bool:
            return channel.there() and not self._ended

        try:
            while (call := channel.receive()) is not None:
                answer = self._answering(*call, alive)
                if self._ended:  # the call is sent again, to the next incarnation of this server
                    break
                channel.answer(*answer)
        except (OSError, MemoryError):  # the caller has ended, or a call needs more memory than there is
            pass
        finally:
            channel.close()
            with self._lock:
                self._threads.pop(channel, None)
                self._release()

    def _busy(self) -> bool:
        """Return True while a thread looks at the file descriptor of `_hang_up`."""
        return bool(self._threads)

    def _release(self) -> None:
        """Close the file descriptor of `_hang_up` after its last use. The lock is held."""
        if self._stopped and self._stopping is not None and not self._busy():
            os.close(self._stopping[0])
            self._stopping = None
