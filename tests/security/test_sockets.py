"""Connections on which both sides prove that they have the secret."""

import contextlib
import errno
import hmac
import os
import resource
import socket
import struct
import threading
import time

import pytest

from jfluid import errors
from jfluid.security import sockets
from jfluid.security.secret import key_for
from tests.security.wiretap import Wiretap

SECRET, PURPOSE, LONGEST, LIMIT = "a-secret-of-the-job", "test", 1 << 16, 120


@pytest.fixture
def listener():
    with sockets.Listener(socket.create_server(("127.0.0.1", 0)), SECRET, PURPOSE, LONGEST, LIMIT) as listener:
        yield listener


def connect(port, secret=SECRET, purpose=PURPOSE):
    return sockets.connect(("127.0.0.1", port), secret, purpose, LONGEST, LIMIT)


def accepted(listener, count=1):
    """The next connections of members."""
    found, deadline = [], time.monotonic() + LIMIT
    while len(found) < count:
        assert time.monotonic() < deadline, "nobody was let in"
        found += listener.accept(0.05)
    return found


def meet(listener, port=None):
    """Both ends of a connection."""
    ours = []
    thread = threading.Thread(target=lambda: ours.append(connect(port or listener.port)))
    thread.start()
    (theirs,) = accepted(listener)
    thread.join(LIMIT)
    return ours[0], theirs


@contextlib.contextmanager
def serving(listener):
    """The listener at work in a thread; whom it let in."""
    members, over = [], threading.Event()

    def work():
        while not over.is_set():
            members.extend(listener.accept(0.02))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield members
    finally:
        over.set()
        thread.join(LIMIT)
        for member in members:
            member.close()


def wait_until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def stranger(port):
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)


def everything(stream):
    """What the other side says until it ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := stream.recv(1 << 16):
            data += piece
    return data


# ---- members -------------------------------------------------------------------------------------


def test_messages_go_both_ways(listener):
    ours, theirs = meet(listener)
    with ours, theirs:
        for message in (b"", b"hello", bytes(LONGEST)):
            ours.send(message)
            assert theirs.receive() == message
            theirs.send(message)
            assert ours.receive() == message
        for message in (b"1", b"2", b"3"):
            ours.send(message)
        got = []
        while len(got) < 3:
            got += theirs.arrived()
        assert got == [b"1", b"2", b"3"]
        ours.close()
        with pytest.raises(ConnectionError, match="the connection ended"):
            theirs.receive()


def test_neither_the_secret_nor_its_keys_travel(listener):
    with Wiretap(listener.port) as wiretap:
        ours, theirs = meet(listener, wiretap.port)
        with ours, theirs:
            ours.send(b"a message in the clear")
            theirs.receive()
        assert b"a message in the clear" in wiretap, "the wiretap hears"
        assert SECRET.encode() not in wiretap and key_for(SECRET, PURPOSE) not in wiretap and ours.key not in wiretap


# ---- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("secret", "purpose"), [("another-secret-than-that", PURPOSE), (SECRET, "another purpose")])
def test_another_secret_or_another_purpose(listener, secret, purpose):
    with serving(listener) as members:
        expected = f"127.0.0.1:{listener.port} does not have .* the same JFLUID_JOB_TOKEN"
        with pytest.raises(errors.SecretError, match=expected):
            connect(listener.port, secret, purpose)
        assert not members


def test_a_recorded_proof_opens_nothing(listener):
    with Wiretap(listener.port) as wiretap:
        ours, theirs = meet(listener, wiretap.port)
        with ours, theirs:
            recorded = next(piece for piece in wiretap.heard if len(piece) == sockets._RESPONSE.size)
    with serving(listener) as members, stranger(listener.port) as replay:
        replay.sendall(recorded)
        assert everything(replay)[sockets._CHALLENGE.size :] == bytes(32)
        assert not members


def test_who_only_reflects_the_challenge_is_no_member(listener):
    """Neither with the listener's own nonce, nor with what it is told in another connection."""
    with (
        serving(listener) as members,
        stranger(listener.port) as one,
        stranger(listener.port) as other,
    ):
        nonces = [sockets.decode_challenge(s.recv(sockets._CHALLENGE.size, socket.MSG_WAITALL)) for s in (one, other)]
        for stream, nonce in ((one, nonces[0]), (other, nonces[0])):
            stream.sendall(sockets._GREETING + nonce + nonce)
            assert everything(stream) == bytes(32)
        assert not members


@pytest.mark.parametrize(
    "data",
    [b"[" * 200_000, b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(1000), b"\xff" * 72, b"jfluid 1" * 9],
    ids=["brackets", "http", "zeros", "ones", "greetings"],
)
def test_noise_costs_its_connection_only(listener, data):
    with serving(listener) as members, stranger(listener.port) as noise:
        with contextlib.suppress(ConnectionError):
            noise.sendall(data)
        assert len(everything(noise)) <= sockets._CHALLENGE.size + 32
        connect(listener.port).close()
        wait_until(lambda: len(members) == 1)


def test_idle_strangers_hold_nobody_up_and_go(listener, monkeypatch):
    monkeypatch.setattr(sockets, "_SECONDS_TO_PROVE", 1000.0)
    with contextlib.ExitStack() as stack, serving(listener) as members:
        idle = [stack.enter_context(stranger(listener.port)) for _ in range(20)]
        for stream in idle[::2]:
            stream.sendall(b"jfluid 1 slowly")
        connect(listener.port).close()
        wait_until(lambda: len(members) == 1)
        assert len(listener._newcomers) == 20, "nobody waited for them"
        for newcomer in list(listener._newcomers):
            newcomer.deadline = 0.0
        for stream in idle:
            assert len(everything(stream)) == sockets._CHALLENGE.size


def test_a_crowd_of_strangers_shuts_no_member_out(listener, monkeypatch):
    monkeypatch.setattr(sockets, "_MOST_NEWCOMERS", 16)
    with contextlib.ExitStack() as stack, serving(listener) as members:
        for _ in range(5):
            before = len(members)
            for _ in range(30):
                stack.enter_context(stranger(listener.port))
            connect(listener.port).close()
            wait_until(lambda before=before: len(members) == before + 1)
            assert len(listener._newcomers) <= 16


def test_a_process_without_descriptors_goes_on(listener, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    dropped, drop = [], listener._drop
    monkeypatch.setattr(
        listener,
        "_drop",
        lambda newcomer, **more: dropped.append(newcomer) or drop(newcomer, **more),
    )
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(stranger(listener.port))
        highest = stack.enter_context(stranger(listener.port)).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
        try:
            with serving(listener):
                wait_until(lambda: len(dropped) > 3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with serving(listener) as members:
            connect(listener.port).close()
            wait_until(lambda: len(members) == 1)


class Poor(socket.socket):
    """A listening socket whose process has no descriptor left, as often as it is asked to say so.

    Attributes:
        errno: of what accept raises; 0: it accepts.
        asked: how often it was called.
    """

    errno, asked = 0, 0

    def accept(self):
        self.asked += 1
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))
        return super().accept()


@pytest.mark.parametrize("number", sorted(sockets.EXHAUSTED))
def test_a_listener_whose_files_have_run_out_rests(number, caplog):
    poor = Poor(socket.AF_INET, socket.SOCK_STREAM)
    poor.bind(("127.0.0.1", 0))
    poor.listen()
    with sockets.Listener(poor, SECRET, PURPOSE, LONGEST, LIMIT) as listener:
        with stranger(listener.port), serving(listener) as members:
            poor.errno, poor.asked = number, 0
            joining = threading.Thread(target=lambda: connect(listener.port).close())
            joining.start()
            wait_until(lambda: poor.asked >= 3)
            begin, asked = time.monotonic(), poor.asked
            wait_until(lambda: poor.asked >= asked + 2)
            assert time.monotonic() - begin >= sockets.PAUSE_S / 2
            poor.errno = 0
            wait_until(lambda: len(members) == 1)
            joining.join(LIMIT)
    assert [record.message.count("cannot accept connections") for record in caplog.records] == [1]


def test_who_has_gone_before_it_is_accepted_stops_nobody():
    poor = Poor(socket.AF_INET, socket.SOCK_STREAM)
    poor.bind(("127.0.0.1", 0))
    poor.listen()
    with sockets.Listener(poor, SECRET, PURPOSE, LONGEST, LIMIT) as listener:
        poor.errno = errno.ECONNABORTED
        with stranger(listener.port):
            listener.accept(LIMIT)
            assert poor.asked == sockets._MOST_AT_A_TIME
            poor.errno = 0
            ours, theirs = meet(listener)
            ours.close()
            theirs.close()


def test_accept_returns_when_it_is_told_to(listener):
    reads, writes = os.pipe()
    listener.return_when(reads)
    os.close(writes)
    begin = time.monotonic()
    assert listener.accept(LIMIT) == [] and time.monotonic() - begin < LIMIT / 2
    os.close(reads)


def test_proofs_are_compared_in_constant_time(listener, monkeypatch):
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(
        hmac,
        "compare_digest",
        lambda one, other: compared.append((one, other)) or compare(one, other),
    )
    ours, theirs = meet(listener)
    with ours, theirs:
        ours.send(b"hello")
        theirs.receive()
    assert len(compared) == 3 and all(one == other and len(one) == 32 for one, other in compared)


# ---- listeners of strangers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", OSError),
        (b"jfluid 1" + bytes(31), OSError),
        (b"jfluid 1" + bytes(32), errors.SecretError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, errors.MessageError),
    ],
)
def test_a_listener_that_does_not_prove_itself(said, expected):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            stream, _ = server.accept()
            with stream:
                stream.sendall(said)
                if expected is errors.SecretError:
                    stream.recv(sockets._RESPONSE.size, socket.MSG_WAITALL)
                    stream.sendall(b"x" * 32)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(expected):
            connect(server.getsockname()[1])
        thread.join(LIMIT)


# ---- messages ------------------------------------------------------------------------------------

KEY = b"k" * 32


def frame(message, number=0, sender=b"C", key=KEY):
    return struct.pack("<Q32s", len(message), sockets._mac(key, sender, number, message)) + message


def test_messages_in_pieces():
    data = frame(b"one") + frame(b"", 1) + frame(b"three" * 100, 2)
    for size in (1, 7, 40, 41, len(data)):
        frames = sockets.Frames(KEY, b"C", 1000)
        assert [m for i in range(0, len(data), size) for m in frames.feed(data[i : i + size])] == [
            b"one",
            b"",
            b"three" * 100,
        ]
        assert not frames.begun


@pytest.mark.parametrize(
    "data",
    [
        frame(b"x" * 101),
        struct.pack("<Q32s", 2**64 - 1, bytes(32)),
        frame(b"x", number=1),
        frame(b"x", sender=b"L"),
        frame(b"x", key=b"l" * 32),
        frame(b"x")[:-1] + b"y",
        frame(b"x") * 2,
        b"[" * 200_000,
        b"\0" * 40,
    ],
)
def test_altered_repeated_and_foreign_messages(data):
    with pytest.raises(errors.MessageError, match="the limit is 100|has a wrong MAC"):
        list(sockets.Frames(KEY, b"C", 100).feed(data))


def test_decoding():
    assert sockets.decode_challenge(b"jfluid 1" + b"n" * 32) == b"n" * 32
    assert sockets.decode_response(b"jfluid 1" + b"n" * 32 + b"m" * 32) == (b"n" * 32, b"m" * 32)
    for decode, size in ((sockets.decode_challenge, 40), (sockets.decode_response, 72)):
        for data in (b"", b"jfluid 1", bytes(size), b"jfluid 1" + bytes(size), b"[" * 200_000):
            with pytest.raises(errors.MessageError, match="expected the greeting"):
                decode(data)
