"""The process in which a launcher has the page of its job served, beside its own work.

    python -m jfluid.dashboard DESCRIPTOR LOG_DIR

DESCRIPTOR is a socket that listens; the key and the metrics' token, or an empty line, come on standard
input, at whose end the process ends: its launcher is gone then.
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
