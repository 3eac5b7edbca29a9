"""All functions of machine code run between pages that nobody may touch, each test of `in_guards.py` in one process
that ends where one reads or writes beside an array.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid.machine_code import kernel_registry, lstm_kernels
from tests.fuzz import harness
from tests.machine_code import guarded

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not kernel_registry.supports("lstm"), reason="machine code is made for CPUs with AVX2"),
    pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded as on Linux"),
]
ROOT = Path(__file__).parents[2]
BESIDE = """
import json, os, sys
import numpy as np, jax
from pathlib import Path
from jfluid.machine_code import sequence_dispatch, lstm_dispatch, lstm_kernels
from jfluid.ops.sequence_loops import LstmForm
from tests.machine_code import guarded
folder, *cases = sys.argv[1:]
for number, case in enumerate(cases):
    if not (child := os.fork()):
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
else:
    sys.exit()
rows, first, last = json.loads(case)
folder = Path(folder) / str(number)
folder.mkdir()
width, made = 16, [jax.ShapeDtypeStruct((4, n * 16), np.float32) for n in (1, 1, 4)]
sizes, weight = sequence_dispatch.LoopSizes((), 4, 1, width), np.zeros((width, 4 * width), np.float32)
panels = sequence_dispatch.Panels.of(weight)
numbers = lstm_dispatch._numbers(LstmForm(("sigmoid", "tanh", "tanh")), sizes, panels)
numbers = np.array([numbers[n] for n in lstm_kernels.GEOMETRY], np.int32)
x, state, bias = (np.zeros(shape, np.float32) for shape in ((rows, 4 * width), (1, width), 7 * width))
places = np.array([0, first, last - first, last], np.int32)
given = x, panels.array, bias, state, state, places
guarded.Guards(folder).run(lstm_kernels.FORWARD, numbers, given, made, {})
"""


def run(folder, *arguments, flags=""):
    """Run Python beside the project, and return what it gave."""
    environment = {**os.environ, "JFLUID_GUARDED_FOLDER": str(folder), "JFLUID_RENEW": ""}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    environment.setdefault("JFLUID_FUZZ_CASES", str(harness.USUAL // 5))  # `make fuzz` has more
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "flags",
    # before each change `test_narrow_vectors.py` runs the code for 256 bits
    ["", pytest.param("--xla_cpu_max_isa=AVX2", marks=pytest.mark.nightly)],
    ids=["widest", "256 bits"],
)
def test_all_functions_stay_inside_of_their_arrays(tmp_path, flags):
    tests = "tests/machine_code/in_guards.py"
    done = run(tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests, flags=flags)
    runs = (tmp_path / guarded.RUNS).read_text()
    assert done.returncode == 0, f"{runs}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    ran = set((tmp_path / guarded.RAN).read_text().split())
    assert ran and (flags or ran == set(kernel_registry.kernels()))


def test_guards_end_what_reads_beside_an_array(tmp_path):
    """Rows, the first and the last row that is read: inside, an array too short, before it, behind it."""
    cases = {"[4, 0, 4]": 0, **dict.fromkeys(("[3, 0, 4]", "[4, -1, 4]", "[4, 0, 5]"), -signal.SIGSEGV)}
    done = run(tmp_path, "-c", BESIDE, str(tmp_path), *cases)
    assert done.stdout.splitlines() == [str(code) for code in cases.values()], done.stderr
    for number in range(len(cases)):
        assert lstm_kernels.FORWARD in (tmp_path / str(number) / guarded.RUNS).read_text()
