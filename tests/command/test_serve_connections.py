"""Connections to `jfluid serve` that are idle, slow, broken or many, and requests that are large: each
has bounds, and others are answered meanwhile.
"""

import asyncio
import contextlib
import http.client
import io
import json
import resource
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import errors
from jfluid.exports.model import LoadedModel
from jfluid.security import http_connections as connections
from jfluid.serving import batching, service, turns
from jfluid.serving.batching import Batcher
from jfluid.serving.blocks import block
from jfluid.serving.json_inputs import PADDING, read_json
from jfluid.serving.npz_inputs import Archive
from jfluid.serving.requests import NPZ, BadRequest, Input, RequestLimits, TooManyRequests
from jfluid.serving.room import Room
from tests.command.test_serve import asked, served
from tests.fuzz.harness import fuzzed

pytestmark = pytest.mark.usefixtures("interpreted_module")

DEADLINE = 120  # seconds


def saved(folder, build):
    """The folder of a model that `build` makes: (names of feeds, fetches)."""
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start):
        feeds, fetches = build()
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(start)
        fluid.io.save_inference_model(str(folder), feeds, fetches, executor, main)
    return str(folder)


def doubled():
    return ["x"], [fluid.layers.scale(fluid.data("x", [None, 4]), 2.0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        return saved(tmp_path_factory.mktemp("doubled"), doubled)


@pytest.fixture(scope="module")
def address(model):
    with served({"m": model}, limits=RequestLimits(bytes=1 << 20, elements=1 << 18, rows=20000)) as found:
        yield found


ROW = json.dumps({"inputs": {"x": [[1, 2, 3, 4]]}}).encode()
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(ROW) + ROW


def connected(address):
    found = socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1])))
    found.settimeout(DEADLINE)
    return found


def answers(client):
    """(status, body) of the answers on a connection until it ends."""
    file = client.makefile("rb")
    found = []
    while line := file.readline():
        headers = http.client.parse_headers(file)
        size = int(headers["content-length"] or 0)
        found.append((int(line.split()[1]), file.read(size)))
    return found


def ended(client):
    """Whether the other side ends a connection; what it said before that is left out."""
    try:
        while client.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


def said(address, text, half_close=True):
    """What is answered to bytes, after which nothing more is sent."""
    with connected(address) as client:
        client.sendall(text)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        return answers(client)


def test_clients_that_send_no_more_are_answered(address):
    ((status, body),) = said(address, WHOLE)
    assert status == 200 and json.loads(body)["outputs"].popitem()[1] == [[2, 4, 6, 8]]
    assert [status for status, _ in said(address, WHOLE * 3)] == [200] * 3  # in one go
    assert said(address, HEAD + b"Content-Length: 500\r\n\r\n{") == []
    assert asked(f"{address}/predict", ROW)[0] == 200


def test_forms_of_http(address):
    old = b"POST /predict HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(ROW) + ROW
    assert [status for status, _ in said(address, old, half_close=False)] == [200]
    chunked = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    in_chunks = chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(ROW), ROW)
    assert [status for status, _ in said(address, in_chunks)] == [200]
    without = HEAD + b"Connection: close\r\n\r\n"
    ((status, body),) = said(address, without)
    assert status == 400 and "found the end at byte 0" in json.loads(body)["error"]
    zipped = HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
    ((status, body),) = said(address, zipped)
    assert status == 415 and "Content-Encoding" in json.loads(body)["error"]
    with connected(address) as client:
        client.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(ROW))
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        client.sendall(ROW)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "text, status, says",
    [
        (b"\x16\x03\x01" + bytes(600), 400, "no request of HTTP"),
        (b"GET\r\n\r\n", 400, "no request of HTTP"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000, 431, "no request of HTTP"),
        (b"GET /" + b"a" * 20000, 431, "no request of HTTP"),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400, "Content-Length"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "Content-Length"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, "chunk"),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 2000,
            400,
            "a body in pieces of less than 64 bytes",
        ),
    ],
)
def test_what_is_no_request_is_told_so(address, text, status, says):
    with connected(address) as client:
        client.sendall(text)
        found = client.recv(10000)
    assert int(found.split()[1]) == status
    assert says in json.loads(found.partition(b"\r\n\r\n")[2])["error"]


def test_other_paths_and_methods(address):
    for path, body in (("/admin", None), ("/../etc/passwd", None), ("/health", b"{}")):
        status, text = asked(f"{address}{path}", body)
        assert status in (404, 405) and "POST /predict" in json.loads(text)["error"]


@fuzzed(60)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), kind=st.text(max_size=5))
def test_any_body_is_answered_by_what_is_wrong(address, body, kind):
    for form in ("application/json", NPZ, kind.encode("ascii", "ignore").decode().strip()):
        form = "".join(c for c in form if c.isprintable())
        status, text = asked(f"{address}/predict", body or b"{", form)
        assert status == 400 and json.loads(text)["error"]


def test_more_than_there_may_be_is_named(address):
    row = b"[0,0,0,0]"
    for rows, says in ((20001, "may have 20000 rows, found 20001"), (1 << 16, "numbers and lists")):
        body = b'{"inputs": {"x": [' + b",".join([row] * rows) + b"]}}"
        status, text = asked(f"{address}/predict", body)
        assert status == 413 and says in json.loads(text)["error"]
    with connected(address) as client:  # it may send all of it, to no avail
        client.sendall(HEAD + b"Content-Length: 9000000\r\n\r\n" + bytes(9000000))
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_a_large_request_runs_in_pieces(address, model):
    values = np.random.default_rng(0).standard_normal((5000, 4)).round(3)
    body = json.dumps({"inputs": {"x": values.tolist()}}).encode()
    status, text = asked(f"{address}/predict", body)
    assert status == 200
    assert np.allclose(json.loads(text)["outputs"].popitem()[1], 2 * values, atol=1e-5)


@pytest.fixture(scope="module")
def strict(model):
    """An address where little may be waited for."""
    limits = RequestLimits(bytes=4 << 20, held=6 << 20, connections=20, seconds=1.5)
    with served({"m": model}, limits=limits, largest=256) as found:
        yield found


def test_connections_that_others_wait_for_end(strict):
    for first in (b"", b"POST /pre", HEAD + b"A: b\r\n"):
        with connected(strict) as client:
            client.sendall(first)
            assert ended(client)
    with connected(strict) as client:
        client.sendall(HEAD + b"Content-Length: 500\r\n\r\n{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")
    with connected(strict) as client:  # a connection that is kept
        client.sendall(WHOLE)
        answer = b""
        while part := client.recv(1000):  # the body may come by itself
            answer += part
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1


def test_who_takes_no_answer_loses_it(strict):
    rows = b",".join([b"[0,0,0,0]"] * 60000)
    body = b'{"inputs": {"x": [' + rows + b"]}}"
    with connected(strict) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        started = client.recv(10)
        assert started == b"HTTP/1.1 2"
        until = time.monotonic() + DEADLINE
        while asked(f"{strict}/metrics")[0] == 200 and time.monotonic() < until:
            try:
                client.sendall(b" ")  # fails once the other side has ended it
            except OSError:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is still there")


def test_the_connection_that_was_waited_for_longest_makes_room(strict, monkeypatch):
    monkeypatch.setattr(connections, "_AT_ONCE", 1)
    crowd = [connected(strict) for _ in range(60)]
    try:
        for _ in range(3):
            assert asked(f"{strict}/predict", ROW)[0] == 200
        assert ended(crowd[0])
    finally:
        for client in crowd:
            client.close()


def test_large_bodies_wait_for_room_and_small_ones_do_not(model, monkeypatch):
    rooms = []

    class Seen(Room):
        def __init__(self, most):
            super().__init__(most)
            rooms.append(self)

    monkeypatch.setattr(service, "Room", Seen)

    def spaced(size):
        return b'{"inputs": {"x": [' + b" " * size + b"[1, 2, 3, 4]]}}"

    with served({"m": model}, limits=RequestLimits(held=1 << 20)) as found:
        for _ in range(3):  # what was held is free again
            status, text = asked(f"{found}/predict", spaced(2 << 20))
            assert status == 503 and "ask again later" in json.loads(text)["error"]
            assert asked(f"{found}/predict", spaced(900_000))[0] == 200
        with connected(found) as client:
            client.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 900_000)
            until = time.monotonic() + DEADLINE
            while rooms[0].held < 900_000:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert asked(f"{found}/predict", spaced(500_000))[0] == 503
            assert asked(f"{found}/predict", ROW)[0] == 200
        while rooms[0].held:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert asked(f"{found}/predict", spaced(900_000))[0] == 200


def test_without_descriptors_the_oldest_makes_room(model, monkeypatch):
    monkeypatch.setattr(connections, "_descriptors", lambda: 0)
    files = connections._RESERVE + 10
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (files, files))
    with served({"m": model}) as found:
        crowd = [connected(found) for _ in range(40)]
        assert asked(f"{found}/predict", ROW)[0] == 200
        for client in crowd:
            client.close()


@pytest.mark.parametrize(
    "error, status, says",
    [
        (errors.ShapeError("expected offsets that fit"), 400, "expected offsets that fit"),
        (errors.OpError("lod_reset: expected offsets"), 400, "lod_reset: expected offsets"),
        (errors.OpError("RESOURCE_EXHAUSTED: /secret"), 503, "no memory"),
        (MemoryError("/secret"), 503, "no memory"),
        (errors.UninitializedError("/secret has no value"), 500, "its log says why"),
        (RuntimeError("/secret"), 500, "its log says why"),
        (OSError("/secret"), 500, "its log says why"),
    ],
)
def test_errors_of_values_are_told_and_others_are_not(model, monkeypatch, caplog, error, status, says):
    with served({"m": model}) as found:

        def fail(feed):
            raise error

        monkeypatch.setattr(batching.Batcher, "_found", lambda self, feed, rows: fail(feed))
        code, text = asked(f"{found}/predict", ROW)
    assert code == status and says in json.loads(text)["error"]
    assert b"secret" not in text
    assert (str(error) in caplog.text) == (status != 400)


def test_requests_do_not_fail_for_their_neighbours():
    def run(feed):
        if feed["x"].max() > 2:
            raise errors.OpError("too large")
        return [feed["x"]]

    batcher = Batcher(run, largest=8, delay=5.0)
    answers = [batcher.submit({"x": np.full((2, 1), n)}, 2) for n in (1.0, 3.0, 2.0, 1.0)]
    with pytest.raises(errors.OpError, match="too large"):
        answers.pop(1).result()
    assert [answer.result()[0].max() for answer in answers] == [1, 2, 1]
    batcher.close()


def test_others_run_between_the_pieces_of_a_large_request():
    ran, going_on = [], threading.Event()

    def run(feed):
        ran.append(len(feed["x"]))
        going_on.wait(DEADLINE)
        return [feed["x"] * 2]

    batcher = Batcher(run, largest=4, delay=0.0)
    large = batcher.submit({"x": np.arange(100.0).reshape(100, 1)}, 100)
    small = [batcher.submit({"x": np.full((1, 1), n)}, 1) for n in (1.0, 2.0)]
    going_on.set()
    for n, answer in enumerate(small, 1):
        assert answer.result(DEADLINE)[0] == 2 * n
    assert np.array_equal(large.result(DEADLINE)[0][:, 0], 2 * np.arange(100.0))
    assert max(ran) == 4 and ran.index(2 if 2 in ran else 1) < 4
    batcher.close()


def test_a_large_request_rests_between_its_pieces_while_small_ones_come():
    ran, rests = [], [3600.0]

    def run(feed):
        ran.append(len(feed["x"]))
        return [feed["x"]]

    batcher = Batcher(run, largest=4, delay=0.0, rest=lambda worked: rests[0])
    large = batcher.submit({"x": np.ones((12, 1))}, 12)
    for _ in range(5):  # each is answered while the large request rests
        batcher.submit({"x": np.ones((1, 1))}, 1).result(DEADLINE)
    assert ran.count(4) == 1 and ran.count(1) == 5 and not large.done()
    batcher.close()  # ends the rest
    assert large.result(DEADLINE)[0].shape == (12, 1) and ran.count(4) == 3


def test_large_requests_rest_while_small_ones_come(monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns.time, "sleep", slept.append)
    found = turns.Turns()
    assert found.rest(0.01) == 0
    pause = found.pauses()
    with found.small(), found.small():
        assert found.rest(0.01) == pytest.approx(0.04) and found.rest(0) == 0.001
        now[0] += 0.5
        pause()
        pause()  # without work since: the shortest rest
    now[0] += 0.05
    assert found.rest(0.01) == pytest.approx(0.04)
    now[0] += 0.1
    assert found.rest(0.01) == 0
    assert slept == [pytest.approx(2.0), 0.001]


def test_pieces_of_large_requests_take_turns(monkeypatch):
    worked = []

    async def use(found, name, pieces):
        for _ in range(pieces):
            async with found.turn():
                worked.append(name)

    async def both():
        found = turns.Turns()
        monkeypatch.setattr(found, "rest", lambda seconds: 0.001)
        other = asyncio.create_task(use(found, "second", 3))
        await use(found, "first", 3)
        await other

    asyncio.run(both())
    assert worked == ["first", "second"] * 3


@pytest.mark.parametrize("form", ["json", "npz"])
def test_parsing_of_large_requests_pauses(form):
    rows, item = np.zeros((65536, 4), "float32"), Input("x", np.dtype("float32"), (-1, 4))
    file, rests = io.BytesIO(), []
    if form == "json":
        text = json.dumps({"inputs": {"x": rows.tolist()}}).encode() + PADDING
        found = read_json(bytearray(text), (item,), RequestLimits(), lambda: rests.append(1))["x"]
    else:
        np.savez(file, x=rows)
        found = Archive(bytearray(file.getvalue()), (item,), RequestLimits()).arrays(lambda: rests.append(1))["x"]
    assert np.array_equal(found, rows) and len(rests) >= 3


def test_few_connections_are_accepted_at_once(address):
    # asyncio accepts this many in one turn of its loop, and would tell the system to keep no more.
    assert connections.configured(None).backlog <= 8
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(address)) for _ in range(100)]
        for client in clients:
            client.sendall(WHOLE)
        assert all(client.recv(1000).startswith(b"HTTP/1.1 200") for client in clients)


def test_answers_have_bounds():
    batcher = Batcher(lambda feed: [feed["x"].repeat(100, 1)], 4, 0.0, most_bytes=3000)
    assert batcher.submit({"x": np.ones((3, 1))}, 3).result(DEADLINE)[0].shape == (3, 100)
    for rows in (4, 1000):
        with pytest.raises(BadRequest, match="an answer may have 3000 bytes: ask for fewer rows"):
            batcher.submit({"x": np.ones((rows, 1))}, rows).result(DEADLINE)
    batcher.close()


def test_room_counts_what_is_large():
    room = Room(1 << 20)
    first, second, small = room.share(), room.share(), room.share()
    first.set(900_000)
    with pytest.raises(TooManyRequests, match="hold 900000 bytes of 1048576"):
        second.set(200_000)
    small.set(60_000)
    assert room.held == 900_000
    first.set(100_000)
    second.set(200_000)
    second.set(0)
    assert room.held == 100_000


def test_memory_of_large_requests_is_given_back():
    def mapped():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = mapped()
    for _ in range(3):
        body = block(64 << 20)
        np.frombuffer(body, np.uint8)[:] = 1
        del body
    until = time.monotonic() + DEADLINE
    while mapped() > before + (32 << 20):
        assert time.monotonic() < until
        time.sleep(0.01)


def embedded(size):
    def build():
        ids = fluid.data("ids", [None, 3], "int64")
        narrow = fluid.layers.split(fluid.layers.cast(ids, "int32"), 3, 1)
        parts = [fluid.layers.cast(part, "int64") for part in narrow]
        rows = fluid.embedding(fluid.layers.squeeze(parts[0], [1]), [size, 4])
        hot = fluid.one_hot(fluid.layers.reshape(ids, [-1, 3]), size + 5)
        return ["ids"], [fluid.layers.fc(rows, 2), fluid.layers.reduce_sum(hot, 1)]

    return build


def test_ids_beyond_a_table_are_refused_at_the_door(tmp_path):
    model = saved(tmp_path, embedded(10))
    assert LoadedModel(model).heights == {"ids": 10}
    with served({"m": model}) as found:
        for ids, status in (([0, 9, 5], 200), ([0, 10, 5], 400), ([-1, 1, 1], 400)):
            body = json.dumps({"inputs": {"ids": [ids]}}).encode()
            code, text = asked(f"{found}/predict", body)
            assert code == status
            if status == 400:
                assert "ids: expected ids from 0 to 9, found " in json.loads(text)["error"]
