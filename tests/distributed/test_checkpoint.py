"""What servers hold, saved whole and loaded by others."""
import os

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed import checkpoint
from tests.distributed.jobs import VOCABULARY, Job, alone, batch

KINDS = ["dense", "sparse", "distributed"]


def save(job, folder):
    trainer = job.trainers[0]
    with fluid.scope_guard(trainer.scope):
        checkpoint.save_persistables(trainer.executor, folder, trainer.main)
    return str(folder)


def trained(kind, optimizer, folder, steps, servers=2, **config):
    """Train, and save the job in a folder; the losses of all steps but the first five."""
    with Job(kind, optimizer, servers, **config) as job:
        job.begin()
        job.steps(range(5))
        save(job, folder)
        return job.steps(steps)


@pytest.mark.parametrize("optimizer", ["adam", "decay", "momentum", "adagrad", "rmsprop"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_one_process_goes_on(kind, optimizer, tmp_path):
    """The folder is what `fluid.io` reads: all variables by name, whole."""
    wanted = trained(kind, optimizer, tmp_path, range(5, 9))
    found, _ = alone(kind, optimizer, range(5, 9), load=tmp_path)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(("kind", "optimizer", "servers"), [
    ("dense", "adam", 3), ("dense", "sgd", 1), ("sparse", "adam", 3), ("sparse", "decay", 2), ("sparse", "adagrad", 1),
    ("sparse", "rmsprop", 2), ("sparse", "lamb", 3), ("distributed", "adam", 3), ("distributed", "adam", 1),
    ("distributed", "adagrad", 2), ("distributed", "decayed", 3)])
def test_other_servers_go_on(kind, optimizer, servers, tmp_path):
    wanted = trained(kind, optimizer, tmp_path, range(5, 9))
    with Job(kind, optimizer, servers, load=str(tmp_path)) as job:
        job.begin()
        found = job.steps(range(5, 9))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_servers_go_on_from_one_process(tmp_path):
    losses, _ = alone("sparse", "adam", range(9))
    alone("sparse", "adam", range(5), save=str(tmp_path))
    with Job("sparse", "adam", 2, load=str(tmp_path)) as job:
        job.begin()
        np.testing.assert_allclose(job.steps(range(5, 9)), losses[5:], rtol=1e-4)


def test_asynchronous_schedules_go_on(tmp_path):
    """Servers sum up the steps of all trainers: the sum is what is saved."""
    wanted = trained("sparse", "decay", tmp_path, range(5, 9), sync=False)
    with Job("sparse", "decay", 3, sync=False, load=str(tmp_path)) as job:
        job.begin()
        np.testing.assert_allclose(job.steps(range(5, 9)), wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_model(kind, tmp_path):
    with Job(kind, "adam", 2) as job:
        job.begin()
        job.steps(range(5))
        trainer, feed = job.trainers[0], batch(7)
        with fluid.scope_guard(trainer.scope):
            predicted = trainer.main.global_block().var(trainer.predicted)
            fluid.io.save_inference_model(str(tmp_path), ["x", "ids"], [predicted], trainer.executor, trainer.main)
        wanted, = trainer.run(feed, [trainer.predicted])  # before the update of this step
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), executor)
        assert {op.type for op in program.global_block().ops}.isdisjoint({"send", "recv", "distributed_lookup_table"})
        found, = executor.run(program, feed={n: feed[n] for n in feeds}, fetch_list=fetches)
        rows, = executor.run(program, feed={"x": feed["x"], "ids": feed["ids"] + VOCABULARY // 2}, fetch_list=fetches)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert not np.allclose(rows, found)  # rows that no trainer has touched are there too


def test_one_table(tmp_path):
    with Job("distributed", "adam", 2) as job:
        job.begin()
        trainer = job.trainers[0]
        job.steps(range(3))
        checkpoint.save_one_table(trainer.executor, "table", tmp_path, trainer.main)
        wanted, w1 = job.rows(), job.parameters()["w1"]
        job.steps(range(3, 5))
        assert not np.array_equal(job.rows(), wanted)
        checkpoint.load_one_table(trainer.executor, "table", tmp_path, trainer.main)
        np.testing.assert_array_equal(job.rows(), wanted)
        assert not np.array_equal(job.parameters()["w1"], w1)  # everything else stays
        job.steps(range(5, 7))  # and trainers are not disturbed


def test_shrink():
    with Job("distributed", "sgd", 2) as job:
        job.begin()
        trainer = job.trainers[0]
        trainer.run({**batch(0), "ids": np.arange(12)[:, None]})
        for step in range(3):
            trainer.run({**batch(step), "ids": np.arange(6, 18)[:, None]})
        assert checkpoint.shrink(trainer.executor, None, 3, trainer.main) == 6
        assert checkpoint.shrink(trainer.executor, "table", 3, trainer.main) == 0
        with pytest.raises(errors.ServerError, match="age"):
            checkpoint.shrink(trainer.executor, "table", 0, trainer.main)


def test_refusals(tmp_path):
    with Job("sparse", "adam", 2) as job:
        job.begin()
        job.steps(range(1))
        trainer = job.trainers[0]
        executor, main = trainer.executor, trainer.main
        with pytest.raises(errors.ProgramError, match="expected a trainer's program"):
            checkpoint.save_persistables(executor, tmp_path, fluid.Program())
        with pytest.raises(errors.ProgramError, match="w1 is no table; there is: table"):
            checkpoint.save_one_table(executor, "w1", tmp_path, main)
        with pytest.raises(errors.UnsupportedError, match="init_server"):
            checkpoint.load_one_table(executor, "table", tmp_path, main)
        with pytest.raises(errors.ProgramError, match="not distributed"):
            checkpoint.shrink(executor, "table", 3, main)
        with pytest.raises(errors.ProgramError, match="expected a server's program"):
            checkpoint.load(tmp_path, main, executor, fluid.Scope())
        save(job, tmp_path)
        program, _ = job.transpiled().get_pserver_programs(job.endpoints[0])
    scope = fluid.Scope()
    with pytest.raises(errors.FileFormatError, match="no such folder"):
        checkpoint.load(tmp_path / "nothing", program, executor, scope)
    os.rename(tmp_path / "table_moment1_0", tmp_path / "other")
    with pytest.raises(errors.FileFormatError, match="in part: table_moment1_0 missing"):
        checkpoint.load(tmp_path, program, executor, scope)
    for path in tmp_path.glob("*_0"):
        path.unlink()
    checkpoint.load(tmp_path, program, executor, scope)  # parameters alone
    assert scope.find_var("table.block0").get_tensor()._is_initialized()
    (tmp_path / "table").write_bytes((tmp_path / "w1").read_bytes())
    with pytest.raises(errors.FileFormatError, match=r"table.*expected float32\[40, 4\], found float32\[10, 8\]"):
        checkpoint.load(tmp_path, program, executor, scope)
