"""What the bytes of one message may make a server do before it refuses them."""

import time

import numpy as np
import pytest

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import specs, wire, zero_copy
from jfluid.ps_server.errors import TooLargeError, UnknownNameError
from jfluid.ps_server.store import Store
from tests.measured import call_within

TABLE = specs.TableSpec(name="t", width=2, optimizer=specs.Sgd(learning_rate=1))
BLOCK = specs.BlockSpec(name="w", shape=(2,), optimizer=specs.Sgd(learning_rate=1))
COUNT = 100_000


def part(number, data):
    return zero_copy.head(number, len(data)) + data


MANY = {
    "rows of a push": (pb.PushRequest, part(3, b"") * COUNT),
    "blocks of a push": (pb.PushRequest, part(4, b"") * COUNT),
    "what a push does not know": (pb.PushRequest, b"\x78\x01" * COUNT),
    "what a change does not know": (pb.PushRequest, part(3, b"\x78\x01" * COUNT)),
    "pushes of an exchange": (pb.ExchangeRequest, part(1, part(3, b"") * COUNT)),
    "pulls of an exchange": (pb.ExchangeRequest, part(2, part(3, b"") * COUNT)),
    "what an exchange does not know": (
        pb.ExchangeRequest,
        b"".join(part(i + 3, b"") for i in range(13)) * (COUNT // 13),
    ),
    "rows of a pull": (pb.PullRequest, part(3, b"") * COUNT),
    "blocks of a pull": (pb.PullRequest, part(4, b"") * COUNT),
    "tables": (pb.CreateRequest, part(3, b"") * COUNT),
    "tables to save": (pb.SaveRequest, part(3, b"") * COUNT),
    "tables to restore": (pb.RestoreRequest, part(3, b"") * COUNT),
    "rounds": (pb.RetainSnapshotsRequest, part(1, b"\x01" * COUNT)),
    "a name": (pb.BarrierRequest, part(2, b"x" * COUNT)),
    "names": (pb.LookUpRequest, part(1, b"x") * COUNT),
    "parts of a chunk": (pb.Chunk, part(2, b"") * COUNT),
    "variables": (pb.TrainerState, part(2, b"") * COUNT),
}


@pytest.mark.parametrize("name", MANY)
def test_messages_of_more_parts_than_a_job_has_are_refused_before_they_are_made(name):
    kind, data = MANY[name]

    def refuse():
        with pytest.raises(
            errors.ServerError,
            match=f"expected a {kind.__name__}; .* are none: (more|expected one)",
        ):
            wire.parsed(kind, data)

    call_within(refuse, peak=10 * len(data))


def test_as_many_parts_as_a_job_has_are_read():
    rows = [pb.RowsWanted(table=f"table {i}", ids=bytes(8)) for i in range(5000)]
    assert len(wire.parsed(pb.PullRequest, pb.PullRequest(rows=rows).SerializeToString()).rows) == 5000
    changes = [pb.RowsChange(table=f"table {i}", ids=bytes(8), values=bytes(8)) for i in range(5000)]
    exchange = pb.ExchangeRequest(push=pb.PushRequest(rows=changes), pull=pb.PullRequest(rows=rows))
    found = wire.parsed(pb.ExchangeRequest, exchange.SerializeToString())
    assert len(found.push.rows) == len(found.pull.rows) == 5000 and found.push.rows[7].table == "table 7"


def test_long_names_are_refused_without_being_compared():
    """Finding the name that was meant takes time and memory for all pairs of characters."""
    store = Store()
    store.create([TABLE], [BLOCK])
    started = time.process_time()
    for find in (store.table, store.block):
        with pytest.raises(UnknownNameError) as refused:
            find("t" * 10_000_000)
        assert len(str(refused.value)) < 1000
    assert time.process_time() - started < 2


def test_chunks_that_never_end_are_refused():
    def chunks(first, more):
        yield pb.Chunk(total=1 << 30, data=first).SerializeToString()
        for number in range(1000):
            assert number < 10, "still taken"
            yield pb.Chunk(data=more).SerializeToString()

    for first, more in ((b"", b""), (bytes(5000), b""), (bytes(5000), b"x")):
        with pytest.raises(errors.ServerError, match="chunks: expected 1073741824 bytes together, found"):
            wire.joined(chunks(first, more))
    sizes = [wire.CHUNK, 5000, 1]
    parts = [
        pb.Chunk(total=sum(sizes) if i == 0 else 0, data=bytes(s)).SerializeToString() for i, s in enumerate(sizes)
    ]
    assert len(wire.joined(parts)) == sum(sizes)
    assert wire.joined([pb.Chunk(total=3, data=b"abc").SerializeToString()]) == b"abc"


@pytest.mark.parametrize(
    "tables, blocks",
    [
        ([TABLE], [BLOCK.model_copy(update={"name": "t"})]),
        ([TABLE, TABLE.model_copy(update={"width": 3})], []),
        ([TABLE], [BLOCK.model_copy(update={"name": "there", "shape": (3,)})]),
        ([TABLE, TABLE.model_copy(update={"name": "there"})], []),
        ([TABLE], [BLOCK, BLOCK.model_copy(update={"shape": (3,)})]),
    ],
)
def test_tables_and_blocks_of_one_call_are_all_made_or_none(tables, blocks):
    store = Store()
    there = store.create_block(BLOCK.model_copy(update={"name": "there"}))
    with pytest.raises(errors.ServerError, match="two things of one name|is there already, and is different"):
        store.create(tables, blocks)
    assert not store.tables and store.blocks == {"there": there}


def test_blocks_that_do_not_fit_leave_no_tables_behind():
    store = Store()
    store.cap.most_bytes = 20
    with pytest.raises(TooLargeError):
        store.create([TABLE], [BLOCK, BLOCK.model_copy(update={"name": "v", "shape": (200,)})])
    assert not store.tables and not store.blocks
    store.create([TABLE, TABLE], [BLOCK, BLOCK])
    store.create([TABLE.model_copy(update={"max_rows": 7})], [BLOCK])
    assert store.table("t").spec.max_rows == 7 and np.array_equal(store.block("w").read()[0], np.zeros(2))
