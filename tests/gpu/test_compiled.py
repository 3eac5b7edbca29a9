"""What XLA makes for an H200 that is not there, by JAX's CUDA plugin: `make check-compiled` installs it
and runs these.

Nothing runs, so numbers and speed are not seen here; `python -m jfluid.check_device` sees them on a GPU.
"""

import collections
import importlib.util
import math
import pkgutil
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import jfluid as fluid
from jfluid.check_device import cases, structure
from tests.gpu.ahead import arguments_of, one_device, replicas, step_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import fluid_models

pytestmark = pytest.mark.cuda_compiler
H200 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000
  l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 151397597184 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200" """
MEMORY = 151397597184  # bytes
TOGETHER = 60  # cases that are compiled as one program
# By program: its sizes, and at most so many kernels of each kind in a step. XLA makes other numbers from version to
# version; the copies are those of JAX 0.10.2, the other figures some more.
LIMITS = {
    "mlp": ({}, {"copy": 1, "fusion": 33, "while": 0, "megabytes": 8}),
    "mnist_conv": ({}, {"copy": 1, "fusion": 37, "while": 0, "megabytes": 24}),
    "resnet_cifar": ({}, {"copy": 1, "fusion": 242, "while": 0, "megabytes": 128}),
    "ssd": ({}, {"copy": 2, "fusion": 180, "while": 1, "megabytes": 110}),  # one matches boxes
    "stacked_lstm": ({}, {"copy": 10, "fusion": 112, "while": 6, "megabytes": 40}),
    "ctr_dnn": ({}, {"copy": 1, "fusion": 37, "while": 0, "megabytes": 80}),
    "transformer_encoder": (
        {"layers": 1},
        {"copy": 1, "fusion": 74, "while": 0, "megabytes": 150},
    ),
}


@pytest.fixture(scope="module")
def topology():
    """Returns the four GPUs of a topology: processes x nodes x GPUs."""
    if jax.__version_info__ >= (0, 11):
        pytest.skip("XLA of JAX 0.11 and later refuses products where there is no GPU to try them on")
    plugins = importlib.util.find_spec("jax_plugins")
    folders = [] if plugins is None else plugins.submodule_search_locations
    if "xla_cuda13" not in {module.name for module in pkgutil.iter_modules(folders)}:
        pytest.skip("JAX's CUDA plugin is not installed; `make check-compiled` installs it")
    return lambda name: topologies.get_topology_desc(platform="cuda", target_config=H200, topology=name).devices


def _entry(text):
    """The entry computation."""
    start = text.index("\nENTRY ")
    return text[start : text.index("\n}", start)]


def _count(kind, text):
    return len(re.findall(rf" {kind}\(", text))


def _compiled(gpu, model, options=None, **sizes):
    """A program's step on a GPU, and the bytes that it donates."""
    main = fluid.default_main_program()
    loss, feed = getattr(fluid_models, model)(fluid, **sizes)
    step, values = step_of(main, feed(np.random.RandomState(0)), [loss.name])
    return _compiled_step(gpu, step, values, options)


def _compiled_step(gpu, step, values, options=None):
    """A step on a GPU, and the bytes that it donates."""
    home = SingleDeviceSharding(gpu)
    segment, values = one_device(step, values, gpu)
    arguments = jax.tree.map(
        lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=home),
        arguments_of(segment, values, step.plan.rng),
    )
    with jax.enable_x64(True):
        compiled = segment.exact.lower(*arguments).compile(options)
    return compiled, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments[0]))


@pytest.mark.parametrize("model", LIMITS)
def test_steps_of_one_device(topology, model):
    sizes, limits = LIMITS[model]
    compiled, donated = _compiled(topology("1x1x4")[0], model, **sizes)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory.alias_size_in_bytes >= donated > 0
    assert memory.peak_memory_in_bytes < limits["megabytes"] << 20 < MEMORY
    assert "f64[" not in text
    found = {kind: _count(kind, _entry(text)) for kind in ("copy", "fusion", "while")}
    above = {kind: number for kind, number in found.items() if number > limits[kind]}
    assert not above, f"limits: {limits}"


@pytest.mark.parametrize("start", range(0, len(cases.recorded()), TOGETHER))
def test_operators(topology, start):
    """Each operator with a case compiles: what lowers may still be refused."""
    some = [cases.Computation(c) for c in cases.runnable(cases.recorded()[start : start + TOGETHER])]
    home = SingleDeviceSharding(topology("1x1x4")[0])
    arguments = jax.tree.map(
        lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=home),
        [c.arguments for c in some],
    )
    with jax.enable_x64(True):
        text = jax.jit(cases.together(some)).lower(arguments).compile().as_text()
    _assert_of_one_batch(text)


def _assert_of_one_batch(text):
    """cuDNN refuses gradients of images with another batch size than what they come from."""
    shapes = dict(re.findall(r"(%[\w.-]+) = \(?\w+\[([\d,]*)\]", text))
    found = re.findall(
        r"= \(\w+\[([\d,]*)\].*custom-call\((%[\w.-]+),.*dim_labels=(\w+)_\w+->(\w+), .*convBackwardInput",
        text,
    )
    for result, image, labels, result_labels in found:
        one, other = result.split(","), shapes[image].split(",")
        batch = one[result_labels.index("b")]
        assert batch == other[labels.index("b")], f"{image} of {other} for {one}"


@pytest.mark.parametrize("build", structure.PROGRAMS, ids=lambda build: build.__name__)
def test_small_programs(topology, build):
    """Loops, conditions, arrays and sparse rows stay in one program of XLA, which compiles."""
    program, _, fetches, feed = structure.built(build)
    step, values = step_of(program, feed, [fetched.name for fetched in fetches])
    assert len(step.segments) == 1
    compiled, _ = _compiled_step(topology("1x1x4")[0], step, values)
    assert "f64[" not in compiled.as_text()


def test_convolutions_are_those_of_cudnn(topology):
    """With bias and activation in one."""
    compiled, _ = _compiled(topology("1x1x4")[0], "mnist_conv", batch=8)
    found = re.findall(r'custom_call_target="(__cudnn[^"]*)"', compiled.as_text())
    assert set(found) == {
        "__cudnn$convBiasActivationForward",
        "__cudnn$convBackwardFilter",
        "__cudnn$convBackwardInput",
    }


@pytest.mark.parametrize(
    ("model", "sizes", "optimizer"),
    [
        ("resnet_cifar", {}, "momentum"),
        ("resnet50", {}, "momentum"),
        ("transformer_encoder", {"layers": 1}, "adam"),
    ],
)
def test_parameters_of_one_size_are_updated_by_one_kernel(topology, model, sizes, optimizer):
    compiled, _ = _compiled(topology("1x1x4")[0], model, **sizes)
    _assert_updated_by_size(compiled.as_text(), optimizer)


def test_powers_of_many_parameters_are_updated_by_few_kernels(topology):
    """Not by one for each, as XLA makes of more than 255 parts of one array."""
    y = fluid.data("x", [8, 4])
    for _ in range(70):
        y = fluid.layers.fc(y, 4)
    loss = fluid.layers.mean(y)
    fluid.optimizer.Adam(0.1).minimize(loss)
    main = fluid.default_main_program()
    step, values = step_of(main, {"x": np.ones((8, 4), "float32")}, [loss.name])
    powers = [name for name in values if values[name].shape == (1,) and "pow" in name]
    compiled, _ = _compiled_step(topology("1x1x4")[0], step, values)
    outputs = re.findall(r" = (\(?f32\[1\]\S*.*) fusion\(.*/adam/mul", _entry(compiled.as_text()))
    assert sum(each.count("f32[1]") for each in outputs) == len(powers) == 280
    assert len(outputs) <= 5


def test_replicas_update_parameters_of_one_size_by_one_kernel(topology):
    loss, feed = fluid_models.MODELS["resnet_cifar"](fluid)
    main, batch = fluid.default_main_program(), feed(np.random.RandomState(0))
    segment, arguments = replicas(main, loss, batch, topology("1x1x4"))
    with jax.enable_x64(True):
        text = segment.exact.lower(*arguments).compile().as_text()
    _assert_updated_by_size(text, "momentum")
    assert _count("fusion", _entry(text)) <= 278


def _assert_updated_by_size(text, optimizer):
    """By as few kernels as XLA makes: one for updates of arrays of one size, which reads and writes 95
    arrays at most, one of them the rates or powers; and two more.
    """
    parameters = [v for v in fluid.default_main_program().all_parameters() if v.trainable]
    sizes = collections.Counter(math.prod(v.shape) for v in parameters)
    together = 94 // {"momentum": 3 + 2, "adam": 4 + 3}[optimizer]
    least = sum(math.ceil(count / together) for count in sizes.values())
    kernels = len(re.findall(rf" fusion\(.*/{optimizer}/(?:sub|add)", _entry(text)))
    assert least <= kernels <= least + 2 < len(parameters) / 2


@pytest.mark.optimised
@pytest.mark.parametrize("model", ["ctr_dnn", "ctr_dnn_lazy_adam"])
def test_rows_are_added_by_one_instruction(topology, model, tmp_path):
    """And replaced by none that waits for others. The rows of these tables have ten numbers."""
    options = {"xla_dump_to": str(tmp_path)}
    compiled, _ = _compiled(topology("1x1x4")[0], model, options)
    found = [
        instruction
        for file in tmp_path.glob("*.ptx")
        for instruction in re.findall(r"\b(?:atom|red)\.[a-z0-9_.]+", file.read_text())
    ]
    assert len(found) == 1 and found[0].endswith("add.f32"), found
    assert _count("while", compiled.as_text()) == 0


def test_replaced_rows_are_in_no_order_where_steps_are_deterministic(topology):
    """XLA sorts the places of others, and looks for those that occur twice."""
    fluid.set_flags({"FLAGS_cudnn_deterministic": True})
    try:
        compiled, _ = _compiled(topology("1x1x4")[0], "ctr_dnn_lazy_adam")
    finally:
        fluid.set_flags({"FLAGS_cudnn_deterministic": False})
    assert len(re.findall(r"f32\[1000001,10\]\S* scatter\(", compiled.as_text())) == 3
    assert _count("fusion", _entry(compiled.as_text())) <= 59


# Each of the collectives once, for all parameters, and beside the computation.
@pytest.mark.parametrize("name", ["1x1x4", "4x1x1"], ids=["replicas", "processes"])
@pytest.mark.parametrize(
    ("reduce", "collectives"),
    [
        (False, {"all-reduce": 1}),
        (True, {"all-reduce": 1, "reduce-scatter": 1, "all-gather": 1}),
    ],
    ids=["AllReduce", "Reduce"],
)
def test_collectives(topology, name, reduce, collectives):
    loss, feed = fluid_models.MODELS["mlp"](fluid)
    main = fluid.default_main_program()
    batch = feed(np.random.RandomState(0))
    segment, arguments = replicas(main, loss, batch, topology(name), reduce)
    with jax.enable_x64(True):
        text = segment.exact.lower(*arguments).compile().as_text()
    kinds = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
    assert {kind: n for kind in kinds if (n := _count(f"{kind}-start", text))} == collectives
    assert not any(_count(kind, text) for kind in kinds)  # the others are not asynchronous
    assert '"is_sync":false' in text


def test_gradients_of_a_large_net_are_summed_in_buckets(topology):
    """ResNet-50 has 161 parameters of 102 MB: buckets of 32 MB are summed while the others are computed."""
    loss, feed = fluid_models.resnet50(fluid, batch=8)
    main = fluid.default_main_program()
    batch = feed(np.random.RandomState(0))
    segment, arguments = replicas(main, loss, batch, topology("1x1x4"))
    with jax.enable_x64(True):
        text = segment.exact.lower(*arguments).compile().as_text()
    assert _count("all-reduce-start", text) == 4 and not _count("all-reduce", text)
    assert _count("copy", _entry(text)) <= 6
    lines = _entry(text).splitlines()
    waits = [
        next(i for i, line in enumerate(lines) if f"all-reduce-done(%{start[1]})" in line) - at
        for at, line in enumerate(lines)
        if (start := re.search(r"%(\S+) = \S+ all-reduce-start\(", line))
    ]
    # beside the last are updates
    assert len(waits) == 4 and all(wait > 20 for wait in waits)
