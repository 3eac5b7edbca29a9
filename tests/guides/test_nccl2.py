"""The lines of the guide on trainers without servers."""

from pathlib import Path

import numpy as np
import pytest

from tests.launch_case import launched


@pytest.mark.process
@pytest.mark.parametrize("script", ["nccl2.py", "nccl2_after_startup.py"])
def test_two_processes_train_as_one(tmp_path, script):
    log = "--log_dir", tmp_path / "log"
    done = launched("--cpus", 2, *log, Path(__file__).parent / script, tmp_path, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    # The mean of both gradients, 2 (w x - y) x with all x alike, computed here.
    weight, losses = np.full(13, 0.1), []
    for _ in range(3):
        apart = [weight.sum() * k - k for k in (1, 2)]
        losses.append([error**2 for error in apart])
        weight = weight - 0.01 * sum(2 * error * k for error, k in zip(apart, (1, 2))) / 2
    for rank in range(2):
        np.testing.assert_allclose(found[rank]["parameter"][:, 0], weight, rtol=1e-5)
        np.testing.assert_allclose(found[rank]["losses"], np.array(losses)[:, rank], rtol=1e-5)
