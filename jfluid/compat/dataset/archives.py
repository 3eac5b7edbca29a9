"""Reading downloaded archives: damage, missing members and wrong lines become one DataError that names the file.

Members are read where they lie. Nothing is unpacked but by `unpack`, which keeps to its folder.
"""

import contextlib
import gzip
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from jfluid.errors import DataError

_DAMAGE = (
    EOFError,
    UnicodeDecodeError,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Errors of a damaged file within are DataErrors that name it."""
    try:
        yield
    except _DAMAGE as e:
        raise DataError(
            f"{path}: damaged or truncated ({e}). Delete it and fetch it again, or put a complete copy there"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder, expected the file of a data set") from None


@contextlib.contextmanager
def open_tar(path: str) -> Iterator[tarfile.TarFile]:
    """Return a tar archive, compressed or not. Raises DataError for damage, also while it is read."""
    with reading(path), tarfile.open(path) as archive:
        yield archive


@contextlib.contextmanager
def open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    """Return a zip archive. Raises DataError for damage, also while it is read."""
    with reading(path), zipfile.ZipFile(path) as archive:
        yield archive


def member(archive: tarfile.TarFile, name: str | tarfile.TarInfo) -> IO[bytes]:
    """Return a file of an archive, opened.

    Raises DataError where it is missing, or a folder or a link.
    """
    try:
        found = archive.getmember(name) if isinstance(name, str) else name
    except KeyError:
        raise DataError(f"{archive.name!s}: holds no {name}; it is a different archive") from None
    opened = archive.extractfile(found) if found.isfile() else None
    if opened is None:
        raise DataError(f"{archive.name!s}: {found.name} is no file")
    return opened


def zip_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Return a file of a zip archive, opened. Raises DataError where it is missing."""
    try:
        return archive.open(name)
    except KeyError:
        raise DataError(f"{archive.filename}: holds no {name}; it is a different archive") from None


def text_lines(file: Iterable[bytes], where: str, encoding: str = "utf-8") -> Iterator[str]:
    """Return the lines of a file as text without white space around.

    Raises DataError with the number of a line of another encoding.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode(encoding).strip()
        except UnicodeDecodeError as e:
            raise DataError(f"{where}, line {number}: no {encoding} text ({e.reason})") from None


def unpack(path: str) -> str:
    """Unpack a tar archive into a new temporary folder, and return that.

    Raises DataError, and leaves nothing, where a member's name, or the target of a link, leads out
    of the folder, and for special files.
    """
    folder = tempfile.mkdtemp(prefix="jfluid-")
    try:
        with open_tar(path) as archive:
            archive.extractall(folder, filter="data")
    except BaseException as e:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(e, DataError) and isinstance(e.__context__, tarfile.FilterError):
            raise DataError(f"{path}: not unpacked, for it is not safe: {e.__context__}") from None
        raise
    return folder


def is_inside(folder: str, name: str) -> bool:
    """Return whether an archive's member `name` lies in `folder` when it is unpacked there."""
    root = os.path.realpath(folder)
    return os.path.realpath(os.path.join(root, name.replace("\\", "/"))).startswith(root + os.sep)
