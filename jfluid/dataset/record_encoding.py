"""The encoding of records in messages between trainers.

A header, then the arrays of `Records`, little endian: counts int32 [n, slots], values int64 [m],
tags [n] of `width` bytes. The counts say where records begin.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from jfluid import errors
from jfluid.dataset.multislot import LONGEST_TAG, DatasetSlot, Records

_MAGIC = b"JFR1"
_HEADER = struct.Struct("<4sIQQI")  # magic, slots, n, m, width


def encode(records: Records) -> bytes:
    """Return the records as bytes."""
    count, slots = records.counts.shape
    width = 0 if records.tags is None else records.tags.dtype.itemsize
    parts: list[Any] = [
        _HEADER.pack(_MAGIC, slots, count, len(records.values), width),
        np.ascontiguousarray(records.counts, "<i4"),
        np.ascontiguousarray(records.values, "<i8"),
    ]
    if records.tags is not None:
        parts.append(np.ascontiguousarray(records.tags))
    return b"".join(parts)


def decode(data: bytes, slots: Sequence[DatasetSlot], tagged: bool) -> Records:
    """Return the records in `data`, of a dataset with these slots; `tagged` records have ids.

    Takes memory in proportion to the data. Raises MessageError for invalid data: each count and
    size is checked against the length of the data, and the slots.
    """
    count, values, width = _sizes(data, len(slots), tagged)
    at = _HEADER.size
    counts = np.frombuffer(data, "<i4", count * len(slots), at).reshape(count, len(slots)).astype(np.int32)
    at += counts.nbytes
    _check_counts(counts, values, slots)
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(counts.sum(1, dtype=np.int64), out=starts[1:])
    tags = np.frombuffer(data, f"S{width}", count, at + 8 * values).copy() if tagged else None
    return Records(np.frombuffer(data, "<i8", values, at).astype(np.int64), counts, starts, tags)


def _sizes(data: bytes, slots: int, tagged: bool) -> tuple[int, int, int]:
    """Return (records, values, bytes of a tag), which fit the length of the data."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise errors.MessageError(f"expected records, found {len(data)} bytes that begin with {data[:8]!r}")
    _, found, count, values, width = _HEADER.unpack_from(data)
    if found != slots or (width > 0) != tagged or width > LONGEST_TAG or not 0 < count <= len(data):
        raise errors.MessageError(
            f"expected records of {slots} slots with{'' if tagged else 'out'} ids, found {count} "
            f"records of {found} slots with ids of {width} bytes; have all trainers the same dataset?"
        )
    size = _HEADER.size + 4 * count * slots + 8 * values + width * count
    if size != len(data):
        raise errors.MessageError(f"expected {size} bytes for {count} records with {values} values, found {len(data)}")
    return count, values, width


def _check_counts(counts: np.ndarray, values: int, slots: Sequence[DatasetSlot]) -> None:
    for i, slot in enumerate(slots):
        least, most = int(counts[:, i].min()), int(counts[:, i].max())
        low, high = (1, values) if slot.used else (0, 0)
        if not low <= least <= most <= high:
            raise errors.MessageError(
                f"records: slot {slot.name}: expected {low} to {high} values a record, found "
                f"{least if least < low else most}"
            )
    if (total := int(counts.sum(dtype=np.int64))) != values:
        raise errors.MessageError(f"records: the counts add up to {total} values, found {values}")
