"""Sampled and hierarchical losses against loops over rows; drawn classes by their frequencies."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid import errors
from jfluid.ops import registry
from tests.op_case import check

RNG = np.random.RandomState(8)
X = RNG.normal(size=(3, 2)).astype("float32")
LABEL = np.array([[1, 2], [5, 4], [0, 3]])
WEIGHT, BIAS = RNG.normal(size=(6, 2)).astype("float32"), RNG.normal(size=(6, 1)).astype("float32")
SAMPLE_WEIGHT = np.array([[0.5], [1], [2]], "float32")
CHANCES = np.array([0.1, 0.2, 0.3, 0.1, 0.1, 0.2], "float32")
# Walker's alias table of CHANCES.
ALIASED = {
    "CustomDistProbs": CHANCES,
    "CustomDistAlias": np.array([1, 2, -1, 2, 5, 2], "int32"),
    "CustomDistAliasProbs": np.array([0.6, 0.8, 1, 0.6, 0.6, 0.8], "float32"),
}
ZIPF = np.log((np.arange(6) + 2) / (np.arange(6) + 1)) / np.log(6)
NOISE = {0: np.full(6, 1 / 6), 1: ZIPF, 2: CHANCES}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def noise_contrastive(noise, chances, bias, weights):
    """Cost, SampleLogits and SampleLabels with the noise classes `noise` of every row."""
    cost, out, labels = np.zeros((3, 1)), [], []
    for i, row in enumerate(X):
        classes = [*LABEL[i], *noise]
        found = [sigmoid(row @ WEIGHT[c] + (bias[c, 0] if bias is not None else 0)) for c in classes]
        for j, (c, p) in enumerate(zip(classes, found, strict=True)):
            expected = len(noise) * chances[c]
            cost[i] -= np.log((p if j < 2 else expected) / (p + expected))
        out.append(found)
        labels.append(classes)
    return {"Cost": cost * weights, "SampleLogits": np.array(out), "SampleLabels": np.array(labels)}


@pytest.mark.parametrize("sampler", [0, 1, 2])
def test_nce_with_given_noise(sampler):
    attrs = {
        "num_total_classes": 6,
        "num_neg_samples": 3,
        "sampler": sampler,
        "custom_neg_classes": [2, 3, 5],
    }
    inputs = {"Input": X, "Label": LABEL, "Weight": WEIGHT, **(ALIASED if sampler == 2 else {})}
    rows = ("Input", "Label", "SampleWeight")
    check(
        "nce",
        inputs,
        attrs,
        expect=noise_contrastive([2, 3, 5], NOISE[sampler], None, 1),
        rows=rows,
    )
    if sampler == 0:
        expected = noise_contrastive([2, 3, 5], NOISE[sampler], BIAS, SAMPLE_WEIGHT)
        check(
            "nce",
            {**inputs, "Bias": BIAS, "SampleWeight": SAMPLE_WEIGHT},
            attrs,
            expect={"Cost": expected["Cost"]},
            grad=("Input", "Weight", "Bias"),
            rows=rows,
        )


def drawn(sampler, seed=0, step=0):
    """The noise classes [4000] of 40 rows."""
    extra = list(ALIASED.values()) if sampler == 2 else [None] * 3
    draw = functools.partial(
        registry.get("nce").fn,
        num_total_classes=6,
        num_neg_samples=100,
        sampler=sampler,
        seed=seed,
    )
    with jax.enable_x64(True):
        labels = jax.jit(draw)(
            np.zeros((40, 2), "float32"),
            np.zeros((40, 1), "int64"),
            WEIGHT,
            None,
            None,
            *extra,
            key=jax.random.key(step),
        )[2]
    return np.asarray(labels)[:, 1:].ravel()


@pytest.mark.parametrize("sampler", [0, 1, 2])
def test_nce_draws_noise_by_its_distribution(sampler):
    found = np.bincount(drawn(sampler), minlength=6) / 4000
    # as in Fluid, log-uniform noise lacks the last class
    expected = [*ZIPF[:5], 0] if sampler == 1 else NOISE[sampler]
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_nce_with_a_seed_draws_the_same_each_step():
    assert np.array_equal(drawn(0, seed=3, step=1), drawn(0, seed=3, step=2))
    assert not np.array_equal(drawn(0, step=1), drawn(0, step=2))


def test_nce_names_what_a_custom_distribution_lacks():
    with pytest.raises(errors.OpError, match="CustomDistAlias"):
        registry.get("nce").fn(
            X,
            LABEL,
            WEIGHT,
            None,
            None,
            CHANCES,
            None,
            None,
            num_total_classes=6,
            sampler=2,
            key=jax.random.key(0),
        )
    with jax.enable_x64(True), pytest.raises(errors.AttributeTypeError, match="found 3"):
        registry.get("nce").fn(
            X,
            LABEL,
            WEIGHT,
            None,
            None,
            None,
            None,
            None,
            num_total_classes=6,
            sampler=3,
            custom_neg_classes=(1,),
            key=jax.random.key(0),
        )


def complete_path(label, classes):
    """(nodes, decisions) from the label's leaf up to the root of a complete tree, whose nodes are
    numbered from 1.
    """
    nodes, bits, at = [], [], label + classes
    while at > 1:
        nodes.append(at // 2 - 1)
        bits.append(at % 2)
        at //= 2
    return nodes, bits


def tree_loss(paths, depth, bias):
    out, pre = np.zeros((3, 1)), np.full((3, depth), np.log(2))
    for i, (nodes, bits) in enumerate(paths):
        for j, (node, bit) in enumerate(zip(nodes, bits, strict=True)):
            at = X[i] @ WEIGHT[node] + (bias[node, 0] if bias is not None else 0)
            pre[i, j] = np.log1p(np.exp(at))
            out[i] -= bit * at
    return {"Out": out + pre.sum(1, keepdims=True), "PreOut": pre}


@pytest.mark.parametrize(("classes", "depth"), [(2, 1), (5, 3), (7, 3)])
def test_hierarchical_sigmoid_over_a_complete_tree(classes, depth):
    labels = np.array([[1], [classes - 1], [0]])
    expected = tree_loss([complete_path(n, classes) for n in labels[:, 0]], depth, BIAS)
    inputs = {"X": X, "W": WEIGHT[: classes - 1], "Label": labels, "Bias": BIAS[: classes - 1]}
    check(
        "hierarchical_sigmoid",
        inputs,
        {"num_classes": classes},
        expect=expected,
        rows=("X", "Label"),
    )
    if classes == 5:
        check(
            "hierarchical_sigmoid",
            inputs,
            {"num_classes": classes},
            expect={"Out": expected["Out"]},
            grad=("X", "W", "Bias"),
            rows=("X", "Label"),
        )


def test_hierarchical_sigmoid_over_given_paths():
    table, code = (
        np.array([[0, 2, -1], [0, 1, 3], [0, -1, -1]]),
        np.array([[1, 0, -1], [0, 1, 1], [1, -1, -1]]),
    )
    expected = tree_loss([([0, 2], [1, 0]), ([0, 1, 3], [0, 1, 1]), ([0], [1])], 3, None)
    check(
        "hierarchical_sigmoid",
        {"X": X, "W": WEIGHT[:4], "Label": LABEL[:, :1], "PathTable": table, "PathCode": code},
        {"num_classes": 4},
        expect=expected,
        rows=("X", "Label", "PathTable", "PathCode"),
    )


def test_hierarchical_sigmoid_gives_scores_that_it_holds_a_gradient():
    """Scores count as at most 40, as in Fluid, but their gradient does not vanish there."""

    def loss(x):
        weight = jnp.ones((1, 2), "float32")
        return registry.get("hierarchical_sigmoid").fn(x, weight, np.array([[0]]), None, None, None)[0][0, 0]

    with jax.enable_x64(True):
        found, grad = jax.jit(jax.value_and_grad(loss))(jnp.array([[60.0, 60.0]], jnp.float32))
    assert found == 40 and grad.tolist() == [[1, 1]]


LOGITS = RNG.normal(size=(3, 7)).astype("float32")
SAMPLES = np.concatenate([LABEL, np.tile([0, 3, 5], (3, 1))], 1)
PROBABILITIES = RNG.uniform(0.1, 0.9, SAMPLES.shape).astype("float32")


@pytest.mark.parametrize("remove", [True, False])
def test_sample_logits_with_given_samples(remove):
    expected = np.take_along_axis(LOGITS, SAMPLES, 1).astype("float64")
    for i, j in itertools.product(range(3), range(3)) if remove else ():
        if SAMPLES[i, 2 + j] in LABEL[i]:
            expected[i, 2 + j] -= 1e20
    attrs = {"use_customized_samples": True, "remove_accidental_hits": remove, "num_samples": 3}
    inputs = {
        "Logits": LOGITS,
        "Labels": LABEL,
        "CustomizedSamples": SAMPLES,
        "CustomizedProbabilities": PROBABILITIES,
    }
    check(
        "sample_logits",
        inputs,
        attrs,
        rows=(),
        expect={
            "Samples": SAMPLES,
            "Probabilities": PROBABILITIES,
            "SampledLogits": expected - np.log(PROBABILITIES),
            "SampledLabels": np.array([[0, 1]] * 3),
            "LogitsDim": np.array([3, 7]),
            "LabelsDim": np.array([3, 2]),
        },
    )
    if not remove:
        check(
            "sample_logits",
            inputs,
            attrs,
            expect={"SampledLogits": expected - np.log(PROBABILITIES)},
            grad=("Logits",),
            rows=(),
        )


def sample(step, **attrs):
    draw = jax.jit(functools.partial(registry.get("sample_logits").fn, **attrs))
    with jax.enable_x64(True):
        return draw(LOGITS, LABEL, None, None, key=jax.random.key(step))


def test_sample_logits_draws_different_classes_for_all_rows():
    samples, probabilities, _, _, logits, _ = sample(1, num_samples=4)
    samples = np.asarray(samples)
    assert samples.dtype == "int64" and np.array_equal(samples[:, :2], LABEL)
    assert (samples[:, 2:] == samples[0, 2:]).all() and len(set(samples[0, 2:])) == 4
    chances = np.log((samples + 2) / (samples + 1)) / np.log(8)
    probabilities = np.asarray(probabilities)
    # how many it took to meet 4 different ones
    draws = np.log1p(-probabilities) / np.log1p(-chances)
    assert np.allclose(probabilities, 4 * chances) or (
        np.allclose(draws, round(draws[0, 0]), rtol=1e-3) and draws.min() > 4
    )
    plain = np.take_along_axis(LOGITS, samples, 1) - np.log(probabilities)
    np.testing.assert_allclose(np.asarray(logits)[:, :2], plain[:, :2], rtol=1e-5)
    assert np.array_equal(sample(1, num_samples=4, seed=2)[0], sample(2, num_samples=4, seed=2)[0])


def test_sample_logits_draws_log_uniformly_and_counts_the_draws():
    with jax.enable_x64(True):
        drawn = jax.jit(
            jax.vmap(
                lambda key: registry.get("sample_logits").fn(LOGITS, LABEL, None, None, num_samples=2, key=key)[:2]
            )
        )
        samples, probabilities = (np.asarray(v) for v in drawn(jax.random.split(jax.random.key(0), 2000)))
    chances = np.log((np.arange(7) + 2) / (np.arange(7) + 1)) / np.log(8)
    first, second = samples[:, 0, 2:].T
    np.testing.assert_allclose(np.bincount(first, minlength=7) / 2000, chances, atol=0.04)
    # The second draw repeats the first with the sum of squared chances; else the counts are those
    # of two draws.
    plain = np.isclose(probabilities[:, 0, 2], 2 * chances[first], rtol=1e-5)
    assert abs(plain.mean() - (1 - (chances**2).sum())) < 0.04
    assert (first != second).all()


def test_sample_logits_cannot_draw_more_classes_than_there_are():
    with pytest.raises(errors.ShapeError, match="8 different samples of 7 classes"):
        sample(0, num_samples=8)
