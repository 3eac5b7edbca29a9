"""Primitives and calls of kernels by NumPy beside XLA; tests/compile/test_recorded_cases.py has the operators."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.extend.core import primitives

from jfluid.compile.numpy_steps import blas_threads, interpreter, kernels
from jfluid.compile.numpy_steps.interpreter import Listing
from jfluid.machine_code import convolution_dispatch, kernel_registry, product_dispatch, row_dispatch
from tests.slow_tests import nightly_but


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jax.lax.reshape(x, (4, 3), dimensions=(1, 0)),
        lambda x: x[0] @ x[0],
        lambda x: jax.grad(lambda y: jnp.prod(y, axis=1).sum())(x),
        lambda x: jax.lax.while_loop(lambda s: s[0] @ s[0] < 10, lambda s: s * 2, x),
    ],
    ids=["reshape in another order", "product that is one number", "gradient of a product", "loop"],
)
def test_rules_that_recorded_cases_do_not_reach(function):
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4) / 10
    with jax.enable_x64(True):
        (found,) = Listing(jax.make_jaxpr(function)(x)).run([x])
        np.testing.assert_allclose(found, function(jnp.asarray(x)), 1e-6)


CONVOLUTIONS = [
    *itertools.product(("forward", "gradient"), ((1, 1), (2, 3)), ((0, 0), (1, 2))),
    ("images", (1, 1), (1, 1)),
]


def convolution(draw, kind, strides, low):
    """Images of 9 x 44 pixels with zeros before and behind, as windows of 3 x 2 need."""
    x, w = draw.rand(3, 9, 44, 5).astype("float32"), draw.rand(3, 2, 5, 32).astype("float32")
    out = 3, 14
    if kind == "forward":
        return lambda x, w: convolution_dispatch.forward(x, w, strides, low, out), (x, w)
    grad = draw.rand(3, *out, 32).astype("float32")
    if kind == "gradient":
        return lambda x, g: convolution_dispatch.gradient(x, g, (3, 2), strides, low), (x, grad)
    w = draw.rand(3, 2, 32, 32).astype("float32")
    return lambda g, w: convolution_dispatch.of_images(g, w, low, (4, 14)), (grad, w)


def kernel_calls():
    """Functions of the kernels that have rules, with arrays; rows outside a table among them."""
    draw = np.random.RandomState(4)
    rows = draw.randint(-3, 60, 300).astype("int64")
    table, values = (draw.rand(n, 9).astype("float32") for n in (50, 300))
    x, y = draw.rand(130, 90).astype("float32"), draw.rand(90, 70).astype("float32")
    return {
        "take": (row_dispatch.take, (table, rows)),
        "put": (lambda t, r, v: row_dispatch.put(t, r, v), (table, draw.permutation(300).astype("int64") - 5, values)),
        "add": (lambda t, r, v: row_dispatch.add(t, r, v, jnp.float32(-0.5)), (table, rows, values)),
        "merge": (lambda r, v: row_dispatch.merge(r, v, 50, 16), (rows, values)),
        **{" ".join(map(str, ("convolution", *case))): convolution(draw, *case) for case in CONVOLUTIONS},
        **{
            f"product {over}": (
                lambda a, b, over=over: product_dispatch.product(a, b, over),
                (x if over[0] else x.T, y.T if over[1] else y),
            )
            for over in itertools.product((0, 1), repeat=2)
        },
    }


@pytest.mark.parametrize(
    "name",
    [
        *("take", "put", "add", "merge"),
        *(f"product {over}" for over in itertools.product((0, 1), repeat=2)),
        *(" ".join(map(str, ("convolution", *case))) for case in CONVOLUTIONS),
    ],
)
def test_kernels(name):
    """A kernel's rule gives what its machine code gives, and no call of the kernel is compiled for its sizes."""
    if not kernel_registry.is_on(name.split()[0] if " " in name else "row"):
        pytest.skip("the processor has no vectors for the group")
    with jax.enable_x64(True):
        function, arrays = kernel_calls()[name]
        closed = jax.make_jaxpr(function)(*arrays)
        assert "ffi_call" in str(closed)
        before = len(interpreter._Alone.compiled)
        found = Listing(closed).run(list(arrays))
        assert len(interpreter._Alone.compiled) == before
        expected = jax.tree.leaves(jax.jit(function)(*arrays))
        if name == "merge":  # the sums beyond the distinct rows are undefined
            count = int(expected[2][0])
            found[1], expected[1] = found[1][:count], expected[1][:count]
    assert [f.dtype for f in found] == [e.dtype for e in expected]
    for own, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, exact, 1e-5)


def test_convolutions_of_many_sizes_share_an_executable():
    if not kernel_registry.is_on("convolution"):
        pytest.skip("the processor has no vectors for the group")
    draw = np.random.RandomState(0)
    kernels._compiled.cache_clear()
    for count, columns in [(1, 44), (2, 51), (2, 48)]:
        x, w = draw.rand(count, 9, columns, 5).astype("float32"), draw.rand(3, 2, 5, 32).astype("float32")
        closed = jax.make_jaxpr(lambda x, w, n=columns: convolution_dispatch.forward(x, w, (1, 1), (1, 1), (9, n)))(
            x, w
        )
        (found,) = Listing(closed).run([x, w])
        assert found.shape == (count, 9, columns, 32)
    assert kernels._compiled.cache_info().misses == 1


def test_an_array_without_content():
    closed = jax.make_jaxpr(lambda: jax.lax.empty((3, 4), "int32"))()
    (found,) = Listing(closed).run([])
    assert found.shape == (3, 4) and found.dtype == np.int32


@pytest.mark.parametrize("primitive", [primitives.eq_to_p, primitives.le_to_p, primitives.lt_to_p], ids=str)
def test_the_total_order(primitive):
    numbers = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 1e-45, 3e38], np.float32)
    x, y = (v.reshape(-1).copy() for v in np.meshgrid(numbers, numbers))
    with jax.enable_x64(True):
        (found,) = Listing(jax.make_jaxpr(primitive.bind)(x, y)).run([x, y])
        np.testing.assert_array_equal(found, jax.jit(primitive.bind)(x, y))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_search_among_integers_is_no_loop(side, monkeypatch):
    held, wanted = np.array([0, 3, 3, 7], np.int32), np.array([-1, 0, 3, 5, 7, 9], np.int32)
    monkeypatch.delitem(interpreter.RULES, "scan")
    found = Listing(jax.make_jaxpr(lambda a, b: jnp.searchsorted(a, b, side))(held, wanted)).run([held, wanted])
    np.testing.assert_array_equal(found[0], np.searchsorted(held, wanted, side))


def test_a_loop_runs_operations_of_invariant_operands_once(monkeypatch):
    sines = []
    monkeypatch.setitem(interpreter.PLAIN, "sin", lambda x: sines.append(x) or np.sin(x))

    def function(x, weights):
        def body(carry, row):
            scaled = jax.jit(lambda w, r: (jnp.sin(w), r * 2))(weights, row)
            return carry * scaled[0] + scaled[1], carry

        return jax.lax.scan(body, x, jnp.ones((5, 3), jnp.float32))

    x = np.arange(3, dtype=np.float32)
    found = Listing(jax.make_jaxpr(function)(x, x)).run([x, x])
    assert len(sines) == 1
    for own, expected in zip(found, jax.tree.leaves(function(x, x)), strict=True):
        np.testing.assert_allclose(own, expected, 1e-5)


def test_erfc_of_single_precision():
    x = np.concatenate([np.linspace(-6, 8, 20_001), [-np.inf, np.inf, np.nan, 0.0]]).astype(np.float32)
    (found,) = Listing(jax.make_jaxpr(jax.lax.erfc)(x)).run([x])
    np.testing.assert_allclose(found, scipy.special.erfc(x.astype(np.float64)), 1e-5)


@pytest.mark.parametrize("name", nightly_but(["lgamma"], ["erf", "erfc", "erf_inv", "lgamma", "digamma"]))
def test_a_function_that_numpy_lacks_is_compiled_for_two_sizes(name, monkeypatch):
    made, kept = [], kernels._kept
    monkeypatch.setattr(kernels, "_kept", lambda *given: made.append(given) or kept(*given))
    function = getattr(jax.lax, name)
    run = kernels._computed_by_xla(getattr(jax.lax, f"{name}_p"))
    for shape in ((), (0, 3), (7,), (64, 64), (4097,), (3, 50_000)):
        x = np.random.RandomState(1).uniform(-0.9, 0.9, shape).astype(np.float32)
        np.testing.assert_array_equal(run(x), jax.jit(function)(x), strict=True)
    assert len(made) == 2


def test_matrix_products_have_one_thread_while_several_steps_are_interpreted():
    def threads():
        return {library["num_threads"] for library in blas_threads._libraries().info()}

    before = threads()
    with blas_threads.one_thread():
        with blas_threads.one_thread():
            assert threads() <= {1}
        assert threads() <= {1}
    assert threads() == before
