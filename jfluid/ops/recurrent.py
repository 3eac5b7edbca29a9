"""LSTM and GRU over ragged sequences, and single steps of them.

The loops run in time-major padded form, for as many steps as the longest sequence of the batch has.
Their gradients are written by hand: everything that does not depend on the step before is computed
for all steps at once, so that a step of the backward loop is one matrix product and few elementwise
operations, and the gradient of the weights is one product for all.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import time_loops
from jfluid.ops.ragged import Ragged, Value, need, rows_of
from jfluid.ops.random import key_of
from jfluid.ops.registry import op
from jfluid.ops.shape import is_unknown

Acts = tuple[str, str, str]  # activations of gates, cell, candidate
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
_NUMBERED = ("identity", "sigmoid", "tanh", "relu")


def _check(op_type: str, *names: str) -> None:
    for name in names:
        if name not in ACTIVATIONS:
            raise errors.AttributeTypeError(
                f"{op_type}: expected an activation of {', '.join(filter(None, ACTIVATIONS))}, "
                f"found {name!r}"
            )


def _sizes(op_type: str, what: str, found: int, wanted: int) -> None:
    if found != wanted and not is_unknown(found) and not is_unknown(wanted):
        raise errors.ShapeError(f"{op_type}: {what}: expected {wanted} columns, found {found}")


def _at(array: Any, t: Any) -> Any:
    return lax.dynamic_index_in_dim(array, t, 0, keepdims=False)


def _put(array: Any, value: Any, t: Any) -> Any:
    return lax.dynamic_update_index_in_dim(array, value, t, 0)


def _loop(steps: Any, backwards: bool, body: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run `body(t, state)` for t = 0 ... steps - 1, or from the end."""
    return lax.fori_loop(0, steps, lambda i, s: body(steps - 1 - i if backwards else i, s), state)


def _over_steps(x: Any, grad: Any) -> Any:
    """Return the gradient of a weight that all steps share, by one matrix product. It is no einsum,
    which would transpose both.
    """
    rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return lax.dot_general(*rows, (((0,), (0,)), ((), ())))


def _before(states: Any, start: Any, steps: Any, backwards: bool) -> Any:
    """Return the state that each step began with, from those that each step ended with."""
    if not backwards:
        return jnp.concatenate([start[None], states[:-1]])
    times = jnp.arange(states.shape[0]).reshape(-1, 1, 1)
    return jnp.where(times >= steps - 1, start, jnp.concatenate([states[1:], start[None]]))


# LSTM. In each step, with x the projected input, h and c the former state, W the recurrent weights,
# w the peepholes: a = candidate(x_a + h W_a), i = gate(x_i + h W_i + w_i c), f = gate(x_f + h W_f +
# w_f c) c' = f c + i a, o = gate(x_o + h W_o + w_o c'), h' = o cell(c')


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _lstm(
    x: Any,
    weight: Any,
    peepholes: Any,
    h0: Any,
    c0: Any,
    mask: Any,
    backwards: bool,
    acts: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Return hidden states and cells [time, number, width] from x [time, number, 4 width];
    peepholes are [3, width].
    """
    return _lstm_forward(x, weight, peepholes, h0, c0, mask, backwards, acts)[0]


def _steps(mask: Any) -> Any:
    return jnp.sum(jnp.any(mask[..., 0], axis=1), dtype=jnp.int32)


def _lstm_forward(
    x: Array,
    weight: Array,
    peepholes: Array,
    h0: Array,
    c0: Array,
    mask: Array,
    backwards: bool,
    acts: tuple[Any, ...],
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
    # What the gradients of a step's h' and c' are multiplied with, for all steps at once.
    to_a, to_i, to_f, to_o = (
        i * slope_candidate(a),
        a * slope_gate(i),
        c_before * slope_gate(f),
        out * slope_gate(o),
    )
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
        [
            jnp.sum(g * c, axis=(0, 1))
            for g, c in ((grad_i, c_before), (grad_f, c_before), (grad_o, cells))
        ]
    )
    return grad_x, grad_weight, grad_peepholes, dh, dc, None


_lstm.defvjp(_lstm_forward, _lstm_backward)


def _initial(state: Any, number: int, width: int, dtype: Any) -> Any:
    return jnp.zeros((number, width), dtype) if state is None else rows_of(state)


def _time_mask(x: Ragged) -> Any:
    return x.last.mask().T[..., None]


@op(
    "lstm",
    ins=("Input", "H0?", "C0?", "Weight", "Bias"),
    outs=("Hidden", "Cell", "BatchGate~", "BatchCellPreAct~"),
    rows="sequence",
)
def lstm(
    x: Value,
    h0: Value | None,
    c0: Value | None,
    weight: Value,
    bias: Value,
    *,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[Value, Value, Value | None, Value | None]:
    """Return hidden states and cells of an LSTM over each sequence of projected inputs [rows, 4
    width].

    Gers et al., "Learning Precise Timing with LSTM Recurrent Networks", 2002. The columns are
    candidate, input, forget, output.
    """
    x = need(x, "lstm", "Input")
    _check("lstm", gate_activation, cell_activation, candidate_activation)
    width, number = weight.shape[0], x.last.number
    _sizes("lstm", "Input", x.shape[1], 4 * width)
    _sizes("lstm", "Bias", bias.size, (7 if use_peepholes else 4) * width)
    bias = bias.reshape(-1)
    bias = bias if use_peepholes else jnp.pad(bias, (0, 3 * width))
    h0, c0 = (_initial(state, number, width, x.dtype) for state in (h0, c0))
    acts = gate_activation, cell_activation, candidate_activation
    hidden, cells = _lstm_of_rows(x, weight, bias, h0, c0, is_reverse, acts)
    return x.like(hidden), x.like(cells), None, None


def _lstm_of_rows(
    x: Ragged, weight: Array, bias: Array, h0: Array, c0: Array, backwards: bool, acts: Acts
) -> tuple[Array, Array]:
    """Return hidden states and cells [rows, width]; bias is [7 width], with the peepholes."""
    found = time_loops.current().lstm(x.values, x.last, weight, bias, h0, c0, backwards, acts)
    if found is not None:
        return found
    width = weight.shape[0]
    dense = x.like(x.values + bias[: 4 * width]).pad(time_major=True)
    peepholes = bias[4 * width :].reshape(3, width)
    states = _lstm(dense, weight, peepholes, h0, c0, _time_mask(x), backwards, acts)
    hidden, cells = (x.unpad(s, time_major=True).values for s in states)
    return hidden, cells


@op(
    "lstmp",
    ins=("Input", "H0?", "C0?", "Weight", "ProjWeight", "Bias"),
    outs=("Projection", "Cell", "BatchGate~", "BatchCellPreAct~", "BatchHidden~"),
    rows="sequence",
)
def lstmp(
    x: Value,
    h0: Value | None,
    c0: Value | None,
    weight: Value,
    projection: Value,
    bias: Value,
    *,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
) -> tuple[Value, Value, Value | None, Value | None, Value | None]:
    """Return projections and cells of an LSTM whose recurrent state is a projection of the hidden
    one.

    Sak et al., "Long Short-Term Memory Based Recurrent Neural Network Architectures", 2014.
    """
    x = need(x, "lstmp", "Input")
    _check("lstmp", gate_activation, cell_activation, candidate_activation, proj_activation)
    gate, cell, candidate, project = (
        ACTIVATIONS[n]
        for n in (gate_activation, cell_activation, candidate_activation, proj_activation)
    )
    width, number = projection.shape[0], x.last.number
    _sizes("lstmp", "Input", x.shape[1], 4 * width)
    _sizes("lstmp", "Bias", bias.size, (7 if use_peepholes else 4) * width)
    bias = bias.reshape(-1)
    by_input, by_forget, by_output = (
        bias[4 * width :].reshape(3, width) if use_peepholes else jnp.zeros((3, width), x.dtype)
    )
    dense = x.like(x.values + bias[: 4 * width]).pad(time_major=True)

    def step(
        state: tuple[Array, Array], at: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        r, c = state
        pre, here = at[0] + r @ weight, at[1]
        a = candidate(pre[:, :width])
        i, f = (
            gate(pre[:, width : 2 * width] + by_input * c),
            gate(pre[:, 2 * width : 3 * width] + by_forget * c),
        )
        new_c = _clipped(f * c + i * a, cell_clip)
        o = gate(pre[:, 3 * width :] + by_output * new_c)
        new_r = _clipped(project((o * cell(new_c)) @ projection), proj_clip)
        state = jnp.where(here, new_r, r), jnp.where(here, new_c, c)
        return state, state

    start = _initial(h0, number, projection.shape[1], x.dtype), _initial(c0, number, width, x.dtype)
    states = lax.scan(step, start, (dense, _time_mask(x)), reverse=is_reverse)[1]
    projected, cells = (x.unpad(s, time_major=True) for s in states)
    return projected, cells, None, None, None


def _clipped(x: Any, limit: float) -> Any:
    return jnp.clip(x, -limit, limit) if limit > 0 else x


# GRU. In each step, with h the former state:
#   u = gate(x_u + h W_u), r = gate(x_r + h W_r), c = candidate(x_c + (r h) W_c)
#   h' = (1 - u) h + u c; in the paper's form ("origin") u h + (1 - u) c


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _gru(
    x: Any,
    to_gates: Any,
    to_candidate: Any,
    h0: Any,
    mask: Any,
    backwards: bool,
    origin: bool,
    acts: tuple[Any, ...],
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
    # What the gradient of a step's h' is multiplied with, for all steps at once.
    to_u, to_r = (before - c if origin else c - before) * slope_gate(u), before * slope_gate(r)
    factors = jnp.where(
        mask, jnp.concatenate([to_u, to_r, new_part * slope_candidate(c)], axis=2), 0
    )
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


def _gru_weights(weight: Any) -> tuple[Any, Any]:
    """Return [width, 2 width] for the gates and [width, width] for the candidate, which lie one
    after the other in memory.
    """
    width = weight.shape[0]
    flat = weight.reshape(-1)
    return flat[: 2 * width * width].reshape(width, 2 * width), flat[2 * width * width :].reshape(
        width, width
    )


@op(
    "gru",
    ins=("Input", "H0?", "Weight", "Bias?"),
    outs=("BatchGate~", "BatchResetHiddenPrev~", "BatchHidden~", "Hidden"),
    rows="sequence",
)
def gru(
    x: Value,
    h0: Value | None,
    weight: Value,
    bias: Value | None,
    *,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    is_reverse: bool = False,
    origin_mode: bool = False,
) -> tuple[Value | None, Value | None, Value | None, Value]:
    """Return hidden states of a GRU over each sequence of projected inputs [rows, 3 width]: update,
    reset, candidate.

    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014 (origin_mode).
    """
    x = need(x, "gru", "Input")
    _check("gru", activation, gate_activation)
    width = weight.shape[0]
    _sizes("gru", "Input", x.shape[1], 3 * width)
    dense = x.like(x.values if bias is None else x.values + bias.reshape(-1)).pad(time_major=True)
    hidden = _gru(
        dense,
        *_gru_weights(weight),
        _initial(h0, x.last.number, width, x.dtype),
        _time_mask(x),
        is_reverse,
        origin_mode,
        (gate_activation, activation),
    )
    return None, None, None, x.unpad(hidden, time_major=True)


@op(
    "gru_unit",
    ins=("Input", "HiddenPrev", "Weight", "Bias?"),
    outs=("Gate~", "ResetHiddenPrev~", "Hidden"),
    rows="map",
)
def gru_unit(
    x: Array,
    h: Array,
    weight: Array,
    bias: Array | None,
    *,
    activation: int = 2,
    gate_activation: int = 1,
    origin_mode: bool = False,
) -> tuple[Array, Array, Array]:
    """Run one step of a GRU; returns gates and candidate [rows, 3 width], the reset state, the new
    state.
    """
    if not (0 <= activation < 4 and 0 <= gate_activation < 4):
        raise errors.AttributeTypeError(
            "gru_unit: an activation is 0 (identity), 1 (sigmoid), 2 (tanh) or 3 (relu), found "
            f"{activation} and {gate_activation}"
        )
    width = weight.shape[0]
    _sizes("gru_unit", "Input", x.shape[1], 3 * width)
    to_gates, to_candidate = _gru_weights(weight)
    x = x if bias is None else x + bias.reshape(-1)
    gates = ACTIVATIONS[_NUMBERED[gate_activation]](x[:, : 2 * width] + h @ to_gates)
    u, reset = gates[:, :width], gates[:, width:] * h
    c = ACTIVATIONS[_NUMBERED[activation]](x[:, 2 * width :] + reset @ to_candidate)
    new = u * h + (1 - u) * c if origin_mode else (1 - u) * h + u * c
    return jnp.concatenate([gates, c], axis=1), reset, new


@op("lstm_unit", ins=("X", "C_prev"), outs=("C", "H"), rows="map")
def lstm_unit(x: Array, c: Array, *, forget_bias: float = 0.0) -> tuple[Array, Array]:
    """Run one step of an LSTM from projected inputs [rows, 4 width]: input, forget, output,
    candidate.
    """
    _sizes("lstm_unit", "X", x.shape[1], 4 * c.shape[1])
    i, f, o, a = jnp.split(x, 4, axis=1)
    c = jax.nn.sigmoid(f + forget_bias) * c + jax.nn.sigmoid(i) * jnp.tanh(a)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


@op("rnn_memory_helper", ins=("X",), outs=("Out",), rows="map")
def rnn_memory_helper(x: Array, *, dtype: int = 5) -> Array:
    """Return x itself: this is how `recurrent` names a state."""
    return x


@op("gather_tree", ins=("Ids", "Parents"), outs=("Out",), grad=False)
def gather_tree(ids: Array, parents: Array) -> Array:
    """Return whole sequences [time, batch, beam] from the ids that each step chose and the beams
    that they continue.
    """
    beams = jnp.broadcast_to(jnp.arange(ids.shape[2], dtype=parents.dtype), ids.shape[1:])

    def step(beam: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        words, came_from = at
        return jnp.take_along_axis(came_from, beam, axis=1), jnp.take_along_axis(
            words, beam, axis=1
        )

    return lax.scan(step, beams, (ids, parents), reverse=True)[1]


@op(
    "cudnn_lstm",
    ins=("Input", "InitH", "InitC", "W", "Cache?"),
    outs=("Out", "last_h", "last_c"),
    nograd=("Cache",),
    rng=True,
)
def cudnn_lstm(
    x: Array,
    h0: Array,
    c0: Array,
    weights: Array,
    _: Array | None,
    *,
    max_len: int = 20,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    input_size: int = 10,
    hidden_size: int = 100,
    num_layers: int = 1,
    is_test: bool = False,
    seed: int = -1,
    key: Array,
) -> tuple[Array, Array, Array]:
    """Run layers of LSTM over x [time, batch, inputs], with all weights in one vector in cuDNN's
    order.
    """
    directions = 2 if is_bidirec else 1
    shapes = [
        (4 * hidden_size, n)
        for layer in range(num_layers)
        for _ in range(directions)
        for n in (input_size if layer == 0 else hidden_size * directions, hidden_size)
    ]
    sizes = [r * c for r, c in shapes] + [4 * hidden_size] * len(shapes)
    if sum(sizes) != weights.size:
        raise errors.ShapeError(f"cudnn_lstm: expected {sum(sizes)} weights, found {weights.size}")
    parts = jnp.split(weights.reshape(-1), [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)])
    matrices, biases = [p.reshape(s) for p, s in zip(parts, shapes)], parts[len(shapes) :]
    key, last_h, last_c = key_of(key, max(seed, 0)), [], []
    for layer in range(num_layers):
        if layer and dropout_prob and not is_test:
            keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - dropout_prob, x.shape)
            x = jnp.where(keep, x / (1 - dropout_prob), 0)
        outs = []
        for direction in range(directions):
            i = layer * directions + direction
            (h, c), out = _dense_lstm(
                x,
                h0[i],
                c0[i],
                matrices[2 * i : 2 * i + 2],
                biases[2 * i] + biases[2 * i + 1],
                direction == 1,
            )
            outs.append(out)
            last_h.append(h)
            last_c.append(c)
        x = jnp.concatenate(outs, axis=-1)
    return x, jnp.stack(last_h), jnp.stack(last_c)


def _dense_lstm(
    x: Any, h: Any, c: Any, matrices: list[Any], bias: Any, backwards: bool
) -> tuple[Any, ...]:
    """Return ((last h, last c), outputs [time, batch, width]); gates are in the order input,
    forget, candidate, output.
    """
    projected = x @ matrices[0].T + bias

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        i, f, a, o = jnp.split(now + h @ matrices[1].T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(a)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, c), projected, reverse=backwards)
