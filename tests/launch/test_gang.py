"""Gangs of processes: what each is given, where its output goes."""

import json
import socket
from contextlib import ExitStack

import pytest

from jfluid.job import CollectiveJob, JobError
from jfluid.launch import free_ports
from jfluid.launch.devices import assigned_gpus
from jfluid.launch.failure import excerpt_of
from jfluid.launch.gang import collective_gang
from tests import ports
from tests.launch_case import PROLOGUE, gang, launched, on_terminal, untimed, write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- what each process is given, in this process -------------------------------------------------

ENDPOINTS = [["10.0.0.1:6070", "10.0.0.1:6071"], ["10.0.0.2:6070", "10.0.0.2:6071"]]


def test_environment_of_processes_with_gpus(monkeypatch):
    monkeypatch.delenv("FLAGS_interpret_first_steps")  # of all tests
    monkeypatch.setenv("http_proxy", "http://proxy")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "7")
    write("train.py", "")
    job = CollectiveJob(script="train.py", gpus=4, processes=2, env={"LEVEL": "1"}, log_dir="logs")
    members = collective_gang(job, ENDPOINTS, 1, ["4", "5", "6", "7"], "secret")
    assert [(member.role, member.rank, str(member.log)) for member in members] == [
        ("trainer", 2, "logs/workerlog.2"),
        ("trainer", 3, "logs/workerlog.3"),
    ]
    environment = members[1].env
    assert {name: environment[name] for name in environment if name.startswith(("PADDLE", "FLAGS", "CUDA"))} == {
        "PADDLE_TRAINER_ID": "3",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_NUM_TRAINERS": "4",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6071",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.1:6071,10.0.0.2:6070,10.0.0.2:6071",
        "FLAGS_selected_gpus": "0,1",
        "CUDA_VISIBLE_DEVICES": "6,7",
    }
    assert (environment["LEVEL"], environment["JFLUID_JOB_TOKEN"]) == ("1", "secret")
    assert "http_proxy" not in environment


def test_free_ports_are_reserved_until_their_launcher_ends(monkeypatch):
    """Nobody listens there for seconds, in which the kernel gives them to no other process."""
    there = ports.free_ports(3)
    monkeypatch.setattr(free_ports, "_PORTS", there)
    monkeypatch.setattr(free_ports, "_kernel_gives_others", lambda: True)
    with ExitStack() as one, ExitStack() as other:
        with socket.create_server(("", there[0])):
            assert set(free_ports.free_ports(2, one)) == set(there[1:])
        (another,) = free_ports.free_ports(1, other)
        assert another not in there[1:]
    with ExitStack() as later:
        assert set(free_ports.free_ports(3, later)) == set(there)


def test_processes_on_the_cpu_see_no_gpu(monkeypatch):
    monkeypatch.setenv("FLAGS_selected_gpus", "1")
    write("train.py", "")
    members = collective_gang(CollectiveJob(script="train.py", processes=2), ENDPOINTS[:1], 0, [], "secret")
    assert [(member.env["CUDA_VISIBLE_DEVICES"], member.env["JAX_PLATFORMS"]) for member in members] == [
        ("", "cpu")
    ] * 2
    assert all("FLAGS_selected_gpus" not in member.env for member in members)


@pytest.mark.parametrize(
    ("wanted", "task", "tasks", "expected"),
    [
        (2, 0, 1, ["3", "5"]),
        ("all", 0, 1, ["3", "5", "6", "7"]),
        (["7", "3"], 0, 1, ["7", "3"]),
        (2, 1, 2, ["6", "7"]),
        (4, 1, 2, ["3", "5", "6", "7"]),
    ],
)
def test_assigned_gpus(wanted, task, tasks, expected):
    assert assigned_gpus(wanted, ["3", "5", "6", "7"], task, tasks) == expected


@pytest.mark.parametrize(
    ("wanted", "visible", "expected"),
    [
        (2, [], "--gpus 2: found no NVIDIA GPU on this host; run on its CPU instead with --cpus N"),
        (
            "all",
            [],
            "--gpus all: found no NVIDIA GPU on this host; run on its CPU instead with --cpus N",
        ),
        (
            4,
            ["0", "1"],
            "--gpus 4: found 2 GPUs on this host (0, 1); run with --gpus 2, or on the CPU with --cpus N",
        ),
        (
            ["0", "3"],
            ["0"],
            "--gpus 0,3: no GPU 3 here: found 1 GPU on this host (0); run with --gpus 1, or on the CPU",
        ),
    ],
)
def test_too_few_gpus(monkeypatch, wanted, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(JobError) as raised:
        assigned_gpus(wanted, visible)
    assert expected in str(raised.value)


def test_excerpt():
    assert excerpt_of("\n".join(map(str, range(50)))) == "\n".join(map(str, range(40, 50)))
    assert (
        excerpt_of("noise\nTraceback (most recent call last):\n  a\nTraceback (most recent call last):\n  b\nError\n")
        == "Traceback (most recent call last):\n  b\nError"
    )
    long = excerpt_of("Traceback (most recent call last):\n" + "frame\n" * 100).splitlines()
    assert (len(long), long[20]) == (41, "... 61 lines ...")


# ---- gangs that end well -------------------------------------------------------------------------

process = pytest.mark.process


@process
def test_output_logs_and_environment():
    result = gang(
        """
import json
print(json.dumps({name: os.environ[name] for name in os.environ if name.startswith("PADDLE")}))
print("error of", rank, file=sys.stderr)
""",
        "--cpus",
        "3",
        "--log_dir",
        "logs",
    )
    assert result.returncode == 0, result.stderr
    logs = [untimed(f"logs/workerlog.{rank}") for rank in range(3)]
    assert result.stdout == logs[0].replace("error of 0\n", "")
    assert "error of 0\n" in result.stderr
    assert "error of 1" not in result.stderr
    given = [json.loads(next(line for line in log.splitlines() if line.startswith("{"))) for log in logs]
    endpoints = given[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert [item["PADDLE_CURRENT_ENDPOINT"] for item in given] == endpoints
    assert len(set(endpoints)) == 3
    assert [item["PADDLE_TRAINER_ID"] for item in given] == ["0", "1", "2"]
    assert {item["PADDLE_TRAINERS_NUM"] for item in given} == {"3"}


@process
def test_other_ranks_on_the_console():
    result = gang(
        "print('a', rank)\nprint('b', rank)\nprint('end', end='')",
        "--cpus",
        "3",
        "--console",
        "1,2",
    )
    assert sorted(result.stdout.splitlines()) == [
        "[1] a 1",
        "[1] b 1",
        "[1] end",
        "[2] a 2",
        "[2] b 2",
        "[2] end",
    ]


@process
def test_progress_of_every_rank():
    result = gang(
        """
from jfluid.progress import Progress
with Progress(total=3) as progress:
    for step in range(3): progress.step(examples=8, loss=rank + 0.5)
""",
        "--cpus",
        "2",
    )
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        assert f"[{rank}] train 3/3  " in result.stderr
        assert f"examples/s  loss {rank}.5\n" in untimed(f"mylog/workerlog.{rank}")


@process
def test_progress_of_every_rank_on_a_terminal():
    write(
        "train.py",
        PROLOGUE
        + """
from jfluid.progress import Progress
with Progress(total=3) as progress:
    for step in range(3): progress.step(examples=8, loss=rank + 0.5); print('at', step)
""",
    )
    code, screen = on_terminal("--cpus", "2", "train.py")
    assert code == 0
    for rank in range(2):
        assert b"[%d] train" % rank in screen
        assert b"loss %d.5" % rank in screen
    assert all(screen.count(b"at %d\r\n" % step) == 1 for step in range(3)), "only the output of rank 0"


@process
def test_started_port():
    result = gang(
        "print(os.environ['PADDLE_TRAINER_ENDPOINTS'])",
        "--nproc_per_node",
        "2",
        "--started_port",
        "6170",
    )
    assert result.stdout == "127.0.0.1:6170,127.0.0.1:6171\n"


@process
def test_no_gpu():
    write("train.py", "raise SystemExit('must not run')")
    result = launched("--gpus", "99", "train.py")
    assert result.returncode == 2
    assert "jfluid-launch: --gpus 99: found " in result.stderr
    assert "with --cpus N" in result.stderr
