"""Calls of large messages between a client and a server through a socket of their own.

gRPC takes two milliseconds of the processor for a call with 1.7 MB each way, most of it in copies
and in threads that wake one another; a socket takes 0.6. So a server listens at another port, too,
which Attach tells. Both sides prove that they have the job's secret before anything else is read
(jfluid.security.sockets). What cannot be reached there, or breaks off, goes through gRPC.

    client                                             server
    method, bytes, MAC; the request             ->
                                                <-     status, bytes, MAC; the reply

The MACs cover the heads, which hold the place of a call in its stream: as with gRPC, methods, order
and statuses are those of who has the secret; messages are neither hidden nor sealed.
"""

import hashlib
import hmac
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np

from jfluid import errors
from jfluid.ps_server.served_channels import Answering, Received, ServedChannel, ServedChannels
from jfluid.ps_server.transport import MOST, STATUS, CallError, FastChannel, FastTransport, lost
from jfluid.security import sockets

METHODS = ("Pull", "Push", "Exchange")
_PURPOSE = "parameter server's streams"
_MAC_SIZE = 32
_HEAD = struct.Struct("<IQ")  # the number of a method or of a status, and the bytes that follow
_WHOLE = _HEAD.size + _MAC_SIZE
_LOOK_S = 0.5  # between two looks whether the client was closed, or the server stops
_AGAIN_S = 5.0  # between two attempts to connect
_MOST_SERVED = 1024  # each has a thread
_MOST_PIECES = 512  # of one system call, which takes 1024
_CONNECT_S = 5.0
logger = logging.getLogger(__name__)


class _Stream:
    """Side of a stream: calls and answers by turns."""

    def __init__(self, connection: sockets.Connection, largest: int):
        self.socket, self._key = connection.stream, connection.key
        self._largest, self._sent, self._received = largest, 0, 0
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # who waits finds out when the other host is there no more
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 20),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 4),
            ("TCP_USER_TIMEOUT", 40_000),
        ):
            if hasattr(socket, name):
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._arrived = select.poll()
        self._arrived.register(self.socket, select.POLLIN)

    def _head(self, kind: bytes, number: int, code: int, size: int) -> bytes:
        head = _HEAD.pack(code, size)
        message = kind + number.to_bytes(8, "little") + head
        return head + hashlib.blake2b(message, key=self._key, digest_size=_MAC_SIZE).digest()

    def _send(self, kind: bytes, code: int, parts: Sequence[Any]) -> None:
        """Send a message. Raises OSError when the other side has gone."""
        head = self._head(kind, self._sent, code, sum(map(len, parts)))
        self._sent += 1
        left: list[memoryview] = [memoryview(part) for part in (head, *parts)]
        while left:
            sent = self.socket.sendmsg(left[:_MOST_PIECES])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def _receive_head(self, kind: bytes) -> tuple[int, int]:
        """Return (number of the method or status, bytes that follow).

        Raises OSError, also for a head that is not the other side's.
        """
        data = bytearray(_WHOLE)
        self._fill(memoryview(data))
        code, size = _HEAD.unpack_from(data)
        expected = self._head(kind, self._received, code, size)
        if size > self._largest or not hmac.compare_digest(data, expected):
            raise ConnectionError("a message that is not of the other side, or too large")
        self._received += 1
        return code, size

    def _fill(self, view: memoryview) -> None:
        while len(view):
            count = self.socket.recv_into(view, len(view), socket.MSG_WAITALL)
            if not count:
                raise ConnectionError("the other side has gone")
            view = view[count:]

    def shut(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other side has
            pass

    def close(self) -> None:
        self.socket.close()


# ---- of a client ----


class CallStream(_Stream, FastChannel):
    """A client's side of a stream."""

    def fits(self, size: int) -> bool:
        return size <= self._largest

    def post(self, method: str, parts: Sequence[Any]) -> None:
        try:
            self._send(b"C", METHODS.index(method), parts)
        except OSError as error:
            raise _gone(error) from None

    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> memoryview:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LOOK_S if end is None else min(end - time.monotonic(), _LOOK_S)
            if self._arrived.poll(max(left_s, 0.0) * 1e3):
                break
            if closed():
                raise ValueError("the client was closed")
            if left_s <= 0:
                raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        try:
            code, size = self._receive_head(b"S")
            data = np.empty(size, np.uint8).data
            self._fill(data)
        except OSError as error:
            if closed():
                raise ValueError("the client was closed") from None
            raise _gone(error) from None
        if code:
            raise CallError(STATUS[code], bytes(data).decode(errors="replace"), told=True)
        return data.toreadonly()


class CallStreams(FastTransport[CallStream]):
    """Transport to a server on a different host through sockets.

    Args:
        port_of: asks the server for the port of streams; 0 where it has none, None without an answer.
        host: of the server.
        largest: bytes of a message.
        wanted: False disables streams.
    """

    def __init__(self, port_of: Callable[[], int | None], host: str, secret: str, largest: int, wanted: bool = True):
        super().__init__(wanted)
        self._port_of, self._host, self._secret, self._largest = port_of, host, secret, largest
        self._wanted, self._connecting = wanted, False
        self._not_before_s, self._life = 0.0, 0

    def _make(self, size: int) -> CallStream | None:
        """Connect in a separate thread: a network that drops packets to this port must not delay the call."""
        with self._lock:
            full = len(self._free) + len(self._taken) >= MOST
            if full or self._connecting or time.monotonic() < self._not_before_s:
                return None
            self._connecting = True
        threading.Thread(target=self._connect, name="jfluid-ps-connect", daemon=True).start()
        return None

    def forget(self) -> None:
        """Forget all streams: the restarted server listens at a different port."""
        with self._lock:
            self.possible, self._not_before_s, self._life = self._wanted, 0.0, self._life + 1
        super().forget()

    def _connect(self) -> None:
        life, stream, port, possible = self._life, None, None, True
        try:
            port = self._port_of()
            if port:
                stream = CallStream(
                    sockets.connect((self._host, port), self._secret, _PURPOSE, self._largest, _CONNECT_S),
                    self._largest,
                )
            possible = port != 0
        except (OSError, errors.JFluidError) as error:
            logger.info("%s: no stream for large messages, which go through gRPC: %s", port, error)
        with self._lock:
            self._connecting = False
            if life == self._life and not self._closed:
                self.possible = possible
                if stream is not None:
                    self._free.append(stream)
                    return
                self._not_before_s = time.monotonic() + _AGAIN_S
        if stream is not None:
            stream.socket.close()


# ---- of a server ----


class _Served(_Stream, ServedChannel):
    """A server's side of a stream."""

    def __init__(self, connection: sockets.Connection, largest: int, stopping: int):
        super().__init__(connection, largest)
        self._arrived.register(stopping, 0)
        self._memory = np.empty(0, np.uint8)

    def receive(self) -> Received | None:
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
        self._send(b"S", code.value[0], parts)

    def there(self) -> bool:
        gone = select.poll()
        gone.register(self.socket, getattr(select, "POLLRDHUP", 0))  # Linux's; elsewhere a hang-up
        return not gone.poll(0)


class ServedStreams(ServedChannels[_Served]):
    """The streams of a server. Safe for threads.

    Attributes:
        port: where it listens; 0 for nowhere.
        beside: the port of gRPC.
    """

    def __init__(self, largest: int, answering: Answering):
        super().__init__(answering, "jfluid-ps-stream")
        self._largest = largest
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
        self._listener = sockets.Listener(stream, secret, _PURPOSE, self._largest, _CONNECT_S)
        with self._lock:
            self._listener.return_when(self._hang_up())
        self.port, self.beside = self._listener.port, beside
        self._accepting = threading.Thread(target=self._accept, name="jfluid-ps-streams", daemon=True)
        self._accepting.start()

    def end(self, grace_s: float) -> None:
        accepting = self._accepting
        if accepting is not None:
            accepting.join()
        super().end(grace_s)

    def _busy(self) -> bool:
        return self._accepting is not None or super()._busy()

    def _accept(self) -> None:
        assert self._listener is not None  # it was made before this thread
        with self._listener as listener:
            while not self._stopped:
                for connection in listener.accept(_LOOK_S):
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
            # it has disconnected; or there is no memory for another thread
            except (OSError, RuntimeError) as error:
                logger.warning("cannot serve a stream: %s", error)
                connection.close()


def _gone(error: OSError) -> CallError:
    return lost(f"the server, or its stream, is gone: {error}")
