"""The real Fluid's numbers for operators whose inputs are declared with all of their dimensions
(tests/golden/declared.json).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity.declared import Case, Rows, run
from tests.parity.declared_cases import CASES

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "declared.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")


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


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("lstm_5", "lstmp_5_reverse")], ids=lambda c: c.name)
def test_states_of_empty_sequences_have_no_part_in_gradients(case):
    rows, outputs = case.inputs["Input"], dict.fromkeys(case.outputs, "float32")
    full = np.array(rows.lengths[0]) > 0
    without = case.inputs | {"Input": Rows(rows.values, [np.array(rows.lengths[0])[full].tolist()])}
    without |= {slot: case.inputs[slot][full] for slot in ("H0", "C0")}
    found, wanted = (
        run(fluid, Case(case.name, case.op, inputs, outputs, case.attrs, sorted(inputs), hidden=case.hidden))
        for inputs in (case.inputs, without)
    )
    for name, (values, shape, _) in wanted.items():
        have = np.reshape(found[name][0], found[name][1])
        if name in ("H0@GRAD", "C0@GRAD"):
            assert (have[~full] == 0).all()
            have = have[full]
        np.testing.assert_allclose(have, np.reshape(values, shape), rtol=1e-5, atol=1e-7, err_msg=name)
