"""What tests of the launcher share: real launchers, and what became of their processes."""
import os
import pty
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "jfluid.launch"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "SLURM_", "OMPI_"))} | {
    "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", "TERM": "xterm", "JFLUID_JOB_TOKEN": "a-secret-of-the-tests"}
LIMIT = 60
# Each process writes its number to pid.RANK once it is at work.
PROLOGUE = """
import os, pathlib, signal, sys, time
rank = int(os.environ["PADDLE_TRAINER_ID"])
def ready():
    pathlib.Path(f"pid.{rank}.tmp").write_text(str(os.getpid()))
    os.rename(f"pid.{rank}.tmp", f"pid.{rank}")
def wait_for(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)
"""


def write(name, text):
    Path(name).write_text(text)
    return name


def launched(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, **options)


def gang(script, *arguments):
    """Run the script, below PROLOGUE, in several processes."""
    return launched(*arguments, write("train.py", PROLOGUE + script))


def started(*arguments, **options):
    """A launcher that runs; it is killed when the test takes too long."""
    process = subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    watchdog = threading.Timer(LIMIT, process.kill)
    watchdog.daemon = True
    watchdog.start()
    return process


def on_terminal(*arguments):
    """The exit code of a launcher on a terminal, and what it put on the screen."""
    main, other = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, stdin=other, stdout=other, stderr=other)
    os.close(other)
    screen = b""
    while True:
        try:
            data = os.read(main, 1 << 16)
        except OSError:  # how Linux tells that the other side is closed
            break
        screen += data
    os.close(main)
    return process.wait(LIMIT), screen


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def wait_until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def alive(number):
    """Whether a process runs: it exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def numbers(pattern="pid.*"):
    """The process numbers that the members wrote."""
    return [int(path.read_text()) for path in sorted(Path().glob(pattern))]
