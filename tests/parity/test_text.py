"""The real Fluid's numbers on recognition of text with CTC and on decoders, from the same
parameters and data (tests/golden/text_programs.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.programs import infer, train
from tests.parity.test_ragged import one_size  # noqa: F401  # a fixture
from tests.parity.text import INFERENCE, PROGRAMS, STEPS

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "text_programs.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda b: b.__name__)
def test_losses_and_state_equal_fluids(build):
    want = GOLDEN[build.__name__]
    losses, norms = train(fluid, build, steps=STEPS)
    rtol = 1e-3 if build.__name__ == "crnn" else 1e-4  # batch norm
    np.testing.assert_allclose(losses, want["losses"], rtol=rtol)
    assert norms == pytest.approx(want["persistables"], rel=rtol, abs=1e-6)


@pytest.mark.parametrize("build", INFERENCE, ids=lambda b: b.__name__)
def test_what_is_decoded_equals_fluids(build):
    found = infer(fluid, build)
    for batch, wanted in zip(found, GOLDEN[build.__name__], strict=True):
        for (values, lod), (want, want_lod) in zip(batch, wanted, strict=True):
            assert lod == want_lod
            np.testing.assert_allclose(values, want, rtol=1e-4, atol=1e-5)
