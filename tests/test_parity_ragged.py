"""The real Fluid's numbers on sequences, from the same parameters and data
(tests/golden/parity.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.programs import infer, train
from tests.parity.ragged import PROGRAMS
from tests.parity.translation import translation, translation_decode, translation_decode_trained

GOLDEN = json.loads((Path(__file__).parent / "golden" / "parity.json").read_text())


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda b: b.__name__)
def test_losses_and_state_equal_fluids(build):
    want = GOLDEN[build.__name__]
    losses, norms = train(fluid, build)
    np.testing.assert_allclose(losses, want["losses"], rtol=1e-5)
    assert norms == pytest.approx(want["persistables"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("build", "trained"),
    [(translation_decode, None), (translation_decode_trained, translation)],
    ids=["untrained", "trained"],
)
def test_beam_search_decodes_fluids_sentences(build, trained):
    found = infer(fluid, build, trained)
    for batch, wanted in zip(found, GOLDEN[build.__name__], strict=True):
        (ids, lod), (scores, _) = batch
        (want_ids, want_lod), (want_scores, _) = wanted
        assert lod == want_lod and ids == want_ids
        np.testing.assert_allclose(scores, want_scores, rtol=1e-5)
