"""Gangs of processes: what each is given, and that they end together, whatever ends them."""
import json
import signal
import time
from pathlib import Path

import pytest

from jfluid.job import CollectiveJob, JobError
from jfluid.launch.devices import assigned_gpus
from jfluid.launch.failure import excerpt_of
from jfluid.launch.gang import collective_gang
from tests.launch_case import PROLOGUE, alive, launched, numbers, started, wait_until, write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gang(script, *arguments):
    write("train.py", PROLOGUE + script)
    return launched(*arguments, "train.py")


# ---- what each process is given, in this process ---------------------------------------------------------------

ENDPOINTS = [["10.0.0.1:6070", "10.0.0.1:6071"], ["10.0.0.2:6070", "10.0.0.2:6071"]]


def test_environment_of_processes_with_gpus(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "7")
    write("train.py", "")
    job = CollectiveJob(script="train.py", gpus=4, processes=2, env={"LEVEL": "1"}, log_dir="logs")
    members = collective_gang(job, ENDPOINTS, node=1, gpus=["4", "5", "6", "7"])
    assert [(member.role, member.rank, str(member.log)) for member in members] == [
        ("trainer", 2, "logs/workerlog.2"), ("trainer", 3, "logs/workerlog.3")]
    environment = members[1].env
    assert {name: environment[name] for name in environment if name.startswith(("PADDLE", "FLAGS", "CUDA"))} == {
        "PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "4", "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6071",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.1:6071,10.0.0.2:6070,10.0.0.2:6071",
        "FLAGS_selected_gpus": "0,1", "CUDA_VISIBLE_DEVICES": "6,7"}
    assert environment["LEVEL"] == "1"
    assert "http_proxy" not in environment


def test_processes_on_the_cpu_see_no_gpu(monkeypatch):
    monkeypatch.setenv("FLAGS_selected_gpus", "1")
    write("train.py", "")
    members = collective_gang(CollectiveJob(script="train.py", processes=2), ENDPOINTS[:1], node=0, gpus=[])
    assert [(member.env["CUDA_VISIBLE_DEVICES"], member.env["JAX_PLATFORMS"]) for member in members] == [("", "cpu")] * 2
    assert all("FLAGS_selected_gpus" not in member.env for member in members)


@pytest.mark.parametrize(("wanted", "task", "tasks", "expected"), [
    (2, 0, 1, ["3", "5"]), ("all", 0, 1, ["3", "5", "6", "7"]), (["7", "3"], 0, 1, ["7", "3"]),
    (2, 1, 2, ["6", "7"]), (4, 1, 2, ["3", "5", "6", "7"])])
def test_assigned_gpus(wanted, task, tasks, expected):
    assert assigned_gpus(wanted, ["3", "5", "6", "7"], task, tasks) == expected


@pytest.mark.parametrize(("wanted", "visible", "expected"), [
    (2, [], "--gpus 2: found no NVIDIA GPU on this host; run on its CPU instead with --cpus N"),
    ("all", [], "--gpus all: found no NVIDIA GPU on this host; run on its CPU instead with --cpus N"),
    (4, ["0", "1"], "--gpus 4: found 2 GPUs on this host (0, 1); run with --gpus 2, or on the CPU with --cpus N"),
    (["0", "3"], ["0"], "--gpus 0,3: no GPU 3 here: found 1 GPU on this host (0); run with --gpus 1, or on the CPU"),
])
def test_too_few_gpus(monkeypatch, wanted, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(JobError) as raised:
        assigned_gpus(wanted, visible)
    assert expected in str(raised.value)


def test_excerpt():
    assert excerpt_of("\n".join(map(str, range(50)))) == "\n".join(map(str, range(40, 50)))
    assert excerpt_of("noise\nTraceback (most recent call last):\n  a\nTraceback (most recent call last):\n  b\nError\n") == \
        "Traceback (most recent call last):\n  b\nError"
    long = excerpt_of("Traceback (most recent call last):\n" + "frame\n" * 100).splitlines()
    assert (len(long), long[20]) == (41, "... 61 lines ...")


# ---- gangs that end well ---------------------------------------------------------------------------------------

process = pytest.mark.process


@process
def test_output_logs_and_environment():
    result = gang("""
import json
print(json.dumps({name: os.environ[name] for name in os.environ if name.startswith("PADDLE")}))
print("error of", rank, file=sys.stderr)
""", "--cpus", "3", "--log_dir", "logs")
    assert result.returncode == 0, result.stderr
    logs = [Path(f"logs/workerlog.{rank}").read_text() for rank in range(3)]
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
    result = gang("print('a', rank)\nprint('b', rank)\nprint('end', end='')", "--cpus", "3", "--console", "1,2")
    assert sorted(result.stdout.splitlines()) == ["[1] a 1", "[1] b 1", "[1] end", "[2] a 2", "[2] b 2", "[2] end"]


@process
def test_progress_of_every_rank():
    result = gang("""
from jfluid.progress import Progress
with Progress(total=3) as progress:
    for step in range(3): progress.step(examples=8, loss=rank + 0.5)
""", "--cpus", "2")
    assert result.returncode == 0, result.stderr
    for rank in range(2):
        assert f"[{rank}] train 3/3  " in result.stderr
        assert f"examples/s  loss {rank}.5\n" in Path(f"mylog/workerlog.{rank}").read_text()


@process
def test_started_port():
    result = gang("print(os.environ['PADDLE_TRAINER_ENDPOINTS'])", "--nproc_per_node", "2", "--started_port", "6170")
    assert result.stdout == "127.0.0.1:6170,127.0.0.1:6171\n"


@process
def test_no_gpu():
    write("train.py", "raise SystemExit('must not run')")
    result = launched("--gpus", "99", "train.py")
    assert result.returncode == 2
    assert "jfluid-launch: --gpus 99: found " in result.stderr
    assert "with --cpus N" in result.stderr


# ---- failures --------------------------------------------------------------------------------------------------

# Does not obey SIGTERM, and has a child of its own.
STUBBORN = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(100)"])
pathlib.Path(f"child.{rank}").write_text(str(child.pid))
ready()
"""


def check_nobody_is_left(count):
    assert len(numbers()) == count
    assert [number for number in numbers() + numbers("child.*") if alive(number)] == []


@process
def test_a_rank_that_raises_ends_all():
    start = time.monotonic()
    result = gang("""
if rank == 1:
    wait_for("pid.0", "pid.2")
    ready()
    raise RuntimeError("out of luck")
if rank == 2:
    # A victim: fails as soon as it is asked to end.
    def fail(*_):
        raise ConnectionError("lost rank 1")
    signal.signal(signal.SIGTERM, fail)
""" + STUBBORN.replace("signal.signal", "rank == 0 and signal.signal", 1) + "time.sleep(100)", "--cpus", "3")
    assert time.monotonic() - start < 20
    assert result.returncode == 1
    assert "rank 1 failed first (exit code 1)" in result.stderr
    assert "its log: mylog/workerlog.1" in result.stderr
    assert "    RuntimeError: out of luck" in result.stderr
    assert "ConnectionError" not in result.stderr
    check_nobody_is_left(3)


@process
@pytest.mark.parametrize(("script", "code", "reason"), [
    ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, "signal SIGKILL"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + 11, "signal SIGSEGV"),
    ("sys.exit(7)", 7, "exit code 7"),
])
def test_a_rank_that_dies_ends_all(script, code, reason):
    result = gang(f"""
ready()
if rank == 1:
    wait_for("pid.0")
    {script}
time.sleep(100)
""", "--cpus", "2")
    assert result.returncode == code
    assert f"rank 1 failed first ({reason})" in result.stderr
    if reason == "signal SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in result.stderr, "where it was comes from Python's fault handler"
    check_nobody_is_left(2)


@process
@pytest.mark.parametrize(("ending", "code"), [("raise RuntimeError('out of luck')", 1), ("sys.exit(5)", 5)])
def test_an_error_counts_when_it_is_raised_not_when_the_process_ends(ending, code):
    """jax.distributed waits in an exit handler for the other processes; they fail meanwhile, or wait too."""
    result = gang(f"""
import atexit
import jfluid
ready()
if rank == 1:
    wait_for("pid.0")
    atexit.register(time.sleep, 100)
    {ending}
time.sleep(100)
""", "--cpus", "2")
    assert result.returncode == code
    assert f"rank 1 failed first (exit code {code})" in result.stderr
    assert ("    RuntimeError: out of luck" in result.stderr) == (code == 1)
    check_nobody_is_left(2)


@process
def test_a_caught_exit_is_no_failure():
    result = gang("""
import jfluid
try:
    sys.exit(3)
except SystemExit as error:
    assert error.code == 3
""", "--cpus", "2")
    assert result.returncode == 0, result.stderr


@process
def test_a_rank_that_stalls_ends_all():
    result = gang("""
from jfluid.progress import Progress
def exchange():
    time.sleep(100)
ready()
with Progress(total=1000) as progress:
    for step in range(1000):
        progress.step(examples=1)
        if rank == 1 and step == 20:
            exchange()
        time.sleep(0.02)
        print("still talking")
""", "--cpus", "2", "--stall-timeout", "3")
    assert result.returncode == 128 + signal.SIGABRT
    assert "rank 1 failed first (no step for 3 s)" in result.stderr
    assert ' in exchange\n' in result.stderr, "where it stalled"
    check_nobody_is_left(2)


@process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(number):
    write("train.py", PROLOGUE + "ready()\nprint('ready')\ntime.sleep(100)")
    with started("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.send_signal(number)
        _, errors = launcher.communicate()
    assert launcher.returncode == 128 + number
    assert f"was ended by {number.name}" in errors
    check_nobody_is_left(2)


@process
def test_ranks_that_ignore_a_signal_are_killed():
    write("train.py", PROLOGUE + STUBBORN + "time.sleep(100)")
    with started("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        start = time.monotonic()
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate()
    assert time.monotonic() - start < 10
    assert launcher.returncode == 128 + signal.SIGKILL
    check_nobody_is_left(2)


@process
def test_a_launcher_that_is_killed_takes_all_with_it():
    write("train.py", PROLOGUE + STUBBORN + "time.sleep(100)")
    with started("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.kill()
        launcher.communicate()
    wait_until(lambda: not any(map(alive, numbers() + numbers("child.*"))))


@process
def test_restarts():
    result = gang("""
attempt = int(os.environ["JFLUID_RESTARTS"])
checkpoint = pathlib.Path(f"checkpoint.{rank}")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("attempt", attempt, "from step", step)
checkpoint.write_text(str(step + 5))
if rank == 1 and attempt < 2:
    wait_for("checkpoint.0")
    sys.exit(3)
if attempt < 2:
    time.sleep(100)
""", "--cpus", "2", "--max-restarts", "2")
    assert result.returncode == 0, result.stderr
    assert "rank 1 failed (exit code 3); restart 1 of 2" in result.stderr
    assert "restart 2 of 2" in result.stderr
    log = Path("mylog/workerlog.1").read_text()
    assert log == "attempt 0 from step 0\nattempt 1 from step 5\nattempt 2 from step 10\n"


@process
def test_restarts_come_to_an_end():
    result = gang("sys.exit(4)", "--cpus", "2", "--max-restarts", "1")
    assert result.returncode == 4
    assert "restart 1 of 1" in result.stderr
    assert "failed first (exit code 4)" in result.stderr
