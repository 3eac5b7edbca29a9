"""Exchange of records between trainers: each one listens at its endpoint, and sends every other its share.

Only trainers of the job can connect (jfluid.security.sockets), and their data is validated before
it is used.
"""

import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from jfluid import errors, flags, processes
from jfluid.dataset import record_encoding
from jfluid.dataset.multislot import DatasetSlot, Records, joined, no_records
from jfluid.dataset.shuffle import taken
from jfluid.security import sockets
from jfluid.security.secret import job_secret

_SECONDS_TO_MEET = 300.0
_SECONDS_BETWEEN_TRIES = 0.1
_SECONDS_BETWEEN_LOOKS = 0.05
_PURPOSE = "exchange between trainers"
_LONGEST_MESSAGE = 1 << 30
_OVERHEAD = 64  # bytes that a message costs beside its own
_BACKLOG = 128
# A trainer's first message: the number of the exchange, its own number, the number of trainers.
# Then the answer to it.
_HELLO = struct.Struct("<QII")
_WELCOME, _NOT_YET, _REFUSED, _TAKEN, _END = b"welcome", b"not yet", b"refused: ", b"taken", b""
Share = Iterable[bytes]


def shuffled(
    records: Records,
    slots: Sequence[DatasetSlot],
    tagged: bool,
    fleet: Any,
    draw: np.random.Generator,
    message_size: int,
    pause: float,
    take: Callable[[int], None] = lambda size: None,
) -> Records:
    """Distribute the records of all trainers at random; returns this trainer's new ones.

    Args:
        slots, tagged: what records have, and whether ids.
        fleet: has worker_index(), worker_num() and worker_endpoints(), in which this process can
            listen at its own.
        message_size: records in a message.
        pause: seconds between messages.
        take: called with the number of bytes before they are allocated; raises DataError if they
            are too many.

        Raises DataError when a trainer does not answer within five minutes, sends more than
        FLAGS_global_shuffle_peer_bytes, or data that are not records of these slots; SecretError
        when trainers on several machines have no secret.
    """
    own, number = fleet.worker_index(), fleet.worker_num()
    take(8 * len(records) + records.nbytes)
    target = draw.integers(0, number, len(records))
    shares = [taken(records, np.flatnonzero(target == i)) for i in range(number)]
    messages = [
        [share.part(i, min(i + message_size, len(share))) for i in range(0, len(share), message_size)]
        for share in shares
    ]

    def decoded(data: bytes) -> Records:
        take(3 * len(data))  # with the message, and the final concatenation
        return record_encoding.decode(data, slots, tagged)

    received = _exchange(
        [map(record_encoding.encode, to) for to in messages],
        own,
        _endpoints(fleet),
        _most_bytes(),
        decoded,
        pause,
    )
    parts = [p for i in range(number) for p in (messages[own] if i == own else received[i])]
    return joined(parts) if parts else no_records(records.counts.shape[1])


def total(own: int, fleet: Any) -> int:
    """Return the sum of a number, 0 or more, over all trainers."""
    number = fleet.worker_num()
    if number == 1:
        return own
    received = _exchange(
        [[b"%d" % own]] * number,
        fleet.worker_index(),
        _endpoints(fleet),
        1000,
        decode_number,
    )
    return own + sum(int(n) for n in (_only(numbers, i) for i, numbers in received.items()))


def _endpoints(fleet: Any) -> list[str]:
    """Return the endpoints of the trainers.

    Role makers of jobs with servers do not know the endpoints, as in Fluid, but the launcher does.
    """
    from jfluid.environment.process import RoleVariables

    found = fleet.worker_endpoints() or list(RoleVariables.from_env().trainer_endpoints)
    if len(found) != fleet.worker_num():
        raise errors.DataError(
            f"{fleet.worker_num()} trainers exchange data, and need PADDLE_TRAINER_ENDPOINTS to say the endpoint "
            f"of each (jfluid-launch sets it), found {found}"
        )
    return found


def gathered(value: np.ndarray, own: int, endpoints: list[str]) -> np.ndarray:
    """Return the arrays of all trainers, stacked; the arrays have one shape and dtype.

    All trainers call it equally often.
    """
    if len(endpoints) == 1:
        return value[None]
    if value.dtype.hasobject:
        raise errors.DataError(f"expected an array of numbers, found dtype {value.dtype}")
    message = _described(value.dtype, value.shape) + b"\n" + value.tobytes()
    received = _exchange(
        [[message]] * len(endpoints),
        own,
        endpoints,
        2 * len(message) + 1000,
        lambda data: decode_array(data, value.dtype, value.shape),
    )
    return np.stack([value if i == own else _only(received[i], i) for i in range(len(endpoints))])


def decode_number(data: bytes) -> int:
    """Return a number, 0 or more. Raises MessageError."""
    if not re.fullmatch(rb"[0-9]{1,19}", data):
        raise errors.MessageError(f"expected a number, found {data[:20]!r}")
    return int(data)


def decode_array(data: bytes, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of this dtype and shape. Raises MessageError for a different array."""
    head, _, rest = data.partition(b"\n")
    expected = _described(dtype, shape)
    if head != expected or len(rest) != dtype.itemsize * int(np.prod(shape)):
        raise errors.MessageError(
            f"trainers gave arrays of different shapes or dtypes: {expected.decode()} and {head[:80]!r}"
        )
    return np.frombuffer(rest, dtype).reshape(shape)


def _described(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{list(shape)}".encode()


def decode_hello(data: bytes) -> tuple[int, int, int]:
    """Return (the exchange, counted from 1, the trainer, the number of trainers) of a trainer's first message.

    Raises MessageError.
    """
    if len(data) != _HELLO.size:
        raise errors.MessageError(f"expected a trainer's first message, {_HELLO.size} bytes, found {len(data)}")
    exchange, sender, number = _HELLO.unpack(data)
    return exchange, sender, number


def _only(values: list[Any], sender: int) -> Any:
    if len(values) != 1:
        raise errors.DataError(
            f"trainer {sender} sent {len(values)} messages, expected one: do all trainers do the same?"
        )
    return values[0]


def _most_bytes() -> int:
    """Return the limit of bytes from one trainer: the setting, or the memory of this machine."""
    return flags.get("FLAGS_global_shuffle_peer_bytes") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _exchange(
    outgoing: Sequence[Share],
    own: int,
    endpoints: list[str],
    most_bytes: int,
    decode: Callable[[bytes], Any],
    pause: float = 0.0,
) -> dict[int, list[Any]]:
    """Send messages to every other trainer; returns theirs by trainer, decoded.

    All trainers call it equally often.
    """
    host, port = _address(endpoints[own])
    secret = job_secret(endpoints)
    # The endpoints of processes that train together serve to coordinate them: there each listens at
    # a port of its own.
    listening = socket.create_server(
        (host, 0 if processes.joined() else port),
        backlog=_BACKLOG,
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
    )
    with sockets.Listener(listening, secret, _PURPOSE, _LONGEST_MESSAGE, _SECONDS_TO_MEET) as listener:
        if processes.joined():
            ports = processes.all_gather(np.array([listener.port]))[:, 0]
            endpoints = [f"{_address(endpoint)[0]}:{port}" for endpoint, port in zip(endpoints, ports)]
        exchange = _Exchange(own, endpoints, secret, most_bytes, decode)
        try:
            for i in exchange.others:
                exchange.start(exchange.send, i, outgoing[i], pause)
            while not exchange.over():
                for connection in listener.accept(_SECONDS_BETWEEN_LOOKS):
                    exchange.start(exchange.receive, connection)
        finally:
            exchange.close()
    return exchange.result()


class _Exchange:
    """Exchange of records among trainers.

    A trainer may be one exchange ahead: the others reject it until they have begun that one, too.
    """

    _count: ClassVar[Counter[str]] = Counter()  # exchanges so far, by the endpoint of the trainer

    def __init__(
        self,
        own: int,
        endpoints: list[str],
        secret: str,
        most_bytes: int,
        decode: Callable[[bytes], Any],
    ):
        self.own, self.endpoints, self.others = (
            own,
            endpoints,
            [i for i in range(len(endpoints)) if i != own],
        )
        self._secret, self._most_bytes, self._decode = secret, most_bytes, decode
        self._count[endpoints[own]] += 1
        self._number = self._count[endpoints[own]]
        self._deadline = time.monotonic() + _SECONDS_TO_MEET
        self._lock = threading.Lock()
        self._connections: list[sockets.Connection] = []
        self._failures: list[Exception] = []
        self._came, self._admitted, self._sent = set[int](), set[int](), set[int]()
        self._received: dict[int, list[Any]] = {}

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run a function in a thread; its exception ends the exchange."""

        def guarded() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._failures.append(error)

        threading.Thread(target=guarded, name="jfluid-exchange", daemon=True).start()

    def over(self) -> bool:
        """Return whether all shares were sent and received, or the exchange has failed."""
        done = len(self._received) == len(self._sent) == len(self.others)
        missing = len(self._came) < len(self.others) or len(self._admitted) < len(self.others)
        # The threads that wait for missing trainers report the reason, a moment after the deadline.
        return (
            done or bool(self._failures) or (missing and time.monotonic() > self._deadline + 5 * _SECONDS_BETWEEN_TRIES)
        )

    def result(self) -> dict[int, list[Any]]:
        """Return the received shares. Raises DataError if some are missing."""
        cause = self._failures[0] if self._failures else None
        if isinstance(cause, errors.SecretError):
            raise cause
        absent, deaf = (
            [self.endpoints[i] for i in self.others if i not in those] for those in (self._received, self._sent)
        )
        if cause is not None or absent or deaf:
            raise errors.DataError(
                f"records were not exchanged; trainers that did not send all: {absent}; that did not take "
                f"all: {deaf}" + (f"; {cause}" if cause else "")
            ) from cause
        return self._received

    def close(self) -> None:
        """End all pending transfers."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # a thread that reads from it wakes up
                    connection.stream.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._connections = []

    def _noted(self, connection: sockets.Connection) -> sockets.Connection:
        with self._lock:
            self._connections.append(connection)
        return connection

    def send(self, to: int, messages: Share, pause: float) -> None:
        """Send a trainer its share."""
        connection = self._admission(to)
        self._admitted.add(to)
        for message in messages:
            if len(message) > _LONGEST_MESSAGE:
                raise errors.DataError(
                    f"a message of {len(message)} bytes; the limit is {_LONGEST_MESSAGE}: put fewer "
                    "records into one (set_fleet_send_batch_size)"
                )
            connection.send(message)
            time.sleep(pause)
        connection.send(_END)
        connection.receive()  # the other side has them all
        self._sent.add(to)

    def _admission(self, to: int) -> sockets.Connection:
        """Connect to a trainer that takes part in this exchange; it may not listen yet."""
        while True:
            connection = None
            try:
                connection = self._noted(sockets.connect(_address(self.endpoints[to]), self._secret, _PURPOSE, 1000))
                connection.stream.settimeout(_SECONDS_TO_MEET)
                connection.send(_HELLO.pack(self._number, self.own, len(self.endpoints)))
                answer = connection.receive()
                if answer == _WELCOME:
                    return connection
                if answer != _NOT_YET:
                    raise errors.DataError(f"trainer {to}, {self.endpoints[to]}: {answer.decode(errors='replace')}")
                problem: Exception = errors.DataError("it is at another exchange than this trainer")
            # nobody listens yet, or another program does
            except (OSError, errors.MessageError) as error:
                problem = error
            if connection is not None:
                connection.close()
            if self._failures or time.monotonic() > self._deadline:
                raise errors.DataError(
                    f"trainer {to}, {self.endpoints[to]}, did not come within {_SECONDS_TO_MEET:g} s: {problem}"
                ) from problem
            time.sleep(_SECONDS_BETWEEN_TRIES)

    def receive(self, connection: sockets.Connection) -> None:
        """Take the share that a trainer sends."""
        self._noted(connection)
        try:
            exchange, sender, number = decode_hello(connection.receive())
        # a process of the job that is no trainer, or that disconnects
        except (OSError, errors.MessageError):
            return connection.close()
        answer = self._answer(exchange, sender, number)
        if answer != _WELCOME:
            with suppress(OSError):  # it has gone
                connection.send(answer)
            return connection.close()
        connection.send(answer)
        found, size = [], 0
        try:
            while message := connection.receive():
                size += len(message) + _OVERHEAD
                if size > self._most_bytes:
                    raise errors.DataError(
                        f"it sends more than {self._most_bytes} bytes; FLAGS_global_shuffle_peer_bytes "
                        "says how many it may"
                    )
                found.append(self._decode(message))
        except (OSError, errors.MessageError, errors.DataError) as error:
            raise errors.DataError(f"trainer {sender}, {self.endpoints[sender]}: {error}") from error
        connection.send(_TAKEN)
        self._received[sender] = found

    def _answer(self, exchange: int, sender: int, number: int) -> bytes:
        with self._lock:
            if exchange != self._number:
                return _NOT_YET
            if number != len(self.endpoints) or sender not in self.others or sender in self._came:
                waiting_for = [i for i in self.others if i not in self._came]
                return (
                    _REFUSED
                    + (
                        f"expected one of the trainers {waiting_for} of {len(self.endpoints)}, found trainer "
                        f"{sender} of {number}"
                    ).encode()
                )
            self._came.add(sender)
            return _WELCOME


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
