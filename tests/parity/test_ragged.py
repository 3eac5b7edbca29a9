"""The real Fluid's numbers on sequences, from the same parameters and data
(tests/golden/parity.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid.compile.runtime import padding
from tests.gpu.ahead import lowers_for_cuda  # noqa: F401  # a fixture
from tests.parity.programs import infer, train
from tests.parity.ragged import PROGRAMS
from tests.parity.translation import translation, translation_decode, translation_decode_trained
from tests.slow_tests import nightly_but

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "parity.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")


@pytest.fixture
def one_size(request, monkeypatch):
    """Batches of up to 40 rows are padded to one size: one program is compiled instead of up to four.
    That of sentiment_conv is trained with all of its sizes.
    """
    ladder = padding.ladder
    if "sentiment_conv" not in request.node.name:
        monkeypatch.setattr(padding, "ladder", lambda n, rungs=4: ladder(max(n, 40) if rungs == 4 else n, rungs))


# before each change tests/optimizer/test_sparse_training.py holds these optimizers on sparse gradients
AT_NIGHT = {"ctr_ragged_lazy_adam", "ctr_ragged_adam", "ctr_ragged_momentum"}
KEPT = {build.__name__ for build in PROGRAMS} - AT_NIGHT


@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("build", nightly_but(KEPT, PROGRAMS), ids=lambda build: build.__name__)
def test_losses_and_state_equal_fluids(build):
    want = GOLDEN[build.__name__]
    losses, norms = train(fluid, build)
    np.testing.assert_allclose(losses, want["losses"], rtol=1e-5)
    assert norms == pytest.approx(want["persistables"], rel=1e-4, abs=1e-6)


# before each change tests/compile/test_recorded_cases.py lowers operators with each primitive
@pytest.mark.usefixtures("lowers_for_cuda", "one_size")
@pytest.mark.parametrize("build", nightly_but(("sentiment_lstm",), PROGRAMS), ids=lambda build: build.__name__)
def test_steps_lower_for_gpus(build):
    train(fluid, build, steps=1)


@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize(
    ("build", "trained"),
    [
        pytest.param(translation_decode, None, id="untrained"),
        pytest.param(translation_decode_trained, translation, id="trained"),
    ],
)
def test_beam_search_decodes_fluids_sentences(build, trained):
    found = infer(fluid, build, trained)
    for batch, wanted in zip(found, GOLDEN[build.__name__], strict=True):
        (ids, lod), (scores, _) = batch
        (want_ids, want_lod), (want_scores, _) = wanted
        assert lod == want_lod and ids == want_ids
        np.testing.assert_allclose(scores, want_scores, rtol=1e-5)
