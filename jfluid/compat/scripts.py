"""Runs a script as `python script.py` does, with jfluid for `paddle`."""

import os
import runpy
import sys
from collections.abc import Sequence

from jfluid.compat import paddle

_USAGE = """usage: {name} script.py [arguments of the script]
       {name} -m module [arguments of the module]"""


def run(command: Sequence[str], name: str = "python -m jfluid") -> None:
    """Run `script.py arguments` or `-m module arguments`; errors of the script pass through.

    Raises SystemExit with status 2 when there is nothing to run, and its message on stderr.

    Args:
        name: what usage and errors call the command.
    """
    if command[:1] in (["-h"], ["--help"]):
        print(_USAGE.format(name=name))
        raise SystemExit(0)
    as_module = command[:1] == ["-m"]
    words = list(command[as_module:])
    if not words or (not as_module and words[0].startswith("-")):
        _refuse(_USAGE.format(name=name))
    target = words[0]
    if not as_module and not _can_be_run(target):
        _refuse(f"{name}: {target}: expected a script, or a folder with __main__.py")
    paddle.install()
    sys.argv[:] = words
    if as_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        if os.path.isfile(target):
            sys.path[0] = os.path.dirname(os.path.realpath(target))
        runpy.run_path(target, run_name="__main__")


def _can_be_run(path: str) -> bool:
    return os.path.isfile(path) or os.path.isfile(os.path.join(path, "__main__.py"))


def _refuse(text: str) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(2)
