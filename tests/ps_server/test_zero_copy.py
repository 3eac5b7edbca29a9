"""Messages whose arrays are read where they arrived are what protobuf says they are."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import wire, zero_copy


def a_push():
    push = pb.PushRequest(
        caller=pb.Caller(trainer=3, incarnation=2**40, sequence=300, outstanding=1),
        round=7,
        hold=True,
    )
    push.rows.add(table="t", change=1, ids=np.arange(300).tobytes(), values=np.ones(600, np.float32).tobytes())
    push.rows.add(table="u", ids=b"", values=b"", learning_rate=0.5)
    push.blocks.add(block="w", values=np.full(1000, 2, np.float32).tobytes(), learning_rate=-1.0)
    push.blocks.add(block="v", change=2, values=b"")
    return push


def check(found, push):
    assert (found.caller, found.round, found.hold) == (push.caller, push.round, push.hold)
    for mine, theirs in zip([*found.rows, *found.blocks], [*push.rows, *push.blocks], strict=True):
        assert mine.change == theirs.change
        assert bytes(mine.values) == theirs.values
        assert mine.HasField("learning_rate") == theirs.HasField("learning_rate")
        assert mine.learning_rate == theirs.learning_rate
    assert [(r.table, bytes(r.ids)) for r in found.rows] == [(r.table, r.ids) for r in push.rows]
    assert [b.block for b in found.blocks] == [b.block for b in push.blocks]


def test_push():
    data = a_push().SerializeToString()
    found = wire.parsed(pb.PushRequest, data)
    check(found, a_push())
    assert np.shares_memory(np.frombuffer(found.blocks[0].values, np.uint8), np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("parts", [("push",), ("pull",), ("push", "pull"), ()])
def test_exchange(parts):
    request = pb.ExchangeRequest()
    if "push" in parts:
        request.push.CopyFrom(a_push())
    if "pull" in parts:
        request.pull.rows.add(table="t", ids=b"12345678")
    found = wire.parsed(pb.ExchangeRequest, request.SerializeToString())
    assert [found.HasField("push"), found.HasField("pull")] == [p in parts for p in ("push", "pull")]
    assert found.pull == request.pull
    check(found.push, request.push)


@pytest.mark.parametrize("parts", [("push",), ("pull",), ("push", "pull")])
def test_requests_on_their_way_out(parts):
    request, ids = zero_copy.OutgoingRequest(), np.array([5, -(2**63), 2**63 - 1])
    wide = np.arange(24, dtype=np.float32).reshape(2, 12)[:, ::2].T  # does not stand in a row
    if "push" in parts:
        request.push.add_rows(ids, wide[:3], table="t", change=1, learning_rate=0.5)
        request.push.add_rows(ids[:0], wide[:0], table="u", change=0, learning_rate=None)
        request.push.add_block(wide, block="w", change=2, learning_rate=None)
        request.push.message.caller.sequence = 300
    if "pull" in parts:
        request.pull.rows.add(table="t", ids=ids.tobytes())
    found = pb.ExchangeRequest.FromString(b"".join(request.whole()))
    assert [found.HasField("push"), found.HasField("pull")] == [p in parts for p in ("push", "pull")]
    assert found.pull == request.pull
    if "push" in parts:
        full, empty = found.push.rows
        assert (full.table, full.change, full.learning_rate, full.ids) == (
            "t",
            1,
            0.5,
            ids.tobytes(),
        )
        assert full.values == wide[:3].tobytes() and (empty.table, empty.ids, empty.values) == (
            "u",
            b"",
            b"",
        )
        assert not empty.HasField("learning_rate")
        assert [(b.block, b.change, b.values) for b in found.push.blocks] == [("w", 2, wide.tobytes())]
        assert found.push.caller.sequence == 300
    method, pieces = request.single()
    kind = {"Push": pb.PushRequest, "Pull": pb.PullRequest, "Exchange": pb.ExchangeRequest}[method]
    assert kind.FromString(b"".join(pieces)) == (found if len(parts) == 2 else getattr(found, parts[0]))


def test_what_is_kept_of_a_push_is_its_own():
    push, values = zero_copy.OutgoingPush(), np.ones(3, np.float32)
    push.add_block(values, block="w", change=0, learning_rate=None)
    before = b"".join(push.parts())
    push.own()
    values[:] = 2
    assert b"".join(push.parts()) == before and len(push) == len(before)


def test_replies():
    pull = wire.PullReply(rounds=2**33, server_incarnation=9)
    pull.rows = [np.arange(6, dtype=np.float32).reshape(2, 3), np.empty((0, 2), np.float32)]
    pull.blocks = [(5, np.arange(70, dtype=np.float32)), (2**40, None)]
    reply = wire.ExchangeReply(pb.PushReply(applied=True, durable=4), pull)
    data = b"".join(reply.parts())
    plain = pb.ExchangeReply.FromString(data)
    found = zero_copy.IncomingExchangeReply.read(data)
    assert found.push == plain.push
    assert (found.pull.rounds, found.pull.server_incarnation) == (2**33, 9)
    assert [bytes(r) for r in found.pull.rows] == list(plain.pull.rows)
    assert [(b.version, bytes(b.value)) for b in found.pull.blocks] == [(b.version, b.value) for b in plain.pull.blocks]


@pytest.mark.parametrize("data", [b"\xff", b"\x1a\x05ab", b"\x80" * 12, b"\x1b", b"\x22\x7fa", b"\x09abc"])
def test_what_is_no_message_is_refused(data):
    for kind in (pb.PushRequest, pb.ExchangeRequest):
        with pytest.raises(errors.ServerError, match="these .* bytes are none"):
            wire.parsed(kind, data)
    with pytest.raises(DecodeError):
        zero_copy.IncomingExchangeReply.read(b"\x12" + bytes([len(data)]) + data)


def test_random_bytes_do_no_harm():
    random = np.random.default_rng(0)
    data = bytearray(a_push().SerializeToString())
    for _ in range(300):
        broken = bytearray(data)
        for at in random.integers(0, len(data), 3):
            broken[at] = random.integers(256)
        del broken[random.integers(1, len(data)) :]
        try:
            wire.parsed(pb.PushRequest, bytes(broken))
        except errors.ServerError:
            pass


def test_what_came_is_copied_once_to_where_xla_reads_it_in_place():
    reply = pb.PullReply(rounds=3)
    reply.rows.append(np.arange(1500, dtype="<f4").tobytes())
    reply.blocks.add(version=2, value=np.arange(1700, dtype="<f4").tobytes())
    data = bytearray(reply.SerializeToString())
    found = zero_copy.IncomingPullReply(memoryview(data))
    data[:] = bytes(len(data))  # the buffer serves another call
    for values, count in ((found.rows[0], 1500), (found.blocks[0].value, 1700)):
        array = wire.numbers(values, "<f4", "values", count, copy=False)
        np.testing.assert_array_equal(array, np.arange(count))
        assert array.ctypes.data % 64 == 0 and not array.flags.writeable
    copied = wire.numbers(memoryview(b"x" + bytes(8000))[1:], "<f4", "values", 2000)
    assert copied.ctypes.data % 64 == 0 and copied.flags.writeable


@pytest.mark.parametrize("pull", [False, True])
@pytest.mark.parametrize("sizes", [(1, 31, 32), (40, 5000, 5), (524288, 3, 600000)])
def test_arrays_of_a_push_begin_where_numbers_may_be_read(sizes, pull):
    request = zero_copy.OutgoingRequest()
    for size in sizes:
        name = "n" * (size % 7 + 1)
        request.push.add_block(np.full(size, size, np.float32), block=name, change=0)
        ids = np.arange(size)
        request.push.add_rows(ids, np.ones((size, 1), np.float32), table=name, change=0)
    if pull:
        request.pull.blocks.add(block="w")
    method, parts = request.single()
    data = b"".join(parts)
    memory = zero_copy.aligned_copy(data)
    found = wire.parsed(wire.METHODS[method][0], memory.data)
    push = found.push if pull else found
    for block, size in zip(push.blocks, sizes, strict=True):
        values = np.frombuffer(block.values, np.float32)
        assert values.flags.aligned and values.tolist() == [size] * size
    for rows, size in zip(push.rows, sizes, strict=True):
        assert np.frombuffer(rows.values, np.float32).flags.aligned
        np.testing.assert_array_equal(np.frombuffer(bytes(rows.ids), np.int64), np.arange(size))
    plain = wire.METHODS[method][0].FromString(data)
    assert [len(b.values) for b in (plain.push if pull else plain).blocks] == [4 * s for s in sizes]
    assert len(request.push) == sum(map(len, request.push.parts())) - len(request.push.message.SerializeToString())
