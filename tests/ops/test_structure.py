"""Operators that the lowering treats by structure."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.layers.control_flow import conditional


def _run(value, fetch):
    return fluid.Executor(fluid.CPUPlace()).run(
        feed={"x": np.array([value], "float32")}, fetch_list=fetch
    )


def test_conditional_block_writes_only_where_the_condition_holds():
    x = fluid.data("x", [1])
    out = fluid.layers.fill_constant([1], "float32", 7.0)
    with conditional(x > 0.0):
        doubled = fluid.layers.scale(x, 2.0)
        with conditional(doubled > 10.0):
            fluid.layers.assign(fluid.layers.scale(doubled, 100.0), out)
    assert fluid.default_main_program().global_block().ops[-1].type == "conditional_block"
    assert [_run(v, [out])[0].item() for v in (-1, 1, 6)] == [7.0, 7.0, 1200.0]


def test_conditional_block_with_a_known_condition_is_decided_while_tracing():
    x = fluid.data("x", [1])
    yes = fluid.layers.less_than(
        fluid.layers.fill_constant([1], "int64", 1), fluid.layers.fill_constant([1], "int64", 2)
    )
    out = fluid.layers.scale(x, 1.0)
    with conditional(yes):
        fluid.layers.assign(fluid.layers.scale(x, 3.0), out)
    assert _run(2, [out])[0].item() == 6.0


def test_conditional_block_without_a_value_to_keep_is_refused():
    x = fluid.data("x", [1])
    out = x.block.create_var(name="out", shape=[1], dtype="float32")
    with conditional(x > 0.0):
        fluid.layers.assign(x, out)
    with pytest.raises(
        errors.OpError, match="out would have no value where the condition does not hold"
    ):
        _run(1, [out])


def test_feed_and_fetch_operators_of_a_saved_model_are_passed_over():
    program = fluid.default_main_program()
    x = fluid.data("x", [1])
    y = fluid.layers.scale(x, 2.0)
    block = program.global_block()
    block.create_var(name="feed", persistable=True)
    block.create_var(name="fetch", persistable=True)
    block.prepend_op("feed", {"X": "feed"}, {"Out": "x"}, {"col": 0})
    block.append_op("fetch", {"X": y}, {"Out": "fetch"}, {"col": 0})
    assert _run(4, [y])[0].item() == 8.0
