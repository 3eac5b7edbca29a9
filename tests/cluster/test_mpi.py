"""Jobs that a real Open MPI starts: launchers as its processes, and scripts as its processes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest

from tests.cluster.case import HOSTS_ENVIRONMENT, PYTHON, SLEEPS, TRAINING, seconds_to_end, sleepers
from tests.cluster.training import alone, losses_of
from tests.launch_case import LIMIT, write

MISSING = "" if shutil.which("mpirun") else "there is no mpirun (Debian: apt-get install openmpi-bin)"
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mpirun():
    """What starts a command as so many processes."""
    command = ["mpirun", "--oversubscribe"] + ["--allow-run-as-root"] * (os.geteuid() == 0)
    # Sockets are in TMPDIR, where long paths are none.
    with tempfile.TemporaryDirectory(prefix="mpi-", dir="/tmp") as folder:
        environment = HOSTS_ENVIRONMENT | {"TMPDIR": folder}
        yield lambda count, *words: subprocess.Popen(
            [*command, "-np", str(count), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.parametrize(
    ("count", "command"),
    [(2, [*PYTHON, "--cpus", "1"]), (2, [sys.executable])],
    ids=["launchers", "scripts"],
)
def test_processes_that_train_together(mpirun, count, command):
    said, _ = mpirun(count, *command, TRAINING, "--steps", "4").communicate(timeout=LIMIT)
    assert os.path.exists("losses-1"), said
    np.testing.assert_allclose(losses_of(".", count), alone(4), rtol=1e-4, err_msg=said)


def test_mpirun_that_is_ended_ends_all(mpirun):
    job = mpirun(2, *PYTHON, "--cpus", "1", write("train.py", SLEEPS))
    processes = sleepers(2)
    job.terminate()
    assert seconds_to_end(processes) < 10
    job.communicate(timeout=LIMIT)  # it passes nothing on any more
    assert job.returncode


def test_a_killed_process_ends_all_and_is_named(mpirun):
    job = mpirun(2, *PYTHON, "--cpus", "1", write("train.py", SLEEPS))
    processes = sleepers(2)
    os.kill(processes[0], signal.SIGKILL)
    assert seconds_to_end(processes) < 10
    said, _ = job.communicate(timeout=LIMIT)
    assert "failed first (signal SIGKILL)" in said and job.returncode, said
