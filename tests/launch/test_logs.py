"""Logs of bounded size, and disks that do not take them: the job goes on, and says so."""

import errno
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from jfluid.job import JobError, script_job
from jfluid.launch import logs
from jfluid.launch.gang import Member
from jfluid.launch.logs import Log, Outlet, Screen, Waiting
from jfluid.launch.output import Console, MemberOutput
from tests.launch_case import COMMAND, ENVIRONMENT, LIMIT, PROLOGUE, launched, untimed, write

FULL = "No space left on device"
needs_full_device = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


class Disk:
    """Takes bytes, until it is full."""

    def __init__(self):
        self.data, self.error = b"", 0

    def put(self, data):
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.data += data


def contents(name):
    return {path.name: path.read_text() for path in sorted(Path().glob(f"{name}*"))}


# ---- one log -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EDQUOT])
def test_an_outlet_stops_says_so_once_and_goes_on(clock, error):
    disk, told = Disk(), []
    outlet = Outlet("the log", disk.put, told.append, clock)
    outlet.write(b"one\n")
    disk.error = error
    for _ in range(3):
        outlet.write(b"two\n")
        clock.now += 6
    assert told == [f"the log has stopped ({os.strerror(error)}); the job goes on without it"]
    outlet.write(b"three\n")
    disk.error = 0
    outlet.write(b"four\n")  # it has just tried
    clock.now += 6
    outlet.write(b"five\n")
    assert disk.data == b"one\n\njfluid-launch: 23 bytes are missing here\nfive\n"
    assert told[1:] == ["the log goes on; 23 bytes are missing in it"]
    disk.error = error
    outlet.write(b"six")
    assert len(told) == 3


def test_a_log_is_rotated_and_keeps_its_backups(folder):
    with Log(Path("a/log.0"), False, 10, 2, print) as log:
        for i in range(8):
            log.write(b"line %d\n" % i)
    assert contents("a/log.0") == {
        "log.0": "line 7\n",
        "log.0.1": "line 6\n",
        "log.0.2": "line 5\n",
    }
    with Log(Path("a/log.0"), True, 20, 2, print) as log:
        log.write(b"line 8\n")
        log.write(b"line 9\n")
    assert contents("a/log.0") == {
        "log.0": "line 9\n",
        "log.0.1": "line 7\nline 8\n",
        "log.0.2": "line 6\n",
    }
    Path("a/log.0.old").write_text("of the user")
    with Log(Path("a/log.0"), False, 10, 0, print) as log:
        log.write(b"a line longer than that\n")
        log.write(b"the last\n")
    assert contents("a/log.0") == {"log.0": "the last\n", "log.0.old": "of the user"}
    with Log(Path("a/log.0"), False, 15, 3, print) as log:
        log.write(b"many\nlines\nthat\ncome\nat\nonce\n")
    assert contents("a/log.0") == {
        "log.0": "once\n",
        "log.0.1": "that\ncome\nat\n",
        "log.0.2": "many\nlines\n",
        "log.0.old": "of the user",
    }


def test_lines_of_a_log_begin_with_their_time(folder, monkeypatch):
    monkeypatch.setattr(logs, "time_of_line", lambda: "2026-11-28 01:02:03,456 ")
    with Log(Path("log.0"), False, 1000, 1, print, times=True) as log:
        log.write(b"one\n\n  two\r\nthree\n")
        log.write(b"\r 10%\r")
        log.write(b" 20%\r")
        log.write(b"\n2026-11-27 23:59:59,000 INFO of the script's logger\n2026-11 is no date\n")
        log.write(b"a long ")
        log.write(b"line")
        log.write(b"\nlast")
    at = "2026-11-28 01:02:03,456 "
    assert Path("log.0").read_bytes().decode() == (
        f"{at}one\n\n{at}  two\r\n{at}three\n\r{at} 10%\r{at} 20%\r\n2026-11-27 23:59:59,000 INFO of the script's "
        f"logger\n{at}2026-11 is no date\n{at}a long line\n{at}last"
    )


def test_a_log_that_cannot_be_renamed_stops_and_grows_no_more(folder, monkeypatch):
    told = []

    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    with Log(Path("log.0"), False, 10, 1, told.append) as log:
        log.write(b"line 1\n")
        monkeypatch.setattr(os, "replace", refused)
        for _ in range(5):
            log.write(b"line 2\n")
    assert told == ["the log log.0 has stopped (Permission denied); the job goes on without it"]
    assert contents("log.0") == {"log.0": "line 1\n"}


@needs_full_device
def test_a_device_is_written_and_never_renamed(folder):
    told = []
    os.symlink("/dev/full", "log.0")
    with Log(Path("log.0"), False, 4, 1, told.append) as log:
        for _ in range(3):
            log.write(b"many bytes\n")
    assert told == [f"the log log.0 has stopped ({FULL}); the job goes on without it"] and os.path.islink("log.0")
    os.unlink("log.0")
    os.symlink("/dev/null", "log.0")
    with Log(Path("log.0"), False, 4, 1, told.append) as log:
        for _ in range(3):
            log.write(b"many bytes\n")
    assert os.listdir() == ["log.0"] and len(told) == 1


def test_a_log_that_cannot_be_opened_is_a_mistake_in_the_job_unless_the_disk_is_full(folder, monkeypatch):
    Path("file").write_text("")
    with pytest.raises(JobError, match="file/log.0: cannot write the log: File exists"):
        Log(Path("file/log.0"), False, 10, 1, print)
    mkdir, told = Path.mkdir, []

    def full(*_, **__):
        raise OSError(errno.ENOSPC, FULL)

    monkeypatch.setattr(Path, "mkdir", full)
    monkeypatch.setattr(logs, "_SECONDS_TO_RETRY", 0.0)
    with Log(Path("new/log.0"), False, 1000, 1, told.append) as log:
        log.write(b"lost\n")
        monkeypatch.setattr(Path, "mkdir", mkdir)
        log.write(b"kept\n")
    assert Path("new/log.0").read_text() == "\njfluid-launch: 5 bytes are missing here\nkept\n"
    assert [FULL in told[0], "goes on" in told[1]] == [True, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_small_disk_that_gets_room_again(folder, monkeypatch):
    Path("disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "disk"], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount a file system (a container without that right)")
    try:
        told = []
        monkeypatch.setattr(logs, "_SECONDS_TO_RETRY", 0.0)
        Path("disk/other").write_bytes(bytes(40_000))
        with Log(Path("disk/log.0"), False, 1 << 20, 1, told.append) as log:
            for i in range(2000):
                log.write(b"line %12d\n" % i)
            assert len(told) == 1 and FULL in told[0]
            Path("disk/other").unlink()
            log.write(b"the last\n")
        found = Path("disk/log.0").read_text()
        assert found.startswith("line            0\n") and "bytes are missing here\nthe last\n" in found
    finally:
        subprocess.run(["umount", "disk"], check=True)


def test_a_wait_is_announced_after_a_second_then_rarely_and_at_changes(clock, capsys):
    waiting = Waiting(clock)
    for reason in ["host 1, 2"] * 130 + ["host 2"] * 130:
        waiting.look(reason)
        clock.now += 0.1
    said = capsys.readouterr().err.splitlines()
    assert [line[24:] for line in said] == [
        f"jfluid-launch: waiting for {reason}" for reason in ("host 1, 2", "host 1, 2", "host 2", "host 2")
    ]


# ---- what a member writes ------------------------------------------------------------------------


def test_output_goes_to_the_console_and_into_the_excerpt_while_the_log_is_stopped(folder, capfd):
    console = Console(lambda member: True, prefixed=False, alone=True)
    disk = Disk()
    disk.error = errno.ENOSPC
    log = Log(Path("log.0"), False, 1000, 1, console.note)
    log._outlet._put = disk.put
    output = MemberOutput(Member("trainer", 0, [], {}, Path("log.0")), log, console)
    output.text(1, b"step 1\n")
    output.reports(b'{"step": 1, "total": null, "rate": 0, "metrics": {}, "done": true, "description": "train"}\n')
    output.text(2, b"RuntimeError: out of luck\n")
    output.close()
    found = capfd.readouterr()
    assert "step 1\n" in found.out and found.err.count("the log log.0 has stopped") == 1
    assert "RuntimeError: out of luck" in output.tail() and "train 1" in found.err


def test_a_report_without_end_does_not_fill_memory(folder):
    console = Console(lambda member: True, prefixed=False, alone=True)
    output = MemberOutput(
        Member("trainer", 0, [], {}, Path("log.0")),
        Log(Path("log.0"), False, 99, 1, print),
        console,
    )
    for _ in range(40):
        assert output.reports(b"x" * (1 << 16)) == []
    assert len(output._reports) == 1 << 20


def test_what_is_no_report_is_passed_over(folder):
    console = Console(lambda member: True, prefixed=False, alone=True)
    log = Log(Path("log.0"), False, 99, 1, print)
    output = MemberOutput(Member("trainer", 0, [], {}, Path("log.0")), log, console)
    ending = {"ending": 1, "time": 0.5, "restarts_all": False}
    lines = [
        b"\xff",
        b'{"ending": 1}',
        b'{"step": 1}',
        b"[" * 5000,
        json.dumps(ending).encode(),
        b"1",
    ]
    assert output.reports(b"\n".join(lines) + b"\n") == [ending]
    output.close()


def test_a_screen_that_refuses_is_left_out(capfd):
    class Broken:
        def flush(self):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def isatty(self):
            return False

    told = []
    screen = Screen(Broken(), "standard output", told.append)
    screen.write("one\n")
    screen.write_bytes(b"two\n")
    assert told == ["standard output has stopped (Broken pipe); the job goes on without it"]


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_job_says_how_large_its_logs_are(folder):
    job = script_job(write("train.py", ""), [], ["log_max_bytes=10000", "log_backups=3"])
    assert (job.log_max_bytes, job.log_backups) == (10000, 3)
    assert (script_job("train.py", []).log_max_bytes, script_job("train.py", []).log_backups) == (
        256 << 20,
        1,
    )
    with pytest.raises(JobError, match="log_max_bytes"):
        script_job("train.py", [], ["log_max_bytes=0"])


@needs_full_device
@pytest.mark.process
class TestJobs:
    def test_a_full_log_ends_no_job(self, folder):
        Path("log").mkdir()
        os.symlink("/dev/full", "log/workerlog.1")
        write(
            "train.py",
            PROLOGUE
            + """
for i in range(3):
    print("line", i, flush=True)
ready()
wait_for("pid.0", "pid.1")
pathlib.Path(f"done.{rank}").touch()
""",
        )
        result = launched("--cpus", "2", "--log_dir", "log", "--console", "all", "train.py")
        assert result.returncode == 0 and Path("done.0").exists() and Path("done.1").exists()
        assert result.stderr.count(f"the log log/workerlog.1 has stopped ({FULL}); the job goes on without it\n") == 1
        assert "[1] line 2\n" in result.stdout
        assert untimed("log/workerlog.0") == "line 0\nline 1\nline 2\n"

    def test_a_failure_is_shown_though_its_log_is_full(self, folder):
        Path("log").mkdir()
        os.symlink("/dev/full", "log/workerlog.1")
        write(
            "train.py",
            PROLOGUE
            + """
ready()
wait_for("pid.0", "pid.1")
if rank == 1:
    raise RuntimeError("out of luck")
""",
        )
        result = launched("--cpus", "2", "--log_dir", "log", "train.py")
        assert result.returncode == 1 and "RuntimeError: out of luck" in result.stderr

    @pytest.mark.parametrize("closed", ["stdout", "stderr"])
    def test_a_console_that_goes_to_a_full_disk_ends_no_job(self, folder, closed):
        write(
            "train.py",
            "import sys\nfor i in range(99):\n    print('line', i)\n    print('error', i, file=sys.stderr)\n"
            "open('done', 'w')",
        )
        with open("/dev/full", "wb") as full:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {closed: full}
            result = subprocess.run([*COMMAND, "train.py"], env=ENVIRONMENT, timeout=LIMIT, text=True, **streams)
        assert result.returncode == 0 and Path("done").exists()
        assert len(untimed("mylog/workerlog.0").splitlines()) == 198
        if closed == "stdout":
            assert "standard output has stopped" in result.stderr and "error 98" in result.stderr

    def test_a_job_may_have_logs_without_times(self, folder):
        write("train.py", "print('a line')")
        result = launched("--set", "log_times=false", "train.py")
        assert Path("mylog/workerlog.0").read_text() == result.stdout == "a line\n"
        said = result.stderr.splitlines()
        assert said and all(
            re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} jfluid-launch: train ", line) for line in said
        )

    def test_logs_of_a_job_are_rotated(self, folder):
        write("train.py", "for i in range(1000):\n    print('line', i)")
        write("job.yaml", "script: train.py\nlog_max_bytes: 4096\nlog_backups: 2")
        assert launched("job.yaml").returncode == 0
        found = contents("mylog/workerlog.0")
        assert sorted(found) == ["workerlog.0", "workerlog.0.1", "workerlog.0.2"]
        assert found["workerlog.0"].endswith("line 999\n") and all(len(text) <= 4096 for text in found.values())
        assert all(line.startswith("line ") for name in found for line in untimed(f"mylog/{name}").splitlines())
