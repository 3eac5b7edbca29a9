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


def _end_with_the_launcher() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve the page until the launcher ends."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    words = sys.stdin.readline().split()
    access = Access(*words) if words else None
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    runs = Runs([Path(sys.argv[2])], live=True)
    runs.watch()
    application.server(runs, listening, access).run(sockets=[listening])


if __name__ == "__main__":
    main()
