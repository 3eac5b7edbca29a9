"""GRUs over sequences, and their gradients, by machine code of our own (`gru_kernels.py`)."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.machine_code import direct_loops, gru_kernels
from jfluid.machine_code.direct_loops import Panels, Sizes
from jfluid.ops.ragged import Level


class _Settings(NamedTuple):
    """Whether sequences are run from their ends; whether the update gate keeps the old state;
    activations of gates and candidate.
    """

    backwards: bool
    origin: bool
    acts: tuple[str, str]

    def numbers(self, sizes: Sizes, gates: Panels, candidate: Panels) -> Any:
        others = {
            "pitch": gates.pitch,
            "panel": gates.panel,
            "candidate_pitch": candidate.pitch,
            "candidate_panel": candidate.panel,
            "origin": int(self.origin),
            **dict(zip(("gate", "candidate"), map(direct_loops.kind, self.acts))),
        }
        return sizes.numbers(gru_kernels.GEOMETRY, gru_kernels.MEMORY, self.backwards, others)


def suits(x: Array, to_gates: Array, to_candidate: Array, bias: Array, h0: Array) -> bool:
    """Return whether a GRU should be computed here.

    Args:
        x: [rows, 3 width].
        to_gates: [width, 2 width].
        to_candidate: [width, width].
        bias: [3 width].
        h0: [number, width].
    """
    return direct_loops.suits(h0.shape[1], x, to_gates, to_candidate, bias, h0)


def over_sequences(
    x: Array,
    level: Level,
    to_gates: Array,
    to_candidate: Array,
    bias: Array,
    h0: Array,
    backwards: bool,
    origin: bool,
    acts: tuple[str, str],
) -> Array:
    """Return hidden states [rows, width] of rows that `level` groups; the arrays are those of `suits`.
    Rows of padding are copies of some row.
    """
    settings = _Settings(backwards, origin, acts)
    places = direct_loops.places(level)
    return _over_places(settings, x, to_gates, to_candidate, bias, h0, places)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_places(
    settings: _Settings,
    x: Array,
    to_gates: Array,
    to_candidate: Array,
    bias: Array,
    h0: Array,
    places: Array,
) -> Array:
    return _kept(settings, x, to_gates, to_candidate, bias, h0, places)[0]


def _kept(
    settings: _Settings,
    x: Array,
    to_gates: Array,
    to_candidate: Array,
    bias: Array,
    h0: Array,
    places: Array,
) -> tuple[Array, tuple[Array, ...]]:
    forward = direct_loops.mapped(_forward, settings, 3)
    hidden, gates = forward(to_gates, to_candidate, bias, x, h0, places)
    return hidden, (to_gates, to_candidate, h0, places, hidden, gates)


def _gradients(
    settings: _Settings, kept: tuple[Array, ...], grad: Array
) -> tuple[Array | None, ...]:
    to_gates, to_candidate, h0, places, hidden, gates = kept
    backward = direct_loops.mapped(_backward, settings, 2)
    found = backward(to_gates, to_candidate, gates, hidden, h0, grad, places)
    grad_x, grad_gates, grad_candidates, before, reset, sums, grad_h0 = found
    weights = (before, grad_gates), (reset, grad_candidates)
    products = (direct_loops.over_rows(*pair) for pair in weights)
    return grad_x, *products, jnp.sum(sums, 0), grad_h0, None


_over_places.defvjp(_kept, _gradients)


def _forward(
    settings: _Settings,
    to_gates: Array,
    to_candidate: Array,
    bias: Array,
    x: Array,
    h0: Array,
    places: Array,
) -> Sequence[Array]:
    """Hidden states, and gates with candidates, of rows, or of batches of rows that share weights."""
    sizes, panels = Sizes.of(x, h0), (Panels.of(to_gates), Panels.of(to_candidate))
    arrays = (x, *(p.array for p in panels), bias, h0, places, settings.numbers(sizes, *panels))
    return direct_loops.call(gru_kernels.FORWARD, [sizes.of_rows(n) for n in (1, 3)], *arrays)


def _backward(
    settings: _Settings, to_gates: Array, to_candidate: Array, *others: Array
) -> Sequence[Array]:
    """Gradients of x, of its gates and of its candidates, states before each row, these as they were
    reset, sums of the bias's gradients, [groups, 3 width] of each batch, the gradient of h0.
    """
    gates, hidden, h0, grad, places = others
    sizes, panels = Sizes.of(gates, h0), (Panels.of(to_gates.T), Panels.of(to_candidate.T))
    shapes = [*(sizes.of_rows(n) for n in (3, 2, 1, 1, 1)), sizes.of_sums(3), sizes.of_sequences()]
    arrays = (gates, hidden, *(p.array for p in panels), h0, grad, places)
    numbers = settings.numbers(sizes, *panels)
    *rows, sums, grad_h0 = direct_loops.call(gru_kernels.BACKWARD, shapes, *arrays, numbers)
    return [*rows, jnp.moveaxis(sums, 0, -2), grad_h0]
