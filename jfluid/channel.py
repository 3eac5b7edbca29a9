"""The way from a script to the launcher that started it: a pipe for messages, one JSON object a line."""
import contextlib
import json
import os
import sys
from types import TracebackType
from typing import Any

# Set by the launcher for each process that it starts: "<file descriptor>:<launcher's process id>".
CHANNEL = "JFLUID_PROGRESS_CHANNEL"
_LONGEST_ERROR = 500


def descriptor() -> int | None:
    """The pipe, or None where no launcher started this very process."""
    number, _, launcher = os.environ.get(CHANNEL, "").partition(":")
    # A process that the script started inherits the variable, but not the descriptor.
    return int(number) if launcher == str(os.getppid()) else None


def send(pipe: int, message: dict[str, Any]) -> None:
    """Send one message. A launcher that went away must not end the training."""
    with contextlib.suppress(OSError):
        os.write(pipe, json.dumps(message).encode() + b"\n")


def report_uncaught() -> None:
    """Tell the launcher of an exception that ends this script, at once.

    The interpreter may take minutes to end after it: jax.distributed waits for the other processes then.
    """
    pipe = descriptor()
    if pipe is None:
        return
    show = sys.excepthook

    def show_and_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):
            lines = str(error).splitlines()
            send(pipe, {"error": f"{kind.__name__}: {lines[0]}"[:_LONGEST_ERROR] if lines else kind.__name__})

    sys.excepthook = show_and_report
