"""Several models and versions in one server, reloads without a lost request, the Open Inference Protocol."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import jsonschema
import numpy as np
import pytest

from jfluid import command, errors, flags
from jfluid.command import serve
from jfluid.command.serve import named
from jfluid.exports.model import LoadedModel
from jfluid.serving.requests import RequestLimits
from jfluid.serving.service import ModelService, Resources
from tests.command.test_serve import GOLDEN, OUTPUT, asked, images, served

pytestmark = pytest.mark.usefixtures("interpreted_module")

SCALED = "scaled"


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A model of the versions 2 and 10; that of version 10 has other parameters."""
    folder = tmp_path_factory.mktemp("versions")
    for number in ("2", "10"):
        shutil.copytree(GOLDEN, folder / number)
    other_parameters(folder / "10")
    return folder


def other_parameters(folder):
    """Change the last byte of a parameter's values."""
    bias = next(path for path in sorted(folder.iterdir()) if ".b_" in path.name)
    content = bytearray(bias.read_bytes())
    content[-4:] = np.float32(3.0).tobytes()
    bias.write_bytes(content)


@pytest.fixture(scope="module")
def address(versions):
    with served({"golden": str(GOLDEN), SCALED: str(versions)}) as found:
        yield found


def ask(address, path, rows=2):
    status, said = asked(f"{address}{path}", json.dumps({"inputs": {"image": images(rows).tolist()}}).encode())
    return status, json.loads(said)


def given(folder):
    return LoadedModel(str(folder)).run({"image": images(2)})[0]


def test_models_and_versions_have_addresses(address, versions):
    assert json.loads(asked(f"{address}/models")[1]) == {"models": {"golden": ["1"], SCALED: ["2", "10"]}}
    old, new = given(GOLDEN), given(versions / "10")
    assert not np.allclose(old, new)
    for path, expected in (
        ("/predict", old),
        ("/models/golden/predict", old),
        (f"/models/{SCALED}/predict", new),
        (f"/models/{SCALED}/versions/2/predict", old),
        (f"/models/{SCALED}/versions/10/predict", new),
    ):
        status, said = ask(address, path)
        assert status == 200 and np.allclose(said["outputs"][OUTPUT], expected, atol=1e-6), path
    assert json.loads(asked(f"{address}/models/{SCALED}/versions/2")[1])["version"] == "2"


@pytest.mark.parametrize(
    "path, says",
    [
        ("/models/gone/predict", "expected one of the models golden, scaled, found 'gone'"),
        (f"/models/{SCALED}/versions/3/predict", "scaled: expected one of the versions 2, 10, found '3'"),
        ("/elsewhere", "expected GET /, /models"),
    ],
)
def test_what_is_not_there_is_a_404(address, path, says):
    status, said = ask(address, path)
    assert status == 404 and says in said["error"]


def test_the_open_inference_protocol(address):
    model = f"{address}/v2/models/{SCALED}"
    assert json.loads(asked(f"{address}/v2")[1])["name"] == "jfluid"
    assert asked(f"{address}/v2/health/live")[0] == asked(f"{address}/v2/health/ready")[0] == 200
    assert asked(f"{model}/ready")[0] == asked(f"{model}/versions/2/ready")[0] == 200
    assert asked(f"{address}/v2/models/gone/ready")[0] == 404
    metadata = json.loads(asked(model)[1])
    assert metadata["versions"] == ["2", "10"]
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    x = images(2)
    for data in (x.ravel().tolist(), x.tolist()):
        body = {"inputs": [{"data": data, "name": "image", "datatype": "FP32", "shape": [2, 1, 8, 8]}]}
        status, said = asked(f"{model}/versions/2/infer", json.dumps(body).encode())
        found = json.loads(said)
        assert status == 200 and found["model_version"] == "2" and "id" not in found
        (output,) = found["outputs"]
        assert (output["name"], output["datatype"]) == (OUTPUT, "FP32")
        assert np.allclose(np.reshape(output["data"], output["shape"]), given(GOLDEN), atol=1e-6)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"datatype": "FP64"}, "image: expected the datatype FP32, found 'FP64'"),
        ({"shape": [3, 1, 8, 8]}, "image: expected the shape [-1, 1, 8, 8], found 128 numbers for [3, 1, 8, 8]"),
        ({"shape": [2, 64]}, "image: expected the shape"),
        ({"shape": [-2, 1, 8, 8]}, "image: expected the shape"),
        ({"shape": 2}, "image: expected the shape"),
        ({"name": "picture"}, "expected the inputs image, found 'picture'"),
        ({"data": [[1, 2], [3]]}, "a number in place of a list"),
        ({"data": None}, "image: expected numbers of float32: found 'null'"),
        ({"data": [1, "x"]}, "image: expected numbers of float32"),
        ({"text": 1}, "found 'text' in a tensor"),
    ],
)
def test_wrong_tensors_are_named(address, change, says):
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": images(2).ravel().tolist()}
    status, said = asked(f"{address}/v2/models/golden/infer", json.dumps({"inputs": [tensor | change]}).encode())
    assert status == 400 and says in json.loads(said)["error"], said


@pytest.mark.parametrize(
    "text, says",
    [
        ('{"inputs": [', "expected '{', found the end"),
        ('{"inputs": []}', "expected the inputs image, found none"),
        ('{"input": []}', "found 'input'"),
        ('{"inputs": [], "id": 3}', "id: expected a text"),
        ('{"inputs": [], "parameters": {', "expected a value"),
        ('{"inputs": [], "parameters": {"a": }}', "a value in JSON"),
        ('{"inputs": []} 1', "expected the end"),
        ('{"inputs": [], "inputs": []}', "is there twice"),
    ],
)
def test_wrong_texts_of_the_protocol_are_named(address, text, says):
    status, said = asked(f"{address}/v2/models/golden/infer", text.encode())
    assert status == 400 and says in json.loads(said)["error"], said


def test_an_unknown_output_is_named(address):
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": images(2).ravel().tolist()}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "gone"}]}).encode()
    status, said = asked(f"{address}/v2/models/golden/infer", body)
    assert status == 400 and f"outputs: expected {OUTPUT}, found 'gone'" in json.loads(said)["error"]


def test_the_description_has_every_address_and_its_forms(address):
    described = json.loads(asked(f"{address}/openapi.json")[1])
    assert described["openapi"] == "3.1.0"
    for path, methods in described["paths"].items():
        if "get" in methods:
            assert asked(f"{address}{path}")[0] == 200, path
    for path in ("/predict", f"/models/{SCALED}/versions/2/predict"):
        schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate({"inputs": {"image": images(2).tolist()}}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"inputs": {"image": [[[1]]]}}, schema)
    page = asked(f"{address}/docs")[1].decode()
    assert f"/v2/models/{SCALED}/versions/10/infer" in page and "http" not in page


def test_names_of_models():
    assert named(["a/b", "other=a/b"]) == {"b": "a/b", "other": "a/b"}
    for wrong in (["x", "x"], ["a b=y"], ["=y"]):
        with pytest.raises(errors.AttributeTypeError, match="expected NAME=FOLDER"):
            named(wrong)
    assert command.main(["serve", "x", "x"]) == 2


@pytest.mark.process
def test_versions_are_loaded_without_a_lost_request(tmp_path):
    """Clients ask all the time while versions come, change and go, and one is damaged."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN, folder / "1")
    arguments = [
        sys.executable,
        "-m",
        "jfluid",
        "serve",
        f"m={folder}",
        "--port",
        "0",
        "--access-log",
        "--max-batch",
        "2",
    ]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, text=True)
    ending, answers = threading.Event(), []
    try:
        address = process.stdout.readline().split(" at ")[1].strip()
        wait(lambda: asked(f"{address}/health")[0] == 200)

        def client():
            while not ending.wait(0.02):
                answers.append(ask(address, "/models/m/predict"))

        clients = [threading.Thread(target=client) for _ in range(2)]
        for thread in clients:
            thread.start()

        def change(number, damaged=False):
            shutil.copytree(GOLDEN, tmp_path / "new")
            other_parameters(tmp_path / "new")
            if damaged:
                (tmp_path / "new" / "__model__").write_bytes(b"x")
            os.rename(tmp_path / "new", folder / number)
            process.send_signal(signal.SIGHUP)

        def versions():
            return json.loads(asked(f"{address}/models")[1])["models"]["m"]

        change("2")
        wait(lambda: versions() == ["1", "2"])
        new = given(folder / "2")
        wait(lambda: np.allclose(ask(address, "/predict")[1]["outputs"][OUTPUT], new, atol=1e-6))
        change("3", damaged=True)
        wait(lambda: "m, version 3: not loaded" in (tmp_path / "log").read_text())
        assert versions() == ["1", "2"]
        change("4")  # the damaged version hides no later one
        wait(lambda: versions() == ["1", "2", "4"])
        assert (tmp_path / "log").read_text().count("m, version 3: not loaded") == 1
        shutil.rmtree(folder / "3")
        shutil.rmtree(folder / "4")
        shutil.rmtree(folder / "1")
        process.send_signal(signal.SIGHUP)
        wait(lambda: versions() == ["2"])
        shutil.rmtree(folder)
        process.send_signal(signal.SIGHUP)
        wait(lambda: "m, version 1: not loaded" in (tmp_path / "log").read_text())
        assert versions() == ["2"]
        assert asked(f"{address}/metrics")[1].count(b'jfluid_reloads_total{model="m",result="loaded"} 2.0') == 1
    finally:
        ending.set()
        for thread in clients:
            thread.join()
        process.terminate()
        process.wait()
        process.stdout.close()
    assert len(answers) > 20 and {status for status, _ in answers} == {200}
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    of_clients = [line for line in lines if line["path"] == "/models/m/predict"]
    assert len(of_clients) == len(answers)
    assert {(line["method"], line["status"]) for line in of_clients} == {("POST", 200)}


def test_new_versions_are_found_by_polling(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN, folder / "1")
    with served({"m": str(folder)}, poll=0.05) as address:
        assert json.loads(asked(f"{address}/models")[1])["models"] == {"m": ["1"]}
        shutil.copytree(GOLDEN, tmp_path / "new")
        other_parameters(tmp_path / "new")
        os.rename(tmp_path / "new", folder / "2")
        wait(lambda: json.loads(asked(f"{address}/models")[1])["models"] == {"m": ["1", "2"]})
        status, said = ask(address, "/predict")
    assert status == 200
    np.testing.assert_allclose(said["outputs"][OUTPUT], given(folder / "2"), atol=1e-6)


def wait(condition, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_no_request_waits_for_the_compiler():
    """Warm-up has compiled the model for batches of all sizes."""
    compiled = []
    resources = Resources(RequestLimits())
    service = ModelService(LoadedModel(str(GOLDEN)), 8, 0.0, resources)

    def note(event, *_, **__):
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        for rows in range(1, 9):
            service.batcher.submit({"image": images(rows)}, rows).result()
        assert not [event for event in compiled if "compile" in event]
        service.model.run({"image": images(70)})  # no size of a batch: the listener works
        assert [event for event in compiled if "compile" in event]
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
        service.batcher.close()
        resources.close()


def test_served_models_are_compiled_before_the_first_request(monkeypatch, tmp_path):
    """Warm-up must compile, whatever the default for scripts is."""
    monkeypatch.delenv("FLAGS_interpret_first_steps")
    monkeypatch.setattr(flags, "_values", {})
    seen = []
    monkeypatch.setattr(serve, "serve", lambda *arguments: seen.append(flags.get("FLAGS_interpret_first_steps")))
    assert flags.get("FLAGS_interpret_first_steps")
    assert serve.main([str(tmp_path), "--port", "0"]) == 0
    assert seen == [False]
