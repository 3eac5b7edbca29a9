"""State of one element is read as one array."""

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.compile import scalars


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
