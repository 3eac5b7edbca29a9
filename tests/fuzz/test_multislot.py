"""MultiSlot text, and the files that it comes in."""

import gzip

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid import errors
from jfluid.dataset.multislot import BadLine, DatasetSlot, Parser
from jfluid.dataset.text_files import FileSource, ShellCommands
from tests.fuzz.harness import Refusal, fuzzed, grows_linearly, mutated, reads_or_refuses

SLOTS = [
    DatasetSlot("a", False),
    DatasetSlot("b", True, (3,)),
    DatasetSlot("c", True),
    DatasetSlot("d", False, used=False),
]
LINE = b"2 11 0 3 0.5 1.5 -2 1 1e5 1 7\n"
SEEDS = [LINE * 3, b"1 tag 1 content " + LINE, b"1 " + b"x" * 3000 + b" " + LINE * 2]
WORDS = st.sampled_from(
    [
        b"1",
        b"2",
        b"0",
        b"-1",
        b"3 1 2 3",
        b"0.5",
        b"1e5",
        b"1e999999999",
        b"-.5e-400",
        b".",
        b"+",
        b"e",
        b"9" * 19,
        b"18446744073709551616",
        b"0." + b"0" * 400 + b"1",
        b"1" * 400,
        b"\0",
        b"\xff",
        b"nan",
        b"inf",
        b"tag",
        b"1073741825",
        b"\r",
        b"\t",
    ]
)
LINES = st.lists(st.lists(WORDS, max_size=12).map(b" ".join), max_size=6).map(b"\n".join)
PARSERS = [Parser(SLOTS, tags, drop) for tags in (0, 1, 2) for drop in (False, True)]
# Room for whatever a text may hold is taken before it is parsed, seven times the text; most of it
# stays untouched.
FACTOR = 16


def parse(parser, text):
    bad = []
    records, lines = parser.parse(np.frombuffer(text, np.uint8), 0, bad.append)
    assert lines == text.count(b"\n") and len(records) + len(bad) == lines
    assert all(isinstance(b, BadLine) and len(str(b)) < 300 for b in bad)
    assert (records.counts >= 0).all() and records.starts[-1] == len(records.values) == records.counts.sum()
    parser.batch(records, np.arange(len(records)))


@fuzzed(100)
@given(st.one_of(mutated(SEEDS), LINES))
@example(b"1 " + b"x" * 20_000 + b" 1 1\n" + b"1 i 1 1\n" * 500)
def test_text(text):
    for parser in PARSERS:
        parser._scratch = None
        reads_or_refuses(lambda text, parser=parser: parse(parser, text), text + b"\n", BadLine, factor=FACTOR)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@fuzzed(40)
@given(data=mutated([gzip.compress(LINE * 50), gzip.compress(LINE) * 3, gzip.compress(bytes(300_000))]))
def test_compressed_files(folder, data):
    """What they unpack to is handed on in blocks, and not held."""
    (folder / "a.gz").write_bytes(data)
    found = reads_or_refuses(
        lambda path: sum(len(b) for b in FileSource().blocks(str(path), ShellCommands())),
        folder / "a.gz",
        errors.DataError,
        len(data),
        floor=5_000_000,
    )
    assert not isinstance(found, Refusal) or "a.gz" in str(found.error)


@pytest.mark.parametrize(
    "line",
    [LINE, b"1 1 3 1 2 3 1 " + b"9" * 300 + b" 1 1\n", b"x\n", b"1 1 3 1 2 3 1 1e99999 1 1\n"],
)
def test_time(line):
    def read(text):
        PARSERS[0].parse(np.frombuffer(text, np.uint8), 0, lambda bad: None)

    grows_linearly(read, lambda size: line * size, 500, BadLine)


def test_time_of_long_ids():
    def read(text):
        PARSERS[2].parse(np.frombuffer(text, np.uint8), 0, lambda bad: None)

    grows_linearly(
        read,
        lambda size: b"1 " + b"x" * size + b" " + LINE + (b"1 i " + LINE) * (size // 30),
        20_000,
        BadLine,
    )
