"""Servers and callers that do not have the job's secret."""

import contextlib
import hmac
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import auth, specs, wire
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings
from tests.security.wiretap import Wiretap

SECRET = "a-secret-of-the-job"
METHODS = [*wire.METHODS, "Stream", "Unknown"]
LIMIT = 120


@pytest.fixture
def server():
    with Server(Settings(token=SECRET, trainers=1)) as server:
        yield server


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


def member(port, secret=SECRET, **more):
    return Client([f"127.0.0.1:{port}"], secret, **{"heartbeat_s": 0, "timeout_s": LIMIT} | more)


def path(method):
    return f"/{wire.SERVICE}/{method}"


def answer(channel, method, metadata=(), messages=()):
    """The status of a call."""
    try:
        list(channel.stream_stream(path(method))(iter(messages), timeout=LIMIT, metadata=metadata))
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


class Recorded(auth.Session):
    """Notes the metadata of each call."""

    def _begin(self):
        session, self.seen = super()._begin(), []
        make = session.next

        def noted(path):
            metadata, expected = make(path)
            self.seen.append(metadata)
            return metadata, expected

        session.next = noted
        return session


# ---- who is refused ------------------------------------------------------------------------------


def test_a_caller_with_another_secret_or_none(server, channel):
    for method in METHODS:
        for metadata in (
            [],
            [("jfluid-token", SECRET)],
            [(auth.PROOF, b"")],
            [(auth.PROOF, b"x" * 56)],
        ):
            assert answer(channel, method, metadata, [b"\xff"]) == grpc.StatusCode.UNAUTHENTICATED
    with (
        member(server.port, "a-secret-of-another-job") as other,
        pytest.raises(
            errors.ServerError,
            match="does not prove that it has the job's secret.*JFLUID_JOB_TOKEN",
        ),
    ):
        other.status()
    assert not server.service.metrics.calls, "nothing was done"


def test_a_proof_is_good_once_and_for_one_method(server, channel):
    session = Recorded(channel, "here", SECRET, LIMIT)
    session.unary(path("Status"), bytes)(b"", LIMIT)
    (metadata,) = session.seen
    assert answer(channel, "Status", metadata, [b""]) == grpc.StatusCode.UNAUTHENTICATED
    other, _ = session._current.next(path("Leave"))
    assert answer(channel, "Status", other, [b""]) == grpc.StatusCode.UNAUTHENTICATED
    assert answer(channel, "Leave", other, [b"\xff"]) == grpc.StatusCode.INVALID_ARGUMENT, "it was not used up"


def test_a_proof_of_another_life_of_the_server_is_refused(server):
    with (
        Server(Settings(token=SECRET)) as earlier,
        grpc.insecure_channel(f"127.0.0.1:{earlier.port}") as channel,
    ):
        session = Recorded(channel, "here", SECRET, LIMIT)
        session.unary(path("Status"), bytes)(b"", LIMIT)
        unused, _ = session._current.next(path("Status"))
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert answer(channel, "Status", unused, [b""]) == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("size", [0, 1, 15, 17, 4000])
def test_begin_takes_a_nonce_of_one_size(server, channel, size):
    assert answer(channel, "Begin", [(auth.NONCE, b"x" * size)]) == grpc.StatusCode.INVALID_ARGUMENT


def test_proofs_are_compared_in_constant_time(server, monkeypatch):
    compared, compare = [], hmac.compare_digest

    def noted(one, other):
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    with member(server.port) as client:
        client.status()
    assert len(compared) == 3  # Begin's answer, the call, its answer
    assert all(one == other and len(one) == 32 for one, other in compared)


# ---- what a stranger costs -----------------------------------------------------------------------


def test_strangers_wait_for_nothing_and_take_no_thread(server, channel):
    """More calls than there are threads, of each of which only the headers come."""
    never = threading.Event()

    def silent():
        never.wait(LIMIT)
        return
        yield b""

    calls = [channel.stream_unary(path(method)).future(silent(), timeout=LIMIT) for method in METHODS * 5]
    calls += [channel.stream_unary(auth.BEGIN).future(silent(), timeout=LIMIT) for _ in range(30)]
    deadline = time.monotonic() + LIMIT / 2
    while not all(call.done() for call in calls):
        assert time.monotonic() < deadline, "strangers are awaited"
    assert {call.code() for call in calls} == {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
    assert not server._grpc._state.thread_pool._threads, "a thread of the pool was used"
    with member(server.port) as client:
        client.status()
    never.set()


def test_refusals_come_also_when_all_threads_are_taken(server, channel):
    """And a member begins then, too: its call waits, its session does not."""
    pool, free = server._grpc._state.thread_pool, threading.Event()
    taken = [pool.submit(free.wait, LIMIT) for _ in range(pool._max_workers)]
    try:
        assert answer(channel, "Push") == grpc.StatusCode.UNAUTHENTICATED
        assert auth.Session(channel, "here", SECRET, LIMIT)._begin()
    finally:
        free.set()
    assert all(f.result() for f in taken)


def test_idle_connections_and_noise_do_not_stop_members(server):
    with contextlib.ExitStack() as stack:
        for i in range(150):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT))
            if i % 3 == 1:
                stranger.sendall(b"[" * 200_000)
            elif i % 3 == 2:
                stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with member(server.port) as client:
            client.create([specs.TableSpec(name="t", width=2, optimizer=specs.Sgd(learning_rate=1))])
            assert client.pull({"t": np.array([1])}).rows["t"].values.shape == (1, 2)


# ---- members -------------------------------------------------------------------------------------


def test_the_secret_and_its_keys_do_not_travel(server):
    with Wiretap(server.port) as wiretap, member(wiretap.port) as client:
        client.create([specs.TableSpec(name="a-table", width=2, optimizer=specs.Sgd(learning_rate=1))])
        client.pull({"a-table": np.array([1])})
        assert b"a-table" in wiretap, "the wiretap hears"
        assert SECRET.encode() not in wiretap and auth.key_for(SECRET, auth._PURPOSE) not in wiretap
        assert client._connections[0]._grpc._session._current._key not in wiretap


def test_a_client_begins_again_after_a_restart_of_the_server():
    with Server(Settings(token=SECRET)) as first, member(first.port) as client:
        session = client._connections[0]._grpc._session
        client.status()
        before = session._current
        first.stop(0)
        with Server(Settings(token=SECRET, port=first.port)):
            assert [s.server for s in client.status()] == [0]
        assert session._current is not before


def test_a_server_forgets_old_sessions_and_clients_do_not_notice(server):
    guard = server._grpc._state.interceptor_pipeline.interceptors[0]
    guard._most = 2
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(member(server.port)) for _ in range(5)]
        for _ in range(3):
            for client in clients:
                client.status()
                assert len(guard._sessions) <= 2


def test_calls_of_one_session_from_many_threads(server):
    with member(server.port) as client, ThreadPoolExecutor(16) as threads:
        assert all(threads.map(lambda _: client.status(), range(200)))
        assert len(server._grpc._state.interceptor_pipeline.interceptors[0]._sessions) <= 16


def test_numbers_of_calls():
    session = auth._Session(b"k" * 32, b"n" * 16, b"c" * 32)
    order = [
        1,
        3,
        2,
        5000,
        4,
        5000 - auth._WINDOW,
        5001 - auth._WINDOW,
        4999,
        1 << 63,
        (1 << 63) - 1,
    ]
    assert [session.take(n) for n in order] == [
        True,
        True,
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert not any(session.take(n) for n in order)
    assert session._used < 1 << auth._WINDOW


# ---- servers of strangers ------------------------------------------------------------------------


@contextlib.contextmanager
def impostor(begin=None, call=lambda messages, context: iter([b""])):
    """A server without the secret: how it answers Begin, and calls."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            calls.append(details.method)
            if details.method == auth.BEGIN and begin is not None:
                return grpc.stream_unary_rpc_method_handler(begin)
            return grpc.stream_stream_rpc_method_handler(call)

    calls = []
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, calls
    finally:
        server.stop(0).wait()


def test_a_server_that_cannot_prove_itself_gets_no_call():
    for begun in (b"", bytes(64), b"x" * 65):
        with (
            impostor(lambda messages, context, begun=begun: begun) as (port, calls),
            member(port) as client,
        ):
            with pytest.raises(
                errors.ServerError,
                match="prove that it has the job's secret|expected an answer of 64 bytes",
            ):
                client.status()
            assert set(calls) == {auth.BEGIN}


def test_answers_of_a_server_that_came_in_the_place_of_the_jobs_are_not_believed(server):
    """It passes on Begin to the job's server, as one could who took over a connection later."""

    def refuse(messages, context):
        context.abort(grpc.StatusCode.DATA_LOSS, "send me all that you have kept")

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as real:

        def begin(messages, context):
            return real.stream_unary(auth.BEGIN)(
                iter(()),
                metadata=[(k, v) for k, v in context.invocation_metadata() if k == auth.NONCE],
            )

        for call in (lambda messages, context: iter([b""]), refuse):
            with impostor(begin, call) as (port, calls), member(port) as client:
                with pytest.raises(errors.ServerError, match="does not prove that it has the job's secret"):
                    client.status()
                assert calls == [auth.BEGIN, path("Status")]


def test_decoding():
    proof = b"n" * 16 + (7).to_bytes(8, "little") + b"m" * 32
    assert auth.decode_proof(proof) == (b"n" * 16, 7, b"m" * 32)
    assert auth.decode_begun(b"c" * 32 + b"m" * 32) == (b"c" * 32, b"m" * 32)
    for decode, good in ((auth.decode_proof, proof), (auth.decode_begun, bytes(64))):
        for data in (b"", good[:-1], good + b"x", b"[" * 200_000):
            with pytest.raises(errors.MessageError, match=f"found {len(data)}"):
                decode(data)
