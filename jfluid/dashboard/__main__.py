"""The process that serves the page of a launcher's job.

    python -m jfluid.dashboard DESCRIPTOR LOG_DIR

DESCRIPTOR is a listening socket. Standard input has one line: the key and the metrics token, or nothing. The
process ends at the end of standard input, when its launcher has ended.
"""

import os
import socket
import sys
import threading
from pathlib import Path

from jfluid.dashboard import application
from jfluid.dashboard.address import Access
from jfluid.dashboard.runs import Runs

_SECONDS_TO_TELL = 3.0


def _end_with_the_launcher(runs: Runs) -> None:
    sys.stdin.read()
    runs.tell_the_end(_SECONDS_TO_TELL)
    os._exit(0)


def main() -> None:
    """Serve the page until the launcher ends."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    words = sys.stdin.readline().split()
    access = Access(*words) if words else None
    runs = Runs([Path(sys.argv[2])], live=True)
    threading.Thread(target=_end_with_the_launcher, args=(runs,), daemon=True).start()
    runs.watch()
    application.server(runs, listening, access).run(sockets=[listening])


if __name__ == "__main__":
    main()
