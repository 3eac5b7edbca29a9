"""Deformable convolutions and pooled boxes against the real Fluid: five steps
(tests/golden/deformable.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.deformable import train

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "deformable.json").read_text())


@pytest.mark.usefixtures("interpreted_steps")
def test_losses_and_parameters_are_fluids():
    found = train(fluid)
    np.testing.assert_allclose(found["losses"], GOLDEN["losses"], rtol=1e-4)
    assert found["norms"] == pytest.approx(GOLDEN["norms"], rel=1e-4)
