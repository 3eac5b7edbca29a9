"""Rows of the next batches of a dataset are pulled while this one trains, where the strategy lets
that be.
"""

import functools
import time

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import device_feeds
from jfluid.compile.runtime.device_feeds import DeviceTensor
from jfluid.distributed.programs.trainer_program import read
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.trainer.training import Trainer
from jfluid.distributed.wire import connections, pending_exchange
from jfluid.ps_server.client import Client
from tests.distributed.job import click_model, clicks, parameters, trainer_of
from tests.distributed.test_readers import STEPS, a_dataset
from tests.distributed.test_replicas import assert_same

MODEL = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02), True)
HALF_ASYNC, SYNC = 2, 0


def noting(name, method, found):
    def noted(self, *args, **kwargs):
        found.append(name)
        return method(self, *args, **kwargs)

    return noted


@pytest.fixture
def calls(monkeypatch):
    """What a trainer asks of servers, in the order of asking."""
    found = []
    for name in ("pull", "exchange"):
        monkeypatch.setattr(Client, name, noting(name, getattr(Client, name), found))
    return found


def trained(folder, depth, calls, mode=HALF_ASYNC):
    """The state after an epoch, and what was asked of servers in it."""
    with trainer_of(MODEL, sync=mode == SYNC) as (executor, program, (*_, data, _)):
        communicator = Communicator(program, mode, envs={"communicator_prefetch_depth": depth})
        communicator.start()
        calls.clear()
        executor.train_from_dataset(program, a_dataset(data, folder))
        connections.connect(read(program)).settle()
        asked = list(calls)
        communicator.stop()
        return parameters(program), asked


def test_depth_0_is_no_overlap(tmp_path, calls):
    with trainer_of(MODEL, sync=False) as (executor, program, (loss, *_)):
        for step in range(STEPS):
            executor.run(program, feed=clicks(step), fetch_list=[loss])
        fed = parameters(program)
    found, asked = trained(tmp_path, 0, calls)
    assert asked == ["pull", "exchange"] * STEPS
    for mine, other in zip(found.values(), fed.values(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_rows_are_pulled_ahead(depth, tmp_path, calls, monkeypatch):
    exchange, ahead = Client.exchange, []

    def after_the_next_pull(self, *args, **kwargs):
        """A step is over when the next batch's rows have been asked for."""
        wanted, end = min(calls.count("exchange") + 2, STEPS), time.monotonic() + 60
        while calls.count("pull") < wanted and time.monotonic() < end:
            time.sleep(0.002)
        ahead.append(calls.count("pull") >= wanted)
        return exchange(self, *args, **kwargs)

    monkeypatch.setattr(Client, "exchange", after_the_next_pull)
    found, asked = trained(tmp_path, depth, calls)
    assert sorted(asked) == ["exchange"] * STEPS + ["pull"] * STEPS
    assert ahead == [True] * STEPS
    assert all(np.isfinite(v).all() for v in found.values())


def test_rows_are_copied_to_the_device_ahead(tmp_path, calls, monkeypatch):
    """As on a GPU: by the thread that pulls them, so that the copy goes on beside the step before."""
    monkeypatch.setattr(device_feeds, "reads_host_memory", lambda device: False)
    copied, give_rows = [], Trainer._give_rows

    def noted(self, look_ups, feeds, *others):
        found = give_rows(self, look_ups, feeds, *others)
        copied.extend(feeds[0][look_up.table] for look_up in look_ups)
        return found

    monkeypatch.setattr(Trainer, "_give_rows", noted)
    found, _ = trained(tmp_path, 1, calls)
    assert len(copied) == STEPS
    for rows in copied:
        assert isinstance(rows, DeviceTensor) and isinstance(rows.device_value(), jax.Array)
    assert all(np.isfinite(v).all() for v in found.values())


def test_synchronous_steps_see_all_that_went_before(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(pending_exchange, "PATIENCE_S", 20.0)
    found, asked = trained(tmp_path, 2, calls, SYNC)
    assert asked == ["pull"] + ["exchange"] * STEPS  # an exchange brings the next batch's rows
    plain, _ = trained(tmp_path, 0, calls, SYNC)
    assert_same(([0.0], found), ([0.0], plain))


def test_evaluations_leave_the_tables_as_they_are(tmp_path):
    model = functools.partial(click_model, functools.partial(fluid.optimizer.Adam, 0.02), True)
    with trainer_of(model, sync=False) as (executor, program, (_, predicted, data, _)):
        client = connections.connect(read(program)).client
        executor.infer_from_dataset(program.clone(for_test=True), a_dataset(data, tmp_path), fetch_list=[predicted])
        (value,) = executor.run(program.clone(for_test=True), feed=clicks(0), fetch_list=[predicted])
        assert value.shape == (8, 2)
        assert client.status()[0].tables["table"].rows == 0
        executor.run(program, feed=clicks(0))
        assert client.status()[0].tables["table"].rows > 0
