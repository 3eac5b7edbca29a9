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

import mmap
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.cancellation import Alive
from jfluid.ps_server.errors import NotReadyError, TooLargeError
from jfluid.ps_server.pipe_calls import CallPipes, ServedPipes, lost

SMALLEST = 1 << 16  # smaller messages are as fast over the network
MOST = 4  # buffers of one client, and so its concurrent calls through shared memory
_PROOF = 32
_HEADER = mmap.PAGESIZE
_NAME = "jfluid-lane"


class SharedBuffer:
    """A header with the proof, then space for requests, and as much for a reply.

    Calls are answered in turn; a large reply is to be read before another one that begins there is asked for.

    Attributes:
        capacity: the most bytes of a request, and of a reply.
        name: identifies the buffer at the server.
        pipes: of a client's buffer: through which it calls.
    """

    def __init__(self, file: int, capacity: int, pipes: CallPipes | None = None):
        self.capacity, self.name, self.pipes = capacity, 0, pipes
        self._end = 0  # of the last request without an answer
        self._replies: deque[int] = deque()  # where the reply of each of them begins
        self._memory = mmap.mmap(file, _HEADER + 2 * capacity)
        self._view = memoryview(self._memory)

    @property
    def idle(self) -> bool:
        """Whether all that was posted has an answer."""
        return not self._replies

    def fits(self, size: int) -> bool:
        """Return whether there is room for a request of so many bytes behind those without an answer."""
        return self._end + size <= self.capacity

    def post(self, method: str, parts: Sequence[Any], reply_at: int = 0) -> None:
        """Send a request that `fits`. Raises CallError where the server has ended.

        Args:
            reply_at: where its reply begins, if it is large: behind those that may be there still.
        """
        assert self.pipes is not None  # a client's buffer has them
        size = self._write(_HEADER + self._end, parts)
        request = pb.LocalRequest(method=method, bytes=size, at=self._end, reply_at=reply_at)
        self._replies.append(reply_at)
        self._end += size
        self.pipes.post(request.SerializeToString())

    def answer(self, timeout_s: float | None, closed: Callable[[], bool] = lambda: False) -> bytes | memoryview:
        """Return the reply to the first request without an answer, where it lies until the next call.

        Raises what CallPipes.answer does.
        """
        assert self.pipes is not None
        try:
            reply = pb.LocalReply.FromString(self.pipes.answer(timeout_s, closed))
        finally:
            at = self._replies.popleft()
            self._end *= bool(self._replies)
        if self._replies and at <= self._replies[0] < at + reply.bytes:
            raise lost("an answer is longer than there was room for: the next one lies over it")
        return reply.reply or self.reply(reply.bytes, at)

    def write_reply(self, parts: Sequence[Any], at: int = 0) -> int:
        """Write the parts one after the other; returns their total size in bytes. They are to fit."""
        return self._write(_HEADER + self.capacity + at, parts)

    def request(self, size: int, at: int = 0) -> memoryview:
        """Return the request where it lies: the client may change it, so nothing of it is to be read twice."""
        return self._read(_HEADER, size, at)

    def reply(self, size: int, at: int = 0) -> memoryview:
        """Return the reply where it lies, until the buffer serves another call."""
        return self._read(_HEADER + self.capacity, size, at)

    def _write(self, at: int, parts: Sequence[Any]) -> int:
        begin = at
        for part in parts:
            self._view[at : at + len(part)] = part
            at += len(part)
        return at - begin

    def _read(self, begin: int, size: int, at: int = 0) -> memoryview:
        if at + size > self.capacity:
            raise TooLargeError(f"a message of {size} bytes in a buffer of {self.capacity}")
        return self._view[begin + at : begin + at + size].toreadonly()


# ---- of a client ----


class SharedBuffers:
    """The buffers from one client to one server. Safe for threads.

    Args:
        attach: announces a buffer to the server; returns the name that the server gave it, 0 when
            the server is on another machine, None without an answer.
        wanted: False disables shared memory.

    Attributes:
        client: identifies the owner of the buffers at the server.
    """

    def __init__(self, attach: Callable[[pb.AttachRequest], int | None], wanted: bool = True):
        self.client = random_name()
        self._attach = attach
        self._possible = wanted and hasattr(os, "memfd_create")
        self._lock, self._attaching = threading.Lock(), threading.Lock()
        self._free: list[SharedBuffer] = []
        self._taken: set[SharedBuffer] = set()

    @property
    def possible(self) -> bool:
        """Whether the server may be on this machine, and memory shared with it."""
        return self._possible

    def take(self, capacity: int) -> SharedBuffer | None:
        """Return a buffer for a call of so many bytes; None when there is none, or another call is creating one.

        `give` it back after the call. If the call had no answer `drop` it instead: a late one may
        still be written to it.
        """
        with self._lock:
            if not self._possible or len(self._taken) >= MOST:
                return None
            buffer = next((buffer for buffer in self._free if buffer.capacity >= capacity), None)
            if buffer is not None:
                self._free.remove(buffer)
                self._taken.add(buffer)
                return buffer
        if not self._attaching.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if len(self._taken) >= MOST:  # another call has made one meanwhile
                    return None
                self._free = []  # a larger one serves all calls
                used = [other.name for other in self._taken]
            buffer = self._made(capacity, used)
            if buffer is not None:
                with self._lock:
                    self._taken.add(buffer)
            return buffer
        finally:
            self._attaching.release()

    def give(self, buffer: SharedBuffer) -> None:
        with self._lock:
            if buffer in self._taken:  # otherwise the server has restarted
                self._taken.remove(buffer)
                self._free.append(buffer)

    def drop(self, buffer: SharedBuffer) -> None:
        with self._lock:
            self._taken.discard(buffer)

    def forget(self) -> None:
        """Forget all buffers: the server has restarted and knows none of them."""
        with self._lock:
            self._free, self._taken = [], set()

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
            self._possible = False
        buffer.name = name or 0
        return buffer if name else None


# ---- of a server ----


# What answers a request that came through a pipe: (buffer, request, whether the caller is there) to a
# status of gRPC, and the answer or the reason for a refusal.
Answering = Callable[[SharedBuffer, bytes, Alive], tuple[grpc.StatusCode, bytes]]


class AttachedBuffers:
    """The buffers of a server, and a thread for each that waits for calls. Safe for threads."""

    def __init__(self, largest: int, answering: Answering) -> None:
        self._largest, self._answering = largest, answering
        self._lock = threading.Lock()
        self._buffers: dict[int, SharedBuffer] = {}
        self._clients: dict[int, tuple[int, set[int]]] = {}  # client -> (process, its buffers)
        self._threads: dict[int, threading.Thread] = {}
        # the first hangs up when the second is closed
        self._stopping: tuple[int, int] | None = None
        self._stopped = self._ended = False

    def attach(self, request: pb.AttachRequest) -> int:
        """Return the name of a new buffer; 0 when its file is not found: the caller is on another
        machine, or is another user.
        """
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
            if self._stopping is None:
                self._stopping = os.pipe()
            try:
                pipes = ServedPipes(request.process, request.reads, request.writes, self._stopping[0])
            except OSError:
                return 0
            self._forget(known - keep)
            buffer.name = random_name()
            self._buffers[buffer.name] = buffer
            self._clients[request.client] = request.process, keep | {buffer.name}
            thread = threading.Thread(target=self._serve, args=[buffer, pipes], name="jfluid-ps-lane", daemon=True)
            self._threads[buffer.name] = thread
            thread.start()
            return buffer.name

    def leave(self, client: int) -> None:
        """Release a client's buffers."""
        with self._lock:
            self._forget(self._clients.pop(client, (0, set[int]()))[1])

    def stop(self) -> None:
        """Take no more calls."""
        with self._lock:
            if self._stopping is not None and not self._stopped:
                os.close(self._stopping[1])
            self._stopped = True
            self._forget_stopping()

    def end(self, grace_s: float) -> None:
        """After `stop`: wait for the calls under way, for so many seconds; then nobody waits for their answers."""
        end = time.monotonic() + grace_s
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0.0))
        self._ended = True

    def _serve(self, buffer: SharedBuffer, pipes: ServedPipes) -> None:
        """Answer calls until the caller ends, or the buffer is given up."""

        def alive() -> bool:
            return pipes.there() and not self._ended

        try:
            while (request := pipes.receive()) and buffer.name in self._buffers:
                answer = self._answering(buffer, request, alive)
                if self._ended:  # the call is made again, of the server that comes after this one
                    break
                pipes.answer(*answer)
        except OSError:  # the caller has ended
            pass
        finally:
            pipes.close()
            with self._lock:
                self._forget({buffer.name})
                self._threads.pop(buffer.name, None)
                self._forget_stopping()

    def _forget_stopping(self) -> None:
        """Close what hung up, when no thread looks at it any more."""
        if self._stopped and not self._threads and self._stopping is not None:
            os.close(self._stopping[0])
            self._stopping = None

    def _forget(self, names: set[int]) -> None:
        for name in names:
            self._buffers.pop(name, None)


def random_name() -> int:
    """Return a random number from 1 to 2**63."""
    return secrets.randbits(63) + 1


def _opened(request: pb.AttachRequest) -> SharedBuffer | None:
    """Open the caller's buffer; None when the file is not one of this machine and user."""
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
