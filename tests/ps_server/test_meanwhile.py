"""RowRequest: what a client does while servers are asked for rows."""

import threading

import numpy as np
import pytest

from jfluid.ps_server.client import RowRequest
from jfluid.ps_server.errors import UnknownNameError

IDS = np.array([5, 6, 5, 7, 1])


def gradients():
    return {"t": (IDS, np.ones((len(IDS), 4), np.float32))}


@pytest.mark.parametrize("servers", [1, 2])
def test_it_is_done_while_all_servers_work(job, servers):
    """They answer only when the other trainer has pushed, which is what is done meanwhile."""
    first, second = job.start(servers, trainers=2).ready(), job.ready(trainer=1)
    done, other = [], []

    def meanwhile(_):
        done.append(threading.current_thread())
        other.append(threading.Thread(target=second.push, args=[gradients()], kwargs={"round": 1}))
        other[0].start()

    found = first.exchange(gradients(), {}, RowRequest({"t": IDS}, meanwhile), round=1)
    other[0].join(120)
    assert done == [threading.current_thread()] and found.rounds == 1
    before = job.client().look_up("t", IDS)
    np.testing.assert_array_equal(found.rows["t"].all(), before)


@pytest.mark.parametrize("servers", [1, 3])
def test_it_is_done_once_where_no_round_is_waited_for(job, servers):
    client, done = job.start(servers).ready(), []
    for call in (
        lambda rows: client.pull(rows),
        lambda rows: client.exchange(gradients(), {}, rows),
    ):
        call(RowRequest({"t": np.arange(40)}, lambda _: done.append(threading.current_thread())))
    assert done == [threading.current_thread()] * 2


def test_ids_are_made_distinct_once(job):
    client, wanted = job.start().ready(), RowRequest({"t": IDS})
    ids, inverse = wanted.distinct("t")
    assert ids.tolist() == [5, 6, 7, 1] and inverse.tolist() == [0, 1, 0, 2, 3]
    found = client.pull(wanted).rows["t"]
    assert found.ids is ids and found.inverse is inverse


@pytest.mark.parametrize("servers", [1, 2])
def test_a_refusal_is_told_all_the_same(job, servers):
    client, done = job.start(servers).ready(), []
    client.place_table("unknown", 4)
    wanted = RowRequest({"unknown": np.arange(40)}, lambda _: done.append(1))
    with pytest.raises(UnknownNameError, match="unknown"):
        client.pull(wanted)
    assert done == [1]
    wanted = RowRequest({"t": IDS}, lambda _: done.append(1))
    assert len(client.pull(wanted).rows["t"].ids) == 4 and done == [1, 1]
