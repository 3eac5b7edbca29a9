"""Operators of CTC, text matching and hashing against the real Fluid: values, lods and gradients."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.op_case import not_inferred
from tests.parity.ops import run
from tests.parity.text_ops import CASES

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "text_ops.json").read_text())
pytestmark = pytest.mark.usefixtures("interpreted_steps")  # golden values, for which nothing needs to be compiled


def test_every_case_is_golden():
    assert {case[0] for case in CASES} == set(GOLDEN)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_values_lods_and_gradients_are_fluids(case):
    with not_inferred():  # `check` holds inferred shapes of each operator
        found = run(fluid, case)
    for name, (values, shape, lod) in GOLDEN[case[0]].items():
        ours, our_shape, our_lod = found[name]
        assert our_shape == shape, name
        assert our_lod == lod or name.startswith("d"), name  # Fluid gives some gradients no lod
        np.testing.assert_allclose(ours, values, rtol=2e-4, atol=2e-5, err_msg=name)
