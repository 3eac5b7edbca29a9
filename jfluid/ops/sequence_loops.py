"""Other ways to run loops over sequences than XLA's: those that the compiler has for a device."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from jax import Array

from jfluid.ops.ragged import Level


class LstmArrays(NamedTuple):
    """The arrays of an LSTM over sequences beside its input, rows [rows, 4 width] for candidate, input, forget, output.

    Attributes:
        weight: [width, 4 width].
        bias: [7 width], the last of them the peepholes of input, forget, output.
        h0, c0: [number, width].
    """

    weight: Array
    bias: Array
    h0: Array
    c0: Array


class LstmForm(NamedTuple):
    """How an LSTM runs.

    Attributes:
        acts: activations of gates, cell and candidate.
        backwards: whether it begins at the ends of sequences.
        time_major: whether the rows of a step of all sequences, which are of one length, follow
            each other, in place of the rows of a sequence.
    """

    acts: tuple[str, str, str]
    backwards: bool = False
    time_major: bool = False


class GruArrays(NamedTuple):
    """The arrays of a GRU over sequences beside its input, rows [rows, 3 width] for update, reset, candidate.

    Attributes:
        to_gates: [width, 2 width].
        to_candidate: [width, width].
        bias: [3 width].
        h0: [number, width].
    """

    to_gates: Array
    to_candidate: Array
    bias: Array
    h0: Array


class GruForm(NamedTuple):
    """How a GRU runs.

    Attributes:
        acts: activations of gates and candidate.
        backwards: whether it begins at the ends of sequences.
        origin: whether the update gate says what stays of the state, and not what is new.
    """

    acts: tuple[str, str]
    backwards: bool = False
    origin: bool = False


class SequenceLoops(Protocol):
    """Loops over the rows of sequences where they lie, which `level` groups.

    Each gives None for arrays that it is not made for.
    """

    def lstm(self, x: Array, level: Level, arrays: LstmArrays, form: LstmForm) -> tuple[Array, Array] | None:
        """Return hidden states and cells [rows, width]."""

    def gru(self, x: Array, level: Level, arrays: GruArrays, form: GruForm) -> Array | None:
        """Return hidden states [rows, width]."""

    def maximum(self, x: Array, level: Level) -> tuple[Array, Array] | None:
        """Return the largest number of each column of each sequence and int32 its row, the first of
        several, [number, columns]; any number and -1 of a sequence without rows.

        Args:
            x: [rows, columns].
            level: groups the rows.
        """


class XlaLoops:
    """None of these: XLA runs all."""

    def lstm(self, *arguments: object) -> None:
        return None

    def gru(self, *arguments: object) -> None:
        return None

    def maximum(self, *arguments: object) -> None:
        return None


_NONE = XlaLoops()
_current: contextvars.ContextVar[SequenceLoops] = contextvars.ContextVar("sequence_loops", default=_NONE)


@contextlib.contextmanager
def using(loops: SequenceLoops) -> Iterator[None]:
    """A context in which operators are traced with these loops where they are made for."""
    token = _current.set(loops)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> SequenceLoops:
    """Return the loops to ask before XLA's are made."""
    return _current.get()
