"""Serialized protobuf messages, field by field.

Parts are counted before they are parsed, and arrays are read in place.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4, BYTES: -1}  # the size of a bytes field precedes its value


class Field(NamedTuple):
    """Field of a serialized message: its number, its kind, its value (bytes as a view), and its begin and end."""

    number: int
    kind: int
    value: Any
    begin: int
    end: int


def fields(data: memoryview, most: int | None = None) -> Iterator[Field]:
    """Yield the fields of a serialized message, in order.

    Each byte of a tag or length is read once, since the sender may change data in shared memory: a value
    always lies within `data`.

    Raises DecodeError for invalid data, or more than `most` fields.
    """
    at = count = 0
    end = len(data)
    while at < end:
        begin = at
        count += 1
        if most is not None and count > most:
            raise DecodeError(f"more than {most} parts")
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind in _SIZES:
            size, at = _varint(data, at) if kind == BYTES else (_SIZES[kind], at)
            value, at = data[at : at + size], at + size
        else:
            raise DecodeError(f"a field of kind {kind}")
        if at > end:
            raise DecodeError("a field goes beyond the end of its message")
        yield Field(key >> 3, kind, value, begin, at)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a position, and the position after it."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        if byte < 128:
            return result | byte << shift, at
        result |= (byte & 127) << shift
    raise DecodeError("a number does not end")
