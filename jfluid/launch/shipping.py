"""Records, logs and profiles of hosts without a folder in common with host 0, over the launchers' connection.

A follower finds out by a token in the first line of host 0's record whether both see one folder. If not, it sends
the files of its processes, at most `_BYTES_A_SECOND`, and host 0 writes the files beside its own. Of a log that grows
faster, lines are left out, and host 0 keeps the last `_LOG_BYTES` to twice as many.
"""

import base64
import contextlib
import os
import re
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from jfluid.launch.logs import announce
from jfluid.launch.messages import Recorded
from jfluid.launch.recording import JobRecord
from jfluid.record import lines, profiles
from jfluid.record.thinning import thinned
from jfluid.record.writer import MAX_BYTES
from jfluid.security import private_files

_PIECE = 64 << 10
_BYTES_A_SECOND = 256 << 10
_MOST_AT_END = 8 << 20
_SECONDS_BETWEEN = 1.0
_LARGEST_PROFILE = 64 << 20
_LOG_BYTES = 1 << 20
_MOST_FILES = 20_000  # of all hosts
_LOG_BACKLOG = 256 << 10  # of a log: what lies farther behind its end is left out
_LOG = re.compile(r"(worker|server)log\.\d{1,9}", re.ASCII)
_NAME = re.compile(r"(trainer|server|process|launcher)\.(\d{1,9})\.jsonl", re.ASCII)
_PROFILE = re.compile(r"profile-\w{1,32}/(trainer|server)\.(\d{1,9})\.json\.gz", re.ASCII)


class Sender:
    """Sends the files of this host's processes to host 0, each byte once.

    Args:
        record: of this launcher.
        node: the number of this host.
    """

    def __init__(self, record: JobRecord, node: int):
        self._record, self._folder, self._node = record, record.folder, node
        self._at: dict[str, _Place] = {}
        self._sent_profiles: set[str] = set()
        self._next = 0.0
        self._names: list[str] = []
        self._logs: dict[str, _LogEnd] = {}
        self.on = False

    def begin(self, token: str, members: Sequence[tuple[str, int]]) -> None:
        """Find out whether host 0 sees this folder, by the token of host 0's record; empty for no record."""
        self._names = [f"launcher.{self._node}{lines.SUFFIX}"]
        self._names += [f"{role}.{rank}{lines.SUFFIX}" for role, rank in members]
        for role, rank in members:
            name = _log_of(role, rank)
            self._logs.setdefault(name, _LogEnd(self._folder.parent / name))
        before, self.on = self.on, self._record.is_on and bool(token) and not self._shares(token)
        if self.on and not before:
            profiles.forget(self._folder)

    def _shares(self, token: str) -> bool:
        try:
            with open(self._folder / f"launcher.0{lines.SUFFIX}", "rb") as file:
                first = lines.decode(file.readline(_PIECE))
        except OSError:
            return False
        return first is not None and first.get("run") == token

    def ask(self, request: profiles.ProfileRequest) -> None:
        """Ask the processes of this host for a profile."""
        try:
            profiles.write_request(self._folder, request)
        except OSError as error:
            announce(f"the profile cannot be asked for here ({error.strerror})")

    def due(self) -> Iterator[Recorded]:
        """Return the pieces to send now."""
        now = time.monotonic()
        if self.on and now >= self._next:
            self._next = now + _SECONDS_BETWEEN
            yield from self._pieces(_BYTES_A_SECOND)

    def rest(self) -> Iterator[Recorded]:
        """Return the pieces of all that was written so far."""
        if self.on:
            self._record.flush()
            yield from self._pieces(_MOST_AT_END)

    def _pieces(self, most: int) -> Iterator[Recorded]:
        left = most
        for name in self._names:
            place = self._at.setdefault(name, _Place(self._folder / name))
            while left > 0 and (data := place.read()):
                left -= len(data)
                yield _piece(name, data)
        for name, end in self._logs.items():
            while left > 0 and (data := end.read()):
                left -= len(data)
                yield _piece(name, data)
        for path in sorted(self._folder.parent.glob("profile-*/*.json.gz")):
            name = f"{path.parent.name}/{path.name}"
            if left > 0 and name not in self._sent_profiles and _PROFILE.fullmatch(name):
                self._sent_profiles.add(name)
                with contextlib.suppress(OSError), path.open("rb") as file:
                    left -= path.stat().st_size
                    while data := file.read(_PIECE):
                        yield _piece(name, data)
                    yield Recorded(name=name, data="", last=True)
                    path.unlink()
                    path.parent.rmdir()  # which it is not while others write there


def _log_of(role: str, rank: int) -> str:
    return f"{'server' if role == 'server' else 'worker'}log.{rank}"


def _piece(name: str, data: bytes) -> Recorded:
    return Recorded(name=name, data=base64.b64encode(data).decode(), last=False)


class _Place:
    """The read position in a file of lines; in a thinned file it is behind the last line read."""

    def __init__(self, path: Path):
        self._path = path
        self._file: tuple[int, int] | None = None
        self._at, self._last = 0, b""

    def read(self) -> bytes:
        """Return the next whole lines, of at most about `_PIECE` bytes."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                identity = about.st_dev, about.st_ino
                if self._file != identity or about.st_size < self._at:
                    self._at = self._behind(file.read()) if self._file is not None else 0
                    self._file = identity
                if about.st_size == self._at:
                    return b""
                file.seek(self._at)
                data = file.read(_PIECE)
                if b"\n" not in data:
                    data += file.readline(lines.LONGEST_LINE)
        except OSError:
            return b""
        data = data[: data.rfind(b"\n") + 1]
        if data:
            self._at += len(data)
            self._last = data[data.rfind(b"\n", 0, -1) + 1 :]
        return data

    def _behind(self, data: bytes) -> int:
        """Return the position behind the last line that was read, which thinning keeps; 0 in a new file."""
        found = data.rfind(self._last) if self._last else -1
        return found + len(self._last) if found >= 0 else 0


class _LogEnd:
    """The read position in a log, which the launcher may rename to NAME.1 to begin a new one."""

    def __init__(self, path: Path):
        self._path = path
        self._file: tuple[int, int] | None = None
        self._at = 0

    def read(self) -> bytes:
        """Return the next bytes, at most `_PIECE`; bytes far behind the end are replaced by their number."""
        data = b""
        for path in (self._path.with_name(f"{self._path.name}.1"), self._path):
            with contextlib.suppress(OSError), path.open("rb") as file:
                about = os.fstat(file.fileno())
                if path is self._path and self._file != (about.st_dev, about.st_ino):
                    self._file, self._at = (about.st_dev, about.st_ino), 0
                if self._file == (about.st_dev, about.st_ino):
                    data = self._next(file, about.st_size)
            if data:
                break
        return data

    def _next(self, file: BinaryIO, size: int) -> bytes:
        if size < self._at:  # a new run of the job has begun the log anew
            self._at = 0
        if size - self._at <= _LOG_BACKLOG:
            file.seek(self._at)
            data = file.read(_PIECE)
            self._at += len(data)
            return data
        file.seek(size - _LOG_BACKLOG)
        file.readline(_PIECE)
        before, self._at = self._at, file.tell()
        return f"\njfluid-launch: {self._at - before} bytes are on {socket.gethostname()} only\n".encode()


class Receiver:
    """Writer of the followers' files beside host 0's record; foreign names are passed over.

    Args:
        record: of the launcher of host 0.

    Attributes:
        token: of host 0's record; empty without a record.
    """

    def __init__(self, record: JobRecord):
        self.token = record.token if record.is_on else ""
        self._folder = record.folder
        self._owners: dict[str, int] = {}
        self._failed = False
        self._logs: set[str] = set()  # of other hosts, begun in this job

    def begin(self, members: Sequence[tuple[str, int]]) -> None:
        """Keep the files of the processes of this host from the followers."""
        self._owners |= {f"{role}.{rank}{lines.SUFFIX}": 0 for role, rank in members}
        self._owners |= {_log_of(role, rank): 0 for role, rank in members}

    def take(self, node: int, message: Recorded) -> None:
        """Write a piece from the launcher of a host."""
        if not self.token:
            return
        try:
            data = base64.b64decode(message.data, validate=True)
        except ValueError:
            return
        try:
            if (match := _NAME.fullmatch(message.name)) is not None:
                role, rank = match.groups()
                fits = int(rank) == node if role == "launcher" else True
                if fits and self._owns(message.name, node):
                    self._append(self._folder / message.name, data)
            elif _LOG.fullmatch(message.name) and self._owns(message.name, node):
                self._append_log(self._folder.parent / message.name, data)
            elif _PROFILE.fullmatch(message.name) and self._owns(message.name, node):
                self._collect(self._folder.parent / message.name, data, message.last)
        except OSError as error:
            if not self._failed:
                announce(f"the record of host {node} cannot be written ({error.strerror})")
            self._failed = True

    def _owns(self, name: str, node: int) -> bool:
        """Return True if a host may write a file: the first host to send it, of at most `_MOST_FILES` files."""
        if name not in self._owners and len(self._owners) >= _MOST_FILES:
            return False
        return self._owners.setdefault(name, node) == node

    def _append(self, path: Path, data: bytes) -> None:
        """Add whole lines to a record; one that grows too large is thinned."""
        found = b"".join(line + b"\n" for line in data.split(b"\n") if lines.decode(line) is not None)
        size = path.stat().st_size if path.exists() else 0
        if size + len(found) > MAX_BYTES:
            kept = thinned(path.read_bytes() + found, MAX_BYTES // 2)
            beside = path.with_name(f"{path.name}.tmp")
            with open(beside, "wb", opener=private_files.create) as file:
                file.write(kept)
            os.replace(beside, path)
            return
        with open(path, "ab", opener=private_files.create) as file:
            file.write(found)

    def _append_log(self, path: Path, data: bytes) -> None:
        """Add to a log, of which the last `_LOG_BYTES` stay when it has twice as many."""
        if path.name not in self._logs:
            path.unlink(missing_ok=True)  # of an earlier job
        size = path.stat().st_size if path.exists() else 0
        how, kept = "ab", b""
        if size + len(data) > 2 * _LOG_BYTES:
            how, kept = "wb", path.read_bytes()[-_LOG_BYTES:].partition(b"\n")[2]
        self._logs.add(path.name)
        with open(path, how, opener=private_files.create) as file:
            file.write(kept + data)

    def _collect(self, path: Path, data: bytes, last: bool) -> None:
        """Add to a part of a profile, which gets its name when it is whole."""
        private_files.make_folder(path.parent)
        beside = path.with_name(f".{path.name}")
        if last:
            os.replace(beside, path)
            return
        if (beside.stat().st_size if beside.exists() else 0) + len(data) <= _LARGEST_PROFILE:
            with open(beside, "ab", opener=private_files.create) as file:
                file.write(data)


class Requests:
    """The requests for profiles in a record's folder, for the other hosts."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: Any = None
        self._next = 0.0

    def new(self) -> profiles.ProfileRequest | None:
        """Return a request that has changed since the last call; looks about once a second."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _SECONDS_BETWEEN / 2
        request = profiles.read_request(self._folder)
        if request == self._seen:
            return None
        self._seen = request
        return request


def named(members: Collection[Any]) -> list[tuple[str, int]]:
    """Return the roles and ranks of members."""
    return [(member.role, member.rank) for member in members]
