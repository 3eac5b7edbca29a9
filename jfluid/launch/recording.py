"""The launcher's lines in the job's record: the job, and starts, exits and failures of processes."""

import os
import platform
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jfluid import record
from jfluid.environment import RECORD_DIR
from jfluid.job import GangJob, Job
from jfluid.launch.failure import Failure
from jfluid.launch.gang import Member
from jfluid.launch.logs import announce
from jfluid.record import lines
from jfluid.record.writer import Recorder, Taken

_VERSIONS = ("jfluid", "jax", "jaxlib", "numpy", "protobuf", "grpcio")
# Of the environment only settings: what else is there may be secret.
_SETTINGS = re.compile(r"(FLAGS|JAX|XLA|OMP|NCCL|CUDA_VISIBLE)_\w+|CPU_NUM")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class JobRecord:
    """The record of a job's launcher on one host; without a job that wants one, nothing is written.

    Args:
        node: the number of this host; the launcher of host 0 begins the record anew.

    Attributes:
        trainers: the number of trainers on all hosts, once a run of several processes has begun.
        token: random text in the first line, by which launchers find out whether they share the folder.
    """

    def __init__(self, job: Job, node: int):
        self._folder = Path(os.path.abspath(job.log_dir))
        self._recorder: Recorder | None = None
        self.token = secrets.token_hex(8)
        self.trainers = 0
        if not job.record:
            return
        start = {"role": "launcher", "rank": node, "host": socket.gethostname(), "pid": os.getpid(), "run": self.token}
        path = record.file_of(self._folder, "launcher", node)
        try:
            if node == 0:
                _remove(path.parent.glob(f"*{lines.SUFFIX}"))
            self._recorder = Recorder(path, False, start)
        except (OSError, Taken) as error:
            if not self._folder.is_dir():
                return  # there will be no logs either, which ends the job with an error
            reason = "another launcher writes it" if isinstance(error, Taken) else error.strerror
            announce(f"the record {path} cannot be written ({reason}); the job goes on without it")
        else:
            self.event("job", **_about(job))
            self.flush()

    @property
    def is_on(self) -> bool:
        """True if the job has a record that can be written."""
        return self._recorder is not None

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return self._folder / record.FOLDER

    def flush(self) -> None:
        """Write the pending lines."""
        if self._recorder is not None:
            self._recorder.flush()

    def variables(self) -> dict[str, str]:
        """Return the variables by which members learn where to write theirs."""
        return {RECORD_DIR: "" if self._recorder is None else str(self._folder)}

    def begin(self, members: Sequence[Member]) -> None:
        """Remove record files that an earlier job left for processes of the same names."""
        if self._recorder is not None:
            _remove(record.file_of(self._folder, member.role, member.rank) for member in members)

    def event(self, event: str, member: Member | None = None, **fields: Any) -> None:
        """Record an event of a member or of the job."""
        if self._recorder is None:
            return
        who = {} if member is None else _named(member)
        text = {name: lines.shortened(value) if isinstance(value, str) else value for name, value in fields.items()}
        self._recorder.add("event", {"event": event, **who, **text}, at_once=True)

    def failure(self, failure: Failure, again: bool) -> None:
        """Record the first failure, of any host."""
        self.event(
            "failure",
            label=failure.label,
            code=failure.code,
            reason=failure.reason,
            log=failure.log,
            excerpt=failure.excerpt,
            again=again,
        )

    def usage(self, processes: Mapping[str, int]) -> None:
        """Record the memory and the processor seconds of members, by label.

        `processes` has process ids. Only Linux has these figures.
        """
        if self._recorder is not None:
            found = {label: _usage(number) for label, number in processes.items()}
            known = {label: usage for label, usage in found.items() if usage is not None}
            if known:
                self._recorder.add("usage", {"members": known})

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


def _remove(paths: Any) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _named(member: Member) -> dict[str, Any]:
    return {
        "label": member.label,
        "role": member.role,
        "rank": member.rank,
        "log": os.path.basename(member.log),
    }


def _about(job: Job) -> dict[str, Any]:
    settings = {**os.environ, **job.env}
    return {
        "name": job.name,
        "job": job.to_yaml(),
        "mode": job.mode,
        "hosts": (job.nodes or 1) if isinstance(job, GangJob) else 1,
        "folder": os.getcwd(),
        "versions": {"python": platform.python_version(), **_versions()},
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "environment": {
            name: lines.shortened(value, 1000) for name, value in sorted(settings.items()) if _SETTINGS.fullmatch(name)
        },
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def _usage(number: int) -> tuple[int, float] | None:
    """Bytes of memory and seconds of the processor of a process."""
    try:
        pages = int(Path(f"/proc/{number}/statm").read_bytes().split()[1])
        fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
        return pages * _PAGE, (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError, ValueError):
        return None
