"""Latency of honest clients of `jfluid serve` during attacks: a short run of `benchmarks/serving.py`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serving.py"


@pytest.mark.process
@pytest.mark.parametrize(
    "options",
    [
        ["--seconds", "1", "--most", "30", "--one-server"],
        pytest.param(["--seconds", "4", "--most", "2"], marks=pytest.mark.nightly),
    ],
    ids=["short", "long"],
)
def test_honest_clients_are_answered_while_others_attack(options):
    # All nine attacks at once; several tries, since further tests take the processor in some phases. A server that
    # waits for an attack answers after seconds: hundreds of times later.
    command = [sys.executable, str(BENCHMARK), *options, "--rounds", "1", "--attacks", "all", "--tries", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "honest requests without an answer: 0" in done.stdout
    memory = [int(peak) for peak in re.findall(r", (\d+)$", done.stdout, re.MULTILINE)]
    assert 1 <= len(memory) <= 6 and max(memory) < 1500  # MiB; parsed as objects, a body of 63 MiB took 2,400
