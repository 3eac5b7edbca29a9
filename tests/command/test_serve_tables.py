"""`jfluid serve` of models with distributed tables: rows of running servers, and of shards in the model's folder."""

import json
import shutil

import numpy as np
import pytest

import jfluid as fluid
from jfluid import command, errors
from jfluid.command.serve import addresses
from jfluid.exports.model import LoadedModel
from tests.command.test_serve import asked, served
from tests.distributed.job import Job, batch, batches, click_model, clicks, net
from tests.distributed.test_loaded_models import model, save
from tests.dynamic_shapes.interpreted import interpreted
from tests.dynamic_shapes.test_placements import compilations
from tests.ps_server import job as table_servers
from tests.ps_server.job import TABLE, TOKEN

IDS = np.array([[3], [7], [10**15], [-5], [3]])  # a table takes any int64
X = batch(0)["x"][: len(IDS)]


@pytest.fixture(scope="module", autouse=True)
def secret():
    before = fluid.get_flags(["FLAGS_rpc_deadline", "FLAGS_interpret_first_steps"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JFLUID_JOB_TOKEN", TOKEN)
        fluid.set_flags({"FLAGS_rpc_deadline": 120_000})
        yield
    fluid.set_flags(before)


@pytest.fixture(scope="module")
def trained(secret, tmp_path_factory):
    """(a job whose servers run, its model beside the shards of its table, its model with a whole table)."""
    folder = tmp_path_factory.mktemp("tables")
    with Job(net("distributed", "adam"), 2) as job:
        job.begin()
        job.steps(batches(2))
        save(job.trainers[0], folder / "shards", program_only=True)
        job.save(folder / "shards")
        save(job.trainers[0], folder / "whole")
        yield job, str(folder / "shards"), str(folder / "whole")


def predicted(address, ids):
    body = json.dumps({"inputs": {"x": X[: len(ids)].tolist(), "ids": ids.tolist()}}).encode()
    status, said = asked(f"{address}/predict", body)
    return status, json.loads(said)


@pytest.mark.parametrize("source", ["shards", "servers"])
def test_rows_come_from_servers_or_shards(trained, source):
    job, shards, whole = trained
    feed = {"x": X[:2], "ids": IDS[:2]}
    (expected,) = LoadedModel(whole).run(feed)
    with served({"m": shards}, servers=job.endpoints if source == "servers" else ()) as address:
        status, said = predicted(address, IDS)
        assert status == 200, said
        (found,) = said["outputs"].values()
        described = json.loads(asked(address)[1])
    assert described["batched"] is True
    assert np.allclose(found[:2], expected, atol=1e-6)
    # a row that no trainer has shown is as it would begin, 0.1 everywhere: x alone decides
    (new,) = LoadedModel(whole).run({"x": X, "ids": np.full_like(IDS, 39)})
    assert np.allclose(found[2:4], new[2:4], atol=1e-6)


def test_a_whole_table_has_the_ids_of_its_height(trained):
    with served({"m": trained[2]}) as address:
        status, said = predicted(address, IDS)
    assert status == 400
    assert "ids: " in said["error"] and str(10**15) in said["error"]


def test_shards_serve_when_the_job_is_gone(trained, tmp_path):
    """A folder without a job: this process is the server of its shards, and ends with the model."""
    model = LoadedModel(trained[1])
    (first,) = model.run({"x": X, "ids": IDS})
    assert not np.allclose(first[0], first[1])
    model.close()
    with pytest.raises((errors.JFluidError, RuntimeError)):
        model.run({"x": X, "ids": IDS})


def test_sequences_of_remote_rows_are_compiled_for_few_sizes(tmp_path):
    """Lengths that vary compile little, as in models without servers."""
    fluid.set_flags({"FLAGS_interpret_first_steps": False})  # as `jfluid serve` does
    with Job(lambda: click_model(lambda: fluid.optimizer.SGD(0.1), distributed=True), 2) as job:
        job.begin()
        (trainer,) = job.trainers
        trainer.run(clicks(0))
        names = ["dense", "slot0", "slot1"]
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_inference_model(str(tmp_path), names, [trainer.built[1]], trainer.executor, trainer.main)
        served, local = LoadedModel(str(tmp_path), servers=job.endpoints), LoadedModel(str(tmp_path))
        for seed in range(6):
            served.run(served.sample(4, seed, 6))
        feeds = [served.sample(4, seed, 6) for seed in range(6, 16)]
        with compilations() as compiled:
            found = [served.run(feed)[0] for feed in feeds]
        served.close()
    assert np.allclose(found, [interpreted(local.run, feed)[0] for feed in feeds], atol=1e-6)
    assert len(compiled) < 8


def test_shards_are_not_exported(trained, tmp_path, capsys):
    words = ["export", trained[1], "--to", "onnx", "--output", str(tmp_path / "m.onnx")]
    assert command.main(words) == 1
    assert "onnx: table table is in shards or on servers" in capsys.readouterr().err


def test_damaged_shards_are_named(trained, tmp_path, capsys):
    folder = tmp_path / "damaged"
    shutil.copytree(trained[1], folder)
    (shard,) = [path for path in folder.rglob("*.0.rows") if "00000-of" in path.name]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert command.main(["serve", str(folder), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "table table" in said and shard.name in said


@pytest.fixture
def servers():
    made = table_servers.Job()
    yield made
    made.end()


def test_servers_that_do_not_answer_are_a_503(servers, tmp_path):
    client = servers.start(2).client()
    client.create([TABLE])
    folder = model(tmp_path)
    fluid.set_flags({"FLAGS_rpc_deadline": 500})
    with served({"m": folder}, servers=servers.endpoints) as address:
        body = json.dumps({"inputs": {"ids": [[1], [9]]}}).encode()
        status, said = asked(f"{address}/predict", body)
        assert (status, *json.loads(said)["outputs"].values()) == (200, client.look_up("t", np.array([1, 9])).tolist())
        for server in servers.servers:
            server.stop(0)
        status, said = asked(f"{address}/predict", body)
    assert status == 503
    assert "servers of the model's tables" in json.loads(said)["error"]


def test_addresses_come_from_a_list_or_a_job_file(tmp_path, capsys):
    assert addresses("a:1, 10.0.0.2:7") == ["a:1", "10.0.0.2:7"]
    job = tmp_path / "job.yaml"
    job.write_text("{mode: ps, script: a.py, servers: ['a:1', 'b:2'], trainers: ['a:3', 'b:4']}")
    assert addresses(str(job)) == ["a:1", "b:2"]
    job.write_text("{mode: ps, script: a.py, servers: 2, trainers: 2}")
    for wrong, text in (
        ("a", "must have the form host:port"),
        ("a:1,a:1", "a:1 stands twice"),
        (str(job), "found 2"),
        (str(tmp_path / "none.yaml"), "none.yaml"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(["serve", "folder", "--servers", wrong])
        assert ended.value.code == 2
        assert text in capsys.readouterr().err
