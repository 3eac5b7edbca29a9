"""Bounds on rows and bytes: new rows are refused by name, as a whole call, and what is there goes
on.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, specs, validation, wire
from jfluid.ps_server.auth import SecretInterceptor, Session
from jfluid.ps_server.capacity import ROW_OVERHEAD
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import JobFailedError, TooLargeError
from jfluid.ps_server.server import MOST_CALLS, Server, Settings
from jfluid.ps_server.store import Change, Store
from jfluid.ps_server.table import SparseTable
from tests.ps_server.test_table import in_threads

WIDTH = 4
TOKEN = "a-token-of-the-job"
COUNTED = specs.CountEntry(count=2)
OLD, NEW = np.arange(60), np.arange(1000, 1050)  # there is room for 40 more
BLOCK = specs.BlockSpec(name="w", shape=(2, 3), optimizer=specs.Sgd(learning_rate=1))


def spec(name="t", **more):
    more = {"optimizer": specs.Adagrad(learning_rate=0.1), "initializer": specs.Uniform(), **more}
    return specs.TableSpec(name=name, width=WIDTH, **more)


def new(**more):
    return SparseTable(spec(**{"max_rows": 100} | more))


def ones(ids):
    return np.ones((len(ids), WIDTH), np.float32)


def state(t):
    ids = np.concatenate([OLD, NEW])
    return {
        "rows": len(t),
        "waiting": t.waiting,
        "step": t.step,
        "values": t.look_up(ids, train=False),
        **t.slots(ids),
    }


def assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


PROGRAM = specs.Program(learning_rate=0.1)
WAYS = {
    "look_up": ({}, lambda t, ids: t.look_up(ids)),
    "push": ({}, lambda t, ids: t.push(ids, ones(ids))),
    "add": ({}, lambda t, ids: t.add(ids, ones(ids))),
    "assign": ({}, lambda t, ids: t.assign(ids, ones(ids))),
    "assign_slots": ({}, lambda t, ids: t.assign_slots(ids, {"moment": ones(ids)})),
    "update": (
        {"optimizer": PROGRAM},
        lambda t, ids: t.update(ids, ones(ids), lambda v, s, g: (v - g, s)),
    ),
    "admitted": (
        {"entry": COUNTED},
        lambda t, ids: t.look_up(ids, np.full(len(ids), 2, np.uint32)),
    ),
    "shown twice": ({"entry": COUNTED}, lambda t, ids: t.look_up(np.concatenate([ids, ids]))),
    "assigned": ({"entry": COUNTED}, lambda t, ids: t.assign(ids, ones(ids))),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_is_refused_as_a_whole(way):
    more, act = WAYS[way]
    t = new(**more)
    act(t, OLD)
    before = state(t)
    with pytest.raises(
        TooLargeError,
        match=r"^table t: no room for 50 new rows .*max_rows is 100, 60 are taken.*shrink",
    ):
        act(t, NEW)
    assert_same(state(t), before)
    act(t, OLD)  # goes on
    # just fits, also when ids come more than once
    act(t, np.concatenate([OLD, NEW[:40], NEW[:40]]))
    assert len(t) == 100
    with pytest.raises(TooLargeError, match="no room for 1 new rows"):
        act(t, NEW[:41])
    act(t, np.concatenate([OLD, NEW[:40]]))


def test_bytes_are_those_of_rows_slots_and_the_index():
    row = ROW_OVERHEAD + 4 * 2 * WIDTH
    t = new(max_rows=None, max_bytes=10 * row + 3)
    t.look_up(OLD[:10])
    assert t.size == (10, 10 * row)
    with pytest.raises(
        TooLargeError,
        match=rf"1 new rows \({row} bytes\): max_bytes is {10 * row + 3}, {10 * row} are taken",
    ):
        t.look_up(OLD[:11])
    big = new(max_rows=None)
    for part in np.array_split(np.arange(300_000), 30):
        big.look_up(part)
    assert sum(shard.index.nbytes for shard in big._shards) + 300_000 * (16 + 4 * 2 * WIDTH) <= big.size.bytes


def test_ids_that_wait_count_as_bytes_and_not_as_rows():
    t = new(entry=COUNTED, max_rows=10, max_bytes=30 * (ROW_OVERHEAD + 8 * WIDTH))
    t.look_up(OLD[:30])
    assert (len(t), t.waiting) == (0, 30)
    t.look_up(OLD[:10])  # enter
    with pytest.raises(TooLargeError, match="max_rows is 10, 10 are taken"):
        t.look_up(OLD[:11])
    with pytest.raises(TooLargeError, match="no room for 0 new rows .*max_bytes"):
        t.look_up(np.arange(2000, 2200))
    assert (len(t), t.waiting) == (10, 30)


def test_an_id_that_may_not_enter_needs_no_row():
    t = new(entry=specs.ProbabilityEntry(probability=1e-9), max_rows=1)
    t.look_up(OLD)
    assert len(t) == 0


def test_shrinking_and_larger_bounds_make_room():
    t = new()
    t.push(OLD, ones(OLD))
    t.push(OLD[:20], ones(OLD[:20]))
    with pytest.raises(TooLargeError):
        t.look_up(np.arange(500, 600))
    assert t.shrink(1) == 40
    t.look_up(np.arange(500, 580))
    t.bound(spec(max_rows=101))
    t.look_up(np.array([5000]))
    assert len(t) == 101 and t.spec.max_rows == 101
    t.bound(spec(max_rows=7))  # fewer than there are
    t.push(np.arange(500, 580), ones(np.arange(500, 580)))
    with pytest.raises(TooLargeError, match="max_rows is 7, 101 are taken"):
        t.look_up(np.array([5001]))


def test_threads_that_bring_the_same_ids_all_get_them_and_others_never_too_many():
    t, ids = new(max_rows=5000, shards=4), np.arange(5000)
    refused = []

    def same(seed):
        for part in np.array_split(np.random.RandomState(seed).permutation(ids), 20):
            t.look_up(part)

    in_threads(*(lambda seed=seed: same(seed) for seed in range(4)))
    assert len(t) == 5000
    t = new(max_rows=5000, shards=4)

    def others(seed):
        for start in range(20):
            mine = np.arange(100) + 100_000 * seed + 100 * start
            try:
                t.push(mine, ones(mine), merged=True)
            except TooLargeError:
                refused.append(mine)
            if start % 5 == 0:
                t.shrink(50)

    in_threads(*(lambda seed=seed: others(seed) for seed in range(4)))
    assert len(t) == 5000 and len(refused) == 4 * 20 - 50
    assert not t.cap._held and not t._reservations.state[2].any()


@pytest.mark.parametrize("bad", [0, -1, 1.5, "many"])
def test_wrong_bounds(bad):
    with pytest.raises(errors.ServerError, match="max_rows"):
        validation.read(specs.TableSpec, spec().model_dump() | {"max_rows": bad}, "table")


# ---- stores --------------------------------------------------------------------------------------


def test_a_snapshot_of_more_rows_than_the_bounds_is_restored_and_served(tmp_path):
    store, bounded = Store(), Store()
    ids = np.arange(200)
    expected = store.create_table(spec()).look_up(ids)
    with store.view() as view:
        snapshot.write(view, tmp_path, "all", 0, 1)
    bounded.create_table(spec(max_rows=100))
    snapshot.restore(bounded, tmp_path, 0, 1)
    t = bounded.tables["t"]
    assert (len(t), t.spec.max_rows) == (200, 100)
    np.testing.assert_array_equal(t.look_up(ids), expected)
    t.push(ids, ones(ids))
    with pytest.raises(TooLargeError, match="max_rows is 100, 200 are taken"):
        t.look_up(np.array([777]))
    with bounded.view() as view:
        assert snapshot.write(view, tmp_path, "again", 0, 1).tables[0].rows == 200


def test_bounds_are_no_part_of_what_a_table_is():
    store = Store()
    t = store.create_table(spec(max_rows=10))
    assert store.create_table(spec(max_rows=20)) is t and t.spec == spec(max_rows=20)
    with pytest.raises(errors.ServerError, match="is different"):
        store.create_table(spec(seed=4))
    assert t.spec.max_rows == 20


# ---- servers and clients -------------------------------------------------------------------------


class Job:
    def __init__(self):
        self.server, self.clients = None, []

    def client(self, tables, trainer=0, **settings):
        if self.server is None:
            self.server = Server(Settings(token=TOKEN, **settings)).start()
        self.clients.append(
            Client(
                [f"127.0.0.1:{self.server.port}"],
                TOKEN,
                trainer=trainer,
                heartbeat_s=0,
                timeout_s=120,
            )
        )
        self.clients[-1].create(tables, {0: [BLOCK]})
        return self.clients[-1]

    def end(self):
        for client in self.clients:
            client.close()
        if self.server is not None:
            self.server.stop(0.2)


@pytest.fixture
def job():
    job = Job()
    yield job
    job.end()


def in_both(clients, work):
    with ThreadPoolExecutor(len(clients)) as threads:
        list(threads.map(work, clients))


def rows_of(job):
    return {name: len(t) for name, t in job.server.store.tables.items()}


def test_a_refused_pull_adds_nothing_to_any_table_and_the_next_is_served(job):
    client = job.client([spec("a"), spec("b", max_rows=10)])
    client.pull({"a": OLD, "b": OLD[:5]})
    with pytest.raises(TooLargeError, match="table b: no room for 55 new rows .*max_rows is 10, 5 are taken"):
        client.pull({"a": NEW, "b": OLD})
    assert rows_of(job) == {"a": 60, "b": 5}
    assert client.pull({"a": NEW, "b": OLD[:10]}).rows["b"].all().shape == (10, WIDTH)
    # reading adds none
    assert client.pull({"b": NEW}, train=False).rows["b"].all().shape == (50, WIDTH)
    assert rows_of(job) == {"a": 110, "b": 10}


def test_a_refused_push_changes_no_table_and_no_block(job):
    client = job.client([spec("a"), spec("b", max_rows=10)])
    with pytest.raises(TooLargeError, match="table b"):
        client.push({"a": (OLD, ones(OLD)), "b": (OLD, ones(OLD))}, {"w": np.ones((2, 3), np.float32)})
    assert rows_of(job) == {"a": 0, "b": 0} and job.server.store.block("w").version == 0
    client.push({"a": (OLD, ones(OLD)), "b": (OLD[:10], ones(OLD[:10]))}, {"w": np.ones((2, 3), np.float32)})
    assert rows_of(job) == {"a": 60, "b": 10} and job.server.store.block("w").version == 1
    with pytest.raises(TooLargeError, match="table b"):
        client.push({"b": (NEW, ones(NEW))}, change=Change.ASSIGN)


def test_an_exchange_whose_pull_is_refused_applies_no_push(job):
    client = job.client([spec(max_rows=10)])
    with pytest.raises(TooLargeError, match="no room for 60 new rows"):
        client.exchange({}, {"w": np.ones((2, 3), np.float32)}, {"t": OLD}, [])
    assert job.server.store.block("w").version == 0
    client.exchange({}, {"w": np.ones((2, 3), np.float32)}, {"t": OLD[:10]}, [])
    assert job.server.store.block("w").version == 1 and rows_of(job) == {"t": 10}


def test_gradients_that_do_not_fit_are_refused_before_their_round(job):
    clients = [job.client([spec(max_rows=10)], trainer, trainers=2) for trainer in (0, 1)]
    with pytest.raises(TooLargeError, match="table t"):
        clients[0].push({"t": (OLD, ones(OLD))}, round=1)
    few = OLD[:10]
    in_both(clients, lambda client: client.push({"t": (few, ones(few))}, round=1))
    assert job.server.store.rounds == 1 and rows_of(job) == {"t": 10} and not job.server.trainer_group.failed


def test_a_round_that_has_become_too_large_fails_the_job_by_name(job):
    clients = [job.client([spec(max_rows=60)], trainer, trainers=2) for trainer in (0, 1)]
    clients[0].push({"t": (OLD, ones(OLD))}, round=1, hold=True)
    clients[1].push({"t": (NEW, ones(NEW))}, round=1, hold=True)
    with pytest.raises(JobFailedError, match="round 1 could not be applied: table t: no room for 110 new rows"):
        in_both(clients, lambda client: client.pull(round=1, confirm=True))
    assert rows_of(job) == {"t": 0}


def test_a_server_bounds_all_its_tables_together(job):
    client = job.client([spec("a"), spec("b")], max_rows=100)
    client.pull({"a": OLD, "b": OLD[:30]})
    with pytest.raises(TooLargeError, match="this server: no room for 30 new rows .*max_rows is 100, 90 are taken"):
        client.pull({"a": NEW[:10], "b": OLD[:50]})
    assert rows_of(job) == {"a": 60, "b": 30}
    client.pull({"a": OLD, "b": OLD[:40]})
    client.push({"a": (OLD, ones(OLD)), "b": (OLD[:40], ones(OLD[:40]))})
    assert rows_of(job) == {"a": 60, "b": 40}


def test_a_block_that_a_server_has_no_room_for(job):
    client = job.client([spec()], max_bytes=1000)
    with pytest.raises(TooLargeError, match="this server: .*max_bytes is 1,000"):
        client.create([], {0: [BLOCK.model_copy(update={"name": "large", "shape": (300,)})]})
    assert "large" not in job.server.store.blocks
    client.pull({"t": OLD[:10]})


def test_larger_bounds_are_given_while_the_server_runs(job):
    client = job.client([spec(max_rows=10)])
    with pytest.raises(TooLargeError):
        client.pull({"t": OLD})
    client.create([spec(max_rows=60)], {0: [BLOCK]})
    assert len(client.pull({"t": OLD}).rows["t"].all()) == 60


def test_calls_of_one_client_beyond_a_bound_wait_on_its_side(monkeypatch):
    taken, intercept = [], SecretInterceptor.intercept_service

    def counted(self, continuation, details):
        taken.extend([details.method] * details.method.endswith("/Barrier"))
        return intercept(self, continuation, details)

    monkeypatch.setattr(SecretInterceptor, "intercept_service", counted)
    with (
        Server(Settings(token=TOKEN, trainers=2)) as server,
        Client([f"127.0.0.1:{server.port}"], TOKEN, heartbeat_s=0, timeout_s=120) as client,
    ):
        client.create([spec()])
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            session = Session(channel, "it", TOKEN, 20)._begin()
            path = f"/{wire.SERVICE}/Barrier"
            calls = [
                channel.unary_unary(path).future(
                    pb.BarrierRequest(caller=client._connections.caller(), name=f"b{i}", number=1).SerializeToString(),
                    metadata=session.next(path)[0],
                )
                for i in range(MOST_CALLS + 50)
            ]
            until(lambda: len(taken) >= MOST_CALLS)
            with grpc.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]) as other:
                # another connection is heard meanwhile, and the count stands
                Session(other, "it", TOKEN, 20)._begin()
            assert len(taken) == MOST_CALLS
            for call in calls[:-20]:
                call.cancel()
            until(lambda: len(taken) > MOST_CALLS)  # others come in their place
            for call in calls:
                call.cancel()
        assert len(client.pull({"t": OLD}).rows["t"].all()) == 60


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.01)
