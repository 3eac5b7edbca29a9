"""A process that makes and drops everything in turn does not grow, and what grows is noticed."""

import json
import subprocess
import sys

import pytest

from tests.chaos import growth
from tests.chaos.processes import ROOT

STEADY = dict.fromkeys(growth._MORE, 1000.0)


@pytest.mark.slow
@pytest.mark.process
def test_nothing_grows():
    result = subprocess.run(
        [sys.executable, "-m", "tests.chaos.growth", "--minutes", "0.75"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *looks, end = map(json.loads, result.stdout.splitlines())
    assert end["grown"] == [] and min(end["deeds"].values()) > 0
    bound = 1.5 * growth._BYTES / 4 / (1 << 20)  # the latest ones stay, however large they are
    assert all(look["executables_mib"] <= bound for look in looks)


@pytest.mark.parametrize("name", STEADY)
def test_what_grows_is_noticed(name):
    looks = [dict(STEADY) for _ in range(40)]
    assert growth.grown(looks) == []
    for at, look in enumerate(looks[20:]):
        look[name] += at * max(growth._MORE[name][1] / 4, 10)
    (found,) = growth.grown(looks)
    assert found.startswith(f"{name}: ")
    # what has reached its bound in the first half is there, and does not grow
    for look in looks[20:]:
        look[name] = 9000.0
    assert growth.grown(looks) == []
