"""Atomic writes of files, reads within bounds, and names that cannot lead out of a folder."""

import contextlib
import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jfluid import errors
from jfluid.files import file_sets

MODEL = "__model__"  # file of a saved program
_PROGRAMS = (MODEL, f"{MODEL}.main_program")
# bytes of a file's name, as nearly all file systems have it, and with its folders
_LONGEST_PART, _LONGEST_NAME = 255, 1024
# What a path may not be for its file to be missing or unreadable, rather than this process to lack
# something.
_WRONG_PATH = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO})


def path_below(folder: str | os.PathLike[str], name: str) -> str:
    """Return the path of the file of variable (or table) `name` in a folder.

    Names come with programs, and programs from anywhere. A name may have folders in it, as Fluid's
    may ("encoder/w"), but it never leads out of the folder, and no two names stand for one file.
    Raises FileFormatError that says what is wrong.
    """
    found = _fault_of(name)
    if found:
        shown = f"{name[:80]!r}{' ...' if len(name) > 80 else ''}"
        raise errors.FileFormatError(
            f"{os.fspath(folder)}, variable {shown}: {found}. Expected a name that stays in the folder, such as w or "
            "encoder/w: rename the variable, or save all variables as one file (filename, params_filename), without "
            "names"
        )
    return os.path.join(os.fspath(folder), name)


def _fault_of(name: str) -> str:
    """Return why a name cannot be that of a file in a folder; empty when it can.

    It is the same on all systems, so that folders can be moved.
    """
    if not name:
        return "an empty name"
    if "\\" in name or re.match("[A-Za-z]:", name):
        return "a path of Windows"
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", name):
        return "a name with control characters"
    if name.startswith("/"):
        return "an absolute path"
    if len(name.encode()) > _LONGEST_NAME:
        return f"a name of more than {_LONGEST_NAME} bytes"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "a path with ., .. or an empty part"
    if any(part.startswith(".jfluid-") for part in parts):  # folders of saves (`file_sets`)
        return "a name that begins with .jfluid-, as of a save that goes on"
    if any(len(part.encode()) > _LONGEST_PART for part in parts):
        return f"a part of more than {_LONGEST_PART} bytes"
    return ""


def paths_to_write(folder: str | os.PathLike[str], names: Iterable[str], reserved: Iterable[str] = ()) -> list[str]:
    """Return the paths of the files of variables (see `path_below`) that are about to be written.

    Raises FileFormatError also where links lead out of the folder, where one variable's file would
    be another's folder, and for names of different files: the program's, and `reserved` names. Nothing is
    written then.
    """
    names, others = list(names), {*_PROGRAMS, *reserved}
    paths = [path_below(folder, name) for name in names]
    root, taken = Path(os.path.realpath(folder)), set(names)
    for name, path in zip(names, paths):
        where = f"{os.fspath(folder)}, variable {name}"
        if name in others:
            raise errors.FileFormatError(f"{where}: the name of a different file of the folder; rename the variable")
        parents = [name[:i] for i, c in enumerate(name) if c == "/"]
        if above := [p for p in parents if p in taken or p in others]:
            raise errors.FileFormatError(
                f"{where}: {above[0]} is a file of the folder, no folder; rename one of the two"
            )
        if parents and not Path(os.path.realpath(os.path.dirname(path))).is_relative_to(root):
            raise errors.FileFormatError(
                f"{where}: a link in the folder leads out of it, to "
                f"{os.path.realpath(os.path.dirname(path))}; remove the link, or save elsewhere"
            )
    return paths


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for writing; the file gets its name only when the context ends without an error.

    Folders on the way are made. A file that was there stays as it is until then.
    """
    file_sets.check_local(path)
    folder, name = os.path.split(os.path.abspath(path))
    with file_sets.saving(folder) as files, files.open(name) as file:
        yield file


class BoundedReader:
    """Reads a file piece by piece; a piece that reaches beyond the end is refused before memory is taken for it.

    Attributes:
        what: the variable that is being read; errors name it.
    """

    def __init__(self, file: BinaryIO, name: str):
        self._file, self.name, self.what = file, name, ""
        self._size = os.fstat(file.fileno()).st_size
        self._position = 0

    @property
    def remaining(self) -> int:
        return self._size - self._position

    def refuse(self, problem: str) -> errors.FileFormatError:
        """Return the error that describes a fault of the file."""
        variable = f", variable {self.what}" if self.what else ""
        return errors.FileFormatError(f"{self.name}{variable}: {problem}")

    def need(self, count: int, what: str) -> None:
        """Raise FileFormatError, which names the missing item, unless `count` more bytes are there."""
        if not 0 <= count <= self.remaining:
            raise self.refuse(
                f"truncated: {what} takes {count} bytes at offset {self._position}, the file has {self.remaining} left"
            )

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        self.need(count, what)
        data = self._file.read(count)
        self._position += count
        if len(data) != count:
            raise self.refuse(f"the file shrank while {what} was read")
        return data

    def begin(self, count: int) -> bytes:
        """Return the first bytes of the file, at most `count`, without a change of the position."""
        return os.pread(self._file.fileno(), count, 0)

    def skip(self, count: int, what: str) -> None:
        """Pass over the next `count` bytes."""
        self.need(count, what)
        self._file.seek(count, os.SEEK_CUR)
        self._position += count

    def take_into(self, buffer: Any, what: str) -> None:
        """Fill a writable buffer with the next bytes."""
        view = memoryview(buffer).cast("B")
        self.need(len(view), what)
        if self._file.readinto(view) != len(view):  # type: ignore[attr-defined]
            raise self.refuse(f"the file shrank while {what} was read")
        self._position += len(view)

    def number(self, layout: str, what: str) -> int:
        """Return the next number, in the `struct` layout `layout`."""
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]
        return number

    def finish(self) -> None:
        """Raise FileFormatError when bytes are left over."""
        if self.remaining:
            raise self.refuse(f"oversized: {self.remaining} bytes follow the last tensor")


def _open(path: str) -> BinaryIO:
    """Open a file for reading, where the last save put it. A pipe is not waited for."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK)

    found = file_sets.current(*os.path.split(path))
    try:
        return open(found, "rb", opener=opener)
    except FileNotFoundError:
        if found == path:
            raise
        return open(path, "rb", opener=opener)  # it was moved to its name since


@contextlib.contextmanager
def bounded_reader(path: str | os.PathLike[str]) -> Iterator[BoundedReader]:
    """Open `path` for reading.

    Raises NoSuchFileError when there is none, FileFormatError when it is no regular file (a pipe or device
    would be waited for, or not end).
    """
    name = os.fspath(path)
    try:
        file = _open(name)
    except ValueError as e:  # a null character
        raise errors.FileFormatError(f"{name!r}: {e}") from e
    except OSError as e:
        if e.errno not in _WRONG_PATH:
            raise
        missing = isinstance(e, FileNotFoundError)
        kind = errors.NoSuchFileError if missing else errors.FileFormatError
        raise kind(f"{name}: {e.strerror}") from e
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise errors.FileFormatError(f"{name}: expected a regular file")
        yield BoundedReader(file, name)
