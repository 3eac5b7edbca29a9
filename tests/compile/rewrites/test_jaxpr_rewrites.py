"""Rewrites of traced steps: each can be left out alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jfluid.compile.lowering.embedding_kernels import EmbeddingKernels
from jfluid.compile.rewrites import jaxpr_rewrites
from jfluid.machine_code import kernel_registry
from jfluid.ops import embedding, norm, table_rows

pytestmark = pytest.mark.skipif(
    not kernel_registry.supports("product"), reason="machine code is made for CPUs with AVX-512"
)
HEIGHT = 2000
BATCH = 256  # machine code looks up as many rows


def _loss(filters, slots, first, second, images):
    """Loss of a network with a convolution, batch normalization, rows of slots and two layers."""
    pixels = lax.conv_general_dilated(images, filters, (1, 1), "SAME")
    scale, bias = jnp.ones(16, "float32"), jnp.zeros(16, "float32")
    pixels = jnp.maximum(norm._batch_norm(pixels, scale, bias, 1e-5, 1, 1)[0], 0.0)
    hidden = jnp.tanh(jnp.concatenate([pixels.mean((2, 3)), slots], 1) @ first + first[0])
    return jnp.square(jnp.maximum(hidden @ second + second[0], 0.0)).mean()


def _step(weights, images, ids):
    filters, table, first, second = weights
    slots = jnp.concatenate([embedding.look_up(table, part, -1) for part in jnp.split(ids, 5)], 1)
    gradients = jax.grad(_loss, range(4))(filters, slots, first, second, images)
    rows = jnp.concatenate(jnp.split(gradients[1], 5, 1))
    gradients = gradients[0], jnp.zeros_like(table).at[ids].add(rows), *gradients[2:]
    return {"weights": [w - jnp.float32(0.1) * g for w, g in zip(weights, gradients)]}


def _arrays():
    draw = np.random.RandomState(0)
    shapes = (16, 3, 3, 3), (HEIGHT, 12), (76, 96), (96, 96)
    weights = [draw.uniform(-0.2, 0.2, shape).astype("float32") for shape in shapes]
    images = draw.uniform(-1.0, 1.0, (BATCH, 3, 6, 6)).astype("float32")
    return weights, images, draw.randint(0, HEIGHT, 5 * BATCH).astype("int64")


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):  # as operators are traced
        yield


def _rewritten(*arguments):
    with table_rows.using(EmbeddingKernels()):
        return jaxpr_rewrites.evaluate(lambda _: _step(*arguments))


def _equations(arguments):
    return str(jax.make_jaxpr(lambda *given: _rewritten(*given))(*arguments))


@pytest.mark.parametrize("rewrite", jaxpr_rewrites.REWRITES)
def test_a_step_without_one_of_the_rewrites_gives_the_same_numbers(rewrite, monkeypatch):
    arguments = _arrays()
    complete = _equations(arguments)
    monkeypatch.setattr(jaxpr_rewrites, "REWRITES", tuple(r for r in jaxpr_rewrites.REWRITES if r is not rewrite))
    assert _equations(arguments) != complete
    found = jax.jit(lambda *given: _rewritten(*given))(*arguments)["weights"]
    for one, other in zip(found, jax.jit(_step)(*arguments)["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_an_equation_without_results():
    """A loop that carries nothing has neither operands nor results."""

    def step(x):
        lax.scan(lambda carry, _: (carry, None), (), None, length=3)
        return {"x": x + 1.0}

    found = jax.jit(lambda x: jaxpr_rewrites.evaluate(lambda _: step(x)))(jnp.float32(1.0))
    assert float(found["x"]) == 2.0
