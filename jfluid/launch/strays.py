"""Processes of a gang that have left their process group: with sessions of their own, or as daemons.

Each process inherits a mark in its environment, which /proc shows to its user whatever its parent,
group and session are now; and what has changed its environment is a child of one that has not, as
long as that one lives. Processes that did both are not found, nor any where there is no /proc.

As a program, `python strays.py MARK`, this is the guard of a gang: it reads the numbers of process
groups from its input, a line each. When the launcher is gone, which closes the other end, it kills
these groups and all that have the mark; after the line "done" there is nothing to do. It runs
without site packages, so that this module imports nothing of jfluid.
"""

import os
import signal
import sys
import time
from collections.abc import Collection
from typing import NamedTuple

_SECONDS_TO_DIE = 5.0
_SECONDS_BETWEEN_LOOKS = 0.01


class _Process(NamedTuple):
    """A running process, by number and start time, since numbers are reused."""

    number: int
    parent: int
    session: int
    start: bytes


def _read(number: int) -> _Process | None:
    """Return the process with a number, or None if there is none or it is a zombie."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # names hold spaces and brackets
        if fields[0] in (b"Z", b"X"):
            return None
        return _Process(number, int(fields[1]), int(fields[3]), fields[19])
    except (OSError, IndexError):
        return None


def _has_mark(number: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{number}/environ", "rb") as file:
            return mark in b"\0" + file.read()
    except OSError:  # another user's, or it has ended
        return False


def _found(mark: str) -> list[_Process]:
    """All processes that have the mark, and their descendants."""
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:  # not Linux
        return []
    running = {n: process for n in numbers if (process := _read(n)) is not None}
    running.pop(os.getpid(), None)
    text = b"\0" + os.fsencode(mark)
    own = {n for n in running if _has_mark(n, text)}
    while more := {n for n, process in running.items() if process.parent in own} - own:
        own |= more
    return [running[n] for n in own]


def _send(process: _Process, number: int) -> None:
    """Send a signal to this process and to none that has got its number meanwhile."""
    try:
        file = os.pidfd_open(process.number)
    except (AttributeError, OSError):  # it has ended; or a kernel before 5.3
        file = -1
    try:
        now = _read(process.number)
        if now is None or now.start != process.start:
            return
        if file >= 0:
            signal.pidfd_send_signal(file, number)
        else:
            os.kill(process.number, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        if file >= 0:
            os.close(file)


def send(mark: str, number: int, besides: Collection[int]) -> None:
    """Send a signal to the processes with a mark that are in other sessions than these.

    Args:
        mark: the variable's text in their environment, "NAME=VALUE" or its beginning.
    """
    for process in _found(mark):
        if process.session not in besides:
            _send(process, number)


def end(mark: str) -> None:
    """Kill the marked processes and the processes that these start meanwhile; take at most 5 s."""
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while (left := _found(mark)) and time.monotonic() < deadline:
        for process in left:
            _send(process, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _guard(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = sys.stdin.read().split()
    if groups[-1:] == ["done"]:
        return
    for group in groups:
        try:
            os.killpg(int(group), signal.SIGKILL)
        except OSError:
            pass
    end(mark)


if __name__ == "__main__":
    _guard(sys.argv[1])
