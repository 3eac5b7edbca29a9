"""FLAGS_cpu_kernels: what is compiled while it is off calls no machine code of jfluid's own, and what was
compiled while it was on is not taken then.
"""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import executable_cache
from jfluid.machine_code import functions, lstm_kernels

pytestmark = pytest.mark.skipif(not lstm_kernels.names(), reason="machine code is made for CPUs with AVX2")
WIDTH, LENGTHS = 16, [3, 0, 4]
ROWS = np.random.RandomState(0).randn(sum(LENGTHS), 4 * WIDTH).astype("float32")


@pytest.fixture(autouse=True)
def flag():
    """The flag as it is by default, afterwards."""
    yield
    fluid.set_flags({"FLAGS_cpu_kernels": True})


@pytest.fixture
def called(monkeypatch):
    """The functions of machine code that are traced."""
    found: list[str] = []
    real = jax.ffi.ffi_call

    def call(name, *arguments, **options):
        found.append(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(jax.ffi, "ffi_call", call)
    return found


def static_step():
    """A function that runs a step of an LSTM."""
    x = fluid.data("x", [None, 4 * WIDTH], lod_level=1)
    hidden, _ = fluid.layers.dynamic_lstm(x, 4 * WIDTH)
    pooled = fluid.layers.sequence_pool(hidden, "max")
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(ROWS, [LENGTHS], fluid.CPUPlace())}
    fetches = [hidden, pooled]
    return lambda: [np.array(v) for v in executor.run(feed=feed, fetch_list=fetches, return_numpy=False)]


def eager_step():
    """A function that runs a step of imperative mode, which looks rows of a table up."""
    ids = np.arange(512, dtype="int64").reshape(-1, 1) % 50
    table = fluid.dygraph.Embedding([50, 16], is_sparse=True)
    return lambda: [table(fluid.dygraph.to_variable(ids)).numpy()]


@pytest.mark.parametrize("make", [static_step, eager_step])
def test_steps_are_compiled_for_the_flag_and_kept_apart(make, called):
    if make is eager_step and not functions.rows_registered():
        pytest.skip("rows by machine code are made for CPUs with AVX-512")
    with fluid.dygraph.guard() if make is eager_step else fluid.scope_guard(fluid.Scope()):
        step = make()
        fluid.set_flags({"FLAGS_cpu_kernels": False})
        expected = step()
        assert not called
        fluid.set_flags({"FLAGS_cpu_kernels": True})
        found = step()
        assert called
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        # neither is compiled again, and each gives its own bits
        called.clear()
        for on, kept in [(False, expected), (True, found)] * 2:
            fluid.set_flags({"FLAGS_cpu_kernels": on})
            for one, other in zip(step(), kept, strict=True):
                np.testing.assert_array_equal(one, other)
        assert not called


def test_a_step_that_repeats_sees_the_flag(called):
    step = static_step()
    expected = step()
    assert called
    step()
    fluid.set_flags({"FLAGS_cpu_kernels": False})
    called.clear()
    for one, other in zip(step(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert not called


def test_executables_on_disk_are_kept_apart():
    on = executable_cache._settings()
    fluid.set_flags({"FLAGS_cpu_kernels": False})
    assert executable_cache._settings() != on


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setattr("jfluid.flags._values", {})
    monkeypatch.setenv("FLAGS_cpu_kernels", "0")
    assert not functions.loops_registered()
    monkeypatch.setenv("FLAGS_cpu_kernels", "1")
    assert functions.loops_registered()


def test_its_values_are_truths():
    with pytest.raises(errors.AttributeTypeError, match="FLAGS_cpu_kernels"):
        fluid.set_flags({"FLAGS_cpu_kernels": "windows"})


@pytest.mark.parametrize("known", ["images", "windows", "products", "loops", "rows"])
def test_all_machine_code_asks(known):
    fluid.set_flags({"FLAGS_cpu_kernels": False})
    assert getattr(functions, f"{known}_registered")() is False
