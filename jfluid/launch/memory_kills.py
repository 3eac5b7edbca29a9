"""Processes that the kernel killed for lack of memory, as its counters tell."""

import contextlib
from pathlib import Path

_SYSTEM = Path("/proc/vmstat")
_OWN = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


class MemoryKills:
    """Counters of killed processes: of this process's control group, which has a limit of memory, and of the machine.

    Members are in the launcher's control group, so a kill in this group since the start was most likely of a member.
    """

    def __init__(self) -> None:
        self._group = _group_file()
        self._before = self._counts()

    def explain(self) -> str:
        """Return the words behind "signal SIGKILL" if the kernel has killed for memory since the last call, or "".

        The words end with the remedy.
        """
        before, self._before = self._before, self._counts()
        group, system = (now > then for now, then in zip(self._before, before, strict=True))
        if not (group or system):
            return ""
        where = "in the job's control group (a container, a Slurm job)" if group else "on this host"
        return f" from the kernel: memory ran out {where}; take smaller batches, fewer processes or a higher limit"

    def _counts(self) -> tuple[int, int]:
        return _count(self._group) or 0, _count(_SYSTEM) or 0


def _group_file() -> Path | None:
    """Return the file with the counter of this process's control group, of version 2 or 1."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                folder = _CGROUPS / controllers / path.strip("/")
                for name in ("memory.events", "memory.oom_control"):
                    if _count(folder / name) is not None:
                        return folder / name
    return None


def _count(file: Path | None) -> int | None:
    """Return the number of the line `oom_kill N` of a file; None if there is no such line."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines() if file is not None else ():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return None
