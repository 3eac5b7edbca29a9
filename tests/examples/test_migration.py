"""The project of docs/migration.md goes the way that the page tells."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from jfluid import command
from tests import forked

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "migration"
PAGE = (ROOT / "docs" / "migration.md").read_text()


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    """A copy of the old project, in the folder that the page calls clicks/."""
    shutil.copytree(PROJECT / "old", tmp_path / "clicks")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "clicks"


def mended(clicks):
    """Do what the page does by hand and by the doctor."""
    assert command.main(["doctor", "--fix-python2", "--apply", "clicks"]) == 0
    network = clicks / "network.py"
    network.write_text(network.read_text().replace("16 / 2", "16 // 2"))


def run(*arguments, folder):
    done = forked.jfluid(arguments, folder, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.MULTILINE)]


def test_the_doctor_says_what_the_page_shows(clicks, capsys):
    assert command.main(["doctor", "clicks/"]) == 1
    first = capsys.readouterr().out.splitlines()[:4]
    assert "\n".join(first) in PAGE
    assert command.main(["doctor", "--fix-python2", "clicks/"]) == 1
    diff = capsys.readouterr().out
    shown = re.search(r"```text\n(--- clicks/train.py\n.*?)```", PAGE, re.DOTALL)[1]
    assert shown in diff
    mended(clicks)
    capsys.readouterr()
    assert command.main(["doctor", "clicks/"]) == 0
    assert capsys.readouterr().out in PAGE


def test_the_page_says_how_long_the_files_are():
    for file in (PROJECT / "old").iterdir():
        if file.suffix == ".py":
            assert f"| `{file.name}` | {len(file.read_text().splitlines())} |" in PAGE


@pytest.mark.process
@pytest.mark.slow
def test_it_trains_from_given_parameters(clicks):
    mended(clicks)
    begun = run("run", "train.py", "--steps", 60, "--save-init", "begin", folder=clicks)
    again = run("run", "train.py", "--steps", 60, "--init", "begin", folder=clicks)
    assert again == begun and len(begun) == 3 and begun[0] > 0.68 and begun[1] < 0.64


@pytest.mark.process
@pytest.mark.nightly  # test_demo.py trains with servers before each change
def test_it_trains_with_servers(clicks):
    mended(clicks)
    script = (PROJECT / "train_servers.py").read_text().replace("300", "60").replace("299", "59")
    (clicks / "train_servers.py").write_text(script)
    shared = run("launch", "--servers", 2, "--trainers", 2, "train_servers.py", folder=clicks)
    assert len(shared) == 3 and shared[0] > 0.66 and shared[1] < 0.64
    assert command.main(["inspect", str(clicks / "served")]) == 0
