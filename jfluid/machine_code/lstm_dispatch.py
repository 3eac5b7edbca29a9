"""Dispatch of LSTMs over sequences, and their gradients, to LLVM kernels (`lstm_kernels.py`)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jfluid.machine_code import lstm_kernels, sequence_dispatch
from jfluid.machine_code.sequence_dispatch import LoopSizes, Panels
from jfluid.ops.ragged import Level
from jfluid.ops.sequence_loops import LstmArrays, LstmForm


def _numbers(form: LstmForm, sizes: LoopSizes, panels: Panels) -> dict[str, int]:
    others = {
        "stride": sizes.number if form.time_major else 1,  # rows to the next of a sequence
        "pitch": panels.pitch,
        "panel": panels.panel,
        **dict(zip(("gate", "cell", "candidate"), map(sequence_dispatch.kind, form.acts))),
    }
    return sizes.numbers(lstm_kernels.MEMORY, form.backwards, others)


def suits(x: Array, arrays: LstmArrays) -> bool:
    """Return True if an LSTM over rows should run here."""
    return sequence_dispatch.suits("lstm", arrays.weight.shape[0], x, *arrays)


def over_sequences(x: Array, level: Level, arrays: LstmArrays, form: LstmForm) -> tuple[Array, Array]:
    """Return hidden states and cells, [rows, width]. Padding rows copy a row."""
    return _over_places(form, x, arrays, sequence_dispatch.places(level, x.shape[0], form.time_major))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_places(form: LstmForm, x: Array, arrays: LstmArrays, places: Array) -> tuple[Array, Array]:
    return _kept(form, x, arrays, places)[0]


def _kept(form: LstmForm, x: Array, arrays: LstmArrays, places: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    weight, bias, h0, c0 = arrays
    forward = sequence_dispatch.mapped(_forward, form, 2)
    hidden, cells, gates = forward(weight, bias, x, h0, c0, places)
    return (hidden, cells), (weight, bias, h0, c0, places, hidden, cells, gates)


def _gradients(form: LstmForm, kept: tuple[Array, ...], grads: tuple[Array, Array]) -> tuple[Array, LstmArrays, None]:
    weight, bias, h0, c0, places, hidden, cells, gates = kept
    backward = sequence_dispatch.mapped(_backward, form, 2)
    arrays = (gates, cells, hidden, h0, c0, *grads, places)
    grad_x, before, sums, grad_h0, grad_c0 = backward(weight, bias, *arrays)
    grad_weight = sequence_dispatch.over_rows(before, grad_x)
    return grad_x, LstmArrays(grad_weight, jnp.sum(sums, 0), grad_h0, grad_c0), None


_over_places.defvjp(_kept, _gradients)


def _forward(
    form: LstmForm,
    weight: Array,
    bias: Array,
    x: Array,
    h0: Array,
    c0: Array,
    places: Array,
) -> Sequence[Array]:
    """Compute hidden states, cells and gates for rows or for batches of rows that share weights."""
    sizes, panels = LoopSizes.of(x, h0), Panels.of(weight)
    shapes = [sizes.of_rows(n) for n in (1, 1, 4)]
    arrays, numbers = (x, panels.array, bias, h0, c0, places), _numbers(form, sizes, panels)
    return sequence_dispatch.call(lstm_kernels.FORWARD, arrays, numbers, shapes)


def _backward(form: LstmForm, weight: Array, bias: Array, *others: Array) -> Sequence[Array]:
    """Compute the gradients of an LSTM.

    Returns the gradient of x; hidden states before each row; sums of the bias's gradients, [groups, 7 width] of each
    batch; the gradients of h0 and c0.
    """
    gates, cells, hidden, h0, c0, grad_hidden, grad_cells, places = others
    sizes, panels = LoopSizes.of(gates, h0), Panels.of(weight.T)
    shapes = [sizes.of_rows(4), sizes.of_rows(1), sizes.of_sums(7), *[sizes.of_sequences()] * 2]
    arrays = (gates, cells, hidden, panels.array, bias, h0, c0, grad_hidden, grad_cells, places)
    grad_x, before, sums, *starts = sequence_dispatch.call(
        lstm_kernels.BACKWARD, arrays, _numbers(form, sizes, panels), shapes
    )
    return [grad_x, before, jnp.moveaxis(sums, 0, -2), *starts]
