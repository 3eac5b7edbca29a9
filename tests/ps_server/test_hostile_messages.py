"""Messages that no client sends are refused, each with its reason, and change nothing. (Callers without
the job's secret: test_auth.py.)
"""

import json

import grpc
import numpy as np
import pytest

from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import specs, wire
from jfluid.ps_server.auth import Session
from tests.ps_server.job import TABLE, TOKEN, raw


def caller(sequence=1, **more):
    return pb.Caller(**{"trainer": 0, "incarnation": 10**18, "sequence": sequence, "outstanding": 1} | more)


def rows(**more):
    good = {
        "table": "t",
        "ids": np.arange(2).tobytes(),
        "values": np.ones((2, 4), np.float32).tobytes(),
    }
    return pb.RowsChange(**good | more)


HOSTILE = [
    (
        "Push",
        pb.PushRequest(rows=[rows()]),
        "INVALID_ARGUMENT",
        "expected trainer, incarnation and sequence",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(table="x")]),
        "NOT_FOUND",
        "there is no table 'x'",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(ids=b"1234567")]),
        "INVALID_ARGUMENT",
        "a multiple of 8 bytes",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(values=b"1234")]),
        "INVALID_ARGUMENT",
        "expected 32 bytes",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(ids=bytes(24))]),
        "INVALID_ARGUMENT",
        "expected 48 bytes",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(change=7)]),
        "INVALID_ARGUMENT",
        "change: expected one of",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(learning_rate=float("nan"))]),
        "INVALID_ARGUMENT",
        "finite number",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), rows=[rows(), rows(table="x")]),
        "NOT_FOUND",
        "there is no table 'x'",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), round=2**63, rows=[rows()]),
        "OUT_OF_RANGE",
        "this server has applied 0 rounds",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(sequence=2**40), rows=[rows()]),
        "INVALID_ARGUMENT",
        "outstanding <= sequence",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(trainer=99), rows=[rows()]),
        "INVALID_ARGUMENT",
        "this job has 1 trainers",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), blocks=[pb.BlockChange(block="w", values=b"1")]),
        "INVALID_ARGUMENT",
        "24 bytes",
    ),
    (
        "Push",
        pb.PushRequest(caller=caller(), blocks=[pb.BlockChange(block="t")]),
        "NOT_FOUND",
        "there is no block 't'",
    ),
    (
        "Pull",
        pb.PullRequest(caller=caller(), rows=[pb.RowsWanted(table="t", ids=bytes(8), counts=bytes(8))]),
        "INVALID_ARGUMENT",
        "counts: expected 4 bytes",
    ),
    (
        "Pull",
        pb.PullRequest(rows=[pb.RowsWanted(table="wide", ids=bytes(8 * 300))]),
        "RESOURCE_EXHAUSTED",
        "through Stream",
    ),
    (
        "LookUp",
        pb.LookUpRequest(table="wide", ids=bytes(8 * 300)),
        "RESOURCE_EXHAUSTED",
        "the reply would have",
    ),
    (
        "LookUp",
        pb.LookUpRequest(table="t", ids=b"1"),
        "INVALID_ARGUMENT",
        "ids: expected a multiple of 8",
    ),
    ("Create", pb.CreateRequest(servers=1, tables=[b"{"]), "INVALID_ARGUMENT", "table: the whole"),
    (
        "Create",
        pb.CreateRequest(servers=1, tables=[json.dumps({"name": "y", "width": 10**9}).encode()]),
        "INVALID_ARGUMENT",
        "table: width",
    ),
    (
        "Create",
        pb.CreateRequest(
            servers=1,
            blocks=[
                json.dumps(
                    {
                        "name": "y",
                        "shape": [10**6, 10**6],
                        "optimizer": {"type": "sgd", "learning_rate": 1},
                    }
                ).encode()
            ],
        ),
        "RESOURCE_EXHAUSTED",
        "block y: 4000000000000 bytes",
    ),
    (
        "Barrier",
        pb.BarrierRequest(caller=caller(), name="", number=1),
        "INVALID_ARGUMENT",
        "expected a name",
    ),
    (
        "Shrink",
        pb.ShrinkRequest(caller=caller(), table="t"),
        "INVALID_ARGUMENT",
        "age: expected at least 1",
    ),
    ("Save", pb.SaveRequest(folder="/tmp/\0", snapshot="a"), "INVALID_ARGUMENT", "absolute path"),
    (
        "Save",
        pb.SaveRequest(folder="/tmp/never", snapshot="../a"),
        "INVALID_ARGUMENT",
        "expected an id of letters",
    ),
    (
        "Save",
        pb.SaveRequest(folder="/tmp/never", snapshot="a\n"),
        "INVALID_ARGUMENT",
        "expected an id of letters",
    ),
    (
        "Restore",
        pb.RestoreRequest(folder="/does/not/exist"),
        "INVALID_ARGUMENT",
        "no such directory",
    ),
]


def test_hostile_messages_are_refused_and_change_nothing(job):
    client = job.start().ready(incarnation=1)
    client.create([TABLE.model_copy(update={"name": "wide", "width": specs.WIDEST_ROW})])
    before = client.look_up("t", np.arange(2))
    for method, request, code, message in HOSTILE:
        with pytest.raises(grpc.RpcError) as refused:
            raw(job, method, request)
        assert refused.value.code().name == code and message in refused.value.details(), (
            request,
            refused.value,
        )
    for method in wire.METHODS:
        for data in (b"\xff" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05a"):
            with pytest.raises(grpc.RpcError) as refused:
                raw(job, method, None, data=data)
            assert (
                refused.value.code().name == "INVALID_ARGUMENT"
                and f"expected a {method}Request" in refused.value.details()
            )
    np.testing.assert_array_equal(client.look_up("t", np.arange(2)), before)
    assert client.status()[0].tables["t"].rows == client.status()[0].tables["wide"].rows == 0


@pytest.mark.parametrize(
    "chunks, code, message",
    [
        ([], "INVALID_ARGUMENT", "expected None bytes"),
        (
            [pb.Chunk(total=10, data=b"12345")],
            "INVALID_ARGUMENT",
            "chunks: expected 10 bytes together, found 5",
        ),
        (
            [pb.Chunk(total=3, data=b"12345")],
            "INVALID_ARGUMENT",
            "chunks: expected 3 bytes together, found 5",
        ),
        ([pb.Chunk(total=2**50, data=b"12345")], "RESOURCE_EXHAUSTED", "was announced"),
        ([pb.Chunk(total=5, data=b"\xff" * 5)], "INVALID_ARGUMENT", "expected a ExchangeRequest"),
    ],
)
def test_chunks_that_do_not_fit(job, chunks, code, message):
    job.start()
    with grpc.insecure_channel(job.endpoints[0]) as channel:
        call = Session(channel, job.endpoints[0], TOKEN, 20).stream(f"/{wire.SERVICE}/Stream")
        with pytest.raises(grpc.RpcError) as refused:
            list(call(iter([c.SerializeToString() for c in chunks]), 20))
    assert refused.value.code().name == code and message in refused.value.details()


def test_messages_beyond_the_limit_are_refused(job):
    client = job.start().ready()
    with pytest.raises(grpc.RpcError) as refused:
        raw(job, "Push", None, data=b"\0" * (wire.LARGEST_MESSAGE + wire.OVERHEAD + 1))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    client.pull({"t": np.array([1])})
