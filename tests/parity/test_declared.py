"""The real Fluid's numbers for operators whose inputs are declared with all of their dimensions
(tests/golden/declared.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.declared import run
from tests.parity.declared_cases import CASES

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "declared.json").read_text())


@pytest.mark.filterwarnings("ignore:operator center_loss has no attribute lambda:RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_gives_what_fluid_gives(case):
    found = run(fluid, case)
    for name, (values, shape, lod) in GOLDEN[case.name].items():
        have, have_shape, have_lod = found[name]
        assert have_shape == shape, name
        if case.op == "randperm":
            assert sorted(have) == sorted(values)
            continue
        if not name.endswith("@GRAD"):
            assert have_lod == lod, name
        np.testing.assert_allclose(have, values, rtol=1e-4, atol=1e-5, err_msg=name)
