"""Asynchronous steps whose gradients leave while the next one computes: what they send when, and that all
of it arrives once.
"""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.distributed.programs.trainer_program import read
from jfluid.distributed.trainer import async_steps
from jfluid.distributed.trainer.async_steps import AsyncSteps
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.trainer.strategies import Async
from jfluid.distributed.wire import connections
from jfluid.ps_server.client import Client
from jfluid.ps_server.socket_channels import CallStream
from jfluid.ps_server.transport import CallError
from tests.distributed.job import alone, parameters, served, trainer_of
from tests.distributed.test_prefetch import MODEL, a_dataset, noting
from tests.distributed.test_prefetch import STEPS as BATCHES

ASYNC, STEPS, RATE = 1, 6, 0.5
ONE_BY_ONE = {
    f"communicator_{name}": 1 for name in ("send_queue_size", "max_merge_var_num", "min_send_grad_num_before_recv")
}


def linear(rows=True):
    """What builds a loss that is linear in all parameters: gradients do not depend on them."""

    def build():
        x = fluid.data("x", [None, 256])
        weight = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(0.5))
        loss = layers.mean(layers.fc(x, 300, param_attr=weight, bias_attr=False))
        if rows:
            ids = fluid.data("ids", [None, 1], dtype="int64")
            table = fluid.ParamAttr("table", initializer=fluid.initializer.Constant(0.1))
            found = layers.embedding(ids, [50, 4], is_sparse=True, param_attr=table)
            loss = loss + layers.mean(found)
        fluid.optimizer.SGD(RATE).minimize(loss)
        return (loss,)

    return build


def feed_of(step, rows=True):
    random = np.random.RandomState(step)
    feed = {"x": random.rand(8, 256).astype("float32")}
    return feed | {"ids": random.randint(0, 50, [8, 1])} if rows else feed


def started(program, **settings):
    communicator = Communicator(program, ASYNC, envs=ONE_BY_ONE | settings)
    communicator.start()
    return communicator


@pytest.fixture
def calls(monkeypatch):
    """What a trainer asks of servers, in the order of asking."""
    found = []
    submit = ThreadPoolExecutor.submit

    def noted(self, function, *args):
        if function is async_steps.send:
            found.append("send")
        return submit(self, function, *args)

    monkeypatch.setattr(Client, "pull", noting("pull", Client.pull, found))
    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted)
    return found


@pytest.mark.parametrize("receive", [1, 5])
def test_all_gradients_arrive_once(receive):
    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program, communicator_min_send_grad_num_before_recv=receive)
        for step in range(STEPS):
            executor.run(program, feed=feed_of(step), fetch_list=[loss])
        communicator.stop()
        found = parameters(program)
    _, expected = alone(linear(), map(feed_of, range(STEPS)))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.parametrize("every", [2, 3])
def test_calls_whose_answers_are_lost_are_made_again_once(every, monkeypatch):
    answer, answers = CallStream.answer, itertools.count(1)

    def lost(self, *args):
        found = answer(self, *args)
        if next(answers) % every == 0:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "gone")
        return found

    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        monkeypatch.setattr(CallStream, "answer", lost)
        for step in range(STEPS):
            executor.run(program, feed=feed_of(step), fetch_list=[loss])
        communicator.stop()
        found = parameters(program)
        calls = connections.connect(read(program)).calls
        assert calls.status()[0].through == STEPS and not calls.status()[0].lost
    assert next(answers) > every
    _, expected = alone(linear(), map(feed_of, range(STEPS)))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_rows_are_asked_for_before_gradients_leave(calls):
    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        executor.run(program, feed=feed_of(0), fetch_list=[loss])
        calls.clear()
        for step in range(1, 4):
            executor.run(program, feed=feed_of(step), fetch_list=[loss])
        asked = list(calls)
        communicator.stop()
    assert asked == ["pull", "send"] * 3


def test_a_step_takes_what_came_back_for_the_gradients_before_the_last():
    losses = []
    with trainer_of(linear(rows=False), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        for step in range(STEPS):
            losses += executor.run(program, feed=feed_of(step, False), fetch_list=[loss])
        communicator.stop()
    weight, expected, gradients = np.full(256, 0.5), [], []
    for step in range(STEPS):
        mean = feed_of(step, False)["x"].mean(0, dtype=np.float64)
        if step >= 2:
            weight -= RATE * gradients[step - 2]
        expected.append((mean * weight).sum())
        gradients.append(mean / 300)
    np.testing.assert_allclose(np.reshape(losses, -1), expected, rtol=1e-5)


def test_who_reads_servers_sees_all_that_steps_have_sent():
    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        for step in range(3):
            executor.run(program, feed=feed_of(step), fetch_list=[loss])
        found = served(program)
        # and what came back with the last gradients the trainer has, too
        executor.run(program, feed=feed_of(3), fetch_list=[loss])
        connections.connect(read(program)).settle()
        mine = np.array(fluid.global_scope().find_var("w").get_tensor())
        communicator.stop()
    _, expected = alone(linear(), map(feed_of, range(3)))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    np.testing.assert_allclose(mine, expected["w"], rtol=1e-5)


def test_gradients_leave_where_no_step_follows():
    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        executor.run(program, feed=feed_of(0), fetch_list=[loss])
        calls = connections.connect(read(program)).calls
        end = time.monotonic() + 120
        while not calls.status()[0].through:
            assert time.monotonic() < end
            time.sleep(0.01)
        communicator.stop()
        assert calls.status()[0].through == 1


def test_failures_reach_the_trainer(monkeypatch):
    def refuses(*args, **kwargs):
        raise errors.ServerError("gone")

    with trainer_of(linear(), sync=False) as (executor, program, (loss,)):
        communicator = started(program)
        executor.run(program, feed=feed_of(0), fetch_list=[loss])
        with monkeypatch.context() as patch:
            patch.setattr(async_steps, "send", refuses)
            executor.run(program, feed=feed_of(1), fetch_list=[loss])
            with pytest.raises(errors.ServerError, match="gone"):
                executor.run(program, feed=feed_of(2), fetch_list=[loss])
        communicator.stop()


def test_batches_of_a_dataset_have_all_their_gradients_sent(tmp_path):
    with trainer_of(MODEL, sync=False) as (executor, program, (*_, data, _)):
        communicator = started(program)
        executor.train_from_dataset(program, a_dataset(data, tmp_path))
        calls = connections.connect(read(program)).calls
        communicator.stop()
        assert calls.status()[0].through == BATCHES


@pytest.mark.parametrize("name", ["send_queue_size", "max_merge_var_num"])
def test_a_thread_merges_gradients_where_settings_let_several_wait(name):
    with trainer_of(linear(), sync=False) as (_, program, _):
        for settings, kind in (({}, AsyncSteps), ({f"communicator_{name}": 2}, Async)):
            communicator = started(program, **settings)
            assert type(communicator._strategy) is kind
            communicator.stop()
