"""What XLA is told for each program."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import options, placement

CPU = jax.devices("cpu")[0]
NAME = "xla_cpu_experimental_ynn_fusion_type"


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    monkeypatch.setattr(options.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_options_of_a_program(monkeypatch):
    level = "xla_backend_optimization_level"
    assert set(options.options(CPU)) == {NAME, level}
    long = set(options.options(CPU, quickly=True, operators=5000))
    assert long == {NAME, level, "xla_cpu_parallel_codegen_split_count"}
    short = set(options.options(CPU, quickly=True, operators=100))
    emitters = {"xla_cpu_use_fusion_emitters"} if jax.__version_info__ < (0, 11) else set()
    assert short == long | emitters
    found = [options.options(CPU, quickly=True, numbers=n)[level] for n in (None, 10, 1 << 21)]
    assert found == [1, 0, 1]
    assert options.options(CPU, numbers=10)[level] == 1
    monkeypatch.setattr(options.platform, "machine", lambda: "aarch64")
    assert options.options(CPU) == {level: 1}


def test_startup_programs_of_few_numbers_are_compiled_without_passes(monkeypatch):
    given = []
    monkeypatch.setattr(placement, "options", lambda device, **others: given.append(others["numbers"]) or {})
    x = fluid.data("x", [None, 3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 4))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    executor.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[loss])
    assert set(given) == {2 * (3 * 4 + 4) + 1, None}  # with velocities and the learning rate
    given.clear()
    with fluid.program_guard(fluid.Program()):
        count = fluid.layers.fill_constant([1], "int64", 0)
        fluid.layers.while_loop(lambda i: i < 9, lambda i: [i + 1], [count])
        noise = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True)
        fluid.layers.assign(fluid.layers.uniform_random([1]), noise)
        executor.run(fetch_list=[])
    assert set(given) == {None}


def test_the_users_flag_goes_before(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/tmp/x --{NAME}=LIBRARY_FUSION_TYPE_DOT")
    assert NAME not in options.options(CPU)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert set(options.options(CPU)) == {NAME}


def test_xla_has_all_of_them_or_does_without(monkeypatch):
    for name, value in options.options(CPU, quickly=True).items():
        assert options._understood(name, value)
    monkeypatch.setattr(options, "_KNOWN", (0, 0))
    monkeypatch.setattr(options, "_LIBRARIES", {"xla_cpu_no_such_option": "a", NAME: "LIBRARY_FUSION_TYPE_REDUCE"})
    assert set(options.options(CPU)) == {NAME, "xla_backend_optimization_level"}


def test_steps_on_gpus_are_deterministic_where_the_flag_says_so():
    gpu = SimpleNamespace(platform="gpu")
    assert options.options(gpu) == {"xla_gpu_ftz": True}
    fluid.set_flags({"FLAGS_cudnn_deterministic": True})
    try:
        assert options.options(gpu) == {"xla_gpu_ftz": True, "xla_gpu_deterministic_ops": True}
    finally:
        fluid.set_flags({"FLAGS_cudnn_deterministic": False})
