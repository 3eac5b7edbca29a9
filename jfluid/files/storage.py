"""Writing files whole or not at all, and reading them within their bounds."""
import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jfluid import errors


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open `path` for writing; it takes its name only when the context ends without an error.

    Folders on the way are made. A file that was there stays as it is until then.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode_of(path))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _mode_of(path: Path) -> int:
    """The permissions of the file that is replaced, else those that a new file gets."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where the system can sync folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class BoundedReader:
    """Reads a file piece by piece; a piece that reaches beyond the end is refused before memory is taken for it.

    Attributes:
        what: the variable being read; it shows in errors.
    """

    def __init__(self, file: BinaryIO, name: str):
        self._file, self.name, self.what = file, name, ""
        self._size = os.fstat(file.fileno()).st_size
        self._position = 0

    @property
    def remaining(self) -> int:
        return self._size - self._position

    def refuse(self, problem: str) -> errors.FileFormatError:
        """The error that says what is wrong with the file."""
        variable = f", variable {self.what}" if self.what else ""
        return errors.FileFormatError(f"{self.name}{variable}: {problem}")

    def need(self, count: int, what: str) -> None:
        """Raise FileFormatError unless `count` more bytes are there for `what`."""
        if not 0 <= count <= self.remaining:
            raise self.refuse(f"truncated: {what} takes {count} bytes at offset {self._position}, "
                              f"the file has {self.remaining} left")

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes."""
        self.need(count, what)
        data = self._file.read(count)
        self._position += count
        if len(data) != count:
            raise self.refuse(f"the file shrank while {what} was read")
        return data

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
        """The next number, in `struct` layout `layout`."""
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def finish(self) -> None:
        """Raise FileFormatError when bytes are left over."""
        if self.remaining:
            raise self.refuse(f"oversized: {self.remaining} bytes follow the last tensor")


@contextlib.contextmanager
def bounded_reader(path: str | os.PathLike) -> Iterator[BoundedReader]:
    """Open `path` for reading. Raises FileFormatError when it is missing or no regular file."""
    try:
        file = open(path, "rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
        raise errors.FileFormatError(f"{os.fspath(path)}: {e.strerror}") from e
    with file:
        yield BoundedReader(file, os.fspath(path))
