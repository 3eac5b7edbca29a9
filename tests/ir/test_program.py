"""Programs, blocks, names, scopes of names, roles, copies, pruning, the verifier."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors


def _net():
    block = fluid.default_main_program().global_block()
    x = block.create_var(name="x", shape=[-1, 4], dtype="float32", is_data=True)
    w = block.create_parameter(name="w", shape=[4, 2], dtype="float32")
    block.append_op("mul", {"X": x, "Y": w}, {"Out": "h"})
    block.append_op("dropout", {"X": "h"}, {"Out": "d", "Mask": "mask"}, {"dropout_prob": 0.5})
    block.append_op("mean", {"X": "d"}, {"Out": "loss"})
    return block


def test_append_op_infers_shapes_and_checks_slots_and_attributes():
    block = _net()
    assert block.var("h").shape == (-1, 2) and block.var("loss").shape == (1,)
    for args, text in [
        (("mul", {"X": "x", "Z": "w"}, {"Out": "o"}), "no input slot Z"),
        (("mul", {"X": "x"}, {"Out": "o"}), "input Y is missing"),
        (("mul", {"X": "x", "Y": "nope"}, {"Out": "o"}), "reads nope, which no block declares"),
        (
            ("mul", {"X": "x", "Y": "w"}, {"Out": "o"}, {"x_num_col_dims": "one"}),
            "expected INT, found 'one'",
        ),
        (("mul", {"X": "w", "Y": "w"}, {"Out": "o"}), "w\\[4, 2\\] FP32"),
    ]:
        with pytest.raises(errors.ProgramError, match=text):
            block.append_op(*args)
    with pytest.warns(RuntimeWarning, match="no attribute x_num_col_dim,.*mean x_num_col_dims"):
        op = block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "o"}, {"x_num_col_dim": 1})
    assert not op.has_attr("x_num_col_dim")
    with pytest.raises(errors.UnsupportedOpError, match="did you mean mul"):
        block.append_op("mull", {"X": "x", "Y": "w"}, {"Out": "o"})


def test_shape_errors_name_the_users_line():
    block = _net()
    with pytest.raises(errors.ShapeError, match=r"test_program\.py.*test_shape_errors_name_the_users_line"):
        block.append_op("mul", {"X": "w", "Y": "w"}, {"Out": "o"})


def test_clone_for_test_drops_training_and_switches_operators():
    block = _net()
    fluid.append_backward(block.var("loss"))
    test = fluid.default_main_program().clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == ["mul", "dropout", "mean"]
    assert test.global_block().ops[1].attr("is_test") is True
    assert block.ops[1].attr("is_test") is False
    assert not any(n.endswith("@GRAD") for n in test.global_block().vars)
    assert [p.name for p in test.all_parameters()] == ["w"]


def test_fingerprint_follows_structure_not_identity():
    program = fluid.default_main_program()
    block = _net()
    before, copy = program.fingerprint, program.clone()
    assert copy.fingerprint == before
    block.ops[1].set_attr("dropout_prob", 0.25)
    assert program.fingerprint != before == copy.fingerprint


def test_prune_keeps_what_targets_need():
    block = _net()
    pruned = fluid.default_main_program()._prune(["h"])
    assert [op.type for op in pruned.global_block().ops] == ["mul"] and set(pruned.global_block().vars) == {
        "x",
        "w",
        "h",
    }
    fed = fluid.default_main_program()._prune_with_input(["h"], ["loss"])
    assert [op.type for op in fed.global_block().ops] == ["dropout", "mean"]
    with pytest.raises(errors.ProgramError, match="no variable losss.*did you mean loss"):
        fluid.default_main_program()._prune(["losss"])
    assert len(block.ops) == 3


def test_nested_blocks_see_outer_variables():
    program = fluid.Program()
    with fluid.program_guard(program):
        _net()
        inner = program.create_block()
        assert program.current_block() is inner and inner.parent is program.global_block() and program.num_blocks == 2
        assert inner.find_var_recursive("w").name == "w" and not inner.has_var("w")
        program.rollback()
        assert program.current_block() is program.global_block()
    copy = program.clone()
    assert copy.block(1).parent is copy.global_block()
    with pytest.raises(errors.ProgramError, match="2 blocks, none at 5"):
        program.block(5)


def test_unique_names_and_scopes_of_names():
    assert [fluid.unique_name.generate("fc") for _ in range(2)] == ["fc_0", "fc_1"]
    with fluid.unique_name.guard():
        assert fluid.unique_name.generate("fc") == "fc_0"
    with fluid.unique_name.guard("net_"):
        assert fluid.unique_name.generate("fc") == "net_fc_0"
    old = fluid.unique_name.switch()
    assert old.para_name_checker is not fluid.unique_name.parameters()
    assert fluid.unique_name.generate("fc") == "fc_0"
    fluid.unique_name.switch(*old)
    assert fluid.unique_name.generate("fc") == "fc_2"
    fluid.unique_name.switch(*old)
    assert fluid.unique_name.parameters() is old.para_name_checker
    with fluid.name_scope("a"), fluid.name_scope("b"):
        block = _net()
    assert block.ops[0].attr("op_namescope") == "/a/b/"
    with fluid.name_scope("a"):
        block.append_op("mean", {"X": "h"}, {"Out": "other"})
    assert block.ops[-1].attr("op_namescope") == "/a_1/"


def test_the_verifier_finds_broken_programs():
    block = _net()
    program = fluid.default_main_program()
    assert program.verify() is program
    del block.vars["h"]
    with pytest.raises(errors.ProgramError, match="operator mul.*it names h, which no block declares"):
        program.verify("test rewrite")
    block.create_var(name="h", shape=[-1, 2], dtype="float32")
    block.ops.insert(0, block.ops.pop())
    with pytest.raises(
        errors.ProgramError,
        match="test rewrite: operator mean.*reads d before an operator writes it",
    ):
        program.verify("test rewrite")


def test_shared_parameters_must_agree():
    block = _net()
    with pytest.raises(errors.ProgramError, match=r"parameter w exists with shape \[4, 2\]"):
        block.create_parameter(name="w", shape=[4, 3], dtype="float32")
    with pytest.raises(ValueError, match="every dimension must be known"):
        block.create_parameter(name="v", shape=[-1, 3], dtype="float32")


def test_unknown_variable_suggests():
    with pytest.raises(ValueError, match="no variable losss.*did you mean loss"):
        _net().var("losss")


def test_random_seed_makes_runs_repeat_and_steps_differ():
    block = fluid.default_main_program().global_block()
    block.append_op("gaussian_random", outputs={"Out": "noise"}, attrs={"shape": [8]})
    block.create_var(name="x", shape=[1], dtype="float32", is_data=True)
    program, exe = fluid.default_main_program(), fluid.Executor(fluid.CPUPlace())

    def draw(feed):
        return exe.run(program, feed=feed, fetch_list=["noise"])[0]

    assert not np.array_equal(draw({}), draw({}))
    program.random_seed = 3
    assert np.array_equal(draw({}), draw({}))  # reads nothing, as a startup program
    fed = {"x": np.zeros(1, "float32")}
    with fluid.scope_guard(fluid.Scope()):
        first = [draw(fed), draw(fed)]
    with fluid.scope_guard(fluid.Scope()):
        again = [draw(fed), draw(fed)]
    assert np.array_equal(first, again) and not np.array_equal(*first)


def test_unknown_rows_do_not_hide_a_wrong_width():
    block = _net()
    block.append_op("concat", {"X": ["h", "h", "h"]}, {"Out": "wide"}, {"axis": 1})
    with pytest.raises(
        errors.ShapeError,
        match=r"x\[-1, 4\] FP32, Y: wide\[-1, 6\].*\n.*\n.*\n.*\(-1, 4\) and \(-1, 6\)",
    ):
        block.append_op("elementwise_add", {"X": "x", "Y": "wide"}, {"Out": "sum"})
