"""Calls through pipes between a client and a server of one machine."""

import contextlib
import os
import threading

import grpc
import numpy as np
import pytest

from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.auth import PROOF
from jfluid.ps_server.errors import StateError
from jfluid.ps_server.pipe_calls import LARGEST, CallPipes, ServedPipes
from jfluid.ps_server.transport import CallError

LIMIT_S = 120
MANY = np.arange(5000)


def call(pipes, request, timeout_s, closed=lambda: False):
    pipes.post(request)
    return pipes.answer(timeout_s, closed)


@contextlib.contextmanager
def served(answer):
    """A client's pipes, of which `answer` serves the other ends in a thread."""
    pipes, (stopping, stop) = CallPipes(), os.pipe()
    ends = ServedPipes(os.getpid(), *pipes.theirs, stopping)
    pipes.close_theirs()
    thread = threading.Thread(target=answer, args=[ends])
    thread.start()
    try:
        yield pipes
    finally:
        os.close(stop)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        os.close(stopping)


def all_requests(answer):
    """What answers requests until there are no more."""

    def serve(ends):
        with contextlib.closing(ends):
            while request := ends.receive():
                ends.answer(*answer(request))

    return serve


def test_requests_are_answered_in_turn():
    with served(all_requests(lambda request: (grpc.StatusCode.OK, request * 3))) as pipes:
        for request in (b"a", b"b" * LARGEST, bytes(100_000)[:LARGEST]):
            assert call(pipes, request, LIMIT_S) == request * 3


def test_requests_may_be_posted_while_the_server_is_at_others():
    with served(all_requests(lambda request: (grpc.StatusCode.OK, request * 3))) as pipes:
        requests = [b"a", b"b" * LARGEST, b"c" * 7]
        for request in requests:
            pipes.post(request)
        assert [pipes.answer(LIMIT_S) for _ in requests] == [request * 3 for request in requests]


def test_answers_are_longer_than_a_pipe_holds():
    with served(all_requests(lambda request: (grpc.StatusCode.OK, bytes(10**7)))) as pipes:
        assert call(pipes, b"x", LIMIT_S) == bytes(10**7)


def test_refusals_are_told_from_losses():
    with served(all_requests(lambda _: (grpc.StatusCode.INTERNAL, b"no"))) as pipes:
        with pytest.raises(CallError) as refused:
            call(pipes, b"x", LIMIT_S)
    assert refused.value.code() == grpc.StatusCode.INTERNAL and refused.value.details() == "no"
    assert dict(refused.value.trailing_metadata()).keys() == {PROOF}
    with served(lambda ends: ends.receive() and ends.close()) as pipes:  # without an answer
        for _ in range(2):  # the second finds nobody
            with pytest.raises(CallError) as lost:
                call(pipes, b"x", LIMIT_S)
            assert lost.value.code() == grpc.StatusCode.UNAVAILABLE
            assert not lost.value.trailing_metadata()


def test_no_answer_in_time_and_a_client_that_is_closed():
    done = threading.Event()

    def serve(ends):
        with contextlib.closing(ends):
            ends.receive()
            assert ends.there() and done.wait(LIMIT_S)

    with served(serve) as pipes:
        with pytest.raises(CallError) as late:
            call(pipes, b"x", 0.01)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(ValueError, match="closed"):
            call(pipes, b"x", None, closed=lambda: True)
        done.set()


def test_the_end_of_a_caller_is_seen():
    pipes, (stopping, stop) = CallPipes(), os.pipe()
    ends = ServedPipes(os.getpid(), *pipes.theirs, stopping)
    pipes.close_theirs()
    assert ends.there()
    del pipes
    assert not ends.there() and ends.receive() == b""
    with pytest.raises(BrokenPipeError):
        ends.answer(grpc.StatusCode.OK, b"")
    ends.close()
    os.close(stop)
    os.close(stopping)


def test_only_pipes_of_this_user_are_opened(tmp_path):
    reads, writes = os.pipe()
    with open(tmp_path / "file", "w+b") as file:
        for wrong in ((file.fileno(), writes), (reads, file.fileno()), (reads, 10**6)):
            with pytest.raises(OSError):
                ServedPipes(os.getpid(), *wrong, reads)
    if os.geteuid() == 0:
        os.fchown(reads, 12345, -1)
        with pytest.raises(OSError, match="of this user"):
            ServedPipes(os.getpid(), reads, writes, reads)
    os.close(reads)
    os.close(writes)


@pytest.fixture
def through(job):
    """Makes a call of a server through a buffer of a client."""
    client = job.start().ready()
    client.pull({"t": MANY})
    (buffer,) = client._connections[0]._buffers._free
    before = client.look_up("t", MANY)
    yield lambda request: call(buffer.pipes, request, LIMIT_S)
    np.testing.assert_array_equal(client.look_up("t", MANY), before)


@pytest.mark.parametrize(
    "request_, code, message",
    [
        (b"\xff" * 9, "INVALID_ARGUMENT", "expected a LocalRequest"),
        (
            pb.LocalRequest(method="Save").SerializeToString(),
            "INVALID_ARGUMENT",
            "one of Pull, Push, Exchange, found 'Save'",
        ),
        (
            pb.LocalRequest(method="Push", bytes=2**40).SerializeToString(),
            "RESOURCE_EXHAUSTED",
            "in a buffer of",
        ),
        (pb.LocalRequest(method="Push", bytes=9).SerializeToString(), "INVALID_ARGUMENT", ""),
    ],
)
def test_what_is_no_request_is_refused_and_changes_nothing(through, request_, code, message):
    with pytest.raises(CallError) as refused:
        through(request_)
    assert refused.value.code().name == code and message in refused.value.details()
    for _ in range(2):  # the server goes on with this caller
        with pytest.raises(CallError, match="LocalRequest"):
            through(b"x")


def test_a_call_that_waits_when_its_server_stops_is_made_again(job):
    """Of the server that comes after it: here there is none, and the network says so."""
    first = job.start(trainers=2).ready()
    first.pull({"t": MANY})
    first._connections[0].timeout_s = 0.5
    gradients = {"t": (MANY, np.ones((len(MANY), 4), np.float32))}
    failed = []

    def push():
        try:
            first.push(gradients, round=1)
        except Exception as error:
            failed.append(error)

    waiting = threading.Thread(target=push)
    waiting.start()
    group = job.servers[0].trainer_group
    with group._changed:
        assert group._changed.wait_for(lambda: group._deposits, LIMIT_S)
    job.servers[0].stop(0.0)
    waiting.join(LIMIT_S)
    (error,) = failed
    assert not isinstance(error, StateError) and "no answer within" in str(error)
