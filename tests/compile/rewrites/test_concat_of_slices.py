"""Columns that a step cuts out and puts below one another are one transposition, with the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jfluid.compile.rewrites import concat_of_slices, jaxpr_rewrites

ROWS, WIDTH = 6, 3


def _step(order, width=WIDTH):
    """What a look-up's gradient does: parts of a matrix, which are pooled, below one another."""

    def run(x):
        parts = jnp.split(x, np.cumsum([WIDTH] * 5).tolist(), axis=1)
        cut = [jnp.broadcast_to(p[:, None], (ROWS, 1, p.shape[1])) for p in parts[:5]]
        return jnp.concatenate([cut[i].reshape(ROWS, -1)[:, :width] for i in order])

    return run


def _traced(function, x):
    return jax.make_jaxpr(lambda x: jaxpr_rewrites.evaluate(lambda _: {"out": function(x)})["out"])(x)


X = np.arange(ROWS * 17, dtype="float32").reshape(ROWS, 17)
NEIGHBOURS = {"in order": range(5), "backwards": range(4, -1, -1), "some": range(1, 5)}
OTHERS = {"mixed": (0, 2, 1, 3), "with a gap": (0, 1, 2, 4), "twice": (0, 1, 1, 2), "few": (0, 1)}


@pytest.mark.parametrize("order", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbours_are_one_transposition(order):
    traced = _traced(_step(order), X)
    found = jax.jit(jax.extend.core.jaxpr_as_fun(traced))(X)[0]
    np.testing.assert_array_equal(found, _step(order)(X))
    out = next(e for e in traced.jaxpr.eqns if e.outvars == traced.jaxpr.outvars)
    assert out.primitive.name == "reshape"
    assert "concatenate" not in {e.primitive.name for e in traced.jaxpr.eqns}


def test_rows_may_be_divided_among_replicas():
    def run(x):
        parts = jnp.split(x.reshape(2, 3, 17), [3, 6, 9, 12, 15], axis=2)
        return jnp.concatenate([p.reshape(ROWS, WIDTH) for p in parts[:5]])

    traced = _traced(run, X)
    np.testing.assert_array_equal(jax.extend.core.jaxpr_as_fun(traced)(X)[0], run(X))
    assert "concatenate" not in {e.primitive.name for e in traced.jaxpr.eqns}


@pytest.mark.parametrize("order", OTHERS.values(), ids=OTHERS)
def test_others_are_put_together_as_they_are(order):
    traced = _traced(_step(order), X)
    assert "concatenate" in {e.primitive.name for e in traced.jaxpr.eqns}
    found = jax.extend.core.jaxpr_as_fun(traced)(X)[0]
    np.testing.assert_array_equal(found, _step(order)(X))


def test_columns_that_are_rows_now_are_no_columns():
    def run(x):
        return jnp.concatenate([p.reshape(1, ROWS) for p in jnp.split(x, 17, axis=1)])

    traced = _traced(run, X)
    np.testing.assert_array_equal(jax.extend.core.jaxpr_as_fun(traced)(X)[0], X.T)


def test_parts_of_another_matrix_are_not_neighbours():
    x, y = jnp.asarray(X), jnp.asarray(X) + 1
    parts = [concat_of_slices.Columns(m, 3 * i, 3) for i, m in enumerate((x, x, y, x))]
    assert concat_of_slices.stacked(parts) is None
    assert concat_of_slices.stacked([*parts[:2], None, None]) is None
