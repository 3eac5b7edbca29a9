"""What tests of jobs on several hosts share."""

import os
import sys
import time
from pathlib import Path

from tests.launch_case import ENVIRONMENT, LIMIT, alive, write

PYTHON = [sys.executable, "-m", "jfluid.launch"]
TRAINING = str(Path(__file__).with_name("training.py"))
# Processes on virtual hosts find each other's secret as those of any job do.
HOSTS_ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if name != "CPU_NUM"}
# Each process writes its number to pid.RANK and sleeps.
SLEEPS = """
import os, time
with open("pid." + os.environ["PADDLE_TRAINER_ID"] + ".tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(file.name, file.name[:-4])
time.sleep(600)
"""


def wait_until(condition, what, limit=LIMIT, pause=0.05):
    """Wait for what may take a busy machine long, with `pause` seconds between two looks; `what` is
    said where it does not come.
    """
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:g} s for {what()}"
        time.sleep(pause)


def seconds_to_end(processes, limit=LIMIT):
    """Seconds until none of the processes is there any more."""
    begin = time.monotonic()
    wait_until(lambda: not any(map(alive, processes)), lambda: f"{processes} to end", limit)
    return time.monotonic() - begin


def sleepers(count):
    """The numbers of as many processes that sleep, once all are there."""
    wait_until(lambda: len(list(Path().glob("pid.?"))) == count, lambda: os.listdir("."))
    found = [int(path.read_text()) for path in Path().glob("pid.?")]
    for path in Path().glob("pid.?"):
        path.unlink()
    return found


def set_number(name, number):
    """Put a number into a file that other processes read."""
    os.replace(write(name + ".tmp", str(number)), name)


def steps_of(rank):
    """How many steps a trainer has taken."""
    path = Path(f"losses-{rank}")
    return path.read_text().count("\n") if path.exists() else 0
