"""The command `jfluid`: its subcommands are the modules beside this one.

Each has `main`, which takes the arguments and returns the exit code, and `arguments_parser`, which says what
they are, where it has options of its own.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

# Each with its line of help.
SUBCOMMANDS = {
    "run": "run a script unchanged: its `import paddle.fluid` finds jfluid",
    "launch": "run a job file or a script in several processes, with logs, progress and restarts",
    "demo": "run an example: the click model with parameter servers, or a named example",
    "doctor": "predict if scripts and models run here, without running them",
    "inspect": "print the contents of a saved model",
    "export": "convert a saved model to StableHLO, JAX or ONNX",
    "serve": "serve saved models over HTTP",
    "dashboard": "show the page of jobs that run or have ended",
    "profile": "profile some steps of a script: a trace for Perfetto, and a table of the time by operator",
    "install-alias": "let `import paddle` find jfluid permanently in this environment",
    "check-device": "check correctness and speed of this machine's devices",
    "bench": "measure the figures of the performance page, in a checkout",
    "completion": "print the completion for bash, zsh or fish",
}


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
        print(usage())
        return 0
    if name == "--version":
        print(version())
        return 0
    if name not in SUBCOMMANDS:
        print(f"jfluid: {_wrong(name)}", file=sys.stderr)
        return 2
    code: int = module_of(name).main(rest)
    return code


def module_of(name: str) -> ModuleType:
    """Return the module of a subcommand."""
    return importlib.import_module(f"jfluid.command.{name.replace('-', '_')}")


def usage() -> str:
    """Return the help of the command as a whole."""
    width = max(map(len, SUBCOMMANDS))
    return "\n".join(
        [
            "usage: jfluid SUBCOMMAND [arguments]",
            "       jfluid --version",
            "",
            *(f"  {name:{width}}  {summary}" for name, summary in SUBCOMMANDS.items()),
            "",
            "`jfluid SUBCOMMAND --help` has the options of each. `python -m jfluid SUBCOMMAND` is the same.",
        ]
    )


def version() -> str:
    """Return a line with the versions that a report of a fault needs."""
    from importlib import metadata

    from jfluid.installation import FLUID_VERSION, VERSION

    python = ".".join(map(str, sys.version_info[:3]))
    return f"jfluid {VERSION} (Fluid {FLUID_VERSION}, JAX {metadata.version('jax')}, Python {python})"


def _wrong(name: str) -> str:
    """Return the error of an unknown subcommand."""
    if name.endswith((".py", ".yaml", ".yml")) or os.path.exists(name):
        instead = "run" if name.endswith(".py") or os.path.isdir(name) else "launch"
        return f"{name} is no subcommand; to start it: jfluid {instead} {name}"
    from jfluid.errors import close_to
    from jfluid.printable import printable

    likely = close_to(name, SUBCOMMANDS)
    return printable(f"expected one of {', '.join(SUBCOMMANDS)}, found {name!r}{likely}")
