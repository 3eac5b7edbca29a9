"""The real Fluid's losses over 20 steps, and the norms of all state after them
(tests/golden/parity.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.dynamic_shapes.interpreted import interpreted
from tests.gpu.ahead import lowers_for_cuda  # noqa: F401  # a fixture
from tests.parity.programs import PROGRAMS, train
from tests.slow_tests import nightly_but

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "parity.json").read_text())
# Batch norm divides by the deviation of a small batch: rounding grows from step to step.
TOLERANCE = {"digits_conv": 1e-3, "vgg": 1e-3, "resnet": 1e-3}
# They are compiled as for users, which takes three times as long; NumPy interprets the others.
OPTIMISED = ("digits_mlp", "digits_conv", "word2vec")


# Before each change tests/examples/test_gallery.py trains resnet and deepfm, tests/optimizer each optimizer.
AT_NIGHT = ("vgg", "wide_and_deep", "deepfm")


def case(build):
    name = build.__name__
    marks = [pytest.mark.optimised] * (name in OPTIMISED) + [pytest.mark.nightly] * (name in AT_NIGHT)
    return pytest.param(build, id=name, marks=marks)


# before each change tests/compile/test_recorded_cases.py lowers operators with each primitive
@pytest.mark.usefixtures("lowers_for_cuda", "interpreted_steps")
@pytest.mark.parametrize("build", nightly_but(("digits_conv",), PROGRAMS), ids=lambda build: build.__name__)
def test_steps_lower_for_gpus(build):
    train(fluid, build, steps=1)


@pytest.mark.parametrize("build", [case(build) for build in PROGRAMS])
def test_losses_and_state_equal_fluids(build):
    want = GOLDEN[build.__name__]
    rtol = TOLERANCE.get(build.__name__, 1e-4)
    losses, norms = train(fluid, build) if build.__name__ in OPTIMISED else interpreted(train, fluid, build)
    np.testing.assert_allclose(losses, want["losses"], rtol=rtol)
    # A bias in front of batch norm has no gradient but rounding, and steep velocities amplify what
    # differs.
    noisy = build.__name__ in ("vgg", "resnet")
    assert norms == pytest.approx(want["persistables"], rel=2e-2 if noisy else rtol, abs=5e-3 if noisy else 1e-6)
