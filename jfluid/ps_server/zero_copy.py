"""Protobuf messages with few copies of arrays: a received array is copied once, a sent one is written once.

Protobuf copies every bytes field when a message is made or parsed, and once more when it is
serialized or read. Messages of a step hold megabytes in few fields: these are encoded and decoded
here, and protobuf gets the rest. Concatenated serialized messages are one message, so both can
write fields of the same one.

What is parsed may lie in memory that the sender can still change: everything is read from there once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from jfluid.host import aligned_memory
from jfluid.ir.protobuf_fields import BYTES, VARINT, fields
from jfluid.ps_server import ps_pb2 as pb

# Limits of a message: tables and blocks, and other fields. Protobuf takes a hundred bytes for a
# submessage of two.
MOST_PARTS, MOST_FIELDS = 1 << 14, 64
_ROWS, _BLOCKS = 3, 4
_IDS, _VALUES_OF_ROWS, _VALUES_OF_BLOCK = 3, 4, 3
# Array fields of a RowsChange and a BlockChange: attributes of _IncomingChange.
_ARRAYS = {_ROWS: {_IDS: "ids", _VALUES_OF_ROWS: "values"}, _BLOCKS: {_VALUES_OF_BLOCK: "values"}}
_PADDING = 15  # the number of a field of a PullReply that nobody reads


def head(number: int, size: int, at: int | None = None) -> bytes:
    """Return the tag and length that precede the `size` bytes of a bytes field.

    Args:
        at: where they will stand in a message, in whose memory the bytes are to begin at a multiple of
            4: the tag is written longer than it needs to be.
    """
    return _head(number, size, None if at is None else at % 4)


@functools.lru_cache(1024)  # of a job's messages most are as they were in the step before
def _head(number: int, size: int, at: int | None) -> bytes:
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    tag = number << 3 | BYTES
    spare = -(at + 1 + len(length)) % 4 if at is not None else 0
    return bytes([tag | 128, *[128] * (spare - 1), 0] if spare else [tag]) + length


@functools.lru_cache(1024)
def _padding(at: int) -> bytes:
    """Return an unused field that lets the following bytes begin at a multiple of the alignment.

    Args:
        at: the offset at which the field begins, from 0 to the alignment.
    """
    missing = -at % aligned_memory.ALIGNMENT
    if missing == 1:  # no field is as short
        missing += aligned_memory.ALIGNMENT
    return head(_PADDING, missing - 2) + bytes(missing - 2) if missing else b""


class AlignedReply:
    """Pieces of a serialized PullReply with aligned arrays: XLA reads the arrays in place in a copy of the whole."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self._size = 0

    def add(self, front: bytes, values: np.ndarray[Any, Any] | None = None) -> None:
        """Add bytes, and an array behind the bytes."""
        if values is not None:
            self._add(_padding((self._size + len(front)) % aligned_memory.ALIGNMENT))
        self._add(front)
        if values is not None:
            self._add(flat(values))

    def _add(self, part: Any) -> None:
        if len(part):
            self.parts.append(part)
            self._size += len(part)


def flat(values: np.ndarray[Any, Any]) -> Any:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def aligned_copy(data: Any) -> np.ndarray[Any, Any]:
    """Return a copy of bytes, uint8 [n]; XLA on the CPU reads a large copy in place."""
    return aligned_memory.copied(np.frombuffer(data, np.uint8))


# ---- outgoing requests ----


class OutgoingPush:
    """A PushRequest to be sent.

    Attributes:
        message: all but its rows and blocks.
    """

    def __init__(self) -> None:
        self.message = pb.PushRequest()
        self._changes: list[Any] = []
        self._size = 0

    def add_rows(self, ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any], **fields: Any) -> None:
        """Add a RowsChange with these fields."""
        front = pb.RowsChange(**fields).SerializeToString()
        self._add(_ROWS, front, (_IDS, ids), (_VALUES_OF_ROWS, values))

    def add_block(self, values: np.ndarray[Any, Any], **fields: Any) -> None:
        """Add a BlockChange with these fields."""
        self._add(_BLOCKS, _block_change(**fields), (_VALUES_OF_BLOCK, values))

    def _add(self, number: int, front: bytes, *arrays: tuple[int, np.ndarray[Any, Any]]) -> None:
        parts: list[Any] = [front]
        size = len(parts[0])
        for field, array in arrays:
            if array.size:
                parts += [begin := head(field, array.nbytes, size), flat(array)]
                size += len(begin) + array.nbytes
        begin = head(number, size, self._size)
        self._changes += [begin, *parts]
        self._size += len(begin) + size

    def __bool__(self) -> bool:
        return bool(self._changes or self.message.round)

    def __len__(self) -> int:
        """Return the bytes of the changes and of the trainer's state."""
        return self._size + len(self.message.state)

    def own(self) -> None:
        """Copy the arrays that the message still refers to, so that the caller may overwrite the originals."""
        self._changes = [b"".join(self._changes)]

    def parts(self) -> list[Any]:
        """Return the serialized message, in pieces."""
        return [*self._changes, self.message.SerializeToString()]


@functools.lru_cache(1024)  # each step changes the same ones
def _block_change(**fields: Any) -> bytes:
    return pb.BlockChange(**fields).SerializeToString()


class OutgoingRequest:
    """ExchangeRequest to be sent, or only its push or pull when the other part is empty.

    Attributes:
        on_sent: called once, when it is on its way for the first time; not where it goes in chunks.
    """

    def __init__(self, push: OutgoingPush | None = None) -> None:
        self.push, self.pull = push or OutgoingPush(), pb.PullRequest()
        self.on_sent: Callable[[], None] | None = None

    def sent(self) -> None:
        """Note that the request is on its way."""
        call, self.on_sent = self.on_sent, None
        if call is not None:
            call()

    @property
    def pulls(self) -> bool:
        """True if there are rows or blocks to pull, or a round to wait for."""
        return bool(self.pull.rows or self.pull.blocks or self.pull.round)

    def single(self) -> tuple[str, list[Any]]:
        """Return (method, serialized message in pieces): "Push" or "Pull" if a part is empty, otherwise "Exchange"."""
        if not self.push:
            return "Pull", [self.pull.SerializeToString()]
        if not self.pulls:
            return "Push", self.push.parts()
        return "Exchange", self.whole()

    def whole(self) -> list[Any]:
        """Return the serialized ExchangeRequest, in pieces."""
        found: list[Any] = []
        both = ((1, bool(self.push), self.push.parts()), (2, self.pulls, [self.pull.SerializeToString()]))
        for number, there, parts in both:
            if there:
                found += [head(number, sum(map(len, parts)), 0 if not found else None), *parts]
        return found


# ---- incoming requests ----


def check_parts(data: Any) -> None:
    """Raise DecodeError for invalid data, or more than MOST_PARTS fields, before memory is taken for each."""
    if len(data) > 2 * MOST_PARTS:  # no field takes less than two bytes
        for _ in fields(memoryview(data), MOST_PARTS):
            pass


def flat_message(kind: Any, data: Any) -> Any:
    """Parse a message with submessages that have no submessages.

    Raises DecodeError for bad data, or too many submessages.
    """
    data = bytes(data)
    check_parts(data)
    return kind.FromString(data)


class _IncomingChange:
    """RowsChange or BlockChange with arrays that are read in place."""

    __slots__ = ("_message", "change", "ids", "values")

    def __init__(self, kind: Any, data: memoryview, arrays: dict[int, str]):
        self.ids: Any = b""
        self.values: Any = b""
        rest: list[memoryview] = []
        for field in fields(data, MOST_FIELDS):
            name = arrays.get(field.number) if field.kind == BYTES else None
            if name is None:
                rest.append(data[field.begin : field.end])
            else:
                setattr(self, name, field.value)
        self._message = kind.FromString(b"".join(rest))
        self.change = self._message.change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class IncomingPush:
    """PushRequest with arrays that are read in place, and the attributes of the message."""

    def __init__(self, data: memoryview):
        check_parts(data)
        rest: list[Any] = []
        self.rows: list[_IncomingChange] = []
        self.blocks: list[_IncomingChange] = []
        for field in fields(data, MOST_PARTS):
            if field.kind != BYTES or field.number not in _ARRAYS:
                rest.append(data[field.begin : field.end])
            elif field.number == _ROWS:
                self.rows.append(_IncomingChange(pb.RowsChange, field.value, _ARRAYS[_ROWS]))
            else:
                self.blocks.append(_IncomingChange(pb.BlockChange, field.value, _ARRAYS[_BLOCKS]))
        self._message = flat_message(pb.PushRequest, b"".join(rest))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class IncomingExchange:
    """ExchangeRequest with a push that is read in place.

    It has the attributes of the message.
    """

    def __init__(self, data: memoryview):
        parts: dict[int, memoryview] = {}
        for field in fields(data, MOST_FIELDS):
            if field.kind != BYTES or field.number in parts:
                raise DecodeError("expected one push and one pull")
            parts[field.number] = field.value
        self.push = IncomingPush(parts[1]) if 1 in parts else IncomingPush(memoryview(b""))
        self.pull = flat_message(pb.PullRequest, parts.get(2, b""))
        self._parts = {"push": 1 in parts, "pull": 2 in parts}

    def HasField(self, name: str) -> bool:
        """Return whether the request has a part: "push" or "pull"."""
        return self._parts[name]


# ---- incoming replies ----


class BlockValue(NamedTuple):
    """A received block: without bytes when the client has this version already."""

    version: int
    value: Any

    @classmethod
    def read(cls, data: memoryview, end: int) -> "BlockValue":
        """Parse a block of a reply with aligned arrays.

        Args:
            end: offset of the end of `data` in the reply.
        """
        version, value = 0, memoryview(b"")
        for field in fields(data, MOST_FIELDS):
            if field.number == 1 and field.kind == VARINT:
                version = field.value & 0xFFFFFFFFFFFFFFFF
            elif field.number == 2 and field.kind == BYTES:
                value = _aligned(field.value, end - len(data) + field.end)
        return cls(version, value)


class IncomingPullReply:
    """A PullReply; of `data`, which may be overwritten afterwards, nothing is referred to."""

    def __init__(self, data: memoryview):
        own = aligned_copy(data).data.toreadonly()  # where all values begin as one of them would
        self.rows: list[Any] = []
        self.blocks: list[BlockValue] = []
        rest: list[Any] = []
        for field in fields(own, MOST_PARTS):
            if field.kind == BYTES and field.number == 1:
                self.rows.append(_aligned(field.value, field.end))
            elif field.kind == BYTES and field.number == 2:
                self.blocks.append(BlockValue.read(field.value, field.end))
            elif field.number != _PADDING:
                rest.append(own[field.begin : field.end])
        small = pb.PullReply.FromString(b"".join(rest))
        self.rounds, self.server_incarnation = small.rounds, small.server_incarnation
        self.durable, self.counted = small.durable, small.counted


def _aligned(value: memoryview, end: int) -> memoryview:
    """Return a field's value, copied unless it begins at a multiple of the alignment.

    Args:
        end: offset of the end of the value in a reply that begins at such a multiple.
    """
    if (end - len(value)) % aligned_memory.ALIGNMENT:
        return aligned_copy(value).data.toreadonly()
    return value


class IncomingExchangeReply:
    """An ExchangeReply; see IncomingPullReply."""

    def __init__(self, push: Any, pull: IncomingPullReply):
        self.push, self.pull = push, pull

    @classmethod
    def read(cls, data: bytes | memoryview) -> "IncomingExchangeReply":
        """Parse a reply. Raises DecodeError."""
        push, pull = b"", memoryview(b"")
        for field in fields(memoryview(data), MOST_FIELDS):
            if field.number == 1 and field.kind == BYTES:
                push = bytes(field.value)
            elif field.number == 2 and field.kind == BYTES:
                pull = field.value
        return cls(pb.PushReply.FromString(push), IncomingPullReply(pull))
