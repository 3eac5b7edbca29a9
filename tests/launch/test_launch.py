"""`jfluid-launch` as a command: real processes, their output, log, progress and exit codes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jfluid import launch
from tests.launch_case import COMMAND, ENVIRONMENT, LIMIT, launched, on_terminal, untimed, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launched_as_users_do(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        **options,
    )


def started(*arguments):
    """A launcher that runs; it is killed when the test takes too long."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    watchdog = threading.Timer(LIMIT, process.kill)
    watchdog.daemon = True
    watchdog.start()
    return process


# ---- the command line, in this process -----------------------------------------------------------


def test_arguments_after_a_script_are_the_scripts(folder):
    write("train.py", "")
    command = launch.parse(["--log_dir", "logs", "train.py", "--gpus", "2", "--set", "x", "--dry-run"])
    assert command.job.arguments() == ["--gpus", "2", "--set", "x", "--dry-run"]
    assert (command.job.mode, command.job.log_dir, command.action) == ("local", "logs", "run")


def test_options_stand_before_or_after_a_job_file(folder):
    write("train.py", "")
    write("job.yaml", "script: train.py\nargs: {a: 1, b: 2}")
    command = launch.parse(["--set", "args.a=3", "job.yaml", "--set", "args.b=4", "--dry-run"])
    assert (command.job.args, command.action) == ({"a": 3, "b": 4}, "print")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--gpus 2", {"gpus": 2}),
        ("--gpus 0,2", {"gpus": ["0", "2"]}),
        ("--gpus all", {"gpus": "all"}),
        ("--selected_gpus 3", {"gpus": ["3"]}),
        ("--cpus 2", {"processes": 2}),
        ("--nproc_per_node 2", {"processes": 2}),
        ("--gpus 4 --nproc_per_node 2", {"gpus": 4, "processes": 2}),
        (
            "--cpus 1 --nnodes 2 --coordinator a:1",
            {"processes": 1, "nodes": 2, "coordinator": "a:1"},
        ),
        (
            "--cpus 1 --cluster_node_ips a,b --started_port 6170",
            {"processes": 1, "ips": ["a", "b"], "started_port": 6170},
        ),
        ("--cpus 1 --console all", {"processes": 1, "console": "all"}),
        ("--cpus 1 --console 0,1", {"processes": 1, "console": [0, 1]}),
        ("--server_num 2 --worker_num 3", {"servers": 2, "trainers": 3}),
        ("--servers a:1,b:1 --workers a:2", {"servers": ["a:1", "b:1"], "trainers": ["a:2"]}),
        ("--gpus 2 --servers 1 --trainers 2", {"gpus": 2, "servers": 1, "trainers": 2}),
        ("--stall-timeout 60 --max-restarts 2", {"stall_timeout": 60.0, "max_restarts": 2}),
    ],
)
def test_options_set_keys_of_the_job(folder, arguments, expected):
    job = launch.parse([*arguments.split(), write("train.py", "")]).job
    mode = "parameter_server" if "servers" in expected else "local" if "stall_timeout" in expected else "collective"
    assert job.mode == mode
    assert {key: getattr(job, key) for key in expected} == expected


def test_options_change_a_job_file(folder):
    write("train.py", "")
    write("job.yaml", "script: train.py\nmode: collective\ngpus: 2")
    job = launch.parse(["job.yaml", "--cpus", "3"]).job
    assert (job.gpus, job.processes) == (None, 3)
    node = launch.parse(["job.yaml", "--node-rank", "1", "--node_ip", "a"]).node
    assert (node.rank, node.ip, node.use_paddlecloud) == (1, "a", False)


def test_dry_run_prints_the_job(folder, capsys):
    write("train.py", "raise SystemExit('must not run')")
    write("job.yaml", "script: train.py\nargs: {lr: 1e-3}")
    assert launch.main(["job.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        f"# {sys.executable} train.py --lr 0.001\n"
        "script: train.py\nname: train\nmode: local\nargs:\n  lr: 0.001\nenv: {}\nlog_dir: mylog\n"
    )
    assert not Path("mylog").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpus", "2", "--cpus", "2", "train.py"], "--cpus 2 does not go with --gpus 2"),
        (["--cpus", "two", "train.py"], "argument --cpus: invalid int value: 'two'"),
        (["--st", "x", "train.py"], "unrecognized arguments: --st"),
        ([], "the following arguments are required: target"),
    ],
)
def test_refused_options(folder, capsys, arguments, expected):
    write("train.py", "")
    with pytest.raises(SystemExit) as raised:
        launch.main(arguments)
    assert raised.value.code == 2
    assert expected in capsys.readouterr().err


def test_a_wrong_job_ends_with_2_and_its_mistakes(folder, capsys):
    write("job.yaml", "scrpt: train.py")
    assert launch.main(["job.yaml"]) == 2
    assert capsys.readouterr().err == (
        "job.yaml: the key 'script' is missing\njob.yaml:1:1: unknown key 'scrpt' (did you mean script?)\n"
    )
    assert launch.main(["job.yaml", "--epochs", "3"]) == 2
    assert capsys.readouterr().err == (
        "jfluid-launch: --epochs 3: not an option of the launcher; to change an argument of a job file's script use "
        "--set args.NAME=VALUE\n"
    )
    write("train.py", "")
    assert launch.main(["--log_dir", "train.py", "train.py"]) == 2
    assert (
        capsys.readouterr().err
        == "train.py/workerlog.0: cannot write the log: File exists; name a different folder with --log_dir\n"
    )


# ---- real jobs -----------------------------------------------------------------------------------


@pytest.mark.process
class TestRuns:
    def test_output_log_and_environment(self, folder):
        write(
            "train.py",
            "import os, sys\nprint('to stdout', sys.argv[1:], os.environ['A'])\n"
            "print('to stderr', file=sys.stderr)\nprint('no newline', end='')",
        )
        write("job.yaml", "script: train.py\nargs: {epochs: 2}\nenv: {A: 1}\nlog_dir: logs")
        result = launched_as_users_do("job.yaml")
        assert result.returncode == 0
        assert result.stdout == "to stdout ['--epochs', '2'] 1\nno newline"
        assert "to stderr\n" in result.stderr
        assert "jfluid-launch: train finished after" in result.stderr
        log = untimed("logs/workerlog.0")
        assert sorted(log.splitlines()) == [
            "no newline",
            "to stderr",
            "to stdout ['--epochs', '2'] 1",
        ]

    def test_the_scripts_exit_code_and_traceback(self, folder):
        write(
            "train.py",
            "import sys\nif len(sys.argv) > 1: sys.exit(7)\nraise RuntimeError('out of luck')",
        )
        result = launched("train.py")
        assert result.returncode == 1
        assert "RuntimeError: out of luck" in result.stderr
        assert "jfluid-launch: train ended with exit code 1 after" in result.stderr
        assert "RuntimeError: out of luck" in untimed("mylog/workerlog.0")
        assert launched("train.py", "x").returncode == 7

    def test_a_signal_that_ends_the_script(self, folder):
        write("train.py", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
        result = launched("train.py")
        assert result.returncode == 128 + signal.SIGSEGV
        assert "ended with signal SIGSEGV" in result.stderr

    def test_input_reaches_the_script(self, folder):
        write("train.py", "print(input())")
        assert launched_as_users_do("train.py", input="hello\n").stdout == "hello\n"

    def test_a_process_left_behind_does_not_hold_the_launcher(self, folder):
        write(
            "train.py",
            "import subprocess, sys\n"
            "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']).pid)",
        )
        start = time.monotonic()
        result = launched("train.py")
        os.kill(int(result.stdout), signal.SIGKILL)
        assert result.returncode == 0
        assert time.monotonic() - start < 90

    def test_progress_as_lines(self, folder):
        write(
            "train.py",
            "from jfluid.progress import Progress\n"
            "with Progress(total=3) as progress:\n"
            "    for step in range(3): progress.step(examples=8, loss=0.5)\n",
        )
        result = launched("train.py", forks=True)
        for text in (result.stderr, untimed("mylog/workerlog.0")):
            assert "train 3/3  " in text
            assert "examples/s  loss 0.5\n" in text

    def test_progress_on_a_terminal(self, folder):
        write(
            "train.py",
            "from jfluid.progress import Progress\n"
            "with Progress(total=3) as progress:\n"
            "    for step in range(3): progress.step(examples=8, loss=0.5); print('at', step)\n",
        )
        code, screen = on_terminal("train.py")
        assert code == 0
        assert b"3/3" in screen
        assert b"loss 0.5" in screen
        assert all(b"at %d\r\n" % step in screen for step in range(3))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_the_launcher_ends_the_script(self, folder, number):
        write("train.py", "import time\nprint('ready')\ntime.sleep(100)")
        with started("train.py") as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 128 + number
        assert f"ended with signal {number.name}" in errors
        assert "jfluid/launch" not in errors, "no traceback of the launcher's own"

    def test_a_script_that_ignores_the_signal_is_killed_by_the_second(self, folder):
        write(
            "train.py",
            "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('ignored'))\n"
            "print('ready')\nwhile True: time.sleep(100)",
        )
        with started("train.py") as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "ignored\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT)
        assert process.returncode == 128 + signal.SIGKILL
