"""Processes that begin in a moment: they are forked from one process that has imported what they
need.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

from tests.chaos.entry import end_with_parent

LIMIT_S = 300  # seconds, far above what a command takes on a busy machine
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chaos.warm", "tests.distributed.process", "jfluid.launch"])


def start(
    function: Callable[[Any], None], argument: Any, environment: Mapping[str, str], streams: int = 1
) -> tuple[BaseProcess, list[IO[str]]]:
    """A process that calls `function(argument)` in this environment, and what it prints: in one
    stream, or in two.
    """
    with ExitStack() as stack:
        pipes = [FORKS.Pipe(duplex=False) for _ in range(streams)]
        for end in (end for pipe in pipes for end in pipe):
            stack.enter_context(end)
        outputs = [theirs for _, theirs in pipes]
        process = FORKS.Process(target=_begin, args=(function, argument, outputs, dict(environment)), daemon=True)
        process.start()
        return process, [os.fdopen(os.dup(ours.fileno())) for ours, _ in pipes]


def _begin(
    function: Callable[[Any], None],
    argument: Any,
    outputs: list[Connection],
    environment: Mapping[str, str],
) -> None:
    end_with_parent()
    os.dup2(outputs[0].fileno(), 1)
    os.dup2(outputs[-1].fileno(), 2)
    for output in outputs:
        output.close()
    os.environ.clear()
    os.environ.update(environment)
    function(argument)


def jfluid(arguments: Sequence[Any], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What `python -m jfluid` with these arguments does in a folder, by a forked process in place of an interpreter."""
    words = list(map(str, arguments))
    process = Popen(_run_command, (words, str(folder)), environment)
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    printed = process.communicate()
    watchdog.cancel()
    return subprocess.CompletedProcess(words, process.wait(), *printed)


def _run_command(given: tuple[list[str], str]) -> None:
    from jfluid import command
    from tests import forked_members

    arguments, folder = given
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["jfluid", *arguments]
    forked_members.main_process()
    os._exit(forked_members.code_of(lambda: command.main(arguments)))


class Popen:
    """A forked process, with what tests use of `subprocess.Popen`; its streams are pipes."""

    def __init__(self, function: Callable[[Any], None], argument: Any, environment: Mapping[str, str]) -> None:
        self._process, (self.stdout, self.stderr) = start(function, argument, environment, streams=2)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.is_alive() and self._process.pid:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, ...]:
        """What it printed until it ended, on both streams."""
        with ThreadPoolExecutor(2) as threads:
            printed = tuple(threads.map(lambda stream: stream.read(), (self.stdout, self.stderr)))
        self.wait(timeout)
        self.stdout.close()
        self.stderr.close()
        return printed
