"""Programs as text and as drawings."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import debugger, errors
from jfluid.ir import framework_pb2 as pb


@pytest.fixture
def block():
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[-1, 4], dtype="float32", is_data=True)
    block.create_parameter(name="w", shape=[4, 2], dtype="float32")
    block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "h"})
    block.append_op("mean", {"X": "h"}, {"Out": "loss"})
    fluid.append_backward(block.var("loss"))
    return block


def test_to_string_is_the_message_as_text(block):
    from google.protobuf import text_format

    program = fluid.default_main_program()
    read = text_format.Parse(str(program), pb.ProgramDesc())
    assert read.SerializeToString() == program.serialize_to_string()
    assert 'name: "w"' in block.var("w").to_string(True) and "trainable" not in block.var("w").to_string(True)
    assert "trainable: True" in block.var("w").to_string(True, True)
    assert 'type: "mul"' in block.ops[0].to_string(True) and 'type: "mul"' in str(block)
    details = program.to_string(True, with_details=True)
    assert "stop_gradient: False" in details and details.startswith("blocks {")
    with pytest.raises(TypeError, match="throw_on_error"):
        program.to_string("yes")


def test_code_is_one_line_an_operator(block):
    text = debugger.pprint_program_codes(fluid.default_main_program())
    assert "h = mul(X=x, Y=w)" in text and "loss = mean(X=h)" in text
    assert "data x: FP32[-1, 4]" in text and "param w: FP32[4, 2]" in text and "@GRAD" not in text
    assert "mul_grad(" in debugger.pprint_block_codes(block, show_backward=True)


def test_messages_in_one_line(block):
    desc = block.to_message()
    by_name = {v.name: v for v in desc.vars}
    assert debugger.repr_var(by_name["w"]) == "Tensor w (tensor(type=float32, shape=[4, 2]))"
    assert debugger.repr_selected_rows(by_name["w"]) is None and debugger.repr_tensor_array(by_name["w"]) is None
    assert debugger.repr_var(block.var("w")) == "w: FP32[4, 2]"
    assert debugger.repr_op(desc.ops[0]).startswith("h = mul(X=x, Y=w)")
    assert debugger.repr_op(block.ops[1]) == "loss = mean(X=h)"
    assert debugger.repr_attr(pb.OpDesc.Attr(name="dtype", type=pb.INT, i=5)) == (
        "dtype=float32",
        ("dtype", "float32"),
    )
    assert debugger.repr_attr(pb.OpDesc.Attr(name="axes", type=pb.INTS, ints=[1, 2]))[0] == "axes=[1, 2]"


def test_drawing(block, tmp_path):
    block.create_var(name='odd "name"\\', shape=[1], dtype="float32")
    block.append_op("scale", {"X": 'odd "name"\\'}, {"Out": "s"})
    debugger.draw_block_graphviz(block, highlights=["mu"], path=tmp_path / "net.dot")
    text = (tmp_path / "net.dot").read_text()
    assert text.startswith("digraph") and text.rstrip().endswith("}")
    mul = next(line for line in text.splitlines() if '"mul"' in line)
    assert "orangered" in mul and "orangered" not in next(line for line in text.splitlines() if '"mean"' in line)
    assert r"odd \"name\"\\" in text and text.count('[label="mul"') == 1
    with pytest.raises(TypeError, match="expected a Block"):
        debugger.draw_block_graphviz(fluid.default_main_program())


def test_a_drawing_is_one_that_graphviz_reads(block, tmp_path):
    import shutil
    import subprocess

    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    debugger.draw_block_graphviz(block, path=tmp_path / "net.dot")
    subprocess.run(["dot", "-Tsvg", tmp_path / "net.dot", "-o", tmp_path / "net.svg"], check=True, timeout=300)


def test_run_fast_nan_inf_debug_names_the_operator():
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[-1], dtype="float32", is_data=True)
    block.append_op("log", {"X": "x"}, {"Out": "y"})
    exe = fluid.Executor(fluid.CPUPlace())
    debugger.prepare_fast_nan_inf_debug(fluid.default_main_program())

    def run(value):
        feed = {"x": np.array([value], "float32")}
        return debugger.run_fast_nan_inf_debug(exe, feed=feed, fetch_list=["y"])

    assert run(1.0)[0] == 0.0
    with pytest.raises(errors.OpError, match="operator log gave a value that is not finite"):
        run(-1.0)
    assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": False}
