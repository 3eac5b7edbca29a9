"""Calls between a client and a server of one machine through two pipes.

A call through gRPC takes a millisecond, most of it in threads that wake one another. Here the caller
writes to a pipe on which a thread of the server waits, and reads the answer from another; each side
learns from its pipe, too, when the other has ended. Messages are small: what is large lies in memory
that both have (see shared_memory.py).

The client makes the pipes, and the server opens its ends through /proc, as it does with the memory.
"""

import os
import select
import stat
import struct
import time
import weakref
from collections.abc import Callable

import grpc

from jfluid.ps_server.transport import STATUS, CallError, lost

# A request is written whole: so many bytes are one piece in every pipe of POSIX.
LARGEST = 510
_REQUEST = struct.Struct("<H")  # the bytes that follow
_ANSWER = struct.Struct("<IQ")  # the number of a status of gRPC, and the bytes that follow
_LOOK_S = 0.5  # between two looks whether the client was closed
_GONE = "the server, or its end of the pipe, is gone"


class CallPipes:
    """A client's ends of the pipes.

    They are closed with this object.

    Attributes:
        theirs: the file descriptors that the server opens: where it reads, and where it writes.
    """

    def __init__(self) -> None:
        reads, self._out = os.pipe2(os.O_CLOEXEC)
        self._in, writes = os.pipe2(os.O_CLOEXEC)
        self.theirs = reads, writes
        weakref.finalize(self, _close, self._out, self._in)

    def close_theirs(self) -> None:
        """Leave the server's ends to the server, without which a call would wait for ever."""
        _close(*self.theirs)

    def post(self, request: bytes) -> None:
        """Send a request of at most LARGEST bytes. Raises CallError where the server has ended."""
        try:
            os.write(self._out, _REQUEST.pack(len(request)) + request)
        except BrokenPipeError:
            raise lost(_GONE) from None

    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> bytes:
        """Return the answer to the request.

        Raises CallError where the server refuses, has ended, or does not answer in time; ValueError,
        as gRPC does, when the client is `closed` meanwhile.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            code, size = _ANSWER.unpack(self._read(_ANSWER.size, end, closed))
            data = self._read(size, end, closed)
        except BrokenPipeError:
            raise lost(_GONE) from None
        if code:
            raise CallError(STATUS[code], data.decode(errors="replace"), told=True)
        return data

    def _read(self, size: int, end: float | None, closed: Callable[[], bool]) -> bytes:
        found = bytearray()
        ready = select.poll()
        ready.register(self._in, select.POLLIN)
        while len(found) < size:
            left_s = _LOOK_S if end is None else min(end - time.monotonic(), _LOOK_S)
            if ready.poll(max(left_s, 0.0) * 1e3):
                data = os.read(self._in, size - len(found))
                if not data:
                    raise lost(_GONE)
                found += data
            elif closed():
                raise ValueError("the client was closed")
            elif left_s <= 0:
                raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time")
        return bytes(found)


class ServedPipes:
    """A server's ends of the pipes of one caller, to be used by one thread.

    Raises OSError where these file descriptors of the caller's process are no pipes of this user.

    Args:
        stopping: a file descriptor that hangs up when the server stops.
    """

    def __init__(self, process: int, reads: int, writes: int, stopping: int):
        self._files: list[int] = []
        try:
            for number, mode in ((reads, os.O_RDONLY), (writes, os.O_WRONLY)):
                # not blocking: nobody may have its other end
                path, flags = f"/proc/{process}/fd/{number}", mode | os.O_CLOEXEC | os.O_NONBLOCK
                if not os.readlink(path).startswith("pipe:"):
                    raise OSError(f"{path} is no pipe")
                self._files.append(os.open(path, flags))
                about = os.fstat(self._files[-1])
                if not stat.S_ISFIFO(about.st_mode) or about.st_uid != os.geteuid():
                    raise OSError(f"{path} is no pipe of this user")
                os.set_blocking(self._files[-1], mode == os.O_WRONLY)
        except OSError:
            self.close()
            raise
        self._waiting, self._hung_up = select.poll(), select.poll()
        self._waiting.register(self._files[0], select.POLLIN)
        self._waiting.register(stopping, 0)
        self._hung_up.register(self._files[0], 0)

    def receive(self) -> bytes:
        """Return the next request; nothing where the caller has ended, or the server stops.

        Raises OSError for what is no whole request: a request is one piece in the pipe.
        """
        ready = dict(self._waiting.poll())
        mine = ready.pop(self._files[0], 0)
        if ready or not mine & select.POLLIN:
            return b""
        head = os.read(self._files[0], _REQUEST.size)
        size = _REQUEST.unpack(head)[0] if len(head) == _REQUEST.size else 0
        request = os.read(self._files[0], size) if 0 < size <= LARGEST else b""
        if len(request) != size or not size:
            raise ConnectionError("no whole request")
        return request

    def answer(self, code: grpc.StatusCode, data: bytes) -> None:
        """Answer a request. Raises OSError where the caller has ended."""
        data = _ANSWER.pack(code.value[0], len(data)) + data
        while data:
            data = data[os.write(self._files[1], data) :]

    def there(self) -> bool:
        """Return whether the caller has its ends still."""
        return not self._hung_up.poll(0)

    def close(self) -> None:
        _close(*self._files)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)
