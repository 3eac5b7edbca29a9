"""A table finds the rows of a push where the look-up of the same ids found them."""

import numpy as np
import pytest

from jfluid.ps_server import specs
from jfluid.ps_server.capacity import Groups
from jfluid.ps_server.recent_rows import RecentRows
from jfluid.ps_server.shard import Shard
from jfluid.ps_server.table import SparseTable

IDS = np.arange(9000, dtype=np.int64) ** 3


def table():
    return SparseTable(
        specs.TableSpec(name="t", width=4, optimizer=specs.Sgd(learning_rate=1.0), initializer=specs.Uniform())
    )


@pytest.fixture
def searched(monkeypatch):
    """How many ids were searched for so far."""
    count, before = [0], Shard._located

    def located(self, ids, order, limit, step):
        count[0] += len(order)
        return before(self, ids, order, limit, step)

    monkeypatch.setattr(Shard, "_located", located)
    return count


def test_a_push_searches_for_no_id_that_was_pulled(searched):
    pulled, plain = table(), table()
    before = pulled.look_up(IDS)
    assert searched == [9000]
    pulled.push(IDS.copy(), np.ones((9000, 4), np.float32))
    assert searched == [9000]
    plain.push(IDS, np.ones((9000, 4), np.float32))
    np.testing.assert_array_equal(pulled.look_up(IDS), before - 1)
    np.testing.assert_array_equal(plain.look_up(IDS), before - 1)


def test_other_ids_are_searched_for(searched):
    t = table()
    t.look_up(IDS)
    for other in (IDS[:-1], IDS[::-1].copy(), np.append(IDS[:-1], -5)):
        at = searched[0]
        t.push(other, np.ones((len(other), 4), np.float32))
        assert searched[0] == at + len(other)


def test_rows_that_have_moved_are_searched_for(searched):
    t = table()
    for _ in range(3):
        t.look_up(IDS[:4000])
        t.push(IDS[:4000], np.zeros((4000, 4), np.float32))
    kept = t.look_up(IDS[4000:])
    t.push(IDS[4000:], np.zeros((5000, 4), np.float32))
    t.shrink(1)  # those after them take their places
    at = searched[0]
    t.push(IDS[4000:], np.ones((5000, 4), np.float32))
    assert searched[0] == at + 5000
    np.testing.assert_array_equal(t.look_up(IDS[4000:]), kept - 1)
    t.push(IDS[:4000], np.zeros((4000, 4), np.float32))  # they are born again
    assert len(t) == 9000


def test_few_look_ups_are_remembered():
    recent, groups = RecentRows(), Groups(np.zeros(1, np.int64), np.zeros(2, np.int64))
    for i in range(20):
        recent.add(np.array([i, i]), groups, np.array([i, i]))
    assert [recent.of(np.array([i, i])) is not None for i in (0, 13, 14, 19)] == [
        False,
        False,
        True,
        True,
    ]
    recent.add(np.zeros(1 << 17, np.int64), groups, np.zeros(1 << 17, np.int64))
    assert recent.of(np.zeros(1 << 17, np.int64)) is None
