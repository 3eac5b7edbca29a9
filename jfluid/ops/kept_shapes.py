"""Inferred shapes, kept on disk: a later process that builds the same program evaluates no operator for them."""

import hashlib
import pickle
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfluid.caches import kept_files

MOST_FILES = 8  # of other releases and settings; the oldest go first
MOST_SHAPES, MOST_IN_MEMORY = 20_000, 40_000  # in a file; in this process


class KeptShapes:
    """What was inferred of operators, by all that it depends on: in this process, and in others."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._read = False
        self._found: dict[Any, Any] = {}
        self._new: set[Any] = set()

    def get_or_infer(self, key: Any, lasts: bool, infer: Callable[[], Any]) -> Any:
        """Return what was inferred by a key, or is inferred now.

        Args:
            lasts: whether it holds for other processes too.
        """
        if not self._read:
            self._read = True
            self._path = _path()
            self._found |= _shapes_of(self._path)
        if key not in self._found:
            found = self._found[key] = infer()
            if lasts and self._path is not None and _is_plain(key):
                self._new.add(key)
            if len(self._found) > MOST_IN_MEMORY:
                oldest = next(iter(self._found))
                self._found.pop(oldest, None)
                self._new.discard(oldest)
            return found
        return self._found[key]

    def keep(self) -> None:
        """Add what is new to the file."""
        new, self._new = self._new, set()
        if self._path is None or not new or self._path.parent != kept_files.folder():
            return
        both = _shapes_of(self._path) | {key: self._found[key] for key in new if key in self._found}
        latest = dict(list(both.items())[-MOST_SHAPES:])
        kept_files.write(self._path, pickle.dumps(latest), MOST_FILES)


def _path() -> Path | None:
    folder = kept_files.folder()
    text = repr((platform.python_version(), kept_files.settings()))
    return folder and folder / f"shapes-{hashlib.sha256(text.encode()).hexdigest()}"


def _shapes_of(path: Path | None) -> dict[Any, Any]:
    content = path and kept_files.read(path)
    return pickle.loads(content) if content else {}


def _is_plain(value: Any) -> bool:
    """Whether the value means the same in each process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, float, str))
