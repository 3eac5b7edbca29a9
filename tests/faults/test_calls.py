"""Calls that are lost, repeated and reordered: every push is applied once, and rounds are
bit-equal.
"""

import collections
import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.server import Server, Settings
from jfluid.ps_server.store import Change
from tests.faults.calls import CallRelay, Fault
from tests.faults.training import assert_same, trained, undisturbed

TOKEN = "0123456789-token-of-the-tests"
SGD = specs.Sgd(learning_rate=1.0)
WIDTH, PUSHES, THREADS = 512, 24, 2
ALL = dict.fromkeys(Fault, 0.08)
CHANCES = {fault.name.lower(): {fault: 0.3} for fault in Fault} | {"all": ALL}


@contextlib.contextmanager
def client_of(chances, servers=2, seed=0):
    """(a client, the relays between it and its servers)."""
    with contextlib.ExitStack() as stack:
        ports = [
            stack.enter_context(Server(Settings(token=TOKEN, server=n, servers=servers))).port for n in range(servers)
        ]
        relays = [
            stack.enter_context(CallRelay(f"127.0.0.1:{port}", seed + n, chances)) for n, port in enumerate(ports)
        ]
        client = stack.enter_context(
            Client(
                [r.endpoint for r in relays],
                TOKEN,
                timeout_s=120,
                heartbeat_s=0,
            )
        )
        yield client, relays


@pytest.mark.parametrize("chances", CHANCES.values(), ids=CHANCES)
def test_every_push_is_applied_once(chances):
    """Push number n adds 1 to row n of a block at each server and to row n of a table, from several
    threads at once.
    """
    with client_of(chances) as (client, relays):
        client.create(
            [specs.TableSpec(name="table", width=WIDTH, initializer=specs.Constant(value=0.0), optimizer=SGD)],
            {n: [specs.BlockSpec(name=f"block{n}", shape=(PUSHES, WIDTH), optimizer=SGD)] for n in range(2)},
        )

        def push(number):
            change = np.zeros((PUSHES, WIDTH), np.float32)
            change[number] = 1
            rows = {"table": (np.array([number]), np.ones((1, WIDTH), np.float32))}
            blocks = {f"block{n}": change for n in range(2)}
            if number % 2:
                client.push(rows, blocks, change=Change.ADD)
            else:
                found = client.exchange(rows, blocks, {"table": np.array([number])}, list(blocks), change=Change.ADD)
                np.testing.assert_array_equal([v[number] for v in found.blocks.values()], np.ones((2, WIDTH)))
                np.testing.assert_array_equal(found.rows["table"].all(), np.ones((1, WIDTH)))

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(push, range(PUSHES)))
        for relay in relays:
            relay.quiet()
        found = client.pull({"table": np.arange(PUSHES)}, ["block0", "block1"])
        for value in (*found.blocks.values(), found.rows["table"].all()):
            np.testing.assert_array_equal(value, np.ones((PUSHES, WIDTH)))
        assert [status.lost for status in client.status()] == [0, 0]
    for relay in relays:
        assert relay.happened.keys() >= {fault for fault, chance in chances.items() if chance > 0.1}


def test_synchronous_training_is_bit_equal():
    """Whatever happens to calls of all kinds on four ways between trainers and servers."""
    with contextlib.ExitStack() as stack:
        relays = []

        def through(endpoint, trainer):
            relays.append(stack.enter_context(CallRelay(endpoint, len(relays), ALL)))
            return relays[-1].endpoint

        found = trained(through, "distributed")
    happened = sum((relay.happened for relay in relays), collections.Counter())
    assert len(happened) >= 4
    assert_same(found, undisturbed("distributed"))


def test_what_happens_is_drawn_from_the_seed():
    # of repeated calls either may be the first
    chances = dict.fromkeys([Fault.LOSE_REQUEST, Fault.LOSE_REPLY], 0.15)

    def happened(seed):
        with client_of(chances, servers=1, seed=seed) as (client, (relay,)):
            for _ in range(30):
                client.status()
            return relay.log

    first = happened(1)
    assert first == happened(1) != happened(2) and len(first) > 5


def test_a_fault_can_be_ordered_for_the_next_call():
    with client_of({}, servers=1) as (client, (relay,)):
        client.status()
        relay.next(Fault.LOSE_REPLY, Fault.LOSE_REQUEST)
        client.status()
        assert [(method, fault) for _, method, fault in relay.log] == [
            ("Status", Fault.LOSE_REPLY),
            ("Status", Fault.LOSE_REQUEST),
        ]


def test_a_server_need_not_wait_for_a_trainer_whose_last_word_was_lost():
    with Server(Settings(token=TOKEN)) as server, CallRelay(f"127.0.0.1:{server.port}") as relay:
        client = Client([relay.endpoint], TOKEN, heartbeat_s=0)
        client.enter()
        client.barrier()
        relay.next(Fault.HOLD, Fault.LOSE_REQUEST)  # the goodbye, and that its answer is known
        client.leave()
        assert [fault for *_, fault in relay.log] == [Fault.HOLD, Fault.LOSE_REQUEST]
        assert server.trainer_group.finished
