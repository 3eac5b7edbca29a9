"""`python -m paddle.distributed.launch_ps`, also as `jfluid.distributed.launch_ps`: jfluid-launch for servers.

Without arguments for processes it starts two servers and two trainers, with logs in `logs`.
"""

import sys
from collections.abc import Sequence

from jfluid import launch

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `jfluid.launch`)."""
    defaults = {"servers": 2, "trainers": 2, "log_dir": "logs"}
    return launch.main(arguments, defaults=defaults, name="paddle.distributed.launch_ps")


if __name__ == "__main__":
    sys.exit(main())
