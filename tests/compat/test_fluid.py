"""Private and deep names of Fluid that scripts import."""

import collections
import importlib
import io
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from jfluid.annotations import deprecated
from jfluid.contrib.reader import distributed_batch_reader
from jfluid.data_feeder import check_dtype, check_variable_and_dtype, convert_dtype
from jfluid.default_scope_funcs import enter_local_scope, get_cur_scope, leave_local_scope
from jfluid.framework import (
    OpProtoHolder,
    _current_expected_place,
    _get_var,
    convert_np_dtype_to_dtype_,
    dtype_is_floating,
    grad_var_name,
)
from jfluid.reader import keep_data_loader_order
from jfluid.wrapped_decorator import signature_safe_contextmanager

import jfluid as fluid
from jfluid import default_scope_funcs, errors, layers, surface
from jfluid.compat.fluid import transpiler_details
from jfluid.executor import _fetch_var, as_numpy, has_feed_operators, has_fetch_operators
from jfluid.layers import utils
from jfluid.layers.learning_rate_scheduler import _decay_step_counter
from jfluid.transpiler import details

Pair = collections.namedtuple("Pair", "x y")
NESTED = [1, {"b": (2, 3), "a": Pair(4, [5])}, "text"]


def test_structures():
    assert utils.flatten(NESTED) == [1, 4, 5, 2, 3, "text"] and utils.flatten(7) == [7]
    again = utils.pack_sequence_as(NESTED, [10, 40, 50, 20, 30, "t"])
    assert again == [10, {"b": (20, 30), "a": Pair(40, [50])}, "t"]
    assert type(again[1]["a"]) is Pair and [*again[1]] == ["b", "a"]
    assert utils.map_structure(lambda a, b: a + b, [1, (2,)], [10, (20,)]) == [11, (22,)]
    assert utils.map_structure(str, 3) == "3" and utils.copy_mutable_vars(NESTED) == NESTED
    assert utils.is_sequence({}) and not utils.is_sequence("ab") and utils.hold_mutable_vars(NESTED)
    utils.assert_same_structure(NESTED, again)
    for other, error in (
        ([1, 2], ValueError),
        ([1, {"b": [2, 3], "a": Pair(4, [5])}, ""], TypeError),
    ):
        with pytest.raises(error):
            utils.assert_same_structure(NESTED, other)
    with pytest.raises(ValueError, match="6 entries, flat_sequence 2"):
        utils.pack_sequence_as(NESTED, [1, 2])


def test_convert_to_list():
    assert utils.convert_to_list(3, 2, "stride") == [3, 3] == utils.convert_to_list((3, 3), 2, "stride")
    for wrong in ([1], "ab", None, ["a", 1]):
        with pytest.raises(ValueError, match="stride: expected a number of type int, or 2 such numbers"):
            utils.convert_to_list(wrong, 2, "stride")


def test_schedules_of_scripts():
    with fluid.default_main_program()._lr_schedule_guard():
        step = _decay_step_counter()
    assert step.dtype == fluid.core.VarDesc.VarType.FP32
    assert _get_var("@LR_DECAY_COUNTER@") is fluid.default_main_program().global_block().var("@LR_DECAY_COUNTER@")
    with pytest.raises(TypeError, match="expected a Program, found str"):
        _get_var("x", "main")


def test_declarations_of_operators():
    proto = OpProtoHolder.instance().get_op_proto("mul")
    assert [slot.name for slot in proto.inputs] == ["X", "Y"] and proto.type == "mul"
    assert {a.name: a.default for a in proto.attrs if not a.generated} == {
        "x_num_col_dims": 1,
        "y_num_col_dims": 1,
    }
    assert OpProtoHolder.instance().get_op_proto("sum").inputs[0].duplicable
    assert "x and y" in proto.comment
    with pytest.raises(ValueError, match="'nothing'"):
        OpProtoHolder.instance().get_op_proto("nothing")


def test_parameters_on_the_cpu():
    from jfluid.initializer import force_init_on_cpu, init_on_cpu

    with init_on_cpu():
        assert not force_init_on_cpu()


def test_names_and_types():
    kinds = fluid.core.VarDesc.VarType
    assert grad_var_name("w") == "w@GRAD" and convert_np_dtype_to_dtype_("int64") == kinds.INT64
    assert dtype_is_floating("float16") and not dtype_is_floating(kinds.INT32)
    assert type(_current_expected_place()) is fluid.CPUPlace
    assert convert_dtype(kinds.FP32) == convert_dtype(np.float32) == "float32"
    with pytest.raises(ValueError, match="complex64"):
        convert_dtype("complex64")
    x = layers.data("x", [2])
    check_variable_and_dtype(x, "x", ["float32"], "mine")
    with pytest.raises(TypeError, match="mine, x: expected Variable, found int"):
        check_variable_and_dtype(3, "x", ["float32"], "mine")
    with pytest.raises(TypeError, match="mine, x: expected dtype int64, found float32"):
        check_dtype(x.dtype, "x", "int64", "mine")


def test_scopes_of_a_thread():
    outer = get_cur_scope()
    default_scope_funcs.var("a")
    enter_local_scope()
    assert get_cur_scope() is not outer and default_scope_funcs.find_var("a") is not None
    leave_local_scope()
    seen = []
    default_scope_funcs.scoped_function(lambda: seen.append(get_cur_scope()))
    thread = threading.Thread(target=lambda: seen.append(default_scope_funcs.find_var("a")))
    thread.start()
    thread.join()
    assert seen[0] is not outer and seen[1] is None and get_cur_scope() is outer
    with pytest.raises(errors.ProgramError, match="no scope was entered"):
        leave_local_scope()


def test_values_of_scopes():
    tensor = fluid.Scope().var("x").get_tensor()
    assert as_numpy(tensor) is None
    number = fluid.executor._as_lodtensor(3.5, fluid.CPUPlace(), "int64")
    assert np.array(number).tolist() == [3] and number._dtype() == fluid.core.VarDesc.VarType.INT64
    assert fluid.executor._as_lodtensor(np.ones((2, 1)), fluid.CPUPlace()).shape() == [2, 1]
    with pytest.raises(errors.FeedError, match="expected a LoDTensor for a list"):
        fluid.executor._as_lodtensor([1.0], fluid.CPUPlace(), "float32")
    with pytest.raises(errors.FeedError, match="expected a dtype for a number"):
        fluid.executor._as_lodtensor(1.0, fluid.CPUPlace())
    assert fluid.backward._append_grad_suffix_("w") == "w@GRAD"
    fluid.global_scope().var("x").get_tensor().set(np.ones((2, 1), np.float32))
    assert float(_fetch_var("x").sum()) == 2.0 and _fetch_var("x", return_numpy=False).shape() == [
        2,
        1,
    ]
    assert fluid.executor.as_numpy([_fetch_var("x", return_numpy=False)])[0].shape == (2, 1)
    with pytest.raises(errors.FetchError, match="sequences"):
        as_numpy(fluid.create_lod_tensor(np.ones((2, 1)), [[1, 1]], fluid.CPUPlace()))
    with pytest.raises(errors.UninitializedError, match="no variable y"):
        _fetch_var("y")


def test_feed_and_fetch_operators():
    x = fluid.data("x", [None, 2])
    y = layers.scale(x, 2.0)
    program = fluid.default_main_program()
    assert not has_feed_operators(program.global_block(), {"x": 1}, "feed")
    fluid.io.prepend_feed_ops(program, ["x"])
    fluid.io.append_fetch_ops(program, [y.name])
    assert has_feed_operators(program.global_block(), {"x": 1}, "feed")
    assert has_fetch_operators(program.global_block(), [y], "fetch")
    with pytest.raises(errors.FetchError, match=r"\['x'\] are fed, not \['z'\]"):
        has_feed_operators(program.global_block(), {"z": 1}, "feed")


def test_parameters_by_name():
    w = layers.create_parameter([2], "float32", name="w")
    counter = layers.create_global_var([1], 0.0, "float32", persistable=True)
    fluid.global_scope().var("w").get_tensor().set(np.ones(2, np.float32))
    exe = fluid.Executor(fluid.CPUPlace())
    assert fluid.io.get_parameter_value_by_name("w", exe).tolist() == [1, 1]
    assert fluid.io.is_belong_to_optimizer(counter) and not fluid.io.is_belong_to_optimizer(w)
    with pytest.raises(TypeError, match="expected a Parameter"):
        fluid.io.get_parameter_value(counter, exe)


def test_programs_as_text(capsys):
    y = layers.scale(fluid.data("x", [None, 2]), 2.0)
    program, block = fluid.default_main_program(), fluid.default_main_program().global_block()
    details.program_to_code(program, skip_op_callstack=True)
    file = io.StringIO()
    details.block_to_code(block, 0, fout=file)
    assert "scale" in capsys.readouterr().out and "scale" in file.getvalue()
    assert details.find_op_by_output_arg(block, y.name, reverse=True) == 0
    assert details.find_op_by_input_arg(block, y.name) == -1
    details.delete_ops(block, list(block.ops))
    assert block.ops == []
    with pytest.raises(errors.UnsupportedError, match="skip_op_callstack=False"):
        details.program_to_code(program, skip_op_callstack=False)


def test_servers_are_waited_for(capsys, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
        clock = SimpleNamespace(sleep=lambda seconds: probe.listen())
        monkeypatch.setattr(transpiler_details, "time", clock)
        details.wait_server_ready([endpoint])
    assert capsys.readouterr().err == f"waiting for servers: {endpoint}\n"
    with pytest.raises(errors.ServerError, match="expected a list of host:port"):
        details.wait_server_ready(endpoint)


def test_batches_of_one_trainer(monkeypatch):
    def batches():
        return iter(range(7))

    assert [*distributed_batch_reader(batches)()] == [*range(7)]
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "3")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    assert [*distributed_batch_reader(batches)()] == [1, 4]
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    with pytest.raises(errors.ProgramError, match="PADDLE_TRAINER_ID is 3 of PADDLE_TRAINERS_NUM=3"):
        distributed_batch_reader(batches)


def test_order_of_loaders():
    assert keep_data_loader_order() is True
    keep_data_loader_order(False)
    assert keep_data_loader_order() is False
    keep_data_loader_order(True)
    with pytest.raises(TypeError):
        keep_data_loader_order(1)


def test_decorators():
    @signature_safe_contextmanager
    def guard(what):
        """Yields it."""
        yield what

    with guard(3) as what:
        assert what == 3 and guard.__name__ == "guard" and guard.__doc__ == "Yields it."

    @deprecated(since="1.0", instead="new")
    def old():
        return 1

    with pytest.warns(DeprecationWarning, match=r"old is deprecated since 1\.0; use new"):
        assert old() == 1


def test_what_needs_what_was_never_published():
    from jfluid.incubate.fleet.parameter_server.pslib import fleet

    with pytest.raises(errors.UnsupportedError, match="PSLib is Baidu's own"):
        fleet.init()


# Imported by published scripts, though private or deep.
DEEP = """
    contrib.slim.graph.GraphWrapper
    annotations.deprecated clip.ClipByGlobalNorm contrib.reader.distributed_batch_reader
    core.AnalysisConfig core.EOFException core.LoDTensor core.PaddleDType core.PaddleTensor
    core.PassVersionChecker core.Scope core.VarDesc core.ZeroCopyTensor core.create_paddle_predictor
    core.get_cuda_device_count core.op_proto_and_checker_maker data_feeder.convert_dtype
    default_scope_funcs.get_cur_scope executor._fetch_var executor.as_numpy executor.global_scope
    framework.Block framework.OpProtoHolder framework.Operator framework.Parameter
    framework.Variable framework._current_expected_place framework._get_var framework.core
    framework.default_startup_program framework.unique_name
    incubate.fleet.base.fleet_base.DistributedOptimizer initializer.init_on_cpu
    core.BackwardStrategy core.VarBase data_feeder.in_dygraph_mode
    dygraph.backward_strategy.BackwardStrategy dygraph.base.framework dygraph.base.to_variable
    dygraph.checkpoint.save_dygraph dygraph.container.Sequential dygraph.jit.declarative dygraph.layers.Layer
    dygraph.learning_rate_scheduler.LearningRateDecay dygraph.nn.Conv2D dygraph.nn.ParamAttr
    dygraph.nn.layers dygraph.parallel.Env dygraph.parallel.prepare_context dygraph.tracer.Tracer
    framework.ParamBase framework._dygraph_tracer framework.in_dygraph_mode
    load_dygraph save_dygraph
    io._load_program_scope io.get_parameter_value io.is_persistable layer_helper.LayerHelper
    layers.control_flow.DynamicRNN layers.control_flow.StaticRNN
    layers.layer_function_generator.templatedoc
    layers.learning_rate_scheduler._decay_step_counter layers.nn.LayerHelper layers.ops.relu
    layers.device.get_places layers.rnn.RNNCell layers.tensor.fill_constant layers.utils.convert_to_list
    layers.utils.flatten layers.utils.is_sequence layers.utils.map_structure
    layers.utils.pack_sequence_as log_helper.get_logger optimizer.Optimizer optimizer.framework
    proto.framework_pb2.VarType reader.keep_data_loader_order regularizer.append_regularization_ops
    transpiler.details.program_to_code transpiler.details.wait_server_ready
    wrapped_decorator.signature_safe_contextmanager wrapped_decorator.wrap_decorator
""".split()
# The same of what is not in this release.
ABSENT = """
    contrib.slim.core.Compressor
    incubate.fleet.parameter_server.pslib.PSLib
    transpiler.geo_sgd_transpiler.GeoSgdTranspiler
""".split()


@pytest.mark.parametrize("name", DEEP + ABSENT)
def test_names_that_scripts_import(name):
    module, _, last = f"jfluid.{name}".rpartition(".")
    found = getattr(importlib.import_module(module), last)
    assert isinstance(found, surface.Missing) == (name in ABSENT)
    if name in ABSENT:
        with pytest.raises(errors.UnsupportedError, match=rf"fluid\..*{last}: "):
            found()


@pytest.mark.parametrize(
    "op_type, attrs, slots",
    [
        ("mean_grad", {}, {"X"}),
        ("elementwise_add_grad", {}, {"X", "Y"}),
        ("mul", {}, set()),
        ("lookup_table_grad", {"is_sparse": True}, {"W"}),
        ("sequence_conv_grad", {"paddingTrainable": False}, {"PaddingData"}),
        ("sequence_conv_grad", {"paddingTrainable": True}, set()),
    ],
)
def test_inputs_whose_values_are_not_needed(op_type, attrs, slots):
    assert fluid.core.infer_no_need_buffer_slots(op_type, {"X": ["x"]}, {}, attrs) == slots


def test_inputs_of_unknown_operators():
    with pytest.raises(fluid.core.EnforceNotMet, match="nope"):
        fluid.core.infer_no_need_buffer_slots("nope", {}, {}, {})


def test_array_of_feeds():
    scope, tensor = fluid.Scope(), fluid.LoDTensor()
    tensor.set(np.ones((2, 3), "float32"), fluid.CPUPlace())
    fluid.core.set_feed_variable(scope, tensor, "feed", 2)
    feeds = scope.find_var("feed").get_lod_tensor_array()
    assert len(feeds) == 3 and feeds[2] is tensor
    fluid.core.set_feed_variable(scope, tensor, "feed", 0)
    assert len(feeds) == 3 and feeds[0] is tensor
