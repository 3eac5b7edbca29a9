"""Learning-rate schedules and Switch, against golden values of the real Fluid
(tests/oracle/golden.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from tests.optimizer import cases
from tests.optimizer.test_optimizer import same_operators

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optimizer.json").read_text())["schedules"]


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_schedule(case):
    main, startup, rate = cases.schedule_program(fluid, cases.schedules(fluid)[case])
    assert rate.name == GOLDEN[case]["name"] and rate.shape == (1,)
    same_operators(cases.describe(main, 16), GOLDEN[case]["operators"])
    np.testing.assert_allclose(cases.rates(fluid, main, startup, rate), GOLDEN[case]["rates"], rtol=1e-5)


def test_two_schedules_share_the_counter():
    first = fluid.layers.noam_decay(64, 5)
    second = fluid.layers.noam_decay(16, 5)
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    assert [op.type for op in main.global_block().ops].count("increment") == 1
    np.testing.assert_allclose(
        cases.rates(fluid, main, startup, second, 3),
        2 * np.array(cases.rates(fluid, main, startup, first, 3)),
        rtol=1e-6,
    )


def test_wrong_arguments():
    with pytest.raises(ValueError, match="2 values and 2 boundaries"):
        fluid.layers.piecewise_decay([1, 2], [1.0, 2.0])
    with pytest.raises(TypeError, match="learning_rate"):
        fluid.layers.linear_lr_warmup("a", 5, 0.0, 1.0)
    with pytest.raises(errors.ProgramError, match="warmup_steps"):
        fluid.layers.linear_lr_warmup(0.1, 0, 0.0, 1.0)


@pytest.mark.parametrize("x, expect", [(0.0, 1.0), (1.5, 2.0), (9.0, 3.0)])
def test_switch_runs_the_first_case_that_holds(x, expect):
    given = fluid.data("given", [1])
    out = fluid.layers.fill_constant([1], "float32", 0.0)
    with fluid.layers.Switch() as switch:
        for limit, value in ((1.0, 1.0), (2.0, 2.0)):
            with switch.case(given < limit):
                fluid.layers.assign(fluid.layers.fill_constant([1], "float32", value), out)
        with switch.default():
            fluid.layers.assign(fluid.layers.fill_constant([1], "float32", 3.0), out)
    (found,) = fluid.Executor(fluid.CPUPlace()).run(feed={"given": np.array([x], "float32")}, fetch_list=[out])
    np.testing.assert_array_equal(found, [expect])


def test_switch_misused():
    with pytest.raises(errors.ProgramError, match="inside of"):
        fluid.layers.Switch().case(fluid.data("flag", [1], "bool"))
    with fluid.layers.Switch() as switch:
        with pytest.raises(errors.ProgramError, match="case before"):
            switch.default()
        with pytest.raises(TypeError, match="boolean Variable, found FP32"):
            switch.case(fluid.data("number", [1]))
        with pytest.raises(TypeError, match="found int"):
            switch.case(3)
