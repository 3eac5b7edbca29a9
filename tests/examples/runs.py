"""Runs the examples: the launcher, a job file, some values changed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.launch_case import COMMAND, LIMIT, launched

ROOT = Path(__file__).parents[2]


def run_example(name, folder, as_users=False, **args):
    """The finished process of configs/`name`.yaml, with other `args`, that writes to `folder`.

    `as_users`: all its processes are new interpreters; otherwise they are forked.
    """
    values = {f"args.{key}": value for key, value in (args | {"output_dir": folder}).items()}
    command = [
        ROOT / "configs" / f"{name}.yaml",
        f"--set=log_dir={folder}/log",
        *(f"--set={key}={value}" for key, value in values.items()),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if not as_users:
        return launched(*command, environment=environment, forks=True)
    return subprocess.run(
        [*COMMAND, *command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
