"""Convolutions and their filters' gradients by machine code of our own: XLA's numbers, for any border,
stride and number of columns.
"""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jfluid.compile.rewrites import image_convolution, jaxpr_rewrites
from jfluid.machine_code import (
    convolution_dispatch,
    kernel_registry,
)
from jfluid.machine_code.convolution_kernels import TILE
from jfluid.machine_code.processor import LANES

pytestmark = pytest.mark.skipif(
    not kernel_registry.supports("convolution"), reason="machine code is made for CPUs with AVX2"
)
CHANNELS_LAST = ("NHWC", "HWIO", "NHWC")
# images, filter, strides, zeros before and behind
SHAPES = {
    "borders": ((3, 16, 16, 16), (3, 3, 16, 32), (1, 1), ((1, 1), (1, 1))),
    "no borders": ((2, 9, 13, 8), (2, 3, 8, 16), (1, 1), ((0, 0), (0, 0))),
    "columns that overlap": ((2, 7, 11, 3), (3, 3, 3, 16), (1, 1), ((1, 1), (1, 1))),
    "strides": ((9, 17, 32, 5), (3, 5, 5, 48), (2, 3), ((1, 1), (2, 1))),
    "one place": ((2, 8, 16, 32), (1, 1, 32, 64), (1, 2), ((0, 0), (0, 0))),
    "more behind than before": ((1, 6, 9, 4), (4, 2, 4, 16), (1, 1), ((1, 4), (0, 1))),
    "bands of rows": ((2, 50, 200, 16), (5, 3, 16, 16), (1, 1), ((2, 2), (1, 1))),
    "part of a vector of filters": ((3, 12, 12, 20), (5, 5, 20, 50), (1, 1), ((0, 0), (0, 0))),
    "three vectors": ((2, 8, 9, 3), (3, 2, 3, 44), (1, 1), ((0, 0), (0, 0))),
    "three vectors, one short": ((2, 8, 17, 7), (3, 3, 7, 39), (1, 1), ((0, 0), (0, 0))),
    "a vector and one number": ((2, 9, 8, 16), (2, 1, 16, 17), (1, 1), ((0, 0), (0, 0))),
    "a vector and a part": ((2, 9, 24, 1), (5, 5, 1, 20), (1, 1), ((2, 2), (0, 0))),
    "rows of zeros alone": ((1, 2, 8, 4), (3, 1, 4, 16), (1, 1), ((5, 6), (0, 0))),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert kernel_registry.is_on("convolution")


def _draw(*shapes):
    rng = np.random.RandomState(0)
    return [jnp.asarray(rng.randn(*s), jnp.float32) for s in shapes]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_numbers_are_those_of_the_library(shape):
    x, w, strides, pads = shape
    x, w = _draw(x, w)
    low = [before for before, _ in pads]

    def library(w):
        return lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=CHANNELS_LAST)

    expected, gradient = jax.vjp(library, w)
    (grad,) = _draw(expected.shape)
    found = jax.jit(lambda: convolution_dispatch.forward(x, w, strides, low, expected.shape[1:3]))()
    of_filter = jax.jit(lambda: convolution_dispatch.gradient(x, grad, w.shape[:2], strides, low))()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_filter, gradient(grad)[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "image, filter_, pads",
    [
        ((3, 12, 12, 20), (5, 5, 20, 50), ((0, 0), (0, 0))),
        ((2, 10, 15, 48), (5, 5, 48, 16), ((0, 0), (0, 0))),
        ((2, 5, 16, 16), (5, 7, 16, 3), ((1, 2), (1, 0))),
        ((1, 12, 11, 33), (3, 4, 33, 9), ((0, 0), (0, 2))),
        ((2, 9, 8, 24), (4, 4, 24, 5), ((5, 4), (4, 5))),
        ((1, 80, 90, 20), (3, 5, 20, 4), ((0, 0), (0, 0))),
    ],
    ids=[
        "whole tiles",
        "part of a tile",
        "borders",
        "few numbers",
        "windows outside",
        "large images",
    ],
)
def test_gradients_of_images_are_those_of_the_library(image, filter_, pads):
    x, w = _draw(image, filter_)
    expected, gradient = jax.vjp(
        lambda x: lax.conv_general_dilated(x, w, (1, 1), pads, dimension_numbers=CHANNELS_LAST), x
    )
    (grad,) = _draw(expected.shape)
    turned, low = jnp.swapaxes(w, 2, 3), [before for before, _ in pads]
    found = jax.jit(lambda: convolution_dispatch.of_images(grad, turned, low, image[1:3]))()
    np.testing.assert_allclose(found, gradient(grad)[0], rtol=1e-4, atol=1e-4)


def test_steps_use_it_for_images_whose_windows_reach_over_borders():
    names = _primitives((2, 20, 12, 12), (50, 20, 5, 5), "VALID")
    assert names.count("ffi_call") == 3
    assert not {"conv_general_dilated", "dot_general"} & set(names)


def test_a_number_that_is_not_finite_reaches_its_window_alone():
    grad, w = _draw((1, 8, 8, 20), (5, 5, 20, 20))
    found = convolution_dispatch.of_images(grad.at[0, 2, 3, 1].set(np.inf), w, (0, 0), (12, 12))
    expected = np.zeros((12, 12), bool)
    expected[2:7, 3:8] = True
    np.testing.assert_array_equal(~np.isfinite(found[0]).all(-1), expected)


def test_gradients_have_the_same_bits_each_time():
    x, grad = _draw((20, 32, 32, 16), (20, 32, 32, 16))
    run = jax.jit(lambda: convolution_dispatch.gradient(x, grad, (3, 3), (1, 1), (1, 1)))
    first = np.asarray(run())
    for _ in range(20):
        np.testing.assert_array_equal(np.asarray(run()), first)


def test_calls_at_the_same_time_do_not_wait_for_each_other():
    x, w = _draw((4, 32, 32, 16), (3, 3, 16, 16))

    def many(x):
        return [convolution_dispatch.forward(x * i, w, (1, 1), (1, 1), (32, 32)) for i in range(1, 33)]

    found = jax.jit(many)(x)
    for i, each in enumerate(found, 1):
        np.testing.assert_allclose(each, found[0] * i, rtol=1e-4, atol=1e-2)


def _primitives(images, filters, padding="SAME", dtype=jnp.float32):
    """Primitives, by name, of a convolution and its gradients as a step has them."""
    x, w = jnp.ones(images, dtype), jnp.ones(filters, dtype)

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), padding)

    def step(x, w):
        y, gradient = jax.vjp(convolve, x, w)
        return {"gradients": gradient(jnp.tanh(y))}

    traced = jax.make_jaxpr(lambda x, w: jaxpr_rewrites.evaluate(lambda _: step(x, w)))(x, w)
    return [e.primitive.name for e in traced.jaxpr.eqns]


def test_steps_use_it_forward_and_for_both_gradients():
    names = _primitives((2, 16, 16, 16), (16, 16, 3, 3))
    assert names.count("ffi_call") == 3 and "conv_general_dilated" not in names


@pytest.mark.parametrize(
    "images, filters, dtype",
    [
        ((2, LANES - 3, 16, 16), (LANES - 3, LANES - 3, 3, 3), jnp.float32),
        ((2, 16, TILE - 1, TILE - 1), (16, 16, 3, 3), jnp.float32),
        ((2, 256, 16, 16), (256, 256, 3, 3), jnp.float32),
        ((2, 16, 16, 16), (16, 16, 3, 3), jnp.bfloat16),
    ],
    ids=["part of a vector", "few columns", "large filters", "bfloat16"],
)
def test_steps_leave_other_shapes_to_the_library(images, filters, dtype):
    names = _primitives(images, filters, dtype=dtype)
    assert "ffi_call" not in names and names.count("conv_general_dilated") >= 2


def test_machines_without_such_vectors_leave_all_to_the_library(monkeypatch):
    monkeypatch.setattr(kernel_registry, "is_on", lambda group: False)
    assert "ffi_call" not in _primitives((2, 16, 16, 16), (16, 16, 3, 3))


@pytest.mark.parametrize(
    "filters, wanted",
    [([(LANES - 3, 3, 5, 5), (32, 3, 3, 3)], True), ([(LANES - 3, 3, 5, 5)], False)],
)
def test_a_thread_makes_it_while_operators_are_recorded(filters, wanted, monkeypatch):
    made = []
    monkeypatch.setattr(kernel_registry, "is_on", lambda group: made.append(threading.current_thread().name))
    held = {
        str(i): (jnp.zeros((*kernel, channels, count)), image_convolution.HELD[4])
        for i, (count, channels, *kernel) in enumerate(filters)
    }

    def record(arguments):
        for thread in threading.enumerate():
            if thread.name == image_convolution.THREAD:
                thread.join()
        assert set(made) == ({image_convolution.THREAD} if wanted else set())
        return {}

    jax.jit(lambda: jaxpr_rewrites.evaluate(record, held))()


@pytest.mark.parametrize(
    "filters, weights, wanted",
    [
        ([(32, 3, 3, 3)], [(64, 10)], ["convolution"]),
        ([(32, 3, 3, 3)], [(64, 10), (64, 96)], ["convolution", "product"]),
        ([], [(64, 96)], []),
        ([(50, 3, 5, 5)], [], ["convolution"]),
    ],
    ids=["a narrow layer", "a wide layer", "no filter", "a few channels"],
)
def test_it_is_made_for_the_layers_beside_convolutions_too(filters, weights, wanted, monkeypatch):
    made = []
    monkeypatch.setattr(kernel_registry, "is_on", made.append)
    image_convolution.expect(filters, weights)
    for thread in threading.enumerate():
        if thread.name == image_convolution.THREAD:
            thread.join()
    assert made == wanted
