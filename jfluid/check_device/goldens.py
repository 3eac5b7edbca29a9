"""Training runs on a device, compared with golden runs of the real Fluid 1.8.5 of a checkout."""

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jfluid
from jfluid.check_device.devices import Devices, On
from jfluid.check_device.report import Row, compared

SECTION, EAGER = "programs", "imperative mode"
CHECKOUT = Path(jfluid.__file__).parents[1]
_TOLERANCE = 1e-3  # of losses: sums of products in a different order, for 20 steps
_QUICK = ("fit_a_line", "digits_conv", "word2vec")
_QUICK_EAGER = ("digits", "word2vec")
_QUICK_STEPS = 5
_DETECTORS = ("ssd", "deformable", "faster_rcnn", "retrieval")

Values = Sequence[float]
# Of an engine: what the run finds and what Fluid found, as numbers.
Run = Callable[[Any], tuple[Values, Values]]


def check(devices: Devices) -> Iterator[Row]:
    """Repeat each run of a program from Fluid's parameters, and compare its losses, or all that it fetches."""
    steps = _QUICK_STEPS if devices.quick else None
    return _compared(SECTION, devices, lambda: runs(steps), _QUICK)


def check_eager(devices: Devices) -> Iterator[Row]:
    """Repeat each training run of imperative mode and compare it with its golden run.

    Compared are the losses, and the norms of parameters and of the optimizer's state after the run.
    """
    return _compared(EAGER, devices, eager_runs, _QUICK_EAGER)


def _compared(
    section: str, devices: Devices, runs: Callable[[], dict[str, Run]], quick: Sequence[str]
) -> Iterator[Row]:
    if not (CHECKOUT / "tests" / "golden" / "parity.json").exists():
        yield Row(section, "numbers of Fluid 1.8.5", "left out", "they are in a checkout of jfluid")
        return
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    every = runs()
    for name in quick if devices.quick else every:
        if devices.clock.left <= 0:
            yield Row(section, name, "left out", "no time was left")
            continue
        with jax.default_matmul_precision("float32"):
            found, wanted = map(np.array, every[name](On(devices.places[0])))
        scale = np.maximum(np.abs(wanted), 1e-2)  # of what is nearly zero the absolute difference
        apart = float(np.max(np.abs(found - wanted) / scale, initial=0.0))
        yield compared(section, name, apart, _TOLERANCE, "relative difference from Fluid's numbers")


def runs(steps: int | None = None) -> dict[str, Run]:
    """Return the runs of a checkout by name.

    Args:
        steps: of training programs; as many as Fluid's by default.
    """
    programs, ragged, text = (_parity(n) for n in ("programs", "ragged", "text"))
    found: dict[str, Run] = {}
    for file, builders, most in (
        ("parity", (*programs.PROGRAMS, *ragged.PROGRAMS), programs.STEPS),
        ("text_programs", text.PROGRAMS, text.STEPS),
    ):
        for build in builders:
            found[build.__name__] = functools.partial(_trained, file, build, steps or most)
    for name in _DETECTORS:
        found[name] = functools.partial(_detector, name)
    for name in _parity("detectors").MODELS:
        found[name] = functools.partial(_model, name)
    for build in _parity("control").PROGRAMS:
        found[build.__name__] = functools.partial(_fetched, build)
    return found


def eager_runs() -> dict[str, Run]:
    """Return the runs of imperative mode of a checkout by name."""
    return {b.__name__: functools.partial(_eager, b) for b in _parity("dygraph.train").PROGRAMS}


def _trained(file: str, build: Any, steps: int, engine: Any) -> tuple[Values, Values]:
    losses, _ = _parity("programs").train(engine, build, steps=steps)
    return losses, _golden(file)[build.__name__]["losses"][:steps]


def _detector(name: str, engine: Any) -> tuple[Values, Values]:
    module = _parity(name)
    run = next(getattr(module, n) for n in ("train_and_detect", "train", "run") if hasattr(module, n))
    return run(engine)["losses"], _golden(name)["losses"]


def _model(name: str, engine: Any) -> tuple[Values, Values]:
    detectors = _parity("detectors")
    found = detectors.train_and_detect(engine, detectors.MODELS[name])
    return found["losses"], _golden("detectors")[name]["losses"]


def _fetched(build: Any, engine: Any) -> tuple[Values, Values]:
    found, wanted = _parity("control").run(engine, build), _golden("control")[build.__name__]
    return _joined(found), _joined(wanted)


def _eager(build: Any, engine: Any) -> tuple[Values, Values]:
    train = _parity("dygraph.train")
    losses, state = train.train(build, place=engine.CPUPlace())
    wanted = _golden("dygraph")[build.__name__]
    norms = {n: v for n, v in wanted["state"].items() if n not in train.CANCELS}
    found = [*np.ravel(losses), *(state[name] for name in norms)]
    return found, [*np.ravel(wanted["losses"]), *norms.values()]


def _joined(fetches: Sequence[tuple[Values, Any, Any]]) -> Values:
    return [float(value) for values, *_ in fetches for value in values]


def _parity(name: str) -> Any:
    return importlib.import_module(f"tests.parity.{name}")


@functools.cache
def _golden(name: str) -> Any:
    return json.loads((CHECKOUT / "tests" / "golden" / f"{name}.json").read_text())
