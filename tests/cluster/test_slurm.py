"""Jobs that a real Slurm runs, on two nodes that are network namespaces of this machine: what
`jfluid-launch --emit slurm` prints, from sbatch to the end of all processes.
"""

import itertools
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from jfluid.launch.command import parse
from jfluid.launch.emit import slurm_script
from scripts.cluster import slurm
from tests.cluster.case import (
    HOSTS_ENVIRONMENT,
    SLEEPS,
    TRAINING,
    seconds_to_end,
    set_number,
    sleepers,
    steps_of,
    wait_until,
)
from tests.cluster.training import alone, losses_of
from tests.launch_case import write

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing() or "-"),
]
ENVIRONMENT = {name: value for name, value in HOSTS_ENVIRONMENT.items() if name != "JFLUID_JOB_TOKEN"}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster():
    with slurm.Slurm(nodes=2) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(cluster, *arguments):
    """The number of a job with the script that `jfluid-launch --emit slurm` prints."""
    script = slurm_script(parse(arguments).job)
    return cluster.said("sbatch", "--parsable", write("job.sh", script), env=ENVIRONMENT)


def state(cluster, job):
    return cluster.said("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")


def has_gone(cluster, job):
    """Whether the processes of a job that runs again have ended."""
    said = cluster.said("scontrol", "show", "job", job)
    return "Restarts=1" in said and "COMPLETING" not in said


def end_of(cluster, job):
    """How a job has ended, and what its processes wrote."""
    # a look starts half a dozen processes
    wait_until(lambda: state(cluster, job) in ENDED, lambda: state(cluster, job), pause=0.5)
    return state(cluster, job), Path(f"slurm-{job}.out").read_text()


def test_processes_that_train_together(cluster):
    job = submit(cluster, "--nodes", "2", "--cpus", "1", TRAINING, "--steps", "5")
    found, said = end_of(cluster, job)
    assert found == "COMPLETED", said
    np.testing.assert_allclose(losses_of(".", 2), alone(5), rtol=1e-4)


# In the first life servers leave a snapshot, and all processes wait; in the second life trainers end at once.
TWO_LIVES = """
import os, pathlib, time
role = os.environ["TRAINING_ROLE"]
rank = os.environ["PADDLE_PSERVER_ID" if role == "PSERVER" else "PADDLE_TRAINER_ID"]
restores = os.environ.get("JFLUID_PS_RESTORE", "no")
if role == "PSERVER":
    folder = pathlib.Path(os.environ["JFLUID_PS_SNAPSHOT_FOLDER"], f"server-{rank}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").touch()
life = int("SLURM_RESTART_COUNT" in os.environ)
pathlib.Path(f"{role}.{rank}.{life}").write_text(restores)
time.sleep(600 * (role == "PSERVER" or life == 0))
"""


def test_a_requeued_job_resumes_from_snapshots(cluster):
    """The servers of its second life are told to; the launchers refuse the folder of snapshots otherwise."""
    job = submit(
        cluster,
        *("--nodes", "2", "--servers", "1", "--trainers", "1"),
        *("--set", "snapshots.folder=cuts", "--set", "server_grace=0.2", write("train.py", TWO_LIVES)),
    )
    wait_until(lambda: len(list(Path().glob("*.?.0"))) == 4, lambda: Path(f"slurm-{job}.out").read_text())
    cluster.run("scontrol", "requeue", job)
    found, said = end_of(cluster, job)
    assert found == "COMPLETED", said
    told = {path.name: path.read_text() for path in Path().glob("*.?.?")}
    of_servers = {f"PSERVER.{rank}.{life}": ("no", "1")[life] for rank in range(2) for life in range(2)}
    assert told == of_servers | {f"TRAINER.{rank}.{life}": "no" for rank in range(2) for life in range(2)}


@pytest.mark.slow
@pytest.mark.nightly  # the test above, and tests/cluster/test_hosts.py and tests/chaos, which go on from snapshots
def test_a_requeued_job_with_servers_goes_on_from_its_snapshots(cluster):
    set_number("go", 1)
    job = submit(
        cluster,
        *("--nodes", "2", "--servers", "1", "--trainers", "1"),
        *("--set", "snapshots.folder=cuts", "--set", "snapshots.every_s=0.2"),
        *(TRAINING, "--steps", "40"),
    )
    released = itertools.count(2)

    def all_have_a_snapshot():
        taken = min(steps_of(rank) for rank in range(2))
        if taken == int(Path("go").read_text()):
            set_number("go", next(released))
        lines = [path.read_text() for path in Path("cuts").glob("server-*/recovery_line.json")]
        return sum("[]" not in line for line in lines) == 2

    wait_until(all_have_a_snapshot, lambda: Path(f"slurm-{job}.out").read_text())
    cluster.run("scontrol", "requeue", job)
    set_number("go", 40)
    found, said = end_of(cluster, job)
    assert found == "COMPLETED", said
    begun = [int(number) for number in re.findall(r"goes on with step (\d+)", said)]
    assert begun[0] == 0 and 0 < begun[1] < 40, said
    np.testing.assert_allclose(losses_of(".", 2), alone(40), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.nightly  # the job before is requeued too; tests/cluster/test_hosts.py goes on from checkpoints
def test_a_requeued_job_of_processes_goes_on_from_its_checkpoint(cluster):
    set_number("go", 3)
    words = [TRAINING, "--steps", "6", "--checkpoints", "cuts"]
    job = submit(cluster, "--nodes", "2", "--cpus", "1", *words)
    wait_until(
        lambda: min(steps_of(rank) for rank in range(2)) == 3 and list(Path("cuts").glob("*.2")),
        lambda: Path(f"slurm-{job}.out").read_text(),
    )
    cluster.run("scontrol", "requeue", job)
    wait_until(lambda: has_gone(cluster, job), lambda: state(cluster, job), pause=0.5)
    set_number("go", 6)
    found, said = end_of(cluster, job)
    assert found == "COMPLETED", said
    assert re.findall(r"goes on with step (\d+)", said)[-1] == "3", said
    assert steps_of(0) == steps_of(1) == 6, "no step was taken twice"
    np.testing.assert_allclose(losses_of(".", 2), alone(6), rtol=1e-4)


def sleeping_job(cluster):
    job = submit(cluster, "--nodes", "2", "--cpus", "2", write("train.py", SLEEPS))
    return job, sleepers(4)


def test_scancel_ends_all_processes(cluster):
    job, processes = sleeping_job(cluster)
    cluster.run("scancel", job)
    assert seconds_to_end(processes) < 10
    found, said = end_of(cluster, job)
    assert found == "CANCELLED"
    assert "was ended by SIGTERM" in said and "failed first" not in said, said


def test_a_killed_process_ends_the_job_and_is_named(cluster):
    job, processes = sleeping_job(cluster)
    os.kill(processes[0], signal.SIGKILL)
    assert seconds_to_end(processes) < 10
    found, said = end_of(cluster, job)
    assert found == "FAILED"
    assert "failed first (signal SIGKILL)" in said, said


@pytest.mark.slow
@pytest.mark.nightly  # Slurm sends the same signals as scancel does
def test_a_time_limit_ends_all_processes(cluster):
    job, processes = sleeping_job(cluster)
    cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+1")
    wait_until(  # Slurm looks every 30 s
        lambda: "DUE TO TIME LIMIT" in Path(f"slurm-{job}.out").read_text(), lambda: "the limit"
    )
    assert seconds_to_end(processes) < 10
    found, said = end_of(cluster, job)
    assert found == "TIMEOUT"
    assert "was ended by SIGTERM" in said and "failed first" not in said, said
