"""Snapshots: consistent, complete or absent, restored also with another number of servers."""
import errno
import json
import threading

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.kernels import owners_of
from jfluid.ps_server.ledger import Call
from jfluid.ps_server.refusals import StateError
from jfluid.ps_server.store import Store
from tests.ps_server.test_table import ids_of, ones

MOMENTUM = specs.Momentum(learning_rate=0.1, mu=0.9)
TABLE = specs.TableSpec(name="t", width=4, initializer=specs.Normal(), optimizer=MOMENTUM, seed=3)
COUNTED = specs.TableSpec(name="c", width=4, optimizer=specs.Sgd(learning_rate=1), entry=specs.CountEntry(count=2))
BLOCK = specs.BlockSpec(name="w", shape=(3, 2), optimizer=specs.Adam(learning_rate=0.1))
IDS = ids_of(3000)


def call(sequence, incarnation=1):
    return Call(0, incarnation, sequence, 1)


def filled(server=0, servers=1):
    """A store with its share of IDS, after two pushes."""
    store, ids = Store(), IDS[owners_of(IDS, servers) == server]
    store.create_table(TABLE)
    store.create_table(COUNTED)
    store.create_block(BLOCK)
    for sequence in (1, 2):
        with store.once(call(sequence)):
            store.table("t").push(ids, ones(ids), learning_rate=0.1 * sequence)
            store.table("c").look_up(ids[:100 * sequence])
            store.block("w").push(np.full((3, 2), sequence, np.float32))
    return store


def save(store, folder, name="a", server=0, servers=1):
    with store.cut() as cut:
        return snapshot.write(cut, folder, name, server, servers)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def values(store, ids=IDS):
    return store.table("t").look_up(ids, train=False)


def test_a_restored_store_goes_on_as_if_nothing_had_happened(tmp_path):
    store, restored = filled(), Store()
    save(store, tmp_path)
    snapshot.restore(restored, tmp_path, 0, 1)
    for one in (store, restored):
        with one.once(call(2)) as first:
            assert not first
        with one.once(call(3)) as first:
            assert first
            one.table("t").push(IDS[::3], ones(IDS[::3]))
            one.block("w").push(np.ones((3, 2), np.float32))
        one.table("c").look_up(IDS[:150])
    np.testing.assert_array_equal(values(restored), values(store))
    np.testing.assert_array_equal(restored.block("w").read()[0], store.block("w").read()[0])
    assert restored.table("t").step == 3 and restored.block("w").version == 3
    assert [len(s.table("c")) for s in (store, restored)] == [150, 150]
    assert [s.table("c").waiting for s in (store, restored)] == [200, 200]


@pytest.mark.parametrize("before, after", [(1, 3), (3, 2), (2, 1)])
def test_another_number_of_servers(tmp_path, before, after):
    for server in range(before):
        save(filled(server, before), tmp_path, server=server, servers=before)
    expected, found, rows = values(filled()), np.zeros((len(IDS), 4), np.float32), 0
    for server in range(after):
        store = Store()
        if server == 0:
            store.create_block(BLOCK)
        snapshot.restore(store, tmp_path, server, after)
        mine = owners_of(IDS, after) == server
        found[mine] = values(store, IDS[mine])
        rows += len(store.table("t"))
        assert set(store.blocks) == ({"w"} if server == 0 else set())
        with pytest.raises(StateError, match="incarnation 1 has ended"), store.once(call(3)):
            pass
        with store.once(call(1, incarnation=5)) as first:
            assert first
    np.testing.assert_array_equal(found, expected)
    assert rows == len(IDS)


def test_the_cut_is_consistent_while_pushes_go_on(tmp_path):
    """Every push adds 1 to all rows of two tables: rows of a cut must all agree with the count of pushes."""
    store, ids, stop = Store(), ids_of(20_000), threading.Event()
    for name in ("a", "b"):
        store.create_table(specs.TableSpec(name=name, width=1, optimizer=specs.Sgd(learning_rate=-1), shards=4))

    def push():
        sequence = 0
        while not stop.is_set():
            sequence += 1
            with store.once(Call(0, 1, sequence, sequence)):
                for name in ("a", "b"):
                    store.table(name).push(ids, ones(ids, 1), merged=True)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for number in range(4):
            save(store, tmp_path, f"s{number}")
    finally:
        stop.set()
        thread.join(60)
    restored = Store()
    snapshot.restore(restored, tmp_path, 0, 1)
    count = restored.ledger.through(0)[1]
    assert count > 0 or len(restored.table("a")) == 0
    for name in ("a", "b"):
        assert restored.table(name).step == count
        assert (restored.table(name).look_up(ids, train=False) == count).all()


def test_an_earlier_snapshot_stays_until_the_next_is_complete(tmp_path):
    stores = [filled(server, 2) for server in range(2)]
    for server in range(2):
        save(stores[server], tmp_path, "first", server, 2)
    save(stores[0], tmp_path, "second", 0, 2)
    assert snapshot.latest(tmp_path)[0].id == "first"
    with pytest.raises(errors.ServerError, match=r"snapshot second; found first: 2 of 2 parts, second: 1 of 2 parts"):
        snapshot.latest(tmp_path, "second")
    save(stores[1], tmp_path, "second", 1, 2)
    assert snapshot.latest(tmp_path)[0].id == "second" and all(name.startswith("second.") for name in names(tmp_path))


def test_a_full_disk_leaves_the_earlier_snapshot(tmp_path, monkeypatch):
    store = filled()
    save(store, tmp_path, "first")
    before = names(tmp_path)
    output, written = snapshot._Output.write, []

    def write(self, array):
        written.append(array)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        output(self, array)

    monkeypatch.setattr(snapshot._Output, "write", write)
    with pytest.raises(OSError, match="No space left"):
        save(store, tmp_path, "second")
    assert names(tmp_path) == before and snapshot.latest(tmp_path)[0].id == "first"
    monkeypatch.undo()
    save(store, tmp_path, "third")
    assert snapshot.latest(tmp_path)[0].id == "third"


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage, message", [
    (flip, "damaged: its checksum is not that of the manifest"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "missing or has another size"),
    (lambda path: path.unlink(), "missing or has another size"),
])
@pytest.mark.parametrize("kind", ["rows", "numbers"])
def test_damaged_files_are_refused(tmp_path, damage, message, kind):
    save(filled(), tmp_path)
    damage(next(path for path in sorted(tmp_path.glob(f"*.{kind}")) if path.stat().st_size))
    store = Store()
    with pytest.raises(errors.ServerError, match=message):
        snapshot.restore(store, tmp_path, 0, 1)
    assert not store.tables and not store.blocks


@pytest.mark.parametrize("change, message", [
    (lambda m: m.update(format=2), "has format 2; this release reads 1"),
    (lambda m: m["tables"][0].update(rows=5), "expected 5 rows of 48 bytes, found 144000 bytes"),
    (lambda m: m["tables"][0]["rows_file"].update(name="../../etc/passwd"), "missing or has another size"),
    (lambda m: m.pop("ledger"), "ledger: Field required"),
    (lambda m: m["tables"][0].update(segments=10**9), "expected 1000000000 rates"),
    (lambda m: m["blocks"][0]["spec"].update(shape=[7]), "block w: expected 21 numbers float32, found float32 .18."),
    (lambda m: m["blocks"][0]["state"].pop("step"), "block w: the state is of a block of another kind: it has no step"),
])
def test_manifests_that_lie_are_refused(tmp_path, change, message):
    save(filled(), tmp_path)
    path, = tmp_path.glob("*.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    store = Store()
    with pytest.raises(errors.ServerError, match=message):
        snapshot.restore(store, tmp_path, 0, 1)
    assert not store.tables and not store.blocks


def test_another_table_of_the_same_name_is_refused(tmp_path):
    save(filled(), tmp_path)
    store = Store()
    store.create_table(TABLE.model_copy(update={"width": 8}))
    with pytest.raises(errors.ServerError, match="table t: the snapshot holds another table"):
        snapshot.restore(store, tmp_path, 0, 1)


def test_places_without_a_snapshot(tmp_path):
    with pytest.raises(errors.ServerError, match="no such directory"):
        snapshot.restore(Store(), tmp_path / "none", 0, 1)
    with pytest.raises(errors.ServerError, match="no complete snapshot; found none"):
        snapshot.restore(Store(), tmp_path, 0, 1)
    with pytest.raises(errors.ServerError, match="expected an id of letters"):
        save(Store(), tmp_path, "../x")
