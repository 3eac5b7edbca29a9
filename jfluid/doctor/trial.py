"""A script run for a few steps, in a scratch folder and within limits: `jfluid doctor --run`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jfluid import errors

_CHILD = "jfluid.command.limited_run"
_HOME = str(Path(__file__).resolve().parents[2])
_LARGEST_FILE = 64 << 20  # bytes; larger ones are left out of the scratch folder
_LARGEST_COPY = 512 << 20
_LEFT_OUT = frozenset({".git", "__pycache__", "node_modules"})
_SHOWN = 2000  # characters of what a script that failed has written


@dataclass(frozen=True)
class TrialLimits:
    """Limits on the resources of a script.

    Attributes:
        steps: runs of a program with feeds or fetches, or passes over a dataset, after which it is
            ended.
        seconds: of real time.
        memory: MiB of memory that it and its processes hold.
    """

    steps: int = 5
    seconds: float = 120.0
    memory: int = 8192


@dataclass
class Outcome:
    """Outcome of a script's run.

    Attributes:
        ended: "steps" (it was ended after them), "by itself", "error", "time", "memory".
        steps: how many it made.
        seconds, memory: what it used; memory in MiB, the most at a time.
        fetched: what the last step gave, shortened.
        error: the exception, or how the process ended.
        place: `file:line` of the script where it was raised.
        output: the end of what it wrote, where it failed.
        left_out: large files that were not copied.
    """

    ended: str
    steps: int = 0
    seconds: float = 0.0
    memory: int = 0
    fetched: list[str] = field(default_factory=list)
    error: str = ""
    place: str = ""
    output: str = ""
    left_out: list[str] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        """True if the script made steps, or came to its end, without an error."""
        return self.ended in ("steps", "by itself")

    def record(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return asdict(self) | {"runs": self.runs}

    def lines(self) -> Iterator[str]:
        """Return the outcome in words."""
        steps = f"{self.steps} step{'s' if self.steps != 1 else ''}"
        used = f"{self.seconds:.1f} s, {self.memory} MiB at most"
        if self.ended == "steps":
            yield f"ran {steps} and was ended there: {used}"
        elif self.ended == "by itself":
            yield f"ran to its end, {steps}: {used}"
        elif self.ended == "error":
            yield f"failed after {steps}: {used}"
            yield f"{self.place or 'the script'}: {self.error}"
        else:
            yield f"was ended after {steps}, at the limit of {self.ended}: {used}"
        if self.fetched:
            yield f"last fetched: {', '.join(self.fetched)}"
        if self.left_out:
            yield f"not in the scratch folder, being large: {', '.join(self.left_out)}"
        if self.output:
            yield self.output


def run(script: str, arguments: Sequence[str], limits: TrialLimits) -> Outcome:
    """Run a script in a temporary copy of the script's folder.

    Raises DataError where there is no such script.
    """
    if not os.path.isfile(script):
        raise errors.DataError(f"{script}: --run takes one script")
    with tempfile.TemporaryDirectory(prefix="jfluid-doctor-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch, "script")
        left_out = _copy(Path(os.path.realpath(script)).parent, folder)
        report, output = Path(scratch, "report.json"), Path(scratch, "output")
        name = os.path.basename(os.path.realpath(script))
        # With the package's folder behind that of the script, wherever the package lies.
        begin = f"import runpy, sys; sys.path.insert(1, {_HOME!r}); runpy.run_module({_CHILD!r}, run_name='__main__')"
        command = [sys.executable, "-c", begin, str(report), str(limits.steps), name, *arguments]
        began = time.monotonic()
        with open(output, "wb") as written:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended, memory = _watch(process, began, limits)
            finally:
                _end(process)
        outcome = _outcome(report, ended, process.returncode)
        outcome.seconds, outcome.memory = time.monotonic() - began, memory
        outcome.left_out = left_out
        if outcome.ended == "error":
            outcome.output = output.read_bytes()[-_SHOWN:].decode(errors="replace").strip()
        return outcome


def _copy(source: Path, target: Path) -> list[str]:
    """Copy a script's folder with links resolved; return the files that were too large."""
    left_out: list[str] = []
    copied = 0
    target.mkdir()
    for folder, folders, names in os.walk(source):
        folders[:] = [n for n in folders if n not in _LEFT_OUT]
        here = target / os.path.relpath(folder, source)
        here.mkdir(exist_ok=True)
        for name in names:
            path = Path(folder, name)
            if not path.is_file() or not os.access(path, os.R_OK):
                continue
            size = path.stat().st_size
            if size > _LARGEST_FILE or copied + size > _LARGEST_COPY:
                left_out.append(str(path.relative_to(source)))
                continue
            copied += size
            shutil.copy(path, here / name)
    return left_out


def _watch(process: subprocess.Popen[bytes], began: float, limits: TrialLimits) -> tuple[str, int]:
    """Wait for the end of a process, or a limit: ("", MiB) or (the limit, MiB)."""
    most = 0
    while True:
        most = max(most, _memory_of(process.pid) >> 20)
        if most > limits.memory:
            return "memory", most
        if time.monotonic() - began > limits.seconds:
            return "time", most
        try:
            process.wait(0.1)
            return "", most
        except subprocess.TimeoutExpired:
            continue


def _memory_of(session: int) -> int:
    """Bytes that the processes of a session hold; 0 where the system does not tell."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                total += int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _outcome(report: Path, ended: str, code: int) -> Outcome:
    """Return the outcome of a process from its reports and its exit."""
    try:
        record = json.loads(report.read_text())
    except (OSError, ValueError):
        record = {"ended": "error", "error": _end_of(code)}
    outcome = Outcome(**record)
    if ended:
        outcome.ended = ended
    elif outcome.ended == "running":  # it was killed, or has called os._exit
        outcome.ended = "by itself" if code == 0 else "error"
        outcome.error = "" if code == 0 else _end_of(code)
    return outcome


def _end_of(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
