"""Products by one number throughout, of which XLA's own way with YNNPACK makes a wrong sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime.library_fusions import multiplies_by_one_number

RANDOM = np.random.RandomState(0)
X = RANDOM.rand(100, 300).astype("float32")
IMAGES = RANDOM.rand(4, 24, 32, 32).astype("float32")


def _run(build, feed):
    """Return the fetches of a program that `build` makes."""
    main = fluid.Program()
    with fluid.program_guard(main), fluid.unique_name.guard():
        fetches = build()
    return fluid.Executor(fluid.CPUPlace()).run(main, feed=feed, fetch_list=fetches)


def test_a_product_with_a_constant_is_summed():
    def build():
        x = fluid.data("x", [None, 300], "float32")
        y = fluid.layers.matmul(x, fluid.layers.fill_constant([300, 50], "float32", 0.5))
        layers = fluid.layers
        return [layers.reduce_sum(y), layers.reduce_sum(y, dim=1), layers.reduce_mean(y * y)]

    whole, rows, squares = _run(build, {"x": X})
    product = X.astype("float64") @ np.full((300, 50), 0.5)
    np.testing.assert_allclose(whole, [product.sum()], 1e-4)
    np.testing.assert_allclose(rows, product.sum(1), 1e-4)
    np.testing.assert_allclose(squares, [(product**2).mean()], 1e-4)


def test_a_sum_alone_of_a_product_with_a_constant():
    def build():
        x = fluid.data("x", [None, 300], "float32")
        filled = fluid.layers.fill_constant([300, 50], "float32", 0.5)
        return [fluid.layers.mean(fluid.layers.mul(x, filled))]

    (found,) = _run(build, {"x": X})
    np.testing.assert_allclose(found, [X.astype("float64").sum() * 25 / 5000], 1e-4)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_convolution_with_a_constant_is_summed(kernels):
    def build():
        x = fluid.data("x", [None, 24, 32, 32], "float32")
        block = fluid.default_main_program().global_block()
        filters = fluid.layers.fill_constant([16, 24, 3, 3], "float32", 0.5)
        out = block.create_var(name="out", dtype="float32")
        block.append_op(
            type="conv2d",
            inputs={"Input": [x], "Filter": [filters]},
            outputs={"Output": [out]},
            attrs={"strides": [1, 1], "paddings": [0, 0], "dilations": [1, 1], "groups": 1},
        )
        return [fluid.layers.reduce_sum(out)]

    before = fluid.get_flags("FLAGS_cpu_kernels")
    fluid.set_flags({"FLAGS_cpu_kernels": kernels})
    try:
        (found,) = _run(build, {"x": IMAGES})
    finally:
        fluid.set_flags(before)
    windows = np.lib.stride_tricks.sliding_window_view(IMAGES.astype("float64"), (3, 3), (2, 3))
    np.testing.assert_allclose(found, [windows.sum() * 8], 1e-4)


def test_a_constant_in_a_branch():
    def build():
        x = fluid.data("x", [100, 300], "float32")
        filled = fluid.layers.fill_constant([300, 50], "float32", 0.5)
        positive = fluid.layers.reduce_sum(x) > fluid.layers.fill_constant([1], "float32", 0.0)
        none = lambda: fluid.layers.fill_constant([1], "float32", 0.0)  # noqa: E731
        product = lambda: fluid.layers.reduce_sum(fluid.layers.matmul(x, filled))  # noqa: E731
        return [fluid.layers.cond(positive, product, none)]

    (found,) = _run(build, {"x": X})
    np.testing.assert_allclose(found, [X.astype("float64").sum() * 25], 1e-4)


def test_imperative_sums_of_products_with_a_constant():
    with fluid.dygraph.guard(fluid.CPUPlace()):
        x = fluid.dygraph.to_variable(X)
        filled = fluid.layers.fill_constant([300, 50], "float32", 0.5)
        found = fluid.layers.reduce_sum(fluid.layers.matmul(x, filled)).numpy()
    np.testing.assert_allclose(found, [X.astype("float64").sum() * 25], 1e-4)


def _flagged(function, *arguments):
    return multiplies_by_one_number(jax.make_jaxpr(function)(*arguments).jaxpr)


def _in_while(x, c):
    """A sum in a loop whose condition and body both read what is outside."""
    state = jnp.int32(0), jnp.float32(0)
    more = jnp.max(x) > 0
    return jax.lax.while_loop(lambda s: (s[0] < 1) & more, lambda s: (s[0] + 1, s[1] + (x @ c).sum()), state)[1]


def _in_branch(x, c):
    return jax.lax.cond(x[0, 0] > -1, lambda x, c: (x @ c).sum(), lambda x, c: 0.0 * x[0, 0], x, c)


def test_which_programs_have_such_a_product():
    weights = np.ones((300, 50), "float32")
    ones = lambda: jnp.ones((300, 50), jnp.float32)  # noqa: E731
    assert _flagged(lambda x: x @ ones(), X)
    assert _flagged(lambda x: x @ (ones() * 3 + 1).reshape(50, 300).T, X)
    assert _flagged(lambda x, s: x @ jnp.broadcast_to(s, (300, 50)), X, np.float32(2))
    assert _flagged(lambda x: jax.jit(lambda x, c: x @ c)(x, ones()), X)
    assert _flagged(lambda x: x @ jax.jit(ones)(), X)
    assert _flagged(lambda x: jax.lax.fori_loop(0, 3, lambda i, s: s + (x @ ones()).sum(), 0.0), X)
    # constants that are made outside of a loop or a branch, into which XLA moves them
    assert _flagged(lambda x, c=ones: _in_while(x, c()), X)
    assert _flagged(lambda x, c=ones: _in_branch(x, c()), X)
    # What scripts have: weights, gradients of means, products with a vector of ones.
    assert not _flagged(lambda x, w: (x @ w).sum(), X, weights)
    assert not _flagged(jax.grad(lambda w, x: jnp.mean(x @ w)), weights, X)
    assert not _flagged(lambda x, w: x @ (w + ones()), X, weights)
    assert not _flagged(lambda x: x @ jnp.broadcast_to(jnp.arange(300.0)[:, None], (300, 50)), X)
