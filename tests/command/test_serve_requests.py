"""Bodies of requests to `jfluid serve`: what is right becomes arrays, and all else is a BadRequest."""

import io
import json
import math
import re
import struct
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid.serving.blocks import block
from jfluid.serving.json_inputs import PADDING, read_json
from jfluid.serving.npz_inputs import Archive
from jfluid.serving.requests import BadRequest, Input, RequestLimits
from tests.fuzz.harness import fuzzed

LIMITS = RequestLimits(bytes=1 << 20, elements=1000)


def one(dtype="float32", shape=(-1, 4), height=None):
    return Input("x", np.dtype(dtype), shape, height)


def of_json(text, *inputs):
    text = text if isinstance(text, bytes) else text.encode()
    body = block(len(text) + len(PADDING))
    body[: len(text)] = text
    return read_json(body, inputs or (one(),), LIMITS)


def of_npz(text, *inputs):
    body = block(len(text) + len(PADDING))
    body[: len(text)] = text
    return Archive(body, inputs or (one(),), LIMITS).arrays()


def x(values):
    return f'{{"inputs": {{"x": {values}}}}}'


def head(descr="<f4", shape="(1, 4)", order=False, data=bytes(16)):
    text = b"{'descr': %s, 'fortran_order': %r, 'shape': %s, }" % (
        repr(descr).encode(),
        order,
        shape.encode(),
    )
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def zipped(data=None, name="x.npy", method=zipfile.ZIP_STORED, entries=1):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore")  # two of one name
        for _ in range(entries):
            archive.writestr(name, head() if data is None else data)
    return file.getvalue()


def changed(places, data=None, at=b"PK\x01\x02"):
    """An archive with other bytes at places that count from a signature."""
    found = bytearray(zipped() if data is None else data)
    for place, value in places.items():
        start = found.find(at) + place
        found[start : start + len(value)] = value
    return bytes(found)


@pytest.mark.parametrize(
    "body, says",
    [
        (b"", "found the end at byte 0"),
        (b"{", "found the end"),
        (b"null", "expected '{', found 'null'"),
        ("[1]", "expected '{'"),
        ('{"inputs": 3}', "expected '{', found '3' at byte 11"),
        ('{"inputs": {}}', "expected the inputs x, found none"),
        ('{"inputs": {"y": [1]}}', "expected the inputs x, found 'y'"),
        ('{"inputs": {"x": [[1, 2, 3, 4]], "y": [1]}}', "found x, 'y'"),
        ('{"inputs": {"x": [[1, 2, 3, 4]], "x": [[1, 2, 3, 4]]}}', "'x' is there twice"),
        ('{"inputs": {"x": [[1, 2, 3, 4]]}, "more": 1}', "found 'more' beside inputs"),
        ('{"more": 1, "inputs": {"x": [[1, 2, 3, 4]]}}', "found 'more' in place of inputs"),
        ('{"inputs": {"x": [[1, 2, 3, 4]]}} x', "expected the end, found 'x'"),
        ('{"inputs": {"x": [[1, 2, 3, 4]]}', "found the end"),
        ('{"inputs": {"x": [[1, 2, 3, 4]],}}', "expected '\"'"),
        (r'{"inputs": {"\ud800": [1]}}', r"found '\ud800'"),
        (b'{"inputs": {"x\xff": [1]}}', "a name in UTF-8"),
        (r'{"inputs": {"\x": [1]}}', "a name in UTF-8"),
        ('{"inputs": {"' + "x" * 5000 + '": [1]}}', "a name in quotes of up to 4096 bytes"),
        (x("[[1, 2, 3, 4]]").encode("utf-16"), "expected '{'"),
        (b"\0" * 100, "expected '{'"),
        (x("null"), "expected numbers of float32: found 'null' at byte 17"),
        (x('"abc"'), "expected numbers of float32"),
        (x(r'"\ud800"'), "expected numbers of float32"),
        (x("{}"), "expected numbers of float32: found '{'"),
        (x("[[{}, 2, 3, 4]]"), "expected numbers of float32"),
        (x("1"), "expected the shape [-1, 4], found a number in place of a list"),
        (x("[1]"), "expected the shape [-1, 4], found a number in place of a list"),
        (x("[[]]"), "expected the shape [-1, 4], found lists of other lengths"),
        (x("[[1, 2, 3]]"), "found lists of other lengths"),
        (x("[[1, 2, 3, 4, 5]]"), "found lists of other lengths"),
        (x("[[1, 2, 3, 4], [1]]"), "found lists of other lengths"),
        (x("[[[1]]]"), "found lists of more than 2 levels"),
        (x("[" * 100000), "found lists of more than 2 levels"),
        (x("[[1, 2, 3, 4]"), "expected a list of numbers (x), found '}'"),
        (x("[[1 2, 3, 4]]"), "expected a list of numbers (x), found '2'"),
        (x("[[1, 2, 3, 4,]]"), "expected numbers of float32: found ']'"),
        (x("[[01, 2, 3, 4]]"), "found '01'"),
        (x("[[1., 2, 3, 4]]"), "found '1.'"),
        (x("[[1e, 2, 3, 4]]"), "found '1e'"),
        (x("[[.5, 2, 3, 4]]"), "found '.5'"),
        (x("[[+1, 2, 3, 4]]"), "found '+1'"),
        (x("[[-, 2, 3, 4]]"), "found '-'"),
        (x("[[0x10, 2, 3, 4]]"), "found 'x10'"),
        (x("[[nan, 2, 3, 4]]"), "found 'nan'"),
        (x("[[1e39, 2, 3, 4]]"), "found '1e39' at byte 19, which does not fit"),
        (x("[[-1e999, 2, 3, 4]]"), "found '-1e999' at byte 19, which does not fit"),
        (x("[[1" + "0" * 400 + ", 2, 3, 4]]"), "which does not fit"),
        (x("[[1" + "0" * 5000 + ", 2, 3, 4]]"), "a number of more than 1000 bytes"),
    ],
)
def test_wrong_json_says_what_and_where(body, says):
    with pytest.raises(BadRequest) as found:
        of_json(body)
    assert found.value.status == 400 and says in str(found.value)
    assert str(found.value).isascii() and len(str(found.value)) < 300


def test_more_elements_than_there_may_be():
    for text in ("[" + "1, " * 1000 + "1]", "[" + "[], " * 1000 + "[]]"):
        with pytest.raises(BadRequest, match="may have 1000 numbers and lists") as found:
            of_json(x(text), one(shape=(-1,) * text.count("[", 0, 2)))
        assert found.value.status == 413


@pytest.mark.parametrize(
    "dtype, right, wrong",
    [
        ("int32", [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1, 2**32 + 7, 2**64, 10**30]),
        ("int64", [2**63 - 1, -(2**63), -0], [2**63, -(2**63) - 1, 2**64 - 1, 2**64 + 5]),
        ("uint8", [0, 255], [256, -1, 300]),
        ("bool", [0, 1, True, False], [2, -1]),
        ("float32", [3.4028234e38, 1e-60, True], [3.4028236e38, 1e39]),
        ("float16", [65504, 65519.9], [65520, 1e5]),
        ("bfloat16", [3.38e38], [3.4e38]),
        ("float64", [1.7976931348623157e308], []),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype, right, wrong):
    item = one(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype, (-1,))
    found = of_json(x(json.dumps(right)), item)["x"]
    assert found.dtype == item.dtype
    with np.errstate(over="ignore"):
        assert found.tolist() == np.array(right).astype(item.dtype).tolist()
    for number in wrong:
        with pytest.raises(BadRequest, match=re.escape(f"of {dtype}: found '{number}' at")):
            of_json(x(f"[{number}]"), item)
        array = np.array([number])
        if array.dtype.kind in "iuf":
            file = io.BytesIO()
            np.savez(file, x=array)
            with pytest.raises(BadRequest, match=f"x: expected numbers of {dtype}"):
                of_npz(file.getvalue(), item)


@pytest.mark.parametrize("text", ["1.0", "1e3", "NaN", "-Infinity", '"nan"', "null", '"1"'])
def test_whole_numbers_are_whole(text):
    with pytest.raises(BadRequest, match="x: expected numbers of int64: found"):
        of_json(x(f"[{text}]"), one("int64", (-1,)))


def test_numbers_that_json_does_not_have():
    found = of_json(x('[[NaN, Infinity, -Infinity, "nan"], ["inf", "-inf", true, false]]'))["x"]
    expected = [[math.nan, math.inf, -math.inf, math.nan], [math.inf, -math.inf, 1, 0]]
    assert np.array_equal(found, np.float32(expected), equal_nan=True)


def test_lists_of_nothing_and_single_numbers():
    assert of_json(x("[]"))["x"].shape == (0, 4)
    assert of_json(x("[]"), one(shape=(-1, -1)))["x"].shape == (0, 0)
    assert of_json(x("[[], []]"), one(shape=(-1, -1)))["x"].shape == (2, 0)
    assert of_json(x(" 1.5 "), one(shape=()))["x"] == np.float32(1.5)


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@fuzzed(100)
@given(st.lists(NUMBERS, max_size=8))
@example(["9007199254740993", "0.1", "2.2250738585072011e-308", "4.9e-324", "1e-400", "1e22", "1e23"])
def test_decimal_numbers_are_the_nearest(texts):
    expected = [float(text) for text in texts]
    item = one("float64", (-1,))
    if any(map(math.isinf, expected)):
        with pytest.raises(BadRequest, match="does not fit"):
            of_json(x(f"[{','.join(texts)}]"), item)
    else:
        assert of_json(x(f"[{','.join(texts)}]"), item)["x"].tolist() == expected


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["nan", "inf", "-inf"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=12,
)


@fuzzed(100)
@given(VALUES, st.sampled_from(["float32", "int32", "bool"]), st.integers(0, 3))
def test_any_value_is_an_array_or_a_bad_request(value, dtype, rank):
    try:
        found = of_json(json.dumps({"inputs": {"x": value}}), one(dtype, (-1,) * rank))["x"]
    except BadRequest as error:
        assert error.status == 400
    else:
        expected = np.array(value, "float64" if dtype == "float32" else "O").astype(dtype)
        assert found.ndim == rank and found.dtype == dtype
        assert np.array_equal(found.ravel(), expected.ravel(), equal_nan=dtype == "float32")


@fuzzed(100)
@given(st.data())
def test_any_bytes_are_an_array_or_a_bad_request(data):
    text = bytearray(x("[[1, 2.5, -3e2, NaN]]").encode())
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        size = data.draw(st.integers(0, 3))
        text[begin : begin + size] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"[", b"]", b",", b'"', b"\\", b"1e5", b"-"])
        )
    try:
        found = of_json(bytes(text))["x"]
    except BadRequest:
        return
    expected = json.loads(text, parse_int=float)["inputs"]["x"]
    expected = [[float(number) for number in row] for row in expected]
    assert np.array_equal(found, np.float32(expected).reshape(-1, 4), equal_nan=True)


@pytest.mark.parametrize(
    "body, status, says",
    [
        (b"", 400, "this is no zip file"),
        (b"PK\x03\x04garbage", 400, "this is no zip file"),
        (b"PK\x05\x06" + bytes(18), 400, "expected the inputs x, found none"),
        (zipped(entries=2), 400, "expected an .npz with 1 arrays, found 2"),
        (lambda: zipped(b"", entries=70000), 400, "found more"),  # a second to make
        (zipped(name="../../x.npy"), 400, "found '../../x'"),
        (zipped(name="\ud7ff.npy"), 400, r"found '\ud7ff'"),
        (zipped(method=zipfile.ZIP_LZMA), 400, "expected an array that is stored or deflated"),
        (zipped(method=zipfile.ZIP_BZIP2), 400, "expected an array that is stored or deflated"),
        (changed({8: b"\x01"}), 400, "expected an array that is stored or deflated"),
        (changed({10: b"\x63"}), 400, "expected an array that is stored or deflated"),
        (changed({24: b"\x64\x00\x00\x00"}), 400, "Bad CRC-32"),
        (changed({16: b"abcd"}), 400, "Bad CRC-32"),
        (changed({42: b"\xff\xff\xff\x7f"}), 400, "expected an .npz of arrays"),
        (
            changed({35: b"\xff" * 9}, zipped(method=zipfile.ZIP_DEFLATED), b"PK\x03\x04"),
            400,
            ".npz",
        ),
        (zipped(bytes(2 << 20), method=zipfile.ZIP_DEFLATED), 413, "1048576 bytes, unpacked too"),
        (zipped(b"hello"), 400, "expected an array in NumPy's format"),
        (zipped(b"\x93NUMPY\x09\x00" + bytes(100)), 400, "'version (9, 0)'"),
        (
            zipped(b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
            400,
            "NumPy's format",
        ),
        (zipped(b"\x93NUMPY\x01\x00" + struct.pack("<H", 900) + b"(" * 900), 400, "NumPy's format"),
        (zipped(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b"{"), 400, "NumPy's format"),
        (zipped(head("|O")), 400, "found elements of 'object'"),
        (zipped(head([("a", "<f4")])), 400, "found elements of"),
        (zipped(head("<c8", data=bytes(32))), 400, "found elements of 'complex64'"),
        (zipped(head("<M8[s]", data=bytes(32))), 400, "found elements of"),
        (zipped(head("|V0", "(1000000000000, 4)", data=b"")), 400, "found elements of '|V0'"),
        (zipped(head("(4,)<f4")), 400, "found elements of"),
        (zipped(head(shape="(1000000000000, 4)")), 400, "found 16 bytes in place of"),
        (zipped(head(shape="(1" + "0" * 30 + ", 4)")), 400, "found 16 bytes in place of"),
        (zipped(head(shape="(-1, 4)")), 400, "found '[-1, 4]'"),
        (zipped(head(shape="(True, 4)")), 400, "found '[True, 4]'"),
        (zipped(head(shape="(1.0, 4)")), 400, "NumPy's format"),
        (zipped(head(shape="(4,)")), 400, "expected the shape [-1, 4], found [4]"),
        (zipped(head(shape="(4, 1)")), 400, "expected the shape [-1, 4], found [4, 1]"),
        (zipped(head(data=bytes(15))), 400, "found 15 bytes in place of"),
        (zipped(head(data=bytes(17))), 400, "found 17 bytes in place of"),
        (zipped(head(shape="(300, 4)", data=bytes(4800))), 413, "may have 1000 numbers"),
        (zipped(head("<f8", data=np.float64([1e39] * 4).tobytes())), 400, "found 1e+39 at [0, 0]"),
    ],
)
def test_wrong_archives_say_what(body, status, says):
    with pytest.raises(BadRequest) as found:
        of_npz(body() if callable(body) else body)
    assert (found.value.status, says in str(found.value)) == (status, True), str(found.value)
    assert str(found.value).isascii() and len(str(found.value)) < 300


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", "|i1", ">u2", "<i8", "|b1"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_other_dtypes_and_orders(dtype, order, save):
    values = np.asarray(np.arange(12).reshape(3, 4).astype(dtype), order=order)
    file = io.BytesIO()
    save(file, x=values)
    found = of_npz(file.getvalue())["x"]
    assert found.dtype == np.float32 and np.array_equal(found, values.astype("float32"))


def test_an_archive_is_not_unpacked_beyond_what_it_says():
    lie = zipped(head() + bytes(1 << 30 >> 4), method=zipfile.ZIP_DEFLATED)
    size = struct.pack("<I", len(head()))
    body = changed({24: size}, changed({22: size}, lie, b"PK\x03\x04"))
    with pytest.raises(BadRequest, match="expected an .npz of arrays"):
        of_npz(body)


@fuzzed(100)
@given(st.data())
def test_any_archive_is_an_array_or_a_bad_request(data):
    method = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    body = bytearray(zipped(method=method))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(body) - 1))
        body[begin : begin + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        assert of_npz(bytes(body))["x"].shape[1:] == (4,)
    except BadRequest:
        pass


def test_ids_are_those_of_the_table():
    item = one("int64", (-1,), height=10)
    item.check_ids(np.array([0, 9]))
    item.check_ids(np.empty(0, "int64"))
    for bad in (-1, 10, 2**62, -(2**63)):
        with pytest.raises(BadRequest, match=rf"x: expected ids from 0 to 9, found {bad} at \[1\]"):
            item.check_ids(np.array([0, bad]))
    with pytest.raises(BadRequest, match="found nan at"):
        one("float32", (-1,), height=10).check_ids(np.float32([np.nan]))
