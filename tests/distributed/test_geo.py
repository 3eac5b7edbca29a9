"""GEO trainers of one and of several devices do what the definition of GEO says."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid.distributed.programs import trainer_program
from jfluid.distributed.trainer.communicator import Communicator
from jfluid.distributed.wire import connections
from jfluid.transpiler.config import DistributedMode
from tests.distributed.job import (
    Job,
    alone,
    batches,
    net,
    parameters,
    programs,
    served,
    transpile,
)
from tests.distributed.test_replicas import assert_same, in_replicas


def trained(build, devices, trainers, feeds, every, **settings):
    """(losses, parameters of each trainer, those of the servers) of GEO trainers that take batches
    in turn; what one sends has come back before the next one goes on, so that the order in which
    servers hear of it is always the same."""
    with Job(
        build,
        2,
        trainers,
        sync=False,
        runtime_split_send_recv=True,
        geo_sgd_mode=True,
        geo_sgd_need_push_nums=every,
    ) as job:
        job.begin()
        communicators = [
            Communicator(t.main, DistributedMode.GEO, {"trainers": trainers, "push_nums": every}) for t in job.trainers
        ]
        for communicator in communicators:
            communicator.start()
        runs = [
            t.main if devices is None else in_replicas(t.main, t.built[0], devices, **settings) for t in job.trainers
        ]
        losses = []
        for i, feed in enumerate(feeds):
            trainer = job.trainers[i % trainers]
            (found,) = trainer.executor.run(
                runs[trainer.number], feed=feed, fetch_list=[trainer.built[0]], scope=trainer.scope
            )
            losses.append(np.mean(found))
            exchange = connections.connect(trainer_program.read(trainer.main)).strategy._under_way
            if exchange is not None:
                exchange[0].result()
        for communicator in communicators:
            communicator.stop()
        return losses, [t.parameters() for t in job.trainers], served(job.trainers[0].main)


@pytest.mark.parametrize(
    "optimizer, settings",
    [
        ("sgd", {}),
        pytest.param("adam", {}, marks=pytest.mark.nightly),
        ("momentum", {"reduce_strategy": fluid.BuildStrategy.ReduceStrategy.Reduce}),
    ],
)
def test_one_trainer_of_two_devices_equals_one_process(optimizer, settings):
    """All that it sends comes back to it, whenever that is: it trains by itself."""
    build, feeds = net("sparse", optimizer), batches(7)
    losses, (found,), at_servers = trained(build, 2, 1, feeds, 2, **settings)
    expected = alone(build, feeds)
    _, first = alone(build, [])
    assert all(np.abs(value - first[name]).max() > 1e-3 for name, value in expected[1].items())
    assert_same((losses, found), expected, 1e-4)
    if optimizer != "sgd":  # others move rows that no batch has touched, which are not sent
        touched = np.unique(feeds[-1]["ids"])
        at_servers["table"], expected[1]["table"] = (
            at_servers["table"][touched],
            expected[1]["table"][touched],
        )
    assert_same((losses, at_servers), expected, 1e-4)


class ByFormula:
    """A GEO trainer of one process: its values v, what it knows of the servers' o, and these
    themselves, which all share.
    """

    def __init__(self, build, trainers, servers):
        self._trainers, self._servers = trainers, servers
        with programs():
            self._loss, *_ = build()
            self._main, self._scope = fluid.default_main_program(), fluid.Scope()
            self._executor = fluid.Executor(fluid.CPUPlace())
            self._executor.run(fluid.default_startup_program(), scope=self._scope)
        self._known = self.values()
        for name, value in self._known.items():
            servers.setdefault(name, value.copy())
        self._touched, self._coming = set(), {}

    def values(self):
        return parameters(self._main, self._scope)

    def step(self, feed):
        self.take()
        self._touched |= set(feed["ids"].reshape(-1))
        return self._executor.run(self._main, feed=feed, fetch_list=[self._loss], scope=self._scope)[0].item()

    def send(self):
        self.take()
        for name, value in self.values().items():
            rows = np.array(sorted(self._touched), int) if name == "table" else slice(None)
            difference = (value[rows] - self._known[name][rows]) / self._trainers
            self._known[name][rows] += difference
            self._servers[name][rows] += difference
            self._coming[name] = rows, self._servers[name][rows].copy()
        self._touched = set()

    def take(self):
        values = self.values()
        for name, (rows, value) in self._coming.items():
            values[name][rows] += value - self._known[name][rows]
            self._known[name][rows] = value
            self._scope.find_var(name).get_tensor().set(values[name], fluid.CPUPlace())
        self._coming = {}


@pytest.mark.parametrize("every, devices", [(1, 2), pytest.param(2, 2, marks=pytest.mark.nightly), (2, None)])
def test_trainers_go_by_the_formula(every, devices):
    build, feeds, at_servers = net("sparse", "momentum"), batches(9), {}
    trainers = [ByFormula(build, 2, at_servers) for _ in range(2)]
    losses = []
    for i, feed in enumerate(feeds):
        trainer = trainers[i % 2]
        losses.append(trainer.step(feed))
        if (i // 2 + 1) % every == 0:
            trainer.send()
    for trainer in trainers:
        trainer.send()
        trainer.take()
    found, (first, second), there = trained(build, devices, 2, feeds, every)
    for mine, other in (
        (first, trainers[0].values()),
        (second, trainers[1].values()),
        (there, at_servers),
    ):
        assert_same((found, mine), (losses, other), 1e-4)
    # each on its own way
    assert all(np.abs(first[name] - value).max() > 1e-4 for name, value in second.items())


@pytest.mark.parametrize(
    "mode, arguments",
    [
        (DistributedMode.GEO, {"trainers": 1, "push_nums": 2}),
        (DistributedMode.ASYNC, None),
    ],
)
def test_servers_are_not_asked_before_a_step_needs_them(mode, arguments):
    transpiler, *_ = transpile(
        net("sparse", "sgd"),
        ["127.0.0.1:1"],  # where nobody listens
        sync=False,
        geo_sgd_mode=mode == DistributedMode.GEO,
        runtime_split_send_recv=True,
    )
    communicator = Communicator(transpiler.get_trainer_program(), mode, arguments)
    for _ in range(2):
        communicator.start()
        assert communicator.is_running()
        communicator.stop()
        assert not communicator.is_running()
