"""LoDTensors, DataFeeder and fetches as the real Fluid has them (tests/golden/lod_tensor.json)."""

import json
from pathlib import Path

import pytest

import jfluid as fluid
from tests.parity.lod_tensor import CASES, run

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "lod_tensor.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_equals_fluids(case):
    assert run(fluid, case) == GOLDEN[case]
