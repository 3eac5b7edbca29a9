"""Every recorded case of an operator, forward and gradient, at padded sizes beside exact ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid.check_device import cases
from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.ops.ragged import Ragged
from tests.dynamic_shapes.padding import (
    difference,
    places_alike,
    run_padded,
    traced,
)

PARTS = 4


def weights(out):
    """Weights of the elements of an output, which follow from their places alone."""
    if isinstance(out, list):
        return [weights(o) for o in out]
    rows = out.values if isinstance(out, Ragged) else out
    if rows is None or not jnp.issubdtype(rows.dtype, jnp.floating):
        return None
    angle = jnp.zeros(rows.shape, jnp.float64)
    for axis in range(rows.ndim):
        places = jax.lax.broadcasted_iota(jnp.float64, rows.shape, axis)
        angle = angle + (axis + 1.3) * places
    return (1 + 0.5 * jnp.sin(angle)).astype(rows.dtype)


def function_of(case):
    """Return a case as a function of arrays, and its arrays; None for one with sequences."""
    computation = cases.Computation(case)
    leaves, structure = jax.tree.flatten(computation.arguments)
    if "sequences" in case.name or not all(isinstance(v, np.ndarray) for v in leaves):
        return None
    return (
        lambda *given: jax.tree.leaves(computation(jax.tree.unflatten(structure, given))),
        leaves,
    )


def functions(part):
    """Yield the cases of a part of the recorded cases, each with its function and its arrays."""
    for case in cases.runnable(cases.recorded())[part::PARTS]:
        found = function_of(case)
        if found is not None:
            yield case, *found


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one", "each"])
@pytest.mark.parametrize("part", range(PARTS))
def test_padded_operators_give_what_exact_ones_give(part, each, monkeypatch):
    """At the first sizes that an operator pads, or at each in turn."""
    monkeypatch.setattr(cases, "_weights", weights)
    padded, wrong = 0, []
    with jax.enable_x64(True):
        for case, function, arguments in functions(part):
            exact = None
            for group in places_alike(arguments):
                if len(group) == 1 and group[0] != (0, 0):
                    continue
                try:
                    results = run_padded(function, traced(function, arguments, [group]), arguments)
                except NoRule:
                    continue
                if exact is None:
                    exact = jax.jit(function)(*arguments)
                padded += 1
                if difference(results, exact) > 1e-4:
                    wrong.append((case.name, group))
                if not each:
                    break
    assert not wrong
    assert padded > 30
