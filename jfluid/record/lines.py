"""The lines of a record: JSON objects with the time `t` in seconds, and a `kind`.

Numbers that JSON lacks are the strings NaN, Infinity and -Infinity. All else than ASCII is escaped,
so that no text of a script can end a line, or mean something to a terminal.

A record may come from elsewhere: links, pipes and files of foreign names are passed over, and so are lines without an
object, a kind and a time that a date can have.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jfluid.security import private_files

SUFFIX = ".jsonl"
NAME = re.compile(r"(trainer|server|process|launcher)\.(\d{1,9})\.jsonl", re.ASCII)
_LONGEST_PART = 4 << 20  # of a line that is read: no file of ours is longer
_LATEST = 8e12  # seconds: dates of JavaScript end soon after it
LONGEST_NAME = 256
LONGEST_TEXT = 1 << 16
LONGEST_LINE = 1 << 20
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
Line = dict[str, Any]


def written(value: float) -> float | str:
    """Return a number as it stands in a line."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number(value: Any) -> float | None:
    """Return a field of a line as a number, or None if it is no number."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return as_float(value)


def as_float(value: float) -> float:
    """Return a number as a float; integers that are too large for one are infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def numbers(values: Any) -> dict[str, float]:
    """Return the numbers in a line's object, by name."""
    if not isinstance(values, dict):
        return {}
    found = ((name[:LONGEST_NAME], number(value)) for name, value in values.items())
    return {name: value for name, value in found if value is not None}


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """Return the text, without its middle where it is longer."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"


def encode(kind: str, time: float, fields: Mapping[str, Any]) -> bytes:
    """Return a line. `fields` have no numbers that are not finite (`written`)."""
    return _ENCODER.encode({"t": round(time, 3), "kind": kind, **fields}).encode() + b"\n"


def decode(data: bytes) -> Line | None:
    """Return a line; None where it is none, such as one that was only written in part."""
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return None
    time = number(line.get("t"))
    if time is None or not abs(time) < _LATEST:
        return None
    line["t"] = time
    return line


def files(folder: Path) -> list[Path]:
    """Return the record files of a folder, by name."""
    return [
        path for path in sorted(folder.glob(f"*{SUFFIX}")) if NAME.fullmatch(path.name) and private_files.is_plain(path)
    ]


class Tail:
    """Reader of the whole lines that a file has gained since the last read."""

    def __init__(self, path: Path):
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._position = 0

    def is_another(self) -> bool:
        """Return True if the file was thinned, begun anew or removed since it was read."""
        if self._identity is None:
            return False
        try:
            about = self.path.stat()
        except OSError:
            return True
        return (about.st_dev, about.st_ino) != self._identity or about.st_size < self._position

    def lines(self) -> Iterator[Line]:
        """Yield the new lines. Raises OSError if the file cannot be read or was replaced."""
        with private_files.open_plain(self.path) as file:
            about = os.fstat(file.fileno())
            identity = about.st_dev, about.st_ino
            if self._identity not in (None, identity):
                raise FileNotFoundError(f"{self.path}: a different file has its name")
            self._identity = identity
            file.seek(self._position)
            while (data := file.readline(_LONGEST_PART)).endswith(b"\n") or len(data) == _LONGEST_PART:
                self._position += len(data)
                line = decode(data)
                if line is not None:
                    yield line
