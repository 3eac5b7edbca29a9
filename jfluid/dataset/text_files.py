"""Files of records as blocks of text: local, compressed or remote (fsspec), through a pipe command."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from jfluid import errors

BLOCK = 1 << 20  # bytes read at a time
LONGEST_LINE = 64 << 20
_PLAIN = ("", "cat")


class ShellCommands:
    """Shell commands that run for a group of threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()

    def start(self, command: str, stdin: Any, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in a new session.

        Ctrl-C does not reach the command, and its children can be ended with it.

        The arguments are its $1, $2 ...: the shell never parses them.
        """
        process = subprocess.Popen(
            [command, "sh", *arguments],
            shell=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a command, with its children, if it still runs."""
        self._running.discard(process)
        if process.poll() is None:
            _kill(process)
            process.wait()

    def kill(self) -> None:
        """Kill all running processes; their readers reap the processes."""
        for process in list(self._running):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class FileSource:
    """Access to the files of a dataset.

    Attributes:
        pipe_command: a shell command that turns a file, on its standard input, into MultiSlot text;
            "cat" for none.
        download_cmd: a shell command that prints a file whose name is its last argument; "" to open
            the file itself.
        filesystem: the address in front of names that have none, such as "hdfs://host:9000"; "" for this machine.
        options: what fsspec needs to open the filesystem.
    """

    pipe_command: str = "cat"
    download_cmd: str = ""
    filesystem: str = ""
    options: dict[str, Any] | None = None

    def blocks(self, path: str, started: ShellCommands) -> Iterator[Any]:
        """Return the text as uint8 arrays of whole lines, each valid until the next one is asked for.

        Raises DataError.
        """
        with contextlib.ExitStack() as stack:
            yield from _whole_lines(self._open(path, stack, started), path)

    def _open(self, path: str, stack: contextlib.ExitStack, started: ShellCommands) -> BinaryIO:
        raw: BinaryIO | None
        if self.download_cmd:
            if path.startswith("-") or "\0" in path:
                raise errors.DataError(
                    f"{path!r}: no name of a file for the command {self.download_cmd!r}, which would take "
                    "it for an option; write ./ in front of it"
                )
            raw = stack.enter_context(_piped(f'{self.download_cmd} "$1"', None, path, started))
        else:
            try:
                raw = stack.enter_context(self._file(path))
            # each kind of compression, and of file system, has errors of its own
            except Exception as error:
                raise errors.DataError(f"{path}: cannot be opened: {error}") from error
        if self.pipe_command.strip() in _PLAIN:
            return raw
        piped: BinaryIO = stack.enter_context(_piped(self.pipe_command, raw, path, started))
        return piped

    def _file(self, path: str) -> Any:
        if "://" not in path and not self.filesystem and not path.endswith((".gz", ".bz2", ".xz", ".zst", ".zip")):
            return open(path, "rb", buffering=0)
        import fsspec

        base = self.filesystem + "/" * (not self.filesystem.endswith("/"))
        address = path if "://" in path or not self.filesystem else base + path.lstrip("/")
        return fsspec.open(address, "rb", compression="infer", **(self.options or {}))


@contextlib.contextmanager
def _piped(command: str, stdin: BinaryIO | None, path: str, started: ShellCommands) -> Iterator[Any]:
    """Return the output of a shell command.

    Raises DataError when it fails; it is ended when the iteration ends early.
    """
    direct = stdin is not None and type(stdin).__name__ == "FileIO"
    given: Any = subprocess.DEVNULL if stdin is None else stdin if direct else subprocess.PIPE
    process = started.start(command, given, path)
    writer = None
    failure: list[BaseException] = []
    if stdin is not None and not direct:
        writer = threading.Thread(target=_write, args=(stdin, process.stdin, failure), daemon=True)
        writer.start()
    try:
        yield process.stdout
        code = process.wait()
    finally:
        started.end(process)
        if process.stdout is not None:
            process.stdout.close()
        if writer is not None:
            writer.join()
    if failure:
        raise errors.DataError(f"{path}: cannot be read: {failure[0]}") from failure[0]
    if code:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        raise errors.DataError(f"{path}: the command {command!r} {how}")


def _write(source: BinaryIO, target: Any, failure: list[BaseException]) -> None:
    try:
        with target:
            shutil.copyfileobj(source, target, BLOCK)
    except BrokenPipeError:
        pass  # the command has read enough
    except Exception as error:
        failure.append(error)


def _whole_lines(stream: Any, path: str) -> Iterator[Any]:
    """Blocks that end with a newline; the last one gets it if it lacks one."""
    buffer, filled = np.empty(BLOCK + 1, np.uint8), 0
    while True:
        if filled == len(buffer) - 1:
            if filled >= LONGEST_LINE:
                raise errors.DataError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB")
            buffer = np.concatenate([buffer, np.empty(len(buffer), np.uint8)])
        try:
            count = stream.readinto(buffer.data[filled:-1])
        except Exception as error:  # corrupt data: each kind of compression has errors of its own
            raise errors.DataError(f"{path}: cannot be read: {error}") from error
        if not count:
            break
        new, filled = filled, filled + count
        end = _last_newline(buffer, new, filled)
        if end:
            yield buffer[:end]
            buffer[: filled - end] = buffer[end:filled].copy()
            filled -= end
    if filled:
        buffer[filled] = ord("\n")
        yield buffer[: filled + 1]


def _last_newline(buffer: Any, begin: int, end: int) -> int:
    """Return the end of the last complete line of buffer[:end] after `begin`; 0 if there is none."""
    tail = buffer[begin:end].tobytes().rfind(b"\n")
    return begin + tail + 1 if tail >= 0 else 0
