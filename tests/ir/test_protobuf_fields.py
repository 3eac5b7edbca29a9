"""The scanner of serialized protobuf messages: it finds what protobuf wrote, and stays within damaged messages."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from jfluid.ir.protobuf_fields import BYTES, FIXED32, FIXED64, VARINT, fields
from jfluid.ps_server import ps_pb2 as pb


def a_push():
    push = pb.PushRequest(round=2**63 + 5, caller=pb.Caller(trainer=3, sequence=300))
    for i in range(40):
        push.blocks.add(block="w" * i, values=bytes(i), learning_rate=i)
        push.rows.add(table="t", ids=bytes(8 * i), change=2)
    return push


def test_fields_are_those_that_protobuf_wrote():
    push = a_push()
    data = push.SerializeToString()
    found = list(fields(memoryview(data)))
    assert b"".join(data[f.begin : f.end] for f in found) == data
    assert [bytes(f.value) for f in found if f.number == 4] == [b.SerializeToString() for b in push.blocks]
    assert [f.value for f in found if f.kind == VARINT] == [push.round]
    kinds = {f.kind for block in found if block.number == 4 for f in fields(block.value)}
    assert {BYTES} <= kinds <= {BYTES, VARINT, FIXED32, FIXED64}


def test_a_value_of_a_damaged_message_lies_within_it():
    random, data = np.random.default_rng(0), a_push().SerializeToString()
    refused = set()
    for _ in range(2000):
        broken = bytearray(data)
        for at in random.integers(0, len(data), 2):
            broken[at] = random.choice([0, 1, 0x1B, 0x22, 0x80, 0xFF, random.integers(256)])
        del broken[random.integers(1, len(data) + 1) :]
        try:
            end = 0
            for field in fields(memoryview(broken)):
                assert field.begin == end < field.end <= len(broken)
                end = field.end
            assert end == len(broken)
            refused.add(False)
        except DecodeError:
            refused.add(True)
    assert refused == {True, False}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80", "does not end"),
        (b"\x08" + b"\xff" * 10, "does not end"),
        (b"\x12\x05abc", "beyond the end"),
        (b"\x0d\x00", "beyond the end"),
        (b"\x0b", "kind 3"),
    ],
)
def test_invalid_messages_are_refused(data, message):
    with pytest.raises(DecodeError, match=message):
        list(fields(memoryview(data)))


def test_more_parts_than_allowed_are_refused():
    data = memoryview(b"\x08\x01" * 5)
    assert len(list(fields(data, 5))) == 5
    with pytest.raises(DecodeError, match="more than 4 parts"):
        list(fields(data, 4))
