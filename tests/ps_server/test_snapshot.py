"""Snapshots: consistent, complete or absent, restored also with another number of servers."""

import contextlib
import errno
import json
import os
import threading
import time

import numpy as np
import pytest
from pydantic import ValidationError

from jfluid import errors
from jfluid.ps_server import snapshot, specs
from jfluid.ps_server.errors import DamagedError, StateError
from jfluid.ps_server.kernels import owners_of
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.manifest import Manifest
from jfluid.ps_server.store import Store
from tests.measured import call_within
from tests.ps_server.test_table import ids_of, ones

MOMENTUM = specs.Momentum(learning_rate=0.1, mu=0.9)
TABLE = specs.TableSpec(name="t", width=4, initializer=specs.Normal(), optimizer=MOMENTUM, seed=3)
COUNTED = specs.TableSpec(name="c", width=4, optimizer=specs.Sgd(learning_rate=1), entry=specs.CountEntry(count=2))
BLOCK = specs.BlockSpec(name="w", shape=(3, 2), optimizer=specs.Adam(learning_rate=0.1))
IDS = ids_of(3000)


def call(sequence, incarnation=1):
    return MutationId(0, incarnation, sequence, 1)


def filled(server=0, servers=1):
    """A store with its share of IDS, after two pushes."""
    store, ids = Store(), IDS[owners_of(IDS, servers) == server]
    store.create_table(TABLE)
    store.create_table(COUNTED)
    store.create_block(BLOCK)
    for sequence in (1, 2):
        with store.once(call(sequence)):
            store.table("t").push(ids, ones(ids), learning_rate=0.1 * sequence)
            store.table("c").look_up(ids[: 100 * sequence])
            store.block("w").push(np.full((3, 2), sequence, np.float32))
    return store


def save(store, folder, name="a", server=0, servers=1):
    with store.view() as view:
        return snapshot.write(view, folder, name, server, servers)


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
    """Every push adds 1 to all rows of two tables: rows of a snapshot must all agree with the count
    of pushes.
    """
    store, ids, stop = Store(), ids_of(20_000), threading.Event()
    for name in ("a", "b"):
        store.create_table(specs.TableSpec(name=name, width=1, optimizer=specs.Sgd(learning_rate=-1), shards=4))

    def push():
        sequence = 0
        while not stop.is_set():
            sequence += 1
            with store.once(MutationId(0, 1, sequence, sequence)):
                for name in ("a", "b"):
                    store.table(name).push(ids, ones(ids, 1), merged=True)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for number in range(4):
            save(store, tmp_path, f"s{number}")
    finally:
        stop.set()
        thread.join(120)
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
    with pytest.raises(
        errors.ServerError,
        match=r"snapshot second; found first: 2 of 2 parts, second: 1 of 2 parts",
    ):
        snapshot.latest(tmp_path, "second")
    save(stores[1], tmp_path, "second", 1, 2)
    assert snapshot.latest(tmp_path)[0].id == "second" and all(name.startswith("second.") for name in names(tmp_path))


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_the_newest_is_told_by_numbers_and_not_by_clocks(tmp_path, monkeypatch, ahead_s):
    """A clock that is set between two snapshots, or another host's, and the files' times with
    it.
    """
    store = filled()
    with monkeypatch.context() as patch:
        now = time.time_ns()
        patch.setattr(time, "time_ns", lambda: now + ahead_s * 10**9)
        save(store, tmp_path, "first")
    for path in tmp_path.iterdir():
        os.utime(path, ns=(now + ahead_s * 10**9,) * 2)
    store.rounds = 1
    save(store, tmp_path, "second")
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


@pytest.mark.parametrize(
    "damage, message",
    [
        (flip, "damaged: its checksum is not that of the manifest"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "missing or has a different size"),
        (lambda path: path.unlink(), "missing or has a different size"),
    ],
)
@pytest.mark.parametrize("kind", ["rows", "numbers"])
def test_damaged_files_are_refused(tmp_path, damage, message, kind):
    save(filled(), tmp_path)
    damage(next(path for path in sorted(tmp_path.glob(f"*.{kind}")) if path.stat().st_size))
    store = Store()
    with pytest.raises(errors.ServerError, match=message):
        snapshot.restore(store, tmp_path, 0, 1)
    assert not store.tables and not store.blocks


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.update(format=3), "has format 3; this release reads 2"),
        (
            lambda m: m["tables"][0].update(rows=5),
            "expected 5 rows of 48 bytes, found 144000 bytes",
        ),
        (
            lambda m: m["tables"][0]["rows_file"].update(name="../../etc/passwd"),
            "expected file names that begin with a.00000",
        ),
        (
            lambda m: m["tables"][0]["rows_file"].update(name="b.00000-of-00001.0.rows"),
            "expected file names that begin with",
        ),
        (
            lambda m: m["tables"][0]["rows_file"].update(name="a.00000-of-00001.json.partial"),
            "expected file names",
        ),
        (
            lambda m: m["tables"][0]["rows_file"].update(name="a.00000-of-00001.0.rows\0"),
            "expected file names that begin with",
        ),
        (lambda m: m.update(id="b"), "expected file names that begin with b.00000-of-00001"),
        (lambda m: m.update(server=5), "expected file names that begin with a.00005-of-00001"),
        (
            lambda m: m["tables"][0].update(step=2**32),
            "tables.0.step: Input should be less than or equal to 4294967294",
        ),
        (
            lambda m: m["tables"][0].update(learning_rate=None),
            "tables.0.learning_rate: Input should be a valid number",
        ),
        (
            lambda m: m["tables"][0].update(rows=2**63),
            "tables.0.rows: Input should be less than 9223372036854775808",
        ),
        (
            lambda m: m["tables"][0].update(waiting_file=m["tables"][0]["rows_file"]),
            "where the table has an entry rule",
        ),
        (lambda m: m["tables"][1].update(waiting_file=None), "where the table has an entry rule"),
        (
            lambda m: m["blocks"][0]["spec"].update(shape=[2**40] * 32),
            "block w: expected .* numbers float32, found float32 .18.",
        ),
        (
            lambda m: m["blocks"][0]["spec"].update(shape=[1] * 33),
            "shape: Tuple should have at most 32 items",
        ),
        (
            lambda m: m["blocks"][0]["state"].update(version=2**64),
            "version: expected a whole number, found 18446744073709551616",
        ),
        (
            lambda m: m["blocks"][0]["state"].update(step=True),
            "step: expected a whole number, found True",
        ),
        (
            lambda m: m["blocks"][0]["state"].update(learning_rate="x"),
            "learning_rate: expected a finite number, found x",
        ),
        (
            lambda m: m["blocks"][0]["state"].update(learning_rate=1e999),
            "learning_rate: expected a finite number, found inf",
        ),
        (lambda m: m["blocks"][0]["state"].update(more=1), "a block has no more"),
        (
            lambda m: m["ledger"].update({"x": {}}),
            "ledger: .* expected incarnation, through and beyond of each trainer",
        ),
        (lambda m: m["ledger"]["0"].update(through=-1), "expected incarnation, through and beyond"),
        (
            lambda m: m["ledger"]["0"].update(beyond=[2**63 - 1] * 70_000),
            "expected incarnation, through and beyond",
        ),
        (lambda m: m.update(rounds=2**63), "rounds: Input should be less than"),
        (lambda m: m.update(number=2**63), "number: Input should be less than"),
        (
            lambda m: m.update({f"unknown {i}": i for i in range(100)}),
            "expected some of format, id, .* found 1.. fields",
        ),
        (lambda m: m.pop("ledger"), "ledger: Field required"),
        (lambda m: m["tables"][0].update(segments=10**9), "expected 1000000000 rates"),
        (
            lambda m: m["blocks"][0]["spec"].update(shape=[7]),
            "block w: expected 21 numbers float32, found float32 .18.",
        ),
        (
            lambda m: m["blocks"][0]["state"].pop("step"),
            "block w: the state is of a different kind of block: it has no step",
        ),
    ],
)
def test_manifests_that_lie_are_refused(tmp_path, change, message):
    save(filled(), tmp_path)
    (path,) = tmp_path.glob("*.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    with contextlib.suppress(ValidationError):  # a liar knows the checksum, too
        manifest = json.loads(Manifest.model_validate(manifest).checked().text())
    path.write_text(json.dumps(manifest))
    store = Store()
    with pytest.raises(errors.ServerError, match=message):
        snapshot.restore(store, tmp_path, 0, 1)
    assert not store.tables and not store.blocks


def test_a_manifest_of_which_one_digit_is_another_is_damaged(tmp_path):
    """It would be read, and be believed: a push would be applied twice, or never."""
    save(filled(), tmp_path)
    (path,) = tmp_path.glob("*.json")
    good = path.read_bytes()
    places = [i for i, byte in enumerate(good) if chr(byte).isdigit()]
    for i in places[::5]:
        changed = good[:i] + bytes([ord("0") + (good[i] - ord("0") + 1) % 10]) + good[i + 1 :]
        with contextlib.suppress(ValueError):
            if Manifest.model_validate_json(changed) == Manifest.model_validate_json(good):
                # the last digit of a float; beta1 as another beta2, where its default is meant
                continue
        path.write_bytes(changed)
        with pytest.raises(errors.ServerError):
            snapshot.latest(tmp_path)
    path.write_bytes(good)
    assert snapshot.latest(tmp_path)[0].id == "a"


@pytest.mark.parametrize(
    "name",
    ["lists", "mappings", "fields", "tables", "ledger", "deep", "numbers", "no text", "wide"],
)
def test_manifests_that_stand_for_much_are_refused_before_it_is_made(tmp_path, name):
    save(filled(), tmp_path)
    (path,) = tmp_path.glob("*.json")
    good = json.loads(path.read_text())
    inside = {
        "lists": '"left": [' + "[]," * 100_000 + "[]]",
        "mappings": '"left": [' + "{}," * 100_000 + "{}]",
        "fields": ", ".join(f'"a{i}": 1' for i in range(20_000)),
        "tables": '"tables": [' + '"table", ' * 40_000 + '""]',
        "ledger": '"ledger": {' + ", ".join(f'"{i}": "no calls"' for i in range(20_000)) + "}",
        "deep": '"left": ' + "[" * 100_000,
        "numbers": '"rounds": ' + "9" * 100_000,
        "no text": '"id": "\udcff"',
        "wide": '"id": "' + "x" * 100_000 + '"',
    }[name]
    data = (json.dumps(good)[:-1] + ", " + inside + "}").encode(errors="surrogateescape")
    path.write_bytes(data)

    def refuse():
        with pytest.raises(DamagedError) as caught:
            snapshot.latest(tmp_path)
        assert len(str(caught.value)) < 5000

    call_within(refuse, peak=max(500_000, 10 * len(data)))


def test_another_table_of_the_same_name_is_refused(tmp_path):
    save(filled(), tmp_path)
    store = Store()
    store.create_table(TABLE.model_copy(update={"width": 8}))
    with pytest.raises(errors.ServerError, match="table t: the snapshot holds a different table"):
        snapshot.restore(store, tmp_path, 0, 1)


def test_places_without_a_snapshot(tmp_path):
    with pytest.raises(errors.ServerError, match="no such directory"):
        snapshot.restore(Store(), tmp_path / "none", 0, 1)
    with pytest.raises(errors.ServerError, match="no complete snapshot; found none"):
        snapshot.restore(Store(), tmp_path, 0, 1)
    with pytest.raises(errors.ServerError, match="expected an id of letters"):
        save(Store(), tmp_path, "../x")
