"""Small detectors against the real Fluid: five steps, and what they detect then
(tests/golden/detectors.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.detectors import MODELS, train_and_detect

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "detectors.json").read_text())
# Batch norm divides by the deviation of a small batch: rounding grows from step to step.
TOLERANCE = {"yolov3": 1e-3, "retinanet": 1e-4}
pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.mark.parametrize("name", MODELS)
def test_losses_state_and_detections_are_fluids(name):
    found, want, rtol = train_and_detect(fluid, MODELS[name]), GOLDEN[name], TOLERANCE[name]
    np.testing.assert_allclose(found["losses"], want["losses"], rtol=rtol)
    assert found["norms"] == pytest.approx(want["norms"], rel=rtol, abs=1e-6)
    (rows, lod), (want_rows, want_lod) = found["detected"], want["detected"]
    assert lod == want_lod and len(rows) > 4
    np.testing.assert_allclose(rows, want_rows, rtol=rtol, atol=rtol)
