"""Startup programs on CPUs, which XLA runs up to the random numbers and NumPy from these on."""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import startup_calls
from jfluid.compile.runtime.executable_cache import Entry

CPU = jax.devices("cpu")[0]
INITIALIZERS = {
    "normal": fluid.initializer.Normal(0.5, 2.0),
    "truncated": fluid.initializer.TruncatedNormal(0.5, 2.0),
    "uniform": fluid.initializer.Uniform(-3.0, 5.0),
    "xavier": fluid.initializer.Xavier(),
    "msra": fluid.initializer.MSRA(uniform=False),
    "constant": fluid.initializer.Constant(3.0),
    "numbers": fluid.initializer.NumpyArrayInitializer(np.arange(24, dtype="float32").reshape(4, 6)),
}


def program():
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup):
        for name, initializer in INITIALIZERS.items():
            fluid.layers.create_parameter([4, 6], "float32", name, default_initializer=initializer)
        for dtype in ("float16", "int64", "float64"):
            fluid.layers.create_global_var([3], 2.0, dtype, persistable=True, name=dtype)
    return startup


def started(exe, startup):
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        scope = fluid.global_scope()
        names = [*INITIALIZERS, "float16", "int64", "float64"]
        return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        np.testing.assert_array_equal(value, other[name], name)


@pytest.fixture
def folder(tmp_path):
    """Use an empty cache, and put JAX's own folder back after the test."""
    before = jax.config.jax_compilation_cache_dir
    flags = fluid.get_flags(["FLAGS_compilation_cache_dir", "FLAGS_interpret_first_steps"])
    jax.config.update("jax_compilation_cache_dir", None)
    fluid.set_flags({"FLAGS_compilation_cache_dir": str(tmp_path)})
    yield tmp_path
    fluid.set_flags(flags)
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("interprets", [True, False])
def test_each_start_gives_the_same_bits(interprets, monkeypatch, folder):
    loads = []
    load = Entry._loaded

    def noted(*arguments):
        loads.append(load(*arguments))
        return loads[-1]

    monkeypatch.setattr(Entry, "_loaded", noted)
    fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
    startup = program()
    first = started(fluid.Executor(fluid.CPUPlace()), startup)
    assert first["constant"].tolist() == [[3.0] * 6] * 4
    assert first["numbers"].tolist() == np.arange(24.0).reshape(4, 6).tolist()
    assert -3 <= first["uniform"].min() < first["uniform"].max() < 5
    assert loads == [None]
    same(first, started(fluid.Executor(fluid.CPUPlace()), startup))
    assert loads[-1] is not None, "the second executor traced the program again"


def test_xla_draws_and_numpy_does_the_rest():
    def function(donated, kept, key):
        drawn = jax.random.normal(jax.random.wrap_key_data(key), (8,))
        return (drawn[2:6].reshape(2, 2) * 3.0 + 1.0, jax.numpy.zeros((5,)), drawn), None

    arguments = (), (), np.array([1, 2], np.uint32)
    draws, rest = startup_calls.divided(jax.jit(function).trace(*arguments).jaxpr)
    assert [v.aval.shape for v in draws.jaxpr.outvars] == [(8,)]
    assert {e.primitive.name for e in rest.jaxpr.eqns} == {"slice", "reshape", "mul", "add", "broadcast_in_dim"}
    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    (scaled, zeros, drawn), flags = call(*arguments)
    assert flags is None
    np.testing.assert_array_equal(scaled, np.asarray(drawn)[2:6].reshape(2, 2) * np.float32(3) + np.float32(1))
    np.testing.assert_array_equal(zeros, np.zeros(5))
    np.testing.assert_array_equal(drawn, jax.random.normal(jax.random.wrap_key_data(arguments[2]), (8,)))


def test_what_numpy_does_not_compute_exactly_stays_with_xla():
    def function(donated, kept, key):
        half = jax.numpy.full((3,), 0.5, jax.numpy.bfloat16)
        return (half * 3, jax.numpy.sin(jax.numpy.ones(2)) + 1), None

    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    (product, sines), _ = call((), (), None)
    assert product.dtype == jax.numpy.bfloat16
    assert product.tolist() == [1.5] * 3
    np.testing.assert_array_equal(sines, np.asarray(jax.numpy.sin(jax.numpy.ones(2))) + np.float32(1))
