"""fluid.io against files that the real Fluid wrote, and against damaged and hostile ones."""

import io as streams
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, io
from jfluid.files.pickled import load_arrays, save_arrays
from jfluid.files.storage import atomic_write
from jfluid.files.tensor_format import Stored, load_tensors, save_tensors, write_tensor
from jfluid.ir import framework_pb2 as pb
from jfluid.ir.types import VarType

MODELS = Path(__file__).parents[1] / "golden" / "models"
TENSORS = {t: np.arange(6).reshape(2, 3).astype(t) for t in ("int8", "int32", "int64", "float32", "float64")}
TENSORS["one"] = np.array([2.5], "float32")
TENSORS["ragged"] = np.arange(5, dtype="int64").reshape(5, 1)


@pytest.fixture
def exe():
    return fluid.Executor(fluid.CPUPlace())


def held(name):
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def state_program():
    """The training program of the golden model, its parameters made Parameters again."""
    program = fluid.Program.parse_from_string((MODELS / "state" / "net.pdmodel").read_bytes())
    block = program.global_block()
    for name in load_arrays(MODELS / "state" / "net.pdparams"):
        var = block.vars.pop(name)
        block.create_parameter(name=name, shape=var.shape, dtype=var.dtype)
    return program


# Tensor files
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_fluid_are_read_and_written_byte_for_byte(name, tmp_path):
    (stored,) = load_tensors(MODELS / "tensors" / name, [name])
    assert stored.value.dtype == TENSORS[name].dtype and np.array_equal(stored.value, TENSORS[name])
    assert stored.lod == ([[0, 2, 3], [0, 1, 2, 5]] if name == "ragged" else [])
    save_tensors(tmp_path / name, [stored])
    assert (tmp_path / name).read_bytes() == (MODELS / "tensors" / name).read_bytes()


def test_selected_rows_of_fluid(tmp_path):
    (stored,) = load_tensors(MODELS / "tensors" / "sparse", ["sparse"], frozenset(["sparse"]))
    assert stored.rows.tolist() == [3, 7, 3] and stored.height == 10
    assert np.array_equal(stored.value, np.arange(6, dtype="float32").reshape(3, 2))
    save_tensors(tmp_path / "sparse", [stored])
    assert (tmp_path / "sparse").read_bytes() == (MODELS / "tensors" / "sparse").read_bytes()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "bfloat16"])
def test_element_types_that_fluid_reads_but_does_not_save(dtype, tmp_path):
    from jfluid.ir.types import np_dtype

    value = (np.arange(6).reshape(3, 2) % 2).astype(np_dtype(dtype))
    save_tensors(tmp_path / "t", [Stored(value), Stored(value[:0])])
    first, second = load_tensors(tmp_path / "t", ["a", "b"])
    assert first.value.dtype == value.dtype and np.array_equal(first.value, value) and second.value.shape == (0, 2)


def test_every_truncation_and_any_addition_is_refused(tmp_path):
    whole = (MODELS / "tensors" / "ragged").read_bytes()
    file = tmp_path / "t"
    for n in range(len(whole)):
        file.write_bytes(whole[:n])
        with pytest.raises(errors.FileFormatError, match=r"t, variable words: truncated"):
            load_tensors(file, ["words"])
    file.write_bytes(whole + b"\0")
    with pytest.raises(errors.FileFormatError, match=r"variable words: oversized: 1 bytes"):
        load_tensors(file, ["words"])
    with pytest.raises(errors.FileFormatError, match="No such file"):
        load_tensors(tmp_path / "none", ["words"])


def test_any_changed_byte_is_read_or_refused(tmp_path):
    whole = (MODELS / "tensors" / "ragged").read_bytes()
    for i in range(len(whole)):
        for value in (0x00, 0x7F, 0xFF):
            (tmp_path / "t").write_bytes(whole[:i] + bytes([value]) + whole[i + 1 :])
            try:
                load_tensors(tmp_path / "t", ["words"])
            except errors.FileFormatError as e:
                assert "variable words" in str(e)


@pytest.mark.parametrize("dims", [[2**40], [2**62, 2**62, 4], [-1, 3], [0, 2**62], [0, 2**40, 2**40], [1] * 80])
def test_impossible_shapes_are_refused_before_memory_is_taken(dims, tmp_path):
    desc = pb.VarType.TensorDesc(data_type=VarType.FP32, dims=dims).SerializeToString()
    (tmp_path / "t").write_bytes(struct.pack("<IQIi", 0, 0, 0, len(desc)) + desc + b"1234")
    with pytest.raises(errors.FileFormatError, match="variable w"):
        load_tensors(tmp_path / "t", ["w"])


def test_other_versions_and_kinds_are_refused(tmp_path):
    for content, text in [
        (struct.pack("<I", 7) + b"\0" * 40, "unknown version 7"),
        (struct.pack("<IQ", 0, 2**60), "impossible number of lod levels"),
        (struct.pack("<IQQ", 0, 1, 2**60), "truncated"),
        (struct.pack("<IQIi", 0, 0, 0, -5), "impossible length"),
    ]:
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(errors.FileFormatError, match=text):
            load_tensors(tmp_path / "t", ["w"])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "f") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]
    os.chmod(tmp_path / "f", 0o640)
    with atomic_write(tmp_path / "f") as file:
        file.write(b"new")
    assert (tmp_path / "f").read_bytes() == b"new" and (tmp_path / "f").stat().st_mode & 0o777 == 0o640


# Inference models
@pytest.mark.parametrize("files", [("separate",), ("combined", "model", "params")])
def test_a_model_of_fluid_gives_fluids_outputs(files, exe):
    expected = np.load(MODELS / "expected.npz")
    program, feeds, fetches = io.load_inference_model(str(MODELS / files[0]), exe, *files[1:])
    assert feeds == ["image"] and [v.name.startswith("save_infer_model/scale_0.tmp_") for v in fetches] == [True]
    (got,) = exe.run(program, feed={"image": expected["image"]}, fetch_list=fetches)
    np.testing.assert_allclose(got, expected["probability"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("params", [None, "params"])
def test_a_saved_model_comes_back(params, exe, tmp_path):
    expected = np.load(MODELS / "expected.npz")
    program, _, fetches = io.load_inference_model(str(MODELS / "separate"), exe)
    probability = program.global_block().var("fc_0.tmp_2")
    before = program.serialize_to_string()
    names = io.save_inference_model(str(tmp_path / "m"), "image", probability, exe, program, params_filename=params)
    assert len(names) == 1 and names[0].startswith("save_infer_model/scale_0.tmp_") and names[0] != fetches[0].name
    assert program.serialize_to_string() == before
    assert sorted(os.listdir(tmp_path / "m")) == (
        ["__model__", "params"] if params else sorted(os.listdir(MODELS / "separate"))
    )
    source = MODELS / "combined" / "params" if params else MODELS / "separate" / "conv2d_0.w_0"
    assert (tmp_path / "m" / (params or "conv2d_0.w_0")).read_bytes() == source.read_bytes()
    with fluid.scope_guard(fluid.Scope()):
        again, feeds, targets = io.load_inference_model(str(tmp_path / "m"), exe, params_filename=params)
        types = [op.type for op in again.global_block().ops]
        assert types[0] == "feed" and types[-1] == "fetch" and feeds == ["image"] and [t.name for t in targets] == names
        (got,) = exe.run(again, feed={"image": expected["image"]}, fetch_list=targets)
    np.testing.assert_allclose(got, expected["probability"], rtol=1e-5, atol=1e-6)


def test_an_inference_model_is_pruned_and_in_test_form(exe, tmp_path):
    program = state_program()
    io.load(program, str(MODELS / "state" / "net"), exe)
    target = program.global_block().var("fc_0.tmp_2")
    io.save_inference_model(str(tmp_path), ["image"], [target], exe, program)
    assert sorted(os.listdir(tmp_path)) == sorted(os.listdir(MODELS / "separate"))
    model, _, fetches = io.load_inference_model(str(tmp_path), exe)
    golden, _, _ = io.load_inference_model(str(MODELS / "separate"), exe)
    assert [op.type for op in model.global_block().ops] == [op.type for op in golden.global_block().ops]
    assert all(op.attrs["is_test"] for op in model.global_block().ops if "is_test" in op.attrs)
    expected = np.load(MODELS / "expected.npz")
    (got,) = exe.run(model, feed={"image": expected["image"]}, fetch_list=fetches)
    np.testing.assert_allclose(got, expected["probability"], rtol=1e-5, atol=1e-6)
    io.save_inference_model(str(tmp_path / "only"), ["image"], [target], exe, program, program_only=True)
    assert os.listdir(tmp_path / "only") == ["__model__"]
    io.save_inference_model(str(tmp_path / "train"), ["image"], [target], exe, program, export_for_deployment=False)
    assert "__model__.main_program" in os.listdir(tmp_path / "train")
    assert "conv2d_0.w_0_moment1_0" in os.listdir(tmp_path / "train")
    # as Fluid's own books save what is to be trained further
    again = io.save_inference_model(str(tmp_path / "again"), [], [], exe, program, export_for_deployment=False)
    assert again == []
    assert sorted(os.listdir(tmp_path / "again")) == sorted(os.listdir(tmp_path / "train"))
    with pytest.raises(TypeError, match="target_vars"):
        io.save_inference_model(str(tmp_path / "none"), [], [], exe, program)


def test_wrong_arguments_of_save_inference_model(exe, tmp_path):
    program, _, fetches = io.load_inference_model(str(MODELS / "separate"), exe)
    with pytest.raises(errors.ProgramError, match=r"no variable imag \(did you mean image"):
        io.save_inference_model(str(tmp_path), ["imag"], fetches, exe, program)
    with pytest.raises(TypeError, match="target_vars"):
        io.save_inference_model(str(tmp_path), ["image"], ["fc_0.tmp_2"], exe, program)
    with pytest.raises(TypeError, match="main_program"):
        io.save_inference_model(str(tmp_path), ["image"], fetches, exe, "program")
    with pytest.raises(errors.ProgramError, match="none of the model's look-ups asks servers"):
        io.load_inference_model(str(MODELS / "separate"), exe, pserver_endpoints=["127.0.0.1:1"])
    assert os.listdir(tmp_path) == []


def copy_model(tmp_path, **changed):
    """The golden model with some files replaced; a value of None leaves the file out."""
    for file in (MODELS / "separate").iterdir():
        content = changed.get(file.name.replace(".", "_"), file.read_bytes())
        if content is not None:
            (tmp_path / file.name).write_bytes(content)
    return str(tmp_path)


def stream(value):
    buffer = streams.BytesIO()
    write_tensor(buffer, value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content, text",
    [
        (None, r"fc_0\.b_0: No such file"),
        (
            stream(np.zeros(3, "float32"))[:-1],
            r"fc_0\.b_0, variable fc_0\.b_0: truncated: float32\[3\] takes 12 bytes",
        ),
        (
            stream(np.zeros(3, "float32")) + b"junk",
            r"fc_0\.b_0, variable fc_0\.b_0: oversized: 4 bytes",
        ),
        (
            stream(np.zeros(4, "float32")),
            r"fc_0\.b_0, variable fc_0\.b_0: expected shape \[3\], the file holds \[4\]",
        ),
        (
            stream(np.zeros(3, "float64")),
            r"fc_0\.b_0, variable fc_0\.b_0: expected dtype float32, the file holds float64",
        ),
    ],
)
def test_damaged_parameters_are_refused_and_the_scope_stays(content, text, exe, tmp_path):
    folder = copy_model(tmp_path, fc_0_b_0=content)
    with pytest.raises(errors.FileFormatError, match=text):
        io.load_inference_model(folder, exe)
    assert fluid.global_scope().local_var_names() == []


def test_a_combined_file_of_another_program_is_refused(exe, tmp_path):
    program, _, _ = io.load_inference_model(str(MODELS / "combined"), exe, "model", "params")
    whole = (MODELS / "combined" / "params").read_bytes()
    for content, text in [
        (whole[:300], "truncated"),
        (whole + whole, "oversized"),
        (whole[40:], "variable batch_norm_0|truncated"),
    ]:
        (tmp_path / "params").write_bytes(content)
        with pytest.raises(errors.FileFormatError, match=text):
            io.load_persistables(exe, str(tmp_path), program, "params")


def test_scripts_that_begin_anew_without_a_file_catch_what_they_catch_of_fluid(exe, tmp_path):
    """`except IOError` around fluid.load and load_inference_model, in Fluid Python's own error."""
    for load in (
        lambda: fluid.load(fluid.default_main_program(), str(tmp_path / "none"), exe),
        lambda: io.load_inference_model(str(tmp_path), exe),
    ):
        with pytest.raises(FileNotFoundError, match="none|__model__") as caught:
            load()
        assert isinstance(caught.value, errors.NoSuchFileError)


def test_a_folder_without_a_model_is_refused(exe, tmp_path):
    with pytest.raises(errors.FileFormatError, match="there is no such folder"):
        io.load_inference_model(str(tmp_path / "none"), exe)
    with pytest.raises(errors.FileFormatError, match="__model__: No such file"):
        io.load_inference_model(str(tmp_path), exe)
    (tmp_path / "__model__").write_bytes(b"junk")
    with pytest.raises(errors.FileFormatError, match="__model__: these 4 bytes are no Fluid program"):
        io.load_inference_model(str(tmp_path), exe)


# Variables
def small_program():
    block = fluid.default_main_program().global_block()
    for name, shape in (("w", [2, 3]), ("b", [3])):
        block.create_parameter(name=name, shape=shape, dtype="float32")
        fluid.global_scope().var(name).get_tensor().set(np.full(shape, 2.0, "float32"))
    block.create_var(name="counter", shape=[1], dtype="int64", persistable=True)
    fluid.global_scope().var("counter").get_tensor().set(np.array([9]))
    block.create_var(name="h", shape=[2, 3], dtype="float32")
    return fluid.default_main_program()


def test_save_and_load_variables(exe, tmp_path):
    program, d = small_program(), str(tmp_path)
    assert [v.name for v in io.get_program_parameter(program)] == ["w", "b"]
    assert [v.name for v in io.get_program_persistable_vars(program)] == ["w", "b", "counter"]
    io.save_params(exe, d + "/p")
    io.save_persistables(exe, d + "/all", program, "one")
    io.save_vars(exe, d + "/v", program, predicate=lambda v: v.name == "b")
    io.save_vars(exe, d + "/w", program, vars=[program.global_block().var("w"), "counter"])
    assert [sorted(os.listdir(f"{d}/{f}")) for f in ("p", "all", "v", "w")] == [
        ["b", "w"],
        ["one"],
        ["b"],
        ["counter", "w"],
    ]
    one = b"".join((tmp_path / f).read_bytes() for f in ("p/b", "w/counter", "p/w"))
    assert (tmp_path / "all" / "one").read_bytes() == one
    for load in (
        lambda: (
            io.load_params(exe, d + "/p"),
            io.load_vars(exe, d + "/w", program, vars=["counter"]),
        ),
        lambda: io.load_persistables(exe, d + "/all", program, "one"),
    ):
        with fluid.scope_guard(fluid.Scope()):
            load()
            assert (
                held("w").tolist() == [[2.0] * 3] * 2
                and held("b").tolist() == [2.0] * 3
                and held("counter").tolist() == [9]
            )


def test_lod_is_kept(exe, tmp_path):
    block = fluid.default_main_program().global_block()
    block.create_var(name="ragged", shape=[-1, 1], dtype="int64", persistable=True, lod_level=2)
    io.load_persistables(exe, str(MODELS / "tensors"))
    assert fluid.global_scope().find_var("ragged").get_tensor().recursive_sequence_lengths() == [
        [2, 1],
        [1, 1, 3],
    ]
    io.save_persistables(exe, str(tmp_path))
    assert (tmp_path / "ragged").read_bytes() == (MODELS / "tensors" / "ragged").read_bytes()


def test_variables_without_values_are_not_saved(exe, tmp_path):
    program = small_program()
    with (
        fluid.scope_guard(fluid.Scope()),
        pytest.raises(errors.UninitializedError, match="w, b cannot be saved"),
    ):
        io.save_params(exe, str(tmp_path / "p"), program)
    with pytest.raises(TypeError):
        io.save_params(exe, None, program)
    with pytest.raises(TypeError, match="expected Variables or their names"):
        io.save_vars(exe, str(tmp_path), program, vars=[3])
    assert os.listdir(tmp_path) == []


# Operators
def test_save_and_load_operators_run_in_programs(exe, tmp_path):
    small_program()
    program = fluid.Program()
    block = program.global_block()
    for name in ("w", "b"):
        block.create_var(name=name, shape=held(name).shape, dtype="float32", persistable=True)
    block.append_op("save", {"X": "w"}, {}, {"file_path": str(tmp_path / "w")})
    block.append_op("save_combine", {"X": ["b", "w"]}, {}, {"file_path": str(tmp_path / "all")})
    block.append_op("save", {"X": "w"}, {}, {"file_path": str(tmp_path / "half"), "save_as_fp16": True})
    exe.run(program)
    assert load_tensors(tmp_path / "half", ["w"])[0].value.dtype == np.float16
    load = fluid.Program()
    block = load.global_block()
    for name, shape in (("w", [2, 3]), ("b", [3]), ("w2", [2, 3]), ("slice", [2])):
        block.create_var(name=name, shape=shape, dtype="float32", persistable=True)
    block.append_op("load", {}, {"Out": "w2"}, {"file_path": str(tmp_path / "w")})
    block.append_op("load_combine", {}, {"Out": ["b", "w"]}, {"file_path": str(tmp_path / "all")})
    block.append_op("load", {}, {"Out": "slice"}, {"file_path": str(tmp_path / "w"), "seek": 1, "shape": [2]})
    with fluid.scope_guard(fluid.Scope()):
        exe.run(load)
        assert [held(n).shape for n in ("w", "b", "w2", "slice")] == [(2, 3), (3,), (2, 3), (2,)]
        assert held("w2").tolist() == [[2.0] * 3] * 2
    block.ops[2].attrs["seek"] = 5
    with pytest.raises(errors.FileFormatError, match="reaches beyond its 6 elements"):
        exe.run(load.clone())


def test_save_operator_does_not_overwrite_when_told_so(exe, tmp_path):
    small_program()
    program = fluid.Program()
    program.global_block().create_var(name="w", shape=[2, 3], dtype="float32", persistable=True)
    program.global_block().append_op("save", {"X": "w"}, {}, {"file_path": str(tmp_path / "w"), "overwrite": False})
    exe.run(program)
    with pytest.raises(errors.OpError, match="exists, and the operator's attribute overwrite is False"):
        exe.run(program)


@pytest.mark.parametrize(
    "type_, slots, attrs",
    [
        ("save_combine", ({"X": ["w"]}, {}), {"save_to_memory": True}),
        ("load_combine", ({}, {"Out": ["w"]}), {"model_from_memory": True}),
    ],
)
def test_models_in_memory_are_refused(type_, slots, attrs, exe):
    small_program()
    program = fluid.Program()
    program.global_block().create_var(name="w", shape=[2, 3], dtype="float32", persistable=True)
    program.global_block().append_op(type_, *slots, {"file_path": "x", **attrs})
    with pytest.raises(errors.UnsupportedError, match="memory"):
        exe.run(program)


# States
def test_a_state_of_fluid_is_read_and_written_byte_for_byte(exe, tmp_path):
    program = state_program()
    io.load(program, str(MODELS / "state" / "net"), exe)
    assert held("learning_rate_0").tolist() == [np.float32(0.01)]
    io.save(program, str(tmp_path / "deep" / "net"))
    golden = {s: load_arrays(MODELS / "state" / f"net{s}") for s in (".pdparams", ".pdopt")}
    for suffix, arrays in golden.items():
        saved = load_arrays(tmp_path / "deep" / f"net{suffix}")
        assert set(saved) == set(arrays) and all(np.array_equal(saved[n], arrays[n]) for n in arrays)
        save_arrays(tmp_path / "again", arrays)
        assert (tmp_path / "again").read_bytes() == (MODELS / "state" / f"net{suffix}").read_bytes()
    assert fluid.Program.parse_from_string((tmp_path / "deep" / "net.pdmodel").read_bytes()).num_blocks == 1
    state = io.load_program_state(str(tmp_path / "deep" / "net"))
    assert set(state) == set(golden[".pdparams"]) | set(golden[".pdopt"])
    with fluid.scope_guard(fluid.Scope()):
        io.set_program_state(program, state)
        assert np.array_equal(held("conv2d_0.w_0_moment2_0"), state["conv2d_0.w_0_moment2_0"])
    with pytest.raises(ValueError, match="model_path"):
        io.save(program, str(tmp_path) + "/")


def test_states_from_folders_and_single_files(exe, tmp_path):
    program = small_program()
    io.save_persistables(exe, str(tmp_path / "all"))
    io.save_persistables(exe, str(tmp_path), filename="one")
    (tmp_path / "all" / "__model__").write_bytes(program.serialize_to_string())
    every = io.get_program_persistable_vars(program)
    assert sorted(io.load_program_state(str(tmp_path / "all"))) == ["b", "counter", "w"]
    assert list(io.load_program_state(str(tmp_path / "all"), every[:1])) == ["w"]
    assert sorted(io.load_program_state(str(tmp_path / "one"), every)) == ["b", "counter", "w"]
    for path, chosen in (("all", None), ("one", every)):
        with fluid.scope_guard(fluid.Scope()):
            io.load(program, str(tmp_path / path), exe, chosen)
            assert held("counter").tolist() == [9]
    for call in (
        lambda: io.load(program, str(tmp_path / "one"), exe),
        lambda: io.load_program_state(str(tmp_path / "one")),
    ):
        with pytest.raises(ValueError, match="var_list"):
            call()
    for call in (
        lambda: io.load(program, str(tmp_path / "none"), exe),
        lambda: io.load_program_state(str(tmp_path / "none")),
    ):
        with pytest.raises(errors.FileFormatError, match=r"neither .*none\.pdparams nor"):
            call()


def test_states_that_do_not_fit_are_refused_and_the_scope_stays(exe, tmp_path):
    program = small_program()
    good = {"w": np.ones((2, 3), "float32"), "b": np.ones(3, "float32"), "counter": np.array([1])}
    path = str(tmp_path / "net")
    save_arrays(path + ".pdopt", {"counter": good["counter"]})
    for params, text in [
        ({"w": good["w"]}, r"net\.pdparams, variable b: the file does not hold it"),
        ({**good, "b": np.ones(4, "float32")}, r"net\.pdparams, variable b: expected shape \[3\]"),
        ({**good, "b": np.ones(3)}, r"variable b: expected dtype float32"),
    ]:
        save_arrays(path + ".pdparams", params)
        with pytest.raises(errors.FileFormatError, match=text):
            io.load(program, path, exe)
    with pytest.raises(errors.ShapeError, match=r"state_dict, variable b: expected shape \[3\], found \[4\]"):
        io.set_program_state(program, {**good, "b": np.ones(4, "float32")})
    assert held("w").tolist() == [[2.0] * 3] * 2
    with pytest.warns(UserWarning, match="no variables stranger"):
        io.set_program_state(program, {"w": good["w"], "stranger": good["b"]})
    assert held("w").tolist() == [[1.0] * 3] * 2 and held("b").tolist() == [2.0] * 3


# Pickles
class Evil:
    def __reduce__(self):
        return os.mkdir, (str(Evil.path),)


def test_pickles_run_nothing(tmp_path):
    Evil.path = tmp_path / "made"
    big = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(K\x00tU\x01b\x87R"
    for content, text in [
        (pickle.dumps({"a": Evil()}, 2), r"it names posix\.mkdir|it names nt\.mkdir"),
        (pickle.dumps({"a": eval}, 2), r"it names (builtins|__builtin__)\.eval"),
        (pickle.dumps({"a": np.array([{}], object)}, 2), "holds more than numbers"),
        (pickle.dumps({"a": np.zeros(1, [("x", "f4")])}, 2), "holds more than numbers"),
        (pickle.dumps([1, 2], 2), "expected a dict of arrays by name, found list"),
        (pickle.dumps({1: 2}, 2), "expected a dict of arrays by name"),
        (pickle.dumps({"a": 1}, 2) + b"x", "oversized"),
        (pickle.dumps({"a": np.zeros(9)}, 2)[:-40], "no pickle of arrays"),
        (b"\x80\x02}X\x01\x00\x00\x00a" + big[2:] + b"s.", "no pickle of arrays|without contents"),
        (b"", "no pickle of arrays"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f", "no pickle of arrays"),
    ]:
        (tmp_path / "p").write_bytes(content)
        with pytest.raises(errors.FileFormatError, match=text):
            load_arrays(tmp_path / "p")
    assert not Evil.path.exists()


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    honest = pickle.dumps({"a": np.zeros(5, "uint8")}, 2)
    assert honest.count(b"K\x05\x85") == 1
    (tmp_path / "p").write_bytes(honest.replace(b"K\x05\x85", b"J\xff\xff\xff\x7f\x85"))
    with pytest.raises(errors.FileFormatError, match=r"uint8\[2147483647\] does not have 5 bytes"):
        load_arrays(tmp_path / "p")


def test_pickles_of_other_makers(tmp_path):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "n": np.float32(2.5),
        "s": OrderedDict(x="y"),
        "l": [np.zeros(2), (1, None)],
    }
    for protocol in (2, 3, 4):
        (tmp_path / "p").write_bytes(pickle.dumps(arrays, protocol))
        found = load_arrays(tmp_path / "p")
        assert all(np.array_equal(found[k], arrays[k]) for k in ("a", "f", "big", "n"))
        assert found["s"] == arrays["s"] and isinstance(found["l"][0], np.ndarray) and found["l"][1] == (1, None)
        assert found["big"].dtype == np.int32 and found["a"].flags.writeable


def test_saved_arrays_name_only_what_old_and_new_numpy_know(tmp_path):
    save_arrays(tmp_path / "p", {"a": np.zeros((2, 3), "float32")[:, ::2], "scalar": np.zeros((), "int64")})
    data = (tmp_path / "p").read_bytes()
    assert b"numpy.core.multiarray\n_reconstruct" in data and b"_core" not in data
    found = load_arrays(tmp_path / "p")
    assert found["a"].shape == (2, 2) and found["scalar"].shape == ()


def test_selected_rows_are_saved_and_loaded(exe, tmp_path):
    block = fluid.default_main_program().global_block()
    var = block.create_var(
        name="rows",
        type=fluid.core.VarDesc.VarType.SELECTED_ROWS,
        shape=[10, 3],
        dtype="float32",
        persistable=True,
    )
    rows = fluid.global_scope().var("rows").get_selected_rows()
    rows.set_rows([1, 3])
    rows.set_height(10)
    with pytest.raises(errors.ProgramError, match="rows: 2 rows of SelectedRows, but values"):
        fluid.io.save_vars(exe, tmp_path, vars=[var])
    rows.get_tensor().set(np.ones((2, 3), "float32"))
    fluid.io.save_vars(exe, tmp_path, vars=[var])
    rows.set_rows([0, 0])
    fluid.io.load_vars(exe, tmp_path, vars=[var])
    assert (rows.rows(), rows.height(), rows.numel()) == ([1, 3], 10, 6)
    rows.set_rows([1, 10])
    with pytest.raises(errors.ProgramError, match="row 10 of SelectedRows of height 10"):
        fluid.io.save_vars(exe, tmp_path, vars=[var])
    var._shape = (11, 3)
    with pytest.raises(errors.FileFormatError, match="rows: expected shape"):
        fluid.io.load_vars(exe, tmp_path, vars=[var])


def test_the_layer_load_reads_a_file_each_time(exe, tmp_path):
    w = fluid.layers.create_parameter([2], "float32", name="w")
    exe.run(fluid.default_startup_program())
    read = fluid.layers.create_tensor("float32")
    fluid.layers.load(read, str(tmp_path / "w"))
    half = fluid.layers.create_tensor("float16")
    fluid.layers.load(half, str(tmp_path / "w"), load_as_fp16=True)
    for value in ([1, 2], [3, 4]):
        fluid.global_scope().find_var("w").get_tensor().set(np.array(value, "float32"))
        fluid.io.save_vars(exe, tmp_path, vars=[w])
        whole, narrow = exe.run(fetch_list=[read, half])
        assert whole.tolist() == narrow.tolist() == value and narrow.dtype == np.float16
    with pytest.raises(TypeError, match="load: expected a Variable"):
        fluid.layers.load("w", str(tmp_path / "w"))
