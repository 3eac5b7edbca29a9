"""The hash of ids: who chooses them cannot make them collide, and nothing that a caller sees
depends on the secret.
"""

import time

import numpy as np
import pytest

from jfluid.ps_server import index, kernels, row_initializers, snapshot, specs
from jfluid.ps_server.store import Change, RowsUpdate, Store
from jfluid.ps_server.table import SparseTable, merge

MASK = (1 << 64) - 1
KNOWN = np.uint64(0), np.uint64(0x9E3779B97F4A7C15)
SECRETS = [KNOWN, (np.uint64(0xC0FFEE), np.uint64(0xDECAF))]
COUNT = 10_000


def unmixed(z):
    """What `kernels.mix` makes z of."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, None)):
        x = z
        for _ in range(64 // shift + 1):
            x = z ^ (x >> shift)
        z = x if factor is None else x * pow(factor, -1, 1 << 64) & MASK
    return z


def ids_with(hashes, secret):
    """The ids that have these hashes under a secret."""
    keys = [int(key) for key in secret]
    chosen = [unmixed(unmixed(h) - keys[1] & MASK) ^ keys[0] for h in hashes]
    return np.array(chosen, np.uint64).view(np.int64)


def hostile(secret):
    """(ids of one place in `distinct`, ids of one place in a table)."""
    return (
        ids_with([k << 40 for k in range(1, COUNT + 1)], secret),
        ids_with([0xABCDEF0123 << 24 | k for k in range(COUNT)], secret),
    )


def least_s(function, times):
    found = []
    for _ in range(times):
        start = time.thread_time()
        function()
        found.append(time.thread_time() - start)
    return min(found)


def table(**more):
    return SparseTable(
        specs.TableSpec(
            name="t",
            width=3,
            **{
                "optimizer": specs.Adagrad(learning_rate=0.1),
                "initializer": specs.Uniform(),
                **more,
            },
        )
    )


def added(ids):
    t = table()
    t.look_up(ids)
    return t


def seconds(distinct_ids, table_ids, times=5):
    """Of `distinct`, and of looking rows up."""
    there = added(table_ids)
    return [
        least_s(lambda: kernels.distinct(distinct_ids), times),
        least_s(lambda: there.look_up(table_ids), times),
    ]


def test_ids_that_collide_under_one_secret_do_not_under_another(monkeypatch):
    """They take hundreds of times as long where they collide. Adding rows is not timed: that is
    the time to get their memory."""
    plain = np.random.default_rng(0).integers(-(2**62), 2**62, COUNT)
    seconds(plain[:9], plain[:9])  # compiled
    usual, chosen = seconds(plain, plain), seconds(*hostile(KNOWN))
    monkeypatch.setattr(kernels, "SECRET", KNOWN)  # the ids were chosen well
    slow = seconds(*hostile(KNOWN), times=1)
    for found in usual, chosen:
        assert all(8 * fast < late for fast, late in zip(found, slow)), (usual, chosen, slow)


def test_each_process_has_a_secret_of_its_own():
    assert len({*kernels.SECRET, *KNOWN}) == 4 and all(key.dtype == np.uint64 for key in kernels.SECRET)


def test_machine_code_that_is_kept_on_the_disk_does_not_hold_the_secret():
    """Numba writes values of globals into the code of kernels that read them."""
    compiled = [
        k.py_func
        for module in (kernels, index, row_initializers)
        for k in vars(module).values()
        if hasattr(k, "py_func")
    ]
    names = {name for function in compiled for name in function.__code__.co_names}
    assert "mix" in names and "SECRET" not in names


def results(folder, monkeypatch, secret):
    """Everything that a caller sees, by name, of work on ids of which many are equal."""
    monkeypatch.setattr(kernels, "SECRET", secret)
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 700, 5000) * (1 << 33)
    gradients = (rng.standard_normal((len(ids), 3)) * 10.0 ** rng.integers(-4, 4, (len(ids), 1))).astype(np.float32)
    once, inverse = kernels.distinct(ids)
    found = {"once": once, "inverse": inverse, "merged": merge(ids, gradients)[1]}
    t = table(entry=specs.CountEntry(count=3), shards=4)
    found["entry"] = t.look_up(ids)
    t.push(ids, gradients)
    t.add(ids, gradients)
    t.assign(ids[:50], gradients[:50])
    found |= {
        "rows": t.look_up(ids, train=False),
        "count": np.array([len(t), t.waiting, t.shrink(1), len(t)]),
    }
    program = table(optimizer=specs.Program(learning_rate=0.1))

    def scaled(values, slots, merged):
        found["order"], found["sum"] = merged.copy(), np.cumsum(values, 0)[-1]
        return values - merged, slots

    program.update(ids, gradients, scaled)
    found["updated"] = program.look_up(once)
    store = Store()
    store.create_table(table().spec)
    store.apply([RowsUpdate("t", Change.GRADIENT, *merge(ids, gradients))], [])
    with store.view() as view:
        snapshot.write(view, folder, f"s{int(secret[0])}", 0, 1)
    return found | {"pushed": store.tables["t"].look_up(once, train=False)}


def test_nothing_that_a_caller_sees_depends_on_the_secret(tmp_path, monkeypatch):
    first, second = (results(tmp_path, monkeypatch, secret) for secret in SECRETS)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], name)


def test_a_snapshot_goes_from_a_process_to_one_with_another_secret(tmp_path, monkeypatch):
    expected = results(tmp_path, monkeypatch, SECRETS[0])
    monkeypatch.setattr(kernels, "SECRET", SECRETS[1])
    store = Store()
    snapshot.restore(store, tmp_path, 0, 1)
    np.testing.assert_array_equal(store.tables["t"].look_up(expected["once"], train=False), expected["pushed"])


@pytest.mark.parametrize("servers", [2, 7])
def test_which_server_owns_an_id_is_the_same_in_all_processes(monkeypatch, servers):
    ids = np.arange(-500, 500)
    owners = kernels.owners_of(ids, servers)
    monkeypatch.setattr(kernels, "SECRET", SECRETS[1])
    np.testing.assert_array_equal(kernels.owners_of(ids, servers), owners)
    np.testing.assert_array_equal(owners[500:508], {2: [1, 0, 1, 0, 0, 1, 1, 1], 7: [3, 0, 6, 0, 1, 5, 5, 3]}[servers])
