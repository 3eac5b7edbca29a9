"""Files and folders for this user only, and checks of existing files.

Data and secrets go into files and folders from `make_folder` and `create`. Unpickled and executed files are read by
`open_trusted` alone, from folders that `trusted_folder` has checked. No function changes the process's umask, which
belongs to all threads.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from jfluid import errors

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and its missing parents with mode 0700. Existing folders stay unchanged."""
    folder = Path(path)
    for missing in reversed([at for at in (folder, *folder.parents) if not at.is_dir()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def own_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder as `make_folder` does, or find it there, of this user.

    Raises NotPrivateError if a different user made the folder or a link of that name, or if everybody
    can write to it: otherwise a different user could choose the place of files.
    """
    make_folder(path)
    for about in (os.lstat(path), os.stat(path)):
        linked = stat.S_ISLNK(about.st_mode)  # the permissions of a link have no meaning
        problem = problem_of(about, 0 if linked else stat.S_IWOTH)
        if problem or about.st_uid != os.geteuid():
            raise errors.NotPrivateError(f"{os.fspath(path)}: {problem or 'it belongs to root'}")


def create(path: str | os.PathLike[str], flags: int) -> int:
    """Return the file descriptor of a file, with mode 0600 if it is new: an `opener` of open().

    A file that is there keeps its mode.
    """
    return os.open(path, flags, 0o600)


def problem_of(about: os.stat_result, forbidden: int = _WRITABLE_BY_OTHERS) -> str:
    """Return why a file or folder may have been changed by other users; empty when it cannot.

    Args:
        forbidden: permissions that it must not have; by default write permissions of different users.
    """
    user, kind = os.geteuid(), "folder" if stat.S_ISDIR(about.st_mode) else "file"
    if about.st_uid not in (user, 0):
        return f"the {kind} belongs to user {about.st_uid}, expected {user}, whose process this is, or root"
    if about.st_mode & forbidden:
        what, mode = ("use", "600") if forbidden & stat.S_IROTH else ("write to", "go-w")
        return (
            f"others can {what} the {kind}, whose permissions are "
            f"{stat.S_IMODE(about.st_mode):o}; run chmod {mode} on it"
        )
    return ""


def trusted_folder(path: str | os.PathLike[str], of_others: Callable[[str], bool] | None = None) -> Path:
    """Return the folder without links, if only this user, or root, can have put files there.

    The same holds for the folders above it, so that nobody can put another one in its place; there
    others may write where the sticky bit keeps them from what is not theirs, as in /tmp.

    Args:
        of_others: tells names of files that are read by other packages, which do not look at their
            owners: these files are checked, too.

    Raises NotPrivateError for another one, OSError where there is none.
    """
    folder = Path(path).resolve(strict=True)
    for at in (folder, *folder.parents):
        about = at.stat()
        shared = at != folder and about.st_mode & stat.S_ISVTX
        if problem := problem_of(about, 0 if shared else _WRITABLE_BY_OTHERS):
            raise errors.NotPrivateError(f"{at}: {problem}")
    if of_others is not None:
        # Without access to the folder no user can write to its files, whatever the files' permissions.
        closed = not folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        with os.scandir(folder) as found:
            for entry in found:
                if not of_others(entry.name):
                    continue
                about = entry.stat(follow_symlinks=False)
                linked = stat.S_ISLNK(about.st_mode)  # the permissions of a link have no meaning
                if problem := problem_of(about, 0 if closed or linked else _WRITABLE_BY_OTHERS):
                    raise errors.NotPrivateError(f"{entry.path}: {problem}")
    return folder


def is_plain(path: str | os.PathLike[str]) -> bool:
    """Return True for a regular file: a link could lead out of its folder, a pipe would block its reader."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file (see `is_plain`) for reading. Raises OSError for all else."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))
    return file


def open_trusted(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading that only this user, or root, can have written.

    The folder is to be a `trusted_folder`. Raises NotPrivateError for a different file and for a link,
    OSError where it cannot be read.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise errors.NotPrivateError(f"{os.fspath(path)}: expected a file, found a link") from None
    file = os.fdopen(number, "rb")
    about = os.fstat(file.fileno())
    problem = "expected a file" if not stat.S_ISREG(about.st_mode) else problem_of(about)
    if problem:
        file.close()
        raise errors.NotPrivateError(f"{os.fspath(path)}: {problem}")
    return file
