"""Protobuf messages whose arrays are hardly copied: received ones once, to where XLA reads them in
place, and sent ones are written once.

Protobuf copies every bytes field when a message is made or parsed, and once more when it is
serialized or read. Messages of a step hold megabytes in few fields: these are encoded and decoded
here, and protobuf gets the rest. Concatenated serialized messages are one message, so both can
write fields of the same one.

What is parsed may lie in memory that the sender can still change: everything is read from there once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from jfluid.protobuf_fields import BYTES, VARINT, fields
from jfluid.ps_server import ps_pb2 as pb

# Limits of a message: tables and blocks, and other fields. Protobuf takes a hundred bytes for a
# submessage of two.
MOST_PARTS, MOST_FIELDS = 1 << 14, 64
_IDS, _VALUES_OF_ROWS, _VALUES_OF_BLOCK = 3, 4, 3
_ALIGNMENT = 64  # bytes


def head(number: int, size: int, at: int | None = None) -> bytes:
    """Return the tag and length that precede the `size` bytes of a bytes field.

    Args:
        at: where they will stand in a message, in whose memory the bytes are to begin at a multiple of
            4: the tag is written longer than it needs to be.
    """
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    tag = number << 3 | BYTES
    spare = -(at + 1 + len(length)) % 4 if at is not None else 0
    return bytes([tag | 128, *[128] * (spare - 1), 0] if spare else [tag]) + length


def flat(values: np.ndarray[Any, Any]) -> Any:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def aligned_copy(data: Any) -> np.ndarray[Any, Any]:
    """Return a copy of bytes, uint8 [n], at an address at which XLA on the CPU takes an array as it
    is; one that begins elsewhere it copies first.
    """
    size = len(data)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    found = memory[begin : begin + size]
    found[:] = np.frombuffer(data, np.uint8)
    return found


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

    def add_rows(
        self, ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any], **fields: Any
    ) -> None:
        """Add a RowsChange with these fields."""
        self._add(3, pb.RowsChange(**fields), (_IDS, ids), (_VALUES_OF_ROWS, values))

    def add_block(self, values: np.ndarray[Any, Any], **fields: Any) -> None:
        """Add a BlockChange with these fields."""
        self._add(4, pb.BlockChange(**fields), (_VALUES_OF_BLOCK, values))

    def _add(self, number: int, change: Any, *arrays: tuple[int, np.ndarray[Any, Any]]) -> None:
        parts = [change.SerializeToString()]
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
        """Bytes of its changes, and of the trainer's state."""
        return self._size + len(self.message.state)

    def own(self) -> None:
        """Copy the arrays that the message still refers to, so that they may be overwritten."""
        self._changes = [b"".join(self._changes)]

    def parts(self) -> list[Any]:
        """Return the serialized message, in pieces."""
        return [*self._changes, self.message.SerializeToString()]


class OutgoingRequest:
    """An ExchangeRequest to be sent, or only one of its two parts when the other is empty.

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
        """Whether there is something to pull, or a round to wait for."""
        return bool(self.pull.rows or self.pull.blocks or self.pull.round)

    def single(self) -> tuple[str, list[Any]]:
        """Return (method, serialized message in pieces): "Push" or "Pull" when the other part is
        empty, else "Exchange".
        """
        if not self.push:
            return "Pull", [self.pull.SerializeToString()]
        if not self.pulls:
            return "Push", self.push.parts()
        return "Exchange", self.whole()

    def whole(self) -> list[Any]:
        """Return the serialized ExchangeRequest, in pieces."""
        found: list[Any] = []
        both = (
            (1, bool(self.push), self.push.parts()),
            (2, self.pulls, [self.pull.SerializeToString()]),
        )
        for number, there, parts in both:
            if there:
                found += [head(number, sum(map(len, parts)), 0 if not found else None), *parts]
        return found


# ---- incoming requests ----


def flat_message(kind: Any, data: Any) -> Any:
    """Parse a message whose submessages have none themselves. Raises DecodeError for bad data, or
    too many submessages.
    """
    data = bytes(data)
    if len(data) > 2 * MOST_PARTS:  # none takes less than two bytes
        for _ in fields(memoryview(data), MOST_PARTS):
            pass
    return kind.FromString(data)


class _IncomingChange:
    """A RowsChange or BlockChange whose arrays are read in place."""

    def __init__(self, message: Any, ids: Any, values: Any):
        self._message, self.ids, self.values = message, ids, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class IncomingPush:
    """A PushRequest whose arrays are read in place. It has the attributes of the message."""

    def __init__(self, data: memoryview):
        rest: list[Any] = []
        rows: list[dict[int, Any]] = []
        blocks: list[dict[int, Any]] = []
        for field in fields(data, MOST_PARTS):
            lifts = (
                {3: (_IDS, _VALUES_OF_ROWS), 4: (_VALUES_OF_BLOCK,)}.get(field.number)
                if field.kind == BYTES
                else None
            )
            if lifts is None:
                rest.append(data[field.begin : field.end])
                continue
            left, lifted = _lift(field.value, lifts)
            rest += [head(field.number, len(left)), left]
            (rows if field.number == 3 else blocks).append(lifted)
        self._message = flat_message(pb.PushRequest, b"".join(rest))
        self.rows = [
            _IncomingChange(m, f.get(_IDS, b""), f.get(_VALUES_OF_ROWS, b""))
            for m, f in zip(self._message.rows, rows, strict=True)
        ]
        self.blocks = [
            _IncomingChange(m, b"", f.get(_VALUES_OF_BLOCK, b""))
            for m, f in zip(self._message.blocks, blocks, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def _lift(data: memoryview, numbers: tuple[int, ...]) -> tuple[bytes, dict[int, Any]]:
    """(a message without some of its bytes fields, these fields by number)."""
    found, rest = {}, []
    for field in fields(data, MOST_FIELDS):
        if field.number in numbers and field.kind == BYTES:
            found[field.number] = field.value
        else:
            rest.append(data[field.begin : field.end])
    return b"".join(rest), found


class IncomingExchange:
    """An ExchangeRequest whose pushed arrays are read in place. It has the attributes of the
    message.
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


def _own(data: Any) -> memoryview:
    return aligned_copy(data).data.toreadonly()


class IncomingPullReply:
    """A PullReply; of `data`, which may be overwritten afterwards, nothing is referred to."""

    def __init__(self, data: memoryview):
        self.rows: list[Any] = []
        self.blocks: list[BlockValue] = []
        rest = []
        for field in fields(data, MOST_PARTS):
            if field.number == 1 and field.kind == BYTES:
                self.rows.append(_own(field.value))
            elif field.number == 2 and field.kind == BYTES:
                inner = {
                    f.number: f.value
                    for f in fields(field.value, MOST_FIELDS)
                    if f.kind == (VARINT if f.number == 1 else BYTES)
                }
                self.blocks.append(BlockValue(inner.get(1, 0), _own(inner.get(2, b""))))
            else:
                rest.append(data[field.begin : field.end])
        small = pb.PullReply.FromString(b"".join(rest))
        self.rounds, self.server_incarnation = small.rounds, small.server_incarnation
        self.durable, self.counted = small.durable, small.counted


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
