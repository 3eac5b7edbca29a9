"""Random programs give the same values and gradients eagerly as they do when a program holds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jfluid as fluid
from jfluid import layers
from jfluid.dygraph import grad, guard, to_variable
from tests.fuzz.harness import fuzzed

pytestmark = pytest.mark.usefixtures("interpreted_steps")

RNG = np.random.RandomState(3)
X, W = (RNG.uniform(-1, 1, shape).astype("float32") for shape in ((3, 4), (4, 4)))
STEPS = (
    lambda a, b, w: a + b,
    lambda a, b, w: a * b,
    lambda a, b, w: a - b * 0.5,
    lambda a, b, w: layers.relu(a),
    lambda a, b, w: layers.tanh(a) / (b * b + 1.0),
    lambda a, b, w: layers.sigmoid(a),
    lambda a, b, w: layers.softmax(a),
    lambda a, b, w: layers.matmul(a, w),
    lambda a, b, w: layers.matmul(a, w, transpose_y=True),
    lambda a, b, w: layers.elementwise_mul(a, layers.reduce_sum(b, dim=1), axis=0),
    lambda a, b, w: layers.concat([a[:, 2:], b[:, :2]], axis=1),
    lambda a, b, w: layers.split(layers.concat([a, b], axis=0), 2, dim=0)[1],
    lambda a, b, w: layers.elementwise_max(a, b),
    lambda a, b, w: layers.transpose(layers.reshape(a, [4, 3]), [1, 0]),
)
PROGRAMS = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=7,
)


def loss_of(program, x, w):
    """The mean of the last result of a program, each of whose steps reads results before it."""
    found = [x]
    for step, first, second in program:
        found.append(STEPS[step](found[first % len(found)], found[second % len(found)], w))
    return layers.mean(found[-1])


def statically(program):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x, w = fluid.data("x", [3, 4]), fluid.data("w", [4, 4])
        x.stop_gradient = w.stop_gradient = False
        loss = loss_of(program, x, w)
        gradients = fluid.gradients([loss], [x, w])
    fetches = [loss, *(g for g in gradients if g is not None)]
    found = fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": X, "w": W}, fetch_list=fetches, scope=fluid.Scope())
    values = iter(found[1:])
    return found[0], [None if g is None else next(values) for g in gradients]


def eagerly(program):
    with guard(fluid.CPUPlace()):
        x, w = to_variable(X), to_variable(W)
        x.stop_gradient = w.stop_gradient = False
        loss = loss_of(program, x, w)
        gradients = grad(loss, [x, w], allow_unused=True)
        return loss.numpy(), [None if g is None else g.numpy() for g in gradients]


@given(PROGRAMS)
@fuzzed(12)
def test_random_programs(program):
    (loss, gradients), (wanted, expected) = eagerly(program), statically(program)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)
    for found, one in zip(gradients, expected, strict=True):
        # a parameter that no step reads
        assert (found is None) == (one is None)
        if one is not None:
            np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-6)
