"""With several servers a round is applied by all of them or by none, at whatever moment a trainer
is killed.
"""

import functools
import threading
import time

import numpy as np
import pytest

from jfluid import errors
from jfluid.distributed.wire.connections import TrainerConnection
from jfluid.ps_server import specs
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import RollbackError, StateError
from jfluid.ps_server.server import Server, Settings

TOKEN = "0123456789-token-of-the-tests"
GRADIENT = np.ones(2, np.float32)


@pytest.fixture
def servers():
    """Two servers of two trainers; number i holds the block "w<i>", zeros that SGD at rate 1
    moves.
    """
    made = [Server(Settings(token=TOKEN, server=i, servers=2, trainers=2)) for i in range(2)]
    for i, server in enumerate(made):
        server.store.create_block(specs.BlockSpec(name=f"w{i}", shape=(2,), optimizer=specs.Sgd(learning_rate=1.0)))
    with made[0], made[1]:
        yield made


@pytest.fixture(autouse=True)
def snapshots_wanted(monkeypatch, tmp_path):
    monkeypatch.setenv("JFLUID_PS_SNAPSHOT_FOLDER", str(tmp_path))


def endpoint(server):
    return f"127.0.0.1:{server.port}"


def know(client):
    for i in range(2):
        client.place_block(f"w{i}", min(i, len(client._connections) - 1), (2,))
    return client


def connect(servers):
    """The connection of a new life of trainer 0."""
    made = TrainerConnection([endpoint(s) for s in servers], 0)
    try:
        made.enter()
    except errors.ServerError:
        made.client.close()  # it would ask servers that have ended, for as long as this process runs
        raise
    assert made.careful
    know(made.client)
    return made


def step(client, round, size):
    """A step of a trainer, in a thread: the gradients, and then the word that all servers have
    them.
    """

    def run():
        client.push(blocks={f"w{i}": GRADIENT * size for i in range(2)}, round=round, hold=True)
        client.pull(round=round, confirm=True)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def until_confirmed(servers, trainer):
    end = time.monotonic() + 120
    while not all(server.trainer_group.progress(trainer)[1] for server in servers):
        assert time.monotonic() < end
        time.sleep(0.01)


def values(servers):
    return [float(server.store.block(f"w{i}").read()[0][0]) for i, server in enumerate(servers)]


def test_gradients_that_only_some_servers_have_are_dropped(servers):
    with (
        know(Client([endpoint(s) for s in servers], TOKEN, 1)) as other,
        know(Client([endpoint(servers[0])], TOKEN, 0)) as killed,
    ):
        killed.push(blocks={"w0": GRADIENT * 100}, round=1, hold=True)
        thread = step(other, 1, 2)
        until_confirmed(servers, 1)
        assert [s.store.rounds for s in servers] == [0, 0]
        again = connect(servers)
        assert again.rounds == 0
        step(again.client, 1, 4).join()
        thread.join()
        assert values(servers) == [-3.0, -3.0]
        again.client.close()


def test_gradients_that_were_confirmed_anywhere_are_applied_everywhere(servers):
    killed = know(Client([endpoint(s) for s in servers], TOKEN, 0))
    with know(Client([endpoint(s) for s in servers], TOKEN, 1)) as other:
        killed.push(blocks={f"w{i}": GRADIENT * 4 for i in range(2)}, round=1, hold=True)
        thread = step(other, 1, 2)
        until_confirmed(servers, 1)
        with Client([endpoint(servers[0])], TOKEN, 0, incarnation=killed.incarnation) as to_the_first:
            to_the_first.pull(round=1, confirm=True)
        assert [s.store.rounds for s in servers] == [1, 0] and thread.is_alive()
        killed.close()
        again = connect(servers)
        assert again.rounds == 1
        thread.join()
        assert values(servers) == [-3.0, -3.0]
        again.client.close()


def test_a_round_that_is_being_applied_counts(servers, monkeypatch):
    """A trainer that starts again meanwhile goes on after it, however long it takes. Who asks is
    told of it as a round to come, or as one that was applied; not as neither.
    """
    applying, go_on = threading.Semaphore(0), threading.Event()

    def slowly(apply, *updates):
        applying.release()
        assert go_on.wait(120)
        apply(*updates)

    for server in servers:
        monkeypatch.setattr(server.store, "apply", functools.partial(slowly, server.store.apply))
    with (
        know(Client([endpoint(s) for s in servers], TOKEN, 0)) as killed,
        know(Client([endpoint(s) for s in servers], TOKEN, 1)) as other,
    ):
        threads = [step(killed, 1, 4), step(other, 1, 2)]
        for _ in servers:
            assert applying.acquire(timeout=120)
        threading.Timer(0.3, go_on.set).start()
        assert all(status.rounds or status.confirmed for status in killed.status())
        again = connect(servers)
        assert again.rounds == 1 and values(servers) == [-3.0, -3.0]
        for thread in threads:
            thread.join()
        again.client.close()


def test_what_an_earlier_life_has_sent_is_refused(servers):
    """From the moment that a trainer has started again, although it has pushed nothing yet."""
    with know(Client([endpoint(s) for s in servers], TOKEN, 0)) as killed:
        killed.push(blocks={f"w{i}": GRADIENT for i in range(2)}, round=1, hold=True)
        again = connect(servers)
        with pytest.raises(StateError, match="incarnation .* has ended"):
            killed.pull(round=1, confirm=True)
        assert not any(server.trainer_group.progress(0)[1] for server in servers)
        again.client.close()


def test_servers_that_cannot_agree_are_named(servers):
    servers[0].store.rounds = 3
    with pytest.raises(RollbackError, match=r"\(server 0 has 3, server 1 has 0\), and gradients that .* were lost"):
        connect(servers)
    servers[0].store.rounds = 1
    with pytest.raises(
        RollbackError,
        match="round 1 cannot be confirmed: this server has applied 0 rounds, and holds no",
    ):
        connect(servers)


def test_a_push_that_is_sent_again_is_held_once(servers):
    """As after a lost connection."""
    with know(Client([endpoint(s) for s in servers], TOKEN, 0)) as client:
        client.push(blocks={"w0": GRADIENT}, round=1, hold=True)
        twin = know(Client([endpoint(s) for s in servers], TOKEN, 0, incarnation=client.incarnation))
        twin.push(blocks={"w0": GRADIENT}, round=1, hold=True)
        twin.close()
    assert [s.store.rounds for s in servers] == [0, 0]
