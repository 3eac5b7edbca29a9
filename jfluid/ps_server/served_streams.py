"""Streams on a server: one thread for each stream waits for calls and answers."""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import numpy as np

from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.cancellation import Alive
from jfluid.ps_server.metrics import ServerMetrics
from jfluid.ps_server.socket_channels import CONNECT_S, LOOK_S, METHODS, PURPOSE, Stream
from jfluid.ps_server.transport import CallError, refuse
from jfluid.security import sockets

_MOST_SERVED = 1024  # each has a thread
logger = logging.getLogger(__name__)

# The method of a call, the bytes of its request, and a function that returns the request.
Received = tuple[str, int, Callable[[], memoryview]]
# Answers a call: (method, bytes of the request, request, whether the caller is there) to a status of gRPC,
# and the reply, in pieces, or the reason for a refusal.
Answering = Callable[[str, int, Callable[[], memoryview], Alive], tuple[grpc.StatusCode, Sequence[Any]]]
# (name of the method, how a call is refused, bytes of the request, the call) -> the reply, in pieces
Answered = Callable[[str, Callable[[grpc.StatusCode, str], Any], int, Callable[[], Any]], list[Any]]


class LargeCalls(Protocol):
    """The calls of a service that may be large."""

    def pull(self, request: pb.PullRequest, alive: Alive) -> Any: ...
    def push(self, request: pb.PushRequest, alive: Alive) -> Any: ...
    def exchange(self, request: pb.ExchangeRequest, alive: Alive) -> Any: ...


def answering(calls: LargeCalls, metrics: ServerMetrics, answered: Answered) -> Answering:
    """Return a function that answers the calls of streams.

    Args:
        calls: the service.
        answered: counts a call, and serializes its reply or error.
    """
    functions: dict[str, Callable[..., Any]] = {"Pull": calls.pull, "Push": calls.push, "Exchange": calls.exchange}

    def answer(
        method: str, size: int, request: Callable[[], memoryview], alive: Alive
    ) -> tuple[grpc.StatusCode, list[Any]]:
        def call() -> Any:
            with metrics.part("parse"):
                parsed = wire.parsed(wire.METHODS[method][0], request())
            return functions[method](parsed, alive)

        try:
            return grpc.StatusCode.OK, answered(method, refuse, size, call)
        except CallError as refused:
            return refused.code(), [refused.details().encode()]

    return answer


class _Served(Stream):
    """A server's side of a stream."""

    def __init__(self, connection: sockets.Connection, largest: int, stopping: int):
        super().__init__(connection, largest)
        self._arrived.register(stopping, 0)
        self._memory = np.empty(0, np.uint8)

    def receive(self) -> Received | None:
        """Return the next call; None when the server ends.

        The request lies in the stream's memory until the call is answered.
        Raises OSError when the caller has ended, or sends invalid data.
        """
        if any(file != self.socket.fileno() for file, _ in self._arrived.poll()):
            return None
        code, size = self._receive_head(b"C")
        if code >= len(METHODS):
            raise ConnectionError(f"a method of number {code}")
        if size > len(self._memory):
            self._memory = np.empty(1 << (size - 1).bit_length(), np.uint8)
        request = self._memory.data[:size]
        self._fill(request)
        return METHODS[code], size, request.toreadonly

    def answer(self, code: grpc.StatusCode, parts: Sequence[Any]) -> None:
        """Answer the call. Raises OSError when the caller has ended."""
        self._send(b"S", code.value[0], parts)

    def there(self) -> bool:
        """Return True while the caller has its end of the stream."""
        gone = select.poll()
        gone.register(self.socket, getattr(select, "POLLRDHUP", 0))  # Linux's; elsewhere a hang-up
        return not gone.poll(0)


class ServedStreams:
    """The streams of a server. Safe for threads.

    Attributes:
        port: where it listens; 0 for nowhere.
        beside: the port of gRPC.
    """

    def __init__(self, largest: int, answering: Answering):
        self._answering, self._largest = answering, largest
        self._lock = threading.Lock()
        self._threads: dict[_Served, threading.Thread] = {}
        # The first hangs up when the second is closed.
        self._stopping: tuple[int, int] | None = None
        self._stopped = self._ended = False
        self.port = self.beside = 0
        self._listener: sockets.Listener | None = None
        self._accepting: threading.Thread | None = None

    def listen(self, host: str, secret: str, beside: int) -> None:
        """Take connections from now on, at a free port; at none where the host has no such address."""
        try:
            stream = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            logger.warning("%s: no port for large messages, which go through gRPC: %s", host, error)
            return
        self._listener = sockets.Listener(stream, secret, PURPOSE, self._largest, CONNECT_S)
        with self._lock:
            self._listener.return_when(self._hang_up())
        self.port, self.beside = self._listener.port, beside
        self._accepting = threading.Thread(target=self._accept, name="jfluid-ps-streams", daemon=True)
        self._accepting.start()

    def _start(self, stream: _Served) -> None:
        """Serve a stream. The lock is held."""
        thread = threading.Thread(target=self._serve, args=[stream], name="jfluid-ps-stream", daemon=True)
        thread.start()
        self._threads[stream] = thread  # before the thread ends: it takes the lock for that

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
        accepting = self._accepting
        if accepting is not None:
            accepting.join()
        end = time.monotonic() + grace_s
        with self._lock:
            threads = dict(self._threads)
        for thread in threads.values():
            thread.join(max(end - time.monotonic(), 0.0))
        self._ended = True
        for stream in threads:
            stream.shut()

    def _serve(self, stream: _Served) -> None:
        """Answer calls until the caller or the server ends."""

        def alive() -> bool:
            return stream.there() and not self._ended

        try:
            while (call := stream.receive()) is not None:
                answer = self._answering(*call, alive)
                if self._ended:  # the call is sent again, to the next incarnation of this server
                    break
                stream.answer(*answer)
        except (OSError, MemoryError):  # the caller has ended, or a call needs more memory than there is
            pass
        finally:
            stream.close()
            with self._lock:
                self._threads.pop(stream, None)
                self._release()

    def _release(self) -> None:
        """Close the file descriptor of `_hang_up` after the last use. The lock is held."""
        if self._stopped and self._stopping is not None and not (self._threads or self._accepting):
            os.close(self._stopping[0])
            self._stopping = None

    def _accept(self) -> None:
        assert self._listener is not None  # it was made before this thread
        with self._listener as listener:
            while not self._stopped:
                for connection in listener.accept(LOOK_S):
                    self._begin(connection)
        with self._lock:
            self._accepting = None
            self._release()

    def _begin(self, connection: sockets.Connection) -> None:
        with self._lock:
            if self._stopped or len(self._threads) >= _MOST_SERVED:
                connection.close()
                return
            try:
                self._start(_Served(connection, self._largest, self._hang_up()))
            # it has disconnected; or there is no memory for a further thread
            except (OSError, RuntimeError) as error:
                logger.warning("cannot serve a stream: %s", error)
                connection.close()
