"""Loaded models whose look-ups ask parameter servers."""

import os
import socket

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.distributed.wire import connections
from tests.distributed.job import VOCABULARY, Job, batch, batches, net, programs
from tests.ps_server.job import TABLE


def predict(folder, feed, endpoints=None):
    """(prediction, program, scope) of a saved model that is loaded anew."""
    scope, executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(scope):
        program, feeds, fetches = fluid.io.load_inference_model(str(folder), executor, pserver_endpoints=endpoints)
        (found,) = executor.run(program, feed={n: feed[n] for n in feeds}, fetch_list=fetches)
    executor.close()
    return found, program, scope


def save(trainer, folder, **options):
    with fluid.scope_guard(trainer.scope):
        fluid.io.save_inference_model(
            str(folder),
            ["x", "ids"],
            [trainer.built[1]],
            trainer.executor,
            trainer.main,
            **options,
        )


def rows_of(job):
    return [sum(t.rows for t in s.tables.values()) for s in connections_of(job).status()]


def connections_of(job):
    return connections.borrow(job.endpoints, 0, job).client


@pytest.mark.parametrize(("kind", "servers"), [("sparse", 2), ("distributed", 1)])
def test_servers_answer(kind, servers, tmp_path):
    feed = batch(7) | {"ids": np.arange(12)[:, None] + VOCABULARY // 2 - 6}
    with Job(net(kind, "sgd"), servers) as job:
        job.begin()
        job.steps(batches(2))
        save(job.trainers[0], tmp_path)
        rows = rows_of(job)
        wanted, _, scope = predict(tmp_path, feed)
        found, asking, other = predict(tmp_path, feed, job.endpoints)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        (op,) = [op for op in asking.global_block().ops if op.type.startswith("lookup_table")]
        assert op.attr("epmap") == job.endpoints
        assert scope.find_var("table") is not None and other.find_var("table") is None
        os.remove(tmp_path / "table")
        np.testing.assert_array_equal(predict(tmp_path, feed, job.endpoints)[0], found)
        assert rows_of(job) == rows  # those that were only asked for are not made
        job.steps(batches(2, 4))  # the trainer does not mind
        assert not np.allclose(predict(tmp_path, feed, job.endpoints)[0], found)


def test_an_evaluation_ends_no_trainer():
    """A program cloned for tests asks servers, which take it for no trainer."""
    with Job(net("distributed", "sgd"), 2) as job:
        job.begin()
        job.steps(batches(2))
        (trainer,) = job.trainers
        with fluid.scope_guard(trainer.scope):
            trainer.executor.run(trainer.main.clone(for_test=True), feed=batch(7), fetch_list=[trainer.built[1]])
        observer = connections.observe(job.endpoints, job)
        # the servers end a trainer's incarnation when they hear of a higher one
        assert connections_of(job)._connections.entered
        assert not observer.calls._connections.entered
        job.steps(batches(2))


def test_without_its_table(tmp_path):
    """The program alone, beside what save_persistables writes."""
    feed = batch(7)
    with Job(net("distributed", "adam"), 2) as job:
        job.begin()
        job.steps(batches(2))
        save(job.trainers[0], tmp_path / "whole")
        save(job.trainers[0], tmp_path / "divided", program_only=True)
        assert os.listdir(tmp_path / "divided") == ["__model__"]
        job.save(tmp_path / "divided")
        wanted, *_ = predict(tmp_path / "whole", feed)
        found, *_ = predict(tmp_path / "divided", feed, job.endpoints)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def model(folder, table="t", width=4, sparse=True):
    """Save a model, built without servers, of rows of a table; the rows in its own file."""
    with programs(), fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        rows = layers.embedding(
            fluid.data("ids", [None, 1], "int64"),
            [10, width],
            is_sparse=sparse,
            param_attr=fluid.ParamAttr(table),
        )
        executor.run(fluid.default_startup_program())
        fluid.io.save_inference_model(str(folder), ["ids"], [rows], executor)
    return str(folder)


def test_servers_of_their_own(tmp_path, servers):
    """A table that servers were given by their client, and a model that was built without any."""
    client = servers.start(2).client()
    client.create([TABLE])
    ids = np.arange(10)
    client.push({"t": (ids, np.ones((10, 4), np.float32))})
    asked = {"ids": ids[::2, None]}
    folder = model(tmp_path)
    found, *_ = predict(folder, asked, servers.endpoints)
    np.testing.assert_array_equal(found, client.look_up("t", ids[::2]))
    with pytest.raises(errors.ServerError, match=r"no table 'tt'; it has: t"):
        predict(model(tmp_path / "other", "tt"), asked, servers.endpoints)
    with pytest.raises(errors.ServerError, match="rows of 4 numbers, and the program expects 5"):
        predict(model(tmp_path / "wide", width=5), asked, servers.endpoints)
    with pytest.raises(errors.ServerError, match="which is number 1 from 0, at place 0 of"):
        predict(folder, asked, servers.endpoints[::-1])


def test_wrong_endpoints(tmp_path):
    executor, folder = fluid.Executor(fluid.CPUPlace()), model(tmp_path)
    with pytest.raises(TypeError, match=r'expected a list of "host:port"'):
        fluid.io.load_inference_model(folder, executor, pserver_endpoints="a:1")
    with pytest.raises(ValueError, match="a server is there twice: a:1, a:1"):
        fluid.io.load_inference_model(folder, executor, pserver_endpoints=["a:1", "a:1"])
    with pytest.raises(errors.ProgramError, match="none of the model's look-ups asks servers"):
        fluid.io.load_inference_model(model(tmp_path / "dense", sparse=False), executor, pserver_endpoints=["a:1"])
    fluid.set_flags({"FLAGS_rpc_deadline": 300})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(errors.ServerError, match=nobody):
            predict(folder, {"ids": np.zeros((1, 1), np.int64)}, [nobody])


def divided(**attrs):
    """A program with the look-up of a program that Fluid's transpiler has divided."""
    program = fluid.Program()
    block = program.global_block()
    block.create_parameter(name="t", shape=[10, 4], dtype="float32")
    block.create_var(name="ids", shape=[-1, 1], dtype="int64", is_data=True)
    block.create_var(name="rows", shape=[-1, 4], dtype="float32")
    block.append_op("distributed_lookup_table", {"Ids": "ids", "W": "t"}, {"Outputs": "rows"}, attrs)
    return program


def test_a_divided_program(tmp_path, servers):
    """As Fluid saves it: its own endpoints, and others in their place."""
    client = servers.start(2).client()
    client.create([TABLE])
    before = ["10.0.0.1:1", "10.0.0.2:1"]
    program = divided(table_names=["t", "t"], endpoints=before)
    executor, asked = fluid.Executor(fluid.CPUPlace()), {"ids": np.array([[3], [8]])}
    names = fluid.io.save_inference_model(
        str(tmp_path),
        ["ids"],
        [program.global_block().var("rows")],
        executor,
        program,
        program_only=True,
    )
    found, loaded, _ = predict(tmp_path, asked, servers.endpoints)
    np.testing.assert_array_equal(found, client.look_up("t", np.array([3, 8])))
    with pytest.raises(errors.ProgramError, match=r"at 2 servers \(10.0.0.1:1, 10.0.0.2:1\)"):
        fluid.io.load_inference_model(str(tmp_path), executor, pserver_endpoints=["a:1"])
    assert names and loaded.global_block().var("t").shape == (10, 4)
    block = loaded.global_block()
    block.append_op("scale", {"X": "t"}, {"Out": "rows"}, {"scale": 2.0})
    with pytest.raises(errors.ProgramError, match="scale reads t whole"):
        executor.run(loaded, feed=asked)
