"""The ends of a job's logs, and searches in logs."""

import re
from collections.abc import Iterator
from pathlib import Path

from jfluid.printable import printable
from jfluid.security import private_files

_NAME = re.compile(r"(worker|server)log\.\d{1,9}(\.\d{1,9})?")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_LINE = 2000
_MOST_FOUND = 500
_SEARCHED = 256 << 20  # bytes from the end
_PIECE = 1 << 20
TAIL = 64 << 10


def names(folder: Path) -> list[str]:
    """Return the names of the logs in a job's folder: current logs before rotated logs."""
    try:
        found = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name) and private_files.is_plain(path)]
    except OSError:
        return []
    return sorted(
        found,
        key=lambda name: (name.count("."), name[0] == "s", [int(n) for n in name.split(".")[1:]]),
    )


def tail(folder: Path, name: str, most: int = TAIL) -> str:
    """Return the last whole lines of a log.

    Raises OSError where it cannot be read, ValueError for what is no log's name.
    """
    with private_files.open_plain(_path(folder, name)) as file:
        size = file.seek(0, 2)
        file.seek(max(size - most, 0))
        data = file.read(most)
    if size > most:
        data = data.partition(b"\n")[2] or data
    return "\n".join(map(_shown, data.decode(errors="replace").splitlines()))


def search(folder: Path, name: str, text: str) -> str:
    """Return the last lines that hold a text, in small or capital letters. Raises as `tail`."""
    wanted = text.casefold()
    found = []
    for line in _from_the_end(_path(folder, name)):
        shown = line.decode(errors="replace")
        if wanted in shown.casefold():
            found.append(_shown(shown.rstrip("\r")))
            if len(found) == _MOST_FOUND:
                break
    return "\n".join(reversed(found))


def _path(folder: Path, name: str) -> Path:
    path = folder / name
    if not _NAME.fullmatch(name) or not private_files.is_plain(path):
        raise ValueError(f"there is no log {name!r}")
    return path


def _from_the_end(path: Path) -> Iterator[bytes]:
    """Return the lines of a file from the end; lines longer than a megabyte come in pieces."""
    with private_files.open_plain(path) as file:
        position = file.seek(0, 2)
        end = max(position - _SEARCHED, 0)
        rest = b""
        while position > end:
            size = min(_PIECE, position - end)
            position -= size
            file.seek(position)
            rest, *whole = (file.read(size) + rest).split(b"\n")
            yield from reversed(whole)
            if len(rest) > _PIECE:
                yield rest
                rest = b""
        yield rest


def _shown(line: str) -> str:
    line = _COLOURS.sub("", line)
    if len(line) > _LONGEST_LINE:
        line = f"{line[:_LONGEST_LINE]} ... {len(line) - _LONGEST_LINE} more characters"
    return printable(line, lines=False)
