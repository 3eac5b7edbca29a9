"""A guard process that ends a gang when its launcher was killed and could not end it itself."""

import contextlib
import subprocess
import sys

from jfluid.launch import strays


class Guard:
    """A small process that waits for the launcher's end (see `strays`).

    Args:
        mark: what the environments of the gang's processes have.
    """

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", strays.__file__, mark],
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
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None  # a pipe
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the job goes on
            self._process.stdin.write(text)
            self._process.stdin.flush()
