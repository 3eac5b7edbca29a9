"""Names that come with programs stay in the folder that the user named, whichever way they are
saved or loaded.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, io
from jfluid.distributed import checkpoint
from jfluid.files.storage import bounded_reader, path_below, paths_to_write
from jfluid.files.tensor_format import Stored, load_tensors, save_tensors
from tests.distributed.job import Job, net

BAD = [
    "/outside/w",
    "../w",
    "a/../../w",
    "a/./w",
    "./w",
    "a//w",
    "a/",
    "",
    ".",
    "..",
    "w\0",
    "w\n",
    "..\\w",
    "a\\w",
    "C:w",
    "c:/w",
    "w" * 256,
    "é" * 128,
    "w/" * 600 + "w",
    "\udc80",
    ".jfluid-saved",
    ".jfluid-saved/w",
    "a/.jfluid-saving-x",
]
GOOD = ["w", "fc_0.w_0@GRAD", "encoder/layer_0/w", "..w", "w..", ".w", "ab:c", "é" * 127, "w w"]


@pytest.fixture
def exe():
    return fluid.Executor(fluid.CPUPlace())


def program_of(*names):
    """A program with persistable variables of these names, which have values, as a program that was
    read may have them.
    """
    program = fluid.Program()
    for name in names:
        program.global_block().create_parameter(name=name, shape=[2], dtype="float32")
        fluid.global_scope().var(name).get_tensor().set(np.ones(2, "float32"))
    return program


def everything_below(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*"))


@pytest.mark.parametrize("name", BAD)
def test_names_that_lead_out_or_stand_for_two_files_are_refused(name):
    for paths in (path_below, lambda folder, name: paths_to_write(folder, ["ok", name])):
        with pytest.raises(errors.FileFormatError, match="Expected a name that stays in the folder"):
            paths("/folder", name)


@pytest.mark.parametrize("name", GOOD)
def test_names_of_fluid_are_paths_below_the_folder(name, tmp_path):
    assert path_below(tmp_path, name) == f"{tmp_path}/{name}"
    save_tensors(paths_to_write(tmp_path, [name])[0], [Stored(np.ones(2, "float32"))])
    assert load_tensors(path_below(tmp_path, name), [name])[0].value.tolist() == [1, 1]


@pytest.mark.parametrize("name", ["/{outside}", "../outside", "a/../../outside"])
def test_no_way_of_saving_follows_a_name_out_of_the_folder(name, exe, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    name, d = name.format(outside=str(outside)[1:]), str(tmp_path / "mine")
    program = program_of("w", name)
    ways = [
        lambda: io.save_vars(exe, d, program, predicate=io.is_persistable),
        lambda: io.save_vars(exe, d, program, vars=[name]),
        lambda: io.save_params(exe, d, program),
        lambda: io.save_persistables(exe, d, program),
    ]
    block = program.global_block()
    out = block.create_var(name="out", shape=[2], dtype="float32")
    block.append_op("elementwise_add", {"X": "w", "Y": name}, {"Out": "out"})
    ways.append(lambda: io.save_inference_model(d, [], [out], exe, program))
    ways.append(lambda: io.save_inference_model(d, [], [out], exe, program, export_for_deployment=False))
    for way in ways:
        with pytest.raises(errors.FileFormatError, match="Expected a name that stays in the folder"):
            way()
        assert outside.read_text() == "precious" and everything_below(tmp_path) == ["outside"]
    io.save_persistables(exe, d, program, "all")  # holds no names
    io.load_persistables(exe, d, program, "all")


def test_no_way_of_loading_follows_a_name_out_of_the_folder(exe, tmp_path):
    save_tensors(tmp_path / "outside", [Stored(np.full(2, 7, "float32"))])
    program, d = program_of("../outside"), tmp_path / "model"
    d.mkdir()
    fluid.global_scope().erase(["../outside"])
    (d / "__model__").write_bytes(program.serialize_to_string())
    (d / "w").write_bytes((tmp_path / "outside").read_bytes())
    variables = list(program.list_vars())
    for way in [
        lambda: io.load_vars(exe, str(d), program),
        lambda: io.load_params(exe, str(d), program),
        lambda: io.load_persistables(exe, str(d), program),
        lambda: io.load_inference_model(str(d), exe),
        lambda: io.load(program, str(d)),
        lambda: io.load(program, str(d), var_list=variables),
        lambda: io.load_program_state(str(d), variables),
    ]:
        with pytest.raises(errors.FileFormatError, match=r"variable '\.\./outside': a path with"):
            way()
    assert fluid.global_scope().find_var("../outside") is None


def test_a_loaded_model_is_saved_into_the_folder_or_not_at_all(exe, tmp_path):
    """The stranger's model has one file for all parameters; ours would have one by each name."""
    name = str(tmp_path / "bashrc")
    Path(name).write_text("precious")
    program = program_of("w", name)
    x = program.global_block().create_var(name="x", shape=[2], dtype="float32", need_check_feed=True)
    out = program.global_block().create_var(name="out", shape=[2], dtype="float32")
    program.global_block().append_op("elementwise_add", {"X": x, "Y": name}, {"Out": out})
    io.save_inference_model(str(tmp_path / "theirs"), ["x"], [out], exe, program, params_filename="params")
    with fluid.scope_guard(fluid.Scope()):
        loaded, feeds, fetches = io.load_inference_model(str(tmp_path / "theirs"), exe, params_filename="params")
        with pytest.raises(errors.FileFormatError, match="bashrc': an absolute path"):
            io.save_inference_model(str(tmp_path / "mine"), feeds, fetches, exe, loaded)
    assert Path(name).read_text() == "precious" and not (tmp_path / "mine").exists()


def test_links_that_lead_out_are_not_written_through(exe, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sub").symlink_to(tmp_path / "outside")
    (tmp_path / "mine" / "inside").mkdir()
    (tmp_path / "mine" / "link").symlink_to("inside")
    with pytest.raises(
        errors.FileFormatError,
        match="variable sub/w: a link in the folder leads out of it, to .*outside",
    ):
        io.save_params(exe, str(tmp_path / "mine"), program_of("link/w", "sub/w"))
    assert everything_below(tmp_path / "outside") == everything_below(tmp_path / "mine" / "inside") == []
    io.save_params(exe, str(tmp_path / "mine"), program_of("link/w"))
    assert everything_below(tmp_path / "mine" / "inside") == ["w"]
    (tmp_path / "outside" / "w").write_text("precious")
    (tmp_path / "mine" / "w").symlink_to(tmp_path / "outside" / "w")
    io.save_params(exe, str(tmp_path / "mine"), program_of("w"))  # replaces the link
    assert (tmp_path / "outside" / "w").read_text() == "precious" and not (tmp_path / "mine" / "w").is_symlink()
    (tmp_path / "folder").symlink_to(tmp_path / "mine")
    # the user's own way to the folder
    io.save_params(exe, str(tmp_path / "folder"), program_of("inside/w"))


def test_a_file_has_one_variable_and_a_folder_no_other_meaning(exe, tmp_path):
    with pytest.raises(errors.FileFormatError, match="variable a/b/c: a is a file of the folder"):
        io.save_params(exe, str(tmp_path / "p"), program_of("a", "a/b/c"))
    program = program_of("__model__")
    out = program.global_block().create_var(name="out", shape=[2], dtype="float32")
    program.global_block().append_op("relu", {"X": "__model__"}, {"Out": out})
    with pytest.raises(errors.FileFormatError, match="variable __model__: the name of a different file of the folder"):
        io.save_inference_model(str(tmp_path / "m"), [], [out], exe, program)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("name", ["__model__", "__model__.main_program"])
def test_variables_never_replace_a_saved_program(exe, tmp_path, name):
    model = program_of("w")
    io.save_inference_model(str(tmp_path), [], [model.global_block().var("w")], exe, model)
    saved = (tmp_path / "__model__").read_bytes()
    for program in (program_of(name), program_of(f"{name}/w")):
        with pytest.raises(errors.FileFormatError, match=f"variable {name}.*; rename"):
            io.save_persistables(exe, str(tmp_path), program)
    with pytest.raises(errors.FileFormatError, match="filename: __model__ is the name of the program's file"):
        io.save_persistables(exe, str(tmp_path), model, filename="__model__")
    io.save_persistables(exe, str(tmp_path), program_of(name), filename="all")  # one file holds no names
    assert (tmp_path / "__model__").read_bytes() == saved
    assert io.load_inference_model(str(tmp_path), exe)[1] == []


def test_variables_in_folders_come_back(exe, tmp_path):
    program = program_of("encoder/w", "b")
    io.save_persistables(exe, str(tmp_path), program)
    (tmp_path / "encoder" / "notes.txt").write_text("no tensor")
    assert {n: v.tolist() for n, v in io.load_program_state(str(tmp_path)).items()} == {
        "encoder/w": [1, 1],
        "b": [1, 1],
    }
    with fluid.scope_guard(fluid.Scope()):
        io.load_persistables(exe, str(tmp_path), program)
        assert fluid.global_scope().find_var("encoder/w").get_tensor().shape() == [2]


def test_servers_folders_stay_below_the_trainers(tmp_path):
    with Job(net("distributed", "adam"), 1) as job:
        job.begin()
        trainer = job.trainers[0]
        division = trainer.main.division
        name = next(n for n, saved in division.variables.items() if saved.distributed and saved.parameter)
        for block in division.origin.blocks:
            if name in block.vars:
                block.rename_var(name, "../elsewhere")
        saved = division.variables.pop(name)
        division.variables["../elsewhere"] = replace(saved, name="../elsewhere", table="../elsewhere")
        d = str(tmp_path / "mine")
        with fluid.scope_guard(trainer.scope):
            for way in [
                lambda: checkpoint.save_persistables(trainer.executor, d, trainer.main),
                lambda: checkpoint.save_one_table(trainer.executor, "../elsewhere", d, trainer.main),
                lambda: checkpoint.load_one_table(trainer.executor, "../elsewhere", d, trainer.main),
                lambda: checkpoint.save_inference_model(
                    trainer.executor, d, ["x", "ids"], [trainer.built[1]], trainer.main
                ),
            ]:
                with pytest.raises(errors.FileFormatError, match="elsewhere': a path with"):
                    way()
        assert everything_below(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "null", "long", "loop"])
def test_what_is_no_file_is_refused_at_once(kind, tmp_path):
    path = tmp_path / "f"
    if kind == "pipe":
        os.mkfifo(path)  # opened for reading it waits for a writer
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    path = {"null": str(path) + "\0", "long": str(path) * 300}.get(kind, path)
    with pytest.raises(errors.FileFormatError), bounded_reader(path):
        pass


# Operators
def operators(path):
    """Programs of one operator each, that writes or reads `path`."""
    for type_, slots in [
        ("save", ({"X": "w"}, {})),
        ("save_combine", ({"X": ["w"]}, {})),
        ("load", ({}, {"Out": "w"})),
        ("load_combine", ({}, {"Out": ["w"]})),
    ]:
        program = program_of("w")
        program.global_block().append_op(type_, *slots, {"file_path": str(path)})
        yield program


def test_programs_that_were_read_do_not_choose_files(exe, tmp_path):
    path = tmp_path / "w"
    save_tensors(path, [Stored(np.full(2, 5, "float32"))])
    before = path.read_bytes()
    for program in operators(path):
        read = fluid.Program.parse_from_string(program.serialize_to_string())
        op = read.global_block().ops[0]
        for copy in (read, read.clone(), read._prune([op])):
            with pytest.raises(
                errors.UntrustedOperatorError,
                match=rf"{op.type} \(block 0, position 0\) reaches files \(file_path=",
            ):
                exe.run(copy)
        assert path.read_bytes() == before
        exe.run(program)  # the user's own
        op._set_attr("file_path", str(tmp_path / ("other" if "save" in op.type else "w")))
        exe.run(read)
        assert op.type not in ("save", "save_combine") or (tmp_path / "other").exists()
        path.write_bytes(before)
