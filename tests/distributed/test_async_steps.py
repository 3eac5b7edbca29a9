"""Asynchronous steps: all gradients arrive once."""

import itertools
import time

import grpc
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.distributed.programs.trainer_program import read
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.wire import connections
from jfluid.ps_server.socket_channels import CallStream, CallStreams
from jfluid.ps_server.transport import CallError
from tests.distributed.job import alone, parameters, trainer_of
from tests.distributed.test_prefetch import MODEL, a_dataset
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

    begin = CallStreams._begin_to_connect

    def connected(self):
        """Wait for the stream, which steps that are not compiled first would not do."""
        begin(self)
        end = time.monotonic() + 120
        while self._connecting:
            assert time.monotonic() < end
            time.sleep(0.01)

    monkeypatch.setattr(CallStreams, "_begin_to_connect", connected)
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


def test_batches_of_a_dataset_have_all_their_gradients_sent(tmp_path):
    with trainer_of(MODEL, sync=False) as (executor, program, (*_, data, _)):
        communicator = started(program)
        executor.train_from_dataset(program, a_dataset(data, tmp_path))
        calls = connections.connect(read(program)).calls
        communicator.stop()
        assert calls.status()[0].through == BATCHES
