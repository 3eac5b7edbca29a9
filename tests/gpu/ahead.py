"""Steps of programs for a GPU that is not there: what XLA takes needs no driver, and with JAX's CUDA
plugin what it gives needs none either.
"""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jfluid as fluid
from jfluid.compile.lowering import plan
from jfluid.compile.lowering.plan import Plan
from jfluid.compile.runtime import filter_layouts, placement
from jfluid.compile.runtime.step import CompiledSegment, Step
from jfluid.engine import Engine
from jfluid.ops.collective import AXIS
from jfluid.parallel import replica_feeds
from jfluid.parallel.replicas import Replicas
from jfluid.parallel.sharding import ReplicaSharding

ALIASED = re.compile(r"tf\.aliasing_output|jax\.buffer_donor")


def step_of(program: Any, feed: Any, fetches: list[str]) -> tuple[Step, dict[str, Any]]:
    """The step of a program on one device, not compiled, and the values that it reads: feeds, and
    shapes of what its Scope would hold.
    """
    prepared = Engine(fluid.CPUPlace()).prepare(program, feed, fetches)
    step, block = prepared.step, program.global_block()
    values = dict(step.placement.enter(prepared.feeds))
    for name in step.plan.state:
        var = block.var(name)
        values[name] = jax.ShapeDtypeStruct(var.shape, var.np_dtype)
    return step, values


class TracedAsForH200(placement.OneDevice):
    """A device that is traced for as if it were an H200."""

    def __init__(self, plan: Plan, device: jax.Device):
        super().__init__(plan, device)
        self.on_gpus, self.keeps = True, False
        self.held = filter_layouts.of(plan, SimpleNamespace(platform="gpu", compute_capability="9.0"))


def arguments_of(segment: CompiledSegment, values: dict[str, Any], rng: bool) -> tuple[Any, ...]:
    """Its arguments: arrays, or shapes of them."""
    key = np.zeros(2, np.uint32) if rng else None
    return tuple(values[n] for n in segment.donated), tuple(map(values.get, segment.kept)), key


def lowered_for_cuda(function: Any, arguments: tuple[Any, ...]) -> str:
    """A jitted function as XLA takes it for GPUs, as text. Raises AssertionError where XLA would
    copy a donated argument.
    """
    with jax.enable_x64(True):
        lowered = function.trace(*arguments).lower(lowering_platforms=("cuda",))
    text: str = lowered.as_text()
    donated = sum(leaf.donated for leaf in jax.tree.leaves(lowered.args_info))
    head = text[: text.index("{\n", text.index("func.func public @main"))]
    aliased = len(ALIASED.findall(head))
    assert aliased == donated, f"{aliased} of {donated} donated arguments are aliased"
    return text


def one_device(step: Step, values: dict[str, Any], device: Any) -> tuple[CompiledSegment, dict[str, Any]]:
    """The first segment of a step, for a GPU, and the values as it reads them. A CPU is traced for as
    if it were an H200.
    """
    made = TracedAsForH200 if device.platform == "cpu" else placement.of_device
    there, found = made(step.plan, device), dict(values)
    for name, order in there.held.items():
        shape = tuple(values[name].shape[d] for d in order)
        found[name] = jax.ShapeDtypeStruct(shape, values[name].dtype)
    return CompiledSegment(0, step.plan, there, False, "step"), found


class _Lowering:
    """A jitted segment that is also lowered for `cuda`, once, when it is traced."""

    def __init__(self, jitted: Any, names: list[str]):
        self._jitted, self._names = jitted, names

    def trace(self, *arguments: Any) -> Any:
        if self._jitted.__name__ not in self._names:
            self._names.append(self._jitted.__name__)
            lowered_for_cuda(self._jitted, arguments)
        return self._jitted.trace(*arguments)


@pytest.fixture
def lowers_for_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each segment that the test runs on one device lowers for `cuda` as well, and what it donates is
    aliased.
    """
    compiled, names = placement.OneDevice.compiled, list[str]()

    def both(self: Any, at: int, function: Any) -> Any:
        return _Lowering(compiled(self, at, function), names)

    monkeypatch.setattr(placement.OneDevice, "compiled", both)
    yield
    assert names, "no segment was compiled"


def replicas(
    program: Any, loss: Any, feed: Any, devices: Any, reduce: bool = False
) -> tuple[CompiledSegment, tuple[Any, ...]]:
    """The step of a program on several devices that need not be there, and shapes of its arguments."""
    build = fluid.BuildStrategy()
    if reduce:
        build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    count = len(devices)
    parallel = (
        fluid.CompiledProgram(program).with_data_parallel(loss.name, build, places=[fluid.CPUPlace()] * count)._parallel
    )
    prepared = Engine(fluid.CPUPlace()).prepare(program, feed, [loss.name], parallel)
    planned = plan.plan(prepared.program, list(prepared.feeds[0]), [loss.name])
    sharding = ReplicaSharding(Mesh(np.array(devices), (AXIS,)), parallel._shares(planned))
    there = Replicas(planned, sharding)
    segment = CompiledSegment(0, planned, there, False, "step")

    def shape(value: Any, home: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=home)

    stacked = replica_feeds.Stacker(agree=False).stack(prepared.feeds)
    values = jax.tree.map(lambda leaf: shape(leaf, sharding.per_replica), dict(stacked))
    for name in planned.state:
        var = prepared.program.global_block().var(name)
        values[name] = jax.ShapeDtypeStruct(var.shape, var.np_dtype, sharding=there.home(name))
    donated, kept, key = arguments_of(segment, values, planned.rng)
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    return segment, (donated, kept, None if key is None else shape(key, whole))
