"""Records between trainers: who may take part, and what they may send."""

import contextlib
import socket
import struct
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.dataset import exchange, record_encoding
from jfluid.dataset.multislot import DatasetSlot, Parser, Records
from jfluid.security import sockets
from tests.ports import free_endpoints
from tests.security.wiretap import Wiretap

SECRET, LIMIT = "a-secret-of-the-tests", 120
SLOTS = [DatasetSlot("ids", False), DatasetSlot("clicks", True, (2,))]


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("JFLUID_JOB_TOKEN", SECRET)


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(exchange, "_SECONDS_TO_MEET", 1.0)


class Fleet:
    def __init__(self, index, endpoints):
        self.worker_index, self.worker_num = (lambda: index), (lambda: len(endpoints))
        self.worker_endpoints = lambda: endpoints


def records_of(numbers, slots=SLOTS, tags=0):
    text = "".join(f"{f'1 tag{k} ' * tags}{k % 3 + 1} {' '.join([str(k)] * (k % 3 + 1))} 2 {k} 0.5\n" for k in numbers)
    parser = Parser(slots, tags)
    return parser.parse(np.frombuffer(text.encode(), np.uint8).copy(), 0, pytest.fail)[0]


class Trainers:
    """Trainers that shuffle, each in a thread."""

    def __init__(self, endpoints, parts, tags=0):
        self.found, self.errors = {}, {}

        def run(i):
            try:
                draw = np.random.default_rng(i)
                self.found[i] = exchange.shuffled(parts[i], SLOTS, tags > 0, Fleet(i, endpoints), draw, 7, 0.0)
            except Exception as error:
                self.errors[i] = error

        self.threads = [threading.Thread(target=run, args=[i]) for i in parts]
        for thread in self.threads:
            thread.start()

    def joined(self):
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a trainer waits"
        return self


def ids(records):
    return records.values[np.asarray(records.starts[:-1])].tolist()


def reach(endpoint):
    """A connection to a trainer that may not listen yet."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection(exchange._address(endpoint), timeout=LIMIT)
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def member(endpoint, hello, secret=SECRET):
    """A connection of a process that has the secret, and what it is told."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            connection = sockets.connect(exchange._address(endpoint), secret, exchange._PURPOSE, 1000)
            break
        except ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    connection.send(hello)
    return connection, connection.receive()


# ---- trainers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [0, 1])
def test_every_record_comes_to_one_trainer(tags):
    parts = {
        0: records_of(range(1, 90), tags=tags),
        1: records_of(range(90, 100), tags=tags),
        2: records_of([]),
    }
    done = Trainers(free_endpoints(3), parts, tags).joined()
    assert not done.errors
    assert sorted(k for i in range(3) for k in ids(done.found[i])) == list(range(1, 100))
    for found in done.found.values():
        assert (found.counts[:, 0] == np.array(ids(found)) % 3 + 1).all()
        assert tags == 0 or found.tags.tolist() == [b"tag%d" % k for k in ids(found)]


def test_numbers_and_arrays_of_all():
    endpoints, found = free_endpoints(2), {}

    def run(i):
        found[i] = (
            exchange.total(i + 5, Fleet(i, endpoints)),
            exchange.gathered(np.full((2, 3), i, np.float32), i, endpoints).tolist(),
            exchange.gathered(np.int64(i), i, endpoints).tolist(),
        )

    threads = [threading.Thread(target=run, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert found[0] == found[1] == (11, [[[0.0] * 3] * 2, [[1.0] * 3] * 2], [0, 1])


def test_arrays_that_differ():
    endpoints, found = free_endpoints(2), {}

    def run(i):
        with pytest.raises(errors.DataError) as error:
            exchange.gathered(np.zeros(2 + i), i, endpoints)
        found[i] = str(error.value)

    threads = [threading.Thread(target=run, args=[i]) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    # Who notices first ends its connections, so that the other one may learn no more than that.
    assert (
        "arrays of different shapes or dtypes: <f8[2] and b'<f8[3]'" in found[0]
        or "arrays of different shapes or dtypes: <f8[3] and b'<f8[2]'" in found[1]
    )
    with pytest.raises(errors.DataError, match="array of numbers"):
        exchange.gathered(np.array([None]), 0, endpoints)


def test_a_trainer_that_does_not_come(brief):
    endpoints = free_endpoints(2)
    done = Trainers(endpoints, {0: records_of(range(1, 9))}).joined()
    assert isinstance(done.errors[0], errors.DataError) and endpoints[1] in str(done.errors[0])


def test_a_trainer_at_another_exchange_is_awaited(monkeypatch):
    later_s, endpoints = [0.0], free_endpoints(2)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s[0], sleep=time.sleep)
    monkeypatch.setattr(exchange, "time", clock)
    trainers = Trainers(endpoints, {0: records_of(range(1, 9))})
    connection, told = member(endpoints[0], exchange._HELLO.pack(2, 1, 2))
    with connection:
        assert told == b"not yet"
    later_s[0] = exchange._SECONDS_TO_MEET + 1.0
    assert isinstance(trainers.joined().errors[0], errors.DataError)


# ---- strangers -----------------------------------------------------------------------------------


def test_strangers_bring_nothing_learn_nothing_and_delay_nobody():
    endpoints = free_endpoints(2)
    trainers = Trainers(endpoints, {0: records_of(range(1, 50))})
    with contextlib.ExitStack() as stack:
        for said in (
            b"",
            b"",
            b"[" * 200_000,
            (struct.pack("<Q", 8) + b"jfluid 1" + struct.pack("<Q", 1) + b"1") * 4,
            b"jfluid 1" + bytes(64),
        ):
            stranger = stack.enter_context(reach(endpoints[0]))
            heard = stranger.recv(40, socket.MSG_WAITALL)
            assert heard.startswith(b"jfluid 1") and len(heard) == 40
            with contextlib.suppress(ConnectionError):  # it is closed while this is sent
                stranger.sendall(said)
                if said:
                    assert stranger.recv(100) in (b"", bytes(32))
        with pytest.raises(errors.SecretError):
            member(endpoints[0], exchange._HELLO.pack(1, 1, 2), "another-secret-of-another")
        other = Trainers(endpoints, {1: records_of(range(50, 100))})
        # idle strangers are still connected
        assert not trainers.joined().errors and not other.joined().errors
    assert sorted(ids(trainers.found[0]) + ids(other.found[1])) == list(range(1, 100))


def test_a_stranger_in_the_place_of_a_trainer_gets_no_record():
    endpoints = free_endpoints(2)
    with sockets.Listener(
        socket.create_server(exchange._address(endpoints[1])),
        "another-secret-of-another",
        exchange._PURPOSE,
        1000,
        LIMIT,
    ) as listener:
        trainers = Trainers(endpoints, {0: records_of(range(1, 50))})
        while trainers.threads[0].is_alive():
            assert not listener.accept(0.05)
    assert isinstance(trainers.joined().errors[0], errors.SecretError)


def test_the_secret_does_not_travel():
    endpoints = free_endpoints(2)
    with Wiretap(exchange._address(endpoints[0])[1]) as wiretap:
        heard_at = [f"127.0.0.1:{wiretap.port}", endpoints[1]]
        one = Trainers(endpoints, {0: records_of(range(1, 50), tags=1)}, tags=1)
        reach(endpoints[0]).close()
        two = Trainers(heard_at, {1: records_of(range(50, 100), tags=1)}, tags=1)
        assert not one.joined().errors and not two.joined().errors
        assert any(b"tag%d" % k in wiretap for k in range(50, 100)), "the wiretap hears"
        assert SECRET.encode() not in wiretap


def test_trainers_of_several_machines_need_a_secret(monkeypatch):
    monkeypatch.delenv("JFLUID_JOB_TOKEN")
    done = Trainers([*free_endpoints(1), "10.1.2.3:7000"], {0: records_of([1])}).joined()
    assert isinstance(done.errors[0], errors.SecretError) and "10.1.2.3:7000: other machines" in str(done.errors[0])


# ---- members that send what they should not ------------------------------------------------------


@pytest.mark.parametrize(("sender", "number"), [(0, 2), (2, 2), (1, 3)])
def test_a_trainer_that_does_not_belong_is_told(sender, number):
    endpoints = free_endpoints(2)
    trainers = Trainers(endpoints, {0: records_of(range(1, 9))})
    connection, told = member(endpoints[0], exchange._HELLO.pack(1, sender, number))
    with connection:
        assert told.startswith(b"refused: expected one of the trainers [1] of 2, found trainer")
    other = Trainers(endpoints, {1: records_of(range(9, 20))})
    assert not trainers.joined().errors and not other.joined().errors


@pytest.mark.parametrize(
    "messages",
    [
        lambda: [b"[" * 200_000],
        lambda: [record_encoding.encode(records_of(range(1, 4))) + b"x"],
        lambda: [
            record_encoding.encode(
                Records(
                    np.full(10, 7),
                    np.array([[-50_000_000, 2], [50_000_006, 2]], np.int32),
                    np.arange(3),
                )
            )
        ],
        lambda: [record_encoding.encode(records_of(range(1, 9)))] * 60,
    ],
    ids=["noise", "longer", "negative", "too much"],
)
def test_what_a_trainer_sends_is_checked(messages):
    messages = messages()  # not made where this file is only collected
    endpoints = free_endpoints(2)
    before = fluid.get_flags("FLAGS_global_shuffle_peer_bytes")
    fluid.set_flags({"FLAGS_global_shuffle_peer_bytes": 10_000})
    try:
        trainers = Trainers(endpoints, {0: records_of(range(1, 9))})
        connection, told = member(endpoints[0], exchange._HELLO.pack(1, 1, 2))
        with connection:
            assert told == b"welcome"
            with contextlib.suppress(OSError):
                for message in messages:
                    connection.send(message)
            error = trainers.joined().errors[0]
    finally:
        fluid.set_flags(before)
    assert isinstance(error, errors.DataError) and f"trainer 1, {endpoints[1]}: " in str(error)
    if len(messages) > 1:
        assert "it sends more than 10000 bytes; FLAGS_global_shuffle_peer_bytes" in str(error)


# ---- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [0, 2])
def test_records_as_bytes(tags):
    records = records_of(range(1, 30), tags=tags)
    found = record_encoding.decode(record_encoding.encode(records), SLOTS, tags > 0)
    for name in ("values", "counts", "starts", "tags"):
        np.testing.assert_array_equal(getattr(found, name), getattr(records, name))
        assert tags == 0 or getattr(found, name).dtype == getattr(records, name).dtype
    assert found.values.flags.writeable and found.counts.flags.writeable
    part = record_encoding.decode(record_encoding.encode(records.part(3, 9)), SLOTS, tags > 0)
    assert ids(part) == list(range(4, 10)) and part.starts[0] == 0


def header(slots=2, count=1, values=3, width=0, magic=b"JFR1"):
    return struct.pack("<4sIQQI", magic, slots, count, values, width)


GOOD = header() + np.array([1, 2], "<i4").tobytes() + bytes(24)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected records, found 0 bytes"),
        (b"[" * 200_000, "found 200000 bytes that begin with"),
        (GOOD[:-1], "expected 60 bytes .* found 59"),
        (GOOD + b"x", "expected 60 bytes .* found 61"),
        (header(magic=b"JFR2") + GOOD[28:], "expected records, found"),
        (header(slots=3) + GOOD[28:], "of 2 slots without ids, found 1 records of 3 slots"),
        (header(width=4) + GOOD[28:], "ids of 4 bytes"),
        (header(count=0) + GOOD[28:], "found 0 records"),
        (header(count=2**64 - 1) + GOOD[28:], "found 18446744073709551615 records"),
        (header(values=2**64 - 1) + GOOD[28:], "expected 147573952589676412956 bytes"),
        (
            header() + np.array([0, 3], "<i4").tobytes() + bytes(24),
            "slot ids: expected 1 to 3 values a record, found 0",
        ),
        (
            header() + np.array([-1, 4], "<i4").tobytes() + bytes(24),
            "slot ids: expected 1 to 3 values a record, found -1",
        ),
        (
            header() + np.array([4, 2], "<i4").tobytes() + bytes(24),
            "slot ids: expected 1 to 3 values a record, found 4",
        ),
        (
            header() + np.array([2, 2], "<i4").tobytes() + bytes(24),
            "the counts add up to 4 values, found 3",
        ),
        (
            header(count=2, values=2) + np.array([[2**30, 2]] * 2, "<i4").tobytes() + bytes(16),
            "expected 1 to 2 values",
        ),
    ],
)
def test_what_is_no_records(data, message):
    assert len(record_encoding.decode(GOOD, SLOTS, False)) == 1
    with pytest.raises(errors.MessageError, match=message):
        record_encoding.decode(data, SLOTS, False)


def test_every_altered_byte_of_a_header_is_refused_or_harmless():
    data = record_encoding.encode(records_of(range(1, 4), tags=1))
    for i in range(28 + 3 * 2 * 4):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            altered = data[:i] + bytes([value]) + data[i + 1 :]
            try:
                found = record_encoding.decode(altered, SLOTS, True)
            except errors.MessageError:
                continue
            assert found.starts[-1] == len(found.values) and (np.diff(found.starts) == found.counts.sum(1)).all()
            Parser(SLOTS, 1).batch(found, np.arange(len(found)))


def test_records_without_a_slot_allocate_nothing():
    with pytest.raises(errors.MessageError, match="found 1152921504606846976 records"):
        record_encoding.decode(header(slots=0, count=2**60, values=0), [], False)


def test_decoding_the_rest():
    assert exchange.decode_hello(exchange._HELLO.pack(3, 1, 2)) == (3, 1, 2)
    assert exchange.decode_number(b"0012") == 12
    assert exchange.decode_array(b"<i4[2]\n" + bytes(8), np.dtype("<i4"), (2,)).tolist() == [0, 0]
    for data in (
        b"",
        b"[" * 200_000,
        b"-1",
        b"1" * 20,
        b"\xd9\xa1",
        b"1\n",
        b"<i4[2]\n" + bytes(10),
        b"<i8[2]\n" + bytes(16),
    ):
        for decode in (
            exchange.decode_hello,
            exchange.decode_number,
            lambda data: exchange.decode_array(data, np.dtype("<i4"), (2,)),
        ):
            with pytest.raises(errors.MessageError):
                decode(data)


def test_the_launcher_says_where_trainers_are_that_the_role_maker_does_not_know(monkeypatch):
    fleets = [Fleet(i, []) for i in range(2)]
    for fleet in fleets:
        fleet.worker_num = lambda: 2
    monkeypatch.delenv("PADDLE_TRAINER_ENDPOINTS", raising=False)
    with pytest.raises(errors.DataError, match="2 trainers .*PADDLE_TRAINER_ENDPOINTS .*found "):
        exchange.total(3, fleets[1])
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", ",".join(free_endpoints(2)))
    found = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: exchange.total(3 + i, fleets[i])})) for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: 7, 1: 7}
