"""On-disk cache of inferred shapes: a later process that builds the same program infers none again."""

import hashlib
import pickle
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jfluid.caches import kept_files

MOST_FILES = 8  # of other releases and settings; the oldest go first
MOST_SHAPES, MOST_IN_MEMORY = 20_000, 40_000  # in a file; in this process


class ShapeCache:
    """Cache of inferred shapes, in memory and on disk, keyed by all inputs of the inference."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._read = False
        self._found: dict[Any, Any] = {}
        self._new: set[Any] = set()

    def get_or_infer(self, key: Any, lasts: bool, infer: Callable[[], Any]) -> Any:
        """Return the cached result of `infer` for a key, or call it.

        Args:
            key: all inputs that the inference depends on.
            lasts: True if the result is valid in other processes.
            infer: called without arguments on a cache miss.
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
        """Append new entries to the file."""
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
    """Return True if the value has the same meaning in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, float, str))
