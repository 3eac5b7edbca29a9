"""Streams of shapes in several processes: each pads its own batches, and all results are those of exact shapes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.dynamic_shapes.process_streams import MODES
from tests.dynamic_shapes.test_placements import MOST
from tests.launch_case import launched

STEPS = 13
FEW = MODES[:2]  # tests/parallel trains in each mode; all modes pad by the same code


@pytest.fixture(
    scope="module", params=[(STEPS, FEW), pytest.param((40, MODES), marks=pytest.mark.nightly)], ids=["few", "all"]
)
def found(tmp_path_factory, request):
    """Results of each of two trainers, by mode."""
    steps, modes = request.param
    folder = tmp_path_factory.mktemp("streams")
    script = Path(__file__).parent / "process_streams.py"
    done = launched("--cpus", 2, "--log_dir", folder / "log", script, folder, steps, *modes, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.process
def test_results_are_those_of_exact_shapes(found):
    for (expected, before), (values, compiled) in (by_mode for told in found for by_mode in told.values()):
        assert compiled <= MOST < STEPS <= before
        assert len(values) == len(expected)
        for value, other in zip(values, expected):
            assert np.shape(value) == np.shape(other)
            np.testing.assert_allclose(value, other, 5e-4, 1e-4)
