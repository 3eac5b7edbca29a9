"""Conversion between messages and arrays, and the limits of received messages."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from jfluid import errors
from jfluid.ps_server import ps_pb2 as pb
from jfluid.ps_server import zero_copy
from jfluid.ps_server.dense import ServedBlock
from jfluid.ps_server.errors import TooLargeError
from jfluid.ps_server.ledger import MutationId
from jfluid.ps_server.store import BlockUpdate, Change, RowsUpdate, Store, Wanted
from jfluid.ps_server.zero_copy import head

Array = np.ndarray[Any, Any]

SERVICE = "jfluid.ps.ParameterServer"
# One message; what is larger goes through Stream, in chunks.
LARGEST_MESSAGE = 64 << 20
CHUNK = 16 << 20
_SMALLEST_CHUNK = 1 << 12  # but for the last one
# A request, or a reply, in chunks. Protocol buffers end at 2 GiB.
LARGEST_CALL = (2 << 30) - (1 << 20)
# Beside values: names, lengths, tags.
OVERHEAD = 1 << 16

METHODS = {
    name: (getattr(pb, f"{name}Request"), getattr(pb, f"{name}Reply"))
    for name in (
        "Create",
        "Pull",
        "Push",
        "Exchange",
        "LookUp",
        "Attach",
        "Barrier",
        "Heartbeat",
        "Shrink",
        "Save",
        "Restore",
        "Status",
        "Leave",
        "Recovery",
        "PlanSnapshot",
        "RetainSnapshots",
        "TrainerState",
    )
}

# HTTP/2 frames as large as messages of a step, and no second server silently on the same port.
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE + OVERHEAD),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 1 << 24),
    ("grpc.so_reuseport", 0),
    # A call may wait long for other trainers: each side finds out by pings when the other is
    # there no more.
    ("grpc.http2.max_pings_without_data", 0),
]


def numbers(data: bytes, dtype: str, what: str, count: int | None = None, copy: bool = True) -> Array:
    """Return the array in `data`.

    Raises ServerError when the bytes are not `count` (or any number of) numbers.

    By default it is a copy, which XLA reads in place: kernels are compiled for arrays that may be
    written, and would be compiled anew for others.
    """
    size = np.dtype(dtype).itemsize
    if len(data) % size or count not in (None, len(data) // size):
        expected = f"{count * size} bytes ({count} numbers)" if count is not None else f"a multiple of {size} bytes"
        raise errors.ServerError(f"{what}: expected {expected}, found {len(data)} bytes")
    return zero_copy.aligned_copy(data).view(dtype) if copy else np.frombuffer(data, dtype)


def call_of(caller: pb.Caller) -> MutationId:
    """Return the call's place in its trainer's order. Raises ServerError when it has none."""
    if not caller.incarnation or not caller.sequence:
        raise errors.ServerError(
            "caller: expected trainer, incarnation and sequence; a mutation without these could be applied twice"
        )
    return MutationId(caller.trainer, caller.incarnation, caller.sequence, caller.outstanding)


_CHANGES = {int(change): change for change in Change}


def _change(value: int, what: str) -> Change:
    found = _CHANGES.get(value)
    if found is None:
        raise errors.ServerError(f"{what}: change: expected one of {[c.name for c in Change]}, found {value}")
    return found


def _rate(message: pb.RowsChange | pb.BlockChange, what: str) -> float | None:
    if not message.HasField("learning_rate"):
        return None
    if not math.isfinite(message.learning_rate):
        raise errors.ServerError(f"{what}: learning_rate: expected a finite number, found {message.learning_rate}")
    return message.learning_rate


def updates_of(request: pb.PushRequest, store: Store) -> tuple[list[RowsUpdate], list[BlockUpdate]]:
    """Return the updates of a push, checked against the store, so that an update cannot fail half-way.

    Gradients of blocks stay where the message lies, until its call ends; those that are held, and all
    else, are copies.
    """
    rows, blocks = [], []
    for message in request.rows:
        table, what = store.table(message.table), f"table {message.table}"
        ids, width = numbers(message.ids, "<i8", f"{what}: ids"), table.spec.width
        values = numbers(message.values, "<f4", f"{what}: values [{len(ids)}, {width}]", len(ids) * width)
        rows.append(
            RowsUpdate(
                message.table, _change(message.change, what), ids, values.reshape(len(ids), width), _rate(message, what)
            )
        )
    for change in request.blocks:
        block, what = store.block(change.block), f"block {change.block}"
        kind = _change(change.change, what)
        value = numbers(
            change.values,
            "<f4",
            f"{what}: values {list(block.shape)}",
            math.prod(block.shape),
            copy=kind != Change.GRADIENT or request.hold,
        )
        blocks.append(BlockUpdate(change.block, kind, value.reshape(block.shape), _rate(change, what)))
    store.check(rows, blocks)
    return rows, blocks


def wanted(request: pb.PullRequest, store: Store, limit: int) -> tuple[list[Wanted], list[ServedBlock]]:
    """Return (table, ids, counts) of the rows of a pull, and its blocks.

    Raises UnknownNameError, and TooLargeError when the reply would be larger than `limit` bytes.
    """
    blocks = [store.block(message.block) for message in request.blocks]
    rows, size = [], OVERHEAD + 4 * sum(math.prod(block.shape) for block in blocks)
    for message in request.rows:
        table, what = store.table(message.table), f"table {message.table}"
        ids = numbers(message.ids, "<i8", f"{what}: ids")
        counts = numbers(message.counts, "<u4", f"{what}: counts", len(ids)) if message.counts else None
        rows.append((table, ids, counts))
        size += 4 * len(ids) * table.spec.width
    check_size(size, limit)
    return rows, blocks


class PullReply:
    """A reply to a pull that goes into its message without a copy of the rows on the way (see lifting).

    Attributes:
        rows: of each table that was asked for.
        blocks: (version, value) of each block that was asked for; None for a value that the caller
            knows.
    """

    def __init__(self, rounds: int, server_incarnation: int):
        self.message = pb.PullReply(rounds=rounds, server_incarnation=server_incarnation)
        self.rows: list[Array] = []
        self.blocks: list[tuple[int, Array | None]] = []

    def parts(self) -> list[Any]:
        """Return the serialized PullReply, in pieces."""
        reply = zero_copy.AlignedReply()
        for values in self.rows:
            reply.add(head(1, values.nbytes), values)
        for version, value in self.blocks:
            front = pb.BlockValue(version=version).SerializeToString()
            if value is None:
                reply.add(head(2, len(front)) + front)
            else:
                front += head(2, value.nbytes)
                reply.add(head(2, len(front) + value.nbytes) + front, value)
        return [*reply.parts, self.message.SerializeToString()]


class ExchangeReply:
    """A reply to an exchange; see PullReply."""

    def __init__(self, push: pb.PushReply | None, pull: PullReply):
        self.push, self.pull = push, pull

    def parts(self) -> list[Any]:
        """Return the serialized ExchangeReply, in pieces."""
        parts = self.pull.parts()
        push = pb.ExchangeReply(push=self.push).SerializeToString()
        return [push, head(2, sum(map(len, parts))), *parts]


def check_size(size: int, limit: int, what: str = "reply") -> None:
    """Raise TooLargeError for a message of more than `limit` bytes."""
    if size > limit:
        hint = "ask through Stream" if limit < LARGEST_CALL else "ask for less in one call"
        raise TooLargeError(f"the {what} would have {size} bytes, more than {limit}; {hint}")


def parts_of(reply: Any) -> list[Any]:
    """Return a reply, serialized, in pieces."""
    return reply.parts() if isinstance(reply, (PullReply, ExchangeReply)) else [reply.SerializeToString()]


_ZERO_COPY: dict[Any, Any] = {pb.PushRequest: zero_copy.IncomingPush, pb.ExchangeRequest: zero_copy.IncomingExchange}


# What may be large; all others are names and numbers, and have at most so many bytes.
_LARGE = {pb.CreateRequest, pb.PullRequest, pb.LookUpRequest, pb.Chunk, pb.TrainerState}
LARGEST_OF_NUMBERS = 1 << 16


def parsed(kind: type[Message], data: bytes | memoryview) -> Any:
    """Return the message in `data`; arrays of a push stay in place, and may be read only once.

    Raises ServerError when there is none, or one of more parts than a job has, which would take far
    more memory than bytes.
    """
    try:
        if kind in _ZERO_COPY:
            return _ZERO_COPY[kind](memoryview(data))
        if kind not in _LARGE and len(data) > LARGEST_OF_NUMBERS:
            raise DecodeError(f"more than {LARGEST_OF_NUMBERS} bytes")
        return zero_copy.flat_message(kind, data)
    except DecodeError as error:
        raise errors.ServerError(
            f"expected a {kind.DESCRIPTOR.name}; these {len(data)} bytes are none: {error}"
        ) from None


def joined(chunks: Iterable[bytes]) -> bytes:
    """Return the message that came in chunks.

    Raises TooLargeError or ServerError when the sizes are not as announced.
    """
    parts, size, total = [], 0, None
    for data in chunks:
        chunk = parsed(pb.Chunk, data)
        if total is None:
            total = chunk.total
            if total > LARGEST_CALL:
                raise TooLargeError(f"a message of {total} bytes was announced; the limit is {LARGEST_CALL}")
        parts.append(chunk.data)
        size += len(chunk.data)
        if size > total or (len(chunk.data) < _SMALLEST_CHUNK and size != total):
            break  # more than announced; or chunks so small that they might never end
    if size != total:
        raise errors.ServerError(f"chunks: expected {total} bytes together, found {size}")
    return b"".join(parts)


def chunked(data: bytes) -> Iterator[bytes]:
    """Return the chunks of a serialized message."""
    for begin in range(0, max(len(data), 1), CHUNK):
        total = len(data) if begin == 0 else 0
        yield pb.Chunk(total=total, data=data[begin : begin + CHUNK]).SerializeToString()
