"""The benchmarked programs against hand-written JAX on the same device, from the benchmarks of a checkout."""

import importlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import jfluid as fluid
from jfluid.check_device.devices import Devices, On
from jfluid.check_device.goldens import CHECKOUT
from jfluid.check_device.report import Row

SECTION = "speed"
RATIO, IDLE = "x hand-written JAX", "% idle with a DataLoader"
GOALS = {RATIO: 1.02, IDLE: 3.0}  # at most
WARM, MEGABYTE = 3, 2**20


@dataclass(frozen=True)
class MeasuredProgram:
    """A program of the benchmarks, and the sizes in which it is measured."""

    model: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    hand_written: Mapping[str, int] = field(default_factory=dict)  # sizes of JAX's
    steps: int = 30


def _encoder(batch: int, seq: int, d: int, heads: int, layers: int, vocab: int) -> MeasuredProgram:
    sizes = {
        "batch": batch,
        "seq": seq,
        "d": d,
        "heads": heads,
        "layers": layers,
        "vocab": vocab,
    }
    return MeasuredProgram("transformer_encoder", sizes, sizes)


ON_GPUS = {
    "ResNet-50, batch 128": MeasuredProgram("resnet50", {"batch": 128}),
    "ctr_dnn, batch 4096": MeasuredProgram("ctr_dnn", {"batch": 4096}),
    "transformer base, 64 x 256": _encoder(64, 256, 512, 8, 6, 32000),
    "BERT base, 32 x 128": _encoder(32, 128, 768, 12, 12, 30522),
}
ON_CPUS = {
    "mlp": MeasuredProgram("mlp"),
    "mnist_conv": MeasuredProgram("mnist_conv", {"batch": 32}),
    "transformer": _encoder(2, 32, 64, 2, 2, 1000),
}
QUICK = 2  # the first programs of a table, with fewer steps
QUICK_STEPS = 8


def check(devices: Devices) -> Iterator[Row]:
    """Yield a row for each program: milliseconds a step and their ratio, device time, memory, compilation."""
    folder = CHECKOUT / "benchmarks"
    if not (folder / "fluid_models.py").exists():
        yield Row(SECTION, "programs", "left out", "they are in a checkout of jfluid")
        return
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    programs, reached = ON_GPUS if devices.on_gpus else ON_CPUS, dict.fromkeys(GOALS, 0)
    done = 0
    for name in itertools.islice(programs, QUICK) if devices.quick else programs:
        if devices.clock.left <= 0:
            yield Row(SECTION, name, "left out", "no time was left")
            continue
        steps = QUICK_STEPS if devices.quick else programs[name].steps
        with jax.default_device(devices.first):
            figures = measured(devices, programs[name], steps)
        missed = [goal for goal, most in GOALS.items() if not _within(figures[goal], most)]
        for goal in GOALS.keys() - missed:
            reached[goal] += 1
        done += 1
        about = "; ".join(f"the goal is at most {GOALS[goal]:g} {goal}" for goal in missed)
        # A speed is measured, and not right or wrong: machines are shared.
        yield Row(SECTION, name, "right", about, figures)
    if done:
        about = ", ".join(f"{n} of {done} at most {GOALS[goal]:g} {goal}" for goal, n in reached.items())
        yield Row(SECTION, "goals", "right", about)


def _within(figure: float | None, most: float) -> bool:
    return figure is not None and figure <= most


def measured(devices: Devices, program: MeasuredProgram, steps: int) -> dict[str, float | None]:
    """Return the figures of a program."""
    fluid_models = importlib.import_module("fluid_models")
    jax_models = importlib.import_module("jax_models")
    place = devices.places[0]
    main, startup = fluid.Program(), fluid.Program()
    with (
        fluid.program_guard(main, startup),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
        tempfile.TemporaryDirectory() as folder,
        _Cache(folder),
    ):
        build = getattr(fluid_models, program.model)
        loss, make = build(On(place), **program.sizes)
        executor = fluid.Executor(place)
        executor.run(startup)
        random = np.random.RandomState(0)
        feeds = [make(random) for _ in range(4)]

        def ours(feed: Any) -> Any:
            return executor.run(main, feed, [loss])[0]

        compiling = _seconds(lambda: ours(feeds[0]))
        prepare = jax_models.PREPARE.get(program.model, lambda feed: feed)
        theirs = jax_models.trainer(program.model, **program.hand_written)
        ms, jax_ms, ratio = _paired(ours, theirs, feeds, [prepare(f) for f in feeds], steps)
        device_ms, host_ms = _enqueued(executor, main, loss, feeds[0], steps)
        loader_ms, waiting = _loaded(executor, main, loss, feeds, place, steps)
        peak = (devices.first.memory_stats() or {}).get("peak_bytes_in_use")
        jax.clear_caches()
        executor.engine.clear()
        again = _seconds(lambda: ours(feeds[0]))
    return {
        "ms a step": ms,
        "ms of JAX": jax_ms,
        RATIO: ratio,
        "ms of the host": host_ms,
        IDLE: 100 * max(0.0, 1 - device_ms / loader_ms),
        "% waiting for the DataLoader": 100 * waiting,
        "MB at most": peak / MEGABYTE if peak else None,
        "s to compile": compiling,
        "s from the cache": again,
    }


class _Cache:
    """Keeps compiled programs in an empty folder meanwhile."""

    def __init__(self, folder: str):
        self._settings = {
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }

    def __enter__(self) -> None:
        self._before = {name: getattr(jax.config, name) for name in self._settings}
        self._set(self._settings)

    def __exit__(self, *error: object) -> None:
        self._set(self._before)

    def _set(self, settings: Mapping[str, Any]) -> None:
        from jax.experimental.compilation_cache import compilation_cache

        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _paired(
    ours: Callable[[Any], Any],
    theirs: Callable[[Any], Any],
    feeds: list[Any],
    prepared: list[Any],
    steps: int,
) -> tuple[float, float, float]:
    """Return the milliseconds a step of both functions, run in turn, and the median ratio of the pairs."""
    runs, batches = (ours, theirs), (feeds, prepared)
    took: tuple[list[float], list[float]] = ([], [])
    for step in range(WARM + steps):
        for which in (0, 1) if step % 2 else (1, 0):
            batch = batches[which][step % len(feeds)]
            took[which].append(_seconds(lambda which=which, batch=batch: runs[which](batch)))  # type: ignore[misc]
    one, other = (np.array(times[WARM:]) * 1e3 for times in took)
    return float(np.median(one)), float(np.median(other)), float(np.median(one / other))


def _enqueued(executor: Any, main: Any, loss: Any, feed: Any, steps: int) -> tuple[float, float]:
    """Return milliseconds a step of the device with steps enqueued back to back, and of the host to enqueue a step."""
    last, host = None, []
    for step in range(WARM + steps):
        if step == WARM:
            jax.block_until_ready(last)
            begin = time.perf_counter()
        started = time.perf_counter()
        (fetched,) = executor.run(main, feed, [loss], return_numpy=False)
        last = getattr(fetched, "value", fetched)
        host.append(time.perf_counter() - started)
    np.asarray(last)
    whole = (time.perf_counter() - begin) / steps
    return whole * 1e3, float(np.median(host[WARM:])) * 1e3


def _loaded(executor: Any, main: Any, loss: Any, feeds: list[Any], place: Any, steps: int) -> tuple[float, float]:
    """Return milliseconds a step with a prefetching DataLoader, and the share in which the loop waits for a batch."""
    variables = [main.global_block().var(name) for name in feeds[0]]
    loader = fluid.io.DataLoader.from_generator(feed_list=variables, capacity=8)

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in itertools.islice(itertools.cycle(feeds), WARM + steps):
            yield tuple(batch.values())

    loader.set_batch_generator(batches, places=place)
    reader, waited, begin, last = iter(loader()), 0.0, 0.0, None
    for step in range(WARM + steps):
        if step == WARM:
            np.asarray(last)
            begin, waited = time.perf_counter(), 0.0
        asked = time.perf_counter()
        batch = next(reader)
        waited += time.perf_counter() - asked
        (fetched,) = executor.run(main, batch, [loss], return_numpy=False)
        last = getattr(fetched, "value", fetched)
    np.asarray(last)
    whole = time.perf_counter() - begin
    assert next(reader, None) is None  # its threads have ended
    return whole / steps * 1e3, waited / whole
