"""Shapes of what imperative operators give, by formula."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import dygraph, layers
from jfluid.caches import kept_files
from jfluid.compile.dynamic_shapes.dims import NoRule
from jfluid.compile.dynamic_shapes.feed_symbols import FeedSymbols, Longer, Sampled
from jfluid.compile.runtime.lru_cache import LruCache
from jfluid.dygraph import kept_shapes, shape_formulas
from jfluid.dygraph.lazy_values import aval_of
from jfluid.ops import registry


@pytest.fixture
def inferred(monkeypatch):
    """A list that gets an entry for each inference by tracing."""
    found, own = [], jax.eval_shape
    monkeypatch.setattr(shape_formulas, "_known", LruCache(100))  # formulas of other tests hold at other sizes
    monkeypatch.setattr(kept_files, "folder", lambda: None)  # results of other tests

    def counted(*args, **kwargs):
        found.append(args)
        return own(*args, **kwargs)

    monkeypatch.setattr(jax, "eval_shape", counted)
    return found


def shapes(build, sizes, inferred):
    """The shapes that a function of sizes gives, and how often the last sizes were inferred by tracing."""
    made = []
    for size in sizes:
        before = len(inferred)
        out = build(*size) if isinstance(size, tuple) else build(size)
        made.append([v.shape for v in (out if isinstance(out, list | tuple) else [out])])
        last = len(inferred) - before
    return made, last


def given(*shape):
    return dygraph.to_variable(np.zeros(shape, "float32"))


LENGTHS = [5, 9, 7, 6, 8, 10, 4]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda n: layers.scale(given(n, 11), 3.5), lambda n: [[n, 11]]),
        (lambda n: layers.concat([given(3, n), given(3, 4)], 1), lambda n: [[3, n + 4]]),
        (lambda n: layers.concat([given(n, 15), given(n + 1, 15)], 0), lambda n: [[2 * n + 1, 15]]),
        (lambda n: layers.slice(given(n, 13), [0], [1], [10_000]), lambda n: [[n - 1, 13]]),
        (lambda n: layers.reshape(given(n, 6, 5), [-1, 5]), lambda n: [[6 * n, 5]]),
        (
            lambda n: layers.matmul(given(2, n, 7), given(2, n, 7), transpose_y=True),
            lambda n: [[2, n, n]],
        ),
        (lambda n: layers.split(given(n, 14), 2, dim=1), lambda n: [[n, 7], [n, 7]]),
    ],
)
def test_a_new_size_is_not_traced(inferred, build, expected):
    with dygraph.guard(fluid.CPUPlace()):
        made, last = shapes(build, LENGTHS, inferred)
    assert made == [expected(n) for n in LENGTHS]
    assert last == 0


def test_two_sizes(inferred):
    with dygraph.guard(fluid.CPUPlace()):
        sizes = [(5, 9), (9, 4), (7, 5), (6, 10), (8, 11)]
        made, last = shapes(lambda n, m: layers.concat([given(n, 17), given(m, 17)], 0), sizes, inferred)
    assert made == [[[n + m, 17]] for n, m in sizes]
    assert last == 0


def test_what_no_formula_gives_is_traced(inferred):
    with dygraph.guard(fluid.CPUPlace()):
        made, last = shapes(lambda n: layers.pool2d(given(1, 2, n, 19), 3, pool_stride=2), LENGTHS, inferred)
        assert last == 1
        assert [shape[2] for (shape,) in made] == [(n - 3) // 2 + 1 for n in LENGTHS]
        # a length of one is broadcast, and lengths far beyond those that came may be another case
        made, _ = shapes(
            lambda n: layers.elementwise_add(given(8, 23), given(8, n)) if n == 23 else given(n),
            [23, 1],
            inferred,
        )
        made, last = shapes(lambda n: layers.slice(given(n, 29), [0], [0], [100]), [5, 7, 9, 8, 200], inferred)
        assert made == [[[n, 29]] for n in (5, 7, 9, 8, 100)]


def test_an_attribute_that_holds_for_one_size(inferred):
    with dygraph.guard(fluid.CPUPlace()):
        made, _ = shapes(lambda n: layers.reshape(given(n, 31), [n * 31]), LENGTHS, inferred)
        assert made == [[[31 * n]] for n in LENGTHS]
        for n in (2, 4, 6, 5):
            if n % 2:
                with pytest.raises(fluid.errors.ShapeError, match="reshape"):
                    layers.reshape(given(n, 37), [2, -1])
            else:
                assert layers.reshape(given(n, 37), [2, -1]).shape == [2, n * 37 // 2]


def test_sizes_that_are_longer_than_others():
    symbols = FeedSymbols.of([((n, n + 8, m),) for n, m in [(2, 12), (4, 11), (3, 10)]])
    assert symbols.dims == ((("n0",), Longer("n0", 8), ("n2",)),)
    assert symbols.sizes(((7, 15, 9),)) == {"n0": 7, "n2": 9}
    assert symbols.sizes(((7, 14, 9),)) is None
    assert Sampled(symbols, symbols.low, {"n0": 9, "n2": 40}).fed
    with pytest.raises(NoRule, match="do not tell apart"):
        Sampled(symbols, symbols.low, symbols.high)


@pytest.mark.parametrize(
    ("sizes", "unit"),
    [((10, 14, 26), 1), ((3, 12, 12), 1), ((320, 352, 384), 32), ((10, 14, 26, 12), 2), ((416, 448), 32)],
)
def test_a_common_divisor_that_chance_explains_is_none(sizes, unit):
    (symbol,) = FeedSymbols.of([((size, 3),) for size in sizes]).unit.values()
    assert symbol == unit


def test_shapes_of_operators_are_kept_for_later_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(kept_files, "folder", lambda: tmp_path)
    definition, avals = registry.get("relu"), [aval_of(np.zeros((3, 4), "float32")), None]
    made = (avals[0], [aval_of(np.zeros(2, "int64")), None], np.array([1, 2]))
    first = kept_shapes.KeptShapes()
    assert first.outputs(definition, ["call"], avals, lambda: made) is made
    first.settle()
    first.settle()  # a step without new shapes: the file is written
    later = kept_shapes.KeptShapes()

    def inferred():
        raise AssertionError("the file has the shapes")

    own, several, known = later.outputs(definition, ["call"], avals, inferred)
    assert own is avals[0] and several == made[1] and known.tolist() == [1, 2]
    with pytest.raises(AssertionError, match="the file has"):
        later.outputs(definition, ["another call"], avals, inferred)
