"""Loops of LSTM and GRU over ragged sequences.

They run in time-major padded form, for the length of the batch's longest sequence.
Their gradients are written by hand: everything that does not depend on the step before is computed
for all steps at once, so that a step of the backward loop is one matrix product and few elementwise
operations, and the gradient of the weights is one product for all. If `sequence_loops` has a loop
over ragged rows in place, that loop runs instead.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import sequence_loops, static_values
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.sequence_loops import GruArrays, GruForm, LstmArrays, LstmForm

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": lambda x: jnp.maximum(x, 0),
}
# The derivative, by the activation's output.
_SLOPES: dict[str, Callable[[Array], Array]] = {
    "identity": jnp.ones_like,
    "": jnp.ones_like,
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: (y > 0).astype(y.dtype),
}


def initial(op_type: str, slot: str, state: Value | None, shape: tuple[int, int], dtype: Any) -> Array:
    """Return the state [number, width] that sequences begin with: zeros for None.

    Raises ShapeError for one of a different shape: one row is not all sequences' state.
    """
    if state is None:
        return jnp.zeros(shape, dtype)
    found: Array = rows_of(state)
    if static_values.placeholder() is not None:  # the number of sequences is not known yet
        return jnp.broadcast_to(found[:1, : shape[1]], shape)
    if found.shape != shape:
        raise errors.ShapeError(
            f"{op_type}: {slot}: expected a row for each of {shape[0]} sequences, of {shape[1]} "
            f"columns, found {list(found.shape)}"
        )
    return found


def _at(array: Any, t: Any) -> Any:
    return lax.dynamic_index_in_dim(array, t, 0, keepdims=False)


def _put(array: Any, value: Any, t: Any) -> Any:
    return lax.dynamic_update_index_in_dim(array, value, t, 0)


def _loop(steps: Any, backwards: bool, body: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run `body(t, state)` for t = 0 ... steps - 1, or from the end."""
    return lax.fori_loop(0, steps, lambda i, s: body(steps - 1 - i if backwards else i, s), state)


def _over_steps(x: Any, grad: Any) -> Any:
    """Return the gradient of a weight that all steps share, by one matrix product.

    It is no einsum, which would transpose both.
    """
    rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return lax.dot_general(*rows, (((0,), (0,)), ((), ())))


def _before(states: Any, start: Any, steps: Any, backwards: bool) -> Any:
    """Return the initial state of each step from the final states of all steps."""
    if not backwards:
        return jnp.concatenate([start[None], states[:-1]])
    times = jnp.arange(states.shape[0]).reshape(-1, 1, 1)
    return jnp.where(times >= steps - 1, start, jnp.concatenate([states[1:], start[None]]))


# LSTM. In each step, with x the projected input, h and c the former state, W the recurrent weights,
# w the peepholes: a = candidate(x_a + h W_a), i = gate(x_i + h W_i + w_i c), f = gate(x_f + h W_f +
# w_f c) c' = f c + i a, o = gate(x_o + h W_o + w_o c'), h' = o cell(c')


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _lstm(
    x: Any, weight: Any, peepholes: Any, h0: Any, c0: Any, mask: Any, backwards: bool, acts: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return hidden states and cells [time, number, width] from x [time, number, 4 width]; peepholes are [3, width]."""
    return _lstm_forward(x, weight, peepholes, h0, c0, mask, backwards, acts)[0]


def _steps(mask: Any) -> Any:
    return jnp.sum(jnp.any(mask[..., 0], axis=1), dtype=jnp.int32)


def _lstm_forward(
    x: Array, weight: Array, peepholes: Array, h0: Array, c0: Array, mask: Array, backwards: bool, acts: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    gate, cell, candidate = (ACTIVATIONS[n] for n in acts)
    width, steps = h0.shape[1], _steps(mask)
    by_input, by_forget, by_output = peepholes

    def body(t: Array, state: Array) -> tuple[Array, Array, Array, Array, Array]:
        # where a step's gates will be, there is its input until then
        h, c, hidden, cells, gates = state
        pre = _at(gates, t) + h @ weight
        a = candidate(pre[:, :width])
        i = gate(pre[:, width : 2 * width] + by_input * c)
        f = gate(pre[:, 2 * width : 3 * width] + by_forget * c)
        new_c = f * c + i * a
        o = gate(pre[:, 3 * width :] + by_output * new_c)
        here = _at(mask, t)
        h, c = jnp.where(here, o * cell(new_c), h), jnp.where(here, new_c, c)
        gates = _put(gates, jnp.concatenate([a, i, f, o], axis=1), t)
        return h, c, _put(hidden, h, t), _put(cells, c, t), gates

    empty = jnp.zeros((*x.shape[:2], width), x.dtype)
    _, _, hidden, cells, gates = _loop(steps, backwards, body, (h0, c0, empty, empty, x))
    return (hidden, cells), (weight, peepholes, h0, c0, mask, hidden, cells, gates)


def _lstm_backward(
    backwards: bool, acts: tuple[Any, ...], kept: tuple[Any, ...], grads: tuple[Any, ...]
) -> tuple[Array, Array, Array, Array, Array, None]:
    weight, peepholes, h0, c0, mask, hidden, cells, gates = kept
    slope_gate, slope_cell, slope_candidate = (_SLOPES[n] for n in acts)
    by_input, by_forget, by_output = peepholes
    steps = _steps(mask)
    h_before, c_before = (_before(v, s, steps, backwards) for v, s in ((hidden, h0), (cells, c0)))
    a, i, f, o = jnp.split(gates, 4, axis=2)
    out = ACTIVATIONS[acts[1]](cells)
    # Factors of the gradients of each step's h' and c', computed for all steps at once.
    to_a, to_i, to_f, to_o = (i * slope_candidate(a), a * slope_gate(i), c_before * slope_gate(f), out * slope_gate(o))
    through = jnp.where(mask, o * slope_cell(out) + to_o * by_output, 0)
    to_gates = jnp.where(mask, jnp.concatenate([to_a, to_i, to_f, to_o], axis=2), 0)
    to_c = jnp.where(mask, f + to_i * by_input + to_f * by_forget, 1)
    keep = 1 - mask.astype(gates.dtype)
    grad_hidden, grad_cells = grads
    transposed = weight.T

    def body(t: Array, state: Array) -> tuple[Array, Array, Array]:
        dh, dc, grad_gates = state
        dh = dh + _at(grad_hidden, t)
        dc = dc + _at(grad_cells, t) + dh * _at(through, t)
        grad = jnp.concatenate([dc, dc, dc, dh], axis=1) * _at(grad_gates, t)
        return grad @ transposed + dh * _at(keep, t), dc * _at(to_c, t), _put(grad_gates, grad, t)

    zero = jnp.zeros_like(h0)
    dh, dc, grad_x = _loop(steps, not backwards, body, (zero, zero, to_gates))
    grad_weight = _over_steps(h_before, grad_x)
    _, grad_i, grad_f, grad_o = jnp.split(grad_x, 4, axis=2)
    grad_peepholes = jnp.stack(
        [jnp.sum(g * c, axis=(0, 1)) for g, c in ((grad_i, c_before), (grad_f, c_before), (grad_o, cells))]
    )
    return grad_x, grad_weight, grad_peepholes, dh, dc, None


_lstm.defvjp(_lstm_forward, _lstm_backward)


def time_mask(x: Ragged) -> Any:
    """Return the mask of the time-major padded form, bool [time, number, 1]."""
    return x.last.mask().T[..., None]


def lstm_of_rows(x: Ragged, arrays: LstmArrays, form: LstmForm) -> tuple[Array, Array]:
    """Return hidden states and cells [rows, width] of rows x [rows, 4 width]."""
    found = sequence_loops.current().lstm(x.values, x.last, arrays, form)
    if found is not None:
        return found
    weight, bias, h0, c0 = arrays
    width = weight.shape[0]
    dense = x.like(x.values + bias[: 4 * width]).pad(time_major=True)
    peepholes = bias[4 * width :].reshape(3, width)
    states = _lstm(dense, weight, peepholes, h0, c0, time_mask(x), form.backwards, form.acts)
    hidden, cells = (x.unpad(s, time_major=True).values for s in states)
    return hidden, cells


# GRU. In each step, with h the former state:
#   u = gate(x_u + h W_u), r = gate(x_r + h W_r), c = candidate(x_c + (r h) W_c)
#   h' = (1 - u) h + u c; in the paper's form ("origin") u h + (1 - u) c


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _gru(
    x: Any, to_gates: Any, to_candidate: Any, h0: Any, mask: Any, backwards: bool, origin: bool, acts: tuple[Any, ...]
) -> Any:
    """Return hidden states [time, number, width] from x [time, number, 3 width]."""
    return _gru_forward(x, to_gates, to_candidate, h0, mask, backwards, origin, acts)[0]


def _gru_forward(
    x: Array,
    to_gates: Array,
    to_candidate: Array,
    h0: Array,
    mask: Array,
    backwards: bool,
    origin: bool,
    acts: tuple[Any, ...],
) -> tuple[Array, tuple[Any, ...]]:
    gate, candidate = (ACTIVATIONS[n] for n in acts)
    width, steps = h0.shape[1], _steps(mask)

    def body(t: Array, state: Array) -> tuple[Array, Array, Array]:
        h, hidden, saved = state  # where a step's gates will be, there is its input until then
        now = _at(saved, t)
        gates = gate(now[:, : 2 * width] + h @ to_gates)
        u, r = gates[:, :width], gates[:, width:]
        c = candidate(now[:, 2 * width :] + (r * h) @ to_candidate)
        new = u * h + (1 - u) * c if origin else (1 - u) * h + u * c
        h = jnp.where(_at(mask, t), new, h)
        return h, _put(hidden, h, t), _put(saved, jnp.concatenate([gates, c], axis=1), t)

    empty = jnp.zeros((*x.shape[:2], width), x.dtype)
    _, hidden, saved = _loop(steps, backwards, body, (h0, empty, x))
    return hidden, (to_gates, to_candidate, h0, mask, hidden, saved)


def _gru_backward(
    backwards: bool, origin: bool, acts: tuple[Any, ...], kept: tuple[Any, ...], grad_hidden: Array
) -> tuple[Array, Array, Array, Array, Array] | tuple[Any, Any, Any, Any, None]:
    to_gates, to_candidate, h0, mask, hidden, saved = kept
    slope_gate, slope_candidate = (_SLOPES[n] for n in acts)
    steps, width = _steps(mask), h0.shape[1]
    before = _before(hidden, h0, steps, backwards)
    u, r, c = jnp.split(saved, 3, axis=2)
    kept_part, new_part = (u, 1 - u) if origin else (1 - u, u)
    # Factors of the gradient of each step's h', computed for all steps at once.
    to_u, to_r = (before - c if origin else c - before) * slope_gate(u), before * slope_gate(r)
    factors = jnp.where(mask, jnp.concatenate([to_u, to_r, new_part * slope_candidate(c)], axis=2), 0)
    straight = jnp.where(mask, kept_part, 1)
    gates_transposed, candidate_transposed = to_gates.T, to_candidate.T

    def body(t: Array, state: Array) -> tuple[Array, Array]:
        dh, grad_x = state
        dh, factor = dh + _at(grad_hidden, t), _at(grad_x, t)
        dc = dh * factor[:, 2 * width :]
        d_reset = dc @ candidate_transposed
        d_gates = jnp.concatenate([dh, d_reset], axis=1) * factor[:, : 2 * width]
        dh = dh * _at(straight, t) + d_reset * _at(r, t) + d_gates @ gates_transposed
        return dh, _put(grad_x, jnp.concatenate([d_gates, dc], axis=1), t)

    dh, grad_x = _loop(steps, not backwards, body, (jnp.zeros_like(h0), factors))
    grad_gates = _over_steps(before, grad_x[..., : 2 * width])
    grad_candidate = _over_steps(r * before, grad_x[..., 2 * width :])
    return grad_x, grad_gates, grad_candidate, dh, None


_gru.defvjp(_gru_forward, _gru_backward)


def gru_of_rows(x: Ragged, arrays: GruArrays, form: GruForm) -> Array:
    """Return hidden states [rows, width] of rows x [rows, 3 width]."""
    found = sequence_loops.current().gru(x.values, x.last, arrays, form)
    if found is not None:
        return found
    to_gates, to_candidate, bias, h0 = arrays
    dense = x.like(x.values + bias).pad(time_major=True)
    mask = time_mask(x)
    hidden = _gru(dense, to_gates, to_candidate, h0, mask, form.backwards, form.origin, form.acts)
    return x.unpad(hidden, time_major=True).values
