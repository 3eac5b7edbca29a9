"""What launchers say to each other, and trainers when they exchange records."""

import functools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.dataset import exchange, record_encoding
from jfluid.dataset.multislot import DatasetSlot, Parser
from jfluid.launch import messages
from jfluid.launch.failure import Failure
from jfluid.progress import line_of
from tests.fuzz.harness import (
    Refusal,
    as_json,
    fuzzed,
    grows_linearly,
    lied,
    mutated,
    reads_or_refuses,
)

FAILURE = Failure("trainer 1", -9, "killed", "last words", "/log")
SAID = [
    messages.Join(job="a", node=1, count=2, endpoints=["h:1", "h:2"]),
    messages.Refused(problem="no"),
    messages.Finished(),
    messages.Start(endpoints=[["h:1"], ["h:2", "[::1]:3"]], attempt=0, record="", time=1.5),
    messages.Failed(failure=FAILURE, age=0.5),
    messages.End(failure=FAILURE, again=True),
    messages.End(failure=None, again=False),
]
SLOTS = [DatasetSlot("a", False), DatasetSlot("b", True, (2,)), DatasetSlot("c", False, used=False)]


@functools.cache
def packed(tags):
    """Records as they travel, with tags or without; Numba compiles what parses their text."""
    text = np.frombuffer((b"1 tag " * tags + b"2 1 2 2 0.5 1 1 1\n") * 5, np.uint8)
    return record_encoding.encode(Parser(SLOTS, tags).parse(text, 0, lambda bad: None)[0])


@fuzzed(150)
@given(
    st.one_of(
        mutated([messages.encode(m) for m in SAID]),
        st.sampled_from(SAID).flatmap(lambda message: lied(message.model_dump()).map(as_json)),
    )
)
@example(b"[" * 200_000)
@example(b'{"a":' * 100_000)
@example(b'{"kind":"join","job":"a","node":1,"count":2,"endpoints":[' + b"1," * 5000 + b"1]}")
def test_coordinator(data):
    reads_or_refuses(messages.decode, data, errors.MessageError)


REPORTED = [
    {"ending": 1, "time": 3.5, "restarts_all": True},
    {
        "description": "train",
        "step": 3,
        "total": 10,
        "rate": 2.5,
        "metrics": {"loss": float("nan")},
        "done": False,
    },
]


@fuzzed(150)
@given(
    st.one_of(
        mutated([as_json(report) for report in REPORTED]),
        st.sampled_from(REPORTED).flatmap(lambda report: lied(report).map(as_json)),
    )
)
@example(b"[" * 200_000)
def test_reports_of_scripts(data):
    read = reads_or_refuses(messages.decode_report, data, errors.MessageError)
    if not isinstance(read, Refusal) and "step" in read:
        line_of(read)


@pytest.mark.parametrize("report", REPORTED)
def test_reports_are_read_as_they_were_sent(report):
    read = messages.decode_report(as_json(report))
    assert str({name: read[name] for name in report}) == str(report)


@pytest.mark.parametrize("message", SAID, ids=lambda message: message.kind)
def test_what_launchers_say_is_understood(message):
    assert messages.decode(messages.encode(message)) == message


@pytest.mark.parametrize("tags", [0, 1])
def test_records(tags):
    @fuzzed(80)
    @given(mutated([packed(tags), packed(1 - tags)]))
    def run(data):
        records = reads_or_refuses(
            lambda data: record_encoding.decode(data, SLOTS, tags > 0), data, errors.MessageError
        )
        if not hasattr(records, "error"):
            assert (records.counts >= 0).all() and records.starts[-1] == len(records.values) == records.counts.sum()
            Parser(SLOTS, tags).batch(records, np.arange(len(records)))

    run()


@fuzzed(100)
@given(mutated([b"123", bytes(16), exchange._described(np.dtype("<f4"), (2, 2)) + b"\n" + bytes(16)]))
def test_what_else_trainers_say(data):
    reads_or_refuses(exchange.decode_number, data, errors.MessageError)
    reads_or_refuses(exchange.decode_hello, data, errors.MessageError)
    reads_or_refuses(lambda data: exchange.decode_array(data, np.dtype("<f4"), (2, 2)), data, errors.MessageError)


@pytest.mark.parametrize("text", [b"1,", b"[", b'"', b'{"a":', b'"x":1,'])
def test_time(text):
    grows_linearly(
        messages.decode,
        lambda size: b'{"kind":"start","endpoints":[' + text * size,
        2000,
        errors.MessageError,
    )
