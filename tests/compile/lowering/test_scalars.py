"""State of one element is read as one array."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid import engine
from jfluid.compile.lowering import scalars
from tests.gpu.ahead import TracedAsForH200

pytestmark = pytest.mark.usefixtures("interpreted_steps")


def test_values_of_one_element_are_parts_of_one_array():
    def step(values):
        env = dict(values)
        scalars.read_together(env, list(values))
        return {name: value * 2 for name, value in env.items()}

    values = {f"power_{i}": jnp.full(1, i, jnp.float32) for i in range(5)}
    values |= {"count": jnp.ones(1, jnp.int32), "wide": jnp.ones(2), "scalar": jnp.ones(())}
    found = jax.jit(step)(values)
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value * 2)
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
    text = jax.jit(step).lower(values).as_text()
    assert text.count("stablehlo.concatenate") == 1  # of the five: one integer is too few
    assert text.count("optimization_barrier") == 1


@pytest.mark.parametrize("number", [scalars.MOST, scalars.MOST + 1, 2 * scalars.MOST + 1])
def test_no_array_has_more_parts_than_xla_reads_at_once(number):
    def step(values):
        env = dict(values)
        scalars.read_together(env, list(values))
        return env

    values = {f"power_{i}": jnp.full(1, i, jnp.float32) for i in range(number)}
    found = jax.jit(step)(values)
    assert [int(found[name][0]) for name in values] == list(range(number))
    text = jax.jit(step).lower(values).as_text()
    lengths = [int(n) for n in re.findall(r"optimization_barrier.* tensor<(\d+)xf32>", text)]
    assert len(lengths) == -(-number // scalars.MOST)
    assert sum(lengths) == number and max(lengths) - min(lengths) <= 1


def _trained(optimizer, layers=6):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        y = fluid.data("x", [3, 4])
        for _ in range(layers):
            y = fluid.layers.fc(y, 4, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square(y))
        optimizer().minimize(loss)
    items = [(0, op, None) for op in main.global_block().ops]
    exe, feed = fluid.Executor(fluid.CPUPlace()), {"x": np.ones((3, 4), "float32")}
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        losses = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(4)]
    return scalars.shared_rates(items), losses


@pytest.mark.parametrize("rate", [lambda: 0.5, lambda: fluid.layers.piecewise_decay([2], [0.5, 0.1])])
def test_rates_of_many_updates_are_parts_of_an_array(monkeypatch, rate):
    parts, part = [], scalars.part
    monkeypatch.setattr(scalars, "part", lambda value: parts.append(value) or part(value))
    shared, expected = _trained(lambda: fluid.optimizer.Momentum(rate(), 0.9))
    assert len(shared) == 1 and not parts
    monkeypatch.setattr(engine, "of_device", TracedAsForH200)
    _, found = _trained(lambda: fluid.optimizer.Momentum(rate(), 0.9))
    assert len(parts) == 1  # for all of them
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rates_of_few_updates_of_one_shape_and_beside_other_state_are_not():
    assert not _trained(lambda: fluid.optimizer.Momentum(0.5, 0.9), layers=2)[0]
    assert not _trained(lambda: fluid.optimizer.Adam(0.5))[0]


def test_what_is_no_array_of_one_element_stays():
    assert scalars.part(np.ones(1)).shape == (1,)
    assert scalars.part(jnp.ones(())).shape == ()
