"""The compiled scan of a message finds what the plain one does, and refuses what that refuses."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from jfluid.ir.protobuf_fields import BYTES, VARINT, fields
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server.message_fields import nested_fields


def plainly(data, inside):
    for field in fields(memoryview(data)):
        value = field.value if field.kind == VARINT else None
        yield 0, field.number, field.kind, value, field.begin, field.end
        if field.kind == BYTES and field.number in inside:
            first = field.end - len(field.value)
            for own in fields(field.value):
                value = own.value if own.kind == VARINT else None
                yield 1, own.number, own.kind, value, first + own.begin, first + own.end


def compiled(data, inside):
    for depth, number, kind, value, begin, end in nested_fields(memoryview(data), inside):
        yield (
            depth,
            number,
            kind,
            value % 2**64 if kind == VARINT else None,
            begin,
            end,
        )


def outcome(find, data, inside):
    try:
        return [(d, n % 2**29, k, v if v is None else v % 2**64, b, e) for d, n, k, v, b, e in find(data, inside)]
    except DecodeError:
        return "refused"


def a_message(changes):
    push = pb.PushRequest(round=2**63 + 5, caller=pb.Caller(trainer=3, sequence=300))
    for i in range(changes):
        push.blocks.add(block="w" * i, values=bytes(i), learning_rate=i)
        push.rows.add(table="t", ids=bytes(8 * i), change=2)
    return push.SerializeToString()


@pytest.mark.parametrize("changes", [0, 1, 31, 32, 300])
@pytest.mark.parametrize("inside", [(), (4,), (3, 4)])
def test_fields(changes, inside):
    data = a_message(changes)
    found = outcome(compiled, data, inside)
    assert found == outcome(plainly, data, inside) and len(found) >= 2 * changes


def test_damaged_messages():
    random, data = np.random.default_rng(0), a_message(6)
    seen = set()
    for _ in range(2000):
        broken = bytearray(data)
        for at in random.integers(0, len(data), 2):
            broken[at] = random.choice([0, 1, 0x1B, 0x22, 0x80, 0xFF, random.integers(256)])
        del broken[random.integers(1, len(data) + 1) :]
        found = outcome(compiled, bytes(broken), (3, 4))
        assert found == outcome(plainly, bytes(broken), (3, 4)), bytes(broken)
        seen.add(found == "refused")
    assert seen == {True, False}


def test_limits():
    data = a_message(4)
    with pytest.raises(DecodeError, match="more parts"):
        list(nested_fields(memoryview(data), (), most=9))
    assert len(list(nested_fields(memoryview(data), (), most=10))) == 10
    with pytest.raises(DecodeError, match="more parts"):
        list(nested_fields(memoryview(data), (4,), most_inside=2))
