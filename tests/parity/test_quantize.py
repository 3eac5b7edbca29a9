"""Training with simulated quantization, its frozen and its int8 model, against the real Fluid
(tests/golden/quantize.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity import quantize

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "quantize.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.mark.parametrize("kinds", quantize.KINDS, ids=lambda k: k[0])
def test_training_freezing_and_conversion_are_fluids(kinds):
    want, found = GOLDEN[" ".join(kinds)], quantize.run(fluid, *kinds)
    for program in ("trained", "frozen", "converted"):
        assert found[program] == want[program], program
    np.testing.assert_allclose(found["losses"], want["losses"], rtol=1e-4)
    assert found["scales"] == pytest.approx(want["scales"], rel=1e-4)
    for predicted in ("rounded", "predicted"):
        np.testing.assert_allclose(found[predicted], want[predicted], rtol=1e-3, atol=1e-5)
    assert found["int8"] == want["int8"] and found["dtypes"] == want["dtypes"]


@pytest.mark.parametrize("model", ["frozen", "int8"])
def test_models_that_fluid_has_saved_predict_alike(model):
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        program, _, targets = fluid.io.load_inference_model(
            str(FOLDER / "models" / "quantized" / model), exe, "model", "params"
        )
        feed = {"img": quantize.tested()["img"]}
        (found,) = exe.run(program, feed=feed, fetch_list=targets)
    want = GOLDEN[" ".join(quantize.SAVED)]["predicted"]
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5)
