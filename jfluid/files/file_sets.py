"""Atomic sets of files in a folder: after a kill at any moment a reader finds all new or all old files.

A save writes into a staging folder, FOLDER/.jfluid-saving-<random>. When all files are on the disk, the
staging folder is renamed to FOLDER/.jfluid-saved: from then on its files replace the files of the same names in
FOLDER. Then the save moves the files to FOLDER and removes the empty folder. Readers look into .jfluid-saved
first, and change nothing. After a killed save, the next save moves the files of .jfluid-saved, and removes a
staging folder that was not renamed. A set of one file is moved to its name at once.

Several processes may save into one folder: each process that finds a .jfluid-saved moves its files, also files of
a different process. FOLDER then has the files of the set that was renamed last.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from jfluid import errors

_SAVED, _SAVING, _WHOLE = ".jfluid-saved", ".jfluid-saving-", ".jfluid-whole-"
# temporary files of killed saves of an earlier release
_TEMPORARY = re.compile(r"\..*\.[a-z0-9_]{8,16}\.tmp", re.DOTALL)
# A reader tries again if a save came in between; a save tries again if a different save was renamed first.
_TRIES = 100
# Errors of writing bytes, which Python raises without the name of a file.
_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
Read = TypeVar("Read")
_State = tuple[str, tuple[int, int, int, int] | None]  # where a file is, and which one


# ---- saving --------------------------------------------------------------------------------------


class FileSet:
    """The files that one save writes into a folder."""

    def __init__(self, folder: Path, staging: Path):
        self._folder, self._staging, self._names = folder, staging, list[str]()

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open the file `name` of the set for writing; it may have folders in it.

        It keeps the permissions of the file that it is going to replace.

        Raises OSError that names the file, also where a folder has its name.
        """
        target, path = self._folder / name, self._staging / name
        try:
            mode = self._look(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            handle = os.open(path, flags, 0o666 if mode is None else mode & 0o600)
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
        except OSError as error:
            if error.filename is None and error.errno in _WRITING:
                raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
            raise
        self._names.append(name)

    def folder(self, name: str) -> Path:
        """Return the path of a folder for the caller to make and to fill.

        It becomes one in the folder `name`, as a whole, under the last part of this path, which no other save
        has.
        """
        path = self._staging / name / f"{_WHOLE}{secrets.token_hex(8)}"
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.chmod(path.parent, stat.S_IMODE(os.stat(self._staging).st_mode))
        self._names.append(f"{name}/{path.name}")
        return path

    def _look(self, target: Path) -> int | None:
        """Return the permissions of the file that is to be replaced; None where there is none.

        Raises OSError where a file cannot be moved to this place.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.parent != self._folder and (os.stat(target.parent).st_dev != os.stat(self._folder).st_dev):
            raise OSError(errno.EXDEV, "on a different file system than its folder", str(target))
        try:
            found = os.stat(target).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found) and not target.is_symlink():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        return found & 0o777

    def commit(self) -> None:
        """Publish the files in the folder."""
        finish(self._folder)
        if len(self._names) == 1:
            os.replace(self._staging / self._names[0], self._folder / self._names[0])
            _sync(self._folder)
        elif self._names:
            for at, _, _ in os.walk(self._staging):
                _sync(at)
            self._become_valid()
            _sync(self._folder)
            try:
                finish(self._folder)
            except OSError as error:
                error.add_note(
                    f"{self._folder}: the save is whole, in {_SAVED}, and is read there; the next save moves its files "
                    "to their names"
                )
                raise

    def _become_valid(self) -> None:
        """Rename the folder of this save, once no folder of an earlier save is left to finish."""
        for _ in range(_TRIES):
            try:
                os.rename(self._staging, self._folder / _SAVED)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            finish(self._folder)
        raise errors.FileFormatError(
            f"{self._folder / _SAVED}: an earlier save is there, and its files cannot be moved to their names: remove "
            "it, or save into a different folder"
        )


def check_local(path: str | os.PathLike[str]) -> None:
    """Raise UnsupportedError for an address such as `s3://bucket/model`: models are read and saved on this machine."""
    address = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", os.fspath(path))
    if address:
        raise errors.UnsupportedError(
            f"{os.fspath(path)}: expected a path of this machine, found an address ({address[0]}): copy the files by "
            "fluid.distributed.fs_wrapper.BDFS, which opens addresses that fsspec knows (s3:// with the package s3fs)"
        )


@contextlib.contextmanager
def saving(folder: str | os.PathLike[str]) -> Iterator[FileSet]:
    """Return a set of files that appear in the folder together when the context ends without an error.

    The folder is made, and leftovers of killed saves are removed.

    Raises OSError if the disk does not take the files: then the folder's files are as they were.
    """
    check_local(folder)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    with _staging(folder) as staging:
        files = FileSet(folder, staging)
        yield files
        files.commit()


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Make a folder for the files of one save; its lock says that the save goes on.

    Afterwards it is removed, unless it was renamed.
    """
    while True:
        staging = folder / f"{_SAVING}{secrets.token_hex(8)}"
        staging.mkdir()
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, staging, ignore_errors=True)
            try:
                lock = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            stack.callback(os.close, lock)
            _lock(lock, fcntl.LOCK_EX)
            if staging.exists():  # otherwise a different save has removed it as a leftover
                mode = os.stat(folder).st_mode
                os.chmod(staging, mode & (0o755 if mode & stat.S_ISVTX else 0o777) | 0o700)
                yield staging
                return


def _lock(handle: int, how: int) -> bool:
    """Lock a folder; False if a different process has the lock, or the file system has no locks (NFS)."""
    try:
        fcntl.flock(handle, how)
    except OSError:
        return False
    return True


def _clear(folder: Path) -> None:
    """Remove the folders of saves by processes that have ended."""
    for path in folder.glob(f"{_SAVING}*"):
        with contextlib.suppress(OSError):  # a different process removes it, or it belongs to a different user
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def finish(folder: str | os.PathLike[str]) -> None:
    """Move the files of a save that was killed, or goes on, to their names.

    Raises FileFormatError if links lead out of the folder.
    """
    folder, saved = Path(folder), _saved(folder)
    if saved is None:
        return
    root, found = os.path.realpath(folder), list[str]()
    for at, folders, names in os.walk(saved):
        found.append(at)
        names += (whole := [name for name in folders if is_whole(name)])
        folders[:] = [name for name in folders if name not in whole]
        to = folder / os.path.relpath(at, saved)
        if not Path(os.path.realpath(to)).is_relative_to(root):
            raise errors.FileFormatError(
                f"{saved}: a link in {folder} would lead its files out of the folder, to {os.path.realpath(to)}; "
                "remove the link"
            )
        for name in names:
            to.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # a different process has moved it
                os.replace(os.path.join(at, name), to / name)
        _sync(to)
    for at in reversed(found):
        with contextlib.suppress(OSError):  # removed, or used by a later save
            os.rmdir(at)


def is_whole(name: str) -> bool:
    """Return whether a folder of this name is moved as a whole (see `FileSet.folder`)."""
    return re.fullmatch(rf"{re.escape(_WHOLE)}[0-9a-f]{{16}}", name) is not None


def _sync(folder: str | os.PathLike[str]) -> None:
    """Make names in a folder durable, where the system can sync folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _saved(folder: str | os.PathLike[str]) -> str | None:
    """Return the folder with files that count before `folder`; None if there is none.

    In a folder such as /tmp, where users may replace only files that they own, a file of a different user
    does not count.
    """
    path = os.path.join(os.fspath(folder), _SAVED)
    try:
        found, above = os.lstat(path), os.stat(folder or ".")
    except (OSError, ValueError):  # opening a file of the folder raises the error
        return None
    trusted = (os.geteuid(), above.st_uid, 0)
    if not stat.S_ISDIR(found.st_mode) or (above.st_mode & stat.S_ISVTX and found.st_uid not in trusted):
        return None
    return path


# ---- reading -------------------------------------------------------------------------------------


def current(folder: str | os.PathLike[str], name: str) -> str:
    """Return the path of the file that has this name in a folder: where the last whole save put it."""
    saved = None if os.path.isabs(name) or ".." in name.split("/") else _saved(folder)
    if saved is not None and os.path.lexists(os.path.join(saved, name)):
        return os.path.join(saved, name)
    return os.path.join(os.fspath(folder), name)


class Files:
    """Files of a folder, for a reader of several files (see `read_whole`)."""

    def __init__(self, folder: str | os.PathLike[str]):
        check_local(folder)
        self.folder = os.fspath(folder)
        self._seen: dict[str, _State] = {}
        self._listed: list[str] | None = None

    def path(self, name: str) -> str:
        """Return the path of a file, which need not be there."""
        self._seen[name] = _state(self.folder, name)
        return self._seen[name][0]

    def exists(self, name: str) -> bool:
        """Return whether there is a file, or a folder, of this name."""
        self._seen[name] = _state(self.folder, name)
        return self._seen[name][1] is not None

    def names(self) -> list[str]:
        """Return the names of all files in the folder and its folders, such as "w" and "encoder/w".

        Files of saves that go on or were killed are left out.
        """
        self._listed = _names(self.folder)
        return self._listed

    def changed(self) -> bool:
        """Return whether other files have these names by now."""
        return any(_state(self.folder, name) != seen for name, seen in self._seen.items()) or (
            self._listed is not None and _names(self.folder) != self._listed
        )


def _state(folder: str, name: str) -> _State:
    path = current(folder, name)
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # opening the file raises the error
        return path, None
    which = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return path, (which if not stat.S_ISDIR(found.st_mode) else (0, 0, 0, 0))


def _names(folder: str) -> list[str]:
    found = set[str]()
    saved = _saved(folder)
    for root in (saved, folder):  # in this order: files that are moved in between are found
        for at, folders, names in os.walk(root) if root is not None else ():
            folders[:] = [n for n in folders if not n.startswith((_SAVED, _SAVING, _WHOLE))]
            found |= {
                os.path.relpath(os.path.join(at, name), root).replace(os.sep, "/")
                for name in names
                if not _TEMPORARY.fullmatch(name)
            }
    return sorted(found)


def read_whole(folder: str | os.PathLike[str], read: Callable[[Files], Read]) -> Read:
    """Return the result of `read`, after a read of files of one save.

    If a different process saved meanwhile, `read` is called again.

    Raises the errors of `read`, and FileFormatError if saves come too often for a whole read.
    """
    for _ in range(_TRIES):
        files = Files(folder)
        try:
            found = read(files)
        except errors.FileFormatError:  # of an old file beside a new one, maybe
            if not files.changed():
                raise
        else:
            if not files.changed():
                return found
    raise errors.FileFormatError(
        f"{os.fspath(folder)}: in each of {_TRIES} reads a different process saved into this folder; read it "
        "after the saves, or save to a different folder"
    )
