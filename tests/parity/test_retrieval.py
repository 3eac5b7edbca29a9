"""A tree-based retrieval model against the real Fluid (tests/golden/retrieval.json)."""

import json
from pathlib import Path

import numpy as np

import jfluid as fluid
from tests.parity import retrieval

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "retrieval.json").read_text())


def test_losses_and_what_a_beam_finds_are_fluids():
    found = retrieval.run(fluid)
    np.testing.assert_allclose(found["losses"], GOLDEN["losses"], rtol=1e-4)
    nodes, scores, leaf = found["found"]
    np.testing.assert_array_equal(nodes, GOLDEN["found"][0])
    np.testing.assert_allclose(scores, GOLDEN["found"][1], rtol=1e-4)
    np.testing.assert_array_equal(leaf, GOLDEN["found"][2])
    assert np.min(nodes) >= 7 and np.all(leaf)  # they are items
