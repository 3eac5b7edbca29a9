"""LSTM with attention: the input of each step is an attention-weighted mean of the whole sequence."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jfluid import errors
from jfluid.ops.ragged import Value, need
from jfluid.ops.recurrent_loops import ACTIVATIONS, initial
from jfluid.ops.registry import op
from jfluid.ops.shape import is_unknown


@op(
    "attention_lstm",
    ins=(
        "X",
        "C0",
        "H0?",
        "AttentionWeight",
        "AttentionBias?",
        "AttentionScalar?",
        "AttentionScalarBias?",
        "LSTMWeight",
        "LSTMBias",
    ),
    outs=("Hidden", "Cell", "AttentionedX~", "AttentionFCOut~", "LSTMX~", "LSTMOUT~"),
    grad=False,
    rows="sequence",
)
def attention_lstm(
    x: Value,
    c0: Value,
    h0: Value | None,
    weight: Array,
    bias: Array | None,
    scalar: Array | None,
    scalar_bias: Array | None,
    lstm_weight: Array,
    lstm_bias: Array,
    *,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[Value, Value, None, None, None, None]:
    """Return hidden states and cells [rows, D] over sequences [rows, M].

    Each step weights all rows of its sequence by softmax(relu(scalar relu([row, cell] W + b) +
    scalar bias)). W is [M + D, 1]; LSTMWeight [D + M, 4 D] has rows for the hidden state, then for
    the input, and columns for the forget, input and output gates and the candidate.
    """
    x = need(x, "attention_lstm", "X")
    names = (gate_activation, cell_activation, candidate_activation)
    for name in names:
        if name not in ACTIVATIONS:
            raise errors.AttributeTypeError(
                f"attention_lstm: expected an activation of {', '.join(filter(None, ACTIVATIONS))}, found {name!r}"
            )
    gate, cell, candidate = (ACTIVATIONS[n] for n in names)
    width, depth = x.shape[1], lstm_weight.shape[1] // 4
    if not is_unknown(width) and (
        weight.shape != (width + depth, 1) or lstm_weight.shape != (depth + width, 4 * depth)
    ):
        raise errors.ShapeError(
            f"attention_lstm: for rows of {width} and {depth} cells AttentionWeight is "
            f"{[width + depth, 1]} and LSTMWeight {[depth + width, 4 * depth]}, found "
            f"{list(weight.shape)} and {list(lstm_weight.shape)}"
        )
    rows, inside = x.pad(), x.last.mask()  # [number, longest, width], [number, longest]
    fixed = rows @ weight[:width, 0] + (0 if bias is None else bias.reshape(()))
    from_hidden, from_input = lstm_weight[:depth], lstm_weight[depth:]
    shape = (x.last.number, depth)
    h, c = (initial("attention_lstm", slot, state, shape, x.dtype) for slot, state in (("H0", h0), ("C0", c0)))

    def step(state: tuple[Array, Array], here: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        h, c = state
        score = jax.nn.relu(fixed + (c @ weight[width:]))
        if scalar is not None:
            score *= scalar.reshape(())
        if scalar_bias is not None:
            score = jax.nn.relu(score + scalar_bias.reshape(()))
        chance = jax.nn.softmax(score, axis=1, where=inside)
        chance = jnp.where(inside, chance, 0)
        seen = jnp.einsum("nl,nlw->nw", chance, rows)
        gates = seen @ from_input + h @ from_hidden + lstm_bias.reshape(-1)
        f, i, o = jnp.split(gate(gates[:, : 3 * depth]), 3, axis=1)
        new_c = f * c + i * candidate(gates[:, 3 * depth :])
        new_h = o * cell(new_c)
        state = jnp.where(here[:, None], new_h, h), jnp.where(here[:, None], new_c, c)
        return state, state

    _, states = lax.scan(step, (h, c), inside.T)
    hidden, cells = (x.unpad(s, time_major=True) for s in states)
    return hidden, cells, None, None, None, None
