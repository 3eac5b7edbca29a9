"""Tables whose optimizer is a function of the caller."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops.optimizer import adadelta, ftrl
from jfluid.ps_server import snapshot, specs, validation
from jfluid.ps_server.kernels import owners_of
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.store import Store
from jfluid.ps_server.table import SparseTable
from tests.ps_server.test_table import ids_of, in_threads, ones

RATE = 0.1
ADADELTA = specs.Program(
    learning_rate=RATE, slots=(specs.SlotSpec(name="squared_grad"), specs.SlotSpec(name="squared_update"))
)
FTRL = specs.Program(learning_rate=RATE, slots=(specs.SlotSpec(name="squared"), specs.SlotSpec(name="linear")))
# The sum of gradients, and how many there were.
COUNTED = specs.Program(
    learning_rate=RATE, slots=(specs.SlotSpec(name="sum", initial=1.5), specs.SlotSpec(name="count"))
)


def table(optimizer, width=3, **more):
    more = {"initializer": specs.Uniform(), "shards": 4} | more
    return SparseTable(specs.TableSpec(name="t", width=width, optimizer=optimizer, **more))


def counted(values, slots, gradients):
    return values - gradients, [slots[0] + gradients, slots[1] + 1]


def bucketed(step):
    """A function for `update` that runs a jitted one on arrays of a few lengths, as a server of a
    program does.
    """
    compiled = jax.jit(step)

    def function(values, slots, gradients):
        m, size = len(values), 1 << (len(values) - 1).bit_length()
        padded = [np.concatenate([a, np.ones((size - m, a.shape[1]), np.float32)]) for a in (values, *slots, gradients)]
        new, *state = compiled(*padded)
        return new[:m], [s[:m] for s in state]

    return function


def adadelta_step(values, squared_grad, squared_update, gradients):
    return adadelta(values, gradients, squared_grad, squared_update)


def ftrl_step(values, squared, linear, gradients):
    return ftrl(values, squared, linear, gradients, jnp.full(1, RATE, np.float32), l1=0.02, l2=0.03)


# ---- updates -------------------------------------------------------------------------------------


def test_rows_are_moved_as_parameters_of_their_own():
    """Every row as if it were a parameter alone, updated by the operator in the steps that have a
    gradient for it.
    """
    t, ids, rng = table(ADADELTA), ids_of(300), np.random.RandomState(0)
    function = bucketed(adadelta_step)
    values, state = t.look_up(ids), [np.zeros((300, 3), np.float32) for _ in range(2)]
    for step in range(8):
        some = rng.permutation(300)[:100]
        gradients = rng.standard_normal((len(some), 3)).astype(np.float32)
        assert t.update(ids[some], gradients, function, merged=True) == step + 1
        values[some], state[0][some], state[1][some] = adadelta(values[some], gradients, state[0][some], state[1][some])
    np.testing.assert_allclose(t.look_up(ids, train=False), values, rtol=1e-5, atol=1e-7)
    found = t.slots(ids)
    assert list(found) == ["squared_grad", "squared_update"]
    for name, expected in zip(found, state):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-7)


def test_a_function_and_the_compiled_rule_agree():
    by_function, compiled = table(FTRL), table(specs.Ftrl(learning_rate=RATE, l1=0.02, l2=0.03))
    function, rng = bucketed(ftrl_step), np.random.RandomState(0)
    for _ in range(6):
        ids = rng.randint(0, 90, 70)
        gradients = rng.standard_normal((70, 3)).astype(np.float32)
        by_function.update(ids, gradients, function)
        compiled.push(ids, gradients)
    ids = np.arange(90)
    np.testing.assert_allclose(by_function.look_up(ids), compiled.look_up(ids), rtol=1e-4, atol=1e-5)
    for name, slot in compiled.slots(ids).items():
        np.testing.assert_allclose(by_function.slots(ids)[name], slot, rtol=1e-4, atol=1e-5)


def test_the_function_is_called_once_with_the_rows_in_the_order_of_the_ids():
    t, ids, calls = table(COUNTED), ids_of(5000), []
    before = t.look_up(ids, train=False)
    gradients = np.sin(np.arange(15_000, dtype=np.float32)).reshape(-1, 3)

    def function(values, slots, found):
        calls.append(len(values))
        np.testing.assert_array_equal(values, before)
        np.testing.assert_array_equal(found, gradients)
        assert (slots[0] == 1.5).all() and (slots[1] == 0).all()
        assert all(a.flags.c_contiguous and a.dtype == np.float32 for a in (values, *slots, found))
        return counted(values, slots, found)

    t.update(ids, gradients, function, merged=True)
    assert calls == [5000] and len(t) == 5000
    np.testing.assert_array_equal(t.look_up(ids), before - gradients)


def test_gradients_of_equal_ids_are_added_up_and_resting_rows_stay():
    t, ids = table(COUNTED, initializer=specs.Constant(value=5)), np.array([7, -7, 7, 7])
    t.look_up(np.array([8]))
    t.update(ids, ones(ids, 3), counted)
    assert t.look_up(np.array([7, -7, 8]))[:, 0].tolist() == [2, 4, 5]
    slots = t.slots(np.array([7, 8, 99]))
    assert slots["sum"][:, 0].tolist() == [4.5, 1.5, 1.5] and slots["count"][:, 1].tolist() == [
        1,
        0,
        0,
    ]


def test_ids_that_may_not_enter_are_left_out():
    t, ids = (
        table(COUNTED, initializer=specs.Constant(value=5), entry=specs.CountEntry(count=2)),
        np.arange(40),
    )
    t.look_up(ids)
    t.look_up(ids[::4])
    seen = []

    def function(values, slots, gradients):
        seen.append(gradients[:, 0].tolist())
        return counted(values, slots, gradients)

    t.update(ids, np.repeat(ids[:, None], 3, 1).astype(np.float32), function)
    assert seen == [list(range(0, 40, 4))] and len(t) == 10
    np.testing.assert_array_equal(t.look_up(ids, train=False)[:, 0], np.where(ids % 4, 0, 5 - ids))
    # nothing to move
    assert t.update(ids[1:3], ones(ids[1:3], 3), function) == 2 and len(seen) == 1


def test_an_optimizer_without_slots():
    t, ids = (
        table(specs.Program(learning_rate=1), initializer=specs.Constant(value=1)),
        np.arange(5),
    )
    t.update(ids, ones(ids, 3), lambda values, slots, gradients: (values * 2 + len(slots), []))
    assert (t.look_up(ids) == 2).all() and t.slots(ids) == {}


@pytest.mark.parametrize(
    "function, error, message",
    [
        (
            lambda v, s, g: (v, s[:1]),
            errors.ServerError,
            "table t: update: expected 2 slots of the function, found 1",
        ),
        (
            lambda v, s, g: (v[:-1], s),
            errors.ServerError,
            r"the function's values: expected an array float32 \[9, 3\]",
        ),
        (
            lambda v, s, g: (v, [s[0], s[1].astype(np.float64)]),
            errors.ServerError,
            "the function's count: .*found float64",
        ),
        (lambda v, s, g: 1 / 0, ZeroDivisionError, "division"),
    ],
)
def test_what_a_function_cannot_return(function, error, message):
    t, ids = table(COUNTED), np.arange(9)
    t.update(ids, ones(ids, 3), counted)
    before, slots = t.look_up(ids), t.slots(ids)
    with pytest.raises(error, match=message):
        t.update(ids, ones(ids, 3), function)
    np.testing.assert_array_equal(t.look_up(ids), before)
    np.testing.assert_array_equal(t.slots(ids)["sum"], slots["sum"])
    assert t.step == 1 and t.update(ids, ones(ids, 3), counted) == 2  # no lock was kept


def test_the_optimizer_decides_between_push_and_update():
    ids = np.arange(3)
    with pytest.raises(errors.ServerError, match=r"table t: push: its optimizer is a program.*SparseTable\.update"):
        table(COUNTED).push(ids, ones(ids, 3))
    with pytest.raises(
        errors.ServerError,
        match=r"update: expected the optimizer program, found sgd.*SparseTable\.push",
    ):
        table(specs.Sgd(learning_rate=1)).update(ids, ones(ids, 3), counted)
    with pytest.raises(errors.ServerError, match="the block: optimizer: .*'program'"):
        validation.read(
            specs.BlockSpec,
            {"name": "w", "shape": [2], "optimizer": COUNTED.model_dump()},
            "the block",
        )
    with pytest.raises(errors.ServerError, match=r"optimizer.*slots: .*two slots have one name: m, m"):
        validation.read(
            specs.TableSpec,
            {
                "name": "t",
                "width": 1,
                "optimizer": {
                    "type": "program",
                    "learning_rate": 1,
                    "slots": [{"name": "m"}, {"name": "m"}],
                },
            },
            "the table",
        )


# ---- threads -------------------------------------------------------------------------------------


def test_no_change_made_meanwhile_is_lost():
    """Additions, births and look-ups in other threads, and a function that takes its time."""
    t, ids = table(COUNTED, width=2, initializer=specs.Constant()), np.arange(4000)

    def slow(values, slots, gradients):
        threading.Event().wait(0.002)
        return counted(values, slots, gradients)

    def update(seed):
        rng = np.random.RandomState(seed)
        for _ in range(15):
            some = rng.permutation(ids)
            t.update(some, -ones(some, 2), slow, merged=True)

    def add(seed):
        for step in range(15):
            t.add(ids, ones(ids, 2))
            t.look_up(ids_of(300, seed=seed * 100 + step))

    in_threads(*(lambda f=f, seed=seed: f(seed) for seed in range(2) for f in (update, add)))
    assert (t.look_up(ids) == 60).all() and (t.slots(ids)["count"] == 30).all() and t.step == 30


def test_a_cut_stays_as_it_was():
    t, ids, rng = table(COUNTED), ids_of(30_000), np.random.RandomState(0)
    t.update(ids, ones(ids, 3), counted)
    expected, found = t.look_up(ids), {}
    with t.view() as view:
        for some, values, slots in view.rows(size=1000):
            assert (slots["count"] == 1).all() and (slots["sum"] == 2.5).all()
            found |= dict(zip(some.tolist(), values))
            changed = rng.choice(ids, 3000)
            t.update(changed, ones(changed, 3), counted)
            t.look_up(ids_of(500, seed=len(found)))
    np.testing.assert_array_equal(np.stack([found[i] for i in ids.tolist()]), expected)
    assert len(found) == len(ids)


# ---- snapshots and expiry ------------------------------------------------------------------------


def filled(server, servers, ids):
    store, mine = Store(), ids[owners_of(ids, servers) == server]
    t = store.create_table(specs.TableSpec(name="t", width=3, initializer=specs.Normal(), optimizer=COUNTED, seed=3))
    for sequence in (1, 2):
        with store.once(MutationId(0, 1, sequence, 1)):
            t.update(mine[::sequence], ones(mine[::sequence], 3), counted)
    t.learning_rate = 0.25
    return store


@pytest.mark.parametrize("before, after", [(1, 1), (1, 3), (3, 2)])
def test_snapshots_for_any_number_of_servers(tmp_path, before, after):
    ids = ids_of(2000)
    stores = [filled(server, before, ids) for server in range(before)]
    for server, store in enumerate(stores):
        with store.view() as view:
            snapshot.write(view, tmp_path, "a", server, before)
    rows = 0
    for server in range(after):
        restored = Store()
        snapshot.restore(restored, tmp_path, server, after)
        t, mine = restored.table("t"), ids[owners_of(ids, after) == server]
        assert t.spec.optimizer == COUNTED and (t.step, t.learning_rate) == (2, 0.25)
        rows += len(t)
        for store in stores:
            here = np.isin(mine, [i for some, _ in store.table("t").items() for i in some])
            np.testing.assert_array_equal(t.look_up(mine[here]), store.table("t").look_up(mine[here]))
            np.testing.assert_array_equal(t.slots(mine[here])["count"], store.table("t").slots(mine[here])["count"])
        assert t.update(mine, ones(mine, 3), counted) == 3
    assert rows == len(ids)


def test_a_snapshot_of_other_slots_is_refused(tmp_path):
    with filled(0, 1, ids_of(20)).view() as view:
        snapshot.write(view, tmp_path, "a", 0, 1)
    other = Store()
    other.create_table(specs.TableSpec(name="t", width=3, initializer=specs.Normal(), optimizer=FTRL, seed=3))
    with pytest.raises(errors.ServerError, match="table t: the snapshot holds a different table"):
        snapshot.restore(other, tmp_path, 0, 1)


def test_expiry():
    t, old, young = table(COUNTED), np.arange(100), np.arange(100, 160)
    t.update(old, ones(old, 3), counted)
    for _ in range(3):
        t.update(young, ones(young, 3), counted)
    assert t.shrink(4) == 0 and t.shrink(3) == 100 and len(t) == 60
    assert (t.slots(young)["count"] == 3).all() and (t.slots(old)["count"] == 0).all()
