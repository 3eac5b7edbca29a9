"""Prefetch of the next executable, by a thread, while a startup program runs.

A file next to the executable of a startup program names the executable that followed, in the process that
wrote the file. The next process loads that executable before it runs the startup program: XLA
takes as long to load a training step as Python to build and check its arguments.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jfluid.caches import kept_files

MOST_FILES = 500  # the oldest go first
THREAD = "jfluid-load-ahead"
Devices = Sequence[jax.Device]
Load = Callable[[Path, Devices], Any]


class _Load:
    """Executable that a thread loads from a file."""

    def __init__(self, load: Load, path: Path, devices: Devices):
        self._load, self._path, self._devices = load, path, devices
        self._loaded: Any = None
        self._thread = threading.Thread(target=self._run, name=THREAD)
        self._thread.start()

    def _run(self) -> None:
        with jax.enable_x64(True):  # as everywhere in a step; it is a setting of each thread
            self._loaded = self._load(self._path, self._devices)

    def is_of(self, path: Path, devices: Devices) -> bool:
        return (path, list(devices)) == (self._path, list(self._devices))

    def wait(self) -> Any:
        """Return the executable, or None if the file has none."""
        self._thread.join()
        return self._loaded


class ExecutablePrefetch:
    """Prefetcher of the executable that follows a startup program.

    Args:
        load: reads the executable of a file; returns None without a file.
    """

    def __init__(self, load: Load):
        self._load = load
        self._note: Path | None = None  # the file that names the executable after the startup program
        self._named = b""
        self._pending: _Load | None = None

    def begin(self, path: Path, devices: Devices) -> None:
        """Start to load the executable that followed the startup program with its executable at `path`."""
        self._note = path.with_name("after-" + path.name.partition("-")[2])
        self._named = kept_files.read(self._note) or b""
        named = path.with_name(self._named.decode()) if self._named else None
        there = named is not None and named.exists()
        self._pending = _Load(self._load, named, devices) if named and there else None

    def load(self, path: Path, devices: Devices) -> Any:
        """Return the executable of a file, or None without a file; record the first one after the startup program."""
        pending, self._pending = self._pending, None
        note, self._note = self._note, None
        if note is not None and self._named != path.name.encode():
            kept_files.write(note, path.name.encode(), MOST_FILES)
        if pending is not None and pending.is_of(path, devices):
            return pending.wait()
        return self._load(path, devices)
