"""A guard process that ends a gang when its launcher was killed and could not end it itself."""

import subprocess
import sys

# Reads the numbers of process groups, a line each, and kills those groups when the launcher is
# gone: its end of the pipe is closed then. After the line "done" there is nothing to do.
_PROGRAM = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = sys.stdin.read().split()
if groups[-1:] != ["done"]:
    for group in groups:
        try:
            os.killpg(int(group), signal.SIGKILL)
        except OSError:
            pass
"""


class Guard:
    """A small process that waits for the launcher's end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> "Guard":
        return self

    def watch(self, group: int) -> None:
        """Kill this process group too, should the launcher be killed."""
        self._write(f"{group}\n")

    def __exit__(self, *exception: object) -> None:
        self._write("done\n")
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.close()
        self._process.wait()

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.write(text)
        self._process.stdin.flush()
