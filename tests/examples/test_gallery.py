"""The gallery's programs, which say `import paddle.fluid`: their losses are those of the real Fluid
(tests/golden/gallery.json), alone, on two CPU devices, and with parameter servers; and what they learn
comes near to the best that there is.
"""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import jfluid as fluid
from tests.compat.test_paddle import installed  # noqa: F401  # a fixture
from tests.gpu.ahead import lowers_for_cuda  # noqa: F401  # a fixture
from tests.launch_case import launched
from tests.parity.gallery import PROGRAMS, STEPS
from tests.slow_tests import nightly_but

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "gallery"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "gallery.json").read_text())
# The steps that a program is run for alone, and how far from the best it may then be: fewer than by
# default, and further.
SHORT = {
    "bert": (80, 1.2),
    "crf_tagging": (60, 0.03),
    "deepfm": (200, 0.13),
    "din": (100, 0.06),
    "gru4rec": (120, 0.3),
    "mmoe": (100, 0.03),
    "resnet": (100, 0.3),
    "semantic_matching": (150, 0.05),
    "transformer": (100, 0.05),
    "word2vec": (150, 0.04),
}

QUICKEST = ("mmoe", "word2vec")  # every night all learn; before each change these


FEWEST = 4  # steps, of which the last predicts


def losses(folder):
    """By step; of several trainers the mean."""
    files = sorted(folder.glob("losses*.json"))
    return np.mean([json.loads(file.read_text()) for file in files], axis=0)[:STEPS]


def hold_alone(run, folder, program, steps):
    printed = run(program, "--steps", steps, "--worst_gap", 9)
    np.testing.assert_allclose(losses(folder), GOLDEN[program]["alone"][:steps], rtol=1e-4)
    assert re.fullmatch(r".*: [\d.]+; best reachable: [\d.]+; gap: [\d.]+\n", printed)


@pytest.fixture
def run(installed, monkeypatch, tmp_path, capsys):  # noqa: F811
    """Runs a program in this process, and returns what it prints."""

    def run(program, *arguments):
        monkeypatch.syspath_prepend(str(GALLERY))
        command = [program, "--output_dir", str(tmp_path), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        try:
            with fluid.scope_guard(fluid.Scope()):
                runpy.run_path(str(GALLERY / f"{program}.py"), run_name="__main__")
        finally:
            sys.modules.pop("common", None)
        return capsys.readouterr().out

    return run


# in the transformer's beam search the rows of hypotheses meet those of the encoder
@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
@pytest.mark.usefixtures("interpreted_steps")
@pytest.mark.parametrize("program", PROGRAMS)
def test_alone(run, tmp_path, program):
    hold_alone(run, tmp_path, program, FEWEST)


@pytest.mark.nightly  # before each change fewer steps, and as many on two devices
@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_alone_for_longer(run, tmp_path, program):
    hold_alone(run, tmp_path, program, STEPS)


# before each change tests/compile/test_recorded_cases.py lowers operators with each primitive
@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
@pytest.mark.usefixtures("lowers_for_cuda", "interpreted_steps")
@pytest.mark.parametrize("program", nightly_but(("deepfm",), PROGRAMS))
def test_steps_lower_for_gpus(run, program):
    run(program, "--steps", FEWEST, "--worst_gap", 9)


@pytest.mark.filterwarnings("ignore:this program is compiled anew:RuntimeWarning")
@pytest.mark.parametrize("program", nightly_but(QUICKEST, PROGRAMS))
def test_what_is_learned_is_near_the_best(run, program):
    steps, gap = SHORT[program]
    run(program, "--steps", steps, "--worst_gap", gap)  # it fails above the gap


@pytest.mark.parametrize("program", nightly_but(("deepfm", "gru4rec"), [n for n, s in PROGRAMS.items() if s]))
def test_on_two_devices(run, tmp_path, monkeypatch, program):
    monkeypatch.setenv("CPU_NUM", "2")
    run(program, "--steps", STEPS, "--parallel", 1, "--worst_gap", 9)
    np.testing.assert_allclose(losses(tmp_path), GOLDEN[program]["replicas"], rtol=1e-4)


@pytest.mark.nightly  # tests/contrib/test_mixed_precision.py compares programs in half precision before each change
def test_half_precision_is_near(run, tmp_path):
    """Fluid 1.8.5 has no such kernels on CPUs: its losses in single precision are the measure."""
    run("bert", "--steps", STEPS, "--half", 1, "--worst_gap", 9)
    found = losses(tmp_path)
    np.testing.assert_allclose(found, GOLDEN["bert"]["alone"], rtol=5e-3)
    assert not np.allclose(found, GOLDEN["bert"]["alone"], rtol=1e-6)  # it is in half precision


def test_a_program_fails_where_it_is_too_far_from_the_best(run):
    with pytest.raises(SystemExit, match="the gap is above 0.001"):
        run("semantic_matching", "--steps", 4, "--worst_gap", 0.001)


@pytest.mark.process
@pytest.mark.parametrize("program", nightly_but(("deepfm", "mmoe"), PROGRAMS))
def test_by_its_job_file(tmp_path, monkeypatch, program):
    """In an empty folder: on two CPU devices, or by two parameter servers and two trainers."""
    values = {
        "script": GALLERY / f"{program}.py",
        "args.steps": STEPS,
        "args.worst_gap": 9,
        "args.output_dir": "losses",
        "log_dir": "log",
    }
    monkeypatch.chdir(tmp_path)
    result = launched(
        GALLERY / f"{program}.yaml",
        *(f"--set={key}={value}" for key, value in values.items()),
        environment=os.environ | {"PYTHONPATH": str(ROOT)},
        forks=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    way = "servers" if PROGRAMS[program] else "replicas"
    np.testing.assert_allclose(losses(tmp_path / "losses"), GOLDEN[program][way], rtol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "losses"]


def test_every_program_has_a_job_file_and_a_golden_run():
    programs = {path.stem for path in GALLERY.glob("*.py")} - {"common"}
    assert programs == set(PROGRAMS) == set(GOLDEN) == {path.stem for path in GALLERY.glob("*.yaml")}
