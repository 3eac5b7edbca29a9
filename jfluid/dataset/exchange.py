"""Records between trainers: each one listens at its endpoint, and sends every other its share."""
import contextlib
import functools
import hmac
import io
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from jfluid import errors, processes
from jfluid.dataset.multislot import Records, joined, no_records
from jfluid.dataset.shuffle import taken

TOKEN = "JFLUID_JOB_TOKEN"  # set by the launcher; trainers know each other by it
_SECONDS_TO_MEET = 300.0
_LENGTH = struct.Struct("<Q")


def shuffled(records: Records, fleet: Any, draw: np.random.Generator, message_size: int, pause: float) -> Records:
    """The records that fall to this trainer when all trainers hand theirs out at random.

    Args:
        fleet: has worker_index(), worker_num() and worker_endpoints(), in which this process can listen at its own.
        message_size: records in a message.
        pause: seconds between messages.

    Raises DataError when a trainer does not answer within five minutes.
    """
    own, number = fleet.worker_index(), fleet.worker_num()
    target = draw.integers(0, number, len(records))
    shares = [taken(records, np.flatnonzero(target == i)) for i in range(number)]
    messages = [[share.part(i, min(i + message_size, len(share))) for i in range(0, len(share), message_size)]
                for share in shares]
    packed = [[_pack(m) for m in to] for to in messages]
    received = _exchange(packed, own, fleet.worker_endpoints(), pause)
    parts = [p for i in range(number) for p in (messages[own] if i == own else map(_unpack, received[i]))]
    return joined(parts) if parts else no_records(records.counts.shape[1])


def total(own: int, fleet: Any) -> int:
    """The sum of a number over all trainers."""
    number = fleet.worker_num()
    if number == 1:
        return own
    mine = [str(own).encode()]
    received = _exchange([mine] * number, fleet.worker_index(), fleet.worker_endpoints(), 0.0)
    return own + sum(int(messages[0]) for i, messages in received.items())


def gathered(value: np.ndarray, own: int, endpoints: list[str]) -> np.ndarray:
    """The arrays of all trainers, stacked; they have one shape and dtype. All trainers call it equally often."""
    if len(endpoints) == 1:
        return value[None]
    out = io.BytesIO()
    np.save(out, value, allow_pickle=False)
    received = _exchange([[out.getvalue()]] * len(endpoints), own, endpoints, 0.0)
    parts = [value if i == own else np.load(io.BytesIO(received[i][0]), allow_pickle=False) for i in range(len(endpoints))]
    if any(part.shape != value.shape or part.dtype != value.dtype for part in parts):
        raise errors.DataError("trainers gave arrays of different shapes or dtypes: "
                               + ", ".join(f"{part.dtype}{list(part.shape)}" for part in parts))
    return np.stack(parts)


def _exchange(outgoing: list[list[bytes]], own: int, endpoints: list[str], pause: float) -> dict[int, list[bytes]]:
    """Send messages to every other trainer; returns theirs by trainer. All trainers call it equally often."""
    host, port = _address(endpoints[own])
    # The endpoints of processes that train together serve to coordinate them: there each listens at a port of its own.
    with socket.create_server((host, 0 if processes.joined() else port), backlog=len(endpoints)) as server:
        if processes.joined():
            ports = processes.all_gather(np.array([server.getsockname()[1]]))[:, 0]
            endpoints = [f"{_address(endpoint)[0]}:{port}" for endpoint, port in zip(endpoints, ports)]
        meeting = _Meeting(own, endpoints)
        others = [i for i in range(len(endpoints)) if i != own]
        threads = [threading.Thread(target=meeting.guarded, args=(meeting.send, i, outgoing[i], pause), daemon=True)
                   for i in others]
        server.settimeout(0.2)
        for thread in threads:
            thread.start()
        while len(meeting.received) < len(others) and not meeting.failures and time.monotonic() < meeting.deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                threads.append(threading.Thread(target=meeting.guarded, args=(meeting.receive, connection), daemon=True))
                threads[-1].start()
    if not meeting.failures:
        for thread in threads:
            thread.join()
    if meeting.failures or len(meeting.received) < len(others):
        absent = [endpoints[i] for i in others if i not in meeting.received]
        cause = meeting.failures[0] if meeting.failures else None
        raise errors.DataError(f"records were not exchanged; trainers that sent nothing: {absent}"
                               + (f"; {cause}" if cause else "")) from cause
    return meeting.received


class _Meeting:
    """One exchange. A trainer may be one ahead: the others turn it away until they are there too."""

    _count: ClassVar[Counter[str]] = Counter()  # exchanges so far, by the endpoint of the trainer

    def __init__(self, own: int, endpoints: list[str]):
        self.own, self.endpoints = own, endpoints
        self._count[endpoints[own]] += 1
        self._hello = f"{os.environ.get(TOKEN, 'jfluid')} {self._count[endpoints[own]]}".encode()
        self.received: dict[int, list[bytes]] = {}
        self.failures: list[BaseException] = []
        self.deadline = time.monotonic() + _SECONDS_TO_MEET

    def guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except (OSError, ValueError) as error:
            self.failures.append(error)

    def send(self, to: int, messages: list[bytes], pause: float) -> None:
        with self._admitted(to) as connection:
            for message in messages:
                _send(connection, message)
                time.sleep(pause)
            _send(connection, b"")
            _receive(connection)  # the other side has them all

    def _admitted(self, to: int) -> socket.socket:
        """A connection to a trainer that is at this exchange; it may not listen yet."""
        while True:
            connection = None
            try:
                connection = socket.create_connection(_address(self.endpoints[to]), timeout=_SECONDS_TO_MEET)
                _send(connection, self._hello)
                _send(connection, b"%d" % self.own)
                _receive(connection)
                return connection
            except ConnectionError:
                if connection is not None:
                    connection.close()
                if self.failures or time.monotonic() > self.deadline:
                    raise
                time.sleep(0.1)

    def receive(self, connection: socket.socket) -> None:
        with connection:
            try:
                if not hmac.compare_digest(_receive(connection, 1000), self._hello):
                    return  # of another exchange, or of another job
            except (OSError, ValueError):
                return  # no trainer at all
            sender = int(_receive(connection, 20))
            _send(connection, b"welcome")
            messages = list(iter(functools.partial(_receive, connection), b""))
            self.received[sender] = messages
            _send(connection, b"taken")


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def _receive(connection: socket.socket, longest: int = 1 << 30) -> bytes:
    """The next message. Raises OSError when the connection ends, ValueError for one that is too long."""
    connection.settimeout(_SECONDS_TO_MEET)
    length, = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > longest:
        raise ValueError(f"a message of {length} bytes")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        count = connection.recv_into(view[filled:])
        if not count:
            raise ConnectionError("the connection ended in the middle of a message")
        filled += count
    return bytes(data)


def _pack(records: Records) -> bytes:
    out = io.BytesIO()
    arrays = {"values": records.values, "counts": records.counts, "starts": records.starts}
    np.savez(out, **arrays, **({} if records.tags is None else {"tags": records.tags}))
    return out.getvalue()


def _unpack(message: bytes) -> Records:
    with np.load(io.BytesIO(message), allow_pickle=False) as found:
        return Records(found["values"], found["counts"], found["starts"], found.get("tags"))
