"""Layers of `fluid.dygraph.nn` in programs and in dygraph mode, against what the real Fluid builds
and computes (tests/oracle/golden.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.dygraph import layer_cases as cases
from tests.dynamic_shapes.interpreted import interpreted

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dygraph_layers.json").read_text())
CASES = cases.cases(fluid)


@pytest.mark.filterwarnings("ignore:dygraph.GRUUnit. origin_mode has no effect")
@pytest.mark.parametrize("case", CASES)
def test_layer_builds_what_fluid_builds(case):
    found = json.loads(json.dumps(cases.describe(*cases.program_of(fluid, *CASES[case]))))
    expect = GOLDEN["programs"][case]
    operators, expected = found.pop("operators"), expect.pop("operators")
    assert found == expect
    assert [op[0] for op in operators] == [op[0] for op in expected]
    for (kind, ins, outs, attrs), (_, want_ins, want_outs, want_attrs) in zip(operators, expected, strict=True):
        assert (ins, outs) == (want_ins, want_outs), kind
        for name in attrs.keys() & want_attrs.keys():
            want = want_attrs[name]
            same = pytest.approx(want, rel=1e-6) if isinstance(want, float) else want
            assert attrs[name] == same, f"{kind}: {name}"


def flat(value):
    """The numbers of nested lists and dicts, and what stands in place of one."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [number for inner in value for number in flat(inner)]
    return [value]


@pytest.mark.filterwarnings("ignore:dygraph.GRUUnit. origin_mode has no effect")
@pytest.mark.parametrize("case", cases.value_cases(fluid))
def test_layer_computes_what_fluid_computes(case):
    found, expect = interpreted(cases.values, fluid, case, *CASES[case]), GOLDEN["values"][case]
    for what, want in expect.items():
        pairs = list(zip(flat(found[what]), flat(want), strict=True))
        assert [a is None for a, _ in pairs] == [b is None for _, b in pairs], what
        numbers = np.array([[float(v) for v in pair] for pair in pairs if pair[1] is not None])
        if len(numbers):
            np.testing.assert_allclose(numbers[:, 0], numbers[:, 1], rtol=2e-4, atol=2e-5, err_msg=what)


def test_what_fluid_does_not_do_is_told():
    with fluid.dygraph.guard():
        with pytest.warns(UserWarning, match="origin_mode has no effect"):
            fluid.dygraph.GRUUnit(9, origin_mode=True)
        with pytest.warns(UserWarning, match="begins at 0 and not at start_lr 0.5"):
            fluid.dygraph.LinearLrWarmup(1.0, 2, 0.5, 1.0)


def test_slopes_begin_as_fluids():
    with fluid.dygraph.guard():
        for mode, channel, shape in (
            ("all", None, None),
            ("channel", 3, None),
            ("element", None, [2, 3]),
        ):
            slopes = fluid.dygraph.PRelu(mode, channel, shape).weight.numpy()
            np.testing.assert_array_equal(slopes, np.ones_like(slopes))
