"""Snapshots: manifests, files of rows and numbers, states of trainers."""

import contextlib
import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from jfluid import errors
from jfluid.compile.dynamic_shapes.history import BucketsHistory, StreamHistory, TracedHistory
from jfluid.compile.runtime.padding import Size
from jfluid.compile.runtime.size_history import SizeHistories, StepHistory
from jfluid.distributed.trainer import local_state
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import snapshot, specs, validation, wire
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.manifest import Manifest
from jfluid.ps_server.round_snapshots import RoundSnapshots
from jfluid.ps_server.store import Store
from jfluid.scope import Scope
from tests.fuzz.harness import (
    Refusal,
    as_json,
    fuzzed,
    grows_linearly,
    lied,
    mutated,
    reads_or_refuses,
)

TABLES = [
    specs.TableSpec(
        name="t",
        width=2,
        initializer=specs.Uniform(),
        shards=2,
        entry=specs.CountEntry(count=2),
        optimizer=specs.Momentum(learning_rate=0.1, mu=0.9),
    ),
    specs.TableSpec(name="u", width=1, optimizer=specs.Adagrad(learning_rate=0.1), shards=2),
]
BLOCK = specs.BlockSpec(name="w", shape=(2, 3), optimizer=specs.Adam(learning_rate=0.1))
VARIABLE = pb.StateVariable(name="v", dtype="float32", shape=[2], value=bytes(8))
SHAPES = [((4, 3), (4, 1)), ((5, 3), (5, 1)), ((6, 3), (6, 1))]
TRACED = TracedHistory(3, 0, BucketsHistory([{"n0": 8}], [({"n0": 7}, 2)], 0.5), [({"n0": 8}, SHAPES[2])])
STREAM = StreamHistory(SHAPES, [(SHAPES[0],)], [TRACED], 1, "", 0, True)
SIZES = {"step": StepHistory([[{"slot": Size(16, (4,), (8,))}]], {"0 of 1": STREAM})}
STATE = pb.TrainerState(
    round=3,
    variables=[VARIABLE],
    runs={"p": 2},
    sizes=TypeAdapter(dict[str, StepHistory]).dump_json(SIZES),
)
# A table has an index and pages of its own from its first row on; a store with three of them is
# made for each example.
FLOOR = 40_000_000
MANIFEST = "a.00000-of-00001.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(a folder, its files by name) with a snapshot of one server."""
    folder, store = tmp_path_factory.mktemp("fuzz"), Store()
    store.create(TABLES, [BLOCK])
    store.trainer_states = {0: STATE.SerializeToString()}
    for sequence in (1, 2, 4):
        with store.once(MutationId(0, 1, sequence, 1)):
            for name in ("t", "u"):
                ids = np.arange(20)
                store.table(name).look_up(ids)
                store.table(name).push(ids, np.ones((20, store.table(name).spec.width), np.float32))
    with store.view() as view:
        snapshot.write(view, folder, "a", 0, 1)
    snapshot.restore(Store(), folder, 0, 1)  # compiles the kernels, before memory is counted
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def restored(written, name, data):
    """Restore the snapshot with one file changed, and use what came; a refusal leaves nothing
    behind.
    """
    folder, files = written
    (folder / name).write_bytes(data)
    store = Store()
    try:
        found = reads_or_refuses(
            lambda folder: snapshot.restore(store, folder, 0, 1),
            folder,
            errors.ServerError,
            len(data),
            FLOOR,
        )
        snapshot.sound(folder)
    finally:
        (folder / name).write_bytes(files[name])
    if isinstance(found, Refusal):
        assert not store.tables and not store.blocks and not store.ledger.state() and not store.rounds
        return
    for table in store.tables.values():
        ids, width = np.arange(5), table.spec.width
        with contextlib.suppress(errors.ServerError):
            table.look_up(ids)
            table.push(ids, np.ones((5, width), np.float32))
    for block in store.blocks.values():
        block.push(np.ones(block.shape, np.float32))
    with store.view() as view:
        snapshot.write(view, folder / "again", "b", 0, 1)


def test_damaged_manifests(written):
    @fuzzed(150)
    @given(mutated([written[1][MANIFEST]]))
    def run(data):
        restored(written, MANIFEST, data)

    run()


def test_manifests_that_lie(written):
    @fuzzed(200)
    @given(lied(json.loads(written[1][MANIFEST])))
    def run(value):
        with contextlib.suppress(ValidationError, ValueError):  # a liar knows the checksum, too
            value = json.loads(Manifest.model_validate(value).checked().text())
        restored(written, MANIFEST, as_json(value))

    run()


@pytest.mark.parametrize("kind", ["rows", "numbers", "state"])
def test_damaged_files(written, kind):
    names = sorted(n for n in written[1] if n.endswith(kind) and written[1][n])

    @fuzzed(40)
    @given(st.sampled_from(names).flatmap(lambda n: st.tuples(st.just(n), mutated([written[1][n]]))))
    def run(case):
        restored(written, *case)

    run()


@fuzzed(100)
@given(mutated([STATE.SerializeToString(), STATE.SerializeToString() * 2]))
def test_states_of_trainers(data):
    scope = Scope()
    scope.var("v").get_tensor().set(np.zeros(2, np.float32))

    def read(data):
        sizes.recall({})
        local_state.install(wire.parsed(pb.TrainerState, data), scope, sizes)

    sizes = SizeHistories()
    if isinstance(reads_or_refuses(read, data, errors.ServerError), Refusal):
        assert (np.array(scope.var("v").get_tensor()) == 0).all() and not scope.steps and not dict(sizes)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"observed": [[[-1, 3], [4, 1]]]}, "a size is negative or too large"),
        ({"observed": [[[4, 3]], *SHAPES]}, "batches have different numbers of feeds"),
        ({"traced": {**asdict(TRACED), "observed": 1}}, "the shapes do not have the symbols of a trace"),
        ({"traced": {**asdict(TRACED), "range": 9}}, "the shapes do not have the symbols of a trace"),
        ({"traced": {**asdict(TRACED), "witnesses": [({"n7": 8}, SHAPES[2])]}}, "no size for a symbol"),
        ({"traced": {**asdict(TRACED), "witnesses": [({"n0": 8}, [[7, 3], [6, 1]])]}}, "contradicts the symbols"),
        ({"pads": "perhaps"}, "padded sizes: 1 validation error"),
    ],
)
def test_histories_of_sizes_that_no_trainer_has(changed, message):
    sizes = {"step": {"sequences": [], "segments": {"0 of 1": asdict(STREAM) | changed}}}
    with pytest.raises(errors.ServerError, match=message):
        local_state.install(pb.TrainerState(sizes=json.dumps(sizes).encode()), Scope(), SizeHistories())


@fuzzed(60)
@given(mutated([b'{"rounds":[2,4]}']) | lied({"rounds": [2, 4]}).map(as_json))
def test_what_all_servers_have(tmp_path_factory, data):
    """It is passed over where it cannot be read: the snapshots themselves count then."""
    folder = tmp_path_factory.mktemp("line")
    (folder / "recovery_line.json").write_bytes(data)
    own = reads_or_refuses(
        lambda folder: RoundSnapshots(folder, Store(), dict, lambda *_: None),
        folder,
        errors.ServerError,
        len(data),
        3_000_000,
    )
    own.status()


@pytest.mark.parametrize("text", ["[],", "{},", "1,", '"a",', '{"a":1},'])
def test_time(text):
    def family(size):
        return b'{"tables":[' + text.encode() * size + b"1]}"

    grows_linearly(lambda data: validation.read(Manifest, data, "a manifest"), family, 1000, errors.ServerError)
