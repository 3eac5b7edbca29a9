"""Loaders give what the real Fluid's give (tests/golden/feeding.json)."""

import json
from pathlib import Path

import pytest

import jfluid as fluid
from tests.parity.feeding import CASES, run

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "feeding.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_equals_fluids(case):
    assert run(fluid, case) == GOLDEN[case]
