"""Jobs of several processes, started by `jfluid-launch` as users do."""

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

import jfluid as fluid
from jfluid.check_device import networks, trainer
from jfluid.check_device.devices import Devices
from jfluid.check_device.report import Row, compared
from jfluid.compile.runtime.device_feeds import FeedPlacer
from jfluid.lod_tensor import LoDTensor

SERVERS = "parameter servers"
_SECONDS = 180.0  # a job that takes longer hangs
_TOLERANCE = 1e-3
_TABLE, _QUICK_TABLE = 10**8, 10**5
_STRATEGIES = (("DeepFM, synchronous", "deepfm"), ("DeepFM, rows ahead", "ahead"))
_ROWS, _WIDTH = 2**20, 16  # 64 MB
_SIDE, _REPEATS = 1024, 5  # of matrices that are multiplied meanwhile; the best counts
_PRODUCTS = 1, 21  # how many at a time, which shows how long one takes
_MOST_PRODUCTS = 20_000


def processes(devices: Devices, rows: int) -> list[float] | Row:
    """Train with a process for each device, each with a share of the rows; return the losses of each process.

    Returns a row of the report where the job fails.
    """
    count = len(devices.places)
    which = ["--gpus", str(count)] if devices.on_gpus else ["--cpus", str(count)]
    found = _run([*which, trainer.__file__, "collective", str(rows)])
    if isinstance(found, str):
        return Row("several devices", f"{count} processes", "wrong", found)
    return [float(x) for x in np.mean([one["losses"] for one in found], axis=0)]


def check(devices: Devices) -> Iterator[Row]:
    """Train with parameter servers: compare losses, and time a large table.

    The losses have to equal the losses of a process on the whole batch. A large table is timed with and without
    prefetched rows, and copies of rows to the device are timed.
    """
    count = min(len(devices.places), 2)
    name = f"{count} trainers, 1 server, synchronous"
    which = ["--gpus", str(count)] if devices.on_gpus else []
    job = ["--servers", "1", "--trainers", str(count), *which, trainer.__file__]
    rows = 8 * count
    found = _run([*job, "servers", str(rows)])
    if isinstance(found, str):
        yield Row(SERVERS, name, "wrong", found)
        return
    with jax.default_matmul_precision("float32"):
        wanted = _alone(devices, rows)
    losses = np.mean([one["losses"] for one in found], axis=0)
    apart = float(np.max(np.abs(losses - wanted) / np.abs(wanted)))
    yield compared(SERVERS, name, apart, _TOLERANCE, "relative difference from one process's losses")
    ids = _QUICK_TABLE if devices.quick or not devices.on_gpus else _TABLE
    for name, what in _STRATEGIES[1 if devices.quick else 0 :]:
        if devices.clock.left <= 0:
            yield Row(SERVERS, name, "left out", "no time was left")
            continue
        yield _timed(f"{name}, ids below {ids:.0e}", [*job, what, str(ids)])
    yield _copied(devices.first)


def _timed(name: str, job: list[str]) -> Row:
    """Return the time of a step and of the step's parts: the mean of the trainers."""
    found = _run(job)
    if isinstance(found, str):
        return Row(SERVERS, name, "wrong", found)
    mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
    return Row(SERVERS, name, "right", "", mean)


def _copied(device: jax.Device, rows: int = _ROWS) -> Row:
    """Measure copies of rows to the device, from pageable and from page-locked memory.

    The row has the part of the copies that a concurrent computation hides, too.
    """
    name, given = "rows to the device", np.ones((rows, _WIDTH), np.float32)
    (placed,) = FeedPlacer().place({"rows": LoDTensor(given)}, device).values()
    if not isinstance(placed.device_value(), jax.Array):  # type: ignore[attr-defined]
        shared = np.shares_memory(placed.device_value(), given)  # type: ignore[attr-defined]
        about = "the device reads them where NumPy has them" if shared else "they were copied"
        return Row(SERVERS, name, "right" if shared else "wrong", about)
    return Row(SERVERS, name, "right", "", copies(device, given))


def copies(device: jax.Device, rows: np.ndarray) -> dict[str, float | None]:
    """Return the figures of copies of rows to a device."""
    locked = jax.device_put(rows, SingleDeviceSharding(device, memory_kind="pinned_host"))
    matrix = jax.device_put(np.ones((_SIDE, _SIDE), np.float32), device)

    def copied(values: Any) -> Any:
        return jax.device_put(values, device, may_alias=False)

    # A loop whose end the program knows: for any other the host waits, and starts no copy meanwhile.
    @functools.partial(jax.jit, static_argnums=1)
    def multiplied(x: Any, times: int) -> Any:
        return jax.lax.fori_loop(0, times, lambda _, y: x @ y / _SIDE, x)

    def seconds(*started: Callable[[], Any]) -> float:
        """Return the least time of several runs of work that is enqueued and then awaited."""
        took = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            jax.block_until_ready([start() for start in started])
            took.append(time.perf_counter() - begin)
        return min(took)

    plain, direct = seconds(lambda: copied(rows)), seconds(lambda: copied(locked))
    few, many = (seconds(functools.partial(multiplied, matrix, n)) for n in _PRODUCTS)
    each = max(many - few, 1e-6) / (_PRODUCTS[1] - _PRODUCTS[0])  # without the start of the program
    # as long as the copy, that there is something to hide it behind
    times = min(max(1, round(plain / each)), _MOST_PRODUCTS)
    alone = seconds(lambda: multiplied(matrix, times))
    both = seconds(lambda: multiplied(matrix, times), lambda: copied(rows))
    return {
        "GB/s from NumPy": rows.nbytes / plain / 1e9,
        "GB/s from page-locked memory": rows.nbytes / direct / 1e9,
        "% hidden behind a computation": 100 * min(1.0, max(0.0, (alone + plain - both) / plain)),
    }


def _alone(devices: Devices, rows: int) -> np.ndarray:
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 1
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        loss = networks.clicks()
        fluid.optimizer.SGD(trainer.RATE).minimize(loss)
        executor = fluid.Executor(devices.places[0])
        executor.run(startup)
        batches = (networks.click_batch(step, rows) for step in range(networks.STEPS))
        return np.array([executor.run(main, batch, [loss])[0].item() for batch in batches])


def _run(arguments: list[str]) -> list[dict[str, float]] | str:
    """Run a job; return the output of each trainer, or the reason of the failure."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jfluid.launch", "--log_dir", f"{folder}/log", *arguments]
        try:
            done = subprocess.run([*command, folder], capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
        except subprocess.TimeoutExpired:
            return f"the job did not end within {_SECONDS:.0f} s"
        if done.returncode:
            text = (done.stdout + done.stderr).strip().splitlines()
            return f"the job failed: {' / '.join(text[-3:])}"
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
