"""Products of matrices by machine code of our own: NumPy's numbers for any shape, in steps of any kind."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.rewrites import jaxpr_rewrites, matmul_dispatch
from jfluid.machine_code import kernel_registry, processor, product_dispatch, product_kernels

pytestmark = pytest.mark.skipif(
    not kernel_registry.supports("product"), reason="machine code is made for CPUs with AVX-512"
)

# numbers that are added up, rows and columns of the result
SHAPES = {
    "whole tiles": (64, 28, 64),
    "tiles that overlap": (64, 31, 32),
    "columns that overlap by part of a vector": (33, 14, 40),
    "columns that overlap by more": (33, 15, 57),
    "one vector of columns": (100, 30, 16),
    "part of a vector of columns": (777, 30, 10),
    "two columns": (100, 45, 2),
    "one column": (33, 14, 1),
    "one row": (1, 14, 32),
    "fewer rows than a square of vectors": (15, 29, 50),
    "squares of vectors": (48, 28, 64),
    "blocks of rows": (777, 45, 48),
    "many tiles": (40, 1009, 77),
    "many columns": (300, 14, 2000),
    "of mlp": (256, 784, 200),
    "of stacked_lstm": (2560, 32, 128),
    "several chunks each way": (300, 250, 530),
    "more rows than are kept for others": (5000, 64, 64),
    "rows in one set of the cache": (1024, 45, 77),
    "no tile but that which copies": (50, 14, 64),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    assert kernel_registry.is_on("product")


# What is summed over, of the first matrix and of the second: a layer, and the gradients of its input and weight.
LAYER, INPUT, WEIGHT = (1, 0), (1, 1), (0, 0)


def _draw(depth, rows, columns, over):
    rng = np.random.RandomState(0)
    return [
        np.moveaxis(rng.randn(depth, n), 0, axis).astype("float32", order="C") for n, axis in zip((rows, columns), over)
    ]


def _product(over):
    return jax.jit(lambda x, y: product_dispatch.product(x, y, over))


@pytest.mark.parametrize("over", list(itertools.product((0, 1), repeat=2)))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_numbers_are_those_of_numpy(shape, over):
    x, y = _draw(*shape, over)
    found = np.asarray(_product(over)(x, y))
    expected = np.tensordot(x.astype("float64"), y.astype("float64"), (over[:1], over[1:]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * shape[0])


@pytest.mark.parametrize("over", [WEIGHT, LAYER, INPUT])
def test_infinite_numbers_stay_where_they_are(over):
    x, y = _draw(300, 20, 50, over)
    np.moveaxis(x, over[0], 0)[7, 3], np.moveaxis(y, over[1], 0)[290, 41] = np.inf, np.nan
    found = np.asarray(_product(over)(x, y))
    wrong = ~np.isfinite(found)
    assert wrong[3].all() and wrong[:, 41].all() and wrong.sum() == 50 + 20 - 1


@pytest.mark.parametrize("over", [WEIGHT, LAYER, INPUT])
@pytest.mark.parametrize("processors", [1, 16, 1000])
def test_numbers_have_the_same_bits_however_the_work_is_divided(monkeypatch, processors, over):
    x, y = _draw(600, 300, 90, over)
    first = np.asarray(_product(over)(x, y))
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    run = _product(over)
    for _ in range(10):
        np.testing.assert_array_equal(np.asarray(run(x, y)), first)


@pytest.mark.parametrize("over", [WEIGHT, LAYER, INPUT])
def test_numbers_have_the_same_bits_whatever_a_cache_holds(monkeypatch, over):
    """A copy of all of the second matrix serves several chunks, one of a part of it serves one."""
    x, y = _draw(1000, 300, 90, over)
    found, ways = [], []
    for size in (1 << 16, 1 << 24):
        monkeypatch.setattr(processor, "cache_bytes", lambda size=size: size)
        product_dispatch._divided.cache_clear()
        ways.append(product_dispatch._divided(300, 90, 1000, over, 2))
        found.append(np.asarray(_product(over)(x, y)))
    product_dispatch._divided.cache_clear()
    assert ways[0][2] == product_kernels.BLOCK and ways[1][2] == 1000
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("depth", [300, 1024])
def test_numbers_have_the_same_bits_where_they_are_copied(monkeypatch, depth):
    x, y = _draw(depth, 100, 90, LAYER)
    found = []
    for copied in (False, True):
        monkeypatch.setattr(product_dispatch, "_is_copied", lambda depth, copied=copied: copied)
        found.append(np.asarray(_product(LAYER)(x, y)))
    np.testing.assert_array_equal(*found)


def test_rows_that_push_each_other_out_are_copied():
    assert [depth for depth in (64, 200, 512, 784, 1000, 1024) if product_dispatch._is_copied(depth)] == [
        512,
        1024,
    ]


def test_products_follow_one_another_in_loops():
    """XLA goes on when a product is there, wherever it is called."""
    x, y = _draw(64, 300, 64, LAYER)
    y /= 8

    def some(x):
        left, right = (product_dispatch.product(x + i, y, LAYER) for i in range(2))
        return jnp.tanh(left - right) + x

    found = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, x: some(x), x))(x)
    for _ in range(50):
        x = np.tanh(x @ y - (x + 1) @ y) + x
    np.testing.assert_allclose(np.asarray(found), x, rtol=1e-3, atol=1e-3)


def test_devices_that_wait_for_one_another_leave_threads_to_each():
    """A device that has its sum waits on a thread of those that compute, and there are more devices."""
    devices = np.array(jax.devices())
    assert len(devices) > 2
    x, y = _draw(200, 64 * len(devices), 200, LAYER)

    mesh, part = jax.sharding.Mesh(devices, ("device",)), jax.sharding.PartitionSpec

    def training(product):
        def each(x, y):
            for _ in range(10):
                gradient = product(x, jnp.tanh(product(x, y, LAYER)), WEIGHT)
                y -= 1e-3 * jax.lax.psum(gradient, "device")
            return y

        specs = (part("device"), part())
        return jax.jit(jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=part()))

    run = training(product_dispatch.product)
    found = [np.asarray(run(x, y)) for _ in range(20)]
    library = training(lambda x, y, over: jax.lax.dot_general(x, y, ((over[:1], over[1:]), ((), ()))))
    for each in found:
        np.testing.assert_allclose(each, np.asarray(library(x, y)), rtol=1e-3, atol=1e-4)


def test_rows_of_a_layer_have_the_same_bits_whatever_is_beside_them():
    x, y = _draw(600, 300, 90, LAYER)
    run = _product(LAYER)
    np.testing.assert_array_equal(np.asarray(run(x, y))[100:150], np.asarray(run(x[100:150], y)))


def _primitives(x, w, dtype=jnp.float32):
    """Primitives, by name, of a layer and of its gradients as a step has them."""
    x, w = jnp.ones(x, dtype), jnp.ones(w, dtype)

    def step(x, w):
        y, gradient = jax.vjp(lambda x, w: x @ w, x, w)
        return {"gradients": gradient(jnp.tanh(y))}

    traced = jax.make_jaxpr(lambda x, w: jaxpr_rewrites.evaluate(lambda _: step(x, w)))(x, w)
    return [e.primitive.name for e in traced.jaxpr.eqns]


def test_steps_use_it_for_layers_and_their_gradients_and_turn_nothing_round():
    names = _primitives((128, 200), (200, 100))
    assert sorted(names) == ["ffi_call", "ffi_call", "ffi_call", "tanh"]


@pytest.mark.parametrize(
    "x, w, dtype, left",
    [
        ((128, 200), (200, 10), jnp.float32, 3),
        ((128, 10), (10, 200), jnp.float32, 3),
        ((64, 32), (32, 64), jnp.float32, 3),
        ((512, 2048), (2048, 4096), jnp.float32, 1),
        ((17, 400), (400, 500), jnp.float32, 2),
        ((128, 200), (200, 100), jnp.bfloat16, 3),
    ],
    ids="few columns,few rows,small,large results,rows beside tiles,bfloat16".split(","),
)
def test_steps_leave_other_products_to_the_library(x, w, dtype, left):
    names = _primitives(x, w, dtype)
    assert names.count("dot_general") == left and names.count("ffi_call") == 3 - left


def test_a_narrow_layer_has_no_product_of_the_library():
    """What goes back adds up two numbers, in the loop that reads it."""
    names = _primitives((1024, 400), (400, 2))
    assert names.count("dot_general") == 0 and names.count("ffi_call") == 2


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("over", [WEIGHT, LAYER, INPUT])
def test_a_product_of_few_numbers_is_that_of_numpy(depth, over):
    x, y = _draw(depth, 5, 7, over)
    assert matmul_dispatch.is_own(x, y, over) == (depth > 0)
    found = matmul_dispatch.product(jnp.asarray(x), jnp.asarray(y), over)
    np.testing.assert_allclose(found, np.tensordot(x, y, (over[:1], over[1:])), rtol=1e-5, atol=1e-6)


def test_long_products_with_fewer_parts_than_processors_are_left_to_the_library(monkeypatch):
    def left(x, w):
        return _primitives(x, w).count("dot_general")

    assert left((5000, 64), (64, 64)) == 0
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert left((5000, 64), (64, 64)) == 1
    assert left((4000, 64), (64, 64)) == 0


def test_machines_without_such_vectors_leave_all_to_the_library(monkeypatch):
    monkeypatch.setattr(kernel_registry, "is_on", lambda group: False)
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
    product = product_dispatch.product
    monkeypatch.setattr(product_dispatch, "product", lambda *given: called.append(given[2]) or product(*given))
    losses = _losses(network, replicas)
    assert {LAYER, WEIGHT} <= set(called) and losses[-1] < losses[0]
    monkeypatch.setattr(kernel_registry, "is_on", lambda group: False)
    del called[:]
    np.testing.assert_allclose(_losses(network, replicas), losses, rtol=1e-4)
    assert not called
