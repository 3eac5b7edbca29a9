"""The demo and the README's script, run as a user runs them."""
import re
from pathlib import Path

import numpy as np
import pytest

from tests.example_runs import ROOT, run_example

pytestmark = pytest.mark.process


def test_demo(tmp_path):
    result = run_example("recognize_digits", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    accuracy = float(re.search(r"test accuracy: ([\d.]+)% of 360 digits", result.stdout)[1])
    assert accuracy >= 97
    assert re.search(r"train 880/880 .* examples/s  loss ", result.stderr)
    assert "reloaded with the same predictions" in result.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "model" / "__model__").stat().st_size > 1000
    assert "test accuracy" in (tmp_path / "log" / "workerlog.0").read_text()


def test_demo_fails_below_the_accuracy_it_wants(tmp_path):
    result = run_example("recognize_digits", tmp_path, epochs=1, minimum_accuracy=1.0)
    assert result.returncode == 1
    assert "the test accuracy is below 100%" in result.stderr


def test_the_script_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = re.search(r"```python\n(import numpy.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(compile(script, "README.md", "exec"), names)
    assert names["value"] < 0.05
    assert np.isfinite(names["value"])
    assert Path("model/__model__").is_file()
