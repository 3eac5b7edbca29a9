"""Processes whose batches have other shapes at each step, and others than their peers', train as with exact
shapes.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.launch_case import launched
from tests.parallel.stream_processes import LENGTHS, batches

pytestmark = pytest.mark.process


def expected(weight, bias):
    """Losses of both trainers, and the parameters at the end, by NumPy."""
    losses = [[], []]
    for pair in zip(batches(0), batches(1)):
        gradients = []
        for own, x in zip(losses, pair):
            hidden = np.tanh(x @ weight + bias)
            own.append(hidden.mean())
            change = (1 - hidden**2) / hidden.size
            gradients.append((np.einsum("bli,blo->io", x, change), change.sum((0, 1))))
        weight, bias = (
            value - 0.5 * np.mean(own, axis=0)
            for value, own in zip((weight, bias), zip(*gradients))
        )
    return losses, (weight, bias)


def test_two_processes_pad_each_for_itself(tmp_path):
    script = Path(__file__).parent / "stream_processes.py"
    done = launched("--cpus", 2, "--log_dir", tmp_path / "log", script, tmp_path, forks=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((tmp_path / f"stream.{rank}").read_text()) for rank in range(2)]
    losses, after = expected(*map(np.array, found[0]["before"]))
    for own, lengths, right in zip(found, LENGTHS, losses):
        np.testing.assert_allclose(own["losses"], right, 1e-4)
        for value, other in zip(own["after"], after, strict=True):
            np.testing.assert_allclose(value, other, 1e-4, 1e-5)
        assert own["compiled"] <= 9 < len(set(lengths))
