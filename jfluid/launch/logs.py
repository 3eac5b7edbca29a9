"""The launcher's output.

A full disk, or a closed terminal or pipe, stops a log or a screen, but never the job.
"""

import contextlib
import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from jfluid.job import JobError
from jfluid.printable import printable
from jfluid.security import private_files

# Seconds after which an outlet that stopped tries again.
_SECONDS_TO_RETRY = 5.0
# Seconds until a new reason of a wait is announced, and between announcements of one reason.
_SECONDS_TO_TELL, _SECONDS_BETWEEN_ANNOUNCEMENTS = 1.0, 10.0
# Of these a disk may recover; a log that cannot be opened for another reason is a mistake in the
# job.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

# A line without its end, or the rest of a text; and the date of a line that has its own time.
_TEXT_OF_LINE = re.compile(rb"[^\r\n]+[\r\n]*")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d")


def time_of_line() -> str:
    """Return the time that stands before a line, in the form of Python's logging."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now * 1000) % 1000:03d} "


class Outlet:
    """Writer of bytes to a destination that may fail; bytes are dropped and counted until it recovers.

    Args:
        name: of the destination, for messages.
        put: writes; raises OSError.
        tell: called with a sentence when the destination fails, and when it works again.
    """

    def __init__(
        self,
        name: str,
        put: Callable[[bytes], None],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._name, self._put, self._tell, self._clock = name, put, tell, clock
        self.missing, self._next = 0, 0.0

    def write(self, data: bytes) -> None:
        """Write, or drop the bytes."""
        if not data:
            return
        if self.missing and self._clock() < self._next:
            self.missing += len(data)
            return
        try:
            if self.missing:
                self._put(b"\njfluid-launch: %d bytes are missing here\n" % self.missing)
            self._put(data)
        except OSError as error:
            before, self.missing = self.missing, self.missing + len(data)
            self._next = self._clock() + _SECONDS_TO_RETRY
            if not before:
                self._tell(f"{self._name} has stopped ({error.strerror or error}); the job goes on without it")
        else:
            missing, self.missing = self.missing, 0
            if missing:
                self._tell(f"{self._name} goes on; {missing} bytes are missing in it")


class Log:
    """A member's log file.

    Each line gets the time of its arrival, unless the line begins with a date; empty lines stay empty.

    Before a line would make it larger than `max_bytes` it is renamed to PATH.1, that to PATH.2, and
    so on up to `backups` files, of which the oldest goes; then a new one begins. A device is never
    renamed.

    Args:
        append: append to an existing file, rather than begin a new one (without the backups of an
            earlier job).
        tell: called when the log stops, and when it continues.
        times: whether lines get their times.

        Raises JobError when it cannot be opened, unless the disk is full or broken at the moment.
    """

    def __init__(
        self, path: Path, append: bool, max_bytes: int, backups: int, tell: Callable[[str], None], times: bool = False
    ):
        self._path, self._most, self._backups = path, max_bytes, backups
        self._file = -1
        self._size, self._is_file = 0, True
        self._times, self._in_line = times, False
        self._outlet = Outlet(f"the log {path}", self._put, tell)
        try:
            self._open(os.O_APPEND if append else os.O_TRUNC)
            if not append:
                for old in path.parent.glob(f"{path.name}.*"):
                    if old.suffix[1:].isdecimal():
                        old.unlink()
        except OSError as error:
            if error.errno not in _PASSING and not append:
                raise JobError(
                    f"{path}: cannot write the log: {error.strerror}; name a different folder with --log_dir"
                ) from None

    def _open(self, how: int) -> None:
        private_files.make_folder(self._path.parent)
        self._file = private_files.create(self._path, os.O_WRONLY | os.O_CREAT | how)
        status = os.fstat(self._file)
        self._size, self._is_file = status.st_size, stat.S_ISREG(status.st_mode)

    def write(self, data: bytes) -> None:
        """Write, if the disk takes it."""
        if self._times and data:
            data = self._with_times(data)
        self._outlet.write(data)

    def _with_times(self, data: bytes) -> bytes:
        now = time_of_line().encode()
        first = 0 if self._in_line else -1
        self._in_line = not data.endswith((b"\n", b"\r"))

        def timed(line: re.Match[bytes]) -> bytes:
            text = line.group()
            return text if line.start() == first or _DATE.match(text) else now + text

        return _TEXT_OF_LINE.sub(timed, data)

    def _put(self, data: bytes) -> None:
        if self._file < 0:
            self._open(os.O_APPEND)
        while data:
            fitting = len(data)
            if self._is_file and self._size + len(data) > self._most:
                fitting = data.rfind(b"\n", 0, max(self._most - self._size, 0)) + 1
                if not fitting and self._size:
                    self._rotate()
                    continue
            written = os.write(self._file, data[: fitting or self._most])
            self._size += written
            data = data[written:]

    def _rotate(self) -> None:
        self.close()
        names = [
            self._path,
            *(self._path.with_name(f"{self._path.name}.{i}") for i in range(1, self._backups + 1)),
        ]
        for older, newer in zip(names[:0:-1], names[-2::-1]):
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        self._open(os.O_TRUNC)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.close()


class LogText:
    """A log as a stream of text, for progress."""

    def __init__(self, log: Log):
        self._log = log

    def write(self, text: str) -> int:
        """Write, if the disk takes it."""
        self._log.write(text.encode())
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text is buffered."""


class Screen:
    """Standard output or error of the launcher, as bytes and as text.

    Data that the stream does not accept is dropped.

    Args:
        tell: called when the stream stops; usually writes to the second stream.
    """

    def __init__(self, stream: TextIO, name: str, tell: Callable[[str], None]):
        self._stream = stream
        self._outlet = Outlet(name, self._put, tell)
        self.isatty = stream.isatty

    def _put(self, data: bytes) -> None:
        self._stream.flush()
        self._stream.buffer.write(data)
        self._stream.buffer.flush()

    def write(self, text: str) -> int:
        """Write text, if it is taken."""
        self._outlet.write(text.encode(errors="replace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write, if it is taken."""
        self._outlet.write(data)

    def flush(self) -> None:
        """Do nothing: no text is buffered."""


def announce(text: str) -> None:
    """Write a line of the launcher about a running job to standard error, with the time, or drop it."""
    say(f"{time_of_line()}jfluid-launch: {text}")


class Waiting:
    """Announcements of a wait: the first after a second, then one every ten seconds, or a second after a change."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last, self._told = clock, clock(), ""

    def look(self, text: str) -> None:
        """Announce the reason of the wait, if its time has come."""
        now = self._clock()
        if now >= self._last + (_SECONDS_BETWEEN_ANNOUNCEMENTS if text == self._told else _SECONDS_TO_TELL):
            self._last, self._told = now, text
            announce(f"waiting for {text}")


def say(text: str) -> None:
    """Write a line of the launcher's own to standard error, or drop it."""
    with contextlib.suppress(OSError):
        print(printable(text), file=sys.stderr, flush=True)


def give_up_screens() -> None:
    """Discard data that the streams do not accept, so that it does not change the exit code of the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
