"""`jfluid bench`: the benchmarks of a checkout."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench.py"


def main(arguments: Sequence[str]) -> int:
    """Run `benchmarks/bench.py`; returns its exit code, 2 where there is none."""
    if not _SCRIPT.is_file():
        print(
            "jfluid bench: the benchmarks are in a checkout of the repository, and this package was installed "
            "without one; `jfluid check-device --only speed` measures this machine",
            file=sys.stderr,
        )
        return 2
    return subprocess.run([sys.executable, str(_SCRIPT), *arguments]).returncode
