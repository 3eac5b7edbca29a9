"""Random programs over operators, at random sizes: padded with NaN they give what exact shapes give."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from jfluid.ops import ragged_dispatch, registry
from tests.dynamic_shapes.padding import difference, run_padded, traced
from tests.fuzz.harness import fuzzed

WIDTH = 6
_DRAW = np.random.RandomState(5)
_WEIGHT = _DRAW.uniform(-0.5, 0.5, (WIDTH, WIDTH))
_FILTER = _DRAW.uniform(-0.5, 0.5, (WIDTH, WIDTH, 3, 1))


def run(kind, *given, out=0, **attrs):
    """One output of an operator."""
    definition = registry.get(kind)
    slots = [[v] if s.many and v is not None else v for s, v in zip(definition.reads, given)]
    slots += [[] if s.many else None for s in definition.reads[len(given) :]]
    return ragged_dispatch.call(definition, slots, attrs)[out]


def reshaped(x, *shape):
    return run("reshape2", x, shape=shape)


def turned(x, *axis):
    return run("transpose2", x, axis=axis)


def attended(a, b):
    weights = run("softmax", run("matmul", a, b, transpose_Y=True))
    return run("matmul", weights, b)


def layer(a, b):
    flat = reshaped(a, -1, WIDTH)
    out = run("tanh", run("mul", flat, jnp.asarray(_WEIGHT)))
    return run("elementwise_add", b, reshaped(out, a.shape[0], -1, WIDTH))


def convolved(a, b):
    image = run("unsqueeze2", turned(a, 0, 2, 1), axes=(3,))
    image = run("conv2d", image, jnp.asarray(_FILTER), paddings=(1, 0))
    return run("elementwise_add", b, turned(run("squeeze2", image, axes=(3,)), 0, 2, 1))


def pooled(kind):
    def pool(a, b):
        image = run("unsqueeze2", turned(a, 0, 2, 1), axes=(3,))
        attrs = {"pooling_type": kind, "ksize": (3, 1), "paddings": (1, 0)}
        image = run("pool2d", image, **attrs)
        return turned(run("squeeze2", image, axes=(3,)), 0, 2, 1)

    return pool


def folded(kind, dims):
    def fold(a, b):
        return run("elementwise_add", b, run(kind, a, dim=dims, keep_dim=True))

    return fold


# Each takes two values of one shape, and gives a value of that shape: [batch, length, WIDTH].
OPERATORS = {
    "relu": lambda a, b: run("relu", a),
    "tanh": lambda a, b: run("tanh", a),
    "log of one more": lambda a, b: run("log", run("scale", run("square", a), bias=1.0)),
    "sum": lambda a, b: run("elementwise_add", a, b),
    "product": lambda a, b: run("elementwise_mul", a, b),
    "quotient": lambda a, b: run("elementwise_div", a, run("scale", run("square", b), bias=0.5)),
    "softmax of words": lambda a, b: run("softmax", a),
    "softmax over time": lambda a, b: run("softmax", a, axis=1),
    "softmax of a batch": lambda a, b: run("softmax", a, axis=0),
    "layer_norm": lambda a, b: run("layer_norm", a, begin_norm_axis=2),
    "attention": attended,
    "layer": layer,
    "convolution": convolved,
    "maxima": pooled("max"),
    "averages": pooled("avg"),
    "sums over time": folded("reduce_sum", (1,)),
    "mean of all": folded("reduce_mean", (0, 1)),
    "largest of a batch": folded("reduce_max", (0,)),
    "smallest over time": folded("reduce_min", (1,)),
    "running sums": lambda a, b: run("cumsum", a, axis=1),
    "backwards": lambda a, b: run("reverse", a, axis=(1,)),
    "in order": lambda a, b: run("argsort", a, axis=1),
    "turned": lambda a, b: turned(run("cumsum", turned(a, 1, 0, 2), axis=1), 1, 0, 2),
    "merged": lambda a, b: reshaped(run("cumsum", reshaped(a, -1, WIDTH), axis=0), b.shape[0], -1, WIDTH),
}


def programs():
    """Operators with the places of their operands, counted from the latest value."""
    place = st.integers(0, 3)
    return st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), place, place), min_size=2, max_size=6)


@fuzzed(2)
@given(programs(), st.integers(2, 6), st.integers(2, 9), st.integers(1, 6))
@example([(name, 0, 1) for name in ("attention", "layer", "maxima", "layer_norm")], 3, 5, 3)
@example([(name, 0, 1) for name in ("convolution", "in order", "merged", "averages")], 4, 7, 2)
@example([(name, 1, 0) for name in ("softmax over time", "mean of all", "turned")], 2, 6, 5)
@example(
    [*[(n, 0, 1) for n in ("softmax of a batch", "running sums", "backwards")], ("largest of a batch", 4, 0)], 3, 4, 4
)
@example([(name, 0, 1) for name in ("smallest over time", "quotient", "sums over time", "softmax of words")], 4, 5, 3)
def test_padded_programs_give_what_exact_ones_give(program, batch, length, extra):
    def value(x, y):
        values = [x, y]
        for name, first, second in program:
            one, other = (values[-1 - place % len(values)] for place in (first, second))
            values.append(OPERATORS[name](one, other))
        return values[-1]

    def step(x, y):
        found, pull = jax.vjp(value, x, y)
        return [found, jnp.sum(found * jnp.sin(found)), *pull(jnp.cos(found))]

    draw = np.random.RandomState(0)
    # The largest of some rows is negative, and the smallest of others is positive: no padding with 0 would do.
    given = [draw.uniform(low, high, (batch, length, WIDTH)) for low, high in ((-1.0, 0.3), (-0.3, 1.0))]
    groups = [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    with jax.enable_x64(True):
        found = run_padded(step, traced(step, given, groups), given, extra=extra)
        assert difference(found, jax.jit(step)(*given)) < 1e-6
