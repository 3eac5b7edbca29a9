"""Streams of shapes against the real Fluid (tests/golden/shape_streams.json)."""

import json
import threading
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.numpy_steps import beside
from tests.parity import shape_streams
from tests.slow_tests import nightly_but

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "shape_streams.json").read_text())
_COMPILED: list[float] = []
# Before each change a program is compiled or interpreted; `seq2seq` has attention over sentences of all lengths too.
INTERPRETED = nightly_but({"seq2seq", "episodes"}, shape_streams.STREAMS)
COMPILED = nightly_but({"din", "lod_gru"}, shape_streams.STREAMS)


@jax.monitoring.register_event_duration_secs_listener
def _note(event: str, seconds: float, **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(seconds)


@pytest.fixture
def interprets():
    """Interpret steps until they are compiled, as is the default."""
    fluid.set_flags({"FLAGS_interpret_first_steps": True})
    yield
    fluid.set_flags({"FLAGS_interpret_first_steps": False})
    for thread in threading.enumerate():
        if thread.name == beside.THREAD:
            thread.join()


@pytest.mark.parametrize("build", INTERPRETED, ids=lambda build: build.__name__)
def test_losses_of_interpreted_steps_are_fluids(build, interprets):
    found = shape_streams.run(fluid, build)
    np.testing.assert_allclose(found, GOLDEN[build.__name__], 5e-4)


@pytest.mark.parametrize("build", COMPILED, ids=lambda build: build.__name__)
def test_losses_of_a_stream_are_fluids(build):
    before = len(_COMPILED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as one that a program is compiled for each shape
        found = shape_streams.run(fluid, build)
    np.testing.assert_allclose(found, GOLDEN[build.__name__], 5e-4)
    # of twelve shapes two are compiled as they are, and the startup program is
    assert len(_COMPILED) - before <= 9
