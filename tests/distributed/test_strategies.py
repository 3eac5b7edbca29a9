"""Strategies against servers that are objects here: what is sent when, and what comes of
failures.
"""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from jfluid import errors
from jfluid.distributed.trainer.geo import Geo
from jfluid.distributed.trainer.strategies import Async, AsyncSettings, Direct
from jfluid.distributed.wire.connections import Gradients
from jfluid.ps_server.store import Change
from jfluid.scope import Scope
from jfluid.transpiler.parameter_server.layout import ParameterLayout, Piece

W = ParameterLayout("w", (3, 3), (Piece("w.block0", 0, 0, (2, 3)), Piece("w.block1", 1, 2, (1, 3))))
WORK = SimpleNamespace(
    received=[W],
    dense=[("w@GRAD", W)],
    rows=[SimpleNamespace(table="t")],
    synchronous=False,
    trains=True,
)


class Servers:
    """What servers do, in one place: values that gradients are taken from, and differences added
    to.
    """

    def __init__(self, **blocks):
        self.blocks = {n: np.array(v, np.float32) for n, v in blocks.items()}
        self.table = np.zeros((10, 2), np.float32)
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = None

    def pull(self, rows=None, blocks=(), round=0, train=True):
        self.calls.append(("pull", tuple(blocks)))
        return SimpleNamespace(rows={}, blocks={n: self.blocks[n].copy() for n in blocks})

    def push(self, rows=None, blocks=None, round=0, change=Change.GRADIENT, state=b"", merged=False):
        self.exchange(rows or {}, blocks or {}, {}, (), round=round, change=change, merged=merged)

    def exchange(
        self,
        push_rows,
        push_blocks,
        pull_rows,
        pull_blocks,
        round=0,
        change=Change.GRADIENT,
        state=b"",
        or_no_rows=False,
        merged=False,
    ):
        assert self.gate.wait(120)
        for ids, _ in push_rows.values() if merged else ():
            assert len(set(ids.tolist())) == len(ids), "each id once"
        if self.failing:
            raise self.failing
        self.calls.append(
            (
                change.name,
                round,
                {n: v.copy() for n, v in push_blocks.items()},
                {n: (i.copy(), v.copy()) for n, (i, v) in push_rows.items()},
                tuple(pull_blocks),
            )
        )
        sign = -1 if change == Change.GRADIENT else 1
        for name, value in push_blocks.items():
            if name in self.blocks:
                self.blocks[name] += sign * value
        for ids, values in push_rows.values():
            np.add.at(self.table, ids, sign * values)
        rows = {n: SimpleNamespace(all=lambda ids=ids: self.table[ids]) for n, ids in pull_rows.items()}
        return SimpleNamespace(rows=rows, blocks={n: self.blocks[n].copy() for n in pull_blocks})


def a_connection(servers, **params):
    return SimpleNamespace(
        client=servers,
        calls=servers,
        endpoints=["a:1", "b:2"],
        rounds=4,
        prefetch_depth=0,
        careful=False,
        recovers=False,
        params=params,
        place_rows=lambda p: None,
    )


def gradients(value, ids=(1, 2)):
    dense = W.split(np.full((3, 3), value, np.float32))
    return Gradients(
        dense,
        {"t": (np.array(ids, np.int64), np.full((len(ids), 2), value, np.float32))},
        {"c": np.ones(1, np.float32)},
    )


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_direct_sends_counts_then_exchanges():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    fresh = Direct().push(a_connection(servers), WORK, gradients(1.0), Scope())
    assert [c[0] for c in servers.calls] == ["ADD", "GRADIENT"]
    assert set(servers.calls[0][2]) == {"c@0", "c@1"}  # all servers hear of the step
    np.testing.assert_array_equal(W.join(fresh), np.full((3, 3), -1.0))


def test_synchronous_steps_are_rounds():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    connection = a_connection(servers)
    for _ in range(2):
        Direct(synchronous=True).push(connection, WORK, Gradients(gradients(1.0).dense), Scope())
    assert [c[1] for c in servers.calls] == [5, 6]
    assert connection.rounds == 6


@pytest.mark.parametrize("sums, expected", [(True, 6.0), (False, 2.0)])
def test_async_merges_what_waits(sums, expected):
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    strategy = Async(AsyncSettings(max_merge=3, wait_times=12_000, sums=sums, before_receive=1000))
    connection = a_connection(servers)
    for value in (1.0, 2.0, 3.0):
        assert strategy.push(connection, WORK, gradients(value, ids=(1, int(value) + 1)), Scope()) == {}
    until(lambda: len(servers.calls) == 2)
    count, push = servers.calls
    # counts are added up, whatever gradients are
    np.testing.assert_array_equal(count[2]["c@1"], [3.0])
    np.testing.assert_array_equal(push[2]["w.block1"], np.full((1, 3), expected))
    ids, values = push[3]["t"]
    share = 1 if sums else 1 / 3
    found = dict(zip(ids.tolist(), values[:, 0].tolist(), strict=True))
    assert found == pytest.approx({1: 6 * share, 2: share, 3: 2 * share, 4: 3 * share})
    strategy.stop()


def test_async_sends_after_a_while_and_receives_after_so_many_gradients():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    # a step has two gradients
    strategy = Async(AsyncSettings(max_merge=20, wait_times=1, before_receive=3))
    connection, scope = a_connection(servers), Scope()
    strategy.push(connection, WORK, gradients(1.0), scope)
    until(lambda: len(servers.calls) == 2)
    assert servers.calls[1][4] == ()
    strategy.push(connection, WORK, gradients(1.0), scope)
    until(lambda: any(c[0] == "pull" or c[-1] for c in servers.calls))
    until(lambda: strategy._fresh)
    fresh = strategy.push(connection, WORK, gradients(1.0), scope)
    assert W.join(fresh).max() <= -1.0
    strategy.stop()
    # stop sends what waits
    np.testing.assert_array_equal(servers.blocks["w.block0"], np.full((2, 3), -3.0))
    # and receives
    np.testing.assert_array_equal(np.array(scope.find_var("w").get_tensor()), np.full((3, 3), -3.0))


def test_async_gradients_are_the_steps_own():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    servers.gate.clear()
    strategy = Async(AsyncSettings(max_merge=1))
    step = gradients(1.0)
    strategy.push(a_connection(servers), WORK, step, Scope())
    for value in step.dense.values():
        value[:] = 99.0  # XLA uses the buffer again
    servers.gate.set()
    strategy.stop()
    np.testing.assert_array_equal(servers.blocks["w.block0"], np.full((2, 3), -1.0))


def test_async_waits_when_the_queue_is_full():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    servers.gate.clear()
    strategy = Async(AsyncSettings(queue_size=1, max_merge=1))
    done = []

    def train():
        for i in range(5):
            strategy.push(a_connection(servers), WORK, Gradients(gradients(1.0).dense), Scope())
            done.append(i)

    thread = threading.Thread(target=train)
    thread.start()
    until(lambda: len(done) == 1)
    time.sleep(0.05)
    assert len(done) == 1  # one is sent, the next one waits, and so does the trainer
    servers.gate.set()
    thread.join(120)
    strategy.stop()
    np.testing.assert_array_equal(servers.blocks["w.block0"], np.full((2, 3), -5.0))


def test_an_asynchronous_step_goes_on_with_what_came_back_for_the_one_before():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    strategy = Async(AsyncSettings(queue_size=1, max_merge=1, before_receive=1))
    connection = a_connection(servers)
    latest = strategy.push(connection, WORK, gradients(1.0), Scope())
    for steps in (1, 2, 3):
        latest = strategy.push(connection, WORK, gradients(1.0), Scope()) or latest
        assert W.join(latest).max() <= -steps
    strategy.stop()


@pytest.mark.parametrize(
    "name, field",
    [
        ("send_queue_size", "queue_size"),
        ("max_merge_var_num", "max_merge"),
        ("send_wait_times", "wait_times"),
        ("min_send_grad_num_before_recv", "before_receive"),
    ],
)
def test_async_has_no_queue_without_a_bound(name, field):
    with pytest.raises(errors.ProgramError, match=f"communicator_{name}: expected at least [01], found -1"):
        AsyncSettings(**{field: -1})
    with pytest.raises(errors.ProgramError, match="communicator_send_queue_size: expected at least 1, found 0"):
        AsyncSettings(queue_size=0)


def test_async_failures_reach_the_trainer():
    servers = Servers()
    servers.failing = errors.ServerError("gone")
    strategy = Async(AsyncSettings(max_merge=1))
    strategy.push(a_connection(servers), WORK, Gradients(gradients(1.0).dense), Scope())
    until(lambda: strategy._failed)
    with pytest.raises(errors.ServerError, match="gradients could not be sent: gone"):
        strategy.push(a_connection(servers), WORK, gradients(1.0), Scope())
    with pytest.raises(errors.ServerError, match="gradients could not be sent: gone"):
        strategy.stop()


def geo_trainer(scope, connection, strategy, step, ids):
    """One step of training: everything that is touched grows."""
    work = SimpleNamespace(touched=[("ids", "t")])
    strategy.begin(connection, work, scope)
    for name in ("w", "t"):
        tensor = scope.var(name).get_tensor()
        value = np.array(tensor)
        value[ids if name == "t" else slice(None)] += step
        tensor.set(value)
    strategy.push(connection, work, Gradients(touched={"t": np.array(ids, np.int64)}), scope)


def geo_scope():
    scope = Scope()
    scope.var("w").get_tensor().set(np.zeros((3, 3), np.float32))
    scope.var("t").get_tensor().set(np.zeros((10, 2), np.float32))
    return scope


def geo_connection(servers):
    return a_connection(servers, w=W, t=ParameterLayout("t", (10, 2), (Piece("t", 0, 0, (10, 2)),)))


def test_geo_of_one_trainer_is_local_training():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    scope, connection, strategy = geo_scope(), geo_connection(servers), Geo(every=2, trainers=1)
    for i in range(5):
        geo_trainer(scope, connection, strategy, 1.0, [i, 9])
    strategy.stop()
    np.testing.assert_allclose(np.array(scope.find_var("w").get_tensor()), np.full((3, 3), 5.0))
    np.testing.assert_allclose(np.array(scope.find_var("t").get_tensor())[[0, 4, 5, 9], 0], [1, 1, 0, 5])
    np.testing.assert_allclose(servers.blocks["w.block1"], np.full((1, 3), 5.0))
    np.testing.assert_allclose(servers.table[[0, 4, 5, 9], 1], [1, 1, 0, 5])
    assert len([c for c in servers.calls if c[0] == "ADD"]) == 3  # two of two steps, and the rest


def test_geo_trainers_send_their_shares_and_take_over_the_others():
    servers = Servers(**{"w.block0": np.zeros((2, 3)), "w.block1": np.zeros((1, 3))})
    mine, yours = ((geo_scope(), geo_connection(servers), Geo(every=1, trainers=2)) for _ in range(2))
    geo_trainer(*mine, 2.0, [1])
    until(lambda: mine[2]._under_way[0].done())
    geo_trainer(*yours, 4.0, [1])
    until(lambda: yours[2]._under_way[0].done())
    np.testing.assert_allclose(servers.blocks["w.block0"], np.full((2, 3), 1.0 + 2.0))
    yours[2].begin(yours[1], SimpleNamespace(touched=[("ids", "t")]), yours[0])
    # v = 4 moved, o = 2 sent of it, s = 3 came back: v += s - o.
    np.testing.assert_allclose(np.array(yours[0].find_var("w").get_tensor()), np.full((3, 3), 5.0))
    np.testing.assert_allclose(np.array(yours[0].find_var("t").get_tensor())[:3, 0], [0, 5, 0])


def test_geo_refuses_settings():
    with pytest.raises(errors.ProgramError, match="1 at least, found 0 and 2"):
        Geo(0, 2)
