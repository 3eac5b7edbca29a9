"""Messages whose arrays are not copied: their bytes are read where they arrived, and written once.

Protocol buffers copy every field of bytes when a message is made or parsed, and once more when it is serialized or read.
Messages of a step hold megabytes in few fields: those are lifted out, and protobuf gets what is left. Serialized messages that
stand one after the other are one message, so that fields may come from either hand.
"""
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from jfluid.protobuf_fields import BYTES, VARINT, fields
from jfluid.ps_server import ps_pb2 as pb

# Of a message: tables and blocks, and what else a message has. Protocol buffers take a hundred bytes for a part of two.
MOST_PARTS, MOST_FIELDS = 1 << 14, 64
_IDS, _VALUES_OF_ROWS, _VALUES_OF_BLOCK = 3, 4, 3


def head(number: int, size: int) -> bytes:
    """What stands before `size` bytes of a field of bytes."""
    start = bytearray([number << 3 | BYTES])
    while size > 127:
        start.append(size & 127 | 128)
        size >>= 7
    start.append(size)
    return bytes(start)


def flat(values: np.ndarray[Any, Any]) -> Any:
    """The bytes of an array, where they are if they stand in a row."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


# ---- requests on their way out ----

class OutgoingPush:
    """A PushRequest on its way out.

    Attributes:
        message: all but its rows and blocks.
    """

    def __init__(self) -> None:
        self.message = pb.PushRequest()
        self._changes: list[Any] = []

    def add_rows(self, ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any], **fields: Any) -> None:
        """A RowsChange of these fields."""
        self._add(3, pb.RowsChange(**fields), (_IDS, ids), (_VALUES_OF_ROWS, values))

    def add_block(self, values: np.ndarray[Any, Any], **fields: Any) -> None:
        """A BlockChange of these fields."""
        self._add(4, pb.BlockChange(**fields), (_VALUES_OF_BLOCK, values))

    def _add(self, number: int, change: Any, *arrays: tuple[int, np.ndarray[Any, Any]]) -> None:
        parts = [change.SerializeToString()]
        for field, array in arrays:
            if array.size:
                parts += [head(field, array.nbytes), flat(array)]
        self._changes += [head(number, sum(map(len, parts))), *parts]

    def __bool__(self) -> bool:
        return bool(self._changes or self.message.round)

    def __len__(self) -> int:
        """Bytes of its changes, and of the trainer's state."""
        return sum(map(len, self._changes)) + len(self.message.state)

    def own(self) -> None:
        """Copy what still lies in arrays, which may be written to from now on."""
        self._changes = [b"".join(self._changes)]

    def parts(self) -> list[Any]:
        """The serialized message, in pieces."""
        return [*self._changes, self.message.SerializeToString()]


class OutgoingRequest:
    """An ExchangeRequest, or one of its two parts if the other is empty, on its way out."""

    def __init__(self, push: OutgoingPush | None = None) -> None:
        self.push, self.pull = push or OutgoingPush(), pb.PullRequest()

    @property
    def pulls(self) -> bool:
        """Whether there is something to pull, or a round to wait for."""
        return bool(self.pull.rows or self.pull.blocks or self.pull.round)

    def single(self) -> tuple[str, list[Any]]:
        """The call that it is, and its serialized message in pieces: "Push" or "Pull" where that is all."""
        if not self.push:
            return "Pull", [self.pull.SerializeToString()]
        if not self.pulls:
            return "Push", self.push.parts()
        return "Exchange", self.whole()

    def whole(self) -> list[Any]:
        """The serialized ExchangeRequest, in pieces."""
        found: list[Any] = []
        both = (1, bool(self.push), self.push.parts()), (2, self.pulls, [self.pull.SerializeToString()])
        for number, there, parts in both:
            if there:
                found += [head(number, sum(map(len, parts))), *parts]
        return found


# ---- requests that came ----

def flat_message(kind: Any, data: Any) -> Any:
    """A message of parts that have no parts themselves. Raises DecodeError where it is none, or has too many."""
    for _ in fields(memoryview(data), MOST_PARTS):
        pass
    return kind.FromString(bytes(data))


class _IncomingChange:
    """A RowsChange or BlockChange whose arrays stayed where they were."""

    def __init__(self, message: Any, ids: Any, values: Any):
        self._message, self.ids, self.values = message, ids, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class IncomingPush:
    """A PushRequest whose arrays stayed where they were; read as the message is."""

    def __init__(self, data: memoryview):
        rest: list[Any] = []
        rows: list[dict[int, Any]] = []
        blocks: list[dict[int, Any]] = []
        for field in fields(data, MOST_PARTS):
            lifts = {3: (_IDS, _VALUES_OF_ROWS), 4: (_VALUES_OF_BLOCK,)}.get(field.number) if field.kind == BYTES else None
            if lifts is None:
                rest.append(data[field.begin:field.end])
                continue
            left, lifted = _lift(field.value, lifts)
            rest += [head(field.number, len(left)), left]
            (rows if field.number == 3 else blocks).append(lifted)
        self._message = pb.PushRequest.FromString(b"".join(rest))
        self.rows = [_IncomingChange(m, f.get(_IDS, b""), f.get(_VALUES_OF_ROWS, b""))
                     for m, f in zip(self._message.rows, rows, strict=True)]
        self.blocks = [_IncomingChange(m, b"", f.get(_VALUES_OF_BLOCK, b""))
                       for m, f in zip(self._message.blocks, blocks, strict=True)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def _lift(data: memoryview, numbers: tuple[int, ...]) -> tuple[bytes, dict[int, Any]]:
    """A message without some of its fields of bytes, and those by number."""
    found, rest = {}, []
    for field in fields(data, MOST_FIELDS):
        if field.number in numbers and field.kind == BYTES:
            found[field.number] = field.value
        else:
            rest.append(data[field.begin:field.end])
    return b"".join(rest), found


class IncomingExchange:
    """An ExchangeRequest whose pushed arrays stayed where they were; read as the message is."""

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
        """Whether the request has a part: "push" or "pull"."""
        return self._parts[name]


# ---- replies that came ----

class BlockValue(NamedTuple):
    """A block as it came: no bytes where the version is known already."""

    version: int
    value: Any


class IncomingPullReply:
    """A PullReply whose arrays stay where they arrived."""

    def __init__(self, data: memoryview):
        self.rows: list[Any] = []
        self.blocks: list[BlockValue] = []
        rest = []
        for field in fields(data, MOST_PARTS):
            if field.number == 1 and field.kind == BYTES:
                self.rows.append(field.value)
            elif field.number == 2 and field.kind == BYTES:
                inner = {f.number: f.value for f in fields(field.value, MOST_FIELDS)
                         if f.kind == (VARINT if f.number == 1 else BYTES)}
                self.blocks.append(BlockValue(inner.get(1, 0), inner.get(2, b"")))
            else:
                rest.append(data[field.begin:field.end])
        small = pb.PullReply.FromString(b"".join(rest))
        self.rounds, self.server_incarnation = small.rounds, small.server_incarnation
        self.durable, self.counted = small.durable, small.counted


class IncomingExchangeReply:
    """An ExchangeReply whose arrays stay where they arrived."""

    def __init__(self, push: Any, pull: IncomingPullReply):
        self.push, self.pull = push, pull

    @classmethod
    def read(cls, data: bytes) -> "IncomingExchangeReply":
        """The reply in `data`. Raises DecodeError where it is none."""
        push, pull = b"", memoryview(b"")
        for field in fields(memoryview(data), MOST_FIELDS):
            if field.number == 1 and field.kind == BYTES:
                push = bytes(field.value)
            elif field.number == 2 and field.kind == BYTES:
                pull = field.value
        return cls(pb.PushReply.FromString(push), IncomingPullReply(pull))
