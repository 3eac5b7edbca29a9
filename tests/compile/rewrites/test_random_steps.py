"""Random steps of matrices and images: what `jaxpr_rewrites` makes of them gives the same numbers and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax

from jfluid.compile.rewrites import jaxpr_rewrites
from tests.fuzz.harness import fuzzed

SIDE = 72  # of matrices, whose products are machine code


def _conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


# Each takes two values of one shape.
BOTH = {
    "one less": lambda a, b: 1.0 - a,
    "positive": lambda a, b: (a > 0.0).astype(a.dtype) * b,
    "tanh": lambda a, b: jnp.tanh(a),
    "relu": lambda a, b: jnp.maximum(a, 0.0),
    "product of numbers": lambda a, b: a * b,
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "slope of relu": lambda a, b: jnp.where(a > 0.0, b, 0.0),
    "slope of tanh": lambda a, b: b * (1.0 - jnp.tanh(a) * jnp.tanh(a)),
    "half": lambda a, b: 0.5 * a,
}
MATRICES = {
    **BOTH,
    "turned": lambda a, b: jnp.transpose(a),
    "product": lambda a, b: a @ b / SIDE,
    "product with a turned one": lambda a, b: a @ b.T / SIDE,
    "product of a turned one": lambda a, b: a.T @ b / SIDE,
    "bias": lambda a, b: a + b[0],
    "layer": lambda a, b: jnp.tanh(a @ b / SIDE + b[1]),
    "relu layer": lambda a, b: jnp.maximum(a @ b / SIDE + b[1], 0.0),
    "divided rows": lambda a, b: a.reshape(2, SIDE // 2, SIDE).reshape(SIDE, SIDE),
    "below each other": lambda a, b: jnp.concatenate([a[: SIDE // 2], b[SIDE // 2 :]]),
    "sums": lambda a, b: b + a.sum(0) / SIDE,
}
IMAGES = {
    **BOTH,
    "convolution": lambda a, b: _conv(a, b[:, :, :3, :3] / 9.0),
    "convolution with one less": lambda a, b: _conv(a, 1.0 - b[:, :, :3, :3]) / 36.0,
    "normalised": lambda a, b: a - a.mean((0, 2, 3), keepdims=True),
    "bias": lambda a, b: a + b[0, :, 0, 0][:, None, None],
    "channels last and first": lambda a, b: (a.transpose(0, 2, 3, 1) + 1.0).transpose(0, 3, 1, 2),
    "turned": lambda a, b: a.transpose(0, 1, 3, 2),
    "backwards": lambda a, b: jnp.flip(a, (2, 3)),
    "maxima": lambda a, b: jnp.repeat(jnp.repeat(jnp.max(a.reshape(4, 4, 2, 2, 2, 2), (3, 5)), 2, 2), 2, 3),
    "padded": lambda a, b: jnp.pad(a, ((0, 0), (0, 0), (1, 0), (0, 1)))[:, :, :4, 1:],
    "channels beside": lambda a, b: jnp.concatenate([a[:, :2], b[:, 2:]], 1),
    "flat": lambda a, b: (a.reshape(4, -1) * 2.0).reshape(a.shape),
}


def _programs(operations):
    """Operators with the places of their operands, counted from the latest value."""
    place = st.integers(0, 3)
    return st.lists(st.tuples(st.sampled_from(sorted(operations)), place, place), min_size=2, max_size=8)


def _hold(operations, program, shape):
    """Check a program's values and gradients."""

    def value(x, y):
        values = [x, y]
        for name, first, second in program:
            one, other = (values[-1 - place % len(values)] for place in (first, second))
            values.append(operations[name](one, other))
        return values[-1]

    def step(x, y):
        found, gradient = jax.vjp(value, x, y)
        return {"value": found, "gradients": gradient(jnp.cos(found))}

    draw = np.random.RandomState(0)
    x, y = (jnp.asarray(draw.uniform(-1.0, 1.0, shape).astype("float32")) for _ in range(2))
    wanted = jax.jit(step)(x, y)
    found = jax.jit(lambda x, y: jaxpr_rewrites.evaluate(lambda _: step(x, y)))(x, y)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = max(1.0, float(jnp.abs(other).max()))
        np.testing.assert_allclose(one, other, atol=1e-4 * scale, rtol=0)


@fuzzed(12)
@given(_programs(MATRICES))
@example([("one less", 0, 0), ("turned", 0, 0)])
@example([("layer", 1, 0), ("slope of tanh", 0, 0), ("product of a turned one", 1, 0)])
def test_matrices(program):
    _hold(MATRICES, program, (SIDE, SIDE))


@fuzzed(12)
@given(_programs(IMAGES))
@example([("convolution", 1, 0), ("one less", 0, 0), ("turned", 0, 0)])
def test_images(program):
    _hold(IMAGES, program, (4, 4, 4, 4))
