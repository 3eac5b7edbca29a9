"""Pushes that are under way when their trainer says what it wants to pull behind them."""

import time

import grpc
import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import connection, specs
from jfluid.ps_server.lanes import BegunPush
from jfluid.ps_server.pipe_calls import CallError
from jfluid.ps_server.shared_memory import SharedBuffer
from tests.ps_server.job import TABLE

BLOCK = specs.BlockSpec(
    name="w",
    shape=(300, 200),
    initializer=specs.Constant(value=9),
    optimizer=specs.Sgd(learning_rate=1.0),
)
ONES = {"w": np.ones((300, 200), np.float32)}
IDS = np.arange(300)


def ready(job, trainer=0):
    client = job.client(trainer=trainer)
    client.create([TABLE], {0: [BLOCK]})
    client.enter()
    return client


def begun(client, round=0, blocks=("w",)):
    found = client.begin_push({}, ONES, round=round, merged=True, pull_blocks=blocks)
    assert found is not None and all(push.sent for push in found.pushes)
    return found


@pytest.fixture
def again(monkeypatch):
    """The requests that were made again."""
    requests, exchange = [], connection.ServerConnection._exchange

    def noted(self, request, *rest):
        requests.append(request)
        return exchange(self, request, *rest)

    monkeypatch.setattr(connection.ServerConnection, "_exchange", noted)
    return requests


def test_what_is_pulled_is_what_the_push_made(job, again):
    client = ready(job.start())
    for step in range(1, 4):
        found = client.exchange_begun(begun(client), {"t": IDS})
        assert (found.blocks["w"] == 9 - step).all() and found.rows["t"].values.shape == (300, 4)
    found = client.exchange_begun(begun(client, blocks=()), {"t": IDS})
    assert not found.blocks and found.rows["t"].values.shape == (300, 4)
    found = client.exchange_begun(begun(client, blocks=()), {})
    assert not found.blocks and not again
    assert (client.pull(blocks=["w"]).blocks["w"] == 4).all()
    assert len(client._connections[0]._buffers._free) == 1


def test_a_push_may_pull_what_it_makes(job, again):
    client = ready(job.start())
    for step in range(1, 4):
        push = client.begin_push({}, ONES, merged=True, pull_blocks=["w"])
        assert (client.pull({"t": IDS}).rows["t"].values.shape) == (300, 4)  # meanwhile
        found = client.exchange_begun(push, {})
        assert (found.blocks["w"] == 9 - step).all() and not found.rows
    assert not any(request.push for request in again)
    assert not client._connections[0]._buffers._taken


def test_rounds_wait_for_all(job, again):
    job.start(trainers=2)
    first, second = ready(job, 0), ready(job, 1)
    for round in (1, 2):
        pushes = [begun(client, round) for client in (first, second)]
        for client, push in zip((first, second), pushes, strict=True):
            found = client.exchange_begun(push, {})
            assert (found.blocks["w"] == 9 - round).all() and found.rounds == round
    assert not again


def test_few_bytes_are_not_pushed_early(job):
    client = ready(job.start())
    small = {"t": (IDS, np.ones((300, 4), np.float32))}
    assert client.begin_push(small, {}) is None
    client.push(small)
    assert client.status()[0].through == 1 and not client.status()[0].lost


def test_where_one_server_has_no_lane_nothing_is_sent(job, monkeypatch):
    client = job.start(servers=2).client()
    blocks = {n: [BLOCK.model_copy(update={"name": f"w{n}"})] for n in range(2)}
    client.create([], blocks)
    client.enter()
    monkeypatch.setattr(client._connections[1]._buffers, "take", lambda size: None)
    arrays = {f"w{n}": ONES["w"] for n in range(2)}
    assert client.begin_push({}, arrays) is None
    assert len(client._connections[0]._buffers._free) == 1
    client.push(blocks=arrays)
    assert [s.through for s in client.status()] == [1, 1] and not any(s.lost for s in client.status())


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_push_that_is_lost_is_made_again_once(job, again, lost, monkeypatch):
    client = ready(job.start())
    if lost == "request":
        monkeypatch.setattr(BegunPush, "post", lambda self, request: None)
        push = client.begin_push({}, ONES, merged=True, pull_blocks=["w"])
    else:
        push = begun(client)
        push.pushes[0].lane.through.pipes.answer(60)
        job.servers[0].service.buffers.leave(client._connections[0]._buffers.client)
    found = client.exchange_begun(push, {"t": IDS})
    assert (found.blocks["w"] == 8).all() and len(again) == 1
    assert client.status()[0].through == 1
    assert not client._connections[0]._buffers._taken


def no_answer(timeout_s, closed):
    raise CallError(grpc.StatusCode.UNAVAILABLE, "gone")


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_push_that_pulls_and_is_lost_is_made_again_once(job, again, lost, monkeypatch):
    client = ready(job.start())
    if lost == "request":
        monkeypatch.setattr(SharedBuffer, "fits", lambda self, size: False)
    push = client.begin_push({}, ONES, merged=True, pull_blocks=["w"])
    if lost == "answer":
        through = push.pushes[0].lane.through
        through.answer(60)
        monkeypatch.setattr(through, "answer", no_answer)
    found = client.exchange_begun(push, {})
    assert (found.blocks["w"] == 8).all() and len(again) == 1
    assert client.status()[0].through == 1


def test_a_refusal_is_told_and_nothing_is_lost(job, again):
    client = ready(job.start())
    with pytest.raises(errors.ServerError, match="there is no table"):
        client.exchange_begun(begun(client), {"no": IDS})
    found = client.exchange_begun(begun(client), {"t": IDS})
    assert (found.blocks["w"] == 7).all()
    push = begun(client, round=5)
    with pytest.raises(errors.ServerError, match="round 5"):
        client.exchange_begun(push, {})
    assert (client.pull(blocks=["w"]).blocks["w"] == 7).all()


@pytest.mark.parametrize("lane", ["memory", "stream"])
def test_rows_behind_a_push_are_what_it_made(job, again, lane):
    options = {"share_memory": False} if lane == "stream" else {}
    client = job.start().client(**options)
    client.create([TABLE], {0: [BLOCK]})
    client.enter()
    ids = np.arange(3000)
    before = client.pull({"t": ids}).rows["t"].values.copy()
    for step in range(1, 6):
        gradients = {"t": (ids, np.full((3000, 4), step, np.float32))}
        while (push := client.begin_push(gradients, ONES, merged=True, pull_blocks=["w"])) is None:
            time.sleep(0.01)  # another thread makes the stream
        found = client.exchange_begun(push, {"t": ids})
        after = client.look_up("t", ids)
        # both answers are large, and the first is read when the second has been asked for
        assert (found.blocks["w"] == 9 - step).all()
        np.testing.assert_array_equal(found.rows["t"].values, after)
        assert not np.array_equal(before, after)
        before = after
    assert not any(request.push for request in again)


def test_answers_of_many_blocks_have_room_before_those_of_rows(job, again):
    """Each block has bytes of its own beside its values."""
    client = job.start().client()
    small = [
        BLOCK.model_copy(update={"name": f"b{i}", "shape": (3,), "initializer": specs.Constant(value=i)})
        for i in range(3000)
    ]
    client.create([TABLE], {0: [BLOCK, *small]})
    client.enter()
    ids, names = np.arange(3000), [b.name for b in small]
    push = client.begin_push({}, ONES, merged=True, pull_blocks=["w", *names])
    found = client.exchange_begun(push, {"t": ids})
    assert all((found.blocks[name] == i).all() for i, name in enumerate(names))
    np.testing.assert_array_equal(found.rows["t"].values, client.look_up("t", ids))
    assert not any(request.push for request in again)


def test_an_answer_that_is_too_long_for_its_place_is_not_believed(job, again, monkeypatch):
    client = ready(job.start())
    push = begun(client)
    push.pushes[0].reply_bytes = 5000  # where the rows' answer lies over that of the blocks
    found = client.exchange_begun(push, {"t": np.arange(3000)})
    assert (found.blocks["w"] == 8).all() and len(again) == 1
    np.testing.assert_array_equal(found.rows["t"].values, client.look_up("t", np.arange(3000)))
    assert client.status()[0].through == 1
