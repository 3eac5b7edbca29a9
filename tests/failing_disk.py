"""A process that is killed, or a disk that is full, at a step of a save."""

import errno
import itertools
import os
import threading

# what a save does to files, and what its cleaning up does
STEPS = ("mkdir", "open", "fsync", "chmod", "fchmod", "rename", "replace")
CLEANING = ("unlink", "rmdir")
FULL = ("mkdir", "open", "fsync", "rename", "replace")


class Killed(BaseException):
    """The process is no more."""


class Disk:
    """Counts the steps of a save in the main thread, and lets one of them fail: from `last` on each
    when the process is killed, that one alone when the disk is full.
    """

    def __init__(self, monkeypatch, last, full=False):
        self._steps, self._last, self._full = itertools.count(), last, full
        self.failed = False
        for name in FULL if full else (*STEPS, *CLEANING):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name, function):
        def step(*given, **more):
            writes = name != "open" or given[1] & os.O_CREAT
            writes = writes and threading.current_thread() is threading.main_thread()
            if writes and not (self._full and self.failed):
                if self.failed or next(self._steps) == self._last:
                    self.failed = True
                    which = () if name == "fsync" else (str(given[0]),)
                    raise OSError(errno.ENOSPC, "full", *which) if self._full else Killed
            return function(*given, **more)

        return step


def left_in(folder):
    """What a save leaves in a folder that is to be gone afterwards."""
    return sorted(p.name for p in folder.rglob("*") if ".jfluid" in p.name or p.suffix == ".tmp")
