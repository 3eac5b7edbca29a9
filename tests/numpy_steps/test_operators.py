"""Every recorded case of an operator, forward and gradient, by NumPy beside XLA."""

import os

import jax
import numpy as np
import pytest

from jfluid.check_device import cases
from jfluid.compile.numpy_steps.beside import Listing, NoRule
from jfluid.compile.numpy_steps.interpreter import host_value
from tests.dynamic_shapes.padding import difference
from tests.dynamic_shapes.test_operators import weights

PARTS = 8
# One part by default: all of them compile each case once more.
WANTED = PARTS if os.environ.get("JFLUID_FUZZ_CASES") else 1


@pytest.mark.parametrize("part", range(WANTED))
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
