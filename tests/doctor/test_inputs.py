"""What the doctor is given beside scripts: wrong paths, damaged models, links in circles, much of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid import command
from jfluid.doctor import Severity, examine, fluid_api, rules
from jfluid.ir import framework_pb2 as pb
from tests.doctor.test_doctor import CLEAN, PLANTED

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "tests" / "golden" / "models" / "separate"
SCRIPT = "import paddle.fluid as fluid\nx = fluid.data('x', [1])\n"


def only(paths):
    """The one finding that there is."""
    (finding,) = examine([str(paths)]).findings
    return finding


@pytest.mark.parametrize(
    "name, says",
    [
        ("gone", "there is no such file or folder"),
        ("pipe", "expected a script, a notebook, a model or a folder"),
        ("circle", "Too many levels of symbolic links"),
        ("large.bin", "expected a script (.py)"),
        ("a\0b", "null"),
    ],
)
def test_wrong_paths_are_named(tmp_path, capsys, name, says):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(1 << 30)
    assert command.main(["doctor", str(tmp_path / name)]) == 2
    assert says in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_an_unknown_subcommand_is_named(capsys):
    assert command.main(["docter"]) == 2
    assert "did you mean doctor" in capsys.readouterr().err


def test_files_that_are_no_source(tmp_path):
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0\1")
    with open(tmp_path / "huge.py", "wb") as file:
        file.truncate(1 << 34)
    (tmp_path / "book.ipynb").write_text('{"cells": 3}')
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    found = {Path(f.file).name: (f.code, f.severity) for f in examine([str(tmp_path)]).findings}
    assert found == {
        "binary.py": ("binary", Severity.CHANGE),
        "huge.py": ("too-large", Severity.NOTE),
        "book.ipynb": ("notebook", Severity.CHANGE),
        "deep.py": ("syntax", Severity.CHANGE),
    }


def test_links_in_a_circle_are_said_and_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.py").write_text(SCRIPT)
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "other.py").symlink_to("train.py")
    diagnosis = examine([str(tmp_path), str(tmp_path / "a" / "train.py")])
    assert diagnosis.scripts == 1  # each file once, however many names lead there
    (finding,) = diagnosis.findings
    assert finding.code == "link" and finding.file.endswith("a/again")


def test_a_model_is_read_with_all_its_files(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    assert examine([str(model)]).verdict == "runs as it is"
    shutil.copytree(MODEL.parent / "combined", combined := tmp_path / "combined")
    assert examine([str(combined / "model")]).verdict == "runs as it is"
    (combined / "params").write_bytes((combined / "params").read_bytes()[:-1])
    assert "truncated" in only(combined / "model").happens
    weight = model / "fc_0.w_0"
    weight.write_bytes(weight.read_bytes()[:100])
    assert "fc_0.w_0: truncated" in only(model).happens
    weight.unlink()
    assert "fc_0.w_0: No such file" in only(model).happens
    program = model / "__model__"
    program.write_bytes(program.read_bytes()[:3000])
    finding = only(model)
    assert finding.code == "broken-model" and finding.severity is Severity.BLOCKER
    assert examine([str(model)]).exit_code == 3


def test_operators_of_a_model_that_are_not_here(tmp_path):
    desc = pb.ProgramDesc()
    inner = desc.blocks.add(idx=0, parent_idx=-1)
    for kind in ("no_such", "relu", "relu_grad", "no_such_grad", "no_such_either"):
        inner.ops.add(type=kind)
    (tmp_path / "__model__").write_bytes(desc.SerializeToString())
    found = [f.subject for f in examine([str(tmp_path)]).findings]
    assert found == [f"operator {n}" for n in ("no_such", "no_such_grad", "no_such_either")]


def test_json_has_everything_and_the_exit_code(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT + "fluid.layers.fc(x)\n")
    assert command.main(["doctor", "--json", str(tmp_path)]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "runs after 1 change" and record["exit_code"] == 1
    assert record["examined"]["scripts"] == 1
    (finding,) = record["findings"]
    assert finding["line"] == 3 and finding["severity"] == "change"


def test_the_table_has_places_and_a_verdict(tmp_path, capsys):
    lines = ["fluid.layers.fc(x)", "fluid.contrib.Compressor(x)"] + ["fluid.load_op_library(x)"] * 8
    (tmp_path / "train.py").write_text(SCRIPT + "\n".join(lines))
    assert command.main(["doctor", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "train.py:3" in said and "and 3 more places" in said
    assert said.rstrip().endswith("does not run: fluid.load_op_library (8 places), fluid.contrib.Compressor")


def test_rules_are_about_names_that_there_are():
    api = fluid_api.load()
    for rule in rules.rules():
        for use in rule.uses:
            entry = rules.resolve(api, use)
            named = (*rule.given, *rule.absent, *rule.equal, *rule.unlike, *rule.above)
            assert [name for name in named if not entry.takes(name)] == [], use
        for attribute in rule.assigns:
            owner, _, name = attribute.partition(".")
            found = api.class_of(owner)
            assert found is not None and name in found.attributes, attribute


@pytest.mark.process
def test_five_hundred_files_without_jax(tmp_path):
    """Processor time, in a process of its own, since the machine may be busy."""
    some = [path for path in (*CLEAN, *PLANTED) if path.suffix == ".py"]
    for i in range(500):
        source = some[i % len(some)]
        (tmp_path / f"{source.stem}_{i}.py").write_bytes(source.read_bytes())
    code = (
        "import sys, time, jfluid_command; sys.argv[1:] = ['doctor', '--json', sys.argv[1]]\n"
        "code = jfluid_command.main()\n"
        "print(code, 'jax' in sys.modules, time.process_time(), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    exit_code, jax, seconds = done.stderr.split()
    assert (exit_code, jax) == ("3", "False") and json.loads(done.stdout)["examined"]["scripts"] == 500
    assert float(seconds) < 20  # 3 on the machine that it was measured on
