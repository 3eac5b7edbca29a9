"""A small SSD against the real Fluid: five steps, and what it detects then
(tests/golden/ssd.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid.ops import registry
from tests.parity.ssd import train_and_detect, trainer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "ssd.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")


def test_losses_parameters_and_detections_are_fluids():
    found = train_and_detect(fluid)
    np.testing.assert_allclose(found["losses"], GOLDEN["losses"], rtol=1e-5)
    assert found["norms"] == pytest.approx(GOLDEN["norms"], rel=1e-4)
    for ours, theirs in zip(found["detected"], GOLDEN["detected"], strict=True):
        assert ours[1] == theirs[1]
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-3, atol=1e-4)
        assert ours[2:] == pytest.approx(theirs[2:], abs=1e-5)


def test_a_training_step_has_no_operator_on_the_host():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        trainer(fluid)
        operators = fluid.default_main_program().global_block().ops
    assert len(operators) > 100
    assert not [op.type for op in operators if registry.get(op.type).host]
