"""Parameters and variables of many programs have Fluid's names: its checkpoints fit."""

import json
from pathlib import Path

import pytest

import jfluid as fluid
from tests.parity import names

GOLDEN = json.loads((Path(__file__).parent / "golden" / "names.json").read_text())


@pytest.mark.parametrize("name", names.PROGRAMS)
def test_names(name):
    found = json.loads(json.dumps(names.names(fluid, names.PROGRAMS[name])))
    expected = GOLDEN[name]
    assert found["parameters"] == expected["parameters"]
    for kind in ("startup", "main"):
        for ours, fluids in zip(found[kind], expected[kind], strict=True):
            assert (set(ours) - set(fluids), set(fluids) - set(ours)) == (set(), set())
