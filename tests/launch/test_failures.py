"""A gang ends together, whatever ends it, and the member that failed first is named."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jfluid.environment import PROGRESS_CHANNEL
from jfluid.launch import strays
from jfluid.launch.gang import Member
from jfluid.launch.guard import Guard
from jfluid.launch.logs import Log
from jfluid.launch.output import Console
from jfluid.launch.supervise import SECONDS_TO_END, Signals, Supervisor
from tests.launch_case import (
    ESCAPED,
    LIMIT,
    PROLOGUE,
    Clock,
    Launcher,
    alive,
    gang,
    numbers,
    untimed,
    wait_until,
    write,
)

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Does not obey SIGTERM, and has a child of its own.
STUBBORN = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", deaf])
pathlib.Path(f"child.{rank}").write_text(str(child.pid))
ready()
"""


def check_nobody_is_left(count):
    assert len(numbers()) == count
    assert [number for number in numbers() + numbers("child.*") if alive(number)] == []


def test_a_rank_that_raises_ends_all():
    write(
        "train.py",
        PROLOGUE
        + """
if rank == 1:
    wait_for("pid.0", "pid.2")
    ready()
    raise RuntimeError("out of luck")
if rank == 2:
    # A victim: fails as soon as it is asked to end.
    def fail(*_):
        pathlib.Path("asked to end").touch()
        raise ConnectionError("lost rank 1")
    signal.signal(signal.SIGTERM, fail)
"""
        + STUBBORN.replace("signal.signal", "rank == 0 and signal.signal", 1)
        + "time.sleep(1000)",
    )
    with Launcher("--cpus", "3", "train.py", clock=Clock()) as launcher:
        wait_until(Path("asked to end").exists)
        launcher.set_clock_forward(SECONDS_TO_END)  # rank 0 does not obey
        _, errors = launcher.communicate()
    assert launcher.returncode == 1
    assert "rank 1 failed first (exit code 1)" in errors
    assert "its log: mylog/workerlog.1" in errors
    assert "    RuntimeError: out of luck" in errors
    assert "ConnectionError" not in errors
    check_nobody_is_left(3)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, "signal SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + 11, "signal SIGSEGV"),
        ("sys.exit(7)", 7, "exit code 7"),
    ],
)
def test_a_rank_that_dies_ends_all(script, code, reason):
    result = gang(
        f"""
ready()
if rank == 1:
    wait_for("pid.0")
    {script}
time.sleep(1000)
""",
        "--cpus",
        "2",
    )
    assert result.returncode == code
    assert f"rank 1 failed first ({reason})" in result.stderr
    if reason == "signal SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in result.stderr, (
            "where it was comes from Python's fault handler"
        )
    check_nobody_is_left(2)


@pytest.mark.parametrize(("ending", "code"), [("raise RuntimeError('out of luck')", 1), ("sys.exit(5)", 5)])
def test_an_error_counts_when_it_is_raised_not_when_the_process_ends(ending, code):
    """jax.distributed waits in an exit handler for the other processes; they fail meanwhile, or
    wait too.
    """
    result = gang(
        f"""
import atexit
import jfluid
ready()
if rank == 1:
    wait_for("pid.0")
    atexit.register(time.sleep, 100)
    {ending}
time.sleep(1000)
""",
        "--cpus",
        "2",
        forks=True,
    )
    assert result.returncode == code
    assert f"rank 1 failed first (exit code {code})" in result.stderr
    assert ("    RuntimeError: out of luck" in result.stderr) == (code == 1)
    check_nobody_is_left(2)


def test_a_caught_exit_is_no_failure():
    result = gang(
        """
import jfluid
try:
    sys.exit(3)
except SystemExit as error:
    assert error.code == 3
if rank == 1:
    wait_for("late")
else:
    # Rank 0 has ended for longer than a process may take to end when it has failed.
    import atexit
    import subprocess
    atexit.register(subprocess.Popen, ["sh", "-c", "sleep 3; touch late"], stdout=-3, stderr=-3)
""",
        "--cpus",
        "2",
        forks=True,
    )
    assert result.returncode == 0, result.stderr


def test_jax_distributed():
    """A rank that is killed in the middle of the others' collective operations, which raise at
    once.
    """
    result = gang(
        """
import jfluid
import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather
endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(endpoints[0], len(endpoints), rank)
ready()
for step in range(1000):
    total = process_allgather(jnp.full((), rank + 1.0)).sum()
    assert total == 6, total
    if rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
""",
        "--cpus",
        "3",
        forks=True,
    )
    assert result.returncode == 128 + 9
    assert "rank 1 failed first (signal SIGKILL)" in result.stderr
    check_nobody_is_left(3)


def test_victims_that_end_before_the_cause():
    """A rank that raises, and takes a while to end; the others fail when its connections close, and
    end before it.
    """
    result = gang(
        """
import atexit
import jfluid
ready()
wait_for("pid.0", "pid.1", "pid.2")
if rank == 1:
    pathlib.Path("closed").touch()
    atexit.register(time.sleep, 0.7)
    raise RuntimeError("out of luck")
wait_for("closed")
time.sleep(0.1)
os._exit(9)
""",
        "--cpus",
        "3",
        forks=True,
    )
    assert result.returncode == 1
    assert "rank 1 failed first (exit code 1)" in result.stderr


def test_a_script_on_its_own_may_take_its_time_to_end():
    write(
        "train.py",
        PROLOGUE.replace('int(os.environ["PADDLE_TRAINER_ID"])', "0")
        + """
import atexit
import jfluid
atexit.register(print, "done")
atexit.register(wait_for, "late")
atexit.register(ready)
raise RuntimeError("out of luck")
""",
    )
    with Launcher("train.py", clock=Clock(), forks=True) as launcher:
        wait_until(Path("pid.0").exists)
        launcher.set_clock_forward(1000.0)
        Path("late").touch()
        output, _ = launcher.communicate()
    assert (launcher.returncode, output) == (1, "done\n")


def test_a_rank_that_stalls_ends_all():
    write(
        "train.py",
        PROLOGUE
        + """
from jfluid.progress import Progress
def exchange():
    ready()
    time.sleep(1000)
more = 0
with Progress(total=50000) as progress:
    for step in range(50000):
        progress.step(examples=1)
        if rank == 1 and step == 20:
            exchange()
        if rank == 0 and step == 20:
            ready()
        time.sleep(0.02)
        print("still talking")
        more += os.path.exists("later")
        if more == 20:
            pathlib.Path("went on").touch()
""",
    )
    with Launcher(
        "--cpus",
        "2",
        "--stall-timeout",
        "10",
        "train.py",
        clock=Clock(stands_still=True),
        forks=True,
    ) as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.set_clock_forward(6.0)
        Path("later").touch()
        wait_until(Path("went on").exists)
        launcher.set_clock_forward(6.0)  # now rank 1 has made no step for 12 s, and rank 0 for 6 s
        _, errors = launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGABRT
    assert "rank 1 failed first (no step for 10 s)" in errors
    assert " in exchange\n" in errors, "where it stalled"
    check_nobody_is_left(2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(number):
    write("train.py", PROLOGUE + "ready()\nprint('ready')\ntime.sleep(1000)")
    with Launcher("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.send_signal(number)
        _, errors = launcher.communicate()
    assert launcher.returncode == 128 + number
    assert f"was ended by {number.name}" in errors
    check_nobody_is_left(2)


def test_ranks_that_ignore_a_signal_are_killed():
    write("train.py", PROLOGUE + STUBBORN + "time.sleep(1000)")
    with Launcher("--cpus", "2", "train.py", clock=Clock()) as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.send_signal(signal.SIGTERM)
        launcher.set_clock_forward(SECONDS_TO_END)
        launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGKILL
    check_nobody_is_left(2)


def test_a_launcher_that_is_killed_takes_all_with_it():
    write("train.py", PROLOGUE + STUBBORN + "time.sleep(1000)")
    with Launcher("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        launcher.kill()
        launcher.communicate()
    wait_until(lambda: not any(map(alive, numbers() + numbers("child.*"))))


@pytest.mark.parametrize("end", ["a failure", "a signal", "the launcher is killed"])
def test_what_left_its_session_ends_with_the_job(end):
    fails = "if rank == 1:\n    wait_for('pid.0')\n    raise RuntimeError\n"
    fails *= end == "a failure"
    everybody = "wait_for('child.0.0.bare', 'child.1.0.bare')\n"
    write("train.py", PROLOGUE + ESCAPED + everybody + "ready()\n" + fails + "time.sleep(1000)")
    with Launcher("--cpus", "2", "train.py") as launcher:
        wait_until(lambda: len(list(Path().glob("pid.[01]"))) == 2)
        daemons = numbers("child.*")
        if end == "a signal":
            launcher.send_signal(signal.SIGTERM)
        elif end == "the launcher is killed":
            launcher.kill()
        launcher.communicate()
    assert len(daemons) == 4
    try:
        if end == "the launcher is killed":
            wait_until(lambda: not any(map(alive, numbers() + daemons)))
        assert not any(map(alive, numbers() + daemons))
    finally:
        for number in daemons:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def test_a_job_outlives_its_guard():
    with Guard("JFLUID_GANG_MEMBER=none.") as guard:
        guard._process.kill()
        guard._process.wait(LIMIT)
        guard.watch(1 << 22)  # nobody reads it


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_signal_reaches_the_process_that_was_found_and_no_later_one_of_its_number(kernel, monkeypatch):
    if kernel == "old":
        monkeypatch.delattr("os.pidfd_open")
    mark = {"JFLUID_GANG_MEMBER": "this.0"}
    with subprocess.Popen(["sleep", "1000"], env={**mark, "PATH": os.environ["PATH"]}) as process:
        wait_until(lambda: strays._found("JFLUID_GANG_MEMBER=this."))
        (found,) = strays._found("JFLUID_GANG_MEMBER=this.")
        assert found.number == process.pid and strays._found("JFLUID_GANG_MEMBER=other.") == []
        strays._send(found._replace(start=b"1"), signal.SIGKILL)
        strays.send("JFLUID_GANG_MEMBER=this.", signal.SIGKILL, {found.session})
        assert process.poll() is None
        strays.end("JFLUID_GANG_MEMBER=this.0\0")  # returns although it is a zombie now
        assert process.wait(LIMIT) == -signal.SIGKILL
        assert strays._read(process.pid) is None


def test_what_a_process_says_at_its_end_is_read_before_it_is_judged(capfd):
    """It says that all have to start again, so that it is not started again by itself, and ends
    after the launcher has read what there was, and before it looks who has ended.
    """
    report = json.dumps({"ending": 1, "time": 0.0, "restarts_all": True}).encode() + b"\n"
    says = f"""
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
os.write(int(os.environ["{PROGRESS_CHANNEL}"].split(":")[0]), {report!r})
raise SystemExit(1)
"""
    members = [
        Member("trainer", rank, [sys.executable, "-S", "-c", text], {}, Path(f"{rank}"), restarts=1)
        for rank, text in enumerate(["", says])
    ]

    class Late(Supervisor):
        def _pass_on(self, *given, **more):
            read = super()._pass_on(*given, **more)
            if self._running[0].code == 0 and not Path("go").exists():
                Path("go").touch()
                wait_until(self._exits.qsize)
            return read

    console = Console(shows=lambda member: True, prefixed=False, alone=False)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        logs = [stack.enter_context(Log(m.log, False, 1 << 20, 1, print)) for m in members]
        failure = Late(members, console, logs, signals).run()
    assert (failure.label, failure.exit_code) == ("rank 1", 1)
    assert "is started again" not in capfd.readouterr().err


def test_restarts():
    result = gang(
        """
attempt = int(os.environ["JFLUID_RESTARTS"])
checkpoint = pathlib.Path(f"checkpoint.{rank}")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("attempt", attempt, "from step", step)
checkpoint.write_text(str(step + 5))
if rank == 1 and attempt < 2:
    wait_for("checkpoint.0")
    sys.exit(3)
if attempt < 2:
    time.sleep(1000)
""",
        "--cpus",
        "2",
        "--max-restarts",
        "2",
    )
    assert result.returncode == 0, result.stderr
    assert "rank 1 failed (exit code 3); restart 1 of 2" in result.stderr
    assert "restart 2 of 2" in result.stderr
    log = untimed("mylog/workerlog.1")
    assert log == "attempt 0 from step 0\nattempt 1 from step 5\nattempt 2 from step 10\n"


def test_restarts_come_to_an_end():
    result = gang("sys.exit(4)", "--cpus", "2", "--max-restarts", "1")
    assert result.returncode == 4
    assert "restart 1 of 1" in result.stderr
    assert "failed first (exit code 4)" in result.stderr
