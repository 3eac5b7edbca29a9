"""The failure that ended a gang: the member that failed first, the reason, and the launcher's exit code."""

import re
import signal
from dataclasses import dataclass

_LONGEST_EXCERPT = 40
_LINES_WITHOUT_TRACEBACK = 10
_START = re.compile(r"^(Traceback \(most recent call last\):|Fatal Python error: .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """End of a gang: the member that failed first, its return code as in `subprocess`, the reason, its last output."""

    label: str
    code: int
    reason: str
    log: str
    excerpt: str

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: that of the member, or 128 + the number of the signal that ended it."""
        return exit_code(self.code)


def exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def how_ended(code: int) -> str:
    """Return a return code as text."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def excerpt_of(tail: str) -> str:
    """Return the last traceback in the end of a log, else the log's last lines."""
    starts = list(_START.finditer(tail))
    if not starts:
        return "\n".join(tail.splitlines()[-_LINES_WITHOUT_TRACEBACK:])
    lines = tail[starts[-1].start() :].splitlines()
    if len(lines) <= _LONGEST_EXCERPT:
        return "\n".join(lines)
    half = _LONGEST_EXCERPT // 2
    return "\n".join([*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]])
