"""Fused operators of Fluid's inference passes, composed of the replaced operators' functions."""

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
from jax import Array

from jfluid import errors
from jfluid.ops import row_rules, static_values
from jfluid.ops.activation import gelu
from jfluid.ops.click import cvm
from jfluid.ops.elementwise import aligned
from jfluid.ops.linalg import mul
from jfluid.ops.ragged import Level, Ragged, Value, need, rows_of, spread
from jfluid.ops.recurrent import gru, lstm
from jfluid.ops.recurrent_loops import ACTIVATIONS
from jfluid.ops.registry import Bool, Float, Int, Strings, op
from jfluid.ops.sequence import sequence_conv, sequence_pool

_PADDING = 4  # padding rows and columns that Fluid adds to weights with a width that is a multiple of 128


def _activation(op_type: str, name: str) -> Callable[[Array], Array]:
    if name not in ACTIVATIONS:
        raise errors.AttributeTypeError(
            f"{op_type}: expected an activation of {', '.join(filter(None, ACTIVATIONS))}, found {name!r}"
        )
    return ACTIVATIONS[name]


def _affine(x: Array, weight: Array, bias: Array | None) -> Array:
    out = x @ weight
    return out if bias is None else out + bias.reshape(-1)


@op("fc", ins=("Input", "W", "Bias?"), outs=("Out",), rows=row_rules.fully_connected, examples=("Input",))
def fc(
    x: Array,
    weight: Array,
    bias: Array | None,
    *,
    in_num_col_dims: int = 1,
    activation_type: str = "",
    padding_weights: bool = False,
) -> Array:
    """Multiply x, flattened to two dimensions, by the weight; add the bias and apply "relu" or nothing."""
    if activation_type not in ("", "relu"):
        raise errors.AttributeTypeError(f"fc: expected activation_type '' or 'relu', found {activation_type!r}")
    if padding_weights:
        weight = weight[:-_PADDING, :-_PADDING]
    out = mul(x, weight, x_num_col_dims=in_num_col_dims)
    if bias is not None:
        if bias.size != weight.shape[1]:
            raise errors.ShapeError(f"fc: Bias: expected {weight.shape[1]} numbers, found shape {list(bias.shape)}")
        out = out + bias.reshape(-1)
    return jax.nn.relu(out) if activation_type else out


@op("fusion_repeated_fc_relu", ins=("X", "W*", "Bias*"), outs=("ReluOut*~", "Out"), rows="map")
def fusion_repeated_fc_relu(x: Array, weights: list[Array], biases: list[Array]) -> tuple[list[Array], Array]:
    """Apply relu(x W + b) for each weight and bias in turn; return every result but the last, and the last."""
    if len(weights) != len(biases) or not weights:
        raise errors.ShapeError(
            f"fusion_repeated_fc_relu: expected a bias for each weight, found {len(weights)} "
            f"weights and {len(biases)} biases"
        )
    found = []
    for weight, bias in zip(weights, biases):
        x = jax.nn.relu(_affine(x, weight, bias))
        found.append(x)
    return found[:-1], x


@op(
    "fusion_squared_mat_sub",
    ins=("X", "Y"),
    outs=("SquaredX~", "SquaredY~", "SquaredXY~", "Out"),
    rows=row_rules.matrix_product,
)
def fusion_squared_mat_sub(x: Array, y: Array, *, scalar: float = 1.0) -> tuple[Array, Array, Array, Array]:
    """Return scalar * ((x y)^2 - x^2 y^2), the second order term of a factorization machine.

    Rendle, "Factorization Machines", 2010, equation 5.
    """
    if x.ndim != 2 or y.ndim != 2:
        raise errors.ShapeError(f"fusion_squared_mat_sub: expected two matrices, found {x.shape} and {y.shape}")
    squared_x, squared_y, squared_product = jnp.square(x), jnp.square(y), jnp.square(x @ y)
    out = scalar * (squared_product - squared_x @ squared_y)
    return squared_x, squared_y, squared_product, out.astype(x.dtype)


_FUNCTORS: dict[str, Callable[[Array, float], Array]] = {
    "scale": lambda x, scale: x * jnp.asarray(scale, x.dtype),
    "relu": lambda x, _: jax.nn.relu(x),
    "tanh": lambda x, _: jnp.tanh(x),
    "sigmoid": lambda x, _: jax.nn.sigmoid(x),
    "gelu": lambda x, _: gelu(x),
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {"elementwise_add": jnp.add, "elementwise_mul": jnp.multiply}


@op("fused_elemwise_activation", ins=("X", "Y"), outs=("Out", "IntermediateOut~"), rows="map")
def fused_elemwise_activation(
    x: Array,
    y: Array,
    *,
    functor_list: Strings,
    axis: Int = -1,
    scale: Float = 0.0,
    save_intermediate_out: Bool = False,
) -> tuple[Array, Array]:
    """Apply a binary and a unary functor: f(x + y) for [f, elementwise_add], x + f(y) for [elementwise_add, f].

    The second output is the intermediate result.
    """
    names = [str(n) for n in functor_list]
    kinds = [n in _BINARY for n in names]
    unknown = [n for n in names if n not in _BINARY and n not in _FUNCTORS]
    if len(names) != 2 or unknown or sum(kinds) != 1:
        raise errors.AttributeTypeError(
            f"fused_elemwise_activation: functor_list: expected one of {', '.join(_BINARY)} and one "
            f"of {', '.join(_FUNCTORS)}, found {names}"
        )
    if kinds[0]:  # x + f(y)
        inner = _FUNCTORS[names[1]](y, scale)
        return _BINARY[names[0]](*aligned(x, inner, axis, "fused_elemwise_activation")), inner
    inner = _BINARY[names[1]](*aligned(x, y, axis, "fused_elemwise_activation"))
    return _FUNCTORS[names[0]](inner, scale), inner


@op(
    "fusion_gru",
    ins=("X", "H0?", "WeightX", "WeightH", "Bias?"),
    outs=("ReorderedH0~", "XX~", "BatchedInput~", "BatchedOut~", "Hidden"),
    rows="sequence",
)
def fusion_gru(
    x: Value,
    h0: Value | None,
    weight_x: Value,
    weight_h: Value,
    bias: Value | None,
    *,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    is_reverse: bool = False,
    use_seq: bool = True,
    origin_mode: bool = False,
) -> tuple[None, Value, None, None, Value]:
    """Project the rows of each sequence and run a GRU on the projections.

    `use_seq` selects between two Fluid kernels with the same result. (Fluid's CPU kernels ignore
    `origin_mode`.)
    """
    x = need(x, "fusion_gru", "X")
    projected = x.like(x.values @ weight_x)
    hidden = gru(
        projected,
        h0,
        weight_h,
        bias,
        activation=activation,
        gate_activation=gate_activation,
        is_reverse=is_reverse,
        origin_mode=origin_mode,
    )[3]
    return None, projected, None, None, hidden


_LSTM_OUTS = (
    "Hidden",
    "Cell",
    "XX~",
    "BatchedInput~",
    "BatchedHidden~",
    "BatchedCell~",
    "ReorderedH0~",
    "ReorderedC0~",
)


@op(
    "fusion_lstm",
    ins=("X", "WeightX", "WeightH", "Bias", "H0?", "C0?"),
    outs=(*_LSTM_OUTS, "CheckedCell~"),
    rows="sequence",
)
def fusion_lstm(
    x: Value,
    weight_x: Value,
    weight_h: Value,
    bias: Value,
    h0: Value | None,
    c0: Value | None,
    *,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    use_seq: bool = True,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[Value | None, ...]:
    """Project the rows of each sequence and run an LSTM on the projections.

    `use_seq` selects between two Fluid kernels with the same result.
    """
    x = need(x, "fusion_lstm", "X")
    projected = x.like(x.values @ weight_x)
    hidden, cell, _, _ = lstm(
        projected,
        h0,
        c0,
        weight_h,
        bias,
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
        gate_activation=gate_activation,
        cell_activation=cell_activation,
        candidate_activation=candidate_activation,
    )
    return hidden, cell, projected, *[None] * 6


@op(
    "fused_embedding_fc_lstm",
    ins=("Ids", "Embeddings", "WeightH", "Bias", "H0?", "C0?"),
    outs=_LSTM_OUTS,
    nograd=("Ids",),
    rows="sequence",
)
def fused_embedding_fc_lstm(
    ids: Value,
    embeddings: Value,
    weight_h: Value,
    bias: Value,
    h0: Value | None,
    c0: Value | None,
    *,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    use_seq: bool = True,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
) -> tuple[Value | None, ...]:
    """Look up projected inputs, which contain the gate biases, and run an LSTM on the inputs.

    Only the peephole weights of the bias are used.
    """
    ids = need(ids, "fused_embedding_fc_lstm", "Ids")
    projected = ids.like(jnp.take(embeddings, ids.values.reshape(-1), axis=0, mode="clip"))
    flat = bias.reshape(-1)
    hidden, cell, _, _ = lstm(
        projected,
        h0,
        c0,
        weight_h,
        flat.at[: embeddings.shape[1]].set(0),
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
        gate_activation=gate_activation,
        cell_activation=cell_activation,
        candidate_activation=candidate_activation,
    )
    return hidden, cell, projected, *[None] * 5


@op("fusion_seqconv_eltadd_relu", ins=("X", "Filter", "Bias"), outs=("Out", "ColMat~"), rows="sequence")
def fusion_seqconv_eltadd_relu(
    x: Value, weight: Value, bias: Value, *, contextLength: Int, contextStart: Int = 0, contextStride: Int = 1
) -> tuple[Value, None]:
    """Apply relu(sequence_conv(x) + bias)."""
    out = sequence_conv(
        x, None, weight, contextLength=contextLength, contextStart=contextStart, contextStride=contextStride
    )
    return out.like(jax.nn.relu(out.values + bias.reshape(-1))), None


@op("fusion_seqexpand_concat_fc", ins=("X*", "FCWeight", "FCBias?"), outs=("Out", "FCOut~"), rows="sequence")
def fusion_seqexpand_concat_fc(
    xs: list[Value], weight: Value, bias: Value | None, *, fc_activation: str = "identity"
) -> tuple[Value, None]:
    """Concatenate the rows of the first input with the sequences' rows of later inputs, and apply fc."""
    first = need(xs[0], "fusion_seqexpand_concat_fc", "X[0]")
    activation = _activation("fusion_seqexpand_concat_fc", fc_activation)
    widths = [prod(x.shape[1:]) for x in xs]
    if sum(widths) != weight.shape[0] and not static_values.placeholder():
        raise errors.ShapeError(
            f"fusion_seqexpand_concat_fc: FCWeight: expected {sum(widths)} rows, for inputs of "
            f"{widths} columns, found {weight.shape[0]}"
        )
    begin, out = 0, jnp.zeros((), first.dtype)
    for x, width in zip(xs, widths):
        part = rows_of(x) @ weight[begin : begin + width]
        out = out + (part if begin == 0 else spread(part, first.last, first.capacity))
        begin += width
    out = out if bias is None else out + bias.reshape(-1)
    return first.like(activation(out)), None


def _pooled(op_type: str, xs: list[Ragged], pooltype: str, axis: int) -> list[Value]:
    if pooltype not in ("SUM", "AVERAGE", "SQRT"):
        raise errors.AttributeTypeError(f"{op_type}: expected pooltype SUM, AVERAGE or SQRT, found {pooltype!r}")
    if axis != 1:
        raise errors.AttributeTypeError(f"{op_type}: expected axis 1, found {axis}")
    if any(len(x.levels) != 1 for x in xs):
        raise errors.ShapeError(f"{op_type}: X of one level is needed; pool the lower level first")
    return [sequence_pool(x, pooltype=pooltype)[0] for x in xs]


def _side_by_side(like: Ragged, pooled: list[Value]) -> Ragged:
    """Return the columns of all; as in Fluid each row is a sequence."""
    out = jnp.concatenate([rows_of(p) for p in pooled], axis=1)
    count = like.last.count
    if count is None:
        return Ragged(out, (Level(None, 1, like.last.number),), exact=True)
    offsets = jnp.minimum(jnp.arange(like.last.number + 1, dtype=jnp.int32), count)
    return Ragged(out, (Level(offsets, 1, count=count),)).refilled()


@op("fusion_seqpool_concat", ins=("X*",), outs=("Out",), rows="sequence")
def fusion_seqpool_concat(xs: list[Value], *, pooltype: str = "SUM", axis: int = 1) -> Value:
    """Pool each sequence of each input to one row; put the rows of all inputs side by side."""
    xs = [need(x, "fusion_seqpool_concat", "X") for x in xs]
    return _side_by_side(xs[0], _pooled("fusion_seqpool_concat", xs, pooltype, axis))


@op("fusion_seqpool_cvm_concat", ins=("X*", "CVM"), outs=("Out",), nograd=("CVM",), rows="sequence")
def fusion_seqpool_cvm_concat(
    xs: list[Value], counts: Value, *, pooltype: str = "SUM", use_cvm: bool = True, axis: int = 1
) -> Value:
    """Pool each sequence of each input, apply `cvm`, and concatenate the results along columns."""
    xs = [need(x, "fusion_seqpool_cvm_concat", "X") for x in xs]
    pooled = _pooled("fusion_seqpool_cvm_concat", xs, pooltype, axis)
    return _side_by_side(xs[0], [cvm(rows_of(p), counts, use_cvm=use_cvm) for p in pooled])
