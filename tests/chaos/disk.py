"""A disk that can be full: a small file system in memory where this user may mount one, else a
limit on the size of files.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

SIZE = 64 << 20
_CLONE_NEWNS = 0x20000
_LEAST = 100  # bytes of a file while the disk is "full"


def of_its_own() -> bool:
    """Give this process mounts of its own, which go when it and those that it starts are gone,
    however that comes about.

    To be called before there are threads. False where this user may not mount.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0


class Disk:
    """A folder on a disk that can be filled.

    Args:
        mounts: whether a file system can be mounted there; else what fills up is what processes may
            write.
        pids: the processes that write there.
    """

    def __init__(self, folder: Path, mounts: bool, pids: Callable[[], Iterable[int]]):
        self.folder, self._mounts, self._pids = folder, mounts, pids
        self._ballast = folder / "ballast"

    def __enter__(self) -> "Disk":
        self.folder.mkdir()
        if self._mounts:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "chaos", str(self.folder)],
                check=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._mounts:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Leave no room."""
        if not self._mounts:
            self._limit(_LEAST)
            return
        with contextlib.suppress(OSError), open(self._ballast, "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        """Give the room back."""
        if self._mounts:
            self._ballast.unlink(missing_ok=True)
        else:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(OSError):
                _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (min(size, most) if most >= 0 else size, most))


def used(folder: Path) -> int:
    """Bytes of the file system that a folder is on."""
    about = os.statvfs(folder)
    return about.f_frsize * (about.f_blocks - about.f_bfree)
