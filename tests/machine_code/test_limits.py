"""Limits of CPU kernels: the processor, XLA_FLAGS and the version of XLA's interface. One log line names the limit."""

import os
import subprocess
import sys

import pytest

from jfluid.flags import CPU_KERNELS
from jfluid.machine_code import kernel_registry, processor

WIDE = {"avx512f": True, "avx2": True, "fma": True}
# Asks for kernels twice and runs a step, with all log lines on stderr.
SCRIPT = """
import logging, platform, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
if sys.argv[1]:
    platform.machine = lambda: sys.argv[1]
import jfluid as fluid
from jfluid.machine_code import kernel_registry, ffi_runtime
ffi_runtime.VERSION = tuple(map(int, sys.argv[2].split(".")))
on = [[name for name in fluid.flags.CPU_KERNELS if kernel_registry.is_on(name)] for _ in range(2)]
assert on[0] == on[1]
x = fluid.layers.fill_constant([40, 300], "float32", 1.0)
w = fluid.layers.fill_constant([300, 64], "float32", 1.0)
found = fluid.Executor(fluid.CPUPlace()).run(fetch_list=[fluid.layers.matmul(x, w)])[0]
assert (found == 300).all()
print("on", *on[0])
"""


def detected(monkeypatch, features, flags="", machine="x86_64"):
    """The vectors that kernels may use on a processor."""
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(processor.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setenv("XLA_FLAGS", flags)
    return processor.vectors.__wrapped__()


@pytest.mark.parametrize(
    ("flags", "bits"),
    [
        ("", 512),
        ("--xla_cpu_max_isa=AVX512", 512),
        ("--xla_cpu_max_isa=avx512_vnni", 512),
        ("--xla_cpu_max_isa=AMX", 512),
        ("--xla_dump_to=x --xla_cpu_max_isa=AVX2", 256),
        ("--xla_cpu_max_isa=AVX", 0),
        ("--xla_cpu_max_isa=SSE4_2", 0),
        ("--xla_cpu_max_isa=AVX512 --xla_cpu_max_isa=SSE4_2", 0),
        ("--xla_cpu_max_isa=SSE4_2 --xla_cpu_max_isa=AVX512", 512),
    ],
)
def test_xla_flags_limits_kernels(monkeypatch, flags, bits):
    found = detected(monkeypatch, WIDE, flags)
    assert found.bits == bits
    assert (flags.split()[-1] in found.limit) if bits < 512 else not found.limit


@pytest.mark.parametrize(
    ("features", "flags", "bits", "limit"),
    [
        ({"avx2": True, "fma": True}, "", 256, "no AVX-512"),
        ({"avx2": True, "fma": True}, "--xla_cpu_max_isa=AVX512", 256, "no AVX-512"),
        ({"avx2": True, "fma": False}, "", 0, "no AVX2 with FMA"),
        ({"sse4.2": True}, "--xla_cpu_max_isa=AVX2", 0, "no AVX2 with FMA"),
    ],
)
def test_the_processor_limits_kernels(monkeypatch, features, flags, bits, limit):
    found = detected(monkeypatch, features, flags)
    assert found.bits == bits and limit in found.limit


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_arm_has_no_kernels_and_llvm_gets_no_name_of_avx(monkeypatch, machine):
    found = detected(monkeypatch, WIDE, machine=machine)
    assert found.bits == 0 and machine in found.limit
    name, features = processor.target.__wrapped__()
    assert name and "256" not in features and "avx" not in features.lower()


def run(machine="", version="0.3", flags=""):
    """The groups that are on in a process, and the log lines of kernels."""
    environment = {**os.environ, "FLAGS_compilation_cache_dir": ""}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, machine, version], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    on = done.stdout.splitlines()[-1].split()[1:]
    return on, [line for line in done.stderr.splitlines() if "kernel_registry" in line]


@pytest.mark.process
@pytest.mark.skipif(processor.vectors().bits < 512, reason="the processor has a limit already")
@pytest.mark.parametrize(
    ("given", "off", "reason"),
    [
        ({}, [], ""),
        ({"flags": "--xla_cpu_max_isa=SSE4_2"}, CPU_KERNELS, "XLA_FLAGS has --xla_cpu_max_isa=SSE4_2"),
        (
            {"flags": "--xla_cpu_max_isa=AVX2"},
            [name for name in CPU_KERNELS if kernel_registry.group(name).bits > 256],
            "XLA_FLAGS has --xla_cpu_max_isa=AVX2",
        ),
        ({"machine": "aarch64"}, CPU_KERNELS, "the processor is aarch64"),
    ],
    ids=["none", "no kernels", "narrow kernels", "Arm"],
)
def test_one_line_names_groups_that_are_off(given, off, reason):
    on, lines = run(**given)
    assert on == [name for name in CPU_KERNELS if name not in off]
    assert len(lines) == bool(off)
    if off:
        assert lines[0].startswith("INFO") and f": {', '.join(off)}; {reason}" in lines[0]


@pytest.mark.process
@pytest.mark.skipif(processor.vectors().bits < 256, reason="the processor has no kernels")
def test_one_line_names_an_interface_that_xla_does_not_have():
    on, lines = run(version="9.9")
    assert not on
    (line,) = [
        line for line in lines if not line.startswith("INFO")
    ]  # a processor without AVX-512 has a line of its own
    assert line.startswith("WARNING") and "no interface 9.9" in line
