"""LSTM and GRU over ragged sequences, and their single steps; see `recurrent_loops`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops import sequence_loops, unrolled
from jfluid.ops.axes import check_one_dtype
from jfluid.ops.ragged import Level, Value, need
from jfluid.ops.random import key_of
from jfluid.ops.recurrent_loops import ACTIVATIONS, gru_of_rows, initial, lstm_of_rows, time_mask
from jfluid.ops.refusals import RefusalRule, outside
from jfluid.ops.registry import op
from jfluid.ops.sequence_loops import GruArrays, GruForm, LstmArrays, LstmForm
from jfluid.ops.shape import is_unknown

_NUMBERED = ("identity", "sigmoid", "tanh", "relu")


def _check(op_type: str, *names: str) -> None:
    for name in names:
        if name not in ACTIVATIONS:
            raise errors.AttributeTypeError(
                f"{op_type}: expected an activation of {', '.join(filter(None, ACTIVATIONS))}, found {name!r}"
            )


def _sizes(op_type: str, what: str, found: int, wanted: int) -> None:
    if found != wanted and not is_unknown(found) and not is_unknown(wanted):
        raise errors.ShapeError(f"{op_type}: {what}: expected {wanted} columns, found {found}")


def _same_rows(op_type: str, what: str, found: int, wanted: int) -> None:
    if found != wanted and not is_unknown(found) and not is_unknown(wanted):
        raise errors.ShapeError(f"{op_type}: {what}: expected {wanted} rows, found {found}")


@op(
    "lstm",
    ins=("Input", "H0?", "C0?", "Weight", "Bias"),
    outs=("Hidden", "Cell", "BatchGate~", "BatchCellPreAct~"),
    rows="sequence",
    counts=True,
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
    """Return hidden states and cells of an LSTM over each sequence of projected inputs [rows, 4 width].

    Gers et al., "Learning Precise Timing with LSTM Recurrent Networks", 2002. The columns are
    candidate, input, forget, output.
    """
    x = need(x, "lstm", "Input")
    _check("lstm", gate_activation, cell_activation, candidate_activation)
    width = weight.shape[0]
    _sizes("lstm", "Input", x.shape[1], 4 * width)
    _sizes("lstm", "Weight", weight.shape[1], 4 * width)
    _sizes("lstm", "Bias", bias.size, (7 if use_peepholes else 4) * width)
    bias = bias.reshape(-1)
    bias = bias if use_peepholes else jnp.pad(bias, (0, 3 * width))
    h0, c0 = (initial("lstm", slot, state, (x.last.number, width), x.dtype) for slot, state in (("H0", h0), ("C0", c0)))
    form = LstmForm((gate_activation, cell_activation, candidate_activation), is_reverse)
    hidden, cells = lstm_of_rows(x, LstmArrays(weight, bias, h0, c0), form)
    return x.like(hidden), x.like(cells), None, None


@op(
    "lstmp",
    ins=("Input", "H0?", "C0?", "Weight", "ProjWeight", "Bias"),
    outs=("Projection", "Cell", "BatchGate~", "BatchCellPreAct~", "BatchHidden~"),
    rows="sequence",
    counts=True,
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
    """Return projections and cells of an LSTM with a projected recurrent state.

    Sak et al., "Long Short-Term Memory Based Recurrent Neural Network Architectures", 2014.
    """
    x = need(x, "lstmp", "Input")
    _check("lstmp", gate_activation, cell_activation, candidate_activation, proj_activation)
    gate, cell, candidate, project = (
        ACTIVATIONS[n] for n in (gate_activation, cell_activation, candidate_activation, proj_activation)
    )
    (width, projected), number = projection.shape, x.last.number
    _sizes("lstmp", "Input", x.shape[1], 4 * width)
    _sizes("lstmp", "Weight", weight.shape[1], 4 * width)
    _sizes("lstmp", "Bias", bias.size, (7 if use_peepholes else 4) * width)
    bias = bias.reshape(-1)
    by_input, by_forget, by_output = (
        bias[4 * width :].reshape(3, width) if use_peepholes else jnp.zeros((3, width), x.dtype)
    )
    dense = x.like(x.values + bias[: 4 * width]).pad(time_major=True)

    def step(state: tuple[Array, Array], at: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        r, c = state
        pre, here = at[0] + r @ weight, at[1]
        a = candidate(pre[:, :width])
        i, f = (gate(pre[:, width : 2 * width] + by_input * c), gate(pre[:, 2 * width : 3 * width] + by_forget * c))
        new_c = _clipped(f * c + i * a, cell_clip)
        o = gate(pre[:, 3 * width :] + by_output * new_c)
        new_r = _clipped(project((o * cell(new_c)) @ projection), proj_clip)
        state = jnp.where(here, new_r, r), jnp.where(here, new_c, c)
        return state, state

    start = (
        initial("lstmp", "H0", h0, (number, projected), x.dtype),
        initial("lstmp", "C0", c0, (number, width), x.dtype),
    )
    states = lax.scan(step, start, (dense, time_mask(x)), reverse=is_reverse)[1]
    projections, cells = (x.unpad(s, time_major=True) for s in states)
    return projections, cells, None, None, None


def _clipped(x: Any, limit: float) -> Any:
    return jnp.clip(x, -limit, limit) if limit > 0 else x


def _gru_weights(op_type: str, weight: Any) -> tuple[Any, Any]:
    """Split a GRU's weight into gates [width, 2 width] and candidate [width, width], adjacent in memory.

    Raises ShapeError for a weight that is not [width, 3 width].
    """
    width = weight.shape[0]
    _sizes(op_type, "Weight", weight.shape[1], 3 * width)
    flat = weight.reshape(-1)
    return flat[: 2 * width * width].reshape(width, 2 * width), flat[2 * width * width :].reshape(width, width)


@op(
    "gru",
    ins=("Input", "H0?", "Weight", "Bias?"),
    outs=("BatchGate~", "BatchResetHiddenPrev~", "BatchHidden~", "Hidden"),
    rows="sequence",
    counts=True,
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
    """Return hidden states of a GRU over each sequence of projected inputs [rows, 3 width]: update, reset, candidate.

    Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014 (origin_mode).
    """
    x = need(x, "gru", "Input")
    _check("gru", activation, gate_activation)
    width = weight.shape[0]
    _sizes("gru", "Input", x.shape[1], 3 * width)
    bias = jnp.zeros(3 * width, x.dtype) if bias is None else bias.reshape(-1)
    _sizes("gru", "Bias", bias.size, 3 * width)
    arrays = GruArrays(*_gru_weights("gru", weight), bias, initial("gru", "H0", h0, (x.last.number, width), x.dtype))
    hidden = gru_of_rows(x, arrays, GruForm((gate_activation, activation), is_reverse, origin_mode))
    return None, None, None, x.like(hidden)


@op(
    "gru_unit", ins=("Input", "HiddenPrev", "Weight", "Bias?"), outs=("Gate~", "ResetHiddenPrev~", "Hidden"), rows="map"
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
    """Run one step of a GRU; returns gates and candidate [rows, 3 width], the reset state, the new state."""
    if not (0 <= activation < 4 and 0 <= gate_activation < 4):
        raise errors.AttributeTypeError(
            "gru_unit: an activation is 0 (identity), 1 (sigmoid), 2 (tanh) or 3 (relu), found "
            f"{activation} and {gate_activation}"
        )
    width = weight.shape[0]
    _sizes("gru_unit", "Input", x.shape[1], 3 * width)
    _same_rows("gru_unit", "HiddenPrev", h.shape[0], x.shape[0])
    to_gates, to_candidate = _gru_weights("gru_unit", weight)
    x = x if bias is None else x + bias.reshape(-1)
    gates = ACTIVATIONS[_NUMBERED[gate_activation]](x[:, : 2 * width] + h @ to_gates)
    u, reset = gates[:, :width], gates[:, width:] * h
    c = ACTIVATIONS[_NUMBERED[activation]](x[:, 2 * width :] + reset @ to_candidate)
    new = u * h + (1 - u) * c if origin_mode else (1 - u) * h + u * c
    return jnp.concatenate([gates, c], axis=1), reset, new


@op("lstm_unit", ins=("X", "C_prev"), outs=("C", "H"), rows="map")
def lstm_unit(x: Array, c: Array, *, forget_bias: float = 0.0) -> tuple[Array, Array]:
    """Run one step of an LSTM from projected inputs [rows, 4 width]: input, forget, output, candidate."""
    check_one_dtype([x, c], "lstm_unit")
    _sizes("lstm_unit", "X", x.shape[1], 4 * c.shape[1])
    _same_rows("lstm_unit", "C_prev", c.shape[0], x.shape[0])
    i, f, o, a = jnp.split(x, 4, axis=1)
    c = jax.nn.sigmoid(f + forget_bias) * c + jax.nn.sigmoid(i) * jnp.tanh(a)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


@op("rnn_memory_helper", ins=("X",), outs=("Out",), rows="map")
def rnn_memory_helper(x: Array, *, dtype: int = 5) -> Array:
    """Return x itself: this is how `recurrent` names a state."""
    return x


@op(
    "gather_tree",
    ins=("Ids", "Parents"),
    outs=("Out",),
    grad=False,
    refuses=(
        RefusalRule(
            "Parents",
            lambda ins, attrs: outside(ins["Parents"], ins["Ids"].shape[2] - 1),
            "expected beams from 0 to {limit}, found {found}",
        ),
    ),
)
def gather_tree(ids: Array, parents: Array) -> Array:
    """Trace beams back to whole sequences [time, batch, beam] from ids and parent beams of each step."""
    beams = jnp.broadcast_to(jnp.arange(ids.shape[2], dtype=parents.dtype), ids.shape[1:])

    def step(beam: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        words, came_from = at
        return jnp.take_along_axis(came_from, beam, axis=1), jnp.take_along_axis(words, beam, axis=1)

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
    """Run layers of LSTM over x [time, batch, inputs], with all weights in one vector in cuDNN's order."""
    directions = 2 if is_bidirec else 1
    shapes = [
        (4 * hidden_size, n)
        for layer in range(unrolled.times("cudnn_lstm", "num_layers", num_layers))
        for _ in range(directions)
        for n in (input_size if layer == 0 else hidden_size * directions, hidden_size)
    ]
    wanted = (num_layers * directions, x.shape[1], hidden_size)
    for slot, state in (("InitH", h0), ("InitC", c0)):
        if state.shape != wanted and not any(map(is_unknown, (*state.shape, x.shape[1]))):
            raise errors.ShapeError(
                f"cudnn_lstm: {slot}: expected [layers, batch, hidden] {list(wanted)}, found {list(state.shape)}"
            )
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
                x, h0[i], c0[i], matrices[2 * i : 2 * i + 2], biases[2 * i] + biases[2 * i + 1], direction == 1
            )
            outs.append(out)
            last_h.append(h)
            last_c.append(c)
        x = jnp.concatenate(outs, axis=-1)
    return x, jnp.stack(last_h), jnp.stack(last_c)


def _dense_lstm(x: Any, h: Any, c: Any, matrices: list[Any], bias: Any, backwards: bool) -> tuple[Any, ...]:
    """Return ((last h, last c), outputs [time, batch, width]); gate order: input, forget, candidate, output."""
    found = _dense_lstm_of_rows(x, h, c, matrices, bias, backwards)
    if found is not None:
        return found
    projected = x @ matrices[0].T + bias

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        i, f, a, o = jnp.split(now + h @ matrices[1].T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(a)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, c), projected, reverse=backwards)


def _dense_lstm_of_rows(
    x: Any, h: Any, c: Any, matrices: list[Any], bias: Any, backwards: bool
) -> tuple[Any, ...] | None:
    """Run the LSTM by a loop of `sequence_loops`, with its gate order; None if no loop supports it."""

    def ordered(gates: Array) -> Array:
        i, f, a, o = jnp.split(gates, 4)
        return jnp.concatenate([a, i, f, o])

    (steps, number), width = x.shape[:2], h.shape[1]
    weight, recurrent, bias = map(ordered, (*matrices, bias))
    rows = (x @ weight.T).reshape(-1, 4 * width)
    arrays = LstmArrays(recurrent.T, jnp.pad(bias, (0, 3 * width)), h, c)
    form = LstmForm(("sigmoid", "tanh", "tanh"), backwards, time_major=True)
    found = sequence_loops.current().lstm(rows, Level(None, steps, number), arrays, form)
    if found is None:
        return None
    hidden, cells = (state.reshape(steps, number, width) for state in found)
    last = 0 if backwards else -1
    return (hidden[last], cells[last]), hidden
