"""The largest rows of sequences, and what else is taken over sequences, of numbers that are none or infinite: the same
in both forms.
"""

import itertools

import numpy as np
import pytest

import jfluid as fluid
from tests.slow_tests import nightly_but

NAN, INF = np.nan, np.inf
# Lengths of sequences: a few of one length, and some among which one is far longer than the others.
LENGTHS = {"dense": [3, 0, 4], "one": [5], "apart": [60, *[1, 0] * 20, 2]}


def step(lengths, columns, build):
    """A function of rows that gives what `build` does of them, and its gradient."""
    x = fluid.data("x", [None, columns], lod_level=1)
    x.stop_gradient = False
    out = build(x)
    (grad,) = fluid.gradients([fluid.layers.reduce_sum(out)], [x])
    executor = fluid.Executor(fluid.CPUPlace())

    def run(values):
        feed = {"x": fluid.create_lod_tensor(values, [lengths], fluid.CPUPlace())}
        found = executor.run(feed=feed, fetch_list=[out, grad], return_numpy=False)
        return [np.array(value) for value in found]

    return run


def rows(lengths, columns, *places):
    values = np.random.RandomState(0).randn(sum(lengths), columns).astype("float32")
    for at, number in places:
        values[at, ::2] = number
    return values


def largest(values, lengths, pad_value):
    """The largest of each column of each sequence, and a 1 where it is the first."""
    out, grad, start = [], np.zeros_like(values), 0
    for n in lengths:
        part = values[start : start + n]
        if n:
            first = np.argmax(part, axis=0)  # of NaN the first
            out.append(np.take_along_axis(part, first[None], 0)[0])
            grad[start + first, np.arange(values.shape[1])] = 1
        else:
            out.append(np.full(values.shape[1], pad_value, "float32"))
        start += n
    return np.array(out), grad


@pytest.mark.parametrize(
    "case", nightly_but([("dense", 16), ("one", 8), ("apart", 20)], itertools.product(LENGTHS, [8, 16, 20])), ids=str
)
def test_what_is_no_number_is_the_largest(case):
    lengths, columns = LENGTHS[case[0]], case[1]
    run = step(lengths, columns, lambda x: fluid.layers.sequence_pool(x, "max", pad_value=7.0))
    every = [(at, NAN) for at in range(lengths[0])]
    for places in (
        [(1, NAN)],
        [(lengths[0] - 1, NAN)],
        [(1, NAN), (2, NAN)],
        [(0, INF), (1, NAN)],
        [(0, INF), (1, INF)],
        [(at, -INF) for at in range(lengths[0])],
        [(0, -INF), (1, NAN), (2, -INF)],
        every,
        [(sum(lengths) - 1, NAN)],
    ):
        values = rows(lengths, columns, *places)
        expected, where = largest(values, lengths, 7.0)
        found, grad = run(values)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(grad, where)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kind", ["sum", "average", "sqrt", "first", "last"])
def test_what_is_no_number_stays_in_its_sequence(kind, lengths):
    run = step(lengths, 16, lambda x: fluid.layers.sequence_pool(x, kind, pad_value=7.0))
    values = rows(lengths, 16, (0, INF), (1, NAN), (lengths[0] - 1, NAN))
    found, grad = run(values)
    assert np.isfinite(grad).all() and np.isfinite(found[1:]).all()
    assert np.isfinite(found[0, 1::2]).all()
    number = found[0, ::2]
    assert (number == INF).all() if kind == "first" else np.isnan(number).all()
    assert all((found[i] == 7.0).all() for i, n in enumerate(lengths) if not n)


def test_softmax_of_what_is_no_number():
    """As Fluid gives, but one beside an infinite number, which is 0 there."""
    run = step([3, 2, 0, 2], 1, fluid.layers.sequence_softmax)
    values = np.array([1, NAN, 2, -INF, -INF, 2, -INF], "float32").reshape(-1, 1)
    found, _ = run(values)
    np.testing.assert_array_equal(np.isnan(found.ravel()), [True] * 5 + [False] * 2)
    np.testing.assert_allclose(found[5:].ravel(), [1, 0])
