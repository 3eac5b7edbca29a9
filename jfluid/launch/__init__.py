"""`jfluid-launch`: run a training job.

    jfluid-launch [options] job.yaml [--set args.epochs=3] [--dry-run]
    jfluid-launch [options] script.py [arguments of the script]
    jfluid-launch [options] -m module [arguments of the module]
    jfluid-launch --gpus 4 script.py                     # four processes that train together, each with a GPU
    jfluid-launch --cpus 2 --ips 10.0.0.1,10.0.0.2 script.py        # on each of two hosts
    jfluid-launch --servers 2 --trainers 4 script.py     # parameter servers and trainers
    jfluid-launch --emit slurm job.yaml                  # print a batch script that runs the job

Each process writes to LOG_DIR/workerlog.RANK (and what came before, when that has grown large, is
in workerlog.RANK.1); the output of rank 0 (`--console` for others) and the progress of all
(`jfluid.progress`) are shown. When one fails, all are ended. The exit code is that of the process
that failed first (128 + the signal's number when a signal ended it), 2 when the job is wrong.
"""

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfluid.job import JobError
from jfluid.launch.command import Command, parse
from jfluid.launch.emit import slurm_script
from jfluid.launch.kubernetes import kubernetes_manifest
from jfluid.launch.logs import give_up_screens, say
from jfluid.launch.runs import run


def main(
    arguments: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    defaults: Mapping[str, Any] | None = None,
    name: str = "jfluid-launch",
) -> int:
    """Run the command `jfluid-launch`, and return its exit code. `clock` is as of `run`.

    Args:
        defaults: keys of the job where no argument sets them.
        name: what usage and errors call the command.
    """
    try:
        command = parse(sys.argv[1:] if arguments is None else arguments, defaults or {}, name)
        if command.action == "run":
            try:
                return run(command.job, command.node, clock)
            finally:
                give_up_screens()
        print(_printed(command), end="", flush=True)
        if command.action in ("k8s", "jobset"):
            _warn_of_readers()
        return 0
    except JobError as error:
        print(error, file=sys.stderr)
        return 2


def _warn_of_readers() -> None:
    """Warn if the manifest, which may hold a secret, went into a file that is readable for all users."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file
        about = os.fstat(sys.stdout.fileno())
        if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
            say(
                "jfluid-launch: others can read the file that the manifest was written to, which may "
                "hold the job's secret: run chmod 600 on it"
            )


def _printed(command: Command) -> str:
    if command.action == "slurm":
        return slurm_script(command.job)
    if command.image is None:
        return command.job.to_yaml()
    return kubernetes_manifest(command.job, command.image, as_set=command.action == "jobset", **command.sizes)
