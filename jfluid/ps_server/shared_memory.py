"""Shared memory as a transport between a client and a server on the same machine.

The network stack copies each byte of a message half a dozen times. With a shared buffer the client
writes the request to memory, the call itself, through pipes of the buffer (see pipe_calls.py),
carries only its size, and the server writes the reply beside it.

A buffer is an anonymous file (memfd_create(2), so only on Linux) that the server opens through
/proc. It has no other owner and vanishes with the two processes; a server releases the buffers of
processes that have ended. The server accepts only a file of its own user that is sealed against
shrinking: access to a mapping beyond the end of a file would kill the process.

One incarnation of one server has the other ends of a buffer's pipes: when it ends, or gives the
buffer up, a call is lost, and the client sends it again over the network.
"""

import contextlib
import mmap
import os
import secrets
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import grpc

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire
from jfluid.ps_server.errors import NotReadyError, TooLargeError
from jfluid.ps_server.pipe_calls import CallPipes, ServedPipes
from jfluid.ps_server.served_channels import Answering, Received, ServedChannel, ServedChannels
from jfluid.ps_server.transport import MOST, FastChannel, FastTransport

_SMALL = 4096  # bytes of a reply that goes through the pipe
_PROOF = 32
_HEADER = mmap.PAGESIZE
_NAME = "jfluid-buffer"


class SharedBuffer(FastChannel):
    """A header with the proof, then space for a request, and as much for a reply.

    Attributes:
        capacity: the most bytes of a request, and of a reply.
        name: identifies the buffer at the server.
        pipes: of a client's buffer: through which it calls.
    """

    def __init__(self, file: int, capacity: int, pipes: CallPipes | None = None):
        self.capacity, self.name, self.pipes = capacity, 0, pipes
        self._memory = mmap.mmap(file, _HEADER + 2 * capacity)
        self._view = memoryview(self._memory)

    def fits(self, size: int) -> bool:
        return size <= self.capacity

    def post(self, method: str, parts: Sequence[Any]) -> None:
        assert self.pipes is not None  # a client's buffer has them
        request = pb.LocalRequest(method=method, bytes=self._write(_HEADER, parts))
        self.pipes.post(request.SerializeToString())

    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> bytes | memoryview:
        assert self.pipes is not None
        reply = pb.LocalReply.FromString(self.pipes.answer(timeout_s, closed))
        return reply.reply or self.reply(reply.bytes)

    def shut(self) -> None:
        """Do nothing: the server, which has ended, has hung up."""

    def close(self) -> None:
        """Do nothing: memory and pipes are released with the last reference to the buffer."""

    def write_reply(self, parts: Sequence[Any]) -> int:
        """Write the pieces of a reply, which must fit, one after the other; return the size in bytes."""
        return self._write(_HEADER + self.capacity, parts)

    def request(self, size: int) -> memoryview:
        """Return the request in place: the client may change it, so no byte may be read twice."""
        return self._read(_HEADER, size)

    def reply(self, size: int) -> memoryview:
        """Return the reply in place, until the buffer serves the next call."""
        return self._read(_HEADER + self.capacity, size)

    def _write(self, at: int, parts: Sequence[Any]) -> int:
        begin = at
        for part in parts:
            self._view[at : at + len(part)] = part
            at += len(part)
        return at - begin

    def _read(self, begin: int, size: int) -> memoryview:
        if size > self.capacity:
            raise TooLargeError(f"a message of {size} bytes in a buffer of {self.capacity}")
        return self._view[begin : begin + size].toreadonly()


# ---- of a client ----


class SharedBuffers(FastTransport[SharedBuffer]):
    """Transport to a server on this host through shared memory.

    Args:
        attach: announces a buffer to the server; returns the name that the server gave it, 0 when
            the server is on another host, None without an answer.
        wanted: False disables shared memory.

    Attributes:
        client: identifies the owner of the buffers at the server.
    """

    def __init__(self, attach: Callable[[pb.AttachRequest], int | None], wanted: bool = True):
        super().__init__(wanted and hasattr(os, "memfd_create"))
        self.client = random_name()
        self._attach = attach
        self._attaching = threading.Lock()

    def _make(self, size: int) -> SharedBuffer | None:
        if not self._attaching.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if len(self._taken) >= MOST:  # another call has made one meanwhile
                    return None
                self._free = []  # a larger one serves all calls
                used = [other.name for other in self._taken]
            buffer = self._made(size, used)
            if buffer is not None:
                with self._lock:
                    self._taken.add(buffer)
            return buffer
        finally:
            self._attaching.release()

    def _made(self, capacity: int, used: list[int]) -> SharedBuffer | None:
        """Create a buffer and announce it to the server."""
        import fcntl  # not available on all systems

        capacity = max(1 << (capacity - 1).bit_length(), 1 << 20)
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            proof = secrets.token_bytes(_PROOF)
            try:
                os.posix_fallocate(file, 0, _HEADER + 2 * capacity)
            except OSError:  # no memory for it
                return None
            os.pwrite(file, proof, 0)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            pipes = CallPipes()
            buffer = SharedBuffer(file, capacity, pipes)
            try:
                name = self._attach(
                    pb.AttachRequest(
                        client=self.client,
                        process=os.getpid(),
                        file=file,
                        proof=proof,
                        capacity=capacity,
                        used=used,
                        reads=pipes.theirs[0],
                        writes=pipes.theirs[1],
                    )
                )
            finally:
                pipes.close_theirs()
        finally:
            os.close(file)
        if name == 0:
            self.possible = False
        buffer.name = name or 0
        return buffer if name else None


# ---- of a server ----


class _ServedBuffer(ServedChannel):
    """Server's end of a buffer and of the pipes to its client.

    Args:
        known: the server's buffers by name; the channel ends when its buffer is not among them.
        writing: measures the writing of large replies.
    """

    def __init__(
        self,
        buffer: SharedBuffer,
        pipes: ServedPipes,
        known: Mapping[int, SharedBuffer],
        writing: Callable[[], AbstractContextManager[object]],
    ):
        self.buffer, self._pipes, self._known, self._writing = buffer, pipes, known, writing

    def receive(self) -> Received | None:
        data = self._pipes.receive()
        if not data or self.buffer.name not in self._known:
            return None
        asked = pb.LocalRequest()
        with contextlib.suppress(errors.ServerError):  # a request without a method is refused
            asked = wire.parsed(pb.LocalRequest, data)
        size = int(asked.bytes)
        return asked.method, len(data) + size, lambda: self.buffer.request(size)

    def answer(self, code: grpc.StatusCode, parts: Sequence[Any]) -> None:
        if code != grpc.StatusCode.OK:
            self._pipes.answer(code, b"".join(parts))
            return
        if not _SMALL < sum(map(len, parts)) <= self.buffer.capacity:
            reply = pb.LocalReply(reply=b"".join(parts))
        else:
            with self._writing():
                reply = pb.LocalReply(bytes=self.buffer.write_reply(parts))
        self._pipes.answer(code, reply.SerializeToString())

    def there(self) -> bool:
        return self._pipes.there()

    def shut(self) -> None:
        """Do nothing: a thread that waits for the caller also waits for the stop of the server."""

    def close(self) -> None:
        self._pipes.close()


class AttachedBuffers(ServedChannels[_ServedBuffer]):
    """The shared buffers of a server. Safe for threads.

    Args:
        largest: bytes of a message.
        writing: measures the writing of large replies.
    """

    def __init__(
        self,
        largest: int,
        answering: Answering,
        writing: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ):
        super().__init__(answering, "jfluid-ps-buffer")
        self._largest, self._writing = largest, writing
        self._buffers: dict[int, SharedBuffer] = {}
        self._clients: dict[int, tuple[int, set[int]]] = {}  # client -> (process, its buffers)

    def attach(self, request: pb.AttachRequest) -> int:
        """Return the name of a new buffer; 0 if its file belongs to a different host or user."""
        if request.capacity > self._largest:
            raise TooLargeError(f"a buffer of {request.capacity} bytes each way; the limit is {self._largest}")
        buffer = _opened(request)
        if buffer is None:
            return 0
        with self._lock:
            for other in [c for c, (process, _) in self._clients.items() if not os.path.exists(f"/proc/{process}")]:
                self._forget(self._clients.pop(other)[1])
            _, known = self._clients.get(request.client, (0, set()))
            keep = known & set(request.used)
            if self._stopped:
                raise NotReadyError("this server stops")
            if len(keep) >= MOST:
                return 0
            try:
                pipes = ServedPipes(request.process, request.reads, request.writes, self._hang_up())
            except OSError:
                return 0
            self._forget(known - keep)
            buffer.name = random_name()
            self._buffers[buffer.name] = buffer
            self._clients[request.client] = request.process, keep | {buffer.name}
            self._start(_ServedBuffer(buffer, pipes, self._buffers, self._writing))
            return buffer.name

    def leave(self, client: int) -> None:
        """Release a client's buffers."""
        with self._lock:
            self._forget(self._clients.pop(client, (0, set[int]()))[1])

    def _serve(self, channel: _ServedBuffer) -> None:
        try:
            super()._serve(channel)
        finally:
            with self._lock:
                self._forget({channel.buffer.name})

    def _forget(self, names: set[int]) -> None:
        for name in names:
            self._buffers.pop(name, None)


def random_name() -> int:
    """Return a random number from 1 to 2**63."""
    return secrets.randbits(63) + 1


def _opened(request: pb.AttachRequest) -> SharedBuffer | None:
    """Open the caller's buffer; None for a file of a different host or user."""
    path = f"/proc/{request.process}/fd/{request.file}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME} "):
            return None
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    import fcntl

    try:
        about = os.fstat(file)
        sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        fits = stat.S_ISREG(about.st_mode) and about.st_size == _HEADER + 2 * request.capacity
        if not (
            sealed
            and fits
            and about.st_uid == os.geteuid()
            and secrets.compare_digest(os.pread(file, _PROOF, 0), request.proof)
        ):
            return None
        return SharedBuffer(file, request.capacity)
    except OSError:
        return None
    finally:
        os.close(file)
