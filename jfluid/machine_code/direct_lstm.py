"""LSTMs over sequences, and their gradients, by machine code of our own (`lstm_kernels.py`)."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.machine_code import direct_loops, lstm_kernels
from jfluid.machine_code.direct_loops import Panels, Sizes
from jfluid.ops.ragged import Level


class _Settings(NamedTuple):
    """Whether sequences are run from their ends; activations of gates, cell and candidate; rows from a row
    to the next of its sequence.
    """

    backwards: bool
    acts: tuple[str, str, str]
    stride: int

    def numbers(self, sizes: Sizes, panels: Panels) -> Any:
        kinds = zip(("gate", "cell", "candidate"), map(direct_loops.kind, self.acts))
        others = {
            "stride": self.stride,
            "pitch": panels.pitch,
            "panel": panels.panel,
            **dict(kinds),
        }
        return sizes.numbers(lstm_kernels.GEOMETRY, lstm_kernels.MEMORY, self.backwards, others)


def suits(x: Array, weight: Array, bias: Array, h0: Array, c0: Array) -> bool:
    """Return whether an LSTM should be computed here.

    Args:
        x: [rows, 4 width].
        weight: [width, 4 width].
        bias: [7 width].
        h0, c0: [number, width].
    """
    return direct_loops.suits(weight.shape[0], x, weight, bias, h0, c0)


def over_sequences(
    x: Array,
    level: Level,
    weight: Array,
    bias: Array,
    h0: Array,
    c0: Array,
    backwards: bool,
    acts: tuple[str, str, str],
    time_major: bool = False,
) -> tuple[Array, Array]:
    """Return hidden states and cells, [rows, width], of rows that `level` groups; the arguments are
    those of `suits`, with the peepholes of input, forget and output behind the biases. Rows
    of padding are copies of some row. `time_major` is that of `SequenceLoops.lstm`.
    """
    places = direct_loops.places(level, time_major)
    settings = _Settings(backwards, acts, level.number if time_major else 1)
    return _over_places(settings, x, weight, bias, h0, c0, places)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_places(
    settings: _Settings,
    x: Array,
    weight: Array,
    bias: Array,
    h0: Array,
    c0: Array,
    places: Array,
) -> tuple[Array, Array]:
    return _kept(settings, x, weight, bias, h0, c0, places)[0]


def _kept(
    settings: _Settings,
    x: Array,
    weight: Array,
    bias: Array,
    h0: Array,
    c0: Array,
    places: Array,
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    forward = direct_loops.mapped(_forward, settings, 2)
    hidden, cells, gates = forward(weight, bias, x, h0, c0, places)
    return (hidden, cells), (weight, bias, h0, c0, places, hidden, cells, gates)


def _gradients(
    settings: _Settings, kept: tuple[Array, ...], grads: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    weight, bias, h0, c0, places, hidden, cells, gates = kept
    backward = direct_loops.mapped(_backward, settings, 2)
    arrays = (gates, cells, hidden, h0, c0, *grads, places)
    grad_x, before, sums, grad_h0, grad_c0 = backward(weight, bias, *arrays)
    grad_weight = direct_loops.over_rows(before, grad_x)
    return grad_x, grad_weight, jnp.sum(sums, 0), grad_h0, grad_c0, None


_over_places.defvjp(_kept, _gradients)


def _forward(
    settings: _Settings,
    weight: Array,
    bias: Array,
    x: Array,
    h0: Array,
    c0: Array,
    places: Array,
) -> Sequence[Array]:
    """Hidden states, cells and gates of rows, or of batches of rows that share weights."""
    sizes, panels = Sizes.of(x, h0), Panels.of(weight)
    shapes = [sizes.of_rows(n) for n in (1, 1, 4)]
    arrays = (x, panels.array, bias, h0, c0, places)
    return direct_loops.call(lstm_kernels.FORWARD, shapes, *arrays, settings.numbers(sizes, panels))


def _backward(settings: _Settings, weight: Array, bias: Array, *others: Array) -> Sequence[Array]:
    """Gradients of x, hidden states before each row, sums of the bias's gradients, [groups, 7 width] of
    each batch, gradients of h0 and c0.
    """
    gates, cells, hidden, h0, c0, grad_hidden, grad_cells, places = others
    sizes, panels = Sizes.of(gates, h0), Panels.of(weight.T)
    shapes = [sizes.of_rows(4), sizes.of_rows(1), sizes.of_sums(7), *[sizes.of_sequences()] * 2]
    arrays = (gates, cells, hidden, panels.array, bias, h0, c0, grad_hidden, grad_cells, places)
    grad_x, before, sums, *starts = direct_loops.call(
        lstm_kernels.BACKWARD, shapes, *arrays, settings.numbers(sizes, panels)
    )
    return [grad_x, before, jnp.moveaxis(sums, 0, -2), *starts]
