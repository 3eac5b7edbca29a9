"""The loss of a step, sent before the step has ended.

A training script waits for the loss of each step. XLA has it after the forward pass, and gives it with all
other results when the parameters are updated. So a step on a CPU sends it through a socket
before it goes back, and the script goes on: it copies the next batch meanwhile.
"""

import functools
import itertools
import os
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import jax
import numpy as np
from jax import Array, lax

from jfluid.compile.fetched_array import FetchedArray, fetched
from jfluid.compile.plan import Item
from jfluid.dygraph.values import Aval

_NUMBER, _BYTES = 4, 8  # of a message: its number; with the loss behind it
_TAKEN = 16  # after so many steps what nobody has waited for is taken, as there is room for some hundred
_OPEN = 512  # of the latest messages are known
_LOOK = 50  # milliseconds, after which a step that is waited for may have failed


class Message:
    """What a step sends.

    Attributes:
        to: what the step is given: the socket, and the number of the message.
        number: of the message.
        body: what has come: the number and the loss; None before.
    """

    __slots__ = ("__weakref__", "body", "number", "to")

    def __init__(self, file: int, number: int):
        self.to = np.array([file, number], np.int32)
        self.number = number
        self.body: bytes | None = None

    def read(self, result: Any, shape: tuple[int, ...]) -> FetchedArray:
        """Wait for the loss, and return it.

        Args:
            result: the loss among what the step gives.
            shape: of the loss.
        """
        if self.body is None:
            _inbox().wait(self, result)
        if self.body is None:
            return fetched(result)  # or the step's error
        return FetchedArray(shape, np.float32, bytearray(self.body[_NUMBER:]))


def sender(items: Sequence[Item], results: Mapping[str, Aval], device: jax.Device) -> int | None:
    """Return which of a step's operators begins the backward pass from a loss that the step gives, and can
    send it; None where there is none.

    Args:
        items: the step's operators.
        results: by name.
    """
    if device.platform != "cpu":
        return None
    for i, (_, op, _) in enumerate(items):
        # of the loss's own type, which -1 stands for: so backward passes begin
        if op.type == "fill_any_like" and (op.attrs.get("value"), op.attrs.get("dtype")) == (
            1.0,
            -1,
        ):
            aval = results.get(op.inputs["X"][0])
            if aval is not None and aval.plain and aval.bytes == 4 and aval.dtype == np.float32:
                from jfluid.machine_code import functions  # LLVM, which few programs need

                return i if functions.messages_registered() else None
    return None


def sending(items: Sequence[Item], at: int, to: Array) -> list[Item]:
    """Return the operators of a step that is traced, of which one sends the loss.

    Args:
        at: which, as `sender` says.
        to: see `Message`.
    """
    number, op, definition = items[at]
    send = functools.partial(_send, to)
    return [*items[:at], (number, op, replace(definition, fn=send)), *items[at + 1 :]]


def _send(to: Array, loss: Array, **_: Any) -> Array:
    """The gradient of the loss, one.

    The gradients of all else wait for it, so that XLA sends the loss before it computes them.
    """
    from jfluid.machine_code import calls  # as above
    from jfluid.machine_code.message_kernels import HEADER, NAME

    bits = lax.bitcast_convert_type(loss.reshape(-1), np.int32)
    message = lax.concatenate([to[1:], bits], 0)
    numbers = {"chunks": 1, "memory": HEADER + _BYTES // 4, "bytes": _BYTES}
    return calls.call(NAME, (message, to), numbers, [(loss.shape, np.float32)])[0]


def expected() -> Message:
    """Return the message of a step that is about to run."""
    return _inbox().expected()


@functools.cache
def _inbox() -> "_Inbox":
    return _Inbox()


class _Inbox:
    """The socket of this process that its steps send to. It stays open: steps may run to the very end."""

    def __init__(self) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            end.setblocking(False)  # what there is no room for is not sent
        self._theirs, self._mine = (end.detach() for end in ends)
        self._poll = select.poll()
        self._poll.register(self._mine, select.POLLIN)
        self._numbers = itertools.cycle(range(1 << 31))
        self._open: list[ref[Message] | None] = [None] * _OPEN  # those that are held, by number

    def expected(self) -> Message:
        number = next(self._numbers)
        if number % _TAKEN == 0:
            while self._take():
                pass
        made = Message(self._theirs, number)
        self._open[number % _OPEN] = ref(made)
        return made

    def wait(self, message: Message, result: Any) -> None:
        """Return when a message has come, or the step has ended without it."""
        while message.body is None:
            if self._poll.poll(_LOOK):
                self._take()
            elif result.is_ready():
                break

    def _take(self) -> bool:
        """Take a message, if one has come."""
        try:
            body = os.read(self._mine, _BYTES)
        except BlockingIOError:
            return False
        number = int.from_bytes(body[:_NUMBER], "little")
        held = self._open[number % _OPEN]
        message = None if held is None else held()
        if message is not None and message.number == number:
            message.body = body
        return True
