"""SparseTable: rows by id, their births, updates, entry, expiry, and threads."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import kernels, row_initializers, specs, validation
from jfluid.ps_server.errors import StateError
from jfluid.ps_server.table import SparseTable, merge

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "row_updates.json").read_text())
RATE = 0.05
OPTIMIZERS = {
    "sgd": specs.Sgd(learning_rate=RATE),
    "momentum": specs.Momentum(learning_rate=RATE, mu=0.9),
    "nesterov": specs.Momentum(learning_rate=RATE, mu=0.9, use_nesterov=True),
    "adagrad": specs.Adagrad(learning_rate=RATE),
    "adagrad_from_one": specs.Adagrad(learning_rate=RATE, initial_accumulator_value=1.0),
    "adam": specs.Adam(learning_rate=RATE),
    "lazy_adam": specs.Adam(learning_rate=RATE, lazy_mode=True),
    "rmsprop": specs.RMSProp(learning_rate=RATE),
    "rmsprop_centered": specs.RMSProp(learning_rate=RATE, momentum=0.8, centered=True),
    # Fluid's optimizer gives l1 to its operator as l2 as well.
    "ftrl": specs.Ftrl(learning_rate=RATE, l1=0.01, l2=0.01),
    "ftrl_power": specs.Ftrl(learning_rate=RATE, l1=0.03, l2=0.03, lr_power=-0.4),
}
EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**31, -(2**31), 2**32], np.int64)


FIRST_UNIFORM = [[-0.59379435, -0.3238951], [-0.70180655, 0.10200924], [-0.09424771, 0.22846645]]
FIRST_NORMAL = [[-0.07691537, -0.03796165], [-0.05141043, 0.04541415], [0.10241867, 0.09745779]]


def table(width=4, optimizer=None, **more):
    optimizer = optimizer or specs.Sgd(learning_rate=1.0)
    return SparseTable(specs.TableSpec(name="t", width=width, optimizer=optimizer, **more))


def ids_of(count, seed=0):
    return np.random.RandomState(seed).randint(-(2**63), 2**63 - 1, count, np.int64)


def ones(ids, width=4):
    return np.ones((len(ids), width), np.float32)


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_are_found_again_while_the_table_grows():
    t, everything = table(width=2, shards=4), ids_of(60_000)
    for part in np.array_split(everything, 13):
        t.assign(part, np.stack([part % 1000, part % 77], 1).astype(np.float32))
    assert len(t) == len(set(everything.tolist()))
    shuffled = np.random.RandomState(1).permutation(everything)
    np.testing.assert_array_equal(t.look_up(shuffled), np.stack([shuffled % 1000, shuffled % 77], 1).astype(np.float32))
    assert len(t) == len(set(everything.tolist()))


def test_every_int64_is_an_id():
    t = table(initializer=specs.Uniform())
    first = t.look_up(EXTREMES)
    assert len(t) == len(EXTREMES) and len(np.unique(first[:, 0])) == len(EXTREMES)
    t.push(EXTREMES, ones(EXTREMES))
    np.testing.assert_allclose(t.look_up(EXTREMES), first - 1, rtol=1e-6)


def test_rows_of_several_pages_and_of_one_row_a_page():
    wide = table(width=1 << 16, shards=1, initializer=specs.Constant(value=3))
    ids = ids_of(40)
    wide.push(ids, np.ones((40, 1 << 16), np.float32))
    assert (wide.look_up(ids) == 2).all() and len(wide._shards[0].bodies.arrays) > 1


@pytest.mark.parametrize("shards", [1, 2, 1024])
def test_the_number_of_shards_changes_nothing(shards):
    ids = ids_of(3000)
    ids[1000:2000] = ids[:1000]
    results = []
    for count in (shards, 16):
        t = table(shards=count, initializer=specs.Normal(), optimizer=specs.Adagrad(learning_rate=0.1))
        t.look_up(ids)
        t.push(ids, np.sin(np.arange(len(ids) * 4, dtype=np.float32)).reshape(-1, 4))
        results.append(t.look_up(ids))
    np.testing.assert_array_equal(*results)


def test_memory_beyond_values_and_slots():
    t = table(width=8, optimizer=specs.Adagrad(learning_rate=0.1), shards=1)
    worst = 0.0
    for part in np.array_split(np.arange(400_000), 40):
        t.look_up(part)
        shard, pages = t._shards[0], t._shards[0].count / (1 << t._shards[0].page_bits)
        if pages > 1:
            worst = max(worst, shard.index.nbytes / shard.count + kernels.HEAD.itemsize)
    assert 16 < worst <= 24


# ---- births --------------------------------------------------------------------------------------


def test_a_row_depends_on_seed_and_id_only():
    ids = ids_of(500)
    one = table(initializer=specs.Normal(), seed=5).look_up(ids)
    other = table(initializer=specs.Normal(), seed=5, shards=2)
    other.look_up(ids_of(800, seed=3))
    np.testing.assert_array_equal(other.look_up(ids[::-1])[::-1], one)
    assert (table(initializer=specs.Normal(), seed=6).look_up(ids) != one).all()
    assert len(np.unique(one)) == one.size


def test_first_values_stay_the_same_in_all_releases():
    """Rows that were never written down must come back the same from the next release."""
    ids = np.array([0, -7, 2**62], np.int64)
    np.testing.assert_allclose(table(width=2, initializer=specs.Uniform()).look_up(ids), FIRST_UNIFORM, rtol=1e-6)
    np.testing.assert_allclose(
        table(width=2, initializer=specs.TruncatedNormal(std=0.1), seed=-3).look_up(ids),
        FIRST_NORMAL,
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    "initializer, low, high, mean, std",
    [
        (specs.Constant(value=0.25), 0.25, 0.25, 0.25, 0.0),
        (specs.Uniform(low=-2, high=4), -2, 4, 1.0, 6 / np.sqrt(12)),
        (specs.Normal(mean=1, std=2), -12, 14, 1.0, 2.0),
        (specs.TruncatedNormal(mean=1, std=2), -3, 5, 1.0, 2 * 0.87962566),
    ],
)
def test_distributions(initializer, low, high, mean, std):
    values = table(width=16, initializer=initializer).look_up(np.arange(20_000)).astype(np.float64)
    assert values.min() >= low and values.max() <= high
    assert abs(values.mean() - mean) < 0.02 and abs(values.std() - std) < 0.02
    if std:  # neither the elements of a row nor those of neighbouring ids go together
        assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.03
        assert np.abs(np.corrcoef(values.T) - np.eye(16)).max() < 0.04


def test_reading_without_training_changes_nothing():
    t, ids = table(initializer=specs.Uniform(), seed=2), ids_of(100)
    born_with = t.look_up(ids, train=False)
    assert len(t) == 0
    np.testing.assert_array_equal(t.look_up(ids), born_with)


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_fluids(name):
    height, width = np.shape(GOLDEN["tables"][name])
    t = table(width=width, optimizer=OPTIMIZERS[name])
    t.assign(
        np.arange(height),
        np.linspace(0.5, 2, height * width, dtype=np.float32).reshape(height, width),
    )
    for batch in [[*range(height)] if name.startswith("ftrl") else [], *GOLDEN["batches"]]:
        batch = np.array(batch, np.int64)
        if len(batch):
            rows = t.look_up(batch)
            t.push(batch, 2 * rows / rows.size)
    expected = np.array(GOLDEN["tables"][name])
    np.testing.assert_allclose(t.look_up(np.arange(height), train=False), expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(t.look_up(np.arange(height)), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "rmsprop_centered"])
def test_a_row_that_rests_long_is_as_if_it_had_been_moved_at_every_step(name):
    """Rates change meanwhile; the other table shows the row at every step."""
    resting, moved = table(optimizer=OPTIMIZERS[name]), table(optimizer=OPTIMIZERS[name])
    ids, other = np.array([3]), np.array([4])
    for t in (resting, moved):
        t.push(ids, ones(ids))
        t.push(ids, 0.1 * ones(ids))
        for step in range(300):
            t.push(other, ones(other), learning_rate=0.05 * 0.97 ** (step // 5))
            if t is moved:
                t.look_up(ids)
    np.testing.assert_allclose(resting.look_up(ids), moved.look_up(ids), rtol=2e-5, atol=1e-7)
    resting.push(ids, ones(ids))
    moved.push(ids, ones(ids))
    np.testing.assert_allclose(resting.look_up(ids), moved.look_up(ids), rtol=2e-5, atol=1e-7)


def test_lazy_modes_leave_resting_rows_alone():
    ids, other = np.array([3]), np.array([4])
    for optimizer in (
        specs.Momentum(learning_rate=1, mu=0.9, lazy_mode=True),
        specs.Adam(learning_rate=1, lazy_mode=True),
        specs.RMSProp(learning_rate=1, momentum=0.9, lazy_mode=True),
    ):
        t = table(optimizer=optimizer)
        t.push(ids, ones(ids))
        before = t.look_up(ids)
        t.push(other, ones(other))
        np.testing.assert_array_equal(t.look_up(ids), before)


def test_gradients_of_equal_ids_are_added_up():
    t = table(optimizer=specs.Adagrad(learning_rate=1.0))
    ids = np.array([7, -7, 7, 7], np.int64)
    assert t.push(ids, ones(ids)) == 1
    np.testing.assert_allclose(t.look_up(np.array([7, -7])), -ones([0, 0]), rtol=1e-5)
    once, values = merge(ids, ones(ids))
    assert once.tolist() == [7, -7] and values[:, 0].tolist() == [3, 1]


def test_differences_and_values_pass_by_the_optimizer():
    t, ids = table(optimizer=specs.Adagrad(learning_rate=1.0)), np.array([1, 2])
    t.assign(ids, 5 * ones(ids))
    t.add(ids, 2 * ones(ids))
    assert (t.look_up(ids) == 7).all() and t.step == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: t.look_up([1, 2]), r"table t: ids: expected an array int64 \[n\], found list"),
        (lambda t: t.look_up(np.zeros(3, np.int32)), r"ids: .*found int32 \[3\]"),
        (lambda t: t.look_up(np.zeros((3, 1), np.int64)), r"found int64 \[3, 1\]"),
        (
            lambda t: t.look_up(np.zeros(3, np.int64), np.ones(2, np.uint32)),
            r"counts: expected uint32 \[3\], found uint32 \[2\]",
        ),
        (
            lambda t: t.push(np.zeros(3, np.int64), np.ones((3, 5), np.float32)),
            r"gradients: expected an array float32 \[3, 4\], found float32 \[3, 5\]",
        ),
        (lambda t: t.push(np.zeros(3, np.int64), np.ones((3, 4))), r"found float64"),
        (
            lambda t: t.assign(np.zeros(3, np.int64), np.ones((2, 4), np.float32)),
            r"values: expected an array float32 \[3, 4\]",
        ),
        (lambda t: t.shrink(0), r"age: expected at least 1 step, found 0"),
    ],
)
def test_wrong_calls_are_refused_and_change_nothing(call, message):
    t = table()
    with pytest.raises(errors.ServerError, match=message):
        call(t)
    assert len(t) == 0 and t.step == 0


def test_shrinking_waits_for_a_snapshot_no_longer_than_its_caller_lives():
    t = table()
    with t.view(), pytest.raises(StateError, match="the caller has gone"):
        t.shrink(1, alive=lambda: False)
    assert t.shrink(1, alive=lambda: False) == 0


def test_no_ids_at_all():
    t, none = table(), np.zeros(0, np.int64)
    assert t.look_up(none).shape == (0, 4) and t.push(none, ones(none)) == 1 and len(t) == 0


# ---- entry and expiry ----------------------------------------------------------------------------


def test_entry_by_count():
    t = table(initializer=specs.Constant(value=2), entry=specs.CountEntry(count=3))
    ids = np.array([1, 2])
    for _ in range(2):
        assert (t.look_up(ids) == 0).all()
        t.push(ids, ones(ids))
    assert len(t) == 0 and t.waiting == 2
    assert t.look_up(ids[:1]).tolist() == [[2] * 4] and len(t) == 1
    assert (t.look_up(np.array([9]), np.array([3], np.uint32)) == 2).all()
    t.push(ids, ones(ids))
    assert t.look_up(ids, train=False)[:, 0].tolist() == [1, 0]
    with t.view() as view:
        shows = {int(head["id"]): int(head["shows"]) for heads, _ in view.blocks() for head in heads}
    assert shows == {1: 3, 9: 3}


def test_entry_by_probability_depends_on_the_seed_only():
    ids = np.arange(5_000)
    tables = [table(entry=specs.ProbabilityEntry(probability=0.25), shards=shards, seed=1) for shards in (2, 64)]
    for part in np.array_split(ids, 3):
        tables[0].look_up(part)
    tables[1].look_up(ids[::-1].copy())
    for expected in (0.25, 1 - 0.75**2):
        assert len(tables[0]) == len(tables[1])
        assert abs(len(tables[0]) / len(ids) - expected) < 0.02
        for t in tables:
            t.look_up(ids)


def test_expiry_by_age():
    t, old, young = table(initializer=specs.Uniform(), shards=2), ids_of(5000), ids_of(3000, seed=1)
    fresh = t.look_up(old)
    t.push(old, ones(old))
    for _ in range(4):
        t.push(young, ones(young))
    expected = t.look_up(young, train=False)
    assert t.shrink(5) == 0 and t.shrink(4) == 5000 and len(t) == 3000
    np.testing.assert_array_equal(t.look_up(young), expected)
    np.testing.assert_array_equal(t.look_up(old), fresh)  # born anew
    assert t.shrink(1) == 0
    t.push(young[:1], ones(young[:1]))
    assert t.shrink(1) == 7999 and len(t) == 1


# ---- threads -------------------------------------------------------------------------------------


def in_threads(*functions):
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[f]) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


def test_many_threads_lose_no_update():
    t, ids = table(width=2, shards=4), np.arange(20_000)

    def work(seed):
        rng = np.random.RandomState(seed)
        for _ in range(20):
            some = rng.permutation(ids)
            t.look_up(some[:500])
            t.push(some, -ones(some, 2), merged=True)

    in_threads(*(lambda seed=seed: work(seed) for seed in range(4)))
    assert len(t) == len(ids) and t.step == 80
    assert (t.look_up(ids) == 80).all()


@pytest.mark.parametrize("entry", [None, specs.CountEntry(count=2)])
def test_a_cut_stays_as_it_was_while_the_table_changes(entry):
    t, ids = table(width=2, shards=4, initializer=specs.Uniform(), entry=entry), ids_of(50_000)
    t.look_up(ids)
    t.look_up(ids[:30_000])
    t.push(ids, ones(ids, 2))
    expected = t.look_up(ids, train=False)
    present, waiting = len(t), t.waiting
    rng = np.random.RandomState(0)
    with t.view() as view:
        found = []
        for block in view.blocks():
            found.append(block)
            some = rng.choice(ids, 5000)
            t.push(some, ones(some, 2))
            t.look_up(ids_of(3000, seed=len(found)))
            t.look_up(some)
        waited = list(view.blocks(waiting=True))
    heads = np.concatenate([heads for heads, _ in found])
    bodies = np.concatenate([bodies for _, bodies in found])
    assert len(heads) == present == len(np.unique(heads["id"])) and sum(len(h) for h, _ in waited) == waiting
    restored = table(width=2, shards=8, initializer=specs.Uniform(), entry=entry)
    restored.put(heads, bodies)
    np.testing.assert_array_equal(restored.look_up(ids, train=False), expected)


# ---- the hashes that decide where ids go ---------------------------------------------------------


def test_ids_are_spread_evenly_over_servers_and_shards_also_together():
    ids = np.arange(200_000) * 8
    for servers in (2, 3, 5):
        owners = kernels.owners_of(ids, servers)
        counts = np.bincount(owners, minlength=servers)
        assert counts.min() > 0.97 * len(ids) / servers
        shards = np.bincount(kernels.shards_of(ids[owners == 1], 4, kernels.SECRET), minlength=16)
        assert shards.min() > 0.9 * counts[1] / 16


def test_parts_are_complete_and_in_order():
    groups = np.random.RandomState(0).randint(0, 5, 1000).astype(np.int32)
    order, starts = kernels.partition(groups, 6)
    for g in range(6):
        np.testing.assert_array_equal(order[starts[g] : starts[g + 1]], np.flatnonzero(groups == g))


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"width": 0}, "width"),
        ({"width": 4, "name": ""}, "name"),
        ({"width": 4, "shards": 3}, "shards"),
        ({"width": 4, "optimizer": {"type": "lamb", "learning_rate": 1}}, "optimizer.*lamb"),
        (
            {"width": 4, "optimizer": {"type": "momentum", "learning_rate": 1, "mu": 1.0}},
            "optimizer.*mu",
        ),
        (
            {"width": 4, "optimizer": {"type": "sgd", "learning_rate": float("nan")}},
            "optimizer.*learning_rate",
        ),
        ({"width": 4, "seed": 2**63}, "seed"),
        ({"width": 4, "colour": 1}, "colour"),
    ],
)
def test_wrong_specs_are_refused(bad, message):
    good = {"name": "t", "optimizer": {"type": "sgd", "learning_rate": 1}}
    with pytest.raises(errors.ServerError, match=rf"the table: {message}"):
        validation.read(specs.TableSpec, good | bad, "the table")


def test_laws_and_rules_know_every_kind():
    with pytest.raises(TypeError, match="expected an initializer"):
        row_initializers.encoded(specs.Sgd(learning_rate=1))
