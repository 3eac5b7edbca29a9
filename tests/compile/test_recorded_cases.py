"""Every recorded case of an operator, forward and gradient: by NumPy beside XLA, lowered for `cuda`, at padded sizes
beside exact ones, and its jaxpr at true sizes from traces at samples, beside a trace at these sizes.

One process has all of these tests, since tracing the cases takes longer than most of the tests do.
"""

import contextlib
import functools
import itertools

import jax
import numpy as np
import pytest
from jax.extend import core

from jfluid.check_device import cases
from jfluid.compile.dynamic_shapes.dims import NoRule, Sizes
from jfluid.compile.dynamic_shapes.unpadded import Unpadded
from jfluid.compile.numpy_steps.beside import NotInterpretable
from jfluid.compile.numpy_steps.interpreter import Listing, host_value, inner
from tests import recorded_cases
from tests.dynamic_shapes import operator_dimensions
from tests.dynamic_shapes.operator_dimensions import arrays_of, dense, function_of
from tests.dynamic_shapes.padding import difference, places_alike, recorder, run_padded, traced
from tests.recorded_cases import computations, covering, first_of_each, jaxpr_of, operations, ranks_and_types, types

PARTS, TOGETHER = 4, 12
# Groups of dimensions of a case that are tried before each change: those of one size together, and the first alone.
FEW = 2


@functools.cache
def samples_of(computation, group):
    """Return the traces of a case at samples of the sizes of a group, or why there are none."""
    try:
        return traced(function_of(computation), arrays_of(computation), [group])
    except NoRule as error:
        return error


def samples(computation, group):
    """Return the traces of a case, which both tests below read. Raises NoRule."""
    found = samples_of(computation, tuple(group))
    if isinstance(found, NoRule):
        raise found
    return found


@pytest.fixture(autouse=True, scope="module")
def weights_of_places():
    """Weight outputs of all shapes alike, and leave no traces to other modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "_weights", recorded_cases.weights)
        yield
    recorded_cases.forget()
    samples_of.cache_clear()
    exact.clear()


exact = {}  # results of XLA, by computation


def exact_results(computation):
    """Return what XLA gives. A program of several cases is compiled sooner than a program for each."""
    if computation not in exact:
        others = [c for c in recorded_cases.traced_so_far() if c not in exact and c is not computation]
        some = [computation, *others[: TOGETHER - 1]]
        given = [c.arguments for c in some]
        results = jax.jit(lambda given: [jax.jit(c)(own) for c, own in zip(some, given)])(given)
        exact.update(zip(some, map(jax.tree.leaves, results)))
    return exact[computation]


# ---- by NumPy, and lowered ----


def compare(some):
    """Interpret cases, and compare the results with XLA's; return the number of comparisons."""
    refused, wrong, compared = [], [], 0
    for computation in some:
        arrays, jaxpr = jax.tree.leaves(computation.arguments), jaxpr_of(computation)
        name = computation.case.name
        try:
            with np.errstate(all="ignore"):
                results = Listing(jaxpr).run([host_value(v) for v in arrays])
        except NotInterpretable as error:
            refused.append((name, str(error)))
            continue
        assert [(r.shape, r.dtype) for r in results] == [(a.shape, a.dtype) for a in jaxpr.out_avals], name
        compared += 1
        if difference(results, exact_results(computation)) > 1e-4:
            wrong.append(name)
    assert not wrong
    assert len(refused) < 5, refused
    return compared


def test_interpreted_operators_give_what_compiled_ones_give():
    """Rules are of primitives: few operators with all primitives, each of all types and of all ranks."""
    with jax.enable_x64(True):
        assert compare(covering()) > 90


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(2 * PARTS))
def test_each_interpreted_operator_gives_what_the_compiled_one_gives(part):
    with jax.enable_x64(True):
        assert compare(computations()[part :: 2 * PARTS]) > 40


def lower(some):
    for computation in some:
        try:
            # the constructor has traced the case for its shapes, and jitted functions are not traced again
            jax.jit(computation).trace(computation.arguments).lower(lowering_platforms=("cuda",))
        except Exception as error:
            raise AssertionError(f"{computation.case.name} does not lower for cuda") from error


def test_operators_lower():
    """Rules of lowering are of primitives: of these operators those with a primitive of types that is new."""
    with jax.enable_x64(True):
        lower(first_of_each(types, covering()))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_each_operator_lowers(part):
    with jax.enable_x64(True):
        lower(computations()[part::PARTS])


# ---- at padded sizes ----


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


def groups(computation, most=None):
    """Yield the groups of dimensions that can be padded, of the first `most` of a case, with traces at each group."""
    for group in itertools.islice(places_alike(arrays_of(computation)), most):
        if len(group) > 1 or group[0] == (0, 0):
            with contextlib.suppress(NoRule):
                yield group, samples(computation, group)


def is_right(computation, traces):
    """Return True if results at padded sizes are the exact ones, None if a primitive of the case has no rule."""
    try:
        results = run_padded(function_of(computation), traces, arrays_of(computation))
    except NoRule:
        return None
    return difference(results, exact_results(computation)) <= 1e-4


def first_right(computation, known):
    """Return the result of `is_right` for the first group with a rule that is not known, None without such a group."""
    for _, traces in groups(computation, FEW):
        low, high = traces._ends
        if not (own := rules(low.jaxpr, high.jaxpr)) <= known:
            found = is_right(computation, traces)
            if found is not None:
                known |= own
                return found
    return None


def test_padded_operators_give_what_exact_ones_give():
    """Padding has a rule for each primitive: the first operators of each primitive and each set of its dimensions."""
    shown, known, right = set(), set(), {}
    with jax.enable_x64(True):
        for computation in dense(covering()):
            own = operations(jaxpr_of(computation).jaxpr, ranks_and_types)
            if not own <= shown:
                found = first_right(computation, known)
                if found is not None:
                    right[computation.case.name] = found
                    shown |= own
    assert [name for name, found in right.items() if not found] == []
    assert len(right) > 40


def test_the_tables_have_all_operators_with_a_case():
    """`python -m tests.recorded_cases` and `python -m tests.dynamic_shapes.operator_dimensions` renew the tables."""
    recorded = recorded_cases.recorded()
    assert list(recorded_cases.listed()) == [case.name for case in recorded]
    dense = [case.type for case in cases.runnable(recorded) if "(sequences)" not in case.name]
    assert list(operator_dimensions.table()) == sorted(dense)


@pytest.mark.nightly
def test_few_cases_have_all_primitives():
    with jax.enable_x64(True):
        assert recorded_cases.chosen() == recorded_cases.listed()


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_each_operator_gives_at_padded_sizes_what_it_gives_at_exact_ones(part):
    """The table says which dimensions these are; `python -m tests.dynamic_shapes.operator_dimensions` renews it."""
    table = operator_dimensions.table()
    with jax.enable_x64(True):
        for computation in dense(computations())[part::PARTS]:
            assert operator_dimensions.dimensions(computation) == table[computation.case.type], computation.case.name


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


@pytest.mark.parametrize(
    "part",
    [pytest.param(None, id="each primitive"), *(pytest.param(p, marks=pytest.mark.nightly) for p in range(PARTS))],
)
def test_operators_are_as_traced_at_each_size(part):
    compared, wrong = 0, []
    with jax.enable_x64(True):
        for computation in dense(covering() if part is None else computations()[part::PARTS]):
            for group in itertools.islice(places_alike(arrays_of(computation)), FEW if part is None else None):
                try:
                    known = samples(computation, group)
                    first = known.samples["n0"][0]
                    shapes = {n: shapes_at(known, n) for n in (first + 5, first + 2)}
                    at_witness = known._with({"n0": first + 5}, shapes[first + 5])
                    wanted = recorder(function_of(computation), arrays_of(computation))(shapes[first + 2])
                    given = Unpadded(*at_witness[:2]).at(Sizes({"n0": first + 2}, {"n0": first + 2}))
                except NoRule:
                    continue
                compared += 1
                if not same_operations(given, Listing(wanted)):
                    wrong.append((computation.case.name, group))
                break
    assert not wrong
    assert compared > 30


def shapes_at(known, size):
    sizes = Sizes({"n0": size}, {})
    return tuple(sizes.shape(dims) for dims in known.fed)
