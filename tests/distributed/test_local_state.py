"""A trainer that is started again has what only its earlier life had: statistics, random numbers, a
place in the data.
"""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import distributed, errors
from jfluid.compile.runtime.size_history import SizeHistories
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer import local_state
from jfluid.distributed.wire import connections
from jfluid.ps_server import ps_pb2 as pb
from tests.distributed.job import Job, batches, net

STEPS = 6


def own_values(trainer):
    """All that the trainer's scope holds of its program, running statistics too."""
    return {
        v.name: np.array(trainer.scope.find_var(v.name).get_tensor())
        for v in trainer.main.list_vars()
        if v.persistable and trainer.scope.find_var(v.name) is not None
    }


def killed(job):
    """Put a new life in the place of the trainer, without a word to the servers."""
    (trainer,) = job.trainers
    connections._connections.pop((tuple(job.endpoints), 0)).client.close()
    job.trainers = [job.trainer(0)]
    return trainer


def run(job, feeds):
    (trainer,) = job.trainers
    return [trainer.run(feed)[0].item() for feed in feeds]


@pytest.fixture
def snapshots_wanted(monkeypatch, tmp_path):
    monkeypatch.setenv("JFLUID_PS_SNAPSHOT_FOLDER", str(tmp_path))


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_trainer_goes_on_as_if_nothing_had_happened(servers, snapshots_wanted, monkeypatch, tmp_path):
    feeds = batches(STEPS)
    with Job(net("sparse", "adam", own_state=True), servers=servers) as job:
        job.begin()
        losses, values = run(job, feeds), own_values(job.trainers[0])
    monkeypatch.setenv("JFLUID_PS_SNAPSHOT_FOLDER", str(tmp_path / "again"))
    with Job(net("sparse", "adam", own_state=True), servers=servers) as job:
        job.begin()
        found = run(job, feeds[:3])
        killed(job)
        job.begin()
        (trainer,) = job.trainers
        assert distributed.rounds(trainer.main) == 3
        found += run(job, feeds[3:])
        assert found == losses
        again = own_values(trainer)
        assert again.keys() == values.keys() and sum("batch_norm" in n for n in again) >= 4
        for name, value in values.items():
            np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_batches_that_were_trained_are_passed_over(snapshots_wanted):
    with Job(net("dense", "sgd")) as job:
        job.begin()
        run(job, batches(5))
        killed(job)
        job.begin()
        (trainer,) = job.trainers
        assert distributed.skip_trained(trainer.main) == 5
        epochs = [list(trainer.executor.engine.runner(trainer.main).prefetch(["a", "b", "c"])) for _ in range(3)]
        assert epochs == [[], ["c"], ["a", "b", "c"]]
        with pytest.raises(errors.ProgramError, match="skip_trained: expected a trainer's program"):
            distributed.skip_trained(fluid.Program())


def test_what_is_too_large_is_said_and_begins_anew(snapshots_wanted, monkeypatch, caplog):
    monkeypatch.setattr(local_state, "LARGEST", 100)
    with Job(net("dense", "sgd", own_state=True)) as job:
        job.begin()
        run(job, batches(2))
        assert caplog.text.count("more than the 100 that go into snapshots: it begins anew") == 1
        killed(job)
        job.begin()
        assert "no local state of trainer 0" in caplog.text


def test_without_snapshots_nothing_is_sent():
    with Job(net("dense", "sgd", own_state=True)) as job:
        job.begin()
        run(job, batches(2))
        assert (
            connections.connect(trainer_program.read(job.trainers[0].main)).client.trainer_state() == pb.TrainerState()
        )


@pytest.mark.parametrize(
    "variable, message",
    [
        (
            {"dtype": "float32", "shape": [3], "value": bytes(8)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "object", "shape": [1], "value": bytes(8)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "nonsense", "shape": [1], "value": bytes(8)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "f4," * 9, "shape": [1], "value": bytes(36)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "float32", "shape": [2**64 - 1], "value": bytes(8)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "float32", "shape": [2] + [1] * 70, "value": bytes(8)},
            "v: the state of this trainer at the servers is damaged: ",
        ),
        (
            {"dtype": "float32", "shape": [4], "value": bytes(16)},
            r"keep a value \[4\] of this trainer, and the program has",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused(variable, message):
    scope = fluid.Scope()
    scope.var("v").get_tensor().set(np.zeros(2, np.float32))
    with pytest.raises(errors.ServerError, match=message):
        local_state.install(pb.TrainerState(variables=[pb.StateVariable(name="v", **variable)]), scope, SizeHistories())
    good = pb.StateVariable(name="v", dtype="float32", shape=[2], value=b"\0\0\x80\x3f" * 2)
    with pytest.raises(errors.ServerError):  # all of it or nothing
        local_state.install(
            pb.TrainerState(variables=[good, pb.StateVariable(name="v", **variable)]), scope, SizeHistories()
        )
    with pytest.raises(errors.ServerError, match="no program runs that often"):
        local_state.install(pb.TrainerState(variables=[good], runs={"p": 2**63}), scope, SizeHistories())
    assert (np.array(scope.var("v").get_tensor()) == 0).all() and not scope.steps
