"""QuantizeTranspiler: what parity with Fluid does not show (tests/parity/test_quantize.py has that)."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.contrib.quantize import QuantizeTranspiler
from tests.parity.quantize import batch, digits

PLACE = fluid.CPUPlace()


def frozen(**kinds):
    """A frozen model of a net that has seen two batches: (program, what it predicts, scope, ...)."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, prediction = digits(fluid)
        fluid.optimizer.SGD(0.1).minimize(loss)
    transpiler = QuantizeTranspiler(window_size=4, **kinds)
    transpiler.training_transpile(main, startup)
    test, exe = main.clone(for_test=True), fluid.Executor()
    exe.run(startup, scope=scope)
    rng = np.random.RandomState(1)
    for _ in range(2):
        exe.run(main, feed=batch(rng), fetch_list=[loss], scope=scope)
    feed = batch(rng)
    rounded = exe.run(test, feed=feed, fetch_list=[prediction.name], scope=scope)[0]
    transpiler.freeze_program(test, PLACE, scope)
    return transpiler, test, prediction.name, scope, exe, feed, rounded


@pytest.mark.usefixtures("interpreted_steps")
def test_an_int8_model_predicts_as_it_was_trained_and_is_saved_and_loaded(tmp_path):
    transpiler, test, name, scope, exe, feed, rounded = frozen(
        activation_quantize_type="range_abs_max", weight_quantize_type="moving_average_abs_max"
    )
    transpiler.convert_to_int8(test, PLACE, scope)
    found = exe.run(test, feed=feed, fetch_list=[name], scope=scope)[0]
    np.testing.assert_allclose(found, rounded, rtol=1e-4, atol=1e-6)
    assert {v.name for v in test.list_vars() if v.dtype == fluid.core.VarDesc.VarType.INT8} == {
        f"{weight}.int8" for weight in ("conv2d_0.w_0", "fc_0.w_0", "fc_1.w_0")
    }
    with fluid.scope_guard(scope):
        target = test.global_block().var(name)
        fluid.io.save_inference_model(str(tmp_path), ["img"], [target], exe, test)
    assert (tmp_path / "fc_0.w_0.int8").stat().st_size < 100 * 16 + 200  # a byte for each weight
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        again = exe.run(program, feed={feeds[0]: feed["img"]}, fetch_list=targets)[0]
    np.testing.assert_array_equal(again, found)


def test_unknown_kinds_and_programs_that_cannot_be_quantized():
    with pytest.raises(ValueError, match="weight_quantize_type: expected one of abs_max"):
        QuantizeTranspiler(weight_quantize_type="channel_wise_abs_max")
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 3])
        fluid.layers.mul(x, fluid.data("y", [3, 2]))
    transpiler = QuantizeTranspiler()
    transpiler.training_transpile(main, startup)
    with pytest.raises(errors.ProgramError, match="mul of .*expected a weight and an activation"):
        transpiler.freeze_program(main, PLACE, scope)
    with fluid.program_guard(main, startup):
        fluid.layers.fc(x, 2)
    fluid.Executor().run(startup, scope=scope)
    with pytest.raises(errors.ProgramError, match="does not have integers of eight bits"):
        transpiler.convert_to_int8(main, PLACE, scope)
