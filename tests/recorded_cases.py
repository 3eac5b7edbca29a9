"""The recorded cases of operators (`jfluid/check_device/cases.py`), traced, and the first cases of each primitive."""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from jfluid.check_device import cases
from jfluid.check_device.cases import Computation
from jfluid.ops.ragged import Ragged


def weights(out):
    """Return weights of the elements of an output, which follow from the places of the elements alone."""
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


@functools.cache
def computations() -> list[Computation]:
    """Return the recorded cases, with gradients of sums weighted by `weights`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "_weights", weights)
        return [Computation(case) for case in cases.runnable(cases.recorded())]


def jaxpr_of(computation: Computation) -> core.ClosedJaxpr:
    """Return the jaxpr of a case, which the constructor has traced: jit keeps traces. For code with 64 bits enabled."""
    return jax.jit(computation).trace(computation.arguments).jaxpr


def operations(jaxpr: core.Jaxpr, key: Callable[[core.JaxprEqn], Hashable]) -> set[Hashable]:
    """Return the keys of the operations of a jaxpr, and of the jaxprs inside."""
    found = {key(equation) for equation in jaxpr.eqns}
    return found.union(*(operations(own, key) for e in jaxpr.eqns for own in core.jaxprs_in_params(e.params)))


def ranks_and_types(equation: core.JaxprEqn) -> Hashable:
    """Return a primitive with the ranks and the types of the operands."""
    operands = [(getattr(v.aval, "ndim", 0), str(getattr(v.aval, "dtype", ""))) for v in equation.invars]
    return equation.primitive.name, *operands


def types(equation: core.JaxprEqn) -> Hashable:
    """Return a primitive with the types of the operands."""
    return equation.primitive.name, *(str(getattr(v.aval, "dtype", "")) for v in equation.invars)


def first_of_each(key: Callable[[core.JaxprEqn], Hashable], given: Iterable[Computation]) -> Iterator[Computation]:
    """Yield the cases with an operation whose key no earlier case has: rules of primitives need no more cases."""
    known: set[Hashable] = set()
    for computation in given:
        own = operations(jaxpr_of(computation).jaxpr, key)
        if not own <= known:
            known |= own
            yield computation
