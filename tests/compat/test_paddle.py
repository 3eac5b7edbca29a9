"""`import paddle.fluid` finds jfluid: in a process that installs it, in those that a script or the
launcher starts, and not where somebody chose otherwise.
"""
# ruff: noqa: NPY001, NPY201

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

import jfluid
from jfluid import errors, startup, surface
from jfluid.compat import older_names, paddle, scripts
from jfluid.compat.paddle.aliases import AliasFinder, target
from jfluid.distributed import launch, launch_ps
from jfluid.launch import main


@pytest.fixture
def installed(monkeypatch):
    """`paddle` is jfluid for one test."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in (startup.CHOICE, "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    modules = [importlib.import_module(name) for name in older_names.TODAY]
    before = [dict(vars(module)) for module in modules]
    paddle.install()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "paddle"]:
        del sys.modules[name]
    for module, names in zip(modules, before, strict=True):
        # not what else came meanwhile, such as np.testing
        for name in ({*vars(module)} - {*names}) & {*older_names.TODAY[module.__name__]}:
            del vars(module)[name]
        vars(module).update(names)


def test_modules_are_one_object_each(installed):
    import paddle as installed_paddle
    import paddle.fluid as fluid
    import paddle.fluid.layers.nn
    from paddle.fluid.framework import Program

    assert fluid is jfluid and paddle.fluid.layers is jfluid.layers
    assert installed_paddle.fluid.layers.nn is importlib.import_module("jfluid.layers.nn")
    assert Program is jfluid.Program and fluid.__spec__.name == "jfluid"


def test_versions(installed, capsys):
    import paddle as installed_paddle
    import paddle.version

    assert [int(part) for part in installed_paddle.__version__.split(".")] == [1, 8, 5]
    assert jfluid.__version__ == jfluid.installation.VERSION
    paddle.version.show()
    assert capsys.readouterr().out == f"Fluid 1.8.5, by jfluid {jfluid.__version__}\n"


def test_every_module_of_fluid_is_imported_by_its_path(installed):
    for path in {*surface.NAMES, *surface.ALIASES, *surface.MODULES} - {""}:
        name = f"paddle.fluid.{path}"
        assert importlib.import_module(name) is sys.modules[f"jfluid.{path}"], name
    # functions, though there are modules of that name
    assert callable(jfluid.data) and callable(jfluid.layers.rnn)
    assert sys.modules["paddle.fluid.data"].data is jfluid.data


def test_functions_that_are_modules_too(installed):
    import paddle
    import paddle.batch
    import paddle.check_import_scipy

    batches = paddle.batch(lambda: iter(range(3)), 2)
    assert [*batches()] == [[0, 1], [2]] and paddle.check_import_scipy("posix") is None
    from paddle.batch import batch

    assert batch is paddle.batch


def test_what_is_not_there(installed):
    import paddle

    with pytest.raises(ModuleNotFoundError, match="No module named 'paddle.nothing'"):
        import paddle.nothing
    with pytest.raises(AttributeError, match="module 'paddle' has no attribute 'nothing'"):
        paddle.nothing  # noqa: B018
    import paddle.fluid.contrib.slim.core as slim

    with pytest.raises(errors.UnsupportedError, match=r"Compressor: this extension"):
        slim.Compressor()
    assert not isinstance(3, slim.Compressor)
    with pytest.raises(errors.UnsupportedError, match="paddle.sysconfig.get_include"):
        paddle.sysconfig.get_include()


def test_another_paddle_that_is_imported_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "paddle", pytest)
    with pytest.raises(errors.ProgramError, match=r"imported already, from .*pytest"):
        paddle.install()
    assert not any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


@pytest.mark.filterwarnings("ignore:`in1d` is deprecated:DeprecationWarning")  # by NumPy 2.3, which has the name
def test_names_of_numpy(installed, caplog):
    assert np.float is float and np.dtype(np.int) == np.int64 and np.object is object
    assert vars(np)["float"] is float and np.asscalar(np.ones(1)) == 1.0
    assert type(np.asscalar(np.ones(1))) is float and np.NaN is np.nan and np.alen([1, 2]) == 2
    assert np.in1d([[1, 5]], [5]).tolist() == [False, True]
    assert np.asfarray([1]).dtype == np.float64 and np.asfarray([1], np.float32).dtype == np.float32
    assert np.asfarray([1], np.int32).dtype == np.float64
    assert caplog.messages.count("numpy.float is no more; float means the same") == 1
    with pytest.raises(AttributeError, match="no attribute 'flaot'"):
        np.flaot  # noqa: B018


def test_names_of_python(installed, caplog):
    import collections
    import inspect
    import time

    def function(a, b=1, *c, **d):
        pass

    assert collections.Mapping is collections.abc.Mapping and time.clock() >= 0
    assert tuple(inspect.getargspec(function)) == (["a", "b"], "c", "d", (1,))
    assert os.errno.EEXIST and "time.clock is no more; time.process_time means the same" in (caplog.messages)
    with pytest.raises(AttributeError, match="module 'time' has no attribute 'clokc'"):
        time.clokc  # noqa: B018


def test_names_that_are_given_back_are_not_there():
    until = {"in1d", "trapz"}  # NumPy 2.4 has dropped them
    for module, names in older_names.TODAY.items():
        assert {n for n in names if n in vars(importlib.import_module(module))} <= until, module


def test_what_a_newer_numpy_has_ended_is_told_once(caplog):
    older_names._tell_of_numpy.cache_clear()
    for version in ("2.3.5", "2.4.6", "2.4.6", "2.10.0"):
        older_names._tell_of_numpy(version)
    assert [m.partition(" refuses")[0] for m in caplog.messages] == ["NumPy 2.4.6", "NumPy 2.10.0"]
    assert "pip install 'numpy<2.4'" in caplog.messages[0]


def test_numpy_is_installed_as_scripts_need_it():
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "numpy>=2.0,<2.4" in project["dependencies"]
    (pinned,) = re.findall(r"^numpy==2\.(\d+)\.", (root / "constraints.txt").read_text(), re.M)
    assert int(pinned) < 4


def run(code, folder=None, **variables):
    """A fresh interpreter that a script could have started; returns its output and its errors."""
    environment = {k: v for k, v in os.environ.items() if k != startup.CHOICE} | variables
    rest = [str(folder)] if folder else []
    environment["PYTHONPATH"] = os.pathsep.join([startup.FOLDER, *rest])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr


@pytest.fixture
def another(tmp_path):
    """A folder with another `paddle`, and with a sitecustomize."""
    (tmp_path / "paddle").mkdir()
    (tmp_path / "paddle" / "__init__.py").write_text("print('the other one')")
    (tmp_path / "sitecustomize.py").write_text("print('sitecustomize')")
    return tmp_path


@pytest.mark.process
def test_an_installed_paddle_is_taken_and_said(another):
    code = "from collections import Iterable; import paddle, sys; print('jax' in sys.modules)"
    out, err = run(code, another)
    said, _, err = err.partition("\n")
    assert said == "jfluid: collections.Iterable is no more; collections.abc.Iterable means the same"
    assert out.split("\n")[:-1] == ["sitecustomize", "the other one", "False"]
    assert err == (f"jfluid: paddle is {another}/paddle/__init__.py; JFLUID_AS_PADDLE=1 takes jfluid instead\n")


@pytest.mark.process
def test_a_wrong_choice(another):
    out, err = run("import paddle", another, JFLUID_AS_PADDLE="yes")
    assert out == "sitecustomize\n" and "JFLUID_AS_PADDLE: expected 0 or 1, found 'yes'" in err


@pytest.mark.process
def test_an_interpreter_without_jfluid(tmp_path):
    _, err = run("import sys; sys.modules['jfluid'] = None; import paddle", tmp_path)
    assert f"jfluid is not installed for {sys.executable}" in err


def test_variables_of_processes():
    assert startup.variables({}) == {"PYTHONPATH": startup.FOLDER}
    given = {"PYTHONPATH": os.pathsep.join(["/a", startup.FOLDER, "/b"])}
    assert startup.variables(given)["PYTHONPATH"].split(os.pathsep) == [startup.FOLDER, "/a", "/b"]
    assert startup.variables({startup.CHOICE: "0"}) == {}


SCRIPT = """
import os, subprocess, sys
import numpy as np
import paddle
import paddle.fluid as fluid

assert sys.argv == ["train.py", "--epochs", "1"] and fluid.__name__ == "jfluid"
x = fluid.data(name="x", shape=[None, 2], dtype="float32")
loss = fluid.layers.mean(x)
exe = fluid.Executor(fluid.CPUPlace())
value, = exe.run(feed={"x": np.ones((2, 2), np.float32)}, fetch_list=[loss])
assert np.float(value) == 1.0
code = "import paddle.fluid as fluid; print(fluid.__name__, fluid.layers.fc.__name__)"
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="other")
print(done.stdout + done.stderr)
"""


@pytest.mark.process
def test_a_script_of_the_launcher_and_what_it_starts(tmp_path, another, monkeypatch, capfd):
    """What it starts takes jfluid as it does, even where there is another one."""
    (tmp_path / "other").mkdir()
    (another / "paddle").rename(tmp_path / "other" / "paddle")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("FLAGS_interpret_first_steps", "1")
    (tmp_path / "train.py").write_text(SCRIPT)
    assert main(["train.py", "--epochs", "1"]) == 0, (tmp_path / "mylog/workerlog.0").read_text()
    said = capfd.readouterr().out
    assert "jfluid fc\n" in said
    assert "jfluid: paddle is jfluid, not " in said and "JFLUID_AS_PADDLE=0 takes that" in said


@pytest.mark.parametrize(
    "command, values",
    [
        ("launch", {"mode": "collective", "gpus": "all"}),
        ("launch_ps", {"mode": "parameter_server", "servers": 2, "trainers": 2, "log_dir": "logs"}),
    ],
)
def test_commands_of_fluid(installed, command, values, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    words = [f"paddle.distributed.{command}", "--print_config", "True", "--dry-run", "train.py"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_module(words[0], run_name="__main__")
    job = yaml.safe_load(capsys.readouterr().out)
    assert {key: job[key] for key in values} == values


def test_options_come_before_what_commands_of_fluid_assume(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert launch_ps.main(["--endpoints", "127.0.0.1:1,127.0.0.1:2", "--dry-run", "train.py"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["servers"] == ["127.0.0.1:1", "127.0.0.1:2"]
    assert launch.main(["--cpus", "3", "--dry-run", "train.py"]) == 0
    job = yaml.safe_load(capsys.readouterr().out)
    assert job["processes"] == 3 and not job.get("gpus")


WRITES = """
import sys
import paddle.fluid as fluid
import beside
print(__name__, sys.argv, fluid.__name__)
"""


def test_scripts_run_as_by_python(installed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in "script.py", "__main__.py":
        (tmp_path / "folder" / file).write_text(WRITES)
    (tmp_path / "folder" / "beside.py").write_text("print('beside')")
    for command in (["folder/script.py", "--epochs", "1"], ["folder", "--epochs", "1"]):
        scripts.run(command)
        assert capsys.readouterr().out == f"beside\n__main__ {command} jfluid\n"
        del sys.modules["beside"]
    (tmp_path / "as_module.py").write_text("import sys; print(sys.argv)")
    scripts.run(["-m", "as_module", "--epochs"])
    assert capsys.readouterr().out == f"{[str(tmp_path / 'as_module.py'), '--epochs']}\n"
    (tmp_path / "stops.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(SystemExit, match="^3$"):
        scripts.run(["stops.py"])


@pytest.mark.parametrize(
    "command, said",
    [
        ([], "usage: python -m jfluid script.py"),
        (["--epochs"], "usage: python -m jfluid script.py"),
        (["nothing.py"], "nothing.py: expected a script, or a folder with __main__.py"),
    ],
)
def test_what_is_no_script(command, said, capsys):
    with pytest.raises(SystemExit, match="^2$"):
        scripts.run(command)
    assert said in capsys.readouterr().err


def test_lines_for_a_shell(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a folder")
    runpy.run_module("jfluid.startup", run_name="__main__")
    path = shlex.quote(f"{startup.FOLDER}{os.pathsep}/a folder")
    assert capsys.readouterr().out == (f"export JFLUID_AS_PADDLE=1\nexport PYTHONPATH={path}\n")


def test_places_of_modules():
    assert target("paddle") == "jfluid.compat.paddle" and target("paddle.fluid") == "jfluid"
    assert target("paddle.fluid.io") == "jfluid.io"
    assert target("paddle.distributed.launch") == "jfluid.distributed.launch"


def test_the_doctor_knows_the_names_that_are_given_back():
    table = tomllib.loads(Path(jfluid.__path__[0], "doctor", "rules.toml").read_text())["python"]
    for path in table["supplied"]:
        module, _, name = path.rpartition(".")
        assert name in older_names.TODAY[module], path
