"""Distributions, held against their formulas in NumPy."""

import numpy as np
import pytest

from jfluid import layers
from tests.layers.run import build, run

RNG = np.random.RandomState(0)
LOC, SCALE = RNG.randn(3).astype("float32"), RNG.uniform(0.5, 2, 3).astype("float32")
OTHER_LOC, OTHER_SCALE = RNG.randn(3).astype("float32"), RNG.uniform(0.5, 2, 3).astype("float32")
VALUES = RNG.randn(4, 3).astype("float32")


def test_uniform():
    low, high = [0.0, 1.0], [2.0, 5.0]
    out = run(lambda: layers.Uniform(low, high).sample([4000]))
    assert out.shape == (4000, 2) and (out >= low).all() and (out <= high).all()
    np.testing.assert_allclose(out.mean(0), [1, 3], atol=0.1)
    np.testing.assert_allclose(run(lambda: layers.Uniform(low, high).entropy()), np.log([2, 4]), rtol=1e-6)
    value = np.array([0.5, 6.0], "float32")
    np.testing.assert_allclose(
        run(lambda v: layers.Uniform(low, high).log_prob(v), v=value),
        [-np.log(2), -np.inf],
        rtol=1e-6,
    )
    assert run(lambda: layers.Uniform(0.0, 1.0).sample([2, 3])).shape == (2, 3)


def test_normal():
    out = run(lambda: layers.Normal(LOC, SCALE).sample([6000], seed=3))
    np.testing.assert_allclose(out.mean(0), LOC, atol=0.12)
    np.testing.assert_allclose(out.std(0), SCALE, atol=0.12)
    assert run(lambda: layers.Normal(0.0, 1.0).sample([2, 3])).shape == (2, 3)
    entropy = run(lambda: layers.Normal(LOC, SCALE).entropy())
    np.testing.assert_allclose(entropy, 0.5 + 0.5 * np.log(2 * np.pi) + np.log(SCALE), rtol=1e-5)
    log_prob = run(lambda v: layers.Normal(LOC, SCALE).log_prob(v), v=VALUES)
    np.testing.assert_allclose(
        log_prob,
        -((VALUES - LOC) ** 2) / (2 * SCALE**2) - np.log(SCALE * (2 * np.pi) ** 0.5),
        rtol=1e-4,
    )
    divergence = run(lambda: layers.Normal(LOC, SCALE).kl_divergence(layers.Normal(OTHER_LOC, OTHER_SCALE)))
    ratio = (SCALE / OTHER_SCALE) ** 2
    np.testing.assert_allclose(
        divergence,
        0.5 * (ratio + ((LOC - OTHER_LOC) / OTHER_SCALE) ** 2 - 1 - np.log(ratio)),
        rtol=1e-4,
    )


@pytest.mark.parametrize("distribution", ["Normal", "Uniform"])
def test_parameters_given_by_variables(distribution):
    low = np.zeros((4, 3), "float32")
    given = {"low": ([-1, 3], low), "high": ([-1, 3], low + 1)}
    out = run(lambda low, high: getattr(layers, distribution)(low, high).sample([2, 5]), **given)
    assert out.shape == (2, 5, 4, 3)
    with pytest.raises(TypeError, match="all parameters to be Variables"):
        build(lambda low, high: getattr(layers, distribution)(low, 1.0), **given)


def probabilities(logits):
    out = np.exp(logits)
    return out / out.sum(-1, keepdims=True)


def test_categorical():
    p, q = probabilities(VALUES), probabilities(VALUES[::-1])
    entropy = run(lambda x: layers.Categorical(x).entropy(), x=VALUES)
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(-1, keepdims=True), rtol=1e-5)
    divergence = run(
        lambda x, y: layers.Categorical(x).kl_divergence(layers.Categorical(y)),
        x=VALUES,
        y=VALUES[::-1].copy(),
    )
    np.testing.assert_allclose(divergence, (p * np.log(p / q)).sum(-1, keepdims=True), rtol=1e-4)
    with pytest.raises(NotImplementedError, match="Categorical has no sample"):
        build(lambda x: layers.Categorical(x).sample(), x=VALUES)


def test_multivariate_normal():
    one, two = np.diag(SCALE), np.diag(OTHER_SCALE)
    entropy = run(lambda m, s: layers.MultivariateNormalDiag(m, s).entropy(), m=LOC, s=one)
    np.testing.assert_allclose(entropy, [0.5 * (3 * (1 + np.log(2 * np.pi)) + np.log(SCALE).sum())], rtol=1e-5)
    divergence = run(
        lambda m, s, n, t: layers.MultivariateNormalDiag(m, s).kl_divergence(layers.MultivariateNormalDiag(n, t)),
        m=LOC,
        s=one,
        n=OTHER_LOC,
        t=two,
    )
    expected = 0.5 * (
        (SCALE / OTHER_SCALE).sum()
        + ((OTHER_LOC - LOC) ** 2 / OTHER_SCALE).sum()
        - 3
        + np.log(OTHER_SCALE).sum()
        - np.log(SCALE).sum()
    )
    np.testing.assert_allclose(divergence, [expected], rtol=1e-4)
    with pytest.raises(TypeError, match="expected a MultivariateNormalDiag"):
        build(
            lambda m, s: layers.MultivariateNormalDiag(m, s).kl_divergence(layers.Normal(0.0, 1.0)),
            m=LOC,
            s=one,
        )
