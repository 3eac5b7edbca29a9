"""The pipe from a script to the launcher that started it, which takes messages, one JSON object a line."""

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from jfluid import environment


def descriptor() -> int | None:
    """Return the pipe, or None if no launcher started this process itself.

    The launcher gives each process "<file descriptor>:<launcher's process id>".
    """
    number, _, launcher = environment.text(environment.PROGRESS_CHANNEL, "").partition(":")
    # A process that the script started inherits the variable, but not the descriptor.
    return int(number) if launcher == str(os.getppid()) else None


def ranks() -> int:
    """Return the number of trainers of the job; 1 without a launcher."""
    number = environment.text("PADDLE_TRAINERS_NUM", "1")
    return max(int(number), 1) if number.isdecimal() and len(number) < 9 else 1


def send(pipe: int, message: dict[str, Any]) -> None:
    """Send one message. A launcher that has ended does not end the training."""
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps(message).encode() + b"\n")


def report_ending() -> None:
    """Report to the launcher at once when an exception or sys.exit ends this script with an exit code other than 0.

    The process itself may end minutes later, after processes that fail because of it: in an exit
    handler jax.distributed waits for the other processes. Without a launcher this does nothing.
    """
    if descriptor() is not None:
        sys.excepthook = functools.partial(_show_and_report, sys.excepthook)
        sys.exit = _exit_and_report


def _report(code: int, restarts_all: bool = False) -> None:
    pipe = descriptor()
    if pipe is not None:  # by a clock that all processes of a host share
        send(pipe, {"ending": code, "time": time.monotonic(), "restarts_all": restarts_all})


def _show_and_report(
    show: Callable[..., None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    show(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        _report(1, getattr(error, "restarts_all", False))


def _exit_and_report(status: Any = None, /) -> NoReturn:
    code = 0 if status is None else int(status) & 255 if isinstance(status, int) else 1
    if code != 0 and threading.current_thread() is threading.main_thread():
        # What is registered last runs first, and only if nothing catches the SystemExit.
        atexit.register(_report, code)
    raise SystemExit(status)
