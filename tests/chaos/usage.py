"""What a process uses."""

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Of one process at one moment: resident memory in MiB, threads, open files."""

    rss_mib: float
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Raises OSError when there is no such process."""
        status = Path(f"/proc/{pid}/status").read_text()
        found = {name: int(value) for name, value in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
        return cls(
            round(found.get("VmRSS", 0) / 1024, 1),
            found["Threads"],
            len(os.listdir(f"/proc/{pid}/fd")),
        )

    @classmethod
    def of_this_process(cls) -> "Usage":
        return cls.of(os.getpid())

    def told(self) -> dict[str, float]:
        return asdict(self)
