"""Runs a script as `python script.py` does, with jfluid for `paddle`."""

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence

from jfluid.compat import paddle

_ALONE = "python -m jfluid"
_USAGE = """usage: {name} script.py [arguments of the script]
       {name} -m module [arguments of the module]"""


def run(command: Sequence[str], name: str = _ALONE) -> None:
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
        more = ", or a subcommand (jfluid --help lists all)" if name == _ALONE else ""
        _refuse(f"{name}: {target}: expected a script, or a folder with __main__.py{more}")
    paddle.install()
    sys.argv[:] = words
    if as_module:
        sys.path[0] = os.getcwd()
        _check_module(target, name)
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        if os.path.isfile(target):
            sys.path[0] = os.path.dirname(os.path.realpath(target))
        runpy.run_path(target, run_name="__main__")


def _can_be_run(path: str) -> bool:
    return os.path.isfile(path) or os.path.isfile(os.path.join(path, "__main__.py"))


def _check_module(module: str, name: str) -> None:
    """End the command if a module, or a package that holds it, does not exist."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):  # a package imports a missing module
            raise
        found = None
    if found is None:
        _refuse(f"{name}: -m {module}: there is no such module in {os.getcwd()}, nor among the installed modules")


def _refuse(text: str) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(2)
