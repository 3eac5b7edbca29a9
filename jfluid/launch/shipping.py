"""Records and profiles of hosts that share no folder with host 0: launchers send these over the job's connection.

A follower finds out by a token in the first line of host 0's record whether both see one folder. If not, it sends
what its processes have written, at most `_BYTES_A_SECOND`, and host 0 writes it beside its own record.
"""

import base64
import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from jfluid.launch.logs import say
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
        self.on = False

    def begin(self, token: str, members: Sequence[tuple[str, int]]) -> None:
        """Find out whether host 0 sees this folder, by the token of host 0's record; empty for no record."""
        self._names = [f"launcher.{self._node}{lines.SUFFIX}"]
        self._names += [f"{role}.{rank}{lines.SUFFIX}" for role, rank in members]
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

    def ask(self, request: profiles.Request) -> None:
        """Ask the processes of this host for a profile."""
        try:
            profiles.write_request(self._folder, request)
        except OSError as error:
            say(f"jfluid-launch: the profile cannot be asked for here ({error.strerror})")

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

    def begin(self, members: Sequence[tuple[str, int]]) -> None:
        """Keep the files of the processes of this host from the followers."""
        self._owners |= {f"{role}.{rank}{lines.SUFFIX}": 0 for role, rank in members}

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
                if fits and self._owners.setdefault(message.name, node) == node:
                    self._append(self._folder / message.name, data)
            elif _PROFILE.fullmatch(message.name) and self._owners.setdefault(message.name, node) == node:
                self._collect(self._folder.parent / message.name, data, message.last)
        except OSError as error:
            if not self._failed:
                say(f"jfluid-launch: the record of host {node} cannot be written ({error.strerror})")
            self._failed = True

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

    def new(self) -> profiles.Request | None:
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
