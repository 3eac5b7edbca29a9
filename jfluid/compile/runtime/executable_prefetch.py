"""The executable that will be wanted next, loaded by a thread while a startup program runs.

A file beside the executables of startup programs names the one that came after, in the process that
wrote it. The next process loads that one as soon as it is about to run the startup program: XLA
takes as long to load a training step as Python to build and check what it is called with.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jfluid import kept_files

MOST_FILES = 500  # the oldest go first
THREAD = "jfluid-load-ahead"
Devices = Sequence[jax.Device]
Load = Callable[[Path, Devices], Any]


class _Load:
    """An executable on its way from a file."""

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
        """Return the executable; None where the file has none."""
        self._thread.join()
        return self._loaded


class LoadedAhead:
    """What came after the last startup program of this process.

    Args:
        load: reads the executable of a file, None if there is none.
    """

    def __init__(self, load: Load):
        self._load = load
        self._note: Path | None = None  # the file that names what comes after the startup program
        self._named = b""
        self._pending: _Load | None = None

    def begin(self, path: Path, devices: Devices) -> None:
        """Begin to load what came after the startup program whose executable belongs at `path`."""
        self._note = path.with_name("after-" + path.name.partition("-")[2])
        self._named = kept_files.read(self._note) or b""
        named = path.with_name(self._named.decode()) if self._named else None
        there = named is not None and named.exists()
        self._pending = _Load(self._load, named, devices) if named and there else None

    def load(self, path: Path, devices: Devices) -> Any:
        """Return the executable of a file, None if there is none; and note that it is the first after
        the startup program, if it is.
        """
        pending, self._pending = self._pending, None
        note, self._note = self._note, None
        if note is not None and self._named != path.name.encode():
            kept_files.write(note, path.name.encode(), MOST_FILES)
        if pending is not None and pending.is_of(path, devices):
            return pending.wait()
        return self._load(path, devices)
