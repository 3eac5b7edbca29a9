"""A small Faster R-CNN with a feature pyramid against the real Fluid, five steps
(tests/golden/faster_rcnn.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.faster_rcnn import train

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "faster_rcnn.json").read_text())


def test_losses_proposals_and_parameters_are_fluids():
    exe = fluid.Executor(fluid.CPUPlace())
    found = train(fluid, exe)
    assert found["lods"] == GOLDEN["lods"]
    np.testing.assert_allclose(found["losses"], GOLDEN["losses"], rtol=1e-4)
    assert found["norms"] == pytest.approx(GOLDEN["norms"], rel=1e-4)
    step = next(reversed(exe.engine._steps.values()))
    (segment,) = step.segments  # one program of XLA, compiled once for batches of 4 to 8 objects
    assert segment.exact.plain.count() == 1
