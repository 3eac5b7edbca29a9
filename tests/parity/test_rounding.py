"""Rounding in a residual net with batch normalization: at most twice the real Fluid's error against float64."""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.parity import rounding

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rounding.json").read_text())


@pytest.fixture(scope="module")
def exact():
    return rounding.run(fluid, "float64")


@pytest.mark.optimised
@pytest.mark.parametrize("kernels", [True, False])
def test_a_residual_net_rounds_as_little_as_in_fluid(kernels, exact):
    before = fluid.get_flags("FLAGS_cpu_kernels")
    fluid.set_flags({"FLAGS_cpu_kernels": kernels})
    try:
        found = rounding.errors(fluid, exact)
    finally:
        fluid.set_flags(before)
    np.testing.assert_allclose(found["exact"], GOLDEN["exact"], rtol=1e-12)
    assert found["gradient"] <= 2 * GOLDEN["gradient"]
    assert found["loss"] <= np.finfo("float32").eps  # a loss is one number: the last bit
