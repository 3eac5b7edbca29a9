"""Softmax over many classes without computing all of them: noise-contrastive estimation, trees, samples."""
import math

import jax
import jax.numpy as jnp
import numpy as np

from jfluid import errors
from jfluid.ops import known
from jfluid.ops.random import key_of
from jfluid.ops.registry import Bool, Int, Ints, Longs, Strings, op


def _log_uniform(values, total: int):
    """The probabilities of classes by Zipf's law: log((k + 2) / (k + 1)) / log(total), of `total` - 1 classes."""
    values = values.astype(jnp.float32)
    return jnp.log((values + 2) / (values + 1)) / math.log(total)


def _draw_log_uniform(key, shape, classes: int):
    draws = jnp.exp(jax.random.uniform(key, shape) * math.log(classes)).astype(jnp.int64) - 1
    return jnp.clip(draws, 0, classes - 1)


def _draw_aliased(key, shape, alias, shares):
    """Classes by Walker's method: one at random, or with the chance 1 - its share the alias of it."""
    if alias is None or shares is None:
        raise errors.OpError("nce: sampler 2 needs CustomDistProbs, CustomDistAlias and CustomDistAliasProbs")
    which, chance = jax.random.split(key)
    drawn = jax.random.randint(which, shape, 0, alias.shape[0], jnp.int64)
    kept = jax.random.uniform(chance, shape, jnp.float32) < shares[drawn]
    return jnp.where(kept, drawn, alias[drawn].astype(jnp.int64))


@op("nce", ins=("Input", "Label", "Weight", "Bias?", "SampleWeight?", "CustomDistProbs?", "CustomDistAlias?",
                "CustomDistAliasProbs?"),
    outs=("Cost", "SampleLogits~", "SampleLabels~"), rng=True, rows="map",
    nograd=("Label", "SampleWeight", "CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs"))
def nce(x, label, weight, bias, sample_weight, probabilities, alias, alias_probabilities, *, num_total_classes: Int,
        num_neg_samples: Int = 10, sampler: Int = 0, seed: Int = 0, custom_neg_classes: Ints = (), is_sparse: Bool = False,
        remote_prefetch: Bool = False, trainer_id: Int = 0, epmap: Strings = (), height_sections: Longs = (),
        table_names: Strings = (), key):
    """Noise-contrastive estimation: the labels told from `num_neg_samples` noise classes a row. Cost is [rows, 1].

    Gutmann and Hyvarinen, 2010; Mnih and Teh, 2012. The noise: 0 uniform, 1 log-uniform, 2 by CustomDistProbs.
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
    scores = jnp.einsum("nd,nsd->ns", x, weight[samples])
    if bias is not None:
        scores = scores + bias.reshape(-1)[samples]
    out = jax.nn.sigmoid(scores)
    if sampler == 0:
        chance = jnp.full(samples.shape, 1 / num_total_classes, x.dtype)
    elif sampler == 1:
        chance = _log_uniform(samples, num_total_classes)
    elif sampler == 2:
        chance = probabilities.reshape(-1)[samples]
    else:
        raise errors.AttributeTypeError(f"nce: sampler is 0, 1 or 2, found {sampler}")
    expected = chance.astype(x.dtype) * num_neg_samples
    is_true = jnp.arange(samples.shape[1]) < true
    losses = -jnp.log(jnp.where(is_true, out, expected) / (out + expected))
    cost = losses.sum(1, keepdims=True)
    if sample_weight is not None:
        cost = cost * sample_weight.reshape(rows, 1)
    return cost, out, samples


@jax.custom_vjp
def _held(scores):
    """Scores between -40 and 40; as in Fluid the gradient is that of scores that are not held."""
    return jnp.clip(scores, -40, 40)


_held.defvjp(lambda scores: (_held(scores), None), lambda _, grad: (grad,))


@op("hierarchical_sigmoid", ins=("X", "W", "Label", "PathTable?", "PathCode?", "Bias?"), outs=("Out", "PreOut~", "W_Out~"),
    nograd=("Label", "PathTable", "PathCode"), rows="map")
def hierarchical_sigmoid(x, weight, label, path_table, path_code, bias, *, num_classes=2, is_sparse=False,
                         remote_prefetch=False, trainer_id=0, epmap: Strings = (), height_sections: Longs = (),
                         table_names: Strings = ()):
    """The loss [rows, 1] of the binary decisions on the way to each label in a tree: a complete one, or given paths.

    Morin and Bengio, "Hierarchical Probabilistic Neural Network Language Model", 2005.
    """
    if path_table is None:
        code = label.reshape(-1).astype(jnp.int64) + num_classes
        bits = jnp.arange(max((num_classes - 1).bit_length(), 1), dtype=jnp.int64)
        node, bit = (code[:, None] >> (bits + 1)) - 1, (code[:, None] >> bits) & 1
        on_path = node >= 0
    else:
        node, bit = path_table, path_code
        on_path = jnp.cumprod(node >= 0, axis=1).astype(bool)
    safe = jnp.where(on_path, node, 0)
    pre = jnp.einsum("nd,nbd->nb", x, weight[safe])
    if bias is not None:
        pre = pre + bias.reshape(-1)[safe]
    pre = jnp.where(on_path, _held(pre), 0)
    loss = jax.nn.softplus(pre) - jnp.where(on_path, bit, 0) * pre
    # A shorter path counts log 2 for each decision it lacks, as in Fluid.
    return loss.sum(1, keepdims=True), jax.lax.stop_gradient(jax.nn.softplus(pre)), None


def _draw_different(key, labels, classes: int, number: int):
    """The labels and `number` different log-uniform classes in each row, and how often each class is expected.

    Fluid draws until it has so many different classes. Here the classes come in the order in which they would be met
    (Gumbel's trick), and the draws between two new ones from the geometric distribution.
    """
    which, waits = jax.random.split(key)
    chances = _log_uniform(jnp.arange(classes), classes + 1)
    drawn = jax.lax.top_k(jnp.log(chances) + jax.random.gumbel(which, (classes,), jnp.float32), number)[1].astype(jnp.int64)
    met = jnp.cumsum(chances[drawn]) - chances[drawn]
    draws = jax.random.geometric(waits, jnp.clip(1 - met, 1e-6, 1)).sum().astype(jnp.float32)
    samples = jnp.concatenate([labels, jnp.broadcast_to(drawn, (labels.shape[0], number))], axis=1)
    chance = _log_uniform(samples, classes + 1)
    return samples, jnp.where(draws == number, chance * number, -jnp.expm1(draws * jnp.log1p(-chance)))


@op("sample_logits", ins=("Logits", "Labels", "CustomizedSamples?", "CustomizedProbabilities?"),
    outs=("Samples~", "Probabilities~", "LogitsDim~", "LabelsDim~", "SampledLogits~", "SampledLabels"), rng=True, rows="map",
    nograd=("Labels", "CustomizedSamples", "CustomizedProbabilities"))
def sample_logits(logits, labels, samples, probabilities, *, num_samples: Int, use_customized_samples: Bool = False,
                  uniq: Bool = True, remove_accidental_hits: Bool = True, seed: Int = 0, key):
    """The logits of the labels and of classes drawn log-uniformly, less the logarithm of their expected counts.

    Jean et al., "On Using Very Large Target Vocabulary", 2014. The drawn classes are the same for all rows and differ.
    """
    classes = logits.shape[1]
    labels = labels.astype(jnp.int64)
    true = labels.shape[1]
    if not use_customized_samples:
        if num_samples > classes and known.placeholder() is None:
            raise errors.ShapeError(f"sample_logits: {num_samples} different samples of {classes} classes cannot be drawn")
        samples, probabilities = _draw_different(key_of(key, seed), labels, classes, min(num_samples, classes))
        probabilities = probabilities.astype(logits.dtype)
    picked = jnp.take_along_axis(logits, samples, axis=1)
    if remove_accidental_hits:
        hit = (samples[:, None, true:] == labels[:, :, None]).any(1)
        picked = picked.at[:, true:].add(jnp.where(hit, -1e20, 0).astype(picked.dtype))
    sampled = picked - jnp.log(jnp.clip(probabilities, 1e-20, None)).astype(picked.dtype)
    positions = jnp.broadcast_to(jnp.arange(true, dtype=jnp.int64), labels.shape)
    dims = [jnp.asarray(np.array(v.shape), jnp.int64) for v in (logits, labels)]
    return samples, jax.lax.stop_gradient(probabilities), *dims, sampled, positions
