"""Run again, alone, the few tests that failed beside others: `python -m tests.failed_again` after `make test`.

On a busy machine one test of thousands may fail by the hour rather than by a fault. It is named, so that
somebody mends it, and decides nothing where it passes alone. Three or more that failed, one that fails
again, and a run that ended otherwise (an error of collection, an operator without a test) fail.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

MOST = 2
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def run_again(failed: Sequence[str], run: Callable[[list[str]], int], tell: Callable[[str], None]) -> int:
    """The exit status: 0 where all of one or two ``failed`` tests pass as ``run`` runs them."""
    if not 0 < len(failed) <= MOST:
        tell(f"{len(failed)} tests failed; no more than {MOST} are run again")
        return 1
    tell("failed beside others, run again alone: " + ", ".join(failed))
    status = run([*failed, "-p", "no:cacheprovider", "-n", "0"])
    if status == 0:
        tell("passed alone, and have to be mended all the same: " + ", ".join(failed))
    return int(status)


def main() -> int:
    found = json.loads(FAILED.read_text()) if FAILED.exists() else {}
    return run_again(sorted(found), pytest.main, lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
