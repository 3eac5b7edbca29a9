"""Operators that the lowering treats by structure."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors
from jfluid.layers.control_flow import conditional


def _run(value, fetch):
    return fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.array([value], "float32")}, fetch_list=fetch)


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
    with pytest.raises(errors.OpError, match="out would have no value where the condition does not hold"):
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


def test_conditional_block_infer_is_a_conditional_block():
    x = fluid.data("x", [1])
    out = fluid.layers.fill_constant([1], "float32", 7.0)
    with conditional(x > 0.0):
        fluid.layers.assign(fluid.layers.scale(x, 2.0), out)
    block = fluid.default_main_program().global_block()
    op = block.ops.pop()
    attrs = {"sub_block": op.attrs["sub_block"], "is_scalar_condition": True}
    attrs["skip_eager_deletion_vars"] = []
    block.append_op("conditional_block_infer", op.inputs, op.outputs, attrs)
    assert [_run(v, [out])[0].item() for v in (-1, 3)] == [7.0, 6.0]


def test_select_output_gives_its_value_to_one_output_and_its_gradient_back():
    x = fluid.data("x", [1])
    x.stop_gradient = False
    index = fluid.layers.cast(x > 0.0, "int32")
    block = x.block
    outs = [block.create_var(name=n, shape=[1], dtype="float32") for n in "ab"]
    block.append_op("select_output", {"X": x, "Mask": index}, {"Out": outs})
    a, b = outs
    (grad,) = fluid.gradients(a * 3.0 + b * 5.0, x)
    assert [v.item() for v in _run(2, [a, b, grad])] == [0.0, 2.0, 5.0]
    assert [v.item() for v in _run(-2, [a, b, grad])] == [-2.0, 0.0, 3.0]


def test_select_output_refuses_a_known_index_without_output():
    x = fluid.data("x", [1])
    index = fluid.layers.fill_constant([1], "int32", 2)
    outs = [x.block.create_var(name=n, shape=[1], dtype="float32") for n in "ab"]
    x.block.append_op("select_output", {"X": x, "Mask": index}, {"Out": outs})
    with pytest.raises(errors.OpError, match="Mask is 2, but there are 2 outputs"):
        _run(1, [outs[0]])


def test_what_delete_var_deletes_cannot_be_read():
    x = fluid.data("x", [1])
    y = fluid.layers.scale(x, 2.0)
    z = fluid.layers.scale(y, 2.0)
    x.block.append_op("delete_var", {"X": y})
    assert _run(3, [z])[0].item() == 12.0
    w = fluid.layers.scale(y, 2.0)
    with pytest.raises(errors.OpError, match=f"{y.name} has no value"):
        _run(3, [w])


def test_run_program_runs_a_part_of_a_block_and_is_differentiable():
    program = fluid.default_main_program()
    x = fluid.data("x", [1])
    x.stop_gradient = False
    inner = program._create_block()
    fluid.layers.scale(x, 7.0)  # not run
    after = fluid.layers.scale(x, 3.0)
    out = fluid.layers.square(after)
    program._rollback()
    outer = program.global_block()
    outer.create_var(name=out.name, shape=[1], dtype="float32")
    attrs = {"global_block": inner, "start_op_index": 1, "end_op_index": 3}
    outer.append_op("run_program", {"X": x, "Params": []}, {"Out": out.name}, attrs)
    (grad,) = fluid.gradients(outer.var(out.name), x)
    assert [v.item() for v in _run(2, [out.name, grad])] == [36.0, 36.0]
    outer.ops[0].attrs["end_op_index"] = 1
    program._touch()
    with pytest.raises(errors.OpError, match=f"nothing computes {out.name}"):
        _run(2, [out.name])
