"""Output and progress of members: log files for all, the launcher's streams for chosen members."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from jfluid import errors
from jfluid.launch.gang import Member
from jfluid.launch.logs import Log, LogText, Screen, time_of_line
from jfluid.launch.messages import decode_report
from jfluid.printable import printable
from jfluid.progress import BarDisplay, Display, LineDisplay, display_on

_LONGEST_LINE = 1 << 16
_LENGTH_OF_TAIL = 1 << 16
_LONGEST_REPORT = 1 << 20


class Lines:
    """Splits a stream of bytes into whole lines, so that two streams never mix within one."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, data: bytes) -> bytes:
        """Return the lines that `data` completes; the rest is kept, unless it grows too long."""
        data = self.rest() + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end < _LONGEST_LINE:
            data, self._rest = data[:end], data[end:]
        return data

    def rest(self) -> bytes:
        """Return the kept rest."""
        rest, self._rest = self._rest, b""
        return rest


class Console:
    """The launcher's own output and error streams, with live progress on the latter.

    `shows` says whose output is passed on. The output of a single member is passed on unchanged;
    that of several has the member's name in front of each line.
    """

    def __init__(self, shows: Callable[[Member], bool], prefixed: bool, alone: bool):
        self.shows = shows
        self.prefixed = prefixed
        # Taken now: a live bar replaces sys.stdout and sys.stderr while it is shown.
        self._streams = {
            1: Screen(sys.stdout, "standard output", self.note),
            2: Screen(sys.stderr, "standard error", lambda text: None),
        }
        self._on_terminal = sys.stderr.isatty()
        self._alone = alone
        self._bars: Display | None = display_on(sys.stderr) if self._on_terminal else None

    def text(self, descriptor: int, data: bytes, lines: Lines, prefix: str) -> None:
        """Pass on bytes of a member's standard output (1) or error (2)."""
        stream = self._streams[descriptor]
        if isinstance(self._bars, BarDisplay) and self._bars.live and stream.isatty():
            whole = lines.whole(data)
            if whole:
                text = _with_prefix(whole, prefix).decode(errors="replace").removesuffix("\n")
                self._with_bars(lambda bars: bars.print_above(text))
            return
        stream.write_bytes(_with_prefix(lines.whole(data), prefix) if prefix else lines.rest() + data)

    def progress_of(self, member: Member) -> Callable[[dict[str, Any]], None]:
        """Return the display of a member's progress reports."""
        if self._bars is not None:
            return lambda report: self._with_bars(lambda bars: bars.show(report))
        return LineDisplay(self._streams[2], time_of_line).show

    def _with_bars(self, draw: Callable[[Any], None]) -> None:
        """Draw, unless the terminal has gone."""
        try:
            if self._bars is not None:
                draw(self._bars)
        except OSError:
            self._bars = None

    def name(self, member: Member) -> str:
        """Return the prefix of a member's lines and progress; nothing for a single member."""
        if self._alone:
            return ""
        return f"[{member.rank}] " if member.role == "trainer" else f"[{member.label}] "

    def note(self, text: str) -> None:
        """Write a line of the launcher."""
        line = f"{time_of_line()}jfluid-launch: {printable(text)}"
        if isinstance(self._bars, BarDisplay) and self._bars.live:
            self._with_bars(lambda bars: bars.print_above(line))
        else:
            self._streams[2].write(f"{line}\n")

    def close(self) -> None:
        self._with_bars(lambda bars: bars.close())


def _with_prefix(data: bytes, prefix: str) -> bytes:
    if not data or not prefix:
        return data
    ended = data.endswith((b"\n", b"\r"))
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").removesuffix(b"\n").split(b"\n")
    return b"\n".join(prefix.encode() + line for line in lines) + (b"\n" if ended else b"")


class MemberOutput:
    """Output and reports of a member, for its log file and, if the member is shown, for the console."""

    def __init__(self, member: Member, log: Log, console: Console):
        self._log = log
        self._console = console
        self._shown = console.shows(member)
        self._name = console.name(member)
        self._prefix = self._name if console.prefixed else ""
        self._show = console.progress_of(member)
        self._progress_log = LineDisplay(LogText(log))
        self._for_log = {1: Lines(), 2: Lines()}
        self._for_screen = {1: Lines(), 2: Lines()}
        self._reports = b""
        self._tail = b""

    def text(self, descriptor: int, data: bytes) -> None:
        """Take bytes of the member's standard output (1) or error (2)."""
        self._write(self._for_log[descriptor].whole(data))
        if self._shown:
            self._console.text(descriptor, data, self._for_screen[descriptor], self._prefix)

    def reports(self, data: bytes) -> list[dict[str, Any]]:
        """Take data from the member's pipe for reports, show the progress in it, and return all reports.

        What is none is passed over.
        """
        *lines, rest = (self._reports + data).split(b"\n")
        self._reports = rest[-_LONGEST_REPORT:]
        reports = []
        for line in lines:
            with contextlib.suppress(errors.MessageError):
                reports.append(decode_report(line))
        for report in reports:
            if "step" in report:
                self._show(report | {"description": self._name + report["description"]})
                self._progress_log.show(report)
        return reports

    def tail(self) -> str:
        """Return the end of the member's output."""
        return self._tail.decode(errors="replace")

    def close(self) -> None:
        for descriptor in (1, 2):
            self._write(self._for_log[descriptor].rest())
            rest = self._for_screen[descriptor].rest()
            if self._shown and rest:
                self._console.text(descriptor, rest + b"\n" if self._prefix else rest, Lines(), self._prefix)

    def _write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_LENGTH_OF_TAIL:]
        self._log.write(data)
