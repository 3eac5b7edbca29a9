"""Sizes of arrays that come with data: sizes beyond any memory are refused by name before XLA or NumPy counts bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, layers
from jfluid.compile.runtime.executables import Executables

BEYOND = [2**57, 2**61, 2**62, 2**63 - 1]
MADE = {
    "fill_constant": lambda n, x, i: layers.fill_constant([n, 1], "float32", 1.0),
    "fill_constant, empty": lambda n, x, i: layers.fill_constant([n, 0], "float32", 1.0),
    "uniform_random": lambda n, x, i: layers.uniform_random([n, 1], "float32"),
    "uniform_random, empty": lambda n, x, i: layers.uniform_random([n, 0], "float32"),
    "gaussian_random": lambda n, x, i: layers.gaussian_random([n, 2]),
    "expand": lambda n, x, i: layers.expand(x, [n, 1]),
    "one_hot": lambda n, x, i: fluid.one_hot(i, n),
    "range": lambda n, x, i: layers.range(0, n, 1, "int64"),
    "range down": lambda n, x, i: layers.range(n, -1, -1, "int64"),
    "sequence_mask": lambda n, x, i: layers.sequence_mask(i, maxlen=n),
    "sequence_mask of the largest": lambda n, x, i: layers.sequence_mask(n, maxlen=None),
    "reshape": lambda n, x, i: layers.reshape(layers.fill_constant([n, 0], "float32", 0.0), [0, -1]),
}


def ran(name, number):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        n, x, i = fluid.data("n", [1], "int64"), fluid.data("x", [2, 2]), fluid.data("i", [3, 1], "int64")
        made = MADE[name](n, x, i)
        feed = {"n": np.array([number]), "x": np.ones((2, 2), "float32"), "i": np.array([[0], [1], [2]])}
        return fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=[made])[0]


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("name", MADE)
def test_sizes_beyond_any_memory_are_refused(name, number):
    with pytest.raises(errors.OutOfMemoryError, match="more than any memory holds|more numbers than any memory"):
        ran(name, number)


@pytest.mark.parametrize("name", ["fill_constant", "uniform_random", "gaussian_random", "uniform_random, empty"])
@pytest.mark.parametrize("number", [-1, -(2**63)])
def test_negative_sizes_are_refused(name, number):
    with pytest.raises(errors.ShapeError, match="expected no negative number"):
        ran(name, number)


@pytest.mark.parametrize("name", ["fill_constant", "expand", "sequence_mask of the largest", "range"])
def test_sizes_that_this_machine_cannot_hold_are_named(name):
    with pytest.raises(errors.OutOfMemoryError):
        ran(name, 1 << 48)


def test_a_range_that_the_steps_do_not_reach_is_no_overflow():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        first, last = fluid.data("first", [1], "int64"), fluid.data("last", [1], "int64")
        made = layers.range(first, last, 1 << 62, "int64")
    feed = {"first": np.array([-(2**62)]), "last": np.array([2**62])}
    found = fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=[made])[0]
    assert found.tolist() == [-(2**62), 0]


def test_a_value_within_a_step_is_refused_before_xla_sees_it():
    def loop(x):
        return jax.lax.fori_loop(0, 3, lambda _, v: v + jnp.zeros((1 << 40, 1 << 40)).sum(), x)

    with pytest.raises(errors.OutOfMemoryError, match="a value within the step"):
        Executables(lambda: jax.jit(loop)).lower(1.0)


@pytest.mark.parametrize("number", BEYOND)
def test_imperative_mode(number):
    with fluid.dygraph.guard():
        n = fluid.dygraph.to_variable(np.array([number]))
        for made in (
            lambda: layers.fill_constant([n, 1], "float32", 1.0),
            lambda: layers.sequence_mask(n, maxlen=None),
            lambda: layers.range(0, n, 1, "int64"),
        ):
            with pytest.raises(errors.OutOfMemoryError):
                made().numpy()
