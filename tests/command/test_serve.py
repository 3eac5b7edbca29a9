"""`jfluid serve`: a model answers requests in JSON and .npz, batched, with health and metrics."""

import contextlib
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jfluid import command, errors
from jfluid.command.serve import listen
from jfluid.exports.model import LoadedModel
from jfluid.serving.application import server
from jfluid.serving.batching import Batcher
from jfluid.serving.models import Models
from jfluid.serving.requests import NPZ, RequestLimits, TooManyRequests
from jfluid.serving.service import ModelService, Resources

GOLDEN = Path(__file__).parents[1] / "golden" / "models" / "separate"
OUTPUT = "save_infer_model/scale_0.tmp_0"


@contextlib.contextmanager
def served(folders=None, limits=None, poll=0.0, servers=(), **options):
    """The address at which models, or the golden one, are served."""
    resources = Resources(limits or RequestLimits(bytes=1 << 20))
    settings = {"largest": 8, "delay": 0.2} | options

    def load(folder, name, version):
        model = LoadedModel(folder, servers=servers)
        return ModelService(model, resources=resources, name=name, version=version, **settings)

    models = Models(folders or {"golden": str(GOLDEN)}, load, resources)
    with listen("127.0.0.1", 0) as socket:
        serving = server(models, poll)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [socket]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            serving.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def address():
    with served() as found:
        yield found


def asked(url, body=None, kind="application/json"):
    """(status, content) of an answer."""
    request = urllib.request.Request(url, body, {"content-type": kind} if body else {})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def images(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 1, 8, 8)).astype("float32")


def test_json_and_npz_give_what_the_model_gives(address):
    x = images(3)
    (expected,) = LoadedModel(str(GOLDEN)).run({"image": x})
    status, said = asked(f"{address}/predict", json.dumps({"inputs": {"image": x.tolist()}}).encode())
    assert status == 200
    assert np.allclose(json.loads(said)["outputs"][OUTPUT], expected, atol=1e-6)
    file = io.BytesIO()
    np.savez(file, image=x)
    status, said = asked(f"{address}/predict", file.getvalue(), NPZ)
    with np.load(io.BytesIO(said)) as found:
        assert status == 200 and np.allclose(found[OUTPUT], expected, atol=1e-6)
        assert found[OUTPUT].dtype == np.float32


def test_requests_that_come_together_run_as_one_batch(address):
    (expected,) = LoadedModel(str(GOLDEN)).run({"image": images(6)})
    bodies = [json.dumps({"inputs": {"image": images(6)[i : i + 1].tolist()}}) for i in range(6)]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda b: asked(f"{address}/predict", b.encode()), bodies))
    found = [json.loads(said)["outputs"][OUTPUT][0] for _, said in answers]
    assert np.allclose(found, expected, atol=1e-6)
    text = asked(f"{address}/metrics")[1].decode()
    counts = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}

    def count(name, *labels):
        of = ",".join(['model="golden"', *labels, 'version="1"'])
        return counts[f"jfluid_{name}{{{of}}}"]

    assert count("batch_rows_sum") >= 6
    assert count("batch_rows_count") < count("batch_rows_sum")
    assert count("requests_total", 'status="200"') >= 6


def test_health_and_signature(address):
    assert asked(f"{address}/health") == (200, b'{"status":"ok"}')
    described = json.loads(asked(f"{address}/")[1])
    assert described["inputs"] == [{"name": "image", "dtype": "float32", "shape": [-1, 1, 8, 8]}]
    assert described["batched"] is True


@pytest.mark.parametrize(
    "body, kind, status, says",
    [
        (b"{", "application/json", 400, "in JSON"),
        (b"[1]", "application/json", 400, "expected {"),
        (
            b'{"inputs": {"y": [1]}}',
            "application/json",
            400,
            "expected the inputs image, found 'y'",
        ),
        (
            b'{"inputs": {"image": [[1]]}}',
            "application/json",
            400,
            "expected the shape [-1, 1, 8, 8]",
        ),
        (b'{"inputs": {"image": "a"}}', "application/json", 400, "expected numbers of float32"),
        (
            b'{"inputs": {"image": [[1], [1, 2]]}}',
            "application/json",
            400,
            "image: expected the shape",
        ),
        (b"PK\x03\x04" + b"x" * 100, NPZ, 400, "expected an .npz"),
        (b" " * ((1 << 20) + 1), "application/json", 413, "a request may have 1048576 bytes"),
    ],
)
def test_bad_requests_are_answered(address, body, kind, status, says):
    code, said = asked(f"{address}/predict", body, kind)
    assert code == status and says in json.loads(said)["error"]
    assert asked(f"{address}/health")[0] == 200


def test_a_client_that_still_sends_reads_why_it_is_refused(address):
    host, port = address.removeprefix("http://").split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=30) as stream:
            stream.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1600000\r\n\r\n")
            for _ in range(8):
                time.sleep(0.01)
                stream.sendall(b" " * 200_000)
            assert stream.recv(12) == b"HTTP/1.1 413"


def test_pickles_are_not_read(address):
    file = io.BytesIO()
    np.savez(file, image=np.array([{}], dtype=object))
    code, said = asked(f"{address}/predict", file.getvalue(), NPZ)
    assert code == 400 and "found elements of 'object'" in json.loads(said)["error"]


def test_more_than_may_wait_is_refused_and_errors_reach_their_requests():
    running, going_on = threading.Event(), threading.Event()

    def run(feed):
        running.set()
        going_on.wait()
        if feed["x"].max() > 2:
            raise errors.OpError("too large")
        return [feed["x"] * 2]

    batcher = Batcher(run, largest=1, delay=0.0, waiting=2)
    first = batcher.submit({"x": np.ones((1, 1))}, 1)
    running.wait()
    second, third = (batcher.submit({"x": np.full((1, 1), n)}, 1) for n in (2.0, 3.0))
    with pytest.raises(TooManyRequests, match="2 requests wait already"):
        batcher.submit({"x": np.ones((1, 1))}, 1)
    going_on.set()
    assert first.result()[0] == 2 and second.result()[0] == 4
    with pytest.raises(errors.OpError, match="too large"):
        third.result()
    batcher.close()


def test_rows_of_different_shapes_do_not_run_together():
    batcher = Batcher(lambda feed: [feed["x"].sum(axis=1)], largest=8, delay=0.05)
    answers = [batcher.submit({"x": np.ones((2, width))}, 2) for width in (1, 1, 3, 2)]
    assert [answer.result()[0].tolist() for answer in answers] == [[1, 1], [1, 1], [3, 3], [2, 2]]
    batcher.close()


def test_wrong_models_and_ports_are_named(tmp_path, capsys):
    assert command.main(["serve", str(tmp_path)]) == 2
    assert "there is no __model__" in capsys.readouterr().err
    with listen("127.0.0.1", 0) as socket:
        port = str(socket.getsockname()[1])
        assert command.main(["serve", str(GOLDEN), "--port", port]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option, value",
    [("--max-rows", "0"), ("--max-batch", "-1"), ("--timeout", "0"), ("--max-delay", "nan")],
)
def test_bounds_are_positive(option, value, capsys):
    with pytest.raises(SystemExit):
        command.main(["serve", str(GOLDEN), option, value])
    assert f"argument {option}: expected a" in capsys.readouterr().err
