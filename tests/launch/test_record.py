"""What a job's launcher and its processes leave in the record."""

import contextlib
import http.client
import importlib.util
import json
import re
import signal
import socket
from pathlib import Path

import pytest

from jfluid.dashboard import address
from jfluid.job import JobError
from jfluid.launch import page
from jfluid.launch.command import parse
from jfluid.launch.gang import local_gang
from jfluid.launch.recording import JobRecord
from jfluid.record import lines
from tests.launch_case import (
    ENVIRONMENT,
    LIMIT,
    PROLOGUE,
    Launcher,
    gang,
    launched,
    wait_until,
    write,
)
from tests.ports import free_port

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
    script = LOGS + "ready()\nwait_for('pid.0', 'pid.1')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(1000)"
    assert gang(script, "--cpus", "2", forks=True).returncode == 128 + signal.SIGKILL
    for rank in (0, 1):
        found = recorded(f"trainer.{rank}", "scalars")
        assert [(line["step"], line["scalars"]) for line in found] == [
            (step, {"loss": float(rank)}) for step in range(3)
        ]
    found = events()
    assert found[:3] == [("job", None), ("start", "rank 0"), ("start", "rank 1")]
    assert found[-2:] == [("failure", "rank 1"), ("end", None)]
    (exit,) = [e for e in recorded("launcher.0", "event") if e["event"] == "exit" and e["rank"] == 1]
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
    assert "Traceback" in failures[0]["excerpt"] and "<b>too</b> \x1b[31m large" in failures[0]["excerpt"]
    assert len(recorded("trainer.0", "start")) == 2 and len(recorded("trainer.0", "scalars")) == 6
    assert [line["restarts"] for line in recorded("trainer.0", "start")] == [0, 1]


# A process that has just ended has 0 bytes: this process waits until its memory is in the record.
WAITS_FOR_ITS_USAGE = """
import json
path, found = pathlib.Path("mylog/record/launcher.0.jsonl"), []
while not any(line["kind"] == "usage" and line["members"].get("rank 0", [0])[0] > 0 for line in found):
    time.sleep(0.05)
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.rpartition("\\n")[0].splitlines()]
"""


def test_memory_and_processor_time_of_members():
    assert gang(WAITS_FOR_ITS_USAGE, "--cpus", "1").returncode == 0
    used = [line["members"]["rank 0"] for line in recorded("launcher.0", "usage") if "rank 0" in line["members"]]
    assert max(memory for memory, _ in used) > 1 << 20 and used[-1][1] >= 0


def test_a_member_that_is_started_again_alone():
    script = LOGS + "if not os.environ.get('JFLUID_RESTARTS', '0') != '0': raise RuntimeError('once')"
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


def test_another_host_begins_the_files_of_its_own_processes_anew():
    write("train.py", "")
    (member,) = local_gang(parse(["train.py"]).job)
    own, other = (Path("mylog/record") / f"{name}.jsonl" for name in ("trainer.0", "trainer.1"))
    own.parent.mkdir(parents=True)
    for path in (own, other):
        path.write_text("")
    held = JobRecord(parse(["train.py"]).job, 1)
    held.begin([member])
    held.close()
    assert not own.exists() and other.exists() and [e for e, _ in events("launcher.1")] == ["job"]


# ---- the page ------------------------------------------------------------------------------------


def get(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def refuses(port):
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT).close()
    except ConnectionRefusedError:
        return True
    return False


def data_of(port, **headers):
    return json.loads(get(port, "/data", **headers)[1])["runs"][0]


def link_of(launcher):
    """The link that a launcher prints before all else."""
    line = launcher.stderr.readline()
    return re.search(r"http://[^/]+:(\d+)/(?:\?key=(\w+))?", line)


def test_the_page_of_a_job_while_it_runs():
    write(
        "train.py",
        PROLOGUE + LOGS + "ready()\nwait_for('go')\nif rank: os.kill(os.getpid(), 9)\ntime.sleep(1000)",
    )
    with Launcher("--dashboard", "--cpus", "2", "train.py", forks=True) as launcher:
        found = link_of(launcher)
        port = int(found.group(1))
        assert found.group(0) == f"http://127.0.0.1:{port}/"
        wait_until(lambda: "trainer 1\0loss" in data_of(port)["series"])
        told = data_of(port)
        assert told["job"]["name"] == "train" and [e["event"] for e in told["events"]] == ["start"] * 2
        assert get(port, "/data", Host="example.com")[0] == 403
        assert json.loads(get(port, "/log?run=0")[1])["names"] == ["workerlog.0", "workerlog.1"]
        write("go", "")
        launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGKILL
    assert refuses(port)


def test_a_job_with_browsers_that_hang_goes_on_and_ends():
    write("train.py", PROLOGUE + LOGS + "ready()\nwait_for('go')\njfluid.log(3, loss=9.0)")
    with contextlib.ExitStack() as stack:
        launcher = stack.enter_context(Launcher("--dashboard", "--cpus", "2", "train.py", forks=True))
        port = int(link_of(launcher).group(1))
        wait_until(lambda: "trainer 1\0loss" in data_of(port)["series"])
        for path in ("/events", "/data", "/") * 5:
            hung = stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
            hung.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        write("go", "")
        launcher.communicate()
    assert launcher.returncode == 0
    for rank in (0, 1):
        assert recorded(f"trainer.{rank}", "scalars")[-1]["scalars"] == {"loss": 9.0}
    assert refuses(port)


def test_another_address_needs_the_key_in_the_link():
    write("train.py", PROLOGUE + LOGS + "wait_for('go')")
    port = free_port()
    with Launcher("--dashboard", f"0.0.0.0:{port}", "--cpus", "1", "train.py", forks=True) as launcher:
        key = link_of(launcher).group(2)
        assert key == address.access_of("0.0.0.0", ENVIRONMENT["JFLUID_JOB_TOKEN"]).key
        wait_until(lambda: get(port, "/data")[0] == 401)
        assert get(port, "/?key=" + ENVIRONMENT["JFLUID_JOB_TOKEN"])[0] == 401
        assert get(port, f"/?key={key}")[0] == 303
        cookie = f"jfluid-dashboard-{port}={key}"
        wait_until(lambda: "trainer 0\0loss" in data_of(port, Cookie=cookie)["series"])
        write("go", "")
        launcher.communicate()
    assert launcher.returncode == 0


def test_the_page_ends_with_a_launcher_that_is_killed():
    write("train.py", PROLOGUE + LOGS + "ready()\nwait_for('go')")
    with Launcher("--dashboard", "--cpus", "1", "train.py", forks=True) as launcher:
        port = int(link_of(launcher).group(1))
        wait_until(lambda: get(port, "/")[0] == 200)
        launcher.kill()
        wait_until(lambda: refuses(port))
        launcher.communicate()


def test_a_port_that_is_taken_and_packages_that_are_missing(monkeypatch):
    write("train.py", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launched("--dashboard", port, "train.py")
        assert done.returncode == 2 and f"dashboard: 127.0.0.1:{port}: Address already in use" in done.stderr
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JobError, match=r"needs starlette and uvicorn: pip install 'jfluid\[serve\]'"):
        page.Page(parse(["--dashboard", "train.py"]).job, "")


@pytest.mark.parametrize(
    "arguments, place, words",
    [
        ("--dashboard train.py", 0, []),
        ("--dashboard 8080 train.py --dashboard", 8080, ["--dashboard"]),
        ("--dashboard=10.0.0.1:80 train.py --dashboard 7", "10.0.0.1:80", ["--dashboard", "7"]),
        ("train.py --dashboard --x", None, ["--dashboard", "--x"]),
    ],
)
def test_where_the_page_is_on_the_command_line(arguments, place, words):
    write("train.py", "")
    job = parse(arguments.split()).job
    assert (job.dashboard, job.arguments()) == (place, words)


def test_where_the_page_is_in_a_job_file():
    write("train.py", "")
    write("job.yaml", "script: train.py\ndashboard: 8080\n")
    assert parse(["job.yaml"]).job.dashboard == 8080
    assert parse(["job.yaml", "--dashboard"]).job.dashboard == 0
    for wrong in ("70000", "true", "here"):
        with pytest.raises(JobError, match="dashboard"):
            parse(["job.yaml", "--set", f"dashboard={wrong}"])
    with pytest.raises(JobError, match="dashboard shows the record"):
        parse(["job.yaml", "--set", "record=false"])
