"""Products over rows, as of a weight's gradient, by machine code of our own: NumPy's numbers for any shape,
in steps of any kind.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile import direct_product, image_layout, llvm_writer, machine_code, product_kernels

pytestmark = pytest.mark.skipif(
    not product_kernels.names(), reason="machine code is made for CPUs with AVX-512"
)

# rows that are added up, rows and columns of the result
SHAPES = {
    "whole tiles": (64, 28, 64),
    "tiles that overlap": (64, 31, 32),
    "columns that overlap by part of a vector": (33, 14, 40),
    "columns that overlap by more": (33, 15, 57),
    "one vector of columns": (100, 30, 16),
    "one row": (1, 14, 32),
    "blocks of rows": (777, 45, 48),
    "many tiles": (40, 1009, 77),
    "many columns": (300, 14, 2000),
    "of mlp": (256, 784, 200),
    "of stacked_lstm": (2560, 32, 128),
    "several chunks each way": (300, 250, 530),
    "more rows than are kept for others": (5000, 64, 64),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert machine_code.registered()


def _draw(depth, rows, columns):
    rng = np.random.RandomState(0)
    return [rng.randn(depth, n).astype("float32") for n in (rows, columns)]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_numbers_are_those_of_numpy(shape):
    x, y = _draw(*shape)
    assert direct_product.suits(x, y)
    found = np.asarray(jax.jit(direct_product.over_rows)(x, y))
    expected = x.T.astype("float64") @ y
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * shape[0])


def test_infinite_numbers_stay_where_they_are():
    x, y = _draw(300, 20, 50)
    x[7, 3], y[290, 41] = np.inf, np.nan
    found = np.asarray(jax.jit(direct_product.over_rows)(x, y))
    wrong = ~np.isfinite(found)
    assert wrong[3].all() and wrong[:, 41].all() and wrong.sum() == 50 + 20 - 1


@pytest.mark.parametrize("processors", [1, 16, 1000])
def test_numbers_have_the_same_bits_however_the_work_is_divided(monkeypatch, processors):
    x, y = _draw(600, 300, 90)
    first = np.asarray(jax.jit(direct_product.over_rows)(x, y))
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    run = jax.jit(lambda x, y: direct_product.over_rows(x, y))
    for _ in range(10):
        np.testing.assert_array_equal(np.asarray(run(x, y)), first)


@pytest.fixture
def nothing_kept():
    """Steps are traced, whatever is on disk."""
    before = fluid.get_flags("FLAGS_compilation_cache_dir")
    fluid.set_flags({"FLAGS_compilation_cache_dir": ""})
    yield
    fluid.set_flags(before)


def _primitives(x, w, dtype=jnp.float32):
    """Primitives, by name, of a layer and of its gradients as a step has them."""
    x, w = jnp.ones(x, dtype), jnp.ones(w, dtype)

    def step(x, w):
        y, gradient = jax.vjp(lambda x, w: x @ w, x, w)
        return {"gradients": gradient(jnp.tanh(y))}

    traced = jax.make_jaxpr(lambda x, w: image_layout.channels_last(lambda _: step(x, w)))(x, w)
    return [e.primitive.name for e in traced.jaxpr.eqns]


def test_steps_use_it_for_gradients_of_weights_and_turn_nothing_round():
    names = _primitives((128, 200), (200, 100))
    assert sorted(names) == ["dot_general", "dot_general", "ffi_call", "tanh"]


@pytest.mark.parametrize(
    "x, w, dtype",
    [
        ((128, 200), (200, 10), jnp.float32),
        ((128, 10), (10, 200), jnp.float32),
        ((128, 32), (32, 64), jnp.float32),
        ((128, 300), (300, 300), jnp.float32),
        ((128, 200), (200, 100), jnp.bfloat16),
    ],
    ids=["few columns", "few rows", "small", "long sides", "bfloat16"],
)
def test_steps_leave_other_products_to_the_library(x, w, dtype):
    names = _primitives(x, w, dtype)
    assert "ffi_call" not in names and names.count("dot_general") == 3


def test_long_products_with_fewer_parts_than_processors_are_left_to_the_library(monkeypatch):
    assert "ffi_call" in _primitives((5000, 64), (64, 64))
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert "ffi_call" not in _primitives((5000, 64), (64, 64))
    assert "ffi_call" in _primitives((4000, 64), (64, 64))


def test_machines_without_such_vectors_leave_all_to_the_library(monkeypatch):
    monkeypatch.setattr(llvm_writer, "has_wide_vectors", lambda: False)
    assert not machine_code._register.__wrapped__(machine_code._LAYERS)
    monkeypatch.setattr(machine_code, "registered", lambda: False)
    assert "ffi_call" not in _primitives((128, 200), (200, 100))


def _layers():
    x = fluid.data("x", [None, 6, 64])
    hidden = fluid.layers.fc(x, 96, num_flatten_dims=2, act="relu")
    return fluid.layers.fc(hidden, 128, num_flatten_dims=2), {
        "x": np.random.RandomState(0).randn(64, 6, 64).astype("float32")
    }


def _sequences():
    x = fluid.data("x", [None, 64], lod_level=1)
    gates = fluid.layers.fc(x, 256, bias_attr=False)
    rows = np.random.RandomState(0).randn(300, 64).astype("float32")
    feed = fluid.create_lod_tensor(rows, [[100, 20, 60, 120]], fluid.CPUPlace())
    return fluid.layers.dynamic_lstm(gates, 256, use_peepholes=False)[0], {"x": feed}


def _losses(network, replicas):
    """Of a few steps that train."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out, feed = network()
        loss = fluid.layers.mean(fluid.layers.square(out))
        fluid.optimizer.Adam(0.01).minimize(loss)
    program = main
    if replicas:
        program = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [np.mean(exe.run(program, feed=feed, fetch_list=[loss])[0]) for _ in range(4)]


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(
    "network, replicas",
    [(_layers, False), (_sequences, False), (_layers, True)],
    ids=["layers", "sequences", "layers in replicas"],
)
def test_training_gives_the_losses_of_the_library(monkeypatch, network, replicas):
    called = []
    monkeypatch.setenv("CPU_NUM", "2")
    over_rows = direct_product.over_rows
    monkeypatch.setattr(
        direct_product, "over_rows", lambda x, y: called.append(x.shape) or over_rows(x, y)
    )
    losses = _losses(network, replicas)
    assert called and losses[-1] < losses[0]
    monkeypatch.setattr(machine_code, "registered", lambda: False)
    del called[:]
    np.testing.assert_allclose(_losses(network, replicas), losses, rtol=1e-4)
    assert not called
