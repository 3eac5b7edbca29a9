"""Members of a launcher's gang that begin in a moment: a launcher that was forked with what scripts
import (tests/forked.py) forks its members too, instead of starting interpreters.

To the launcher such a member is what `subprocess.Popen` gives; to its script it is a new process:
its own session, environment, arguments, streams and signals, with modules imported already.
"""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jfluid import launcher_pipe
from jfluid.launch import supervise


def use() -> None:
    """Have the launcher of this process fork its members from now on."""
    supervise.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=Member, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL
    )


class Member:
    """A forked process that runs a script; with what the launcher uses of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        **streams: Any,
    ) -> None:
        program, script, *arguments = [word for word in command if word != "-u"]
        assert program == sys.executable and script.endswith(".py"), command
        outputs = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        if not self.pid:
            code = 70  # it could not begin, or end
            try:
                _become(env, [theirs for _, theirs in outputs], pass_fds)
                code = _run(script, arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        for _, theirs in outputs:
            os.close(theirs)
        self.stdout, self.stderr = [os.fdopen(ours, "rb", 0) for ours, _ in outputs]

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(environment: Mapping[str, str], outputs: Sequence[int], kept: Sequence[int]) -> None:
    """Be a process of its own."""
    gc.freeze()  # nothing of the launcher is finalised, which would close files by old numbers
    os.setsid()
    for number, output in enumerate([os.open(os.devnull, os.O_RDONLY), *outputs]):
        os.dup2(output, number)
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, 1 << 12)
    signal.set_wakeup_fd(-1)
    for number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout = os.fdopen(1, "w", 1)
    sys.stderr = os.fdopen(2, "w", 1)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    main_process()


def main_process() -> None:
    """Let this process start processes, which a daemon may not."""
    process = multiprocessing.current_process()
    process.name = "MainProcess"
    process._config["daemon"] = False  # type: ignore[attr-defined]


def _run(script: str, arguments: Sequence[str]) -> int:
    """The exit code of the script, which has ended as with an interpreter of its own."""
    folders = [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]
    sys.argv = [script, *arguments]
    sys.path[:0] = [str(Path(script).resolve().parent), *folders]
    launcher_pipe.report_ending()  # as `import jfluid` does in a new process

    def run() -> None:
        for folder in folders:
            if Path(folder, "sitecustomize.py").exists():
                runpy.run_path(str(Path(folder, "sitecustomize.py")), run_name="sitecustomize")
                break
        runpy.run_path(script, run_name="__main__")

    return code_of(run)


def code_of(run: Callable[[], int | None]) -> int:
    """The exit code of an interpreter that calls `run` and ends, with all that an interpreter does at its end."""
    code: Any = 0
    try:
        code = run() or 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)
