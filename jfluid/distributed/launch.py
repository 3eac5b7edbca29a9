"""`python -m paddle.distributed.launch`, also as `jfluid.distributed.launch`: jfluid-launch as Fluid's command.

Without arguments for processes it starts a process for each GPU of a host.
"""

import sys
from collections.abc import Sequence

from jfluid import launch

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (see `jfluid.launch`)."""
    return launch.main(arguments, defaults={"gpus": "all"}, name="paddle.distributed.launch")


if __name__ == "__main__":
    sys.exit(main())
