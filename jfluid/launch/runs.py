"""Runs a job to its end: as often as it may be restarted, with its logs and its last words."""
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Literal

from jfluid.job import CollectiveJob, Job, JobError
from jfluid.launch.devices import assigned_gpus, visible_gpus
from jfluid.launch.failure import Failure
from jfluid.launch.gang import Member, collective_gang, local_gang, processes_per_host
from jfluid.launch.nodes import Node, NodeOptions, find_node
from jfluid.launch.output import Console
from jfluid.launch.supervise import Signals, Supervisor


def run(job: Job, options: NodeOptions | None = None) -> int:
    """Run the job to its end and return its exit code. Raises JobError when it cannot start."""
    runner = _CollectiveRunner(job, options or NodeOptions()) if isinstance(job, CollectiveJob) else _Runner(job)
    start = time.monotonic()
    with Signals() as signals:
        attempt = 0
        while True:
            failure = runner.run_once(attempt, signals)
            if failure is None or signals.received or attempt >= job.max_restarts:
                break
            attempt += 1
            _say(f"{_failed(failure)}; restart {attempt} of {job.max_restarts}")
    code = failure.exit_code if failure else 0
    runner.last_words(failure, signals, time.monotonic() - start)
    return code


def _say(text: str) -> None:
    print(f"jfluid-launch: {text}", file=sys.stderr, flush=True)


def _failed(failure: Failure) -> str:
    return f"{failure.label} failed ({failure.reason})"


class _Runner:
    """Runs a script on its own."""

    def __init__(self, job: Job):
        self.job = job

    def run_once(self, attempt: int, signals: Signals) -> Failure | None:
        """One run of the whole gang; its first failure."""
        return self._supervise(local_gang(self.job), attempt, signals)

    def _supervise(self, members: Sequence[Member], attempt: int, signals: Signals) -> Failure | None:
        members = [replace(member, env={**member.env, "JFLUID_RESTARTS": str(attempt)}) for member in members]
        with ExitStack() as stack:
            logs = [stack.enter_context(_open_log(member.log, "wb" if attempt == 0 else "ab")) for member in members]
            supervisor = Supervisor(members, self._console(members), logs, signals, self.job.stall_timeout)
            return supervisor.run()

    def _console(self, members: Sequence[Member]) -> Console:
        return Console(shows=lambda member: True, prefixed=False, alone=True)

    def last_words(self, failure: Failure | None, signals: Signals, seconds: float) -> None:
        log = Path(self.job.log_dir) / "workerlog.0"
        outcome = f"ended with {failure.reason}" if failure else "finished"
        _say(f"{self.job.name} {outcome} after {seconds:.1f} s; log: {log}")


def _open_log(path: Path, mode: Literal["wb", "ab"]) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode, buffering=0)
    except OSError as error:
        raise JobError(f"{path}: cannot write the log: {error.strerror}") from None


class _CollectiveRunner(_Runner):
    """Runs the processes that train together on this host."""

    job: CollectiveJob

    def __init__(self, job: CollectiveJob, options: NodeOptions):
        super().__init__(job)
        self.node: Node = find_node(job, options)
        self.gpus = [] if job.gpus is None else assigned_gpus(job.gpus, visible_gpus(), self.node.task, self.node.tasks)
        self.processes = processes_per_host(job, self.gpus)

    def run_once(self, attempt: int, signals: Signals) -> Failure | None:
        ports = _ports(self.processes, self.node)
        host = self.node.host or "127.0.0.1"
        members = collective_gang(self.job, [[f"{host}:{port}" for port in ports]], 0, self.gpus)
        return self._supervise(members, attempt, signals)

    def _console(self, members: Sequence[Member]) -> Console:
        shown = self.job.console
        return Console(shows=lambda member: shown == "all" or member.rank in shown,
                       prefixed=shown == "all" or len(shown) > 1, alone=len(members) == 1 == self.node.count)

    def last_words(self, failure: Failure | None, signals: Signals, seconds: float) -> None:
        if failure is None:
            return _say(f"{self.job.name} finished after {seconds:.1f} s; logs: {self.job.log_dir}/workerlog.*")
        if signals.received:
            name = signal.Signals(signals.received[0]).name
            return _say(f"{self.job.name} was ended by {name} after {seconds:.1f} s; logs: {self.job.log_dir}/workerlog.*")
        if failure.excerpt:
            print(textwrap.indent(failure.excerpt, "    "), file=sys.stderr)
        _say(f"{self.job.name}: {failure.label} failed first, with {failure.reason}, after {seconds:.1f} s; "
             f"all processes were ended; its log: {failure.log}")


def _ports(count: int, node: Node) -> list[int]:
    """Ports for the processes of this launcher: those from `first_port` on, or free ones."""
    if node.first_port is not None:
        first = node.first_port + node.task * count
        return list(range(first, first + count))
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]
