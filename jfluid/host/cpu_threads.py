"""XLA's threads on the processors of a machine.

Steps on the CPU run on a pool with a thread for each processor. The threads are awake for a millisecond at a
time. Some Linux kernels (in virtual machines, for instance) wake several threads on one processor while a second
processor is idle, and move the threads only later. A step of 3 ms then has half of the machine. So each thread is
bound to a separate processor, as OpenMP does with OMP_PROC_BIND.
"""

import contextlib
import os
from pathlib import Path

from jfluid import environment

VARIABLE = "JFLUID_BIND_THREADS"
MOST_PROCESSORS = 8  # larger machines are often shared, and a bound thread cannot evade foreign programs
_POOL = "tf_XLAEigen"  # XLA's name of the threads of its pool
_bound_in: list[int] = []  # the processes that have asked


def bind() -> None:
    """Bind the threads of XLA's pool to processors, once in a process, if that is wanted.

    JFLUID_BIND_THREADS says whether: 1 or 0. Without it they are bound where the process may use 2
    to MOST_PROCESSORS processors and is not one of several of a job. Raises PlaceError for
    another value.
    """
    pid = os.getpid()
    if pid not in _bound_in:
        _bound_in.append(pid)
        if hasattr(os, "sched_setaffinity") and _wanted(len(os.sched_getaffinity(0))):
            _bind(Path("/proc/self/task"))


def _wanted(processors: int) -> bool:
    if environment.text(VARIABLE):
        from jfluid.environment.process import DeviceVariables

        return bool(DeviceVariables.from_env().bind_threads)
    alone = not any(environment.text(name) for name in ("TRAINING_ROLE", "PADDLE_TRAINER_ID"))
    return alone and 1 < processors <= MOST_PROCESSORS


def _bind(folder: Path) -> None:
    """Bind the threads that a folder of /proc lists; not where there are more than processors."""
    threads = []
    for comm in folder.glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread may have ended
            if comm.read_text().strip() == _POOL:
                threads.append(int(comm.parent.name))
    processors = sorted(os.sched_getaffinity(0))
    if len(threads) <= len(processors):
        for thread, processor in zip(sorted(threads), processors):
            with contextlib.suppress(PermissionError):  # a container may forbid it
                os.sched_setaffinity(thread, {processor})
