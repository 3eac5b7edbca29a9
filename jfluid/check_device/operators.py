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
from jfluid.compile.options import options

SECTION = "operators"
TOGETHER = 16  # cases that are compiled as one program
QUICK_EVERY, QUICK_EVERY_ON_CPUS = 4, 16
# How far a device may be from the CPU, relative to the largest element, and absolute.
_EXACT = {"float64": 1e-9, "float32": 2e-4, "float16": 1e-2, "bfloat16": 2e-2}
_TF32 = 5e-3  # TF32 has 10 bits of mantissa
_PRODUCTS = ("dot_general", "conv_general_dilated")


def check(devices: Devices) -> Iterator[Row]:
    """Compare values and gradients; products of matrices once as float32 and once as the device does
    them by default (TF32 on GPUs).
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
    """One row, and one for each case that is wrong."""
    wrong, done = [], 0
    with ThreadPoolExecutor() as pool, jax.enable_x64(True):
        waiting = [
            (
                part,
                _start(pool, part, devices.first, precision),
                _start(pool, part, None, "float32"),
            )
            for part in parts
            if devices.clock.left > 0
        ]
        for part, there, here in waiting:
            found, wanted = _finish(there), _finish(here)
            done += len(part)
            wrong += [
                Row(SECTION, c.case.name, "wrong", differs, {})
                for c, one, other in zip(part, found, wanted)
                if (differs := difference(one, other, tolerance))
            ]
    yield from wrong
    total = sum(map(len, parts))
    about = f"{done - len(wrong)} of {total} cases are equal to the CPU's" + (
        f"; {total - done} were left out for want of time" if done < total else ""
    )
    yield Row(SECTION, name, "wrong" if wrong else "right" if done else "left out", about)


Started = Callable[[], Any]


def _start(
    pool: ThreadPoolExecutor,
    part: Sequence[cases.Computation],
    device: jax.Device | None,
    precision: str,
) -> Started:
    """Lower cases, and have them compiled while others are lowered; for the CPU, to compare with,
    without optimisations.
    """
    arguments = [c.arguments for c in part]
    home = device or jax.local_devices(backend="cpu")[0]
    with jax.default_device(home), jax.default_matmul_precision(precision):
        placed = jax.device_put(arguments, home)
        lowered = jax.jit(cases.together(part)).lower(placed)
    settings: dict[str, Any] = options(home, quickly=True)
    if device is None:
        settings["xla_backend_optimization_level"] = 0
    compiled = pool.submit(functools.partial(lowered.compile, settings))
    return lambda: compiled.result()(placed)


def _finish(started: Started) -> list[Any]:
    return jax.device_get(started())  # type: ignore[no-any-return]


def difference(found: Any, wanted: Any, tolerance: float | None = None) -> str:
    """Return how two trees of arrays differ; "" where they do not, to rounding.

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
