"""Synchronous training: N trainers equal one trainer on the joined batch."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.transpiler.config import DistributedMode
from tests.distributed.job import Job, alone, batches, net, numbers
from tests.slow_tests import nightly_but

FEEDS = batches(6)
# Each table with each placement of pieces, one to three servers, two and three trainers; before each change each of
# these once.
CASES = [
    ("sgd", "distributed", True, 3, 2),
    ("momentum", "dense", False, 2, 3),
    ("adam", "sparse", True, 1, 3),
    ("adagrad", "distributed", False, 2, 2),
    ("adagrad", "sparse", False, 3, 2),
    ("decay", "dense", True, 2, 2),
]


@pytest.mark.parametrize("case", nightly_but(CASES[:3], CASES), ids=lambda case: "-".join(map(str, case)))
def test_trainers_equal_one(case):
    optimizer, kind, sliced, servers, trainers = case
    with Job(net(kind, optimizer), servers, trainers, slice_var_up=sliced) as job:
        job.begin()
        losses = job.steps(FEEDS)
        found = job.parameters()
    check(losses, found, kind, optimizer)


def check(losses, found, kind, optimizer):
    wanted, parameters = alone(net(kind, optimizer, servers=False), FEEDS)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4, atol=1e-6)
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("optimizer", "kind"), [("decay", "distributed"), pytest.param("adagrad", "sparse", marks=pytest.mark.nightly)]
)
def test_synchronous_communicators_equal_one(optimizer, kind):
    """What `create_sync_strategy` makes of a program. Its schedule counts a step once, however many
    trainers take it.
    """
    with Job(
        net(kind, optimizer),
        2,
        2,
        sync=False,
        runtime_split_send_recv=True,
        completely_not_async=True,
    ) as job:
        communicators = [Communicator(t.main, DistributedMode.SYNC) for t in job.trainers]
        for communicator in communicators:
            communicator.start()
        job.begin()
        losses = job.steps(FEEDS)
        found = job.parameters()
        for communicator in communicators:
            communicator.stop()
    check(losses, found, kind, optimizer)


@pytest.mark.parametrize("sparse", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_table_that_is_looked_up_twice_trains_as_alone(sparse):
    def build():
        table = fluid.ParamAttr("table", initializer=numbers(40, 4))
        ids = [fluid.data(name, [None, 1], dtype="int64") for name in ("first", "second")]
        rows = [fluid.embedding(i, [40, 4], is_sparse=sparse, param_attr=table) for i in ids]
        weight = fluid.ParamAttr("w", initializer=numbers(8, 1))
        joined = layers.reshape(layers.concat(rows, axis=-1), [-1, 8])
        predicted = layers.fc(joined, 1, param_attr=weight, bias_attr="b")
        loss = layers.mean(layers.square_error_cost(predicted, fluid.data("y", [None, 1])))
        fluid.optimizer.Adam(0.01).minimize(loss)
        return loss, predicted

    random = np.random.RandomState(0)
    feeds = [
        {
            "first": random.randint(0, 20, [12, 1]),
            "second": random.randint(10, 40, [12, 1]),
            "y": random.rand(12, 1).astype("float32"),
        }
        for _ in range(4)
    ]
    with Job(build, 2, 2) as job:
        job.begin()
        losses = job.steps(feeds)
        found = job.parameters()
    wanted, parameters = alone(build, feeds)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
