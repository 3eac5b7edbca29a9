"""Snapshots of a program's servers that another number of servers goes on from."""

import json
import shutil
import zlib

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.distributed.server.program_store import ProgramStore
from jfluid.distributed.wire import connections
from jfluid.ps_server import snapshot
from jfluid.ps_server.client import Client
from jfluid.ps_server.errors import DamagedError
from jfluid.ps_server.manifest import Manifest
from jfluid.ps_server.store import BlockUpdate, Change
from jfluid.transpiler.ps_dispatcher import HashName
from tests.distributed.job import Job, batches, net, transpile

TOKEN = "0123456789-token-of-the-tests"
CASES = [
    pytest.param("sparse", "decay", 3, 2, {}, {"smallest": 16}, marks=pytest.mark.nightly),
    ("distributed", "decay", 2, 1, {}, {}),
    # before each change `test_checkpoint.py` goes on with lamb, and with asynchronous schedules, on other servers
    pytest.param("sparse", "lamb", 1, 2, {}, {}, marks=pytest.mark.nightly),
    ("sparse", "decayed", 2, 3, {"slice_var_up": False}, {"split_method": HashName}),
    ("dense", "adam", 3, 2, {"enable_dc_asgd": True, "sync": False}, {"sync": False}),
    pytest.param("sparse", "decay", 2, 3, {"sync": False}, {"sync": False}, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("kind", "optimizer", "before", "after", "old", "new"), CASES)
def test_other_servers_go_on(kind, optimizer, before, after, old, new, tmp_path):
    """With the numbers of the job that did not change, however its variables are cut."""
    with Job(net(kind, optimizer), before, **old) as job:
        job.begin()
        job.steps(batches(4))
        connections._connections[tuple(job.endpoints), 0].client.save(str(tmp_path))
        expected = job.steps(batches(4, 8)), job.parameters()
    with Job(net(kind, optimizer), after, **{**old, **new}) as job:
        with Client(job.endpoints, TOKEN) as client:
            client.restore(str(tmp_path))
            assert {s.rounds for s in client.status()} == {0 if "sync" in old else 4}
        job.begin()
        found = job.steps(batches(4, 8)), job.parameters()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-7, err_msg=name)


# ---- snapshots that cannot be gone on from -------------------------------------------------------


def stores(number, build=None, **config):
    """The stores of a job's servers, which do not serve."""
    endpoints, found = [f"127.0.0.1:{1 + n}" for n in range(number)], []
    transpiler, *_ = transpile(build or net("sparse", "decay"), endpoints, sync=False, **config)
    for endpoint in endpoints:
        program, startup = transpiler.get_pserver_programs(endpoint)
        scope, executor = fluid.Scope(), fluid.Executor(fluid.CPUPlace())
        executor.run(startup, scope=scope)
        found.append(ProgramStore(program, scope, executor.engine))
    return found


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory):
    """A folder with a snapshot "a" of two."""
    folder = tmp_path_factory.mktemp("snapshots")
    for server, store in enumerate(stores(2)):
        with store.view() as view:
            snapshot.write(view, folder, "a", server, 2)
    return folder


@pytest.fixture(scope="module")
def one_server():
    (store,) = stores(1)
    return store


def held(store):
    """All that a store holds."""
    blocks = {name: block.state() for name, block in store.blocks.items()}
    return {n: (s["numbers"].tobytes(), s.get("version")) for n, s in blocks.items()} | {
        name: (table.look_up(np.arange(40), train=False).tobytes(), table.step) for name, table in store.tables.items()
    }


def block(manifest, name):
    return next(b for b in manifest["blocks"] if b["name"] == name)


def variable(manifest, name):
    return block(manifest, name)["state"]["variables"]


def rewrite(folder, part, change):
    """Change a manifest as somebody does who knows the checksum, too."""
    (path,) = folder.glob(f"a.0000{part}-*.json")
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_bytes(Manifest.model_validate(manifest).checked().text())


LIES = [
    (lambda m: m.update(pieces=None), "does not say how the variables were divided.*save_persistables"),
    (
        lambda m: m["pieces"]["w1.block1"].update(first=4),
        r"a.00001-.*numbers: variable w1: expected rows from 5 on, found 4",
    ),
    (
        lambda m: m["pieces"]["w1.block1"].update(first=None, rows=None),
        r"a.00001-.*numbers: variable w1: expected float32 \[10, 8\] as w1.block1, found \[5, 8\]",
    ),
    (
        lambda m: m["pieces"]["w1.block1"].update(shape=[11, 8]),
        r"a.00001-.*numbers: variable w1: expected float32 \[10, 8\], found float32 \[11, 8\]",
    ),
    (
        lambda m: m["pieces"]["w1.block1"].update(rows=4),
        r"a.00001-.*numbers: variable w1: expected float32 \[4, 8\] as w1.block1, found \[5, 8\]",
    ),
    (
        lambda m: variable(m, "w1.block1")[0].__setitem__(1, "int32"),
        r"a.00001-.*numbers: variable w1: expected float32 \[10, 8\], found int32",
    ),
    (
        lambda m: variable(m, "w1.block1")[0].__setitem__(1, "O"),
        r"a.00001-.*numbers: block w1.block1: expected \d+ bytes of variables, found",
    ),
    (
        lambda m: variable(m, "w1.block1")[0].__setitem__(2, [2**40] * 9),
        r"a.00001-.*numbers: block w1.block1: expected \d+ bytes of variables, found",
    ),
    (
        lambda m: block(m, "w1.block1")["state"].update(variables=[7]),
        r"a.00001-.*numbers: block w1.block1: expected names, types and shapes",
    ),
    (
        lambda m: m["blocks"].remove(block(m, "w1.block1")),
        r"a.00000-.*numbers: variable w1: expected 10 rows, found 5",
    ),
    (
        lambda m: m["pieces"]["w1.block1"].update(variable="w7"),
        "a.00001-.*json: variable w7: this program has none",
    ),
    (
        lambda m: m.update(rounds=3),
        "a.00001-.*json: expected 0 rounds, as server 0 of the same snapshot has, found 3",
    ),
    (
        lambda m: m["pieces"]["table.block1"].update(first=19),
        r"a.00001-.*rows: variable table: expected rows from 20 on, found 19",
    ),
    (
        lambda m: m["pieces"]["table.block1"].update(first=None, rows=None),
        r"a.00001-.*rows: variable table: expected rows from 20 on, found a copy",
    ),
    (
        lambda m: m["pieces"]["table.block1"].update(shape=[41, 4]),
        r"a.00001-.*rows: table table: the snapshot holds a different table",
    ),
    (
        lambda m: m["tables"][0]["spec"].update(name="table.block7"),
        r"a.00000-.*rows: variable table: expected 40 rows, found 20",
    ),
]


@pytest.mark.parametrize(("change", "message"), LIES)
def test_what_contradicts_itself_is_refused(change, message, two_servers, one_server, tmp_path):
    """By file and variable, and the store stays as it was."""
    shutil.copytree(two_servers, tmp_path / "a")
    rewrite(tmp_path / "a", 1, change)
    before = held(one_server)
    with pytest.raises(errors.ServerError, match=f"(?s){message}"):
        snapshot.restore(one_server, tmp_path / "a", 0, 1)
    assert held(one_server) == before


def test_damaged_files_are_refused(two_servers, one_server, tmp_path):
    before = held(one_server)
    (path,) = two_servers.glob("a.00001-*.json")
    manifest = Manifest.model_validate_json(path.read_text())
    files = [p.file for p in manifest.blocks if p.name.startswith("w")]
    for file in [*files, manifest.tables[0].rows_file]:
        shutil.copytree(two_servers, tmp_path / file.name)
        damaged = tmp_path / file.name / file.name
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x55")
        with pytest.raises(DamagedError, match=file.name):
            snapshot.restore(one_server, tmp_path / file.name, 0, 1)
    assert held(one_server) == before


def test_rows_that_are_missing_or_foreign_are_refused(two_servers, one_server, tmp_path):
    (path,) = two_servers.glob("a.00001-*.json")
    part = Manifest.model_validate_json(path.read_text()).tables[0]
    size = part.rows_file.size // part.rows
    before = held(one_server)
    for number, message in (
        (20, r"rows: table table: expected rows 0 \.\.\. 19, found 0 \.\.\. 20"),
        (0, r"rows: table table: expected the rows 0 \.\.\. 39, found 39 of them"),
    ):
        folder = tmp_path / str(number)
        shutil.copytree(two_servers, folder)
        data = bytearray((folder / part.rows_file.name).read_bytes())
        ids = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), size)]
        at = size * ids.index(7)
        data[at : at + 8] = number.to_bytes(8, "little")
        (folder / part.rows_file.name).write_bytes(data)
        rewrite(
            folder,
            1,
            lambda m, data=data: m["tables"][0]["rows_file"].update(crc32=zlib.crc32(data)),
        )
        with pytest.raises(DamagedError, match=message):
            snapshot.restore(one_server, folder, 0, 1)
    assert held(one_server) == before


def test_tables_of_consecutive_rows_are_restored_with_all_else(two_servers, one_server):
    with pytest.raises(errors.ServerError, match="table.block0: .*divided the rows.*restore the whole"):
        snapshot.restore(one_server, two_servers, 0, 1, tables=["table.block0"])


def test_as_many_servers_that_are_cut_otherwise(tmp_path):
    """Each takes the pieces that are now its own from all."""
    random = np.random.RandomState(0)
    values = {n: random.rand(*s).astype("float32") for n, s in {"w1": (10, 8), "b2": (1,)}.items()}
    rows = random.rand(40, 4).astype("float32")
    for server, store in enumerate(stores(2)):
        for name, block in store.blocks.items():
            if (piece := store.pieces().get(name)) and piece.variable in values:
                block.assign(values[piece.variable][piece.first : piece.first + piece.rows])
        for table in store.tables.values():
            table.assign(np.arange(20), rows[20 * server :][:20])
        with store.view() as view:
            snapshot.write(view, tmp_path, "a", server, 2)
    found = stores(2, slice_var_up=False)
    for server, store in enumerate(found):
        snapshot.restore(store, tmp_path, server, 2)
    joined = {n: b for store in found for n, b in store.blocks.items()}
    for name, value in values.items():
        np.testing.assert_array_equal(joined[name].read()[0], value)
    (table,) = (t for store in found for t in store.tables.values())
    np.testing.assert_array_equal(table.look_up(np.arange(40)), rows)


def test_another_number_of_trainers(tmp_path):
    """The schedule goes on with the steps of all that there were."""
    for server, store in enumerate(stores(2, trainers=3)):
        for trainer in (0, 1, 1, 2):
            count = f"@LR_DECAY_COUNTER@.trainer_{trainer}"
            store.apply([], [BlockUpdate(count, Change.ADD, np.ones(1, np.float32))])
        steps = sum(store.block(f"@LR_DECAY_COUNTER@.trainer_{t}").read()[0] for t in range(3))
        with store.view() as view:
            snapshot.write(view, tmp_path, "a", server, 2)
    (store,) = stores(1, trainers=2)
    snapshot.restore(store, tmp_path, 0, 1)
    counts = [store.block(f"@LR_DECAY_COUNTER@.trainer_{t}").read()[0] for t in range(2)]
    assert sum(counts) == steps and store.value("@LR_DECAY_COUNTER@") == steps


def test_what_one_of_several_servers_wrote_alone_is_for_it_alone(one_server, tmp_path):
    """As those write that go on by themselves."""
    with stores(2)[0].view() as view:
        snapshot.write(view, tmp_path, "a", 0, 1)
    with pytest.raises(errors.ServerError, match="had other pieces of .*b2_moment1_0.*Client.save"):
        snapshot.restore(one_server, tmp_path, 0, 1)
    snapshot.restore(stores(2)[0], tmp_path, 0, 1)


def test_snapshots_of_earlier_releases_are_for_as_many(two_servers, tmp_path):
    """They do not say of what the pieces are."""
    shutil.copytree(two_servers, tmp_path / "a")
    for server in range(2):
        rewrite(tmp_path / "a", server, lambda m: m.update(pieces=None))
        assert not any(b"pieces" in p.read_bytes() for p in (tmp_path / "a").glob(f"*0{server}-*.json"))
    for server, store in enumerate(stores(2)):
        assert snapshot.restore(store, tmp_path / "a", server, 2).id == "a"


def test_a_program_that_has_more_or_other_tables(two_servers):
    (store,) = stores(1, net("distributed", "decay"))
    with pytest.raises(errors.ServerError, match="does not hold table table"):
        snapshot.restore(store, two_servers, 0, 1)
