"""Every recorded case of an operator, forward and gradient: at padded sizes beside exact ones, and its jaxpr at true
sizes from traces at samples, beside a trace at these sizes.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from jfluid.check_device import cases
from jfluid.compile.dynamic_shapes.dims import NoRule, Sizes
from jfluid.compile.dynamic_shapes.unpadded import Unpadded
from jfluid.compile.numpy_steps.interpreter import Listing, inner
from jfluid.ops.ragged import Ragged
from tests.dynamic_shapes.padding import (
    difference,
    places_alike,
    recorder,
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


@functools.cache
def functions(part):
    """Return the cases of a part of the recorded cases, each with its function and its arrays."""
    found = [(case, function_of(case)) for case in cases.runnable(cases.recorded())[part::PARTS]]
    return [(case, *own) for case, own in found if own is not None]


@functools.cache
def samples_of(part, number, group):
    """Return the traces of a case at samples of the sizes of a group, or why there are none."""
    _, function, arguments = functions(part)[number]
    try:
        return traced(function, arguments, [group])
    except NoRule as error:
        return error


def samples(part, number, group):
    """Return the traces of a case, which both tests below read. Raises NoRule."""
    found = samples_of(part, number, tuple(group))
    if isinstance(found, NoRule):
        raise found
    return found


@pytest.fixture(autouse=True, scope="module")
def end():
    yield
    functions.cache_clear()
    exact_results.cache_clear()
    samples_of.cache_clear()


def varying(low, high):
    """Return the dimensions of values that differ between two traces."""
    shapes = [[np.shape(v.val) if isinstance(v, core.Literal) else v.aval.shape for v in own] for own in (low, high)]
    return tuple(tuple(i for i, (m, n) in enumerate(zip(a, b)) if m != n) for a, b in zip(*shapes))


def rules(low, high):
    """Return the primitives of a jaxpr with the dimensions that vary, from its traces at two sizes."""
    found = set()
    for a, b in zip(low.eqns, high.eqns):
        found.add((a.primitive.name, varying(a.invars, b.invars), varying(a.outvars, b.outvars)))
        for inner_low, inner_high in zip(core.jaxprs_in_params(a.params), core.jaxprs_in_params(b.params)):
            found |= rules(inner_low, inner_high)
    return found


def padded(part):
    """Yield the cases of a part that can be padded: the case, its function, its arrays, and traces at each group."""
    for number, (case, function, arguments) in enumerate(functions(part)):
        for group in places_alike(arguments):
            if len(group) > 1 or group[0] == (0, 0):
                with contextlib.suppress(NoRule):
                    yield case, function, arguments, group, samples(part, number, group)


@functools.cache
def exact_results(part, name):
    ((function, arguments),) = [own for case, *own in functions(part) if case.name == name]
    return jax.jit(function)(*arguments)


def is_right(part, case, function, arguments, traces):
    """Return True if results at padded sizes are the exact ones, None if a primitive of the case has no rule."""
    try:
        results = run_padded(function, traces, arguments)
    except NoRule:
        return None
    return difference(results, exact_results(part, case.name)) <= 1e-4


def test_padded_operators_give_what_exact_ones_give(monkeypatch):
    """Padding has a rule for each primitive: the first operators of each primitive and each set of its dimensions."""
    monkeypatch.setattr(cases, "_weights", weights)
    known, right = set(), {}
    with jax.enable_x64(True):
        for part in range(PARTS):
            for case, function, arguments, _, traces in padded(part):
                low, high = traces._ends
                own = rules(low.jaxpr, high.jaxpr)
                if case.name not in right and not own <= known:
                    found = is_right(part, case, function, arguments, traces)
                    if found is not None:
                        right[case.name] = found
                        known |= own
    assert [name for name, found in right.items() if not found] == []
    assert len(right) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_each_operator_gives_at_padded_sizes_what_it_gives_at_exact_ones(part, monkeypatch):
    monkeypatch.setattr(cases, "_weights", weights)
    with jax.enable_x64(True):
        right = {(case.name, *group): is_right(part, case, *own, traces) for case, *own, group, traces in padded(part)}
    assert [name for name, found in right.items() if found is False] == []
    assert len([name for name, found in right.items() if found]) > 30


# ---- jaxprs at true sizes ----


def same(a, b):
    """Return True if two parameters of operations are the same; of listings and jaxprs, if their operations are."""
    if isinstance(a, Listing | core.ClosedJaxpr | core.Jaxpr):
        return same_operations(inner(a), inner(b))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int | float | np.number):
        return bool(np.allclose(a, b, equal_nan=True))
    return callable(a) or "0x" in repr(a) or repr(a) == repr(b)


def same_values(a, b):
    return a is b or (np.shape(a) == np.shape(b) and a.dtype == b.dtype and np.allclose(a, b, equal_nan=True))


def same_functions(a, b):
    if isinstance(a, functools.partial):
        return a.func is b.func and all(same(a.args[0][name], b.args[0][name]) for name in a.args[0])
    if isinstance(a, Listing):
        return same_operations(a, b)
    return type(a) is type(b) and (callable(a) or a == b)


def same_operations(a, b):
    return (
        a.most_bytes == b.most_bytes
        and a._outputs == b._outputs
        and all(map(same_values, a._start, b._start))
        and len(a._operations) == len(b._operations)
        and all(
            x._replace(run=None) == y._replace(run=None) and same_functions(x.run, y.run)
            for x, y in zip(a._operations, b._operations)
        )
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_are_as_traced_at_each_size(part, monkeypatch):
    monkeypatch.setattr(cases, "_weights", weights)
    compared, wrong = 0, []
    with jax.enable_x64(True):
        for number, (case, function, arguments) in enumerate(functions(part)):
            for group in places_alike(arguments):
                try:
                    known = samples(part, number, group)
                    first = known.samples["n0"][0]
                    shapes = {n: shapes_at(known, n) for n in (first + 5, first + 2)}
                    at_witness = known._with({"n0": first + 5}, shapes[first + 5])
                    wanted = recorder(function, arguments)(shapes[first + 2])
                    given = Unpadded(*at_witness[:2]).at(Sizes({"n0": first + 2}, {"n0": first + 2}))
                except NoRule:
                    continue
                compared += 1
                if not same_operations(given, Listing(wanted)):
                    wrong.append((case.name, group))
                break
    assert not wrong
    assert compared > 30


def shapes_at(known, size):
    sizes = Sizes({"n0": size}, {})
    return tuple(sizes.shape(dims) for dims in known.fed)
