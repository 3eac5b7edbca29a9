"""What servers hold, saved whole and loaded by others."""

import contextlib
import functools
import itertools
import os
import shutil

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed import checkpoint
from jfluid.ps_server import snapshot
from tests.distributed.job import VOCABULARY, Job, alone, batch, batches, net, parameters, programs
from tests.failing_disk import Disk, Killed, left_in
from tests.slow_tests import nightly_but

KINDS = ["dense", "sparse", "distributed"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What trains on two servers, and saves the job after five steps: (folder, losses of the next four steps)."""

    @functools.cache
    def train(kind, optimizer, **config):
        with pytest.MonkeyPatch.context() as patch, Job(net(kind, optimizer), 2, **config) as job:
            patch.setenv("JFLUID_JOB_TOKEN", "0123456789-token-of-the-tests")
            job.begin()
            job.steps(batches(5))
            folder = job.save(tmp_path_factory.mktemp("trained"))
            return folder, job.steps(batches(5, 9))

    return train


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        ("dense", "decay"),
        pytest.param("sparse", "adam", marks=pytest.mark.nightly),
        ("sparse", "momentum"),
    ],
)
def test_one_process_goes_on(kind, optimizer, trained):
    """The folder is what `fluid.io` reads: all variables by name, whole."""
    folder, wanted = trained(kind, optimizer)
    found, _ = alone(net(kind, optimizer), batches(5, 9), load=folder)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "optimizer", "servers"),
    [
        pytest.param("dense", "decay", 3, marks=pytest.mark.nightly),
        ("sparse", "momentum", 1),
        pytest.param("sparse", "adam", 3, marks=pytest.mark.nightly),
        ("sparse", "lamb", 3),
        ("distributed", "decayed", 3),
    ],
)
def test_other_servers_go_on(kind, optimizer, servers, trained):
    folder, wanted = trained(kind, optimizer)
    with Job(net(kind, optimizer), servers, load=folder) as job:
        job.begin()
        found = job.steps(batches(5, 9))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_servers_go_on_from_one_process(tmp_path):
    losses, _ = alone(net("sparse", "adam"), batches(9))
    alone(net("sparse", "adam"), batches(5), save=str(tmp_path))
    with Job(net("sparse", "adam"), 2, load=str(tmp_path)) as job:
        job.begin()
        np.testing.assert_allclose(job.steps(batches(5, 9)), losses[5:], rtol=1e-4)


def test_asynchronous_schedules_go_on(trained):
    """Servers sum up the steps of all trainers: the sum is what is saved."""
    folder, wanted = trained("sparse", "decay", sync=False)
    with Job(net("sparse", "decay"), 3, sync=False, load=folder) as job:
        job.begin()
        np.testing.assert_allclose(job.steps(batches(5, 9)), wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", nightly_but(("dense", "distributed"), KINDS))
def test_inference_model(kind, tmp_path):
    with Job(net(kind, "adam"), 2) as job:
        job.begin()
        job.steps(batches(5))
        trainer, feed = job.trainers[0], batch(7)
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_inference_model(
                str(tmp_path), ["x", "ids"], [trainer.built[1]], trainer.executor, trainer.main
            )
        (wanted,) = trainer.run(feed, [trainer.built[1]])  # before the update of this step
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor(fluid.CPUPlace())
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), executor)
        assert {op.type for op in program.global_block().ops}.isdisjoint({"send", "recv", "distributed_lookup_table"})
        (found,) = executor.run(program, feed={n: feed[n] for n in feeds}, fetch_list=fetches)
        (rows,) = executor.run(program, feed={"x": feed["x"], "ids": feed["ids"] + VOCABULARY // 2}, fetch_list=fetches)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert not np.allclose(rows, found)  # rows that no trainer has touched are there too


@functools.cache
def reading():
    """The programs of one process that reads folders."""
    with programs():
        net("distributed", "sgd")()
        return fluid.default_main_program(), fluid.default_startup_program()


def loaded(folder):
    """All that is saved, as one process finds it."""
    main, startup = reading()
    scope, executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(scope):
        executor.run(startup)
        fluid.io.load_persistables(executor, str(folder), main)
    return parameters(main, scope)


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_save_is_killed(stride, tmp_path):
    """At any step of the trainer that saves: variables and rows of tables are those of one save.

    tests/files/test_file_sets.py kills savers of one process at each step.
    """
    with Job(net("distributed", "sgd"), 2) as job:
        job.begin()
        wanted = []
        for name in ("old", "new"):
            job.steps(batches(3))
            wanted.append(loaded(job.save(tmp_path / name)))
        shutil.rmtree(tmp_path / "new")
        seen = []
        for last in itertools.count(0, stride):
            folder = shutil.copytree(tmp_path / "old", tmp_path / str(last))
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                disk = Disk(patch, last)
                job.save(folder)
            found = loaded(folder)
            same = [all(np.array_equal(found[n], each[n]) for n in each) for each in wanted]
            assert sum(same) == 1
            seen.append(same[1])
            job.save(folder)
            assert len(list(folder.glob("table/*"))) == 1 and len(left_in(folder)) == 1
            shutil.rmtree(folder)
            if not disk.failed:
                break
        assert seen == sorted(seen) and not seen[0] and seen[-1]


def test_servers_of_other_hosts_have_another_folder(tmp_path, monkeypatch):
    with Job(net("distributed", "sgd"), 2) as job:
        job.begin()
        folder = job.save(tmp_path)
        before = loaded(folder)
        job.steps(batches(2))
        monkeypatch.setattr(snapshot, "complete", lambda folder: False)
        with pytest.raises(errors.ServerError, match="the same one for all hosts"):
            job.save(tmp_path)
        monkeypatch.undo()
    after = loaded(folder)
    assert all(np.array_equal(before[n], after[n]) for n in before)


def test_a_damaged_place_of_a_table(tmp_path):
    with Job(net("distributed", "sgd"), 1) as job:
        job.begin()
        folder = job.save(tmp_path)
    (tmp_path / "table.saved").write_text("../../elsewhere")
    with pytest.raises(errors.FileFormatError, match="table.saved: expected the name of a folder"):
        loaded(folder)


def test_one_table(tmp_path):
    with Job(net("distributed", "adam"), 2) as job:
        job.begin()
        trainer = job.trainers[0]
        job.steps(batches(3))
        checkpoint.save_one_table(trainer.executor, "table", tmp_path, trainer.main)
        before = job.parameters()
        job.steps(batches(3, 5))
        assert not np.array_equal(job.parameters()["table"], before["table"])
        checkpoint.load_one_table(trainer.executor, "table", tmp_path, trainer.main)
        after = job.parameters()
        np.testing.assert_array_equal(after["table"], before["table"])
        assert not np.array_equal(after["w1"], before["w1"])  # everything else stays
        job.steps(batches(5, 7))  # and trainers are not disturbed


def notify(**attrs):
    program = fluid.Program()
    program.global_block().append_op("checkpoint_notify", {}, {}, attrs)
    return program


def test_checkpoint_notify(tmp_path):
    """Fluid's operator for having servers save a table."""
    with Job(net("distributed", "adam"), 2) as job:
        job.begin()
        trainer = job.trainers[0]
        job.steps(batches(3))
        trainer.executor.run(notify(epmap=job.endpoints, dir=str(tmp_path), lookup_table="table"))
        wanted = job.parameters()["table"]
        job.steps(batches(3, 5))
        checkpoint.load_one_table(trainer.executor, "table", tmp_path, trainer.main)
        np.testing.assert_array_equal(job.parameters()["table"], wanted)
        job.save(tmp_path)
        job.steps(batches(5, 7))  # what the operator saves later is the newer one
        trainer.executor.run(notify(epmap=job.endpoints, dir=str(tmp_path), lookup_table="table"))
        wanted = job.parameters()["table"]
        job.steps(batches(7, 8))
        checkpoint.load_one_table(trainer.executor, "table", tmp_path, trainer.main)
        np.testing.assert_array_equal(job.parameters()["table"], wanted)
        with pytest.raises(errors.ServerError, match="there is no table 'tables'"):
            trainer.executor.run(notify(epmap=job.endpoints, dir=str(tmp_path), lookup_table="tables"))
        with pytest.raises(errors.FetchError, match="nothing to feed or fetch"):
            trainer.executor.run(
                notify(epmap=job.endpoints, dir=str(tmp_path), lookup_table="table"),
                feed={"x": wanted},
            )
    with pytest.raises(errors.ProgramError, match="lookup_table: expected a table"):
        fluid.Executor(fluid.CPUPlace()).run(notify(epmap=["127.0.0.1:1"], dir=str(tmp_path)))


def test_shrink():
    with Job(net("distributed", "sgd"), 2) as job:
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
    with Job(net("sparse", "adam"), 2) as job:
        job.begin()
        job.steps(batches(1))
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
        job.save(tmp_path)
        program, _ = job.server(0)
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
