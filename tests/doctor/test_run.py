"""`jfluid doctor --run`: scripts run for a few steps, in a scratch folder, within limits."""

import json

import pytest

from jfluid import command
from jfluid.doctor import trial

pytestmark = pytest.mark.process

SCRIPT = """\
import os, sys
import numpy as np
import paddle.fluid as fluid

x = fluid.data("x", [None, 2])
loss = fluid.layers.mean(x)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
open("written", "w").write(open("data.txt").read() + sys.argv[1])
value = 0
while True:
    value = float(exe.run(feed={"x": np.full((1, 2), value + 1, "float32")}, fetch_list=[loss])[0])
    if value == 3 and sys.argv[1] == "fail":
        exe.run(feed={"y": 1}, fetch_list=[loss])
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("FLAGS_interpret_first_steps", "1")
    (tmp_path / "data.txt").write_text("data")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def test_a_script_is_ended_after_its_steps(script, capsys):
    assert command.main(["doctor", str(script), "--run", "--steps", "4", "--json", "--", "go"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "runs as it is" and record["run"]["ended"] == "steps"
    assert record["run"]["steps"] == 4 and record["run"]["fetched"] == ["[4]"]
    assert record["run"]["memory"] > 50 and not (script.parent / "written").exists()


def test_an_error_is_said_with_its_line(script, capsys):
    assert command.main(["doctor", str(script), "--run", "--", "fail"]) == 3
    said = capsys.readouterr().out
    assert "failed after 3 steps" in said and "train.py:14: FeedError" in said


@pytest.mark.parametrize(
    "code, limits, ended",
    [
        ("import time; time.sleep(600)", trial.TrialLimits(seconds=1), "time"),
        (
            "x = bytearray(1 << 29); x[::4096] = b'a' * (1 << 17); input()",
            trial.TrialLimits(memory=300),
            "memory",
        ),
    ],
)
def test_limits_end_a_script_and_all_it_started(tmp_path, monkeypatch, code, limits, ended):
    # In a process that does without jfluid, which would take a second to begin.
    (tmp_path / "train.py").write_text(code + "\n")
    (tmp_path / "child.py").write_text(
        "import runpy, sys\nimport os; r = open(sys.argv[1], 'w')\n"
        'r.write(\'{"ended": "running"}\'); r.close()\n'
        "sys.stdin = open('/dev/zero', 'r', encoding='latin-1')\nrunpy.run_path(sys.argv[3])\n"
    )
    monkeypatch.setattr(trial, "_CHILD", "child")
    outcome = trial.run(str(tmp_path / "train.py"), [], limits)
    assert outcome.ended == ended and not outcome.runs
    assert f"at the limit of {ended}" in next(outcome.lines())


def test_only_one_script_is_run(tmp_path, capsys):
    assert command.main(["doctor", str(tmp_path), "--run"]) == 2
    assert "--run takes one script" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["doctor", "a.py", "b.py", "--run"])
