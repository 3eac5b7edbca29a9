"""Rounding of each group of CPU kernels and of XLA's code: at most twice the real Fluid's error against float64."""

import ast
import inspect
import json
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.rewrites import image_convolution, image_layout, matmul_dispatch
from jfluid.flags import CPU_KERNELS
from jfluid.machine_code import kernel_registry, processor
from tests.dynamic_shapes.interpreted import interpreted
from tests.parity import rounding

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rounding.json").read_text())
EPSILON = np.finfo("float32").eps
# The kernels of `residual` are those of `convolution`; XLA computes 20 cells.
# XLA's code for vectors of 256 bits has four times Fluid's error in `windows`, with kernels three times.
TIMES = 2 if processor.vectors().bits >= 512 else 5
KEPT = {True: set(rounding.NETS) - {"residual", "lstm_of_20_cells"}, False: {"product", "row"}}


@pytest.fixture(scope="module")
def net(request):
    """The name of a net, and its results in float64, by NumPy."""
    return request.param, interpreted(rounding.run, fluid, "float64", request.param)


@pytest.fixture
def kernels(request, monkeypatch):
    """Whether steps have CPU kernels, and the names of these kernels."""
    real, called = jax.ffi.ffi_call, []
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda name, *a, **k: called.append(name) or real(name, *a, **k))
    before = fluid.get_flags(["FLAGS_cpu_kernels", "FLAGS_compilation_cache_dir"])
    fluid.set_flags({"FLAGS_cpu_kernels": request.param, "FLAGS_compilation_cache_dir": ""})
    yield request.param, called
    fluid.set_flags(before)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("kernels", "net"),
    [
        pytest.param(on, net, id=f"{'kernels' if on else 'xla'}-{net}", marks=[pytest.mark.nightly] * (net not in kept))
        for on, kept in KEPT.items()
        for net in rounding.NETS
    ],
    indirect=["kernels", "net"],
)
def test_a_net_rounds_as_little_as_in_fluid(kernels, net):
    (on, called), (net, exact) = kernels, net
    found, golden = rounding.errors(fluid, net, exact), GOLDEN[net]
    if on and net in CPU_KERNELS and kernel_registry.supports(net):
        assert any(name.startswith(f"jfluid_{net}") for name in called)
    if not on:
        assert not called
    np.testing.assert_allclose(found["exact"], golden["exact"], rtol=1e-12)
    if net == "lstm":
        golden = GOLDEN["lstm_of_20_cells"]  # the gradient of Fluid's kernel is wrong for a multiple of 8 cells
    assert found["gradient"] <= TIMES * golden["gradient"]
    assert found["loss"] <= max(2 * EPSILON, 2 * golden["loss"])  # a loss is one number: two bits


@pytest.mark.nightly  # of the nets, not of the rewrites, which the test above holds
@pytest.mark.parametrize("rewrite", [image_convolution, image_layout, matmul_dispatch], ids=lambda m: m.__name__[23:])
def test_the_nets_reach_each_function_of_a_rewrite(rewrite, reached):
    functions = {n.name for n in ast.walk(ast.parse(inspect.getsource(rewrite))) if isinstance(n, ast.FunctionDef)}
    unrounded = {"_maximum"}  # a selection
    assert functions - reached[rewrite.__file__] == functions & unrounded


@pytest.fixture(scope="module")
def reached():
    """Names of the functions of each rewrite's file that steps of the nets of images call."""
    found = {module.__file__: set() for module in (image_convolution, image_layout, matmul_dispatch)}

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename in found:
            found[frame.f_code.co_filename].add(frame.f_code.co_name)

    before = fluid.get_flags(["FLAGS_cpu_kernels", "FLAGS_compilation_cache_dir"])
    fluid.set_flags({"FLAGS_cpu_kernels": True, "FLAGS_compilation_cache_dir": ""})
    profilers = sys.getprofile(), threading.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)  # a thread prepares machine code
    try:
        for net in ("residual", "convolution", "windows"):
            rounding.run(fluid, "float32", net)
    finally:
        sys.setprofile(profilers[0])
        threading.setprofile(profilers[1])
        fluid.set_flags(before)
    return found
