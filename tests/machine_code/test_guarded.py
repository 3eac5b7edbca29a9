"""All functions of machine code run between pages that nobody may touch, each test of `in_guards.py` in one process
that ends where one reads or writes beside an array.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid.machine_code import pool_kernels
from tests.fuzz import harness
from tests.machine_code import guarded

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not pool_kernels.names(), reason="machine code is made for CPUs with AVX2"),
    pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded as on Linux"),
]
ROOT = Path(__file__).parents[2]
BESIDE = """
import sys
import numpy as np, jax
from pathlib import Path
from jfluid.machine_code import direct_maximum, functions, pool_kernels
from tests.machine_code import guarded
rows, first, last = map(int, sys.argv[2:])
numbers = direct_maximum._numbers(4, (1, 16))
numbers = np.array([numbers[n] for n in pool_kernels.GEOMETRY], np.int32)
given = np.zeros((rows, 16), np.float32), np.array([first, last], np.int32)
made = [jax.ShapeDtypeStruct((1, 16), kind) for kind in (np.float32, np.int32)]
guarded.Guards(Path(sys.argv[1])).run(pool_kernels.FORWARD, numbers, given, made, {})
"""


def run(folder, *arguments, flags=""):
    """Run Python beside the project, and return what it gave."""
    environment = {**os.environ, "JFLUID_GUARDED_FOLDER": str(folder)}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    if flags:  # the same code with other vectors: fewer shapes, but for `make fuzz`
        environment.setdefault("JFLUID_FUZZ_CASES", str(harness.USUAL // 5))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("flags", ["", "--xla_cpu_max_isa=AVX2"], ids=["widest", "256 bits"])
def test_all_functions_stay_inside_of_their_arrays(tmp_path, flags):
    tests = "tests/machine_code/in_guards.py"
    done = run(tmp_path, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests, flags=flags)
    runs = (tmp_path / guarded.RUNS).read_text()
    assert done.returncode == 0, f"{runs}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    ran = set((tmp_path / guarded.RAN).read_text().split())
    assert ran and (flags or ran == set(guarded.names()))


@pytest.mark.parametrize(
    ("rows", "first", "last", "code"),
    [
        (4, 0, 4, 0),
        (3, 0, 4, -signal.SIGSEGV),
        (4, -1, 4, -signal.SIGSEGV),
        (4, 0, 5, -signal.SIGSEGV),
    ],
    ids=["inside", "an array too short", "before it", "behind it"],
)
def test_guards_end_what_reads_beside_an_array(tmp_path, rows, first, last, code):
    done = run(tmp_path, "-c", BESIDE, str(tmp_path), *map(str, (rows, first, last)))
    assert done.returncode == code, done.stderr
    assert pool_kernels.FORWARD in (tmp_path / guarded.RUNS).read_text()
