"""`jfluid-launch`: run a training job.

    jfluid-launch [options] job.yaml [--set args.epochs=3] [--dry-run]
    jfluid-launch [options] script.py [arguments of the script]
    jfluid-launch --gpus 4 script.py                     # four processes that train together, each with a GPU
    jfluid-launch --cpus 2 --ips 10.0.0.1,10.0.0.2 script.py        # on each of two hosts

Each process writes to LOG_DIR/workerlog.RANK; the output of rank 0 (`--console` for others) and the progress of all
(`jfluid.progress`) are shown. When one fails, all are ended. The exit code is that of the process that failed first
(128 + the signal's number when a signal ended it), 2 when the job itself is wrong.
"""
import sys
from collections.abc import Sequence

from jfluid.job import JobError
from jfluid.launch.command import parse
from jfluid.launch.runs import run


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `jfluid-launch`; returns the exit code."""
    try:
        command = parse(sys.argv[1:] if arguments is None else arguments)
        if command.action == "print":
            print(command.job.to_yaml(), end="")
            return 0
        return run(command.job, command.node)
    except JobError as error:
        print(error, file=sys.stderr)
        return 2
