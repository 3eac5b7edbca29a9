"""FLAGS_cpu_kernels: what is compiled while it is off calls no machine code of jfluid's own, and what was
compiled while it was on is not taken then.
"""

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.compile.runtime import executable_cache
from jfluid.flags import CPU_KERNELS
from jfluid.machine_code import kernel_registry

pytestmark = pytest.mark.skipif(not kernel_registry.supports("lstm"), reason="machine code is made for CPUs with AVX2")
SUPPORTED = [name for name in CPU_KERNELS if kernel_registry.supports(name)]
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
    """A function that runs a step of an LSTM and a GRU."""
    x = fluid.data("x", [None, 4 * WIDTH], lod_level=1)
    hidden, _ = fluid.layers.dynamic_lstm(x, 4 * WIDTH)
    states = fluid.layers.dynamic_gru(fluid.layers.fc(x, 3 * WIDTH), WIDTH)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(ROWS, [LENGTHS], fluid.CPUPlace())}
    fetches = [hidden, states]
    return lambda: [np.array(v) for v in executor.run(feed=feed, fetch_list=fetches, return_numpy=False)]


def eager_step():
    """A function that runs a step of imperative mode, which looks rows of a table up."""
    ids = np.arange(512, dtype="int64").reshape(-1, 1) % 50
    table = fluid.dygraph.Embedding([50, 16], is_sparse=True)
    return lambda: [table(fluid.dygraph.to_variable(ids)).numpy()]


@pytest.mark.parametrize("make", [static_step, eager_step])
def test_steps_are_compiled_for_the_flag_and_kept_apart(make, called):
    if make is eager_step and not kernel_registry.is_on("row"):
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
    assert not kernel_registry.is_on("lstm")
    monkeypatch.setenv("FLAGS_cpu_kernels", "1")
    assert kernel_registry.is_on("lstm")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "1"),
        ("true", "1"),
        (1, "1"),
        (False, "0"),
        ("", "0"),
        ("LSTM", "lstm"),
        ("lstm, gru", "gru,lstm"),
        (",".join(f"-{name}" for name in CPU_KERNELS if name != "gru"), "gru"),
        (",".join(f"-{name}" for name in CPU_KERNELS), "0"),
        (",".join(CPU_KERNELS), "1"),
    ],
)
def test_the_flag_has_names_of_groups(value, expected):
    fluid.set_flags({"FLAGS_cpu_kernels": value})
    assert fluid.get_flags("FLAGS_cpu_kernels") == {"FLAGS_cpu_kernels": expected}
    chosen = {"1": set(CPU_KERNELS), "0": set()}.get(expected, set(expected.split(",")))
    assert {name for name in CPU_KERNELS if kernel_registry.is_on(name)} == chosen & set(SUPPORTED)


@pytest.mark.parametrize("value", ["windoze", "lstm,", "lstm,-gru", "-", "--lstm", "2", 0.5, "0,lstm"])
def test_wrong_names_are_errors(value):
    with pytest.raises(errors.AttributeTypeError, match=r"FLAGS_cpu_kernels: expected 1, 0, names of groups .*lstm"):
        fluid.set_flags({"FLAGS_cpu_kernels": value})


def test_the_environment_is_held_to_the_names_too(monkeypatch):
    monkeypatch.setattr("jfluid.flags._values", {})
    monkeypatch.setenv("FLAGS_cpu_kernels", "-lstn")
    with pytest.raises(errors.AttributeTypeError, match="found '-lstn'"):
        kernel_registry.is_on("gru")


def test_a_group_is_turned_off_alone(called):
    step = static_step()
    fluid.set_flags({"FLAGS_cpu_kernels": "-lstm"})
    step()
    assert set(called) == {"jfluid_gru_forward"}
    called.clear()
    fluid.set_flags({"FLAGS_cpu_kernels": "lstm"})
    step()
    assert set(called) == {"jfluid_lstm_forward"}


@pytest.mark.parametrize("name", CPU_KERNELS)
def test_all_groups_ask(name):
    fluid.set_flags({"FLAGS_cpu_kernels": False})
    assert not kernel_registry.is_on(name)


@pytest.mark.parametrize("name", CPU_KERNELS)
def test_names_of_kernels_begin_with_the_group(name):
    kernels = kernel_registry.group(name).names
    assert kernels and all(kernel_registry.group_of(kernel) is kernel_registry.group(name) for kernel in kernels)


@pytest.mark.parametrize("name", ["jfluid_lstm_sideways", "jfluid_other_forward", "lstm_forward", "jfluid_"])
def test_unknown_kernels_are_errors(name):
    with pytest.raises(KeyError, match=name):
        kernel_registry.group_of(name)
