"""What holds of every parser: it reads or refuses, and takes no more than its input explains."""

import copy
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.measured import call_within

_WANTED = os.environ.get("JFLUID_FUZZ", "")
# The numbers of examples that tests name are for USUAL cases; before each change a test draws a quarter of its number.
USUAL = 500
_CASES = int(os.environ.get("JFLUID_FUZZ_CASES", "") or USUAL // 4)
LONG = bool(_WANTED) or _CASES > USUAL
# Bytes that a parser may take whatever its input: arrays of its own, error texts, what Python
# keeps.
FLOOR = 700_000
LONGEST_ERROR = 6000
_SECONDS, _SECONDS_A_BYTE = 3.0, 2e-4


def fuzzed(examples: int = 60) -> settings:
    """Few examples that are always the same, or as many as the environment asks for."""
    wanted = int(_WANTED) if _WANTED else max(1, examples * _CASES // USUAL)
    return settings(
        max_examples=wanted,
        derandomize=not LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )


class Refusal:
    """What `reads_or_refuses` returns for what was refused."""

    def __init__(self, error: Exception):
        self.error = error


def reads_or_refuses(
    parse: Callable[[Any], Any],
    data: Any,
    error: type[Exception],
    size: int | None = None,
    floor: int = FLOOR,
    factor: int = 10,
) -> Any:
    """What `parse` makes of the data, or a Refusal where it raises `error`.

    All else that it raises is a fault, and so is memory above `floor` and `factor` times the size,
    or time out of proportion. NumPy's arrays count, messages that protobuf has parsed do not.
    """
    size = len(data) if size is None else size

    def outcome() -> Any:
        try:
            return parse(data)
        except error as refused:
            assert 0 < len(str(refused)) <= LONGEST_ERROR, (
                f"an error of {len(str(refused))} characters: {str(refused)[:200]}"
            )
            return Refusal(refused)

    return call_within(
        outcome,
        peak=max(floor, factor * size) + 1,
        seconds=_SECONDS + _SECONDS_A_BYTE * size,
    )


def grows_linearly(
    parse: Callable[[Any], Any], family: Callable[[int], Any], size: int, error: type[Exception]
) -> None:
    """Sixteen times the input may take some sixteen times as long: compared within one process, the
    best of three, with room for a factor of five. `family` makes inputs of a size."""

    def seconds(data: Any) -> float:
        started = time.process_time()
        try:
            parse(data)
        except error:
            pass
        return time.process_time() - started

    data, more = family(size), family(16 * size)
    small = min(seconds(data) for _ in range(3))
    most = 5 * 16 * max(small, 2e-3)
    large: list[float] = []
    while len(large) < 3 and (not large or large[-1] > most):
        large.append(seconds(more))
    assert large[-1] <= most, f"{small:.4f} s, and {large} s for sixteen times as much"


# ---- hostile inputs ----

_NUMBERS = [
    0,
    1,
    -1,
    127,
    128,
    255,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32 - 1,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
_TEXTS = [
    b"-1",
    b"1e999",
    b"nan",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"9" * 30,
    b"9" * 5000,
    b"\\u0000",
    b"\\udc80",
    b"\xff",
    b"\xc0\x80",
    b"\0",
    b"\n",
    b"\r\n",
    b"[" * 500,
    b'{"a":' * 200,
    b"&a [*a]",
    b"*a",
    b"<<: *a",
    b"!!python/name:os.system",
    b"../",
    b"/etc/passwd",
    b"0x",
    b"1" + b"0" * 400,
]


def encodings(number: int) -> list[bytes]:
    """A number as files and messages have it: fixed, as a varint, as text."""
    wide, varint = number & (2**64 - 1), bytearray()
    rest = wide
    while rest > 127:
        varint.append(rest & 127 | 128)
        rest >>= 7
    four = (wide & (2**32 - 1)).to_bytes(4, "little")
    return [wide.to_bytes(8, "little"), four, bytes([*varint, rest]), str(number).encode()]


@st.composite
def mutated(draw: Any, seeds: Sequence[bytes], most: int = 6) -> bytes:
    """One of the seeds after some damage: bits, bytes, lengths, cuts, repetitions, splices."""
    data = bytearray(draw(st.sampled_from(list(seeds))))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(1, 40))
        kind = draw(st.integers(0, 8))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1 and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            data[at:at] = data[at : at + length] * draw(st.integers(1, 20))
        elif kind == 5:
            other = draw(st.sampled_from(list(seeds)))
            begin = draw(st.integers(0, len(other)))
            data[at : at + length] = other[begin : begin + length]
        elif kind == 6:
            value = draw(st.sampled_from(encodings(draw(st.sampled_from(_NUMBERS)))))
            data[at : at + len(value)] = value
        elif kind == 7:
            data[at:at] = draw(st.sampled_from(_TEXTS))
        else:
            data[at : at + length] = draw(st.binary(max_size=40))
    return bytes(data)


_LIES = [
    *_NUMBERS,
    1e300,
    -0.5,
    float("nan"),
    float("inf"),
    None,
    True,
    False,
    "",
    "x",
    "\0",
    "../x",
    "x" * 3000,
    [],
    {},
    [[]],
    {"a": 1},
    [None] * 100,
    2**100,
    "1",
    "é" * 40,
]


@st.composite
def lied(draw: Any, honest: Any) -> Any:
    """A copy of plain values (as JSON has them) of which some are others, or gone, or twice."""
    value = copy.deepcopy(honest)
    for _ in range(draw(st.integers(1, 3))):
        inside = value
        while True:
            places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            if isinstance(inside[place], (dict, list)) and inside[place] and draw(st.integers(0, 4)):
                inside = inside[place]
                continue
            kind = draw(st.integers(0, 5))
            if kind == 0:
                del inside[place]
            elif kind == 1 and isinstance(inside, list):
                inside.append(copy.deepcopy(inside[place]))
            elif kind == 1:
                inside[draw(st.sampled_from(["x", "name", "", "\0", "1"]))] = copy.deepcopy(inside[place])
            else:
                inside[place] = copy.deepcopy(draw(st.sampled_from(_LIES)))
            break
    return value


def as_json(value: Any) -> bytes:
    """JSON as Python writes it, with NaN and Infinity."""
    return json.dumps(value).encode()
