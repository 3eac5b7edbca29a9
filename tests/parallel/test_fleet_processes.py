"""Processes of a fleet, and of programs that the transpiler rewrote, train as one process does on
all their data.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.launch_case import launched
from tests.parallel.fleet_processes import MODES, train

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two trainers found, by mode."""
    folder = tmp_path_factory.mktemp("fleet")
    script = Path(__file__).parent / "fleet_processes.py"
    log = "--log_dir", folder / "log"
    done = launched("--cpus", 2, *log, script, folder, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_equal_one(mode, found):
    alone, both = train(mode), [f[mode] for f in found]
    assert both[0]["losses"] != both[1]["losses"]  # each has its own data
    for name, value in alone.items():
        if name == "losses":
            np.testing.assert_allclose(np.mean([f[name] for f in both], axis=0), value, rtol=1e-4)
        else:
            for f in both:
                np.testing.assert_allclose(f[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
            assert both[0][name] == both[1][name]


def test_batches_of_different_sizes(found):
    for mode in ("transpiler grad_allreduce", "fleet grad_allreduce"):
        assert all(0 < f[mode]["last"] < 10 for f in found)


@pytest.mark.parametrize("mode", ["fleet local_sgd", "fleet reduce"])
def test_checkpoints(mode, found):
    assert all(f[mode]["restored"] and f[mode]["next"] == 4 for f in found)
    # The moments of all parameters but the last bias, which has one number.
    assert found[0][mode]["divided"] == (6 if mode == "fleet reduce" else 0)


def test_what_trainers_tell_each_other(found):
    first, second = (f["fleet local_sgd"] for f in found)
    assert first["sums"] == second["sums"] == [3, 20]
    assert first["totals"] == second["totals"] == [1, 3, 5]
    assert (first["files"], second["files"]) == (["a", "b"], ["c"])
