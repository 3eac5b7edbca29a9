"""Device-specific loops over sequences, in place of XLA's, provided by the compiler."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from jax import Array

from jfluid.ops.ragged import Level


class LstmArrays(NamedTuple):
    """Arrays of an LSTM beside its input rows [rows, 4 width] (candidate, input, forget, output).

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
    """Configuration of an LSTM loop.

    Attributes:
        acts: activations of gates, cell and candidate.
        backwards: True to begin at the ends of sequences.
        time_major: True if all sequences have one length and the rows are ordered by time step, not by
            sequence.
    """

    acts: tuple[str, str, str]
    backwards: bool = False
    time_major: bool = False


class GruArrays(NamedTuple):
    """Arrays of a GRU beside its input rows [rows, 3 width] (update, reset, candidate).

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
    """Configuration of a GRU loop.

    Attributes:
        acts: activations of gates and candidate.
        backwards: True to begin at the ends of sequences.
        origin: True if the update gate weighs the old state, False if it weighs the new state.
    """

    acts: tuple[str, str]
    backwards: bool = False
    origin: bool = False


class SequenceLoops(Protocol):
    """Interface of loops over the ragged rows of sequences, grouped by `level`.

    A method returns None for arrays that it does not support.
    """

    def lstm(self, x: Array, level: Level, arrays: LstmArrays, form: LstmForm) -> tuple[Array, Array] | None:
        """Return hidden states and cells [rows, width]."""

    def gru(self, x: Array, level: Level, arrays: GruArrays, form: GruForm) -> Array | None:
        """Return hidden states [rows, width]."""


class XlaLoops:
    """None of these: XLA runs all."""

    def lstm(self, *arguments: object) -> None:
        return None

    def gru(self, *arguments: object) -> None:
        return None


_NONE = XlaLoops()
_current: contextvars.ContextVar[SequenceLoops] = contextvars.ContextVar("sequence_loops", default=_NONE)


@contextlib.contextmanager
def using(loops: SequenceLoops) -> Iterator[None]:
    """Trace operators in this context with `loops` for the arrays that it supports."""
    token = _current.set(loops)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> SequenceLoops:
    """Return the loops to ask before XLA's are made."""
    return _current.get()
