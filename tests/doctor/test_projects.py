"""`jfluid doctor` on projects: their own modules, what guards code, and the verdict."""

import sys

import pytest

from jfluid import command
from jfluid.doctor import Severity, examine


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes files of a project; returns the diagnosis of one of them, or of all."""
    monkeypatch.chdir(tmp_path)

    def of(files, path="."):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return examine([str(path)])

    return of


def stops(diagnosis):
    return [(f.line, f.subject) for f in diagnosis.findings if f.severity <= Severity.CHANGE]


# ---- no false alarms


def test_code_for_python_2_alone_does_not_count(project):
    guards = (
        "sys.version[0] == '2'",
        "sys.version_info[0] < 3",
        "sys.version_info < (3, 0)",
        "sys.version_info.major == 2",
        "int(sys.version[0]) == 2",
        "six.PY2",
        "not PY3",
    )
    lines = "import sys, os\n" + "".join(
        f"if {guard}:\n    import cPickle\n    reload(sys)\n    sys.setdefaultencoding('utf-8')\n" for guard in guards
    )
    assert stops(project({"train.py": lines})) == []
    of_3 = "import sys\nif sys.version_info[0] >= 3:\n    reload(sys)\nelse:\n    xrange(3)\n"
    assert stops(project({"train.py": of_3})) == [(3, "reload")]
    other = "import sys\nif sys.argv[0] == '2':\n    reload(sys)\n"
    assert stops(project({"train.py": other})) == [(3, "reload")]


def test_what_is_tried_or_asked_for_is_a_note(project):
    tried = "import paddle\ntry:\n    paddle.enable_static()\nexcept{}:\n    pass\n"
    for caught in ("", " Exception", " AttributeError", " (ImportError, AttributeError)"):
        diagnosis = project({"train.py": tried.format(caught)})
        assert stops(diagnosis) == [] and [f.line for f in diagnosis.findings] == [3]
    asked = "import paddle\nif hasattr(paddle, 'enable_static'):\n    paddle.enable_static()\n"
    assert stops(project({"train.py": asked})) == []
    for caught in (
        " KeyError",
        " Exception as error:\n    print(error)\n    raise error\nexcept KeyError",
    ):
        assert stops(project({"train.py": tried.format(caught)})) == [(3, "paddle.enable_static")]


@pytest.mark.parametrize(
    "added",
    [
        "'lib'",
        "os.path.join(os.path.dirname(__file__), 'lib')",
        "os.path.dirname(os.path.abspath(__file__)) + '/lib'",
        "os.path.join(HERE, 'lib')",
        "str(pathlib.Path(__file__).resolve().parent / 'lib')",
        "str(pathlib.Path(__file__).parents[0] / 'lib')",
    ],
)
@pytest.mark.parametrize("call", ["sys.path.append({})", "sys.path.insert(0, {})"])
def test_modules_on_the_path_that_a_script_extends(project, added, call):
    script = (
        "import os, pathlib, sys\n"
        "HERE = os.path.dirname(os.path.realpath(__file__))\n"
        f"{call.format(added)}\n"
        "import networks\n"
    )
    files = {"a/train.py": script, "a/lib/networks.py": "import words\n", "a/lib/words.py": ""}
    diagnosis = project(files, "a/train.py")
    assert diagnosis.findings == [] and diagnosis.scripts == 3


def test_a_path_that_cannot_be_followed_leaves_a_note(project):
    script = "import sys\nsys.path.append(sys.argv[1])\nimport no_such_module\n"
    diagnosis = project({"train.py": script})
    assert stops(diagnosis) == [] and diagnosis.findings[0].code == "not-installed"
    assert "sys.path" in diagnosis.findings[0].happens


def test_an_import_that_may_fail_is_no_finding(project):
    lines = [
        "try:",
        "    from itertools import izip",
        "except ImportError:",
        "    izip = zip",
        "from itertools import imap",
    ]
    assert stops(project({"train.py": "\n".join(lines)})) == [(5, "itertools.imap")]


def test_distutils_is_gone_where_it_is(project):
    found = stops(project({"train.py": "import distutils.util\n"}))
    try:
        import distutils  # noqa: F401  (setuptools brings it from Python 3.12 on)
    except ImportError:
        assert found == [(1, "distutils.util")]
    else:
        assert found == []
    assert sys.version_info >= (3, 12) or found == []


def test_files_of_ci_are_passed_over(project):
    diagnosis = project({"_ce.py": "import kpi\n", "train.py": ""})
    assert diagnosis.findings == [] and diagnosis.scripts == 1
    assert stops(examine(["_ce.py"])) == [(1, "kpi")]


# ---- what imports lead to


def test_imports_are_followed_to_own_modules(project):
    files = {
        "train.py": "from news import data\nimport news.nets.text\nimport sys\n",
        "news/__init__.py": "",
        "news/data.py": "from . import words\nfrom .. import above\n",
        "news/words.py": "for i in xrange(3): pass\n",
        "news/nets/__init__.py": "",
        "news/nets/text.py": ("import paddle.fluid as fluid\nfluid.layers.fcc\nfrom ..words import *\n"),
        "news/not_imported.py": "reload(1)\n",
    }
    diagnosis = project(files, "train.py")
    assert diagnosis.scripts == 6 and diagnosis.fluid_files == 1
    found = sorted((f.file, f.line) for f in diagnosis.findings)
    assert found == [("news/nets/text.py", 2), ("news/words.py", 1)]
    assert project({}, ".").scripts == 7


def test_modules_that_import_each_other_end(project):
    assert project({"a.py": "import b\n", "b.py": "import a\n"}, "a.py").scripts == 2


# ---- data sets


def test_data_sets_without_files_are_named(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    script = (
        "import paddle\nimport paddle.dataset.cifar as cifar\n"
        "paddle.dataset.mnist.train()\nreader = cifar.train10()\n"
        "paddle.dataset.common.DATA_HOME\n"
    )
    found = project({"train.py": script}).findings
    assert [(f.line, f.code, f.severity) for f in found] == [
        (3, "data-set", Severity.NOTE),
        (4, "data-set", Severity.NOTE),
    ]
    assert found[0].do == "without a network put them into ~/.cache/paddle/dataset/mnist"
    files = tmp_path / "home" / ".cache" / "paddle" / "dataset" / "mnist"
    files.mkdir(parents=True)
    (files / "train-images-idx3-ubyte.gz").touch()
    assert [f.line for f in project({}).findings] == [4]


# ---- Python 3


def test_results_that_are_no_lists_in_python_3(project):
    lines = [
        "import numpy as np, random",
        "a = zip([1], [2])",
        "a[0]",  # 3
        "len(map(str, a))",  # 4
        "{}.keys()[0]",  # 5
        "order = range(10)",
        "random.shuffle(order)",  # 7
        "np.array(filter(None, a))",  # 8
        "range(3) + [4]",  # 9
        "{}.items().sort()",  # 10
        "b = list(zip([1], [2]))",
        "b[0], len({}.keys()), range(3)[1], np.array(range(3)), sorted({}.items())",
        "a = list(a)",
        "a[0]",
        "def f(a):",
        "    return a[0]",
    ]
    found = stops(project({"train.py": "\n".join(lines)}))
    assert [line for line, _ in found] == [3, 4, 5, 7, 8, 9, 10]
    own = "def zip(a): return a\nzip([1])[0]\n"
    assert stops(project({"train.py": own})) == []


def test_quotients_in_shapes(project):
    lines = [
        "import paddle.fluid as fluid",
        "x = fluid.data('x', [None, 4, 8, 8])",
        "padding = (3 - 1) / 2",
        "fluid.layers.conv2d(x, num_filters=8, filter_size=3, padding=padding)",  # 4
        "fluid.layers.reshape(x, shape=[-1, 8 / 2])",  # 5
        "fluid.layers.conv2d(x, num_filters=8 / 2, filter_size=3, padding=int(padding))",  # 6
        "padding = (3 - 1) // 2",
        "fluid.layers.conv2d(x, num_filters=8, filter_size=3, padding=padding)",
        "fluid.layers.scale(x, scale=1 / 2)",
        "fluid.layers.scale(x, 1 / 2)",
        "width = 128",
        "fluid.layers.fc(x, width / 2)",  # 12
        "fluid.layers.fc(x, int(width / 2))",
        "fluid.dygraph.Linear(4, output_dim=width / 2)",  # 14
    ]
    diagnosis = project({"train.py": "\n".join(lines)})
    assert [line for line, _ in stops(diagnosis)] == [4, 5, 6, 12, 14]
    assert all(f.do == "divide with //" for f in diagnosis.findings)


def test_images_of_any_size_are_a_difference(project):
    lines = [
        "import paddle.fluid as fluid",
        "fluid.data('a', [None, 3, None, None])",
        "fluid.layers.data('b', shape=[1, -1, -1])",
        "fluid.data('c', [None, 3, 32, None])",
        "fluid.data('d', [None, None, None])",
        "fluid.data('e', [-1, 8, -1, -1])",  # a mask of eight heads
        "fluid.data('f', [None, 3, -1, -1])",
    ]
    diagnosis = project({"train.py": "\n".join(lines)})
    assert [f.line for f in diagnosis.findings if "height and width" in f.happens] == [2, 3, 7]
    assert stops(diagnosis) == []


# ---- the verdict


def test_the_verdict_comes_first_with_what_matters_most(project, capsys):
    script = "import paddle.fluid as fluid\nfluid.load_op_library('x')\nxrange(1)\nxrange(2)\nunicode(3)\nreload(4)\n"
    assert project({"train.py": script}).verdict == "does not run: fluid.load_op_library"
    assert command.main(["doctor", "."]) == 3
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == shown[-1] == "does not run: fluid.load_op_library"
    assert shown[1].startswith("  ./train.py:2: fluid.load_op_library")
    assert shown[2].startswith("  ./train.py:3 (and 1 more): xrange is a name of Python 2; range")
    assert shown[3].startswith("  ./train.py:5: unicode") and not shown[4].strip()
