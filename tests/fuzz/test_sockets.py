"""The own protocols between processes, with real listeners on loopback: any message in any state.

Whatever a stranger or a member sends, in any order: nobody else waits longer than is stated, no
thread ends by an exception that nothing caught, and what is let through is what an honest side has
sent, in its order. docs/security.md lists the messages and states.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import threading
import time
import tracemalloc
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.dataset import exchange
from jfluid.job import JobError
from jfluid.launch import messages
from jfluid.launch.failure import Failure
from jfluid.launch.nodes import Node
from jfluid.launch.rendezvous import Follower, Head
from jfluid.ps_server import auth, socket_channels
from jfluid.ps_server.served_streams import ServedStreams
from jfluid.ps_server.socket_channels import CallStream
from jfluid.security import sockets
from jfluid.security.secret import key_for
from tests.fuzz.harness import fuzzed
from tests.ports import free_endpoints, free_port

SECRET, LONGEST, LIMIT = "a-secret-of-the-job", 5000, 120
PROVE_S = 0.4  # how long a newcomer has, in these tests
PEAK = 8 << 20  # bytes, with all that threads and sockets of Python take


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Newcomers have little time, and no thread may end by an exception."""
    raised = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "_SECONDS_TO_PROVE", PROVE_S)
        patch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))
        yield raised
    assert raised == []


def until(met, what):
    end = time.monotonic() + LIMIT
    while not met():
        assert time.monotonic() < end, what
        time.sleep(0.001)


# ---- what a peer may send ------------------------------------------------------------------------

# Of a newcomer; only the first opens the door.
GREETINGS = (
    "right",
    "another version",
    "another secret",
    "another purpose",
    "reflected",
    "zeros",
    "cut",
    "noise",
    "nothing",
)
# Of a member, after it has proved itself; all but the first end its connection.
FRAMES = ("right", "again", "altered", "reordered", "reflected", "too long", "cut", "noise")
PIECES = st.sampled_from([1, 7, 39, 1 << 16])  # bytes that are sent at a time
ENDS = st.sampled_from(["close", "reset", "half", "stall"])


class Peer:
    """A connection to a listener that sends what it likes."""

    def __init__(self, port, purpose, piece):
        self.stream = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._purpose, self._piece = purpose, piece
        self.key, self.number = b"", 0

    def send(self, data):
        """Send, as long as it is taken."""
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), self._piece):
                self.stream.sendall(data[at : at + self._piece])

    def greet(self, kind):
        """Whether it is let in."""
        nonce, challenge = secrets.token_bytes(32), b""
        while len(challenge) < 40:
            challenge += self.stream.recv(40 - len(challenge))
        secret = "another-secret-of-another" if kind == "another secret" else SECRET
        purpose = "other" if kind == "another purpose" else self._purpose
        keys = sockets._Keys(key_for(secret, purpose), challenge[8:], nonce)
        mac = {"reflected": keys.of_listener, "zeros": bytes(32)}.get(kind, keys.of_connector)
        greeting = b"jfluid 2" if kind == "another version" else b"jfluid 1"
        said = greeting + nonce + mac
        self.send({"cut": said[:50], "noise": b"GET / HTTP/1.1\r\n" * 9, "nothing": b""}.get(kind, said))
        if kind != "right":
            return False
        answer = b""
        while len(answer) < 32:
            answer += self.stream.recv(32 - len(answer))
        assert hmac.compare_digest(answer, keys.of_listener)
        self.key = keys.of_messages
        return True

    def frame(self, kind, message):
        """A message with its head, right or wrong."""
        number = {"again": self.number - 1, "reordered": self.number + 1}.get(kind, self.number)
        sender = b"L" if kind == "reflected" else b"C"
        size = LONGEST + 1 if kind == "too long" else len(message)
        mac = sockets._mac(self.key, sender, number % (1 << 64), message)
        data = sockets._HEAD.pack(size, mac) + message
        if kind == "altered":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.number += 1
        return {"cut": data[: len(data) // 2], "noise": b"\xff" * 60}.get(kind, data)

    def end(self, how):
        """End, or go silent; returns when the other side has ended too, unless it waits."""
        if how == "reset":
            self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "half":
            with contextlib.suppress(OSError):
                self.stream.shutdown(socket.SHUT_WR)
            self.drained()
        if how != "stall":
            self.stream.close()

    def drained(self):
        """What is still sent until the other side ends."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := self.stream.recv(1 << 16):
                data += piece
        return data


@contextlib.contextmanager
def bounded(peak=PEAK):
    """No more memory than so much at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


# ---- connections of launchers and trainers -------------------------------------------------------


class Members:
    """A listener at work, and what those say whom it lets in."""

    def __init__(self):
        self.listener = sockets.Listener(socket.create_server(("127.0.0.1", 0)), SECRET, "test", LONGEST, LIMIT)
        self.heard, self._over, self._threads = [], threading.Event(), []
        self.port = self.listener.port
        self._start(self._accept)

    def _start(self, work, *arguments):
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self):
        while not self._over.is_set():
            for connection in self.listener.accept(0.02):
                said = []
                self.heard.append(said)
                self._start(self._hear, connection, said)

    def _hear(self, connection, said):
        with connection, contextlib.suppress(OSError, errors.MessageError):
            while True:
                said.append(connection.receive())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a thread hangs"
        self.listener.close()


def honest(members):
    """A member is let in, and heard, whatever the others do."""
    begin = time.monotonic()
    with sockets.connect(("127.0.0.1", members.port), SECRET, "test", LONGEST, LIMIT) as own:
        own.send(b"honest")
        until(lambda: [b"honest"] in members.heard, "an honest member was not heard")
    members.heard.remove([b"honest"])
    return time.monotonic() - begin


@fuzzed(30)
@given(
    st.sampled_from(GREETINGS),
    st.lists(st.tuples(st.sampled_from(FRAMES), st.binary(max_size=300)), max_size=6),
    PIECES,
    ENDS,
)
def test_a_connection_passes_on_what_was_sent_as_it_was(greeting, frames, piece, end):
    with bounded(), Members() as members:
        peer = Peer(members.port, "test", piece)
        let_in, expected = peer.greet(greeting), []
        if let_in:
            for kind, message in frames:
                peer.send(peer.frame(kind, message))
                if kind != "right":
                    break
                expected.append(message)
            if end != "reset":
                until(lambda: [expected] == members.heard, (members.heard, expected))
        assert honest(members) < LIMIT / 2
        peer.end(end)
        if end == "stall" and not let_in:  # it has not much time
            peer.stream.settimeout(LIMIT)
            peer.drained()
        assert len(members.heard) == let_in
        if let_in:  # with a reset less may have arrived
            assert members.heard[0] == expected[: len(members.heard[0])]
        peer.stream.close()


@fuzzed(40)
@given(st.binary(max_size=200), st.sampled_from(["", "right", "another secret"]), PIECES, ENDS)
def test_who_connects_meets_any_listener(said, answer, piece, end):
    """Who connects gets a connection, or a named error, within its time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            stream, _ = listening.accept()
            nonce = secrets.token_bytes(32)
            with stream, contextlib.suppress(OSError):
                stream.sendall(b"jfluid 1" + nonce if answer else said)
                if answer:
                    response = stream.recv(72, socket.MSG_WAITALL)
                    secret = SECRET if answer == "right" else "another-secret-of-another"
                    keys = sockets._Keys(key_for(secret, "test"), nonce, response[8:40])
                    stream.sendall(keys.of_listener)
                    stream.sendall(said)
                if end == "stall":
                    over.wait(LIMIT)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        begin = time.monotonic()
        try:
            address = listening.getsockname()[:2]
            with sockets.connect(address, SECRET, "test", LONGEST, PROVE_S) as own:
                assert answer == "right"
                with pytest.raises((OSError, errors.MessageError)):
                    own.receive()
        except (OSError, errors.MessageError, errors.SecretError):
            assert answer != "right"
        assert time.monotonic() - begin < 5 * PROVE_S + 20
        over.set()
        thread.join(LIMIT)


# ---- streams of parameter servers ----------------------------------------------------------------

HEADS = (
    "right",
    "again",
    "reordered",
    "answer",
    "altered",
    "method 3",
    "too large",
    "cut",
    "noise",
)


@contextlib.contextmanager
def served():
    asked = []

    def answer(method, size, request, alive):
        asked.append((method, bytes(request())))
        return grpc.StatusCode.OK, [b"<", asked[-1][1], b">"]

    streams = ServedStreams(LONGEST, answer)
    streams.listen("127.0.0.1", SECRET, 1)
    try:
        yield streams, asked
    finally:
        streams.stop()
        begin = time.monotonic()
        streams.end(0.5)
        assert time.monotonic() - begin < 30, "the end of a server hangs"
        until(lambda: not streams._threads and streams._stopping is None, "a thread is left")


def head(peer, kind, code, body):
    """The head of a call, right or wrong."""
    number = {"again": peer.number - 1, "reordered": peer.number + 1}.get(kind, peer.number)
    side = SimpleNamespace(_key=peer.key)
    code = 3 if kind == "method 3" else code
    size = LONGEST + 1 if kind == "too large" else len(body)
    data = bytearray(
        socket_channels.Stream._head(side, b"S" if kind == "answer" else b"C", number % (1 << 64), code, size)
    )
    if kind == "altered":
        data[0] ^= 1
    peer.number += 1
    return {"cut": bytes(data[:20]), "noise": b"\xff" * 60}.get(kind, bytes(data))


@fuzzed(50)
@given(
    st.sampled_from(GREETINGS[:2] + ("right",) * 6),
    st.lists(st.tuples(st.sampled_from(HEADS), st.integers(0, 2), st.binary(max_size=300)), max_size=6),
    PIECES,
    ENDS,
)
def test_streams_answer_calls_and_nothing_else(greeting, calls, piece, end):
    with bounded(), served() as (streams, asked):
        peer = Peer(streams.port, socket_channels.PURPOSE, piece)
        expected = []
        if peer.greet(greeting):
            for kind, code, body in calls:
                peer.send(head(peer, kind, code, body) + (body if kind == "right" else b""))
                if kind != "right":
                    break
                expected.append((socket_channels.METHODS[code], body))
            if end != "reset":
                until(lambda: asked == expected, (asked, expected))
        count = len(asked)
        assert asked == expected[:count]
        own = CallStream(
            sockets.connect(("127.0.0.1", streams.port), SECRET, socket_channels.PURPOSE, LONGEST, LIMIT),
            LONGEST,
        )
        own.post("Pull", [b"honest"])
        assert own.answer(LIMIT) == b"<honest>"
        own.socket.close()
        peer.end(end)
    peer.stream.close()


# ---- calls through pipes and shared memory -------------------------------------------------------


# ---- numbers and proofs of calls through gRPC ----------------------------------------------------


@fuzzed(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["right", "another method", "another session", "altered", "cut"]),
            st.one_of(st.integers(0, 6), st.sampled_from([4096, 5000, 2**63, 2**64 - 1])),
        ),
        max_size=12,
    )
)
def test_a_number_is_good_once(calls):
    guard = auth.SecretInterceptor(SECRET, sessions=2)
    nonce, used, highest = secrets.token_bytes(16), set(), 0
    for kind, number in calls:
        own = secrets.token_bytes(16) if kind == "another session" else nonce
        keys = auth._Keys(key_for(SECRET, auth._PURPOSE), nonce, guard._challenge)
        path = "/other" if kind == "another method" else "/Pull"
        proof = bytearray(auth._PROOF.pack(own, number, keys.macs(number, path)[0]))
        if kind == "altered":
            proof[-1] ^= 1
        taken = guard._proven(bytes(proof[: 20 if kind == "cut" else None]), "/Pull")
        good = (
            kind == "right"
            and number not in used
            and number > highest - auth._WINDOW
            and (number > 0 or highest < auth._WINDOW)
        )
        assert (taken is not None) == good, (kind, number, sorted(used))
        if good:
            used.add(number)
            highest = max(highest, number)
    assert len(guard._sessions) <= 2


# ---- launchers -----------------------------------------------------------------------------------

FAILED = Failure("trainer 1", -9, "killed", "last words", "/log")
SAID = st.one_of(
    st.sampled_from(
        [
            messages.Join(job="job", node=2, count=2, endpoints=["h:1"]),
            messages.Join(job="job", node=0, count=2, endpoints=[]),
            messages.Join(job="other", node=1, count=2, endpoints=["h:1"]),
            messages.Join(job="job", node=1, count=3, endpoints=["h:1"]),
            messages.Refused(problem="no"),
            messages.Start(endpoints=[["h:1"]], attempt=0, record="", time=1.5),
            messages.Start(endpoints=[["h:1"], ["h:2"], ["h:3"]], attempt=5, record="", time=1.5),
            messages.Finished(),
            messages.Failed(failure=FAILED, age=0.5),
            messages.End(failure=None, again=True),
        ]
    ).map(messages.encode),
    st.binary(max_size=50),
    st.sampled_from([b"[" * 3000, b'{"kind":"join"}', b'{"kind":null}', b"null", b""]),
)


@fuzzed(12)
@given(st.lists(st.lists(SAID, max_size=4), max_size=4), st.lists(SAID, max_size=4), ENDS)
def test_launchers_meet_and_end_beside_members_that_say_anything(before, during, end):
    port, agreed = free_port(), []
    node = Node(0, 2, None, ("127.0.0.1", port))
    with contextlib.closing(Head(node, "job", 0, SECRET)) as first, bounded():
        rogues = []

        def rogue(said):
            with contextlib.suppress(OSError):  # the job may have ended, with nobody who answers
                own = sockets.connect(("127.0.0.1", port), SECRET, "coordinator", 1 << 20, 3)
                rogues.append(own)
                speak(own, said)

        def speak(own, said):
            with contextlib.suppress(OSError):
                for message in said:
                    own.send(message)
            if end == "close":
                own.close()
            elif end == "half":
                own.stream.shutdown(socket.SHUT_WR)
            elif end == "reset":
                own.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                own.close()

        meeting = threading.Thread(target=lambda: agreed.append(first.rendezvous([1], lambda: False)))
        meeting.start()
        for said in before:
            rogue(said)
        second = Follower(Node(1, 2, None, ("127.0.0.1", port)), "job", SECRET)
        members = second.rendezvous([2], lambda: False)
        meeting.join(LIMIT)
        assert agreed == [members] and len(members.endpoints) == 2
        running = threading.Thread(target=rogue, args=[during])
        running.start()
        second.finished()
        first.finished()

        def over():
            first.look()
            for one in (first, second):
                for connection in list(one.connections()):
                    one.receive(connection)
            return first.verdict is not None and second.verdict is not None

        until(over, "the job did not end")
        running.join(LIMIT)
        assert first.verdict.failure is None and second.verdict.failure is None
        second.close()
        for own in rogues:
            own.close()


@fuzzed(12)
@given(st.lists(SAID, max_size=4), ENDS)
def test_a_launcher_meets_any_head(said, end):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve():
            listener = sockets.Listener(listening, SECRET, "coordinator", 1 << 20, LIMIT)
            met = []
            while not over.is_set():
                for own in listener.accept(0.01):
                    met.append(own)
                    with contextlib.suppress(OSError):
                        for message in said:
                            own.send(message)
                        if end in ("close", "reset"):
                            own.close()
            for own in met:
                own.close()
            listener.close()

        thread = threading.Thread(target=serve)
        thread.start()
        begin, port = time.monotonic(), listening.getsockname()[1]
        own = Follower(Node(1, 2, None, ("127.0.0.1", port)), "job", SECRET)
        try:
            found = own.rendezvous([2], lambda: time.monotonic() > begin + 0.3)
            assert found is None or len(found.endpoints) == 2
        except JobError as error:
            assert "cannot join" in str(error)
        finally:
            own.close()
            over.set()
            thread.join(LIMIT)
        assert time.monotonic() - begin < 30


# ---- exchange between trainers -------------------------------------------------------------------

HELLOS = st.sampled_from(
    [
        exchange._HELLO.pack(99, 1, 2),  # another exchange
        exchange._HELLO.pack(0, 0, 0),
        exchange._HELLO.pack(2**64 - 1, 2**32 - 1, 2**32 - 1),
        exchange._WELCOME,
        exchange._TAKEN,
        exchange._END,
        b"x" * 1000,
    ]
)


@fuzzed(8)
@given(st.lists(st.tuples(st.lists(HELLOS, max_size=3), ENDS), min_size=1, max_size=4))
def test_trainers_exchange_beside_members_that_say_anything(rogues):
    endpoints, found, connected = free_endpoints(2), {}, []

    def trainer(i):
        found[i] = exchange.gathered(np.full(3, i), i, endpoints).tolist()

    threads = [threading.Thread(target=trainer, args=[0])]
    threads[0].start()
    address = exchange._address(endpoints[0])
    for said, end in rogues:
        own = None
        while own is None:  # it may not listen yet
            with contextlib.suppress(ConnectionError):
                own = sockets.connect(address, own_secret(), exchange._PURPOSE, 1000, LIMIT)
        connected.append(own)
        with contextlib.suppress(OSError):
            for message in said:
                own.send(message)
            if end == "half":
                own.stream.shutdown(socket.SHUT_WR)
        if end in ("close", "reset"):
            own.close()
    threads.append(threading.Thread(target=trainer, args=[1]))
    threads[1].start()
    for thread in threads:
        thread.join(LIMIT)
    assert found[0] == found[1] == [[0] * 3, [1] * 3]
    for own in connected:
        own.close()


def own_secret():
    return exchange.job_secret(["127.0.0.1:1"])
