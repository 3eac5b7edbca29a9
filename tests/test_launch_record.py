"""What a job's launcher and its processes leave in the record."""

import signal
from pathlib import Path

import pytest

from jfluid.record import lines
from tests.launch_case import gang, launched, write

pytestmark = pytest.mark.process

LOGS = """
import jfluid
from jfluid import record
for step in range(3):
    jfluid.log(step, loss=float(rank))
record.current().flush()
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def recorded(name, kind):
    found = lines.Tail(Path("mylog/record") / f"{name}.jsonl").lines()
    return [line for line in found if line["kind"] == kind]


def events(name="launcher.0"):
    return [(line["event"], line.get("label")) for line in recorded(name, "event")]


def test_a_trainer_that_is_killed():
    script = (
        LOGS
        + "ready()\nwait_for('pid.0', 'pid.1')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(1000)"
    )
    assert gang(script, "--cpus", "2", forks=True).returncode == 128 + signal.SIGKILL
    for rank in (0, 1):
        found = recorded(f"trainer.{rank}", "scalars")
        assert [(line["step"], line["scalars"]) for line in found] == [
            (step, {"loss": float(rank)}) for step in range(3)
        ]
    found = events()
    assert found[:3] == [("job", None), ("start", "rank 0"), ("start", "rank 1")]
    assert found[-2:] == [("failure", "rank 1"), ("end", None)]
    (exit,) = [
        e for e in recorded("launcher.0", "event") if e["event"] == "exit" and e["rank"] == 1
    ]
    assert (exit["code"], exit["reason"], exit["log"]) == (-9, "signal SIGKILL", "workerlog.1")
    (job,) = [line for line in recorded("launcher.0", "event") if line["event"] == "job"]
    assert "processes: 2" in job["job"] and job["versions"]["jfluid"]
    assert "a-secret-of-the-tests" not in Path("mylog/record/launcher.0.jsonl").read_text()


def test_restarts_and_the_traceback_of_a_failure():
    script = LOGS + "raise RuntimeError('<b>too</b> \\x1b[31m large')"
    assert gang(script, "--cpus", "1", "--max-restarts", "1", forks=True).returncode == 1
    failures = [e for e in recorded("launcher.0", "event") if e["event"] == "failure"]
    assert [(f["label"], f["reason"], f["again"]) for f in failures] == [
        ("rank 0", "exit code 1", True),
        ("rank 0", "exit code 1", False),
    ]
    assert (
        "Traceback" in failures[0]["excerpt"]
        and "<b>too</b> \x1b[31m large" in failures[0]["excerpt"]
    )
    assert len(recorded("trainer.0", "start")) == 2 and len(recorded("trainer.0", "scalars")) == 6
    assert [line["restarts"] for line in recorded("trainer.0", "start")] == [0, 1]
    assert recorded("launcher.0", "usage")[0]["members"]["rank 0"][0] > 0


def test_a_member_that_is_started_again_alone():
    script = (
        LOGS + "if not os.environ.get('JFLUID_RESTARTS', '0') != '0': raise RuntimeError('once')"
    )
    write("train.py", "import os\nrank = int(os.environ['PADDLE_TRAINER_ID'] or 0)\n" + script)
    # a script that leaves at once as a server
    text = Path("train.py").read_text()
    write(
        "train.py",
        "import os, sys\nif os.environ['TRAINING_ROLE'] == 'PSERVER': sys.exit(0)\n" + text,
    )
    write("job.yaml", "script: train.py\nmode: ps\nrestarts: {trainers: 1}\n")
    assert launched("job.yaml", forks=True).returncode == 0
    (again,) = [e for e in recorded("launcher.0", "event") if e["event"] == "restart"]
    assert again["label"] == "rank 0" and "RuntimeError: once" in again["excerpt"]


def test_a_new_job_begins_anew_and_one_without_a_record_leaves_none():
    assert gang(LOGS, "--cpus", "2", forks=True).returncode == 0
    assert gang(LOGS, "--cpus", "1", forks=True).returncode == 0
    assert sorted(path.name for path in Path("mylog/record").iterdir()) == [
        "launcher.0.jsonl",
        "trainer.0.jsonl",
    ]
    assert len(recorded("trainer.0", "scalars")) == 3
    script = "import jfluid\nfrom jfluid import record\nassert record.current() is None\n"
    done = gang(script, "--cpus", "1", "--set", "record=false", "--log_dir", "other", forks=True)
    assert done.returncode == 0 and not Path("other/record").exists()


def test_a_record_that_cannot_be_written_is_said_and_does_not_end_the_job():
    Path("mylog").mkdir()
    Path("mylog/record").write_text("")
    done = gang("import jfluid\njfluid.log(0, loss=1.0)", "--cpus", "1", forks=True)
    assert done.returncode == 0
    assert "the record" in done.stderr and "cannot be written" in done.stderr
