"""A process that makes and drops everything in turn does not grow, and what grows is noticed."""

import json
import os
import sys

import pytest

from tests import forked
from tests.chaos import growth

STEADY = dict.fromkeys(growth._MORE, 1000.0)


def begin(arguments):
    sys.exit(growth.main(arguments))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.nightly)])
def test_nothing_grows(rounds):
    process = forked.Popen(begin, ["--rounds", str(rounds)], os.environ)
    said, errors = process.communicate(600)
    assert process.returncode == 0, said + errors
    *looks, end = map(json.loads, said.splitlines())
    assert end["grown"] == [] and set(end["deeds"].values()) == {rounds}
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
