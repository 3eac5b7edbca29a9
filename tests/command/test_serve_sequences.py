"""`jfluid serve` of models that read sequences: nested lists, rows with offsets, .npz, tensors with offsets."""

import io
import json

import numpy as np
import pytest

import jfluid as fluid
from jfluid.exports.model import LoadedModel
from jfluid.exports.sequences import Sequences
from jfluid.serving.requests import NPZ, RequestLimits
from tests.command.test_serve import asked, served

pytestmark = pytest.mark.usefixtures("interpreted_module")

HEIGHT = 50
IDS = [[3, 1], [7], [2, 2, 49]]
ROWS, OFFSETS = np.array([[i] for ids in IDS for i in ids]), [0, 2, 3, 6]
DENSE = np.arange(6, dtype="float32").reshape(3, 2) / 8


def saved(folder, build):
    main, start = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        feeds, fetches = build()
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(start)
        fluid.io.save_inference_model(str(folder), [v.name for v in feeds], fetches, executor, main)
    return str(folder)


def clicks():
    """A click model: rows of a table pooled by slot; and the rows themselves, which stay sequences."""
    dense, ids = fluid.data("dense", [None, 2]), fluid.data("C1", [None, 1], "int64", lod_level=1)
    rows = fluid.layers.embedding(ids, [HEIGHT, 4])
    pooled = fluid.layers.concat([dense, fluid.layers.sequence_pool(rows, "sum")], axis=1)
    return [dense, ids], [fluid.layers.fc(pooled, 2, act="softmax"), fluid.layers.scale(rows, 2.0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("clicks"), clicks)


@pytest.fixture(scope="module")
def address(model):
    with served({"clicks": model}, longest=3, largest=4) as found:
        yield found


@pytest.fixture(scope="module")
def expected(model):
    return LoadedModel(model).run({"dense": DENSE, "C1": Sequences(ROWS, [np.array(OFFSETS)])})


def predicted(address, ids, dense=None):
    dense = DENSE.tolist() if dense is None else dense
    status, said = asked(f"{address}/predict", json.dumps({"inputs": {"C1": ids, "dense": dense}}).encode())
    return status, json.loads(said)


def check(outputs, expected):
    probabilities, rows = outputs.values()
    assert np.allclose(probabilities, expected[0], atol=1e-6)
    assert [len(row) for row in rows] == [2, 1, 3]
    assert np.allclose([row for each in rows for row in each], expected[1].rows, atol=1e-6)


@pytest.mark.parametrize(
    "ids",
    [IDS, [[[i] for i in ids] for ids in IDS], {"data": ROWS.tolist(), "lod": [OFFSETS]}],
    ids=["numbers", "rows", "offsets"],
)
def test_sequences_in_json(address, expected, ids):
    status, said = predicted(address, ids)
    assert status == 200
    check(said["outputs"], expected)


def test_requests_of_sequences_run_as_one_batch_or_in_pieces(address, expected):
    """Seven sequences are more than a batch of four, and two have no rows."""
    status, said = predicted(address, [*IDS, [], *IDS], [*DENSE.tolist(), [0, 0], *DENSE.tolist()])
    probabilities, rows = said["outputs"].values()
    assert status == 200
    assert np.allclose(probabilities[:3], expected[0], atol=1e-6)
    assert np.allclose(probabilities[4:], expected[0], atol=1e-6)
    assert [len(row) for row in rows] == [2, 1, 3, 0, 2, 1, 3]


def test_sequences_in_npz(address, expected):
    file = io.BytesIO()
    np.savez(file, dense=DENSE, C1=ROWS, **{"C1.lod": np.array(OFFSETS)})
    status, said = asked(f"{address}/predict", file.getvalue(), NPZ)
    assert status == 200
    with np.load(io.BytesIO(said)) as found:
        name = next(name for name in found if name.endswith(".lod"))
        assert found[name].tolist() == OFFSETS
        assert np.allclose(found[name.removesuffix(".lod")], expected[1].rows, atol=1e-6)


def tensor(name, array):
    kind = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
    return {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.ravel().tolist()}


def test_sequences_in_the_open_inference_protocol(address, expected, model):
    offsets = np.array(OFFSETS)
    inputs = [tensor("C1.lod", offsets), tensor("C1", ROWS), tensor("dense", DENSE)]
    first = LoadedModel(model).fetches[0].name
    body = {"id": "a", "inputs": inputs, "outputs": [{"name": first}]}
    status, said = asked(f"{address}/v2/models/clicks/infer", json.dumps(body).encode())
    found = json.loads(said)
    assert status == 200, found
    assert (found["id"], found["model_name"], found["model_version"]) == ("a", "clicks", "1")
    (output,) = found["outputs"]
    assert output["shape"] == [3, 2] and output["datatype"] == "FP32"
    assert np.allclose(output["data"], expected[0].ravel(), atol=1e-6)


@pytest.mark.parametrize(
    "ids, says",
    [
        ([[3, 1], [7], [2, HEIGHT]], f"C1: expected ids from 0 to {HEIGHT - 1}, found {HEIGHT} at [4, 0]"),
        ([[3, 1], [-1], [2]], "found -1 at [2, 0]"),
        ([[3, 1], [7]], "all inputs have to have the same number of rows"),
        ([3, 1, 7], "a number in place of a list"),
        ([[[[3]]], [], []], "lists of more than"),
        ([[3.5], [1], [2]], "C1: expected numbers of int64: found '3.5'"),
        ({"data": [[1], [2]], "lod": [[0, 1, 1, 3]]}, "C1: level 0 of the offsets: expected numbers"),
        ({"data": [[1], [2]], "lod": [[0, 2, 1, 2]]}, "begin with 0, never fall and end with 2"),
        ({"data": [[1], [2]], "lod": [[1, 1, 1, 2]]}, "begin with 0"),
        ({"data": [[1]], "lod": [[0, 1], [0, 1]]}, "C1: expected 1 levels of offsets, found 2"),
        ({"data": [[1]]}, "found data alone"),
        ({"rows": [[1]]}, "found 'rows'"),
        ("", "C1: expected numbers of int64: found"),
    ],
)
def test_wrong_sequences_are_named(address, ids, says):
    status, said = predicted(address, ids)
    assert status == 400 and says in said["error"], said


def test_two_levels(tmp_path):
    def build():
        x = fluid.data("x", [None, 3], lod_level=2)
        return [x], [fluid.layers.sequence_pool(x, "sum")]

    folder = saved(tmp_path, build)
    rows = np.arange(12, dtype="float32").reshape(4, 3)
    nested = [[rows[:1].tolist(), []], [rows[1:].tolist()]]
    (pooled,) = LoadedModel(folder).run({"x": Sequences(rows, [np.array([0, 2, 3]), np.array([0, 1, 1, 4])])})
    with served({"m": folder}, longest=2, largest=2) as address:
        for x in (nested, {"lod": [[0, 2, 3], [0, 1, 1, 4]], "data": rows.tolist()}):
            status, said = asked(f"{address}/predict", json.dumps({"inputs": {"x": x}}).encode())
            assert status == 200, said
            (found,) = json.loads(said)["outputs"].values()
            assert [len(part) for part in found] == [2, 1]
            assert np.allclose([row for part in found for row in part], pooled.rows, atol=1e-6)
        file = io.BytesIO()
        np.savez(file, x=rows, **{"x.lod0": np.array([0, 2, 3]), "x.lod1": np.array([0, 1, 1, 4])})
        assert asked(f"{address}/predict", file.getvalue(), NPZ)[0] == 200


def test_large_requests_of_sequences(model):
    """More than 64 KiB are read in a thread, and the elements are bounded."""
    count = 6000
    ids, dense = [[1, 2]] * count, [[0.0, 0.0]] * count
    with served({"m": model}, limits=RequestLimits(bytes=1 << 20, rows=10_000, elements=50_000), longest=2) as address:
        status, said = predicted(address, ids, dense)
        assert status == 200 and len(next(iter(said["outputs"].values()))) == count
        status, said = predicted(address, [[1] * 25_000, [2] * 25_000, []])
        assert status == 413 and "50000 numbers and lists" in said["error"]
