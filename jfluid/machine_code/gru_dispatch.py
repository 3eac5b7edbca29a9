"""Dispatch of GRUs over sequences, and their gradients, to LLVM kernels (`gru_kernels.py`)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.machine_code import gru_kernels, sequence_dispatch
from jfluid.machine_code.sequence_dispatch import LoopSizes, Panels
from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import GruArrays, GruForm


def _numbers(form: GruForm, sizes: LoopSizes, gates: Panels, candidate: Panels) -> dict[str, int]:
    others = {
        "pitch": gates.pitch,
        "panel": gates.panel,
        "candidate_pitch": candidate.pitch,
        "candidate_panel": candidate.panel,
        "origin": int(form.origin),
        **dict(zip(("gate", "candidate"), map(sequence_dispatch.kind, form.acts))),
    }
    return sizes.numbers(gru_kernels.MEMORY, form.backwards, others)


def suits(x: Array, arrays: GruArrays) -> bool:
    """Return True if a GRU over rows should run here."""
    return sequence_dispatch.suits("gru", arrays.h0.shape[1], x, *arrays)


def over_sequences(x: Array, level: Level, arrays: GruArrays, form: GruForm) -> Array:
    """Return hidden states [rows, width]. Padding rows copy a row."""
    return _over_places(form, x, arrays, sequence_dispatch.places(level, x.shape[0]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_places(form: GruForm, x: Array, arrays: GruArrays, places: Array) -> Array:
    return _kept(form, x, arrays, places)[0]


def _kept(form: GruForm, x: Array, arrays: GruArrays, places: Array) -> tuple[Array, tuple[Array, ...]]:
    to_gates, to_candidate, bias, h0 = arrays
    forward = sequence_dispatch.mapped(_forward, form, 3)
    hidden, gates = forward(to_gates, to_candidate, bias, x, h0, places)
    return hidden, (to_gates, to_candidate, h0, places, hidden, gates)


def _gradients(form: GruForm, kept: tuple[Array, ...], grad: Array) -> tuple[Array, GruArrays, None]:
    to_gates, to_candidate, h0, places, hidden, gates = kept
    backward = sequence_dispatch.mapped(_backward, form, 2)
    found = backward(to_gates, to_candidate, gates, hidden, h0, grad, places)
    grad_x, grad_gates, grad_candidates, before, reset, sums, grad_h0 = found
    to_gates, to_candidate = (
        sequence_dispatch.over_rows(*pair) for pair in ((before, grad_gates), (reset, grad_candidates))
    )
    return grad_x, GruArrays(to_gates, to_candidate, jnp.sum(sums, 0), grad_h0), None


_over_places.defvjp(_kept, _gradients)


def _forward(
    form: GruForm,
    to_gates: Array,
    to_candidate: Array,
    bias: Array,
    x: Array,
    h0: Array,
    places: Array,
) -> Sequence[Array]:
    """Compute hidden states, and gates with candidates, for rows or for batches of rows that share weights."""
    sizes, panels = LoopSizes.of(x, h0), (Panels.of(to_gates), Panels.of(to_candidate))
    arrays, numbers = (
        (x, *(p.array for p in panels), bias, h0, places),
        _numbers(form, sizes, *panels),
    )
    shapes = [sizes.of_rows(n) for n in (1, 3)]
    return sequence_dispatch.call(gru_kernels.FORWARD, arrays, numbers, shapes)


def _backward(form: GruForm, to_gates: Array, to_candidate: Array, *others: Array) -> Sequence[Array]:
    """Compute the gradients of a GRU.

    Returns gradients of x, of the gates and of the candidates; the state before each row, and this state times the
    reset gate; sums of the bias's gradients, [groups, 3 width] of each batch; the gradient of h0.
    """
    gates, hidden, h0, grad, places = others
    sizes, panels = LoopSizes.of(gates, h0), (Panels.of(to_gates.T), Panels.of(to_candidate.T))
    shapes = [*(sizes.of_rows(n) for n in (3, 2, 1, 1, 1)), sizes.of_sums(3), sizes.of_sequences()]
    arrays = (gates, hidden, *(p.array for p in panels), h0, grad, places)
    numbers = _numbers(form, sizes, *panels)
    *rows, sums, grad_h0 = sequence_dispatch.call(gru_kernels.BACKWARD, arrays, numbers, shapes)
    return [*rows, jnp.moveaxis(sums, 0, -2), grad_h0]
