"""Runs the examples as a user does: the launcher, a job file, some values changed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_example(name, folder, **args):
    """The finished process of configs/`name`.yaml, with other `args`, that writes to `folder`."""
    overrides = [
        f"--set=args.{key}={value}" for key, value in (args | {"output_dir": folder}).items()
    ]
    command = [
        sys.executable,
        "-m",
        "jfluid.launch",
        f"configs/{name}.yaml",
        f"--set=log_dir={folder}/log",
        *overrides,
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
