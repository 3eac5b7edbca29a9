"""Startup programs on CPUs, which XLA runs up to the random numbers and NumPy from these on."""

import gc
import time

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import layers
from jfluid.compile.runtime import placement, startup_calls
from jfluid.compile.runtime.executable_cache import DiskEntry
from jfluid.compile.runtime.executables import Executables
from jfluid.ops import batched_random

CPU = jax.devices("cpu")[0]
new = fluid.initializer
INITIALIZERS = {
    "normal": new.Normal(0.5, 2.0),
    "truncated": new.TruncatedNormal(0.5, 2.0),
    "uniform": new.Uniform(-3.0, 5.0),
    "xavier": new.Xavier(),
    "xavier_normal": new.Xavier(uniform=False),
    "msra": new.MSRA(uniform=False),
    "msra_uniform": new.MSRA(),
    "constant": new.Constant(3.0),
    "seeded_normal": new.Normal(0.5, 2.0, seed=9),
    "seeded_truncated": new.TruncatedNormal(0.5, 2.0, seed=9),
    "seeded_uniform": new.Uniform(-3.0, 5.0, seed=9),
}
DTYPES = ("float16", "float64", "int64")
NUMBERS = np.arange(24, dtype="float32").reshape(4, 6)


def program(shape=(4, 6)):
    """A startup program with a parameter of each initializer."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup):
        for name, initializer in INITIALIZERS.items():
            layers.create_parameter(shape, "float32", name, default_initializer=initializer)
        numbers, filters = new.NumpyArrayInitializer(NUMBERS), new.Bilinear()
        layers.create_parameter(NUMBERS.shape, "float32", "numbers", default_initializer=numbers)
        layers.create_parameter([3, 1, 4, 4], "float32", "bilinear", default_initializer=filters)
        for dtype in DTYPES:
            layers.create_global_var([3], 2.0, dtype, persistable=True, name=dtype)
    return startup


def started(exe, startup):
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        scope = fluid.global_scope()
        return {name: np.array(scope.find_var(name).get_tensor()) for name in startup.global_block().vars}


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        np.testing.assert_array_equal(value, other[name], name)


def compiled_whole(monkeypatch):
    """Let XLA compile startup programs as it compiles further programs."""

    def made(fresh, compiled, entry, device):
        return Executables(lambda: compiled(fresh()), entry)

    monkeypatch.setattr(placement, "StartupCall", made)


@pytest.mark.parametrize(
    "shape, seed",
    [
        ((4, 6), 7),
        ((300, 1000), 0),
        pytest.param((4, 6), 0, marks=pytest.mark.nightly),
        pytest.param((300, 1000), 7, marks=pytest.mark.nightly),
    ],
)
def test_parameters_have_the_bits_of_a_compiled_program(shape, seed, monkeypatch):
    startup = program(shape)
    divided = started(fluid.Executor(fluid.CPUPlace()), startup)
    compiled_whole(monkeypatch)
    same(divided, started(fluid.Executor(fluid.CPUPlace()), startup))


@pytest.mark.parametrize(
    "most, shape",
    [
        (30, (4, 6)),
        (2000, (40, 24)),
        pytest.param(2000, (4, 6), marks=pytest.mark.nightly),
        pytest.param(30, (40, 24), marks=pytest.mark.nightly),
    ],
)
def test_draws_of_several_loops_and_of_large_parameters_have_these_bits(most, shape, monkeypatch):
    """Of 24 numbers per parameter a loop draws all of a distribution, or one; 960 are drawn in parts of 64."""
    monkeypatch.setattr(batched_random, "MOST_ON_CPUS", most)
    monkeypatch.setattr(batched_random, "_LARGE", 900)
    monkeypatch.setattr(batched_random, "_LARGE_PART", 64)
    divided = started(fluid.Executor(fluid.CPUPlace()), program(shape))
    compiled_whole(monkeypatch)
    same(divided, started(fluid.Executor(fluid.CPUPlace()), program(shape)))


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
    load = DiskEntry._loaded

    def noted(*arguments):
        loads.append(load(*arguments))
        return loads[-1]

    monkeypatch.setattr(DiskEntry, "_loaded", noted)
    fluid.set_flags({"FLAGS_interpret_first_steps": interprets})
    startup = program()
    first = started(fluid.Executor(fluid.CPUPlace()), startup)
    assert first["constant"].tolist() == [[3.0] * 6] * 4
    np.testing.assert_array_equal(first["numbers"], NUMBERS)
    assert -3 <= first["uniform"].min() < first["uniform"].max() < 5
    assert loads == [None]
    same(first, started(fluid.Executor(fluid.CPUPlace()), startup))
    assert loads[-1] is not None, "the second executor traced the program again"


def test_xla_draws_and_numpy_arranges_the_draws():
    table = np.arange(100, dtype=np.float32)

    def function(donated, kept, key):
        drawn = jax.random.normal(jax.random.wrap_key_data(key), (8,)) * 3.0 + 1.0
        return (drawn[2:6].reshape(2, 2), jax.numpy.zeros((5,)), drawn, jax.numpy.asarray(table)), None

    arguments = (), (), np.array([1, 2], np.uint32)
    draws, rest = startup_calls.divided(jax.jit(function).trace(*arguments).jaxpr)
    assert [v.aval.shape for v in draws.jaxpr.outvars] == [(8,)]
    assert {e.primitive.name for e in rest.jaxpr.eqns} == {"slice", "reshape", "broadcast_in_dim"}
    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    (cut, zeros, drawn, numbers), flags = call(*arguments)
    assert flags is None
    np.testing.assert_array_equal(cut, np.asarray(drawn)[2:6].reshape(2, 2))
    np.testing.assert_array_equal(zeros, np.zeros(5))
    np.testing.assert_array_equal(drawn, jax.jit(function)(*arguments)[0][2])
    np.testing.assert_array_equal(numbers, table)


def test_arithmetic_and_dtypes_that_numpy_lacks_stay_with_xla():
    def function(donated, kept, key):
        half = jax.numpy.full((3,), 0.5, jax.numpy.bfloat16)
        return (half * 3, jax.numpy.sin(jax.numpy.ones(2)) + 1), None

    draws, rest = startup_calls.divided(jax.jit(function).trace((), (), None).jaxpr)
    assert {"mul", "sin", "add"} <= {e.primitive.name for e in draws.jaxpr.eqns} and not rest.jaxpr.eqns
    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    (product, sines), _ = call((), (), None)
    assert product.dtype == jax.numpy.bfloat16
    assert product.tolist() == [1.5] * 3
    np.testing.assert_array_equal(sines, jax.jit(function)((), (), None)[0][1])


def test_results_share_no_memory():
    """A later step may overwrite the memory of a parameter: no view, no constant and no draw is given twice."""
    table = np.arange(5000, dtype=np.float32)

    def function(donated, kept, key):
        drawn = jax.random.normal(jax.random.wrap_key_data(key), (5000,))
        wide = jax.numpy.broadcast_to(drawn[:2], (3000, 2))
        return (
            drawn,
            drawn,
            drawn.reshape(50, 100),
            wide,
            wide,
            jax.numpy.asarray(table),
            jax.numpy.asarray(table),
        ), ()

    arguments = (), (), np.array([1, 2], np.uint32)
    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    first, second = (call(*arguments)[0] for _ in range(2))
    before = [np.array(v) for v in first]
    overwrite = jax.jit(lambda *values: [v * 0 - 1 for v in values], donate_argnums=range(len(before)))
    for at in range(len(before)):
        overwrite(second[at])
        for i, (value, expected) in enumerate(zip(first, before)):
            np.testing.assert_array_equal(value, expected)
            if i > at:
                np.testing.assert_array_equal(second[i], expected)
    for value, expected in zip(call(*arguments)[0], before):
        np.testing.assert_array_equal(value, expected)


def test_steps_write_into_the_memory_of_parameters():
    """Memory that NumPy made would stay beside the memory of the step's results: twice the parameters."""

    def function(donated, kept, key):
        drawn = jax.random.normal(jax.random.wrap_key_data(key), (6000,))
        return (drawn, drawn[16:4016].reshape(40, 100), drawn[3:4003], jax.numpy.zeros((3000, 2))), ()

    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    step = jax.jit(lambda value: value + 1, donate_argnums=0)
    for value in call((), (), np.array([1, 2], np.uint32))[0]:
        address = value.unsafe_buffer_pointer()
        assert step(value).unsafe_buffer_pointer() == address


def test_a_step_may_overwrite_one_of_two_parameters_of_an_array():
    shape, exe = [60, 50], fluid.Executor(fluid.CPUPlace())
    twins = [layers.create_parameter(shape, "float32", n, default_initializer=new.Normal(seed=3)) for n in "ab"]
    numbers = [layers.create_global_var(shape, 2.0, "float32", persistable=True, name=n) for n in "cd"]
    for variable in (twins[0], numbers[0]):
        layers.assign(variable * 0.0 - 1.0, variable)
    exe.run(fluid.default_startup_program())
    before = np.array(fluid.global_scope().find_var("b").get_tensor())
    for _ in range(2):
        exe.run(fluid.default_main_program())
        a, b, c, d = (np.array(fluid.global_scope().find_var(n).get_tensor()) for n in "abcd")
        assert (a == -1).all() and (c == -1).all() and (d == 2).all()
        np.testing.assert_array_equal(b, before)


@pytest.mark.parametrize("fetches", [True, False])
def test_only_programs_that_write_to_the_scope_and_fetch_nothing_are_divided(fetches, monkeypatch):
    made = []
    own = startup_calls.StartupCall
    monkeypatch.setattr(placement, "StartupCall", lambda *arguments: made.append(own(*arguments)) or made[-1])
    parameter = layers.create_parameter([2, 3], "float32", "w")
    drawn = layers.uniform_random([300])
    exe = fluid.Executor(fluid.CPUPlace())
    fetched = exe.run(fluid.default_startup_program(), fetch_list=[parameter] if fetches else [])
    assert len(made) == (not fetches) and len(fetched) == fetches
    exe.run(fluid.default_main_program(), fetch_list=[drawn])
    assert len(made) == (not fetches)


def test_draws_are_freed_while_parameters_are_made():
    """Beside the parameters there is one copy at a time: draws of a loop go away with the last view of these."""

    def function(donated, kept, key):
        drawn = jax.random.uniform(jax.random.wrap_key_data(key), (8, 1 << 16))
        return tuple(drawn[i].reshape(1 << 8, 1 << 8) for i in range(8)), ()

    arguments = (), (), np.array([1, 2], np.uint32)
    call = startup_calls.StartupCall(lambda: function, jax.jit, None, CPU)
    call(*arguments)
    gc.collect()
    before = sum(v.nbytes for v in jax.live_arrays())
    results = jax.block_until_ready(call(*arguments)[0])
    ends = time.monotonic() + 30
    while sum(v.nbytes for v in jax.live_arrays()) - before != sum(v.nbytes for v in results):
        assert time.monotonic() < ends
        jax.device_put(0.0)  # JAX frees NumPy's arrays in a later call
