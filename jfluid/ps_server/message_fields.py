"""Where the fields of a serialized protobuf message lie, found by compiled code: Python takes microseconds
for each, while a server and its trainer wait for one another.
"""

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError

from jfluid.ir.protobuf_fields import BYTES, FIXED32, FIXED64, VARINT
from jfluid.ps_server.kernels import kernel

_ROWS = 256  # that are found at once
_TOO_MANY, _KINDLESS, _BEYOND, _ENDLESS = -1, -2, -3, -4
_WHY = {
    _TOO_MANY: "more parts than a message of a job has",
    _KINDLESS: "a field of an unknown kind",
    _BEYOND: "a field goes beyond the end of its message",
    _ENDLESS: "a number does not end",
}


@kernel
def _varint(data, at, end):
    """(the number that begins there, the position after it: -1 where it does not end)."""
    result = np.int64(0)
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = np.int64(data[at])
        at += 1
        if shift < 64:
            result |= (byte & 127) << shift
        if byte < 128:
            return result, at
    return result, -1


@kernel
def _scan(data, state, inside, most, most_inside, out):
    """Write the next fields to the rows of `out` (int64 [m, 6]): how deep each is, its number, its kind, its
    value or where that begins, where it begins and ends. Fields of the numbers in `inside` (bits) are
    followed by their own. Returns how many rows were written, or why there are none.

    `state` (int64 [5], zeros at first) is where the next call goes on: the position, how deep that is, where
    the message around it ends, and how many fields of the whole and of that message there were.
    """
    at, depth, inner, count, own = state[0], state[1], state[2], state[3], state[4]
    row = np.int64(0)
    while row < len(out):
        end = inner if depth else np.int64(len(data))
        if at == end:
            if not depth:
                break
            depth = 0
            continue
        begin = at
        key, at = _varint(data, at, end)
        if at < 0:
            return _ENDLESS
        number, kind = (key >> 3) & 0x1FFFFFFF, key & 7
        if depth:
            own += 1
        else:
            count, own = count + 1, 0
        if count > most or own > most_inside:
            return _TOO_MANY
        value = at
        if kind == VARINT:
            value, at = _varint(data, at, end)
            if at < 0:
                return _ENDLESS
        elif kind == BYTES:
            size, value = _varint(data, at, end)
            if value < 0:
                return _ENDLESS
            if size < 0 or size > end - value:
                return _BEYOND
            at = value + size
        elif kind == FIXED32 or kind == FIXED64:
            at += 4 if kind == FIXED32 else 8
            if at > end:
                return _BEYOND
        else:
            return _KINDLESS
        out[row, 0], out[row, 1], out[row, 2] = depth, number, kind
        out[row, 3], out[row, 4], out[row, 5] = value, begin, at
        row += 1
        if not depth and kind == BYTES and number < 64 and (inside >> number) & 1:
            depth, inner, at = 1, at, value
    state[0], state[1], state[2], state[3], state[4] = at, depth, inner, count, own
    return row


def nested_fields(
    data: memoryview, inside: tuple[int, ...] = (), most: int = 1 << 62, most_inside: int = 1 << 62
) -> Iterator[list[int]]:
    """Yield [depth, number, kind, value, begin, end] of each field of a message, and after those of the
    numbers in `inside` those in them, at depth 1; the value of a field of bytes is where it begins.

    The data may change meanwhile: what is returned lies within it all the same. Raises DecodeError for
    invalid data, more than `most` fields, or more than `most_inside` in one of them.
    """
    read = np.frombuffer(data.toreadonly(), np.uint8)
    state, out = np.zeros(5, np.int64), np.empty((_ROWS, 6), np.int64)
    bits, found = sum(1 << number for number in inside), _ROWS
    while found == _ROWS:
        found = _scan(read, state, bits, most, most_inside, out)
        if found < 0:
            raise DecodeError(_WHY[found])
        yield from out[:found].tolist()
