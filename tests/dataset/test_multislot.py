"""The parser of MultiSlot text, held against a plain one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jfluid.dataset.multislot import BadLine, DatasetSlot, Parser, joined
from tests.fuzz.harness import fuzzed

SLOTS = [DatasetSlot("ids", False), DatasetSlot("dense", True, (3,)), DatasetSlot("label", False, (1,))]


def parse(text, slots=SLOTS, **options):
    """The records as lists, and the texts of the errors."""
    parser, bad = Parser(slots, **options), []
    if not text.endswith(b"\n"):
        text += b"\n"
    records, lines = parser.parse(np.frombuffer(text, np.uint8), 0, lambda error: bad.append(str(error)))
    feed = parser.batch(records, np.arange(len(records)))
    assert lines == text.count(b"\n")
    return feed, bad


def rows(tensor):
    offsets = tensor.lod()[0]
    return [np.array(tensor)[a:b, 0].tolist() for a, b in zip(offsets, offsets[1:])]


def test_values_are_those_of_the_text():
    feed, bad = parse(
        b"2 11 0 3 0.5 1.5 -2 1 0\n1 7\t3 1 2 3 1 1 \r\n2 18446744073709551615 -9223372036854775808 3 1e3 -1E-2 .5 1 1"
    )
    assert not bad
    assert rows(feed["ids"]) == [[11, 0], [7], [-1, -(2**63)]]
    np.testing.assert_array_equal(feed["dense"], np.array([[0.5, 1.5, -2], [1, 2, 3], [1000, -0.01, 0.5]], "float32"))
    np.testing.assert_array_equal(feed["label"], [[0], [1], [1]])
    assert feed["dense"].dtype == np.float32 and feed["label"].dtype == np.int64


def test_zeros_of_ragged_slots_are_dropped_in_memory():
    feed, _ = parse(b"3 5 0 0 3 0 0 0 1 0\n2 0 0 3 9 9 9 1 0", drop_zeros=True)
    assert rows(feed["ids"]) == [[5], [0]]
    np.testing.assert_array_equal(feed["dense"], [[0, 0, 0], [9, 9, 9]])


def test_unused_slots_and_tags():
    slots = [DatasetSlot("a", False, used=False), DatasetSlot("b", True)]
    parser = Parser(slots, tags=2)
    text = np.frombuffer(b"1 k1 1 some 2 7 8 2 0.5 1\n1 longer 1 x 1 9 1 2\n", np.uint8)
    records, _ = parser.parse(text, 0, pytest.fail)
    assert records.tags.tolist() == [b"k1", b"longer"]
    feed = parser.batch(records, np.array([1, 0]))
    assert list(feed) == ["b"] and rows(feed["b"]) == [[2], [0.5, 1]]


@pytest.mark.parametrize(
    "line, problem",
    [
        (b"", "slot 1 (ids): the line is blank"),
        (b"0 1 1", "slot 1 (ids): the count is '0'; it must be at least 1"),
        (b"-2 1 1", "slot 1 (ids): the count is '-2'; it must be at least 1"),
        (b"x 1", "slot 1 (ids): expected a count of values, found 'x'"),
        (b"1 \xff\xfe 3 1 2 3 1 1", r"slot 1 (ids): expected a whole number, found '\\xff\\xfe'"),
        (b"1 1.5 3 1 2 3 1 1", "slot 1 (ids): expected a whole number, found '1.5'"),
        (b"1 18446744073709551616 3 1 1 1 1 1", "'18446744073709551616' does not fit 64 bits"),
        (b"1 -9223372036854775809 3 1 1 1 1 1", "'-9223372036854775809' does not fit 64 bits"),
        (b"1 5 3 1 2 nan 1 1", "slot 2 (dense): expected a number, found 'nan'"),
        (b"1 5 3 1 2 inf 1 1", "slot 2 (dense): expected a number, found 'inf'"),
        (b"1 5 3 1 2 0x10 1 1", "slot 2 (dense): expected a number, found '0x10'"),
        (b"1 5 3 1 2 1e 1 1", "slot 2 (dense): expected a number, found '1e'"),
        (b"1 5 3 1 2 1e50 1 1", "slot 2 (dense): '1e50' does not fit a 32-bit float"),
        (b"1 5 3 1 1 1 1 1 7 7", "end of the line: the line goes on after the last slot: '7'"),
        (b"1 5 3 1 1", "slot 2 (dense): the line ends before all values of the slot"),
        (b"1 5", "slot 2 (dense): the line ends before all values of the slot"),
        (b"99999999999 5", "slot 1 (ids): the count is '99999999999', more than a line may hold"),
        (b"9" * 5000 + b" 5", "slot 1 (ids): the count is '" + "9" * 40 + "...'"),
    ],
)
def test_bad_lines_name_line_and_slot(line, problem):
    good = b"1 7 3 1 2 3 1 1"
    feed, bad = parse(b"\n".join([good, line, good]))
    assert len(bad) == 1 and bad[0].startswith("line 2, ") and problem in bad[0]
    assert rows(feed["ids"]) == [[7], [7]] and feed["label"].shape == (2, 1)


WORD = st.one_of(
    st.integers(-3, 6).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(width=32).map(repr),
    st.floats().map(repr),
    st.sampled_from(["nan", "-", "+", ".", "e", "1e", "1e5", "-0", "1_0", "0x1", "", "\u00e9", "1\x00"]),
)
LINE = st.lists(WORD, max_size=12).map(lambda words: " ".join(words).encode())


def plain(line):
    """The record of a line by Python's own numbers, or None."""
    words, at, record = line.replace(b"\r", b" ").replace(b"\t", b" ").split(b" "), 0, []
    words = [w for w in words if w]
    for slot in SLOTS:
        try:
            count = whole(words[at])
            assert 0 < count <= 1 << 30 and len(words) > at + count
            values = [(decimal if slot.decimal else whole)(w) for w in words[at + 1 : at + 1 + count]]
        except (IndexError, ValueError, AssertionError):
            return None
        record.append(values)
        at += count + 1
    return record if at == len(words) else None


def whole(word):
    if not word.isascii() or word.lstrip(b"+-").strip(b"0123456789") or b"_" in word:
        raise ValueError(word)
    value = int(word)
    if not -(2**63) <= value < 2**64:
        raise ValueError(word)
    return value - 2**64 if value >= 2**63 else value


def decimal(word):
    if not word.isascii() or word.strip(b"0123456789+-.eE"):
        raise ValueError(word)
    value = float(word)
    if abs(value) > float(np.finfo("float32").max) * (1 + 2**-25) or math.isnan(value):
        raise ValueError(word)
    return value


@pytest.mark.filterwarnings("ignore:dataset slot dense")
@fuzzed(300)
@given(
    st.lists(
        st.one_of(
            LINE,
            st.just(b"1 7 3 1 2 3 1 1"),
            st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_text_gives_records_or_errors(lines):
    want = [r for r in map(plain, lines) if r is not None]
    feed, bad = parse(b"\n".join(lines) + b"\n")
    assert len(bad) == len(lines) - len(want)
    assert rows(feed["ids"]) == [r[0] for r in want]
    dense = np.array([value for r in want for value in r[1]], "float32")
    dense = dense[: len(dense) // 3 * 3].reshape(-1, 3)
    np.testing.assert_allclose(feed["dense"], dense, rtol=1e-6, atol=1e-44)
    assert feed["label"].reshape(-1).tolist() == [value for r in want for value in r[2]]


@fuzzed(200)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_come_back(value):
    feed, bad = parse(f"1 {value!r}\n1 {value:.9e}\n1 {value:.60f}\n".encode(), [DatasetSlot("x", True)])
    assert not bad
    np.testing.assert_array_equal(np.array(feed["x"])[:, 0], np.full(3, value, "float32"))


def test_joined_records_are_those_of_the_joined_text():
    parser = Parser(SLOTS)
    texts = [b"1 7 3 1 2 3 1 1\n2 8 9 3 1 2 3 1 0\n", b"3 1 2 3 3 4 5 6 1 1\n"]
    parts = [parser.parse(np.frombuffer(t, np.uint8), 0, pytest.fail)[0] for t in texts]
    feed = parser.batch(joined([parts[0].part(1, 2), parts[1], parts[0]]), np.arange(4))
    assert rows(feed["ids"]) == [[8, 9], [1, 2, 3], [7], [8, 9]]


def test_a_bad_line_is_an_exception_with_its_number():
    def stop(bad):
        raise bad

    with pytest.raises(BadLine, match="line 12, slot 1") as caught:
        Parser(SLOTS).parse(np.frombuffer(b"1 7 3 1 2 3 1 1\nx\n", np.uint8), 10, stop)
    assert caught.value.line == 12


def test_one_long_id_does_not_widen_all_others():
    """Ids stand in an array of texts of one width."""

    def tags(text):
        return Parser([DatasetSlot("a", False)], 1).parse(np.frombuffer(text, np.uint8), 0, lambda bad: None)[0].tags

    long = b"x" * 20_000
    found = tags(b"1 " + long + b" 1 1\n" + b"1 i 1 1\n" * 2_000 + b"1 " + long + b" 1 2\n1 " + long + b"y 1 2\n")
    assert len(found) == 2_003 and found.nbytes <= 24 * len(found)
    assert found[0] == found[-2] and len(set(found.tolist())) == 3 and set(found[1:-2].tolist()) == {b"i"}
    short = b"a" * 24
    assert tags(b"1 " + short + b" 1 1\n1 b 1 1\n").tolist() == [short, b"b"]


def test_the_values_of_a_batch_fill_the_rows_of_a_dense_slot():
    feed, bad = parse(b"1 7 6 1 2 3 4 5 6 1 0\n1 8 3 7 8 9 1 1")
    assert not bad
    np.testing.assert_array_equal(feed["dense"], np.arange(1, 10).reshape(3, 3))
    with pytest.warns(RuntimeWarning, match="slot dense: a record has 4 .* 3 a row.* 1 are left out"):
        feed, bad = parse(b"1 7 4 1 2 3 4 1 0\n1 8 3 5 6 7 1 1")
    assert not bad
    np.testing.assert_array_equal(feed["dense"], np.arange(1, 7).reshape(2, 3))
