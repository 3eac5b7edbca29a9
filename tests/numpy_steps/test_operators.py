"""Every recorded case of an operator, forward and gradient, by NumPy beside XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid.check_device import cases
from jfluid.compile.numpy_steps.beside import Listing, NoRule
from jfluid.compile.numpy_steps.interpreter import host_value
from tests.dynamic_shapes.padding import difference
from tests.dynamic_shapes.test_operators import weights

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_interpreted_operators_give_what_compiled_ones_give(part, monkeypatch):
    monkeypatch.setattr(cases, "_weights", weights)
    interpreted, refused, wrong = 0, [], []
    with jax.enable_x64(True):
        for case in cases.runnable(cases.recorded())[part::PARTS]:
            computation = cases.Computation(case)
            arrays, structure = jax.tree.flatten(computation.arguments)

            def function(*given, computation=computation, structure=structure):
                return jax.tree.leaves(computation(jax.tree.unflatten(structure, given)))

            try:
                listing = Listing(jax.make_jaxpr(function)(*arrays))
                with np.errstate(all="ignore"):
                    results = listing.run([host_value(v) for v in arrays])
            except NoRule as error:
                refused.append((case.name, str(error)))
                continue
            exact = jax.jit(function)(*arrays)
            interpreted += 1
            assert [r.dtype for r in results] == [e.dtype for e in exact], case.name
            if difference(results, exact) > 1e-4:
                wrong.append(case.name)
    assert not wrong
    assert len(refused) < 3, refused
    assert interpreted > 40


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.reshape(x, (4, 3), dimensions=(1, 0)),
        lambda x: x[0] @ x[0],
        lambda x: jax.grad(lambda y: jnp.prod(y, axis=1).sum())(x),
        lambda x: jax.lax.while_loop(lambda s: s[0] @ s[0] < 10, lambda s: s * 2, x),
    ],
    ids=["reshape in another order", "product that is one number", "gradient of a product", "loop"],
)
def test_rules_that_recorded_cases_do_not_reach(function):
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4) / 10
    with jax.enable_x64(True):
        (found,) = Listing(jax.make_jaxpr(function)(x)).run([x])
        np.testing.assert_allclose(found, function(jnp.asarray(x)), 1e-6)
