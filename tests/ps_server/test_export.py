"""What goes out of a table and into one: slots by name, and all rows as they are at one moment."""

import itertools

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import specs
from jfluid.ps_server.table import SparseTable
from tests.ps_server.test_table import OPTIMIZERS, ids_of, ones, table


def trained(optimizer, ids):
    """Some rows with a gradient in every step, some in none since the first."""
    t = table(optimizer=optimizer, initializer=specs.Uniform(), shards=2)
    t.push(ids, ones(ids))
    for step in range(5):
        some = ids[step % 3 :: 2]
        t.push(
            some,
            np.cos(np.arange(4 * len(some), dtype=np.float32)).reshape(-1, 4),
            learning_rate=0.1 / (1 + step),
        )
    return t


NAMES = {
    "sgd": [],
    "momentum": ["velocity"],
    "adagrad": ["moment"],
    "adam": ["moment1", "moment2"],
    "rmsprop": ["mean_square", "momentum"],
    "rmsprop_centered": ["mean_square", "momentum", "mean_grad"],
    "ftrl": ["squared", "linear"],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_table_goes_on_from_exported_rows(name):
    """Also where rows have missed steps: what is exported is as if they had been moved at every
    step.
    """
    ids, t = ids_of(700), trained(OPTIMIZERS[name], ids_of(700))
    values, slots = t.look_up(ids, train=False), t.slots(ids)
    assert list(slots) == NAMES.get(name, list(slots))
    other = SparseTable(t.spec.model_copy(update={"shards": 16}))
    other.restore_clock(t.step, t.learning_rate)
    other.assign(ids, values)
    other.assign_slots(ids, slots)
    np.testing.assert_array_equal(other.look_up(ids, train=False), values)
    for one in (t, other):
        one.push(ids[::5], ones(ids[::5]), learning_rate=0.01)
        one.push(ids[::7], ones(ids[::7]))
    np.testing.assert_allclose(other.look_up(ids), t.look_up(ids), rtol=2e-5, atol=1e-6)


def test_slots_of_a_table_with_steps_missed_are_those_of_one_that_was_shown_at_every_step():
    resting, moved = (table(optimizer=specs.Adam(learning_rate=0.1)) for _ in range(2))
    ids, other = np.array([1]), np.array([2])
    for t in (resting, moved):
        t.push(ids, ones(ids))
        for _ in range(10):
            t.push(other, ones(other))
            if t is moved:
                t.look_up(ids)
    before = resting.slots(ids)
    np.testing.assert_allclose(before["moment1"], 0.1 * 0.9**10, rtol=1e-5)
    for name, slot in moved.slots(ids).items():
        np.testing.assert_allclose(before[name], slot, rtol=1e-5)


def test_slots_are_set_alone_and_bear_rows():
    t, ids = (
        table(optimizer=specs.Adam(learning_rate=1), initializer=specs.Uniform()),
        np.array([5, -5, 6]),
    )
    born_with = t.look_up(ids[:2])
    t.assign_slots(ids, {"moment2": 3 * ones(ids)})
    assert len(t) == 3 and (t.slots(ids)["moment2"] == 3).all() and (t.slots(ids)["moment1"] == 0).all()
    np.testing.assert_array_equal(t.look_up(ids[:2]), born_with)
    kept_out = table(optimizer=specs.Adagrad(learning_rate=1), entry=specs.CountEntry(count=9))
    kept_out.assign_slots(ids, {"moment": ones(ids)})
    assert len(kept_out) == 3


def test_slots_of_ids_without_a_row_read_as_a_row_begins():
    t = table(optimizer=specs.Adagrad(learning_rate=1, initial_accumulator_value=0.5))
    assert t.slots(np.array([3, 4]))["moment"].tolist() == [[0.5] * 4] * 2 and len(t) == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda t: t.assign_slots(np.arange(2), {"velocity": np.ones((2, 4), np.float32)}),
            r"table t: slots: expected some of \['moment'\], found \['velocity'\]",
        ),
        (
            lambda t: t.assign_slots(np.arange(2), {"moment": np.ones((2, 3), np.float32)}),
            r"moment: expected an array float32 \[2, 4\], found float32 \[2, 3\]",
        ),
        (lambda t: t.slots([1]), "ids: expected an array int64"),
        (lambda t: next(t.items(0)), "items: block: expected at least 1 row, found 0"),
    ],
)
def test_wrong_calls_are_refused_and_change_nothing(call, message):
    t = table(optimizer=specs.Adagrad(learning_rate=1))
    with pytest.raises(errors.ServerError, match=message):
        call(t)
    assert len(t) == 0


@pytest.mark.parametrize("block", [700, 1 << 16])
def test_items_are_all_rows_of_one_moment(block):
    ids, found = ids_of(20_000), {}
    t = trained(specs.Momentum(learning_rate=0.1, mu=0.9), ids)
    expected = t.look_up(ids, train=False)
    for number, (some, values) in enumerate(t.items(block)):
        assert 0 < len(some) <= block and values.shape == (len(some), 4) and values.flags.c_contiguous
        found |= dict(zip(some.tolist(), values))
        changed = ids[number::7]
        t.push(changed, ones(changed))
        t.look_up(ids_of(100, seed=number + 1))
    assert len(found) == len(ids)
    np.testing.assert_allclose(np.stack([found[i] for i in ids.tolist()]), expected, rtol=1e-6)


def test_items_can_be_left_early():
    t, ids = table(shards=2), ids_of(5000)
    t.look_up(ids)
    left = list(itertools.islice(items := t.items(100), 3))
    items.close()
    assert len(left) == 3 and t.shrink(1) == 0 and sum(len(some) for some, _ in t.items()) == 5000
