"""Streams: large messages between a client and a server elsewhere go through sockets of their own."""

import contextlib
import socket
import threading
import time

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import socket_channels, specs
from jfluid.ps_server.errors import JobFailedError
from jfluid.ps_server.grpc_transport import GrpcTransport
from jfluid.ps_server.served_streams import ServedStreams
from jfluid.ps_server.socket_channels import MOST, CallStream, CallStreams
from jfluid.ps_server.store import Change
from jfluid.ps_server.transport import CallError
from jfluid.security import sockets
from tests.faults.relay import Network
from tests.ps_server.job import TOKEN

LARGEST = 1 << 20
TABLE = specs.TableSpec(
    name="t",
    width=16,
    initializer=specs.Constant(value=4),
    optimizer=specs.Sgd(learning_rate=1.0),
    seed=1,
)
IDS = np.arange(5000) ** 3


def until(met):
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.001)


@pytest.fixture
def served():
    """Streams that answer with what they are asked, joined to it the method."""
    asked = []

    def answer(method, size, read, alive):
        request = read()
        asked.append((method, bytes(request), alive))
        if bytes(request) == b"wait":
            until(lambda: not alive())
        if bytes(request) == b"refuse":
            return grpc.StatusCode.NOT_FOUND, [b"there is none"]
        return grpc.StatusCode.OK, [method.encode(), *[bytes(request)] * 3]

    streams = ServedStreams(LARGEST, answer)
    streams.asked = asked
    streams.listen("127.0.0.1", TOKEN, 1)
    yield streams
    streams.stop()
    streams.end(0.1)
    assert not [t for t in streams._threads.values() if t.join(300)]


def connected(served, token=TOKEN):
    address = "127.0.0.1", served.port
    return CallStream(sockets.connect(address, token, socket_channels.PURPOSE, LARGEST, 60), LARGEST)


def test_calls_one_after_the_other(served):
    stream, many = connected(served), [b"%d," % i for i in range(3000)]
    for method in socket_channels.METHODS:
        stream.post(method, many)
        assert stream.answer(60) == method.encode() + b"".join(many) * 3
    stream.post("Pull", [b"refuse"])
    with pytest.raises(CallError, match="there is none") as refused:
        stream.answer(60)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND and refused.value.told
    stream.post("Push", [])
    assert stream.answer(60) == b"Push"
    stream.socket.close()


def test_who_has_another_secret_is_told_nothing(served):
    with pytest.raises(errors.SecretError):
        connected(served, "another-token-of-16")
    with socket.create_connection(("127.0.0.1", served.port), 60) as stranger:
        stranger.sendall(b"x" * 200)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(1000):
                pass
    assert not served.asked


@pytest.mark.parametrize("spoil", ["method", "size", "again"])
def test_a_head_that_is_not_of_the_other_side_ends_the_stream(served, spoil):
    stream = connected(served)
    stream.post("Push", [b"first"])
    assert stream.answer(60) == b"Push" + b"first" * 3
    head = bytearray(stream._head(b"C", stream._sent, 1, 5))
    if spoil == "again":
        stream._sent -= 1
        head = stream._head(b"C", stream._sent, 1, 5)
    else:
        head[0 if spoil == "method" else 4] ^= 1
    stream.socket.sendall(bytes(head) + b"first")
    with pytest.raises(CallError, match="gone"):
        stream.answer(60)
    assert len(served.asked) == 1
    stream.socket.close()


def test_a_message_that_is_too_large_ends_the_stream(served):
    stream = connected(served)
    stream.socket.sendall(stream._head(b"C", 0, 1, LARGEST + 1))
    with pytest.raises(CallError, match="gone"):
        stream.answer(60)
    stream.socket.close()


def test_the_server_learns_that_a_caller_has_gone(served):
    stream = connected(served)
    stream.post("Push", [b"wait"])
    with pytest.raises(CallError) as late:
        stream.answer(0.01)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED and not late.value.told
    until(lambda: served.asked)
    assert served.asked[0][2]()
    stream.socket.close()
    until(lambda: not served._threads)


def test_who_waits_learns_that_the_server_or_the_client_ends(served):
    stream = connected(served)
    stream.post("Push", [b"wait"])
    until(lambda: served.asked)
    with pytest.raises(ValueError, match="closed"):
        stream.answer(60, lambda: True)
    served.stop()
    served.end(0.0)
    with pytest.raises(CallError, match="gone"):
        stream.answer(60)
    stream.socket.close()


def test_a_client_has_few_streams_and_gives_them_up(served):
    streams = CallStreams(lambda: served.port, "127.0.0.1", TOKEN, LARGEST)
    taken = []
    for _ in range(MOST):
        assert streams.take(10) is None  # another thread connects
        until(lambda: streams._free)
        taken.append(streams.take(10))
    assert streams.take(10) is None and not streams._connecting
    streams.give(taken[0])
    assert streams.take(10) is taken[0]
    streams.give(taken[0])
    streams.forget()
    streams.give(taken[1])
    assert not streams._free
    until(lambda: not served._threads)
    streams.close()
    assert streams.take(10) is None and not streams._connecting
    for stream in taken:
        stream.socket.close()


@pytest.mark.parametrize("port", [0, None, "nobody"])
def test_without_a_port_there_are_no_streams(port, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    asked = []

    def port_of():
        asked.append(port)
        return nobody if port == "nobody" else port

    streams = CallStreams(port_of, "127.0.0.1", TOKEN, LARGEST)
    assert streams.take(10) is None
    until(lambda: not streams._connecting)
    assert streams.take(10) is None and len(asked) == 1
    monkeypatch.setattr(socket_channels, "_AGAIN_S", 0.0)
    streams._not_before_s = 0.0
    assert streams.take(10) is None
    until(lambda: not streams._connecting)
    assert len(asked) == (1 if port == 0 else 2)
    assert CallStreams(port_of, "127.0.0.1", TOKEN, LARGEST, wanted=False).take(10) is None


# ---- clients and servers ----


def ready(job, **more):
    """A client that has a stream."""
    client = job.client(**more)
    client.create([TABLE])
    client.pull({"t": IDS})
    until(lambda: client._connections[0]._streams._free)
    return client


def sizes_through_grpc(monkeypatch):
    sizes, before = [], GrpcTransport.send

    def send(self, call, timeout_s):
        sizes.append(sum(map(len, call.parts)))
        return before(self, call, timeout_s)

    monkeypatch.setattr(GrpcTransport, "send", send)
    return sizes


def test_large_calls_go_through_a_stream(job, monkeypatch):
    client = ready(job.start())
    sizes, before = sizes_through_grpc(monkeypatch), client.look_up("t", IDS)
    sizes.clear()
    found = client.exchange({"t": (IDS, np.ones((5000, 16), np.float32))}, {}, {"t": IDS})
    np.testing.assert_array_equal(found.rows["t"].all(), before - 1)
    client.push({"t": (IDS, np.ones((5000, 16), np.float32))})
    np.testing.assert_array_equal(client.pull({"t": IDS}).rows["t"].all(), before - 2)
    assert not sizes
    client.look_up("t", IDS[:5])  # small: through gRPC
    assert len(sizes) == 1


def test_a_call_whose_answer_is_lost_is_applied_once(job, monkeypatch):
    client = ready(job.start())
    before, answer, lost = client.look_up("t", IDS), CallStream.answer, []

    def lose(self, *arguments):
        found = answer(self, *arguments)
        if not lost:
            lost.append(self)
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        return found

    monkeypatch.setattr(CallStream, "answer", lose)
    for times in (1, 2, 3):
        client.push({"t": (IDS, np.ones((5000, 16), np.float32))})
        np.testing.assert_array_equal(client.look_up("t", IDS), before - times)
    assert len(lost) == 1


def test_gradients_that_a_server_holds_stay_when_the_memory_of_requests_is_used_again(job, monkeypatch):
    client, ids = ready(job.start()), np.arange(5000)
    before, sizes = client.look_up("t", ids), sizes_through_grpc(monkeypatch)
    client.push({"t": (ids, np.ones((5000, 16), np.float32))}, round=1, hold=True)
    client.push({"t": (ids, np.full((5000, 16), 5, np.float32))}, change=Change.ADD)
    after = client.pull({"t": ids}, round=1, confirm=True).rows["t"].all()
    np.testing.assert_array_equal(after, before + 5 - 1)
    assert not sizes


def test_calls_at_the_same_time_have_streams_of_their_own(job):
    client, failures = ready(job.start()), []

    def add(k):
        try:
            for _ in range(10):
                client.push({"t": (IDS + k, np.ones((5000, 16), np.float32))}, change=Change.ADD)
                assert client.pull({"t": IDS + k}).rows["t"].values.shape == (5000, 16)
        except Exception as error:
            failures.append(error)

    before = client.look_up("t", IDS)
    threads = [threading.Thread(target=add, args=[k * 10**12]) for k in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    np.testing.assert_array_equal(client.look_up("t", IDS), before + 10)
    streams = client._connections[0]._streams
    assert not streams._taken and 1 < len(streams._free) <= MOST


def test_an_error_of_the_server_leaves_the_stream(job):
    client = ready(job.start())
    (stream,) = client._connections[0]._streams._free
    job.servers[0].trainer_group.failed = "for a test"
    with pytest.raises(JobFailedError, match="for a test"):
        client.push({"t": (IDS, np.ones((5000, 16), np.float32))})
    assert client._connections[0]._streams._free == [stream]


def test_a_client_that_closes_waits_for_nobody(job):
    client = ready(job.start(trainers=2))
    raised = []

    def push():
        try:
            client.push({"t": (IDS, np.ones((5000, 16), np.float32))}, round=1)
        except errors.ServerError as error:
            raised.append(error)

    waiting = threading.Thread(target=push)
    waiting.start()
    until(lambda: job.servers[0].trainer_group._deposits)
    client.close()
    waiting.join(300)
    assert raised and not waiting.is_alive()


def test_behind_a_relay_there_are_no_streams(job):
    job.start()
    with Network() as network:
        client = job.client([network.relay(job.endpoints[0]).endpoint])
        client.create([TABLE])
        client.pull({"t": IDS})
        streams = client._connections[0]._streams
        until(lambda: not streams._connecting)
        assert not streams.possible
        client.pull({"t": IDS})
        client.close()
