"""The recorded cases of operators (`jfluid/check_device/cases.py`), traced, and few cases with all primitives.

`python -m tests.recorded_cases` renews the list of these few cases: to choose them takes a trace of all cases.
"""

import functools
import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

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


LIST = Path(__file__).with_suffix(".json")  # names of all cases: true for the cases of `covering`


def computations() -> list[Computation]:
    """Return the recorded cases, with gradients of sums weighted by `weights`."""
    return [traced(case) for case in cases.runnable(recorded())]


def covering() -> list[Computation]:
    """Return few recorded cases: together, and those of arrays alone, they have all of their primitives of each
    types and of each rank.
    """
    chosen = listed()
    return [traced(case) for case in cases.runnable(recorded()) if chosen.get(case.name)]


def listed() -> dict[str, bool]:
    """Return the list of all recorded cases: True for those of `covering`."""
    return json.loads(LIST.read_text())


@functools.cache
def recorded() -> list[cases.Case]:
    return cases.recorded()


def traced(case: cases.Case) -> Computation:
    """Return a case, traced once in a process."""
    if case.name not in _traced:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cases, "_weights", weights)
            _traced[case.name] = Computation(case)
    return _traced[case.name]


_traced: dict[str, Computation] = {}


def traced_so_far() -> list[Computation]:
    """Return the cases that this process has traced."""
    return list(_traced.values())


def forget() -> None:
    """Drop all traces."""
    _traced.clear()


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


def cover(some: Iterable[Computation], known: set[Hashable]) -> list[str]:
    """Return the names of few cases with all of their operations that are not known; they are known from now on.

    The case with most unknown operations is next, and of two such cases the first.
    """
    found, left = [], {c.case.name: operations(j := jaxpr_of(c).jaxpr, types) | operations(j, rank) for c in some}
    while left:
        name = max(left, key=lambda name: len(left[name] - known))
        if left[name] <= known:
            return found
        found.append(name)
        known |= left.pop(name)
    return found


def chosen() -> dict[str, bool]:
    """Return what the list should have. For code with 64 bits enabled."""
    known: set[Hashable] = set()
    every = computations()
    dense = [c for c in every if "(sequences)" not in c.case.name]
    names = {*cover(dense, known), *cover(every, known)}
    return {case.name: case.name in names for case in recorded()}


def rank(equation: core.JaxprEqn) -> Hashable:
    """Return a primitive with the largest rank of the operands."""
    return equation.primitive.name, max((getattr(v.aval, "ndim", 0) for v in equation.invars), default=0)


def first_of_each(key: Callable[[core.JaxprEqn], Hashable], given: Iterable[Computation]) -> Iterator[Computation]:
    """Yield the cases with an operation whose key no earlier case has: rules of primitives need no more cases."""
    known: set[Hashable] = set()
    for computation in given:
        own = operations(jaxpr_of(computation).jaxpr, key)
        if not own <= known:
            known |= own
            yield computation


if __name__ == "__main__":
    with jax.enable_x64(True):
        LIST.write_text(json.dumps(chosen(), indent=1) + "\n")
