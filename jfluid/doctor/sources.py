"""Files that the doctor reads: scripts, notebooks and models under the given paths."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jfluid import errors
from jfluid.files.file_sets import check_local

LARGEST_SCRIPT = 5 << 20  # bytes; nobody writes more by hand
MODEL_FILE = "__model__"
# Folders that hold no scripts of the project's own.
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_OF_CI = frozenset({"_ce.py"})  # PaddlePaddle's own tests of examples, which need its machines


class Source(NamedTuple):
    """A file to read.

    `kind` is "script", "notebook", "model" or "link" (one that leads in a circle).
    """

    kind: str
    path: str


def find(paths: Sequence[str]) -> list[Source]:
    """Return the files of some paths, each once, in the order of their names.

    Raises DataError for a path that does not exist, cannot be read, leads in a circle, or is no
    script, notebook, model or folder.
    """
    seen: set[str] = set()
    found = []
    for path in paths:
        for source in _of_path(path):
            real = os.path.realpath(source.path)
            if source.kind == "link" or real not in seen:
                seen.add(real)
                found.append(source)
    return found


def _of_path(path: str) -> Iterator[Source]:
    check_local(path)
    try:
        os.stat(path)
    except FileNotFoundError:
        raise errors.DataError(f"{path}: there is no such file or folder (looked in {os.getcwd()})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.DataError(f"{path}: {reason}") from None
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            raise errors.DataError(f"{path}: this folder may not be read")
        yield from _of_folder(path)
        return
    if not os.path.isfile(path):
        raise errors.DataError(f"{path}: expected a script, a notebook, a model or a folder")
    if not os.access(path, os.R_OK):
        raise errors.DataError(f"{path}: this file may not be read")
    kind = _kind(path)
    if kind is None and os.path.getsize(path) < LARGEST_SCRIPT:
        kind = "script" if _is_python_by_content(path) else "model"
    if kind is None:
        raise errors.DataError(f"{path}: expected a script (.py), a notebook (.ipynb), a model (__model__) or a folder")
    yield Source(kind, path)


def _kind(path: str) -> str | None:
    name = os.path.basename(path)
    if name.endswith((".py", ".pyw")):
        return "script"
    if name.endswith(".ipynb"):
        return "notebook"
    if name == MODEL_FILE or name.endswith((".pdmodel", "__model__.main_program")):
        return "model"
    return None


def _is_python_by_content(path: str) -> bool:
    """Return True if a file that the user names holds text."""
    with open(path, "rb") as file:
        start = file.read(4096)
    return b"\0" not in start and (start[:2] == b"#!" or b"import" in start)


def _of_folder(folder: str) -> Iterator[Source]:
    """All files below a folder.

    A folder that is reached a second time, through a link, is not entered again.
    """
    entered: set[str] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in entered:
            continue
        entered.add(real)
        try:
            entries = sorted(os.scandir(here), key=lambda e: e.name)
        except OSError:
            continue
        folders = []
        for entry in entries:
            if entry.is_symlink() and _is_circle(entry.path, real):
                yield Source("link", entry.path)
            elif entry.is_dir():
                if not _is_passed_over(entry):
                    folders.append(entry.path)
            elif entry.name in _OF_CI:
                continue
            elif entry.is_file() and (kind := _kind(entry.path)) is not None:
                yield Source(kind, entry.path)
        waiting += reversed(folders)


def _is_circle(link: str, folder: str) -> bool:
    """Return True if a link leads to itself, or to a folder that contains it."""
    try:
        target = os.path.realpath(link, strict=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return folder == target or Path(folder).is_relative_to(target)


def _is_passed_over(entry: os.DirEntry[str]) -> bool:
    return (
        entry.name.startswith(".")
        or entry.name in _PASSED_OVER
        or os.path.exists(os.path.join(entry.path, "pyvenv.cfg"))
    )
