"""Two trainers and two servers against arrays that know what must be there, whatever happens in
whatever order.

    python -m tests.ps_server.test_state_machine 500    runs as many examples, with and without shared memory
"""

import logging
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.store import Change
from jfluid.ps_server.transport import CallError
from tests.ps_server.site import BLOCK, LIMIT_S, ROWS, WIDTH, Site

ENTRY = 3
RARE = specs.TableSpec(
    name="rare",
    width=2,
    optimizer=specs.Sgd(learning_rate=1.0),
    entry=specs.CountEntry(count=ENTRY),
)
EVERY = np.arange(ROWS, dtype=np.int64)
FEW = 12
ONE = np.ones(BLOCK.shape, np.float32)
CALLS = ("Push", "Pull", "Exchange", "LookUp")

# Calls of a few rows, and of all, which go past gRPC.
some_ids = st.lists(st.integers(0, FEW - 1), min_size=1, max_size=6).map(lambda ids: np.array(ids, np.int64)) | st.just(
    EVERY
)
few_ids = st.lists(st.integers(0, FEW - 1), min_size=1, max_size=6).map(lambda ids: np.array(ids, np.int64))
amounts = st.integers(-3, 3)
trainers = st.integers(0, 1)
servers = st.integers(0, 1)


class Lost(CallError):
    """The request, or its answer, was lost."""

    def __init__(self):
        super().__init__(grpc.StatusCode.UNAVAILABLE, "lost on the way")


def lose_calls(channel, fault_of):
    """Let a fast channel lose the requests or replies that `fault_of` names."""
    post, answer, channel.fault = channel.post, channel.answer, None

    def losing_post(method, parts):
        channel.fault = fault_of()
        if channel.fault == "request":
            raise Lost
        post(method, parts)

    def losing_answer(*given):
        found = answer(*given)
        if channel.fault == "answer":
            raise Lost
        return found

    channel.post, channel.answer = losing_post, losing_answer


class Job(RuleBasedStateMachine):
    """What trainers and servers do, and what must come of it. Values are small whole numbers and
    halves: sums are exact.
    """

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="state-machine-"))
        self.site = Site(self.folder, servers=2, trainers=2)
        self.threads = ThreadPoolExecutor(4)
        self.faults, self.sent, self.lock = [], [], threading.Lock()
        self.clients = [self.client(trainer) for trainer in range(2)]
        self.rows, self.block, self.rounds = np.zeros(ROWS, np.float32), 0.0, 0
        self.shown, self.rare = np.zeros(FEW, int), np.zeros(FEW, np.float32)

    def client(self, trainer):
        client = self.site.client(trainer, heartbeat_s=0.05)
        client.create([RARE])
        for connection in client._connections:
            for name in CALLS:
                methods = connection._grpc._methods
                methods[name] = self.over_the_wire(name, methods[name])
            connection._streams.take = self.losing(connection._streams.take)
        return client

    def fault(self):
        with self.lock:
            return self.faults.pop(0) if self.faults else None

    def losing(self, take):
        def taking(size):
            channel = take(size)
            if channel is not None and not hasattr(channel, "fault"):
                lose_calls(channel, self.fault)
            return channel

        return taking

    def over_the_wire(self, name, real):
        def call(data, *rest):
            fault = self.fault()
            with self.lock:
                self.sent.append((real, data))
            if fault == "request":
                raise Lost
            answer = real(data, *rest)
            if fault == "answer":
                raise Lost
            return answer

        return call

    def teardown(self):
        if not hasattr(self, "site"):
            return
        try:
            self.faults = []
            for trainer in range(2):
                self.look(trainer)
            status = self.clients[0].status()
            assert [s.lost for s in status] == [0, 0] and [s.rounds for s in status] == [self.rounds] * 2
        finally:
            self.site.end()
            self.threads.shutdown()
            shutil.rmtree(self.folder)

    # ---- trainers ----

    @rule(trainer=trainers, ids=some_ids, amount=amounts, pulls=st.booleans())
    def push(self, trainer, ids, amount, pulls):
        self.settle()
        self.add(ids, amount)
        push = (
            {"t": (ids, np.full((len(ids), WIDTH), amount, np.float32))},
            {"w": ONE * np.float32(amount)},
        )
        if not pulls:
            self.clients[trainer].push(*push, change=Change.ADD)
            return
        found = self.clients[trainer].exchange(*push, {"t": ids}, ["w"], change=Change.ADD)
        np.testing.assert_array_equal(found.rows["t"].all(), np.repeat(self.rows[ids, None], WIDTH, 1))
        np.testing.assert_array_equal(found.blocks["w"], ONE * self.block)

    def settle(self):
        """A server that has started again gets what it lacks when trainers look; each sees its own
        at once.
        """
        for client in self.clients:
            client._connections.look()

    def add(self, ids, amount):
        np.add.at(self.rows, ids, np.float32(amount))
        self.block += amount

    @rule(sizes=st.tuples(amounts, amounts), hold=st.booleans())
    def step(self, sizes, hold):
        """A round: both servers take the mean of both trainers' gradients."""
        self.settle()
        self.rounds += 1

        def train(client, size):
            push = (
                {"t": (EVERY, np.full((ROWS, WIDTH), size, np.float32))},
                {"w": ONE * np.float32(size)},
            )
            if not hold:
                return client.exchange(*push, {}, ["w"], round=self.rounds)
            client.push(*push, round=self.rounds, hold=True)
            return client.pull(blocks=["w"], round=self.rounds, confirm=True)

        training = [self.threads.submit(train, client, size) for client, size in zip(self.clients, sizes)]
        self.add(EVERY, -sum(sizes) / 2)
        for future in training:
            np.testing.assert_array_equal(future.result(LIMIT_S).blocks["w"], ONE * np.float32(self.block))

    @rule(ids=few_ids, amount=amounts)
    def show(self, ids, amount):
        """Ids of a table with an entry rule are shown, and what has a row takes an update."""
        self.clients[0].pull({"rare": ids})
        np.add.at(self.shown, ids, 1)
        self.clients[0].push({"rare": (ids, np.full((len(ids), 2), amount, np.float32))}, change=Change.ADD)
        np.add.at(self.rare, ids, np.where(self.shown[ids] >= ENTRY, amount, 0))

    @rule(trainer=trainers)
    def look(self, trainer):
        self.settle()
        client = self.clients[trainer]
        np.testing.assert_array_equal(client.look_up("t", EVERY)[:, 0], self.rows)
        np.testing.assert_array_equal(client.look_up("rare", EVERY[:FEW])[:, 0], self.rare)
        found = client.pull({"t": EVERY[:FEW]}, ["w"], train=False)
        np.testing.assert_array_equal(found.rows["t"].all()[:, 0], self.rows[:FEW])
        np.testing.assert_array_equal(found.blocks["w"], ONE * np.float32(self.block))

    @rule(trainer=trainers)
    def start_a_trainer_again(self, trainer):
        """What it has kept is lost with it, so that it must be in snapshots."""
        self.look(0)  # servers have everything
        for server in range(2):
            self.site.snapshot(server)
        self.clients[trainer].close()
        self.clients[trainer] = self.client(trainer)

    # ---- servers and the network ----

    @rule(server=servers)
    def snapshot(self, server):
        self.site.snapshot(server)

    @rule(lost=st.sets(servers, min_size=1))
    def restart(self, lost):
        for server in lost:
            self.site.kill(server)
        for server in lost:
            self.site.start(server)

    @rule(trainer=trainers, ids=some_ids, amount=amounts, server=servers)
    def restart_under_a_push(self, trainer, ids, amount, server):
        pushing = self.threads.submit(self.push, trainer, ids, amount, False)
        self.site.restart(server)
        pushing.result(LIMIT_S)

    @rule(faults=st.lists(st.sampled_from(["request", "answer", None]), min_size=1, max_size=4))
    def lose(self, faults):
        """Calls to come are lost on their way, or their answers are."""
        with self.lock:
            self.faults += faults

    @rule(which=st.integers(1, 20))
    def resend(self, which):
        """A call of before comes once more."""
        with self.lock:
            if not self.sent:
                return
            real, request = self.sent[-which % len(self.sent)]
        try:
            real(request, LIMIT_S)
        # refused, or the channel was closed
        except (grpc.RpcError, errors.ServerError, ValueError):
            pass


def check(examples, **more):
    """Run examples of it."""
    run_state_machine_as_test(
        Job,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


@pytest.mark.parametrize("examples", [5, pytest.param(60, marks=pytest.mark.nightly)])
def test_every_acknowledged_call_is_applied_once(examples):
    check(examples=examples, derandomize=True, database=None)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    check(int(sys.argv[1]), print_blob=True)
    print(f"{sys.argv[1]} examples", flush=True)
