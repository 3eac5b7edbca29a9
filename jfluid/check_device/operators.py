"""Operators on a device against the CPU: values and gradients of the recorded cases."""

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jfluid.check_device import cases
from jfluid.check_device.devices import Devices
from jfluid.check_device.report import Row
from jfluid.compile.runtime.options import options

SECTION = "operators"
TOGETHER = 16  # cases that are compiled as one program
QUICK_EVERY, QUICK_EVERY_ON_CPUS = 4, 16
# How far a device may be from the CPU, relative to the largest element, and absolute.
_EXACT = {"float64": 1e-9, "float32": 2e-4, "float16": 1e-2, "bfloat16": 2e-2}
_TF32 = 5e-3  # TF32 has 10 bits of mantissa
_PRODUCTS = ("dot_general", "conv_general_dilated")


def check(devices: Devices) -> Iterator[Row]:
    """Compare values and gradients of all cases.

    Matrix products run in float32, and in the device's default precision (TF32 on GPUs).
    """
    chosen = cases.runnable(cases.recorded())
    if devices.quick:
        chosen = chosen[:: QUICK_EVERY if devices.on_gpus else QUICK_EVERY_ON_CPUS]
    every = [cases.Computation(case) for case in chosen]
    parts = [every[i : i + TOGETHER] for i in range(0, len(every), TOGETHER)]
    yield from _compared(devices, parts, "float32", "values and gradients", None)
    if devices.on_gpus:
        products = [c for c in every if _multiplies(c)]
        yield from _compared(devices, [products], "default", "with TF32", _TF32)


def _multiplies(computation: cases.Computation) -> bool:
    with jax.enable_x64(True):
        text = str(jax.make_jaxpr(computation)(computation.arguments))
    return any(name in text for name in _PRODUCTS)


def _compared(
    devices: Devices,
    parts: Sequence[Sequence[cases.Computation]],
    precision: str,
    name: str,
    tolerance: float | None,
) -> Iterator[Row]:
    """Yield a summary row, a row for each wrong case, and a row for cases without time left."""
    wrong, done = [], 0
    with ThreadPoolExecutor() as pool, jax.enable_x64(True):
        waiting = [(part, *_started(pool, part, devices.first, precision)) for part in parts if devices.clock.left > 0]
        for part, there, here in waiting:
            if devices.clock.left <= 0:
                break
            done += len(part)
            try:
                found, wanted = _finish(there), _finish(here)
            except jax.errors.JaxRuntimeError:
                wrong += [row for c in part if (row := _alone(c, devices, precision, tolerance))]
                continue
            wrong += [
                Row(SECTION, c.case.name, "wrong", differs, {})
                for c, one, other in zip(part, found, wanted)
                if (differs := difference(one, other, tolerance))
            ]
        pool.shutdown(cancel_futures=True)
    yield from wrong
    total = sum(map(len, parts))
    if done:
        about = f"{done - len(wrong)} of {done} cases are equal to the CPU's"
        yield Row(SECTION, name, "wrong" if wrong else "right", about)
    if done < total:
        left = f"{total - done} of {total} cases"
        yield Row(SECTION, f"{name} of {left}", "left out", "no time was left")


def _alone(computation: cases.Computation, devices: Devices, precision: str, tolerance: float | None) -> Row | None:
    """Return the row of a case in a group that XLA refuses; None where the case is right."""
    try:
        with ThreadPoolExecutor() as pool:
            there, here = _started(pool, [computation], devices.first, precision)
            found, wanted = _finish(there), _finish(here)
        differs = difference(found[0], wanted[0], tolerance)
    except jax.errors.JaxRuntimeError as error:
        differs = " / ".join(str(error).splitlines()[:3])
    return Row(SECTION, computation.case.name, "wrong", differs, {}) if differs else None


Started = Callable[[], Any]


def _started(
    pool: ThreadPoolExecutor,
    part: Sequence[cases.Computation],
    device: jax.Device,
    precision: str,
) -> tuple[Started, Started]:
    """Lower cases for a device and for the CPU; compilation runs while further cases are lowered.

    The CPU's are compiled without optimisations.
    """
    cpu = jax.local_devices(backend="cpu")[0]
    there = _lowered(part, device, precision)
    same = device == cpu and precision == "float32"
    here = there if same else _lowered(part, cpu, "float32")
    level = {"xla_backend_optimization_level": 0}
    return (
        _compiling(pool, *there, options(device, quickly=True)),
        _compiling(pool, *here, options(cpu, quickly=True) | level),
    )


def _lowered(part: Sequence[cases.Computation], device: jax.Device, precision: str) -> tuple[Any, Any]:
    with jax.default_device(device), jax.default_matmul_precision(precision):
        placed = jax.device_put([c.arguments for c in part], device)
        return jax.jit(cases.together(part)).lower(placed), placed


def _compiling(pool: ThreadPoolExecutor, lowered: Any, placed: Any, settings: dict[str, Any]) -> Started:
    compiled = pool.submit(functools.partial(lowered.compile, settings))
    return lambda: compiled.result()(placed)


def _finish(started: Started) -> list[Any]:
    return jax.device_get(started())  # type: ignore[no-any-return]


def difference(found: Any, wanted: Any, tolerance: float | None = None) -> str:
    """Return the difference of two trees of arrays; "" where the trees are equal to rounding.

    Args:
        tolerance: of floating numbers, relative to the largest; by their type without it.
    """
    for slots, others, kind in zip(found, wanted, ("", "gradient of ")):
        for slot in others:
            for one, other in zip(jax.tree.leaves(slots[slot]), jax.tree.leaves(others[slot])):
                if (worst := distance(np.asarray(one), np.asarray(other), tolerance)) is not None:
                    return f"{kind}{slot}: {worst}"
    return ""


def distance(one: np.ndarray, other: np.ndarray, tolerance: float | None = None) -> str | None:
    """Return how an array differs from the CPU's by more than rounding; None where it does not.

    Args:
        tolerance: as of `difference`.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype}{one.shape}, on the CPU {other.dtype}{other.shape}"
    if not jnp.issubdtype(other.dtype, jnp.floating):
        return None if np.array_equal(one, other) else f"{(one != other).sum()} elements differ"
    wide, reference = one.astype(np.float64), other.astype(np.float64)
    same = (wide == reference) | (np.isnan(wide) & np.isnan(reference))
    bound = tolerance or _EXACT[str(other.dtype)]
    finite = np.abs(reference[np.isfinite(reference)])
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(wide - reference))
    worst = float(np.max(apart, initial=0.0))
    limit = bound * max(1.0, float(finite.max(initial=0.0)))
    return None if worst <= limit else f"off by {worst:.3g}, at most {limit:.3g} is rounding"
