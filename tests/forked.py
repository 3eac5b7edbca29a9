"""Processes that begin in a moment: they are forked from one process that has imported what they
need.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import IO, Any

from tests.chaos.entry import end_with_parent

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
        process = FORKS.Process(
            target=_begin, args=(function, argument, outputs, dict(environment)), daemon=True
        )
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
