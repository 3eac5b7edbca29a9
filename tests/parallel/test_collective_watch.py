"""Ranks that wait for a rank that will not come are found, named and ended."""

import contextlib
import logging
import time

import pytest

from jfluid.processes import collective_watch
from jfluid.processes.collective_watch import RUN, STEP, CollectiveWatch, RankState, contradiction
from tests.launch_case import gang


class Store(dict):
    """The coordinator's key-value store."""

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self[key] = value

    def key_value_dir_get(self, key):
        return [(name, value) for name, value in self.items() if name.startswith(key)]


class Result:
    """An array that is computed when the test says so."""

    def __init__(self):
        self.ready = False

    def is_deleted(self):
        return False

    def is_ready(self):
        return self.ready


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets forward."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_rank_that_has_ended_is_named_with_its_steps():
    states = {0: RankState(6, 5, STEP), 1: RankState(4, 4, ended=True)}
    assert "rank 1 has ended after 4 training steps, and rank 0 is in training step 5" in contradiction(states)


@pytest.mark.parametrize(
    "states",
    [
        {0: RankState(6, 5, STEP), 1: RankState(6, 5, ended=True)},
        {0: RankState(6, 5, STEP), 1: RankState(5, 4)},
        {0: RankState(6, 5, STEP), 1: RankState(6, 5, STEP)},
        {0: RankState(6, 5, STEP), 1: RankState(5, 4, RUN)},
        {0: RankState(6, 5), 1: RankState(5, 4, ended=True)},
    ],
)
def test_ranks_that_may_still_come_are_no_contradiction(states):
    assert contradiction(states) is None


def test_different_calls_of_one_number_are_a_contradiction():
    found = contradiction({0: RankState(6, 5, STEP), 1: RankState(6, 4, "broadcast")})
    assert "rank 0 is in training step 5, and rank 1 waits in a broadcast after 4 training steps" in found


def test_only_calls_that_stand_still_are_published(clock):
    store = Store()
    watch = CollectiveWatch(0, store)
    for _ in range(3):
        with watch.call(STEP):
            pass
        assert watch.look() is None and not store
    assert watch.look() is None
    assert store == {"jfluid/collective_calls/0": '[3, 3, "", false]'}


def test_a_call_that_is_refused_is_not_counted(clock):
    store = Store()
    watch = CollectiveWatch(0, store)
    with contextlib.suppress(ValueError), watch.call(STEP):
        raise ValueError
    watch.look()
    watch.look()
    assert not store  # as at first


def test_a_waiting_rank_logs_the_absent_rank_once_and_finds_its_end(clock, caplog):
    store = Store()
    one, two = CollectiveWatch(0, store), CollectiveWatch(1, store)
    result = Result()
    two.look()
    with two.call(STEP):
        pass
    for _ in range(2):
        with one.call(STEP) as call:
            call.result = result
        result.ready = one._state.calls == 1
        one.look()
        two.look()
    with caplog.at_level(logging.WARNING, "jfluid.processes.collective_watch"):
        for _ in range(8):
            clock[0] += 1.0
            assert one.look() is None
    assert [r.getMessage() for r in caplog.records] == [
        "rank 0 is in training step 2 and waits for rank 1, which is past 1 training step and makes no collective call"
    ]
    two._state = two._state._replace(ended=True)
    two.look()
    clock[0] += 1.0
    assert "rank 1 has ended after 1 training step, and rank 0 is in training step 2" in one.look()
    result.ready = True
    assert one.look() is None and one.look() is None


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("longer", [0, 1])
def test_uneven_data_ends_the_job_with_the_ranks_and_their_steps(longer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = gang(
        f"""
import numpy as np
import jfluid as fluid
from jfluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from jfluid.incubate.fleet.collective import DistributedStrategy, fleet
fleet.init(PaddleCloudRoleMaker(is_collective=True))
x = fluid.data("x", [None, 4])
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), DistributedStrategy()).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for step in range(3 + (rank == {longer})):
    exe.run(fleet.main_program, feed={{"x": np.ones((2, 4), "float32")}}, fetch_list=[loss])
""",
        "--cpus",
        "2",
        forks=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    expected = (
        f"RankError: rank {1 - longer} has ended after 3 training steps, and rank {longer} is in training step 4, "
        "which needs all ranks"
    )
    assert expected in result.stderr


def test_one_process_counts_nothing():
    with collective_watch.call(STEP) as call:
        assert call.result is None
