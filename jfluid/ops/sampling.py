"""Sampled losses over many classes: noise-contrastive estimation, hierarchical sigmoid, sampled softmax."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfluid import errors
from jfluid.ir.types import VarType
from jfluid.ops import static_values
from jfluid.ops.ragged import Ragged, Value, rows_of
from jfluid.ops.random import key_of
from jfluid.ops.registry import Bool, Int, Ints, Longs, Strings, op
from jfluid.ops.selected_rows import SelectedRows


def _log_uniform(values: Array, total: int) -> Array:
    """Return Zipf probabilities log((k + 2) / (k + 1)) / log(total) of `total` - 1 classes."""
    values = values.astype(jnp.float32)
    return jnp.log((values + 2) / (values + 1)) / math.log(total)


def _draw_log_uniform(key: Array, shape: Sequence[int], classes: int) -> Array:
    draws = jnp.exp(jax.random.uniform(key, shape) * math.log(classes)).astype(jnp.int64) - 1
    return jnp.clip(draws, 0, classes - 1)


def _draw_aliased(key: Array, shape: Sequence[int], alias: Array | None, shares: Array | None) -> Array:
    """Draw classes by Walker's method: one at random, or with probability 1 - its share its alias."""
    if alias is None or shares is None:
        raise errors.OpError("nce: sampler 2 needs CustomDistProbs, CustomDistAlias and CustomDistAliasProbs")
    which, chance = jax.random.split(key)
    drawn = jax.random.randint(which, shape, 0, alias.shape[0], jnp.int64)
    kept = jax.random.uniform(chance, shape, jnp.float32) < shares[drawn]
    return jnp.where(kept, drawn, alias[drawn].astype(jnp.int64))


@op(
    "nce",
    ins=(
        "Input",
        "Label",
        "Weight",
        "Bias?",
        "SampleWeight?",
        "CustomDistProbs?",
        "CustomDistAlias?",
        "CustomDistAliasProbs?",
    ),
    outs=("Cost", "SampleLogits~", "SampleLabels~"),
    rng=True,
    rows="map",
    nograd=("Label", "SampleWeight", "CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs"),
)
def nce(
    x: Array,
    label: Array,
    weight: Array,
    bias: Array | None,
    sample_weight: Array | None,
    probabilities: Array | None,
    alias: Array | None,
    alias_probabilities: Array | None,
    *,
    num_total_classes: Int,
    num_neg_samples: Int = 10,
    sampler: Int = 0,
    seed: Int = 0,
    custom_neg_classes: Ints = (),
    is_sparse: Bool = False,
    remote_prefetch: Bool = False,
    trainer_id: Int = 0,
    epmap: Strings = (),
    height_sections: Longs = (),
    table_names: Strings = (),
    key: Array,
) -> tuple[Array, Array, Array]:
    """Return the noise-contrastive estimation loss [rows, 1] of labels against `num_neg_samples` noise classes.

    Gutmann & Hyvärinen, 2010; Mnih & Teh, 2012. Classes are drawn 0: uniformly, 1: log-uniformly,
    2: by CustomDistProbs.
    """
    rows = x.shape[0]
    label = label.reshape(rows, -1).astype(jnp.int64)
    shape, true = (rows, num_neg_samples), label.shape[1]
    key = key_of(key, seed)
    if custom_neg_classes:
        noise = jnp.broadcast_to(jnp.asarray(custom_neg_classes, jnp.int64), (rows, len(custom_neg_classes)))
    elif sampler == 0:
        noise = jax.random.randint(key, shape, 0, num_total_classes, jnp.int64)
    elif sampler == 1:
        noise = _draw_log_uniform(key, shape, num_total_classes)
    else:
        noise = _draw_aliased(key, shape, alias, alias_probabilities)
    samples = jnp.concatenate([label, noise], axis=1)
    expected = _expected(samples, probabilities, sampler, num_total_classes, x.dtype) * num_neg_samples
    return *_nce_cost(
        x, weight[samples], None if bias is None else bias.reshape(-1)[samples], expected, true, sample_weight
    ), samples


def _expected(samples: Array, probabilities: Any, sampler: int, num_total_classes: int, dtype: Any) -> Array:
    """Return the probability of each sampled class under the noise."""
    if sampler == 0:
        return jnp.full(samples.shape, 1 / num_total_classes, dtype)
    if sampler == 1:
        return _log_uniform(samples, num_total_classes).astype(dtype)
    if sampler == 2:
        return probabilities.reshape(-1)[samples].astype(dtype)
    raise errors.AttributeTypeError(f"nce: sampler is 0, 1 or 2, found {sampler}")


def _nce_cost(
    x: Array, weights: Array, biases: Array | None, expected: Array, true: int, sample_weight: Any
) -> tuple[Array, Array]:
    """Return (cost, sigmoids of the scores) from weights [rows, samples, width] and biases of samples."""
    scores = jnp.einsum("nd,nsd->ns", x, weights)
    out = jax.nn.sigmoid(scores if biases is None else scores + biases)
    is_true = jnp.arange(out.shape[1]) < true
    cost = -jnp.log(jnp.where(is_true, out, expected) / (out + expected)).sum(1, keepdims=True)
    return cost if sample_weight is None else cost * sample_weight.reshape(-1, 1), out


def _sparse_weight(slot: str) -> Callable[..., Any]:
    return lambda op: {slot: VarType.SELECTED_ROWS} if op.attrs.get("is_sparse") else {}


def _gradient_of_rows(
    function: Any,
    x: Array,
    weight: Array,
    bias: Any,
    index: Array,
    grad: Array,
    is_sparse: bool,
    ignored: Array | None = None,
) -> tuple[Value, Any, Array | None]:
    """Return the gradients of `function(x, weight[index], bias[index])` for x, the weight and the bias.

    The weight's gradient is sparse if `is_sparse`.
    """
    plain = rows_of(x)
    biases = None if bias is None else bias.reshape(-1)[index]
    _, pull = jax.vjp(function, plain, weight[index], biases)
    grad_x, values, grad_biases = pull(rows_of(grad))
    rows = index if ignored is None else jnp.where(ignored, weight.shape[0], index)
    if isinstance(x, Ragged) and not x.exact:
        rows = jnp.where(x.mask()[:, None], rows, weight.shape[0])
    found = SelectedRows(rows.reshape(-1), values.reshape(-1, weight.shape[1]), weight.shape[0])
    grad_bias = None if bias is None else jnp.zeros(bias.size, bias.dtype).at[rows].add(grad_biases, mode="drop")
    return (
        x.like(grad_x) if isinstance(x, Ragged) else grad_x,
        found if is_sparse else found.dense(),
        None if bias is None or grad_bias is None else grad_bias.reshape(bias.shape),
    )


@op(
    "nce_grad",
    ins=(
        "Input",
        "Label",
        "Weight",
        "Bias?",
        "SampleWeight?",
        "CustomDistProbs?",
        "CustomDistAlias?",
        "CustomDistAliasProbs?",
        "SampleLogits?",
        "SampleLabels?",
        "Cost@GRAD",
    ),
    outs=("Input@GRAD", "Weight@GRAD", "Bias@GRAD?"),
    grad=False,
    rows="sequence",
    types=_sparse_weight("Weight@GRAD"),
)
def nce_grad(
    x: Value,
    label: Value,
    weight: Value,
    bias: Value | None,
    sample_weight: Value | None,
    probabilities: Value | None,
    alias: Value | None,
    alias_probabilities: Value | None,
    logits: Value | None,
    samples: Value | None,
    grad: Value,
    *,
    num_total_classes: Int,
    num_neg_samples: Int = 10,
    sampler: Int = 0,
    seed: Int = 0,
    custom_neg_classes: Ints = (),
    is_sparse: Bool = False,
    remote_prefetch: Bool = False,
    trainer_id: Int = 0,
    epmap: Strings = (),
    height_sections: Longs = (),
    table_names: Strings = (),
) -> tuple[Value, Value, Value | None]:
    """Return the gradients of nce for the classes that were drawn; `SelectedRows` of the weight when is_sparse."""
    label = rows_of(label).reshape(rows_of(x).shape[0], -1).astype(jnp.int64)
    if samples is None and not custom_neg_classes:
        raise errors.OpError(
            "nce_grad needs SampleLabels, the noise that nce drew: name that output of nce in the program"
        )
    noise = jnp.broadcast_to(jnp.asarray(custom_neg_classes, jnp.int64), (label.shape[0], len(custom_neg_classes)))
    samples = jnp.concatenate([label, noise], axis=1) if samples is None else rows_of(samples)
    true = label.shape[1]
    expected = _expected(samples, probabilities, sampler, num_total_classes, weight.dtype) * num_neg_samples
    weights = None if sample_weight is None else rows_of(sample_weight)
    return _gradient_of_rows(
        lambda x, w, b: _nce_cost(x, w, b, expected, true, weights)[0], x, weight, bias, samples, grad, is_sparse
    )


@jax.custom_vjp
def _held(scores: Array) -> Array:
    """Clip scores to [-40, 40]; as in Fluid, the gradient ignores the clipping."""
    return jnp.clip(scores, -40, 40)


_held.defvjp(lambda scores: (_held(scores), None), lambda _, grad: (grad,))


@op(
    "hierarchical_sigmoid",
    ins=("X", "W", "Label", "PathTable?", "PathCode?", "Bias?"),
    outs=("Out", "PreOut~", "W_Out~"),
    nograd=("Label", "PathTable", "PathCode"),
    rows="map",
)
def hierarchical_sigmoid(
    x: Array,
    weight: Array,
    label: Array,
    path_table: Array | None,
    path_code: Array | None,
    bias: Array | None,
    *,
    num_classes: int = 2,
    is_sparse: bool = False,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    epmap: Strings = (),
    height_sections: Longs = (),
    table_names: Strings = (),
) -> tuple[Array, Array, Array | None]:
    """Return the hierarchical sigmoid loss [rows, 1] of the binary decisions on the path to each label.

    The tree is a complete binary tree, or is given as paths.

    Morin & Bengio, "Hierarchical Probabilistic Neural Network Language Model", 2005.
    """
    node, bit, on_path = _path(label, path_table, path_code, num_classes)
    out, pre = _path_loss(x, weight[node], None if bias is None else bias.reshape(-1)[node], bit, on_path)
    return out, jax.lax.stop_gradient(pre), None


def _path(
    label: Array, path_table: Array | None, path_code: Array | None, num_classes: int
) -> tuple[Array, Array, Array]:
    """Return the inner nodes, the binary decisions and their mask, [rows, depth], on the path to each label.

    Nodes past the end of a path are 0.
    """
    if path_table is None:
        code = label.reshape(-1).astype(jnp.int64) + num_classes
        bits = jnp.arange(max((num_classes - 1).bit_length(), 1), dtype=jnp.int64)
        node, bit = (code[:, None] >> (bits + 1)) - 1, (code[:, None] >> bits) & 1
        on_path = node >= 0
    else:
        if path_code is None:
            raise errors.ProgramError("hierarchical_sigmoid: PathTable needs PathCode")
        node, bit = path_table, path_code
        on_path = jnp.cumprod(node >= 0, axis=1).astype(bool)
    return jnp.where(on_path, node, 0), bit, on_path


def _path_loss(x: Array, weights: Array, biases: Array | None, bit: Array, on_path: Array) -> tuple[Array, Array]:
    """Return (loss, softplus of the scores) from weights [rows, depth, width] and biases of path nodes."""
    pre = jnp.einsum("nd,nbd->nb", x, weights)
    pre = jnp.where(on_path, _held(pre if biases is None else pre + biases), 0)
    loss = jax.nn.softplus(pre) - jnp.where(on_path, bit, 0) * pre
    # A shorter path counts log 2 for each decision it lacks, as in Fluid.
    return loss.sum(1, keepdims=True), jax.nn.softplus(pre)


@op(
    "hierarchical_sigmoid_grad",
    ins=("X", "W", "Label", "PathTable?", "PathCode?", "Bias?", "PreOut?", "Out@GRAD"),
    outs=("X@GRAD", "W@GRAD", "Bias@GRAD?"),
    grad=False,
    rows="sequence",
    types=_sparse_weight("W@GRAD"),
)
def hierarchical_sigmoid_grad(
    x: Value,
    weight: Value,
    label: Value,
    path_table: Value | None,
    path_code: Value | None,
    bias: Value | None,
    pre: Value | None,
    grad: Value,
    *,
    num_classes: int = 2,
    is_sparse: bool = False,
    remote_prefetch: bool = False,
    trainer_id: int = 0,
    epmap: Strings = (),
    height_sections: Longs = (),
    table_names: Strings = (),
) -> tuple[Value, Value, Value | None]:
    """Return the gradients of hierarchical_sigmoid; `SelectedRows` of the weight when is_sparse."""
    table, code = (None if t is None else rows_of(t) for t in (path_table, path_code))
    node, bit, on_path = _path(rows_of(label), table, code, num_classes)
    return _gradient_of_rows(
        lambda x, w, b: _path_loss(x, w, b, bit, on_path)[0], x, weight, bias, node, grad, is_sparse, ~on_path
    )


def _draw_different(key: Array, labels: Array, classes: int, number: int) -> tuple[Array, Array]:
    """Return the labels and `number` different log-uniform classes in each row, and how often each class is expected.

    Fluid draws until it has so many different classes. Here the classes come in the order in which
    they would be drawn first (Gumbel's trick), and the number of draws between two new ones from
    the geometric distribution.
    """
    which, waits = jax.random.split(key)
    chances = _log_uniform(jnp.arange(classes), classes + 1)
    drawn = jax.lax.top_k(jnp.log(chances) + jax.random.gumbel(which, (classes,), jnp.float32), number)[1].astype(
        jnp.int64
    )
    met = jnp.cumsum(chances[drawn]) - chances[drawn]
    draws = jax.random.geometric(waits, jnp.clip(1 - met, 1e-6, 1)).sum().astype(jnp.float32)
    samples = jnp.concatenate([labels, jnp.broadcast_to(drawn, (labels.shape[0], number))], axis=1)
    chance = _log_uniform(samples, classes + 1)
    return samples, jnp.where(draws == number, chance * number, -jnp.expm1(draws * jnp.log1p(-chance)))


@op(
    "sample_logits",
    ins=("Logits", "Labels", "CustomizedSamples?", "CustomizedProbabilities?"),
    outs=("Samples~", "Probabilities~", "LogitsDim~", "LabelsDim~", "SampledLogits~", "SampledLabels"),
    rng=True,
    rows="map",
    nograd=("Labels", "CustomizedSamples", "CustomizedProbabilities"),
)
def sample_logits(
    logits: Array,
    labels: Array,
    samples: Array | None,
    probabilities: Array | None,
    *,
    num_samples: Int,
    use_customized_samples: Bool = False,
    uniq: Bool = True,
    remove_accidental_hits: Bool = True,
    seed: Int = 0,
    key: Array,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return the logits of the labels and of classes drawn log-uniformly, less the logarithm of their expected counts.

    Jean et al., "On Using Very Large Target Vocabulary", 2014. The drawn classes are the same for
    all rows, and all different.
    """
    classes = logits.shape[1]
    labels = labels.astype(jnp.int64)
    true = labels.shape[1]
    if not use_customized_samples:
        if num_samples > classes and static_values.placeholder() is None:
            raise errors.ShapeError(
                f"sample_logits: {num_samples} different samples of {classes} classes cannot be drawn"
            )
        samples, probabilities = _draw_different(key_of(key, seed), labels, classes, min(num_samples, classes))
        probabilities = probabilities.astype(logits.dtype)
    elif samples is None or probabilities is None:
        raise errors.ProgramError(
            "sample_logits: use_customized_samples needs the inputs CustomizedSamples and CustomizedProbabilities"
        )
    picked = jnp.take_along_axis(logits, samples, axis=1)
    if remove_accidental_hits:
        hit = (samples[:, None, true:] == labels[:, :, None]).any(1)
        picked = picked.at[:, true:].add(jnp.where(hit, -1e20, 0).astype(picked.dtype))
    sampled = picked - jnp.log(jnp.clip(probabilities, 1e-20, None)).astype(picked.dtype)
    positions = jnp.broadcast_to(jnp.arange(true, dtype=jnp.int64), labels.shape)
    dims = [jnp.asarray(np.array(v.shape), jnp.int64) for v in (logits, labels)]
    return samples, jax.lax.stop_gradient(probabilities), dims[0], dims[1], sampled, positions
