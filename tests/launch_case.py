"""What tests of the launcher share: real launchers, and what became of their processes."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from jfluid.launch import main
from tests import forked, forked_members

COMMAND = [sys.executable, "-m", "jfluid.launch"]
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "SLURM_", "OMPI_", "PMI_"))
} | {
    "PYTHONPATH": os.pathsep.join(sys.path),
    "COLUMNS": "200",
    "TERM": "xterm",
    "JFLUID_JOB_TOKEN": "a-secret-of-the-tests",
}
# seconds, far above what a busy machine takes, and less than what scripts sleep that are to be
# ended
LIMIT = 300
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

# Has started what left it: a daemon, which has forked twice and has a session of its own, and a
# child of that whose environment is another. Neither obeys SIGTERM.
ESCAPED = """
import subprocess
DAEMON = '''
import os, pathlib, signal, subprocess, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
bare = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"],
    env={}, start_new_session=True,
)
for name, number in ((f"child.{sys.argv[1]}", os.getpid()), (f"child.{sys.argv[1]}.bare", bare.pid)):
    pathlib.Path(name + ".tmp").write_text(str(number))
    os.rename(name + ".tmp", name)
os.closerange(0, 3)
time.sleep(1000)
'''
life = os.environ.get("JFLUID_RESTARTS", "0")
subprocess.run([sys.executable, "-c", DAEMON, f"{rank}.{life}"], start_new_session=True)
wait_for(f"child.{rank}.{life}.bare")
"""


def write(name, text):
    Path(name).write_text(text)
    return name


def untimed(path):
    """Return a log that the launcher wrote, without the times with which its lines begin."""
    lines = Path(path).read_text().splitlines(keepends=True)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", line) for line in lines if line.strip()), lines
    return "".join(line[24:] for line in lines)


class Clock:
    """A launcher's clock: the machine's, which the test can set forward; or one that stands still
    until it is set forward.
    """

    def __init__(self, stands_still=False):
        self._stands_still = stands_still
        self.seconds, self.reads = forked.FORKS.Value("d", 0.0), forked.FORKS.Value("q", 0)

    def __call__(self):
        with self.reads:
            self.reads.value += 1
        return self.seconds.value + (0.0 if self._stands_still else time.monotonic())


class Launcher(forked.Popen):
    """The command `jfluid-launch`. It is killed when it takes too long.

    With `forks` its members, whose scripts import jfluid, are forked (tests/forked_members.py).
    """

    def __init__(self, *arguments, clock=time.monotonic, environment=ENVIRONMENT, forks=False):
        self._clock = clock
        super().__init__(_launch, (arguments, clock, forks), environment)
        self._watchdog = threading.Timer(LIMIT, self.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def set_clock_forward(self, seconds):
        """Once the launcher has looked at what has happened so far; it looks again, or has ended,
        before this returns.
        """
        self._wait_for_looks()
        self._clock.seconds.value += seconds
        self._wait_for_looks()

    def _wait_for_looks(self):
        enough = self._clock.reads.value + 3
        wait_until(lambda: self._clock.reads.value > enough or not self._process.is_alive())

    def communicate(self, timeout=None):
        with self:
            return super().communicate(timeout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        self._watchdog.cancel()
        self.stdout.close()
        self.stderr.close()


def _launch(given):
    arguments, clock, forks = given
    if forks:
        forked_members.use()
    sys.exit(main(arguments, clock))


def launched(*arguments, **options):
    """A launcher that has ended, as of `subprocess.run`; `options` are of Launcher."""
    launcher = Launcher(*map(str, arguments), **options)
    stdout, stderr = launcher.communicate()
    return subprocess.CompletedProcess(arguments, launcher.returncode, stdout, stderr)


def gang(script, *arguments, **options):
    """Run the script, below PROLOGUE, in several processes; `options` are of Launcher."""
    return launched(*arguments, write("train.py", PROLOGUE + script), **options)


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
