"""Every call of a parameter server, through the functions that gRPC calls, without a network.

Each answers or refuses with a code of its own; what is refused changes no row or block, and is not
taken for applied.
"""

import hashlib
import json
import os
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import specs, wire, zero_copy
from jfluid.ps_server.service import Service
from jfluid.ps_server.store import Store
from jfluid.ps_server.sync_rounds import TrainerGroup
from tests.fuzz.harness import (
    Refusal,
    as_json,
    fuzzed,
    grows_linearly,
    lied,
    mutated,
    reads_or_refuses,
)

PROGRAM = specs.Program(learning_rate=1, slots=(specs.SlotSpec(name="m"),))
TABLES = [
    specs.TableSpec(name="t", width=2, shards=2, optimizer=specs.Adagrad(learning_rate=0.1)),
    specs.TableSpec(
        name="c",
        width=3,
        shards=2,
        optimizer=specs.Adam(learning_rate=0.1),
        max_rows=40,
        entry=specs.CountEntry(count=2),
    ),
    specs.TableSpec(name="p", width=1, shards=2, optimizer=PROGRAM),
]
BLOCK = specs.BlockSpec(name="w", shape=(2, 3), optimizer=specs.Sgd(learning_rate=0.5))
IDS = np.arange(8, dtype="<i8").tobytes()
# Parsing is held against the message alone. What a call does may take a page for rows (8 MiB) in
# each shard of each table.
FLOOR = 60_000_000
# A message of two bytes a part has an object for each of at most 16384 parts.
PARTS_FLOOR = 150 * zero_copy.MOST_PARTS


class Refused(Exception):
    """A call that ended with a status."""

    def __init__(self, code, details):
        super().__init__(details)
        self.code = code


class Server:
    """A service with some rows, called as gRPC would call it, by a caller who does not wait."""

    def __init__(self, root, trainers=2):
        self.store = Store()
        self.store.create(TABLES, [BLOCK])
        self.store.table("t").look_up(np.arange(8))
        self.service = Service(self.store, TrainerGroup(self.store, trainers), save_root=root)
        self._handlers = self.service.handlers()

    def call(self, name, data):
        def abort(code, details):
            raise Refused(code, details)

        context = SimpleNamespace(abort=abort, is_active=lambda: False)
        handler = self._handlers.service(SimpleNamespace(method=f"/{wire.SERVICE}/{name}", invocation_metadata=()))
        return (
            list(handler.stream_stream(iter(data), context)) if name == "Stream" else handler.unary_unary(data, context)
        )

    def digest(self):
        """Of all rows and blocks."""
        found = hashlib.sha256()
        for name, table in sorted(self.store.tables.items()):
            rows = sorted((int(i), v.tobytes()) for ids, values in table.items() for i, v in zip(ids, values))
            found.update(repr((name, table.step, table.waiting, rows)).encode())
        for name, block in sorted(self.store.blocks.items()):
            value, version = block.read()
            found.update(repr((name, version, value.tobytes())).encode())
        found.update(repr(self.store.rounds).encode())
        return found.hexdigest()

    def applied(self, caller):
        """Whether a call is taken for applied. (Up to what a caller says to have answers for, all
        are.)
        """
        calls = self.store.ledger.state().get(str(caller.trainer))
        return (
            calls is not None
            and calls["incarnation"] == caller.incarnation
            and (caller.sequence <= calls["through"] or caller.sequence in calls["beyond"])
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz") / "root"
    root.mkdir()
    server = Server(root)  # compiles the kernels, before memory is counted
    for name, data in HONEST:
        server.call(name, data)
    return root


def calls(root, name, data, size=None, caller=None):
    """Call a server of its own."""
    server = Server(root)
    if name != "Stream":
        reads_or_refuses(
            lambda data: wire.parsed(wire.METHODS[name][0], data),
            data,
            errors.ServerError,
            floor=PARTS_FLOOR,
        )
    before, outside = server.digest(), sorted(os.listdir(root.parent))
    found = reads_or_refuses(lambda data: server.call(name, data), data, Refused, size, FLOOR)
    if isinstance(found, Refusal):
        disk = name in ("Save", "Restore") and "Error: [Errno" in str(found.error)
        assert disk or found.error.code not in (
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNKNOWN,
        ), found.error
        assert server.digest() == before, f"{found.error.code}: {found.error}"
        assert caller is None or not server.applied(caller), f"{found.error.code}: {found.error}"
    assert sorted(os.listdir(root.parent)) == outside


# ---- requests whose fields fit the format ----

NAMES = st.sampled_from(["t", "c", "p", "w", "", "x", "t\0", "é" * 300, "n" * 600, "../t", "G", "moment1"])
UINT32 = st.sampled_from([0, 1, 2, 7, 2**31, 2**32 - 1])
UINT64 = st.sampled_from([0, 1, 2, 3, 2**16, 2**32, 2**53, 2**63, 2**64 - 1])
RATES = st.sampled_from([0.1, 0.0, -1.0, 1e30, float("nan"), float("inf"), float("-inf")])
CHANGES = st.sampled_from([0, 1, 2, 3, 7, -1, 2**31 - 1])
ID = st.sampled_from([0, 1, 7, 8, -1, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, 1.0, -2.5, 1e38, float("nan"), float("inf")])
SIZES = st.integers(0, 9)


@st.composite
def arrays(draw, dtype, values, count):
    """The bytes of about `count` numbers."""
    wrong = draw(st.integers(0, 12))
    count = max(count + (wrong == 0) - (wrong == 1), 0)
    data = np.array([draw(values) for _ in range(count)], dtype).tobytes()
    return data + b"x" * (wrong == 2)


@st.composite
def callers(draw):
    likely = draw(st.integers(0, 5))
    if likely:
        return pb.Caller(trainer=draw(st.sampled_from([0, 1])), incarnation=1, sequence=likely, outstanding=1)
    return pb.Caller(
        trainer=draw(UINT32),
        incarnation=draw(UINT64),
        sequence=draw(UINT64),
        outstanding=draw(UINT64),
        server_incarnation=draw(UINT64),
    )


@st.composite
def pushes(draw):
    push = pb.PushRequest(
        round=draw(st.sampled_from([0, 0, 0, 1, 2, 2**64 - 1])),
        hold=draw(st.booleans()),
        state=draw(st.binary(max_size=5)),
    )
    if draw(st.integers(0, 9)):
        push.caller.CopyFrom(draw(callers()))
    widths = {"t": 2, "c": 3, "p": 1}
    for _ in range(draw(st.integers(0, 3))):
        table, count = draw(NAMES), draw(SIZES)
        change = push.rows.add(table=table, change=draw(CHANGES), ids=draw(arrays("<i8", ID, count)))
        change.values = draw(arrays("<f4", FLOATS, len(change.ids) // 8 * widths.get(table, 1)))
        if draw(st.booleans()):
            change.learning_rate = draw(RATES)
    for _ in range(draw(st.integers(0, 2))):
        change = push.blocks.add(block=draw(NAMES), change=draw(CHANGES), values=draw(arrays("<f4", FLOATS, 6)))
        if draw(st.booleans()):
            change.learning_rate = draw(RATES)
    return push


@st.composite
def pulls(draw):
    pull = pb.PullRequest(
        round=draw(st.sampled_from([0, 0, 1, 2**64 - 1])),
        confirm=draw(st.booleans()),
        server_incarnation=draw(st.sampled_from([0, 0, 0, 5])),
    )
    if draw(st.booleans()):
        pull.caller.CopyFrom(draw(callers()))
    for _ in range(draw(st.integers(0, 3))):
        count = draw(SIZES)
        rows = pull.rows.add(table=draw(NAMES), ids=draw(arrays("<i8", ID, count)))
        if draw(st.booleans()):
            rows.counts = draw(arrays("<u4", UINT32, len(rows.ids) // 8))
    for _ in range(draw(st.integers(0, 2))):
        pull.blocks.add(block=draw(NAMES), known=draw(UINT64), server_incarnation=draw(UINT64))
    return pull


FOLDERS = st.sampled_from(
    [
        "",
        "x",
        "/",
        "/etc",
        "{root}",
        "{root}/a",
        "{root}/../b",
        "{root}/a/../../../b",
        "{root}/a\0",
        "{root}x",
        "{root}/" + "n" * 300,
        "//{root}/..",
    ]
)
SNAPSHOTS = st.sampled_from(["", "a", "../a", "a" * 65, "a.b", "a\n", "round-1", "\0"])
SPECS = [spec.model_dump(mode="json") for spec in (*TABLES, BLOCK)]


@st.composite
def specs_of(draw):
    spec = draw(st.sampled_from(SPECS))
    return as_json(draw(lied({**spec, "name": draw(st.sampled_from(["n", spec["name"]]))})))[:20_000]


REQUESTS = {
    "Create": st.builds(
        pb.CreateRequest,
        server=st.sampled_from([0, 0, 0, 1]),
        servers=st.sampled_from([1, 1, 1, 2]),
        tables=st.lists(specs_of(), max_size=2),
        blocks=st.lists(specs_of(), max_size=2),
    ),
    "Push": pushes(),
    "Pull": pulls(),
    "Exchange": st.builds(pb.ExchangeRequest, push=pushes(), pull=pulls()),
    "LookUp": st.builds(
        pb.LookUpRequest,
        table=NAMES,
        ids=SIZES.flatmap(lambda n: arrays("<i8", ID, n)),
        slot=NAMES,
        server_incarnation=st.sampled_from([0, 0, 9]),
    ),
    "Attach": st.builds(pb.AttachRequest),
    "Barrier": st.builds(pb.BarrierRequest, caller=callers(), name=NAMES, number=UINT64, passed=st.booleans()),
    "Heartbeat": st.builds(pb.HeartbeatRequest, caller=callers()),
    "Shrink": st.builds(pb.ShrinkRequest, caller=callers(), table=NAMES, age=UINT64),
    "Save": st.builds(pb.SaveRequest, folder=FOLDERS, snapshot=SNAPSHOTS, tables=st.lists(NAMES, max_size=2)),
    "Restore": st.builds(pb.RestoreRequest, folder=FOLDERS, snapshot=SNAPSHOTS, tables=st.lists(NAMES, max_size=2)),
    "Status": st.builds(pb.StatusRequest, trainer=UINT32),
    "Leave": st.builds(pb.LeaveRequest, caller=callers(), knows=st.booleans()),
    "Recovery": st.builds(pb.RecoveryRequest),
    "PlanSnapshot": st.builds(pb.PlanSnapshotRequest, round=UINT64),
    "RetainSnapshots": st.builds(pb.RetainSnapshotsRequest, rounds=st.lists(UINT64, max_size=3)),
    "TrainerState": st.builds(pb.TrainerStateRequest, trainer=UINT32),
}
CALLER = pb.Caller(trainer=0, incarnation=1, sequence=1, outstanding=1)
PUSH = pb.PushRequest(
    caller=CALLER,
    rows=[
        pb.RowsChange(table="t", ids=IDS, values=bytes(64)),
        pb.RowsChange(table="c", ids=IDS, values=bytes(96), learning_rate=0.5),
    ],
    blocks=[pb.BlockChange(block="w", values=bytes(24), change=2)],
)
PULL = pb.PullRequest(
    caller=CALLER,
    blocks=[pb.BlockWanted(block="w")],
    rows=[pb.RowsWanted(table="t", ids=IDS), pb.RowsWanted(table="c", ids=IDS, counts=bytes(32))],
)
HONEST = [
    ("Push", PUSH.SerializeToString()),
    ("Pull", PULL.SerializeToString()),
    (
        "Exchange",
        pb.ExchangeRequest(
            push=pb.PushRequest(
                caller=pb.Caller(trainer=1, incarnation=1, sequence=1, outstanding=1),
                rows=PUSH.rows,
            ),
            pull=pb.PullRequest(blocks=PULL.blocks),
        ).SerializeToString(),
    ),
    ("LookUp", pb.LookUpRequest(table="c", ids=IDS, slot="moment1").SerializeToString()),
    (
        "Create",
        pb.CreateRequest(servers=1, tables=[json.dumps({**SPECS[0], "name": "n"}).encode()]).SerializeToString(),
    ),
    (
        "Shrink",
        pb.ShrinkRequest(
            caller=pb.Caller(trainer=1, incarnation=1, sequence=2, outstanding=1), table="t", age=1
        ).SerializeToString(),
    ),
    (
        "Barrier",
        pb.BarrierRequest(caller=CALLER, name="b", number=1, passed=True).SerializeToString(),
    ),
    ("Status", pb.StatusRequest().SerializeToString()),
]


@pytest.mark.parametrize(
    "pull",
    [
        pb.PullRequest(confirm=True),
        pb.PullRequest(confirm=True, caller=CALLER),
        pb.PullRequest(blocks=[pb.BlockWanted(block="x")]),
        pb.PullRequest(server_incarnation=1),
    ],
)
def test_an_exchange_whose_pull_is_refused_applies_no_push(pull, root):
    caller = pb.Caller(trainer=1, incarnation=1, sequence=1, outstanding=1)
    push = pb.PushRequest(caller=caller, rows=PUSH.rows)
    server = Server(root)
    before = server.digest()
    with pytest.raises(Refused):
        server.call("Exchange", pb.ExchangeRequest(push=push, pull=pull).SerializeToString())
    assert server.digest() == before and not server.applied(caller)


@pytest.mark.parametrize("name", REQUESTS)
def test_hostile_fields(name, root):
    @fuzzed(30 if name in ("Push", "Pull", "Exchange", "Create") else 12)
    @given(REQUESTS[name])
    def run(request):
        if name in ("Save", "Restore"):
            request.folder = request.folder.replace("{root}", str(root))
        caller = request.push.caller if name == "Exchange" else request.caller if name in ("Push", "Shrink") else None
        calls(root, name, request.SerializeToString(), caller=caller)

    run()


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_damaged_bytes(name, root):
    @fuzzed(12)
    @given(mutated([data for _, data in HONEST]) | st.binary(max_size=60))
    @example(b"")
    @example(zero_copy.head(3, 0) * 20_000)
    @example(b"\x0a\x80\xe1\xeb\x17" + b"t" * 10)
    def run(data):
        calls(root, name, data)

    run()


@fuzzed(40)
@given(
    chunks=st.lists(
        st.builds(
            pb.Chunk,
            total=UINT64,
            data=st.sampled_from([HONEST[2][1], HONEST[1][1][:9], b"", bytes(5000)]),
        ),
        max_size=4,
    ),
    fits=st.booleans(),
)
def test_chunks(root, chunks, fits):
    if chunks and fits:
        chunks[0].total = sum(len(chunk.data) for chunk in chunks)
    data = [chunk.SerializeToString() for chunk in chunks]
    calls(root, "Stream", data, sum(map(len, data)))


def test_names_of_ten_million_characters(root):
    for name, request in [
        ("Push", pb.PushRequest(caller=CALLER, rows=[pb.RowsChange(table="t" * 10_000_000)])),
        ("Pull", pb.PullRequest(blocks=[pb.BlockWanted(block="t" * 10_000_000)])),
        ("LookUp", pb.LookUpRequest(table="t", slot="t" * 10_000_000)),
        ("Barrier", pb.BarrierRequest(caller=CALLER, name="t" * 10_000_000, number=1)),
    ]:
        calls(root, name, request.SerializeToString())


@pytest.mark.parametrize("number", [3, 4, 15])
@pytest.mark.parametrize("kind", [pb.PushRequest, pb.PullRequest, pb.CreateRequest])
def test_time(kind, number):
    grows_linearly(
        lambda data: wire.parsed(kind, data),
        lambda size: zero_copy.head(number, 0) * size,
        1000,
        errors.ServerError,
    )
