"""Rows of tables by machine code of our own: against XLA's, in programs and alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.lowering.embedding_kernels import EmbeddingKernels
from jfluid.machine_code import kernel_registry, row_dispatch
from jfluid.ops import embedding, optimizer, table_rows
from jfluid.ops.selected_rows import SelectedRows

pytestmark = pytest.mark.skipif(
    not kernel_registry.supports("row"), reason="machine code is made for CPUs with AVX-512"
)

HEIGHT = 3000
# how many rows there are, and how wide they are
SIZES = {
    "part of a vector": (1000, 10),
    "one number": (300, 1),
    "a vector": (256, 16),
    "a vector and a part": (5000, 19),
    "many": (20000, 33),
}


def _drawn(count, width, lowest=0):
    """A table, numbers of rows, few of them often, some that no table has, and values."""
    random = np.random.RandomState(count + width)
    rows = np.minimum(random.zipf(1.2, count), HEIGHT + 5).astype(np.int64)
    rows[::97] = lowest
    draw = random.randn
    return [jnp.asarray(a) for a in (draw(HEIGHT, width).astype("f"), rows, draw(count, width).astype("f"))]


@pytest.fixture(autouse=True)
def wide_integers():
    with jax.enable_x64(True):
        assert kernel_registry.is_on("row")
        yield


def _both(function, *arrays):
    """What a function of arrays gives with machine code of our own, and with XLA alone; that the first
    calls it, and gives the same bits again.
    """

    def own(*arrays):
        with table_rows.using(EmbeddingKernels()):
            return function(*arrays)

    assert "jfluid_row_" in str(jax.make_jaxpr(own)(*arrays))
    compiled = jax.jit(own)
    found, again = compiled(*arrays), compiled(*arrays)
    jax.tree.map(np.testing.assert_array_equal, found, again)
    return found, jax.jit(function)(*arrays)


@pytest.mark.parametrize("count, width", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_a_look_up_has_the_same_bits(count, width, kind):
    table, rows, _ = _drawn(count, width, lowest=-3)
    found, expected = _both(lambda t, r: embedding.look_up(t, r, 2), table, rows.astype(kind))
    assert np.isnan(found).any() and (np.asarray(found)[np.asarray(rows) == 2] == 0).all()
    np.testing.assert_array_equal(found, expected)


def test_a_look_up_has_a_gradient():
    table, rows, values = _drawn(1000, 10)
    found, expected = _both(
        jax.grad(lambda t, r, v: jnp.sum(jnp.sin(embedding._rows_at(t, r % HEIGHT)) * v)),
        *(table, rows, values),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count, width", SIZES.values(), ids=SIZES)
def test_values_are_added_in_the_order_in_which_they_are_given(count, width):
    table, rows, values = _drawn(count, width)
    found, _ = _both(lambda t, r, v: SelectedRows(r, v, HEIGHT).added_to(t), table, rows, values)
    expected = np.array(table)
    for row, value in zip(np.asarray(rows), np.asarray(values)):
        if row < HEIGHT:
            expected[row] += value
    np.testing.assert_array_equal(found, expected)


def _merged(rows, values):
    return SelectedRows(rows, values, HEIGHT, summed=True)


UPDATES = {
    "sgd": (1, lambda g, p: optimizer.sgd(p, jnp.float32(0.1), g)),
    "adagrad": (2, lambda g, p, m: optimizer.adagrad(p, g, m, jnp.float32(0.1))),
    "lazy Adam": (
        3,
        lambda g, p, m, v: optimizer.adam(
            *(p, g, jnp.float32(0.1), m, v, jnp.float32(0.9), jnp.float32(0.99), None, None),
            lazy_mode=True,
        )[:3],
    ),
}


@pytest.mark.parametrize("count, width", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("tables, update", UPDATES.values(), ids=UPDATES)
def test_an_update_is_xlas_within_rounding(tables, update, count, width):
    table, rows, values = _drawn(count, width)
    arrays = [table] + [jnp.abs(table) + i for i in range(1, tables)]
    found, expected = _both(lambda r, v, *given: update(_merged(r, v), *given), rows, values, *arrays)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    untouched = np.setdiff1d(np.arange(HEIGHT), np.asarray(rows))
    first = jax.tree.leaves(found)[0]
    np.testing.assert_array_equal(np.asarray(first)[untouched], np.asarray(table)[untouched])


@pytest.mark.parametrize("each", [lambda n: n, lambda n: 7, lambda n: HEIGHT], ids=["different", "the same", "none"])
def test_each_row_is_merged_once(each):
    rows = jnp.asarray([each(n) for n in range(2000)], jnp.int64)
    values = jnp.ones((2000, 3), jnp.float32)
    once, sums, found = jax.jit(lambda r, v: row_dispatch.merge(r, v, HEIGHT, 300))(rows, values)
    known = [n for n in dict.fromkeys(np.asarray(rows).tolist()) if n < HEIGHT]
    assert once.shape == (2100,) and found.tolist() == [len(known)]
    np.testing.assert_array_equal(once, known + [HEIGHT] * (2100 - len(known)))
    totals = [[np.sum(np.asarray(rows) == n)] * 3 for n in known]
    np.testing.assert_array_equal(sums[: len(known)], np.reshape(totals, (-1, 3)))


@pytest.mark.parametrize(
    "shape, kind, count",
    [
        ((9, 4), np.float64, 300),
        ((9, 4), jnp.bfloat16, 300),
        ((9, 4), np.float32, 0),
        ((9, 2, 2), np.float32, 300),
        ((0, 4), np.float32, 300),
    ],
)
def test_other_arrays_are_left_to_xla(shape, kind, count):
    own, rows = EmbeddingKernels(), jnp.zeros(count, jnp.int64)
    table, values = jnp.zeros(shape, kind), jnp.zeros((count, *shape[1:]), kind)
    assert own.take(table, rows) is None
    assert own.add(table, rows, values, jnp.ones(())) is None
    assert own.update(lambda *arrays: arrays, rows, values, [table]) is None


@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("own_rows", [False, True])
def test_batches_of_rows_are_looked_up(own_tables, own_rows):
    table, rows, _ = _drawn(1024, 10)
    tables = jnp.stack([table, -table])
    given = (tables if own_tables else table), (rows.reshape(2, 512) if own_rows else rows)

    def look_up(t, r):
        axes = 0 if own_tables else None, 0 if own_rows else None
        return jax.vmap(embedding._rows_at, in_axes=axes, axis_size=2)(t, r)

    np.testing.assert_array_equal(*_both(look_up, *given))
    with table_rows.using(EmbeddingKernels()):
        text = jax.jit(lambda *arrays: look_up(*arrays)).lower(*given).compile().as_text()
    assert text.count("jfluid_row_take") == 1
    assert own_tables or " while(" not in text, "one call for all batches of a table"


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_tables_are_written_to_in_place(name):
    (tables, update), (_, rows, values) = UPDATES[name], _drawn(1000, 10)
    large = [jnp.ones((100 * HEIGHT, 10), jnp.float32)] * tables

    def step(r, v, *given):
        with table_rows.using(EmbeddingKernels()):
            read = embedding.look_up(given[0], r, -1)
            return update(SelectedRows(r, v * read, 100 * HEIGHT), *given)

    donated = tuple(range(2, 2 + tables))
    compiled = jax.jit(step, donate_argnums=donated).lower(rows, values, *large).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= tables * large[0].nbytes
    assert memory.temp_size_in_bytes < large[0].nbytes / 4


def test_a_program_trains_as_without_it(monkeypatch):
    def losses():
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            ids = fluid.data("ids", [None, 4], "int64")
            rows = fluid.embedding(ids, size=[HEIGHT, 10], is_sparse=True)
            loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 5)))
            fluid.optimizer.Adam(0.01, lazy_mode=True).minimize(loss)
        executor, random = fluid.Executor(fluid.CPUPlace()), np.random.RandomState(0)
        with fluid.scope_guard(fluid.Scope()):
            executor.run(startup)
            feeds = [np.minimum(random.zipf(1.3, (100, 4)), HEIGHT - 1) for _ in range(6)]
            run = executor.run
            return [float(run(main, {"ids": f}, [loss])[0][0]) for f in feeds]

    own = losses()
    calls = []
    monkeypatch.setattr(row_dispatch, "suits", lambda *_: bool(calls.append(0)))
    np.testing.assert_allclose(losses(), own, rtol=1e-5)
    assert calls
