"""Writes the record of one process: a file of lines, by a thread, about once a second."""

import atexit
import contextlib
import fcntl
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jfluid.record import lines
from jfluid.record.thinning import thinned
from jfluid.security import private_files

# A file is thinned to half of this when it is larger.
MAX_BYTES = 4 << 20
SECONDS_BETWEEN_WRITES = 1.0
# Of `scalars` between two writes so many are all kept, else the extremes of so many parts.
_MOST_CALLS, _PARTS = 50, 10
# With more ranks a second of the whole job has about as many lines: each rank has fewer parts, and writes less often.
_RANKS_OF_PARTS, _RANKS_OF_A_SECOND, _LONGEST_WAIT = 20, 50, 4.0
_MOST_PENDING = 100_000
_MOST_NAMES = 1000
_SECONDS_TO_RETRY = 5.0
_log = logging.getLogger("jfluid.record")
Call = tuple[float, int | None, dict[str, float]]


class Taken(Exception):
    """The file is locked by a different process."""


class Recorder:
    """A file of lines that other threads add to without waiting for the disk.

    Args:
        path: of the file, which is made with its folders.
        append: append to an existing file, rather than begin a new one.
        start: the fields of its line of kind start.
        max_bytes: how large it becomes before it is thinned.
        seconds: between two writes.
        numbers: called before each write; returns scalars of the moment.
        ranks: how many processes of the job write records.

    Raises OSError when it cannot be opened, and Taken when a different process writes it.
    """

    def __init__(
        self,
        path: Path,
        append: bool,
        start: Mapping[str, Any],
        max_bytes: int = MAX_BYTES,
        seconds: float = SECONDS_BETWEEN_WRITES,
        numbers: Callable[[], dict[str, float]] = dict,
        ranks: int = 1,
    ):
        seconds *= min(max(ranks / _RANKS_OF_A_SECOND, 1.0), _LONGEST_WAIT)
        self._parts = max(min(_RANKS_OF_PARTS * _PARTS // max(ranks, 1), _PARTS), 1)
        self.path, self._max_bytes, self._seconds, self._numbers = path, max_bytes, seconds, numbers
        self._calls: deque[Call] = deque()
        self._others: deque[tuple[str, float, dict[str, Any]]] = deque()
        self._names: set[str] = set()
        self._dropped = 0
        self._failed_until = 0.0
        self._owner = os.getpid()
        self._writing = threading.Lock()
        self._wake, self._closed = threading.Event(), False
        private_files.make_folder(path.parent)
        self._file, self._size = self._open(append)
        self.add("start", start)
        self._thread = threading.Thread(target=self._run, name="jfluid-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def scalars(self, step: int | None, values: dict[str, float]) -> None:
        """Add numbers by name, of a step or of the moment. The dict is kept."""
        if len(self._calls) < _MOST_PENDING:
            self._calls.append((time.time(), step, values))
        else:
            self._dropped += 1

    def add(self, kind: str, fields: Mapping[str, Any], at_once: bool = False) -> None:
        """Add a line of any kind; its numbers are finite, or texts from `lines.written`."""
        if len(self._others) < _MOST_PENDING:
            self._others.append((kind, time.time(), dict(fields)))
        else:
            self._dropped += 1
        if at_once:
            self._wake.set()

    def flush(self) -> None:
        """Write all that was added."""
        with self._writing:
            self._write(self._taken())

    def close(self) -> None:
        """Write the pending lines, and end. Later calls are lost."""
        if self._closed or os.getpid() != self._owner:  # which a forked process is not
            return
        self._closed = True
        atexit.unregister(self.close)
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._writing:
            os.close(self._file)
            self._file = -1

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._seconds)
            self._wake.clear()
            self.scalars(None, self._numbers())
            self.flush()

    # ---- what is written ---------------------------------------------------------------------------

    def _taken(self) -> bytes:
        """Return the lines added since the last call."""
        calls = [self._calls.popleft() for _ in range(len(self._calls))]
        found = [
            (moment, self._scalars_line(moment, step, values))
            for moment, step, values in reduced(self._known(calls), self._parts)
        ]
        newest: dict[str, tuple[float, bytes]] = {}  # progress of each loop: the newest tells all
        for kind, moment, fields in [self._others.popleft() for _ in range(len(self._others))]:
            line = lines.encode(kind, moment, fields)
            if kind == "progress" and not fields.get("done"):
                newest[fields["description"]] = moment, line
            else:
                found.append((moment, line))
        found += newest.values()
        found.sort(key=lambda item: item[0])
        return b"".join(line for _, line in found)

    def _scalars_line(self, moment: float, step: int | None, values: Mapping[str, float]) -> bytes:
        fields = {name: lines.written(value) for name, value in values.items()}
        return lines.encode("scalars", moment, {"step": step, "scalars": fields})

    def _known(self, calls: Sequence[Call]) -> Sequence[Call]:
        """Return the calls with the first 1000 names only, and long names shortened.

        A name made for each step would fill the record and its page.
        """
        if set().union(*(values for _, _, values in calls)) <= self._names:
            return calls
        return [(moment, step, self._named(values)) for moment, step, values in calls]

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        found = {}
        for name, value in values.items():
            short = lines.shortened(name, lines.LONGEST_NAME)
            if short in self._names or len(self._names) < _MOST_NAMES:
                self._names.add(short)
                found[short] = value
            else:
                self._dropped += 1
        return found

    # ---- the file ----------------------------------------------------------------------------------

    def _open(self, append: bool) -> tuple[int, int]:
        """Return a locked descriptor of the file, and the file's size."""
        while True:
            file = private_files.create(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                raise Taken(self.path) from None
            except OSError:
                pass  # a file system without locks
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.path), os.fstat(file)):
                    break
            os.close(file)  # it was thinned, or removed, just now
        size = os.fstat(file).st_size
        if not append and size:
            os.ftruncate(file, 0)
            size = 0
        if size and os.pread(file, 1, size - 1) != b"\n":
            size += os.write(file, b"\n")  # after a line that a process wrote in part as it died
        return file, size

    def _write(self, data: bytes) -> None:
        """Write, or drop the lines, while the disk takes none."""
        if not (data or self._dropped) or self._file < 0:
            return
        now = time.monotonic()
        if now < self._failed_until:
            self._dropped += data.count(b"\n")
            return
        dropped = self._dropped
        told = lines.encode("dropped", time.time(), {"lines": dropped}) if dropped else b""
        try:
            if self._size + len(data) + len(told) > self._max_bytes:
                self._thin()
            left = data + told
            while left:
                written = os.write(self._file, left)
                self._size += written
                left = left[written:]
            self._failed_until = 0.0
            self._dropped -= dropped
        except OSError as error:
            if not self._failed_until:
                _log.warning(
                    "the record %s has stopped (%s); the job goes on without it",
                    self.path,
                    error.strerror,
                )
            self._failed_until = now + _SECONDS_TO_RETRY
            self._dropped += data.count(b"\n")
            with contextlib.suppress(OSError):  # what was begun is no line
                os.write(self._file, b"\n")

    def _thin(self) -> None:
        """Put a thinned file in the place of this one."""
        data = bytearray()
        while piece := os.pread(self._file, 1 << 20, len(data)):
            data += piece
        kept = thinned(bytes(data), self._max_bytes // 2)
        beside = self.path.with_name(f"{self.path.name}.tmp")
        file = private_files.create(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = kept
            while left:
                left = left[os.write(file, left) :]
            os.replace(beside, self.path)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self._size = file, len(kept)


def reduced(calls: Sequence[Call], parts: int = _PARTS) -> list[Call]:
    """Return the calls between two writes, reduced to extremes if there are many.

    The last call stays. Of each name the lowest, the highest and a non-finite value of each of `parts` parts stay.
    """
    if len(calls) <= _MOST_CALLS * parts // _PARTS:
        return [call for call in calls if call[2]]
    columns: dict[str, tuple[list[int], list[float]]] = {}
    for index, (_, _, values) in enumerate(calls):
        for name, value in values.items():
            held = columns.get(name)
            if held is None:
                held = columns[name] = ([], [])
            held[0].append(index)
            held[1].append(value)
    kept: dict[int, set[str]] = {}
    for name, (indices, column) in columns.items():
        size = -(-len(indices) // parts)
        chosen = {indices[-1]}
        for start in range(0, len(indices), size):
            chosen.update(indices[start + place] for place in _extremes(column[start : start + size]))
        for index in chosen:
            kept.setdefault(index, set()).add(name)
    found = []
    for index in sorted(kept):
        moment, step, values = calls[index]
        found.append((moment, step, {name: value for name, value in values.items() if name in kept[index]}))
    return found


def _extremes(column: Sequence[float]) -> set[int]:
    """Return the places of the lowest, the highest and the first non-finite value."""
    if math.isfinite(sum(column)):
        return {column.index(min(column)), column.index(max(column))}
    usual = [value for value in column if math.isfinite(value)]
    found = {column.index(value) for value in (min(usual), max(usual))} if usual else set()
    if len(usual) < len(column):
        found.add(next(place for place, value in enumerate(column) if not math.isfinite(value)))
    return found
