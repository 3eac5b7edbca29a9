"""Every public name of Fluid under jfluid: it works, or says when called that it is not in this
release.
"""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

import jfluid as fluid
from jfluid import errors, surface
from jfluid.ops import registry

PATHS = sorted(surface.NAMES)


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p or "fluid")
def test_every_path_imports_and_has_every_name(path):
    module = importlib.import_module(f"jfluid.{path}" if path else "jfluid")
    for name in surface.NAMES[path]:
        assert name in dir(module)
        found = getattr(module, name)
        if isinstance(found, surface.Missing):
            with pytest.raises(errors.UnsupportedError, match=f"fluid.*{name}: "):
                found()


def test_what_this_release_is_for_is_there():
    for name in (
        "fc",
        "conv2d",
        "batch_norm",
        "embedding",
        "softmax_with_cross_entropy",
        "accuracy",
        "auc",
        "matmul",
        "noam_decay",
        "layer_norm",
        "dropout",
        "py_func",
        "Switch",
        "piecewise_decay",
        "gaussian_random",
    ):
        assert not isinstance(getattr(fluid.layers, name), surface.Missing), name
    for path in (
        "optimizer",
        "initializer",
        "regularizer",
        "clip",
        "unique_name",
        "backward",
        "param_attr",
    ):
        module = importlib.import_module(f"jfluid.{path}")
        missing = [n for n in surface.NAMES[path] if isinstance(getattr(module, n), surface.Missing)]
        assert missing == [], path


def test_names_live_once():
    import jfluid.framework
    import jfluid.unique_name
    from jfluid.framework import Program, Variable, default_main_program
    from jfluid.layers.ops import relu

    from jfluid.layers import nn

    assert Program is fluid.Program and Variable is fluid.Variable and relu is fluid.layers.relu
    assert nn.conv2d is fluid.layers.conv2d and nn.fc is fluid.layers.fc
    assert default_main_program() is fluid.default_main_program()
    assert (
        jfluid.unique_name.generate("surface") == "surface_0" and fluid.unique_name.generate("surface") == "surface_1"
    )


def test_missing_names_refuse_to_be_used():
    with pytest.raises(
        errors.UnsupportedError,
        match=r"fluid\.contrib\.Compressor: this extension is not in this release",
    ):

        class Smaller(fluid.contrib.Compressor):
            pass

    with pytest.raises(errors.UnsupportedError, match=r"fluid\.contrib\.Compressor: this extension"):
        fluid.contrib.Compressor()
    assert "not in this release" in repr(fluid.contrib.Compressor)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(
        AttributeError,
        match=r"module 'jfluid\.layers' has no attribute 'conv2dd'.*did you mean conv2d",
    ):
        fluid.layers.conv2dd  # noqa: B018
    with pytest.raises(AttributeError, match="module 'jfluid' has no attribute 'Exekutor'.*did you mean Executor"):
        fluid.Exekutor  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("jfluid.nothing")


def test_environment():
    assert fluid.in_dygraph_mode() is False
    fluid.require_version("1.5.0")
    fluid.require_version("1.8", "1.8.5")
    with pytest.raises(errors.UnsupportedError, match=r"Fluid 2\.0 or newer is asked for"):
        fluid.require_version("2.0")
    with pytest.raises(errors.ProgramError, match="found 'new'"):
        fluid.require_version("new")
    fluid.memory_optimize(fluid.default_main_program())


@pytest.fixture
def forgets_cube():
    """Remove the operator of the test below."""
    yield
    for name in ("cube", "cube_grad"):
        registry._OPS.pop(name, None)


def test_a_python_file_of_operators_loads_as_a_library(tmp_path, forgets_cube):
    file = tmp_path / "cube_op.py"
    file.write_text(
        "from jfluid.ops.registry import op\n\n"
        "@op('cube', ins=('X',), outs=('Out',))\n"
        "def cube(x, *, factor=1.0):\n    return factor * x**3\n"
    )
    fluid.load_op_library(str(file))
    fluid.load_op_library(str(file))  # registers nothing twice
    x = fluid.data("x", [3], "float32")
    x.stop_gradient = False
    helper = fluid.layer_helper.LayerHelper("cube")
    out = helper.create_variable_for_type_inference("float32")
    helper.append_op("cube", inputs={"X": x}, outputs={"Out": out}, attrs={"factor": 2.0})
    (slope,) = fluid.gradients([out], [x])
    values = np.array([1, 2, -3], "float32")
    found = fluid.Executor(fluid.CPUPlace()).run(feed={"x": values}, fetch_list=[out, slope])
    np.testing.assert_allclose(found[0], 2 * values**3)
    np.testing.assert_allclose(found[1], 6 * values**2)
    with pytest.raises(errors.UnsupportedError, match=r"libpaddle_framework\.so.*JAX functions in librelu2_op\.py"):
        fluid.load_op_library("librelu2_op.so")
    with pytest.raises(FileNotFoundError, match=r"absent\.py"):
        fluid.load_op_library(str(tmp_path / "absent.py"))
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(errors.ProgramError, match="registers no operator"):
        fluid.load_op_library(str(tmp_path / "empty.py"))


def test_compiled_program_runs_as_the_program():
    x = fluid.data("x", [None, 2])
    y = fluid.layers.scale(x, 3.0)
    compiled = fluid.CompiledProgram(fluid.default_main_program(), fluid.BuildStrategy())
    (got,) = fluid.Executor(fluid.CPUPlace()).run(compiled, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[y])
    assert (got == 3).all()
    with pytest.raises(errors.ProgramError, match="no variable loss"):
        compiled.with_data_parallel(loss_name="loss")
    with pytest.raises(TypeError, match="expected a Program, found str"):
        fluid.CompiledProgram("main")


def test_strategies_are_settings():
    build = fluid.BuildStrategy()
    build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    assert repr(build) == f"BuildStrategy(reduce_strategy={fluid.BuildStrategy.ReduceStrategy.Reduce!r})"
    with pytest.raises(errors.ProgramError, match="no field fuse_all_reduce_op.*did you mean fuse_all_reduce_ops"):
        build.fuse_all_reduce_op = True
    execution = fluid.ExecutionStrategy()
    execution.num_threads = 4
    assert execution.num_threads == 4 and fluid.ExecutionStrategy().num_threads == 0


def test_core():
    assert fluid.core.VarDesc.VarType.FP32 == fluid.data("x", [1]).dtype
    assert str(fluid.core.VarDesc.VarType.INT64) == "VarType.INT64"
    assert fluid.core.op_proto_and_checker_maker.OpRole.Backward == 1
    assert fluid.core.is_compiled_with_dist() and not fluid.core.is_compiled_with_brpc()
    assert fluid.core.kEmptyVarName() == "@EMPTY@" and fluid.core.kGradVarSuffix() == "@GRAD"
    assert issubclass(errors.FeedError, fluid.core.EnforceNotMet)
    assert fluid.core.get_cuda_device_count() >= 0


SCRIPT = """
import numpy
import {engine} as fluid
from {engine}.layers import fc
import {engine}.layers.nn as nn
x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fc(x, size=2, param_attr=fluid.initializer.Constant(0.5), act="relu")
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.framework.default_startup_program())
print(exe.run(feed=dict(x=numpy.ones((1, 4), "float32")), fetch_list=[y])[0].tolist())
"""


@pytest.mark.process
def test_a_script_changes_its_import_line_only():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(engine="jfluid")],
        env=os.environ | {"FLAGS_interpret_first_steps": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[[2.0, 2.0]]\n"
