"""Calls of large messages between a client and a server through a socket of their own.

gRPC takes two milliseconds of the processor for a call with 1.7 MB each way, most of it in copies
and in switches between threads; a socket takes 0.6. So a server listens at a second port, too, and
Attach returns it. Both sides prove that they have the job's secret before anything else is read
(jfluid.security.sockets). If the port is not reachable, or a connection breaks off, calls go through gRPC.

    client                                             server
    method, bytes, MAC; the request             ->
                                                <-     status, bytes, MAC; the reply

The MACs cover the heads, which hold the place of a call in its stream. As with gRPC, only owners of the secret
can choose methods, order and statuses; messages are neither hidden nor sealed.
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
from functools import partial
from typing import Any

import grpc
import numpy as np

from jfluid import errors
from jfluid.ps_server.transport import STATUS, CallError, Sender, ServerCall, Transport, lost, read_reply
from jfluid.security import sockets

MOST = 4  # streams of a client to a server, which is also the number of concurrent calls through streams
METHODS = ("Pull", "Push", "Exchange")
PURPOSE = "parameter server's streams"
_MAC_SIZE = 32
_HEAD = struct.Struct("<IQ")  # the number of a method or of a status, and the bytes that follow
_WHOLE = _HEAD.size + _MAC_SIZE
LOOK_S = 0.5  # between two looks whether the client was closed, or the server stops
_AGAIN_S = 5.0  # between two attempts to connect
_MOST_PIECES = 512  # of one system call, which takes 1024
CONNECT_S = 5.0
logger = logging.getLogger(__name__)


class Stream:
    """Side of a stream: calls and answers by turns."""

    def __init__(self, connection: sockets.Connection, largest: int):
        self.socket, self._key = connection.stream, connection.key
        self._largest, self._sent, self._received = largest, 0, 0
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # a waiting thread notices that the peer's host is gone
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


class CallStream(Stream):
    """A client's side of a stream."""

    def fits(self, size: int) -> bool:
        """Return True if a request and a reply of `size` bytes have room."""
        return size <= self._largest

    def post(self, method: str, parts: Sequence[Any]) -> None:
        """Send a request that `fits`. Raises CallError if the server has ended."""
        try:
            self._send(b"C", METHODS.index(method), parts)
        except OSError as error:
            raise _gone(error) from None

    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> memoryview:
        """Return the reply.

        Raises CallError when the server refuses the call, has ended, or does not begin to answer in time;
        ValueError, as gRPC does, when the client is `closed` meanwhile.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = LOOK_S if end is None else min(end - time.monotonic(), LOOK_S)
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


class CallStreams(Transport):
    """Transport to one server through sockets. Safe for threads.

    Args:
        port_of: asks the server for the port of streams; 0 where it has none, None without an answer.
        host: of the server.
        largest: bytes of a message.
        wanted: False disables streams.

    Attributes:
        possible: False if the server cannot be reached through streams.
    """

    def __init__(self, port_of: Callable[[], int | None], host: str, secret: str, largest: int, wanted: bool = True):
        self.possible = wanted
        self._lock = threading.Lock()
        self._free: list[CallStream] = []
        self._taken: set[CallStream] = set()
        self._closed = False
        self._port_of, self._host, self._secret, self._largest = port_of, host, secret, largest
        self._wanted, self._connecting = wanted, False
        self._not_before_s, self._life = 0.0, 0

    def sender(self, size: int) -> Sender | None:
        stream = self.take(size)
        return None if stream is None else partial(self._send, stream)

    def take(self, size: int) -> CallStream | None:
        """Return an idle stream for messages of at most `size` bytes, or None; without an idle one, begin to connect.

        `give` it back after the call. If the call had no answer `drop` it: a late answer may still come.
        """
        with self._lock:
            if not self.possible or self._closed or len(self._taken) >= MOST:
                return None
            stream = next((stream for stream in self._free if stream.fits(size)), None)
            if stream is not None:
                self._free.remove(stream)
                self._taken.add(stream)
                return stream
        self._begin_to_connect()
        return None

    def _begin_to_connect(self) -> None:
        """Connect in a separate thread: a network that drops packets to this port must not delay the call."""
        with self._lock:
            full = len(self._free) + len(self._taken) >= MOST
            if full or self._connecting or time.monotonic() < self._not_before_s:
                return
            self._connecting = True
        threading.Thread(target=self._connect, name="jfluid-ps-connect", daemon=True).start()

    def _send(self, stream: CallStream, call: ServerCall, timeout_s: float | None) -> Any:
        refused = answered = False
        try:
            stream.post(call.method, call.parts)
            if call.sent is not None:
                call.sent()
            reply = read_reply(call.method, stream.answer(timeout_s, lambda: self._closed))
            answered = True
            return reply
        except CallError as error:
            refused = error.told
            raise
        finally:
            (self.give if answered or refused else self.drop)(stream)

    def give(self, stream: CallStream) -> None:
        """Take a stream back that is idle."""
        with self._lock:
            if stream in self._taken:  # otherwise the server has restarted
                self._taken.remove(stream)
                self._free.append(stream)

    def drop(self, stream: CallStream) -> None:
        """Release a stream after a call without an answer."""
        with self._lock:
            self._taken.discard(stream)
        stream.close()

    def forget(self) -> None:
        """Forget all streams: the restarted server listens at a different port."""
        with self._lock:
            self.possible, self._not_before_s, self._life = self._wanted, 0.0, self._life + 1
            free, self._free, taken, self._taken = self._free, [], self._taken, set()
        for stream in taken:
            stream.shut()
        for stream in free:
            stream.close()

    def close(self) -> None:
        self._closed = True
        self.forget()

    def _connect(self) -> None:
        life, stream, port, possible = self._life, None, None, True
        try:
            port = self._port_of()
            if port:
                stream = CallStream(
                    sockets.connect((self._host, port), self._secret, PURPOSE, self._largest, CONNECT_S),
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


def _gone(error: OSError) -> CallError:
    return lost(f"the server, or its stream, is gone: {error}")
