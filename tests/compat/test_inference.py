"""Fluid's inference interface: a saved model gives what the Executor gives, in threads by clones."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import core, errors, layers

X = np.arange(8, dtype=np.float32).reshape(2, 4)
FUSED = Path(__file__).parents[1] / "golden" / "models"
IDS, LOD = np.array([[1], [2], [3]], np.int64), [[0, 1, 3]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(folder, what the Executor gives): rows and sequences in, probabilities and classes out."""
    folder = str(tmp_path_factory.mktemp("model"))
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
    ):
        x = fluid.data("x", [None, 4])
        ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        pooled = layers.sequence_pool(layers.embedding(ids, [10, 3]), "sum")
        y = layers.fc([x, pooled], 2, act="softmax")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        targets = [y, layers.argmax(y, 1)]
        fluid.io.save_inference_model(folder, ["x", "ids"], targets, exe)
        fluid.io.save_inference_model(f"{folder}/one", ["x", "ids"], targets, exe, None, "m", "p")
        feed = {"x": X, "ids": fluid.core.LoDTensor(IDS, LOD)}
        return folder, exe.run(feed=feed, fetch_list=targets)


@pytest.fixture(scope="module")
def predictor(model):
    """One for all tests, so that the model is compiled once."""
    config = core.AnalysisConfig(model[0])
    config.disable_gpu()
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    return core.create_paddle_predictor(config)


def same(found, model):
    np.testing.assert_allclose(found[0], model[1][0], rtol=1e-6)
    return found[1].tolist() == model[1][1].tolist()


def test_tensors_in_order(model, predictor):
    ids = core.PaddleTensor(IDS)
    ids.lod = LOD
    outputs = predictor.clone().run([core.PaddleTensor(X, "whatever"), ids])
    assert same([out.as_ndarray() for out in outputs], model)
    assert [out.name for out in outputs] == predictor.get_output_names()
    assert outputs[0].shape == [2, 2] and outputs[0].dtype == core.PaddleDType.FLOAT32
    assert outputs[1].data.int64_data() == model[1][1].tolist() and outputs[1].lod == []
    assert outputs[0].data.tolist("float32") == outputs[0].data.float_data()
    assert outputs[0].data.length() == 16 and core.paddle_dtype_size(outputs[1].dtype) == 8


def test_tensors_by_name(model, predictor):
    config = core.AnalysisConfig(f"{model[0]}/one/m", f"{model[0]}/one/p")
    config.switch_specify_input_names(True)
    other = core.create_paddle_predictor(config)
    assert other.get_input_names() == ["x", "ids"] and config.model_dir() == ""
    tensors = [core.PaddleTensor(IDS, "ids", LOD), core.PaddleTensor(X, "x", copy=False)]
    assert same([out.as_ndarray() for out in other.run(tensors)], model)
    with pytest.raises(errors.FeedError, match=r"with the names \('x', 'ids'\), found \['x', 'y'\]"):
        other.run([core.PaddleTensor(X, "x"), core.PaddleTensor(X, "y")])


def test_the_only_input_needs_no_name(tmp_path):
    x = fluid.data("x", [None, 4])
    executor = fluid.Executor(fluid.CPUPlace())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [fluid.layers.scale(x, 2.0)], executor)
    config = core.AnalysisConfig(str(tmp_path))
    config.switch_specify_input_names(True)
    predictor = core.create_paddle_predictor(config)
    for name in ("", "x"):
        (found,) = predictor.run([core.PaddleTensor(X, name)])
        np.testing.assert_array_equal(found.as_ndarray(), 2 * X)
    with pytest.raises(errors.FeedError, match=r"with the names \('x',\), found \['y'\]"):
        predictor.run([core.PaddleTensor(X, "y")])


def run(predictor):
    predictor.get_input_tensor("x").copy_from_cpu(X)
    ids = predictor.get_input_tensor("ids")
    ids.copy_from_cpu(IDS)
    ids.set_lod(LOD)
    assert predictor.zero_copy_run() is True
    return [predictor.get_output_tensor(n).copy_to_cpu() for n in predictor.get_output_names()]


def test_inputs_and_outputs_by_name(model, predictor):
    one = predictor.clone()
    assert one.get_input_tensor("x").shape() == [0]
    assert same(run(one), model)
    found = one.get_output_tensor(one.get_output_names()[1])
    assert found.type() == core.PaddleDType.INT64 and found.shape() == [2] and found.lod() == []
    assert one.get_input_tensor("ids").lod() == LOD
    assert one.get_input_tensor_shape() == {"x": [-1, 4], "ids": [-1, 1]}
    with pytest.raises(errors.FetchError, match="nothing has run"):
        predictor.clone().get_output_tensor(one.get_output_names()[0]).copy_to_cpu()


def test_threads_have_clones(model, predictor):
    found = []

    def work():
        clone = predictor.clone()
        found.extend(same(run(clone), model) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_a_model_of_bytes_and_the_older_config(model):
    folder = Path(model[0], "one")
    program, parameters = (folder / "m").read_bytes(), (folder / "p").read_bytes()
    config = core.AnalysisConfig()
    config.set_model_buffer(program, len(program), parameters, len(parameters))
    assert config.model_from_memory()
    predictor = core.create_paddle_predictor(core.AnalysisConfig(config))
    assert fluid.Program.parse_from_string(predictor.get_serialized_program()).num_blocks == 1
    native = core.NativeConfig()
    native.model_dir = model[0]
    assert core.create_paddle_predictor(native).get_input_names() == predictor.get_input_names()


def test_a_compiled_program_runs_the_model_of_a_config(model):
    config = core.NativeConfig()
    config.model_dir = model[0]
    program = fluid.Program()
    compiled = fluid.CompiledProgram(program)
    assert compiled._with_inference_optimize(config) is compiled and compiled._program is program
    exe = fluid.Executor(fluid.CPUPlace())
    ids = core.PaddleTensor(IDS)
    ids.lod = LOD
    found = exe.run(compiled, feed=[core.PaddleTensor(X), ids])
    assert same([tensor.as_ndarray() for tensor in found], model)
    with pytest.raises(errors.ProgramError, match="has a model already"):
        compiled._with_inference_optimize(config)
    with pytest.raises(errors.ProgramError, match="has a model already"):
        compiled.with_data_parallel()
    with pytest.raises(TypeError, match="expected a NativeConfig or AnalysisConfig, found str"):
        fluid.CompiledProgram(program)._with_inference_optimize("config")


def test_the_model_is_not_in_the_global_scope(model, predictor):
    assert fluid.global_scope().local_var_names() == []


def test_wrong_models(model, tmp_path):
    def refused(match, *files, error=errors.FileFormatError):
        with pytest.raises(error, match=match):
            core.create_paddle_predictor(core.AnalysisConfig(*files))

    refused("names no model")
    refused("there is no such folder", str(tmp_path / "nothing"))
    refused("one folder", f"{model[0]}/one/m", f"{tmp_path}/p")
    shutil.copytree(f"{model[0]}/one", tmp_path / "cut")
    (tmp_path / "cut" / "p").write_bytes(b"\0" * 7)
    refused("cut/p", f"{tmp_path}/cut/m", f"{tmp_path}/cut/p")
    with pytest.raises(TypeError, match="expected an AnalysisConfig, found str"):
        core.create_paddle_predictor(model[0])


def test_wrong_inputs(predictor):
    one = predictor.clone()
    with pytest.raises(errors.FeedError, match="expected 2 inputs"):
        one.run([core.PaddleTensor(X)])
    with pytest.raises(errors.FeedError, match="float64; convert it with astype"):
        core.PaddleTensor(X.astype(np.float64))
    with pytest.raises(errors.FeedError, match="no input idz"):
        one.get_input_tensor("idz")
    with pytest.raises(errors.FetchError, match="no output x"):
        one.get_output_tensor("x")
    tensor = core.PaddleTensor(X)
    tensor.shape = [3, 4]
    with pytest.raises(errors.FeedError, match=r"8 numbers do not have the shape \[3, 4\]"):
        tensor.as_ndarray()
    with pytest.raises(errors.FeedError, match="feed"):
        one.zero_copy_run()


def test_settings_of_other_engines():
    config = core.AnalysisConfig("model")
    config.enable_mkldnn()
    config.pass_builder().delete_pass("conv_bn_fuse_pass")
    assert config.pass_builder().all_passes() == []
    assert not config.mkldnn_enabled() and not config.use_gpu()
    with pytest.raises(errors.UnsupportedError, match="TensorRT"):
        config.enable_tensorrt_engine(max_batch_size=1)
    config.enable_use_gpu(100, 1)
    assert config.use_gpu() and config.gpu_device_id() == 1
    with pytest.raises(errors.PlaceError):
        core.create_paddle_predictor(config)


def test_one_element_is_a_number():
    tensor = core.PaddleTensor(np.array([0.5], np.float32))
    assert float(tensor.as_ndarray()) == 0.5


def test_buffers():
    tensor = core.PaddleTensor()
    tensor.data, tensor.shape = core.PaddleBuf([1.0, 2.0]), [2]
    assert tensor.as_ndarray().tolist() == [1, 2] and tensor.data.length() == 8
    tensor.data.reset(np.array([3, 4], np.int32))
    tensor.dtype = core.PaddleDType.INT32
    assert str(tensor.dtype) == f"{tensor.dtype}" == "PaddleDType.INT32"
    assert tensor.as_ndarray().tolist() == tensor.data.int32_data() == [3, 4]
    assert core.paddle_tensor_to_bytes(tensor) == np.array([3, 4], np.int32).tobytes()
    assert core.PaddleBuf(0).empty()
    with pytest.raises(errors.FeedError, match="no whole number"):
        core.PaddleBuf(7).int64_data()


def test_the_rest_of_core():
    assert core.AttrType.LONGS == 11 and not core.PassVersionChecker.IsCompatible("fc_fuse_pass")
    assert core._Scope is fluid.Scope and isinstance(fluid.CPUPlace(), core.Place)
    place = core.Place()
    with pytest.raises(errors.PlaceError, match="call set_place"):
        place.is_cpu_place()
    place.set_place(fluid.CPUPlace())
    assert place.is_cpu_place() and not place.is_gpu_place() and place._equals(fluid.CPUPlace())
    assert fluid.Executor(place).place == fluid.CPUPlace()
    for told, what in ((place, "cpu"), (fluid.CPUPlace(), place)):
        with pytest.raises(errors.PlaceError, match="expected a place"):
            told.set_place(what)
    before = core.globals()["FLAGS_check_nan_inf"]
    core.globals()["FLAGS_check_nan_inf"] = True
    assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": True}
    core.globals()["FLAGS_check_nan_inf"] = before
    assert "FLAGS_check_nan_inf" in core.globals()
    assert not isinstance(3, core.VarBase)


@pytest.mark.parametrize("name", ["fused_image", "fused_image_onednn", "fused_text"])
def test_models_that_fluids_passes_have_fused_give_what_fluid_gives(name):
    folder = FUSED / name
    expected = np.load(folder / "expected.npz")
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(
            str(folder), exe, model_filename="model", params_filename="params"
        )
        assert {"fc", "fusion_repeated_fc_relu", "fusion_gru"} & {op.type for op in program.global_block().ops}
        x = expected["x"]
        value = x.astype("float32") if x.ndim == 4 else fluid.core.LoDTensor(x, [[0, 3, 4, 7]])
        (found,) = exe.run(program, feed={feeds[0]: value}, fetch_list=targets)
    np.testing.assert_allclose(found, expected["out"], rtol=1e-5, atol=1e-6)
