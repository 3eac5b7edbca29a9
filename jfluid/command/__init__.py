"""The command `jfluid`:

    jfluid doctor PATH...                                   # what happens to scripts and models here
    jfluid inspect MODEL_DIR                                # what a saved model holds
    jfluid export MODEL_DIR --to stablehlo|jax|onnx
    jfluid serve MODEL_DIR --port N
    jfluid dashboard LOG_DIR...                             # the page of jobs

`jfluid SUBCOMMAND --help` has the options of each. `python -m jfluid SUBCOMMAND` is the same.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

SUBCOMMANDS = ("doctor", "inspect", "export", "serve", "dashboard")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code, 2 where there is no such subcommand."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:  # the reader has seen enough, as in `jfluid doctor . | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if name not in SUBCOMMANDS:
        print(f"jfluid: expected one of {', '.join(SUBCOMMANDS)}, found {name!r}", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"jfluid.command.{name}").main(rest)
    return code
