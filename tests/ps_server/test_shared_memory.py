"""SharedBuffers: large messages between a client and a server of one machine go through memory that
both have.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.distributed.wire.settings import client_options
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import TooLargeError
from jfluid.ps_server.grpc_transport import GrpcTransport
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.shared_memory import AttachedBuffers, SharedBuffer, SharedBuffers
from jfluid.ps_server.store import Change
from jfluid.ps_server.transport import MOST

TOKEN = "a-token-of-the-job"
BLOCK = specs.BlockSpec(name="w", shape=(300, 200), initializer=specs.Uniform(), optimizer=specs.Sgd(learning_rate=0.5))
TABLE = specs.TableSpec(
    name="t",
    width=16,
    initializer=specs.Uniform(),
    optimizer=specs.Adagrad(learning_rate=0.1),
    seed=1,
)
IDS = np.arange(5000) ** 3
LARGEST = 1 << 24


@pytest.fixture
def server():
    with Server(Settings(token=TOKEN)) as server:
        yield server


@pytest.fixture
def client_of(server):
    clients = []

    def start(**more):
        clients.append(Client([f"127.0.0.1:{server.port}"], TOKEN, heartbeat_s=0, timeout_s=120, **more))
        clients[-1].create([TABLE], {0: [BLOCK]})
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def trained(client, steps=3):
    """What a client has after some steps, and how many of its bytes went over the network."""
    for step in range(steps):
        found = client.exchange(
            {"t": (IDS, np.full((len(IDS), 16), step + 1, np.float32))},
            {"w": np.full((300, 200), step, np.float32)},
            {"t": IDS},
            ["w"],
        )
    return found.rows["t"].all(), found.blocks["w"]


def on_the_network(monkeypatch):
    """The bytes of the calls from now on."""
    sizes, before = [], GrpcTransport.send

    def send(self, call, timeout_s):
        sizes.append(sum(map(len, call.parts)))
        return before(self, call, timeout_s)

    monkeypatch.setattr(GrpcTransport, "send", send)
    return sizes


def test_the_same_numbers_as_over_the_network(server, client_of, monkeypatch):
    client = client_of()
    sizes = on_the_network(monkeypatch)
    rows, block = trained(client)
    assert max(sizes) < 1000  # Attach; the rest went through the buffer
    with Server(Settings(token=TOKEN)) as other:
        plain = Client([f"127.0.0.1:{other.port}"], TOKEN, heartbeat_s=0, share_memory=False)
        plain.create([TABLE], {0: [BLOCK]})
        rows_there, block_there = trained(plain)
        plain.close()
    assert max(sizes) > 300_000
    np.testing.assert_array_equal(rows, rows_there)
    np.testing.assert_array_equal(block, block_there)


def test_what_came_stays_when_the_buffer_is_used_again(client_of):
    client = client_of()
    first = client.pull({"t": IDS}, ["w"])
    kept = first.rows["t"].values.copy(), first.blocks["w"].copy()
    trained(client)
    np.testing.assert_array_equal(first.rows["t"].values, kept[0])
    np.testing.assert_array_equal(first.blocks["w"], kept[1])


def test_gradients_that_a_server_holds_stay_when_the_buffer_is_used_again(client_of, monkeypatch):
    client = client_of()
    before = client.pull(blocks=["w"]).blocks["w"]
    sizes = on_the_network(monkeypatch)
    client.push(blocks={"w": np.ones((300, 200), np.float32)}, round=1, hold=True)
    client.push(blocks={"w": np.full((300, 200), 5, np.float32)}, change=Change.ADD)
    after = client.pull(blocks=["w"], round=1, confirm=True).blocks["w"]
    np.testing.assert_allclose(after, before + 5 - 0.5, rtol=1e-6)
    assert max(sizes, default=0) < 1000


def test_calls_at_the_same_time_have_buffers_of_their_own(server, client_of):
    client = client_of()
    failures = []

    def add(k):
        try:
            for _ in range(10):
                ids = IDS + k
                client.push({"t": (ids, np.ones((len(ids), 16), np.float32))}, change=1)
                assert client.pull({"t": ids}).rows["t"].values.shape == (len(ids), 16)
        except Exception as error:
            failures.append(error)

    before = client.look_up("t", IDS)
    threads = [threading.Thread(target=add, args=[k * 10**12]) for k in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    np.testing.assert_allclose(client.look_up("t", IDS), before + 10, rtol=1e-5)
    assert len(server.service.buffers._buffers) <= MOST


class NoAnswer(grpc.RpcError):
    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "the connection was lost"


def test_a_call_without_an_answer_is_sent_again_over_the_network_and_applied_once(client_of, monkeypatch):
    client = client_of()
    trained(client, 1)
    before = client.look_up("t", IDS)
    answer, lost, taken = SharedBuffer.answer, [], SharedBuffers.take

    def lose_the_answer(self, *given):
        reply = answer(self, *given)
        if not lost:
            lost.append(self)
            raise NoAnswer
        return reply

    used = []

    def take(self, capacity):
        used.append(taken(self, capacity))
        return used[-1]

    monkeypatch.setattr(SharedBuffers, "take", take)
    monkeypatch.setattr(SharedBuffer, "answer", lose_the_answer)
    for times in (1, 2, 3):
        client.push({"t": (IDS, np.ones((len(IDS), 16), np.float32))}, change=1)
        np.testing.assert_allclose(client.look_up("t", IDS), before + times, rtol=1e-5)
    assert len(lost) == 1 and used[0] is lost[0] and used[1] is used[2] is not lost[0]


def test_a_buffer_that_the_server_lost(server, client_of, monkeypatch):
    """The call goes over the network, the next one has a new buffer."""
    client = client_of()
    trained(client)
    server.service.buffers.leave(client._connections[0]._buffers.client)
    assert not server.service.buffers._buffers
    before, sizes = client.look_up("t", IDS), on_the_network(monkeypatch)
    client.push({"t": (IDS, np.ones((len(IDS), 16), np.float32))}, change=1)
    np.testing.assert_allclose(client.look_up("t", IDS), before + 1, rtol=1e-5)
    trained(client)
    assert len(server.service.buffers._buffers) == 1 and sum(size > 300_000 for size in sizes) == 1


def test_buffers_grow_and_go_with_their_trainer(server, client_of):
    client = client_of()
    buffers = server.service.buffers._buffers
    trained(client)
    assert [found.capacity for found in buffers.values()] == [1 << 20]
    many = np.arange(100_000)
    client.push({"t": (many, np.ones((len(many), 16), np.float32))}, change=1)
    assert [found.capacity for found in buffers.values()] == [1 << 23]
    trained(client)
    assert len(buffers) == 1  # the wide one does for small calls
    client.leave()
    assert not buffers


def test_one_who_only_reads_does_not_end_the_life_of_a_trainer(server, client_of):
    trainer, reader = client_of(), client_of()
    trained(trainer, 1)
    before = reader.pull({"t": IDS}, ["w"], train=False).rows["t"].all()
    assert len(server.service.buffers._buffers) == 2
    trained(trainer, 1)
    assert not np.array_equal(reader.pull({"t": IDS}, train=False).rows["t"].all(), before)
    assert len(server.service.buffers._buffers) == 2


@pytest.fixture
def asked():
    """A valid request to attach, with the file that it names."""
    file = os.memfd_create("jfluid-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, mmap.PAGESIZE + 2 * 4096)
    os.pwrite(file, b"p" * 32, 0)
    asks, answers = os.pipe(), os.pipe()
    yield pb.AttachRequest(
        client=1,
        process=os.getpid(),
        file=file,
        proof=b"p" * 32,
        capacity=4096,
        reads=asks[0],
        writes=answers[1],
    )
    for each in (file, *asks, *answers):
        os.close(each)


def attached_to():
    """What a server attaches. Its threads end with the pipes of the callers."""
    return AttachedBuffers(LARGEST, lambda *_: (grpc.StatusCode.OK, []))


def seal(request):
    fcntl.fcntl(request.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def test_only_files_of_this_kind_are_attached(asked, tmp_path):
    attached = attached_to()
    assert attached.attach(asked) == 0  # it could still shrink
    seal(asked)
    assert attached._buffers[attached.attach(asked)].capacity == 4096
    with open(tmp_path / "file", "w+b") as ordinary:
        ordinary.write(b"p" * (mmap.PAGESIZE + 2 * 4096))
        ordinary.flush()
        reader, writer = os.pipe()
        wrong = [
            {"process": 2**31},
            {"file": 10**6},
            {"proof": b"x" * 32},
            {"proof": b""},
            {"capacity": 8192},
            {"file": ordinary.fileno()},
            {"file": reader},
            {"reads": ordinary.fileno()},
            {"writes": 10**6},
        ]
        for change in wrong:
            request = pb.AttachRequest()
            request.CopyFrom(asked)
            request.MergeFrom(pb.AttachRequest(**change))
            if change == {"proof": b""}:
                request.proof = b""
            assert attached.attach(request) == 0, change
        os.close(reader)
        os.close(writer)
    with pytest.raises(TooLargeError, match="the limit is 16777216"):
        attached.attach(pb.AttachRequest(capacity=LARGEST + 1))


def test_a_buffer_of_another_user_is_not_taken(asked):
    seal(asked)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.fchown(asked.file, 12345, -1)
    assert attached_to().attach(asked) == 0


def test_a_caller_has_few_buffers(asked):
    seal(asked)
    attached = attached_to()
    for _ in range(MOST):
        asked.used.append(attached.attach(asked))
    assert attached.attach(asked) == 0 and len(set(asked.used) - {0}) == MOST
    asked.client = 2
    others = [attached.attach(asked)]
    # The process of the first client has ended; that of the second goes on.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    attached._clients[1] = ended.pid, attached._clients[1][1]
    asked.used.append(others[0])
    others.append(attached.attach(asked))
    assert list(attached._buffers) == others


def test_a_server_that_stops_leaves_no_files_open(asked):
    seal(asked)
    for stops_first in (False, True):
        before = open_files()
        attached = attached_to()
        name = attached.attach(asked)
        opened = open_files() - before
        assert name and opened
        (thread,) = attached._threads.values()
        if stops_first:
            attached.stop()
            attached.stop()
        else:  # the thread ends with its buffer, before the server does
            attached.leave(asked.client)
            os.write(_other_end(asked), struct.pack("<H", 9) + b"a request")
        thread.join(300)
        attached.stop()
        attached.end(60)
        assert not opened & open_files()


def open_files():
    """The process's open files, by number and by what they are: what other threads open has another
    name.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def _other_end(asked):
    """The end of the pipe of requests at which a client writes."""
    pipe = os.readlink(f"/proc/self/fd/{asked.reads}")
    for file in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            writes = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if writes and os.readlink(f"/proc/self/fd/{file}") == pipe:
                return file
    raise AssertionError("a pipe without its other end")


def test_no_two_servers_know_buffers_by_the_same_names(asked):
    """A name from one life of a server means nothing to the next, whatever both have attached."""
    seal(asked)
    lives = [attached_to() for _ in range(2)]
    names = [{life.attach(asked) for _ in range(8)} for life in lives]
    assert not names[0] & names[1] and all(len(some) == 8 and min(some) > 1 << 20 for some in names)


def test_buffers_are_given_up_when_the_server_has_started_again(asked):
    names = iter(range(1, 9))
    buffers = SharedBuffers(lambda request: next(names))
    under_way, free = buffers.take(10), buffers.take(10)
    buffers.give(free)
    buffers.forget()
    buffers.give(under_way)
    assert buffers.take(10).name == 3


def test_no_answer_to_the_question_for_a_buffer_means_no_buffer_this_time():
    answers = [None, 7]
    buffers = SharedBuffers(lambda request: answers.pop(0))
    assert buffers.take(10) is None and buffers.take(10).name == 7


def test_no_call_waits_for_the_buffer_of_another():
    asked, answered = threading.Event(), threading.Event()

    def slow(request):
        asked.set()
        assert answered.wait(300)
        return 5

    buffers = SharedBuffers(slow)
    making = threading.Thread(target=buffers.take, args=[10])
    making.start()
    assert asked.wait(300) and buffers.take(10) is None
    answered.set()
    making.join()
    assert len(buffers._taken) == 1


def test_a_call_that_finds_no_buffer_left_asks_for_none():
    """Although there was one left when it looked first."""
    named = []
    buffers = SharedBuffers(lambda request: named.append(request) or len(named))
    lock = buffers._attaching

    class Slow:
        def acquire(self, blocking):
            buffers._attaching = lock
            assert buffers.take(10).name == MOST
            return lock.acquire(blocking)

    for _ in range(MOST - 1):
        assert buffers.take(10) is not None
    buffers._attaching = Slow()
    assert buffers.take(10) is None and len(named) == MOST


def test_sizes_beyond_a_buffer_are_refused(asked):
    seal(asked)
    attached = attached_to()
    found = attached._buffers[attached.attach(asked)]
    with pytest.raises(TooLargeError, match="5000 bytes in a buffer of 4096"):
        found.request(5000)
    found.write_reply([b"ab", memoryview(b"c"), np.frombuffer(b"de", np.uint8).data])
    assert found.reply(5) == b"abcde"
    assert found.request(5) == bytes(5)


def test_a_server_elsewhere_is_asked_once():
    asked = []
    buffers = SharedBuffers(lambda request: asked.append(request) or 0)
    assert buffers.take(10) is None and buffers.take(10) is None and len(asked) == 1
    assert SharedBuffers(lambda request: 1, wanted=False).take(10) is None


def test_no_memory_for_a_buffer(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert SharedBuffers(lambda request: 1).take(10) is None


def test_the_environment_says_whether(monkeypatch):
    assert "share_memory" not in client_options()
    for text, wanted in (("0", False), ("1", True)):
        monkeypatch.setenv("JFLUID_PS_SHARE_MEMORY", text)
        assert client_options()["share_memory"] is wanted
    monkeypatch.setenv("JFLUID_PS_SHARE_MEMORY", "no")
    with pytest.raises(errors.ServerError, match="JFLUID_PS_SHARE_MEMORY: expected 0 or 1, found 'no'"):
        client_options()
