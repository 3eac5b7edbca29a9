"""Sums over images for each channel, and of windows that overlap, by machine code of our own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jfluid.compile.rewrites import jaxpr_rewrites
from jfluid.machine_code import channel_kernels, channel_sums, functions
from jfluid.machine_code.convolution_kernels import TILE
from jfluid.machine_code.processor import LANES
from jfluid.ops import norm

pytestmark = pytest.mark.skipif(not channel_kernels.names(), reason="machine code is made for CPUs with AVX2")

SHAPES = {
    "one vector": ((64, 32, 32, 16), 0, 1),
    "two vectors": ((64, 16, 16, 32), 3, 1),
    "far from zero": ((64, 8, 8, 64), 1000, 1),
    "part of a vector": ((128, 12, 12, 20), -5, 1),
    "chunks of different lengths": ((3, 50, 51, 49), 1, 1),
    "two groups": ((64, 32, 32, 16), 3, 2),
    "groups of chunks of different lengths": ((9, 50, 51, 49), -1, 3),
    "groups of fewer rows than a chunk": ((40, 8, 9, 64), 2, 40),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert functions.images_registered()


@pytest.mark.parametrize("shape, offset, groups", SHAPES.values(), ids=SHAPES)
def test_sums_are_those_of_float64(shape, offset, groups):
    random = np.random.RandomState(0)
    x = (random.randn(*shape) + offset).astype(np.float32)
    x += np.repeat(np.arange(groups, dtype=np.float32), shape[0] // groups)[:, None, None, None]
    grad = random.randn(*shape).astype(np.float32)
    exact, exact_grad = (a.reshape(groups, -1, shape[-1]).astype(np.float64) for a in (x, grad))
    mean, variance = jax.jit(channel_sums.moments, static_argnums=1)(x, groups)
    np.testing.assert_allclose(mean, exact.mean(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, exact.var(1), rtol=1e-4)
    products = jax.jit(channel_sums.products, static_argnums=3)
    of_grad, of_products = products(grad, x, mean, groups)
    centred = exact - np.asarray(mean, np.float64)[:, None]
    np.testing.assert_allclose(of_grad, exact_grad.sum(1), atol=2e-3)
    np.testing.assert_allclose(of_products, (exact_grad * centred).sum(1), atol=2e-3)


def _normalised(channels, groups):
    """A convolution of images that is normalised, and its gradients, as a step has them; the arguments."""
    random = np.random.RandomState(0)
    x, w = random.randn(8, channels, 32, 32), random.randn(channels, channels, 3, 3)

    def step(x, w):
        def loss(x, w):
            y = lax.conv_general_dilated(x, w, (1, 1), "SAME")
            scale = jnp.full(channels, 2.0, y.dtype)
            y, mean, variance, _ = norm._batch_norm(y, scale, scale, 1e-5, 1, groups)
            return jnp.sum(jnp.sin(y)), (mean, variance)

        return dict(enumerate(jax.tree.leaves(jax.grad(loss, (0, 1), has_aux=True)(x, w))))

    return step, (jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))


@pytest.mark.parametrize("channels, groups, calls", [(16, 1, 2), (16, 2, 2), (LANES // 2, 1, 0)])
def test_a_normalisation_of_images_calls_it_forward_and_back(channels, groups, calls):
    step, arguments = _normalised(channels, groups)

    def last(x, w):
        return jaxpr_rewrites.evaluate(lambda _: step(x, w))

    assert str(jax.make_jaxpr(last)(*arguments)).count("jfluid_direct_channel") == calls
    for found, expected in zip(*(jax.jit(f)(*arguments).values() for f in (last, step))):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "image, filters, pads",
    [
        ((6, 20, 8, TILE + 3), (50, 20, 5, 5), ((0, 0), (0, 0))),
        ((2, 3, 8, 8), (4, 3, 5, 5), ((0, 1), (0, 0))),
        ((2, 17, 12, TILE + 2), (6, 17, 8, 4), ((1, 0), (0, 0))),
    ],
    ids=["a vector and a part", "few channels", "another window"],
)
def test_the_gradient_of_an_image_sums_windows_where_they_overlap(image, filters, pads):
    random = np.random.RandomState(0)
    x, w = (jnp.asarray(random.randn(*shape), jnp.float32) for shape in (image, filters))

    def step(x, w):
        y, pull = jax.vjp(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), pads), x, w)
        return dict(enumerate(pull(jnp.cos(y))))

    def last(x, w):
        return jaxpr_rewrites.evaluate(lambda _: step(x, w))

    assert str(jax.make_jaxpr(last)(x, w)).count("jfluid_direct_overlap") == 1
    for found, expected in zip(*(jax.jit(f)(x, w).values() for f in (last, step))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
