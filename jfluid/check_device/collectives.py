"""Replicas and processes on all devices against one device on the whole batch."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jfluid as fluid
from jfluid.check_device import jobs, networks
from jfluid.check_device.devices import Devices
from jfluid.check_device.report import Row, compared

SECTION = "several devices"
_TOLERANCE = 1e-3
_HALF = 5e-2  # bfloat16 has 8 bits of mantissa
ROWS = 4  # of each device


def check(devices: Devices) -> Iterator[Row]:
    """Compare losses of replicas, of processes, and of 16-bit floats.

    Replicas run AllReduce, Reduce, synchronized batch norm and compressed gradients.
    """
    count = len(devices.places)
    with jax.default_matmul_precision("float32"):
        alone = _losses(devices)
        half = _losses(devices, functools.partial(networks.images, half=True))
        yield _row("bfloat16 mixed precision, one device", half, alone, _HALF)
        if count == 1:
            yield Row(SECTION, "replicas, processes", "left out", "there is one device")
            return
        reduces = fluid.BuildStrategy.ReduceStrategy
        for name, strategy in (("AllReduce", reduces.AllReduce), ("Reduce", reduces.Reduce)):
            build = fluid.BuildStrategy()
            build.reduce_strategy = strategy
            yield _row(f"{count} replicas, {name}", _losses(devices, build=build), alone)
        build = fluid.BuildStrategy()
        build.sync_batch_norm = True
        norm = functools.partial(networks.images, batch_norm=True)
        found, wanted = _losses(devices, norm, build), _losses(devices, norm)
        yield _row(f"{count} replicas, synchronized batch norm", found, wanted)
        found = _losses(devices, networks.compressed, fluid.BuildStrategy())
        wanted = _losses(devices, networks.compressed)
        yield _row(f"{count} replicas, compressed gradients", found, wanted)
    job = jobs.processes(devices, ROWS * count)
    about = f"{count} processes"
    yield job if isinstance(job, Row) else _row(about, np.array(job), alone)


def _losses(devices: Devices, network: Callable[[], Any] = networks.images, build: Any = None) -> np.ndarray:
    """Return the losses of some steps on one device, or on all with a strategy."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 1
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        loss = network()
        executor = fluid.Executor(devices.places[0])
        executor.run(startup)
        program: Any = main
        if build is not None:
            program = fluid.CompiledProgram(main).with_data_parallel(loss.name, build, places=list(devices.places))
        rows = ROWS * len(devices.places)
        return np.array(
            [
                np.mean(executor.run(program, networks.image_batch(step, rows), [loss])[0])
                for step in range(networks.STEPS)
            ]
        )


def _row(name: str, found: np.ndarray, wanted: np.ndarray, bound: float = _TOLERANCE) -> Row:
    apart = float(np.max(np.abs(found - wanted) / np.abs(wanted)))
    return compared(SECTION, name, apart, bound, "relative difference from one device's losses")
