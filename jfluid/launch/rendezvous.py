"""Rendezvous of the launchers of several hosts, which start and end together and report failures.

The launcher of host 0 listens at the coordinator's address; followers keep a connection to it, on
which both sides have proved that they have the job's secret (jfluid.security.sockets). The messages
are in `messages`: a follower `Join`s, all `Start`, followers report `Failed` or `Finished`,
and the `End` is the head's verdict.
"""

import select
import signal
import socket
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from jfluid import errors
from jfluid.job import JobError, address
from jfluid.launch.failure import Failure
from jfluid.launch.logs import Waiting
from jfluid.launch.messages import (
    End,
    Failed,
    Finished,
    Join,
    Message,
    Profile,
    Recorded,
    Refused,
    Start,
    decode,
    encode,
)
from jfluid.launch.nodes import Node
from jfluid.launch.recording import JobRecord
from jfluid.launch.shipping import Receiver, Requests, Sender
from jfluid.record.profiles import ProfileRequest
from jfluid.security import sockets

SECONDS_TO_MEET = 300.0
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_TRIES = 0.2
_SECONDS_TO_SEND = 5.0
_SECONDS_TO_SHIP = 1.0
# A failure on one host makes others fail: the first one may be reported last.
SECONDS_TO_COMPARE = 1.0
_LONGEST_MESSAGE = 1 << 20
_PURPOSE = "coordinator"
_BACKLOG = 128
# A host that vanishes is missed after 20 s.
# Keepalive tests an idle connection only: sent bytes that nobody acknowledges have a limit (milliseconds) of their own.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}


@dataclass(frozen=True)
class Verdict:
    """The end of one run on all hosts: the first failure of all, or None; and whether all start again."""

    failure: Failure | None
    again: bool = False


@dataclass(frozen=True)
class RunMembers:
    """The members of a run: the endpoints of each host's processes, and the number of the run, from 0.

    `record` is the token of host 0's record, and `ahead` the seconds that this host's clock is ahead of host 0's.
    """

    endpoints: list[list[str]]
    attempt: int
    record: str = ""
    ahead: float = field(default=0.0, compare=False)


def interruption(node: int, number: int) -> Failure:
    """Return the failure that a signal to the launcher of a host counts as."""
    return Failure(f"host {node}", -number, f"{signal.Signals(number).name} to its launcher", "", "")


class _Connection:
    """A connection between two launchers."""

    def __init__(self, connection: sockets.Connection):
        self._connection, self.stream = connection, connection.stream
        self.node = -1
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                self.stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message. A launcher that has died is noticed when reading."""
        with suppress(OSError):
            self._connection.send(encode(message))

    def messages(self, wait: float = 0.0) -> list[Message] | None:
        """Return the messages that have arrived; None when the other side has disconnected or violates the protocol."""
        try:
            ready = select.poll()  # select takes no descriptor above 1023
            ready.register(self._connection, select.POLLIN)
            if not ready.poll(wait * 1e3):
                return []
            return [decode(data) for data in self._connection.arrived()]
        except (OSError, ValueError):  # MessageError is one; so is what a closed socket raises
            return None

    def takes(self, wait: float) -> bool:
        """Return True if data can be sent, at once or within `wait` seconds."""
        ready = select.poll()
        ready.register(self._connection, select.POLLOUT)
        return bool(ready.poll(wait * 1e3))

    def close(self) -> None:
        self._connection.close()


class Head:
    """The launcher of host 0: decides how the job ends.

    Only launchers that have the job's secret can connect.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        max_restarts: int,
        secret: str,
        clock: Callable[[], float] = time.monotonic,
    ):
        assert node.coordinator is not None  # find_node saw to it
        host, port = node.coordinator
        self._node, self._name, self._max_restarts, self._clock = node, name, max_restarts, clock
        self._attempt = -1
        self._connections: list[_Connection] = []
        self._early: list[_Connection] = []  # those that connected during a run, for the next one
        self.receiver: Receiver | None = None
        self.requests: Requests | None = None
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            own = host.strip("[]")
            here = own if own in ("localhost", "::1") or own.startswith("127.") else ""
            listening = socket.create_server((here, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise JobError(
                f"jfluid-launch: cannot listen at the coordinator's address {host}:{port}: {error.strerror}; is "
                "a different job running there? Choose a different port with --coordinator"
            ) from None
        self._listener = sockets.Listener(listening, secret, _PURPOSE, _LONGEST_MESSAGE, _SECONDS_TO_SEND)

    def _accept(self, wait: float) -> list[_Connection]:
        found = self._early + [_Connection(connection) for connection in self._listener.accept(wait)]
        self._early = []
        return found

    def share(self, record: JobRecord) -> None:
        """Receive the records of hosts that do not share the folder, and forward requests for profiles."""
        self.receiver = Receiver(record)
        self.requests = Requests(record.folder)

    def begin(self, members: RunMembers, here: Sequence[tuple[str, int]]) -> None:
        """Begin a run with these processes of this host."""
        if self.receiver is not None:
            self.receiver.begin(here)

    # ---- before a run ----------------------------------------------------------------------------

    def rendezvous(self, ports: Sequence[int], interrupted: Callable[[], bool]) -> RunMembers | None:
        """Wait for all other launchers; None when `interrupted` becomes true. Raises JobError."""
        assert self._node.coordinator is not None
        self._attempt += 1
        self.verdict: Verdict | None = None
        self._failures: list[tuple[float, Failure]] = []
        self._decide_at = float("inf")
        self._finished: set[int] = set()
        joined: dict[int, tuple[_Connection, list[str]]] = {}
        waiting: list[_Connection] = []
        deadline, notice = self._clock() + SECONDS_TO_MEET, Waiting()
        while len(joined) < self._node.count - 1:
            if interrupted():
                return None
            missing = ", ".join(str(node) for node in range(1, self._node.count) if node not in joined)
            if self._clock() > deadline:
                raise JobError(
                    f"jfluid-launch: host {missing} of {self._node.count} did not come to the "
                    f"coordinator within {SECONDS_TO_MEET:g} s; was jfluid-launch started there?"
                )
            notice.look(f"host {missing} of {self._node.count} at {':'.join(map(str, self._node.coordinator))}")
            waiting += self._accept(_SECONDS_BETWEEN_LOOKS)
            waiting = [connection for connection in waiting if not self._has_joined(connection, joined)]
            for node, (connection, _) in list(joined.items()):
                if connection.messages() is None:  # it has disconnected
                    del joined[node]
        for connection in waiting:
            connection.close()
        host = self._node.host or self._node.coordinator[0]
        endpoints = [
            [f"{host}:{port}" for port in ports],
            *(joined[node][1] for node in sorted(joined)),
        ]
        self._connections = [connection for connection, _ in joined.values()]
        for connection in self._connections:
            token = self.receiver.token if self.receiver else ""
            connection.send(Start(endpoints=endpoints, attempt=self._attempt, record=token, time=time.time()))
        return RunMembers(endpoints, self._attempt)

    def _has_joined(self, connection: _Connection, joined: dict[int, tuple[_Connection, list[str]]]) -> bool:
        """Return True if a newcomer was accepted or rejected, False while its message is missing."""
        messages = connection.messages()
        if messages == []:
            return False
        join = messages[0] if messages else None
        if isinstance(join, Join):
            problem = self._problem_of(join, joined)
            if problem is None:
                connection.node = join.node
                joined[join.node] = connection, join.endpoints
                return True
            connection.send(Refused(problem=problem))
        connection.close()
        return True

    def _problem_of(self, join: Join, joined: Container[int]) -> str | None:
        if join.job != self._name or join.count != self._node.count:
            return (
                f"the job at the coordinator is {self._name!r} on {self._node.count} hosts, not {join.job!r} on "
                f"{join.count}"
            )
        if not 0 < join.node < self._node.count:
            return f"there is no host {join.node}"
        return f"host {join.node} is there already" if join.node in joined else None

    # ---- during a run: see supervise.PeerLaunchers ----------------------------------------------

    def connections(self) -> Sequence[_Connection]:
        return self._connections

    def receive(self, connection: _Connection) -> None:
        messages = connection.messages()
        if messages is None:
            self._connections.remove(connection)
            connection.close()
            if connection.node not in self._finished:
                self._note(Failure(f"host {connection.node}", 1, "its launcher is gone", "", ""), age=0.0)
            return
        for message in messages:
            if isinstance(message, Failed):
                self._note(message.failure, message.age)
            elif isinstance(message, Recorded) and self.receiver is not None:
                self.receiver.take(connection.node, message)
            elif isinstance(message, Finished):
                self._finished.add(connection.node)
                self.look()

    def failed(self, failure: Failure, age: float) -> None:
        self._note(failure, age)

    def interrupted(self, number: int) -> None:
        self._max_restarts = -1  # nobody would answer those that reconnect
        self._note(interruption(0, number), age=0.0)

    def finished(self) -> None:
        self._finished.add(0)
        self.look()

    def _note(self, failure: Failure, age: float) -> None:
        now = self._clock()
        self._failures.append((now - age, failure))
        self._decide_at = min(self._decide_at, now + SECONDS_TO_COMPARE)

    def look(self) -> None:
        """Decide, if it is time to; pass requests for profiles on; and reject strangers."""
        if self.requests is not None and (request := self.requests.new()) is not None:
            for connection in self._connections:
                connection.send(Profile(**request._asdict()))
        self._early = self._accept(0.0)
        while len(self._early) > self._node.count:  # others have connected anew
            self._early.pop(0).close()
        if self.verdict is not None:
            return
        if self._clock() >= self._decide_at:
            _, first = min(self._failures, key=lambda item: item[0])
            self._decide(Verdict(first, again=self._attempt < self._max_restarts))
        elif len(self._finished) == self._node.count:
            self._decide(Verdict(None))

    def _decide(self, verdict: Verdict) -> None:
        self.verdict = verdict
        for connection in self._connections:
            connection.send(End(failure=verdict.failure, again=verdict.again))

    def part(self) -> None:
        """Close the connections of a run."""
        for connection in self._connections:
            connection.close()
        self._connections = []

    def close(self) -> None:
        self.part()
        for connection in self._early:
            connection.close()
        self._listener.close()


class Follower:
    """The launcher of a host other than host 0."""

    def __init__(self, node: Node, name: str, secret: str, clock: Callable[[], float] = time.monotonic):
        assert node.coordinator is not None  # find_node saw to it
        self._clock = clock
        self._node, self._name, self._coordinator, self._secret = (
            node,
            name,
            node.coordinator,
            secret,
        )
        self._connection: _Connection | None = None
        self.sender: Sender | None = None
        self.verdict: Verdict | None = None

    def share(self, record: JobRecord) -> None:
        """Send the records of this host's processes, unless host 0 sees the folder."""
        self.sender = Sender(record, self._node.rank)

    def begin(self, members: RunMembers, here: Sequence[tuple[str, int]]) -> None:
        """Begin a run with these processes of this host."""
        if self.sender is not None:
            self.sender.begin(members.record, here)

    def _ship(self, pieces: Iterable[Recorded], wait: float) -> None:
        """Send pieces of records while host 0 takes each piece within `wait` seconds."""
        for piece in pieces:
            if self._connection is None or not self._connection.takes(wait):
                return
            self._connection.send(piece)

    def rendezvous(self, ports: Sequence[int], interrupted: Callable[[], bool]) -> RunMembers | None:
        """Join the head; None when `interrupted` becomes true. Raises JobError."""
        self.verdict = None
        deadline, notice = self._clock() + SECONDS_TO_MEET, Waiting()
        host, port = self._coordinator
        while not interrupted():
            if self._clock() > deadline:
                raise JobError(
                    f"jfluid-launch: the launcher of host 0 did not answer at {host}:{port} within "
                    f"{SECONDS_TO_MEET:g} s; was jfluid-launch started there?"
                )
            connection = self._connect()
            if connection is None:
                notice.look(f"the launcher of host 0 at {host}:{port}")
                time.sleep(_SECONDS_BETWEEN_TRIES)
                continue
            with ExitStack() as unless_met:
                unless_met.callback(connection.close)
                own = self._node.host or address(connection.stream.getsockname()[0])
                connection.send(
                    Join(
                        job=self._name,
                        node=self._node.rank,
                        count=self._node.count,
                        endpoints=[f"{own}:{own_port}" for own_port in ports],
                    )
                )
                members = self._wait_for_start(connection, interrupted, notice)
                if members is not None:
                    unless_met.pop_all()
                    self._connection = connection
                    return members
        return None

    def _connect(self) -> _Connection | None:
        host, port = self._coordinator
        try:
            return _Connection(sockets.connect((host.strip("[]"), port), self._secret, _PURPOSE, _LONGEST_MESSAGE))
        except (
            OSError,
            errors.MessageError,
        ):  # it does not listen yet, or its name does not resolve yet; or another program listens
            return None
        except errors.SecretError as error:
            raise JobError(f"jfluid-launch: host {self._node.rank} cannot join: {error}") from None

    def _wait_for_start(
        self, connection: _Connection, interrupted: Callable[[], bool], notice: Waiting
    ) -> RunMembers | None:
        """Return the head's `Start` when all hosts have joined; None when the head has disconnected."""
        while not interrupted():
            messages = connection.messages(_SECONDS_BETWEEN_LOOKS)
            if messages is None:
                return None
            if not messages:
                notice.look(f"the remaining hosts of {self._node.count}")
            for position, message in enumerate(messages):
                if isinstance(message, Start):
                    if len(message.endpoints) != self._node.count:
                        return None
                    # the run may be over already, where this process had no processor for a while
                    self._take(messages[position + 1 :])
                    ahead = time.time() - message.time
                    return RunMembers(message.endpoints, message.attempt, message.record, ahead)
                if isinstance(message, Refused):
                    raise JobError(f"jfluid-launch: host {self._node.rank} cannot join: {message.problem}")
        return None

    def connections(self) -> Sequence[_Connection]:
        return [] if self._connection is None else [self._connection]

    def receive(self, connection: _Connection) -> None:
        messages = connection.messages()
        if messages is None:
            self.part()
            if self.verdict is None:
                self.verdict = Verdict(Failure("host 0", 1, "its launcher is gone", "", ""))
            return
        self._take(messages)

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Profile) and self.sender is not None and self.sender.on:
                self.sender.ask(ProfileRequest(**message.model_dump(exclude={"kind"})))
            if isinstance(message, End) and self.verdict is None:
                self.verdict = Verdict(message.failure, message.again)

    def failed(self, failure: Failure, age: float) -> None:
        if self._connection is not None:
            self._send_rest()
            self._connection.send(Failed(failure=failure, age=max(age, 0.0)))

    def interrupted(self, number: int) -> None:
        self.failed(interruption(self._node.rank, number), age=0.0)

    def finished(self) -> None:
        if self._connection is not None:
            self._send_rest()
            self._connection.send(Finished())

    def _send_rest(self) -> None:
        if self.sender is not None:
            self._ship(self.sender.rest(), _SECONDS_TO_SHIP)

    def look(self) -> None:
        """Send new lines of the record."""
        if self.sender is not None and self.verdict is None:
            self._ship(self.sender.due(), 0.0)

    def part(self) -> None:
        """Close the connection of a run."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        self.part()
