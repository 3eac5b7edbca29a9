"""Descriptions of programs, as scripts read them: `var.desc.type()`, `program.desc.block(0)`."""

import numpy as np
import pytest

import jfluid as fluid
from jfluid import core, debugger, errors
from jfluid.ir import framework_pb2 as pb


@pytest.fixture
def image():
    image = fluid.data("image", [None, 3, 8], dtype="float32", lod_level=1)
    fluid.layers.fc(image, 2, param_attr="weights", bias_attr=False, num_flatten_dims=2)
    return image


def test_variable_describes_itself(image):
    desc = image.desc
    assert (desc.name(), desc.shape(), desc.lod_level()) == ("image", [-1, 3, 8], 1)
    assert desc.type() == core.VarDesc.VarType.LOD_TENSOR
    assert desc.dtype() == core.VarDesc.VarType.FP32
    assert desc.need_check_feed() and not desc.persistable()
    weights = image.block.desc.find_var(b"weights")
    assert weights.persistable() and weights.get_shape() == [8, 2]
    message = pb.VarDesc.FromString(desc.serialize_to_string())
    assert list(message.type.lod_tensor.tensor.dims) == [-1, 3, 8]


def test_what_is_set_on_a_description_is_seen_on_the_variable(image):
    block, desc = image.block, image.desc
    before = block.program.fingerprint
    desc.set_shape([4, 3, 8])
    desc.set_dtype(core.VarDesc.VarType.FP64)
    desc.set_lod_level(0)
    desc.set_persistable(True)
    desc.set_need_check_feed(False)
    desc.set_type(core.VarDesc.VarType.SELECTED_ROWS)
    desc.set_name("picture")
    assert (image.shape, image.dtype, image.lod_level) == ((4, 3, 8), core.VarDesc.VarType.FP64, 0)
    assert image.persistable and not image.need_check_feed
    assert image.type == core.VarDesc.VarType.SELECTED_ROWS
    assert block.ops[0].input("X") == ["picture"] and block.program.fingerprint != before


def test_block_and_program_describe_themselves(image):
    program = image.block.program
    desc = program.desc
    block = desc.block(0)
    assert (desc.num_blocks(), block.id, block.parent, block.op_size()) == (1, 0, -1, 1)
    assert block.op(0).type() == "mul"
    assert [v.name() for v in block.all_vars()] == list(program.global_block().vars)
    assert block.has_var("image") and block.has_var_recursive("image")
    assert block.find_var("other") is None and block.find_var_recursive("other") is None
    assert block.var("other").name() == "other" and program.global_block().has_var("other")
    assert pb.BlockDesc.FromString(block.serialize_to_string()).ops[0].type == "mul"
    assert desc.serialize_to_string() == program.serialize_to_string()
    assert debugger.pprint_program_codes(desc) == debugger.pprint_program_codes(program)
    assert debugger.pprint_block_codes(block) == debugger.pprint_block_codes(image.block)


def test_targets_of_a_program_that_was_saved(image, tmp_path):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    out = fluid.layers.scale(image, 2.0)
    fluid.io.save_inference_model(str(tmp_path), ["image"], [out], exe)
    loaded, _, (target,) = fluid.io.load_inference_model(str(tmp_path), exe)
    assert loaded.desc.get_feed_target_names() == ["image"]
    assert loaded.desc.get_fetch_target_names() == [target.name]


def test_removed_attributes_have_their_defaults_again(image):
    op = image.block.ops[0]
    assert op.attr("x_num_col_dims") == 2
    op._remove_attr("x_num_col_dims")
    image.block._sync_with_cpp()
    image.block.program._sync_with_cpp()
    assert op.attr("x_num_col_dims") == 1
    op._remove_attr("no_such_attribute")


def test_printed_variables_and_operators_are_messages(image):
    assert str(image) == image.to_string(True) and 'name: "image"' in f"{image}"
    assert repr(image) == "<Variable image: FP32 [-1, 3, 8]>"
    op = image.block.ops[0]
    assert str(op) == op.to_string(True) and 'type: "mul"' in str(op)


def test_numbers_in_a_scope():
    variable = fluid.Scope().var("count")
    variable.set_int(3)
    assert variable.is_int() and variable.get_int() == 3
    with pytest.raises(errors.UninitializedError, match="count holds 3 and no float"):
        variable.get_float()
    variable.set_float(0.5)
    assert variable.is_float() and variable.get_float() == 0.5
    with pytest.raises(errors.UninitializedError, match=r"count holds 0.5 and no integer"):
        variable.get_int()


def test_descriptions_and_arrays_begin_empty():
    desc = core.ProgramDesc()
    assert desc.num_blocks() == 1 and desc.block(0).op_size() == 0
    array = fluid.Scope().var("words").get_lod_tensor_array()
    array.append(fluid.create_lod_tensor(np.ones((2, 1)), [[2]], fluid.CPUPlace()))
    assert len(array) == 1 and array[0].recursive_sequence_lengths() == [[2]]
