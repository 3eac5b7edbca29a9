"""Mistakes of users end in named errors that say what to do: no error of a library reaches them."""

import os
import subprocess
import sys
import traceback

import numpy as np
import pytest

import jfluid as fluid
from jfluid import command, errors

layers = fluid.layers


@pytest.fixture
def x():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield fluid.data("x", [None, 4])


@pytest.mark.parametrize("size, shown", [("a", "'a'"), (2.5, "2.5"), (None, "None")])
def test_sizes_of_layers(x, size, shown):
    with pytest.raises(
        errors.AttributeTypeError, match=rf"parameter fc_0.w_0: .* found \[4, {shown}\]: check the size"
    ):
        layers.fc(x, size=size)
    ids = fluid.data("ids", [None, 1], "int64")
    with pytest.raises(errors.AttributeTypeError, match="embedding_0.w_0: expected a shape of whole numbers"):
        layers.embedding(ids, size=[size, 4])


@pytest.mark.parametrize("parts", [2.0, "2", None])
def test_parts_of_split(x, parts):
    with pytest.raises(errors.AttributeTypeError, match="split, num_or_sections: expected int or list"):
        layers.split(x, num_or_sections=parts, dim=1)


@pytest.mark.parametrize("address", ["s3://bucket/model", "hdfs://host/model", "gs://bucket/model"])
def test_addresses_where_paths_belong(x, address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    y, executor = layers.fc(x, 2), fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(fluid.default_startup_program())
        main = fluid.default_main_program()
        calls = (
            lambda: fluid.io.load_inference_model(address, executor),
            lambda: fluid.io.save_inference_model(address, ["x"], [y], executor, main),
            lambda: fluid.io.save_params(executor, address, main),
            lambda: fluid.io.load_params(executor, address, main),
            lambda: fluid.save(main, f"{address}/step"),
        )
        for call in calls:
            with pytest.raises(errors.UnsupportedError, match="expected a path of this machine.*s3fs"):
                call()
    assert list(tmp_path.iterdir()) == []
    for name, *port in (["inspect"], ["serve", "--port", "0"]):
        assert command.main([name, address, *port]) in (1, 2)
        assert "expected a path of this machine" in capsys.readouterr().err


def test_the_last_line_of_a_traceback_says_what_to_do(x):
    executor = fluid.Executor(fluid.CPUPlace())
    y = layers.reshape(x, [3, 5])
    with pytest.raises(errors.ShapeError) as caught:
        executor.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[y])
    last = traceback.format_exception(caught.value)[-1].strip().splitlines()[-1]
    assert last == "What to do about it: docs/faq.md#shapeerror"
    caught.value.add_note("of the caller's own")
    assert caught.value.__notes__[-1] == "of the caller's own"


def test_onnx_that_is_not_installed_is_named(x, tmp_path, monkeypatch, capsys):
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        y = layers.fc(x, 2)
        executor.run(fluid.default_startup_program())
        fluid.io.save_inference_model(str(tmp_path / "m"), ["x"], [y], executor, fluid.default_main_program())
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert command.main(["export", str(tmp_path / "m"), "--to", "onnx"]) == 1
    assert "pip install 'jfluid[export]'" in capsys.readouterr().err


def test_processes_from_one_on(tmp_path, capsys):
    (tmp_path / "train.py").write_text("")
    assert command.main(["launch", "--cpus", "0", str(tmp_path / "train.py")]) == 2
    assert "--cpus 0: processes: expected a number from 1, found 0" in capsys.readouterr().err


@pytest.mark.process
def test_root_logging_shows_no_lines_of_jax():
    """A script that sets root logging sees its own lines; one that sets JAX's level sees JAX's."""
    script = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
if sys.argv[1] == "jax":
    logging.getLogger("jax").setLevel(logging.DEBUG)
import jfluid as fluid, numpy as np
exe = fluid.Executor(fluid.CPUPlace())
exe.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[fluid.data("x", [None, 4]) + 1.0])
logging.getLogger("mine").debug("a line of the script")
"""
    environment = os.environ | {"FLAGS_interpret_first_steps": "1"}  # JAX says at DEBUG what it traces
    for argument, expected in (("mine", False), ("jax", True)):
        command = [sys.executable, "-c", script, argument]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "a line of the script" in done.stderr
        assert ("DEBUG:jax" in done.stderr) == expected, done.stderr
