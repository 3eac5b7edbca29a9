"""Runs a job to its end: its restarts, its logs and its final messages."""

import signal
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from jfluid import errors, startup
from jfluid.environment.endpoints import host_and_port
from jfluid.environment.process import ProcessEnvironment
from jfluid.job import CollectiveJob, GangJob, Job, JobError, ParameterServerJob
from jfluid.launch.devices import assigned_gpus, visible_gpus
from jfluid.launch.failure import Failure
from jfluid.launch.free_ports import free_ports
from jfluid.launch.gang import Member, collective_gang, local_gang, parameter_server_gang
from jfluid.launch.logs import Log, announce, say
from jfluid.launch.nodes import Node, NodeOptions, check_alone, find_node
from jfluid.launch.output import Console
from jfluid.launch.page import Page
from jfluid.launch.profiling import Profiles
from jfluid.launch.recording import JobRecord
from jfluid.launch.rendezvous import Follower, Head, RunMembers, Verdict, interruption
from jfluid.launch.shipping import named
from jfluid.launch.supervise import PeerLaunchers, Signals, Supervisor
from jfluid.record.profiles import parse_steps
from jfluid.security import secret, snapshot_owner


def run(job: Job, options: NodeOptions | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Run the job to its end and return its exit code. Raises JobError when it cannot start.

    Args:
        clock: returns seconds since any fixed moment; timeouts of processes use it.
    """
    start = time.monotonic()
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        runner = (
            _GangRunner(job, options or NodeOptions(), stack, clock) if isinstance(job, GangJob) else _alone(job, clock)
        )
        if job.dashboard is not None and runner.host == 0:
            stack.callback(Page(job, runner.secret).close)
        record = runner.record = JobRecord(job, runner.host)
        stack.callback(record.close)
        runner.share(record)
        if record.is_on and runner.host == 0:
            steps = None if job.profile is None else parse_steps(job.profile)
            stack.callback(Profiles(record, steps).close)
        verdict = _recorded(runner.run_once(signals), record)
        while (first := verdict.failure) is not None and verdict.again and not signals.received:
            announce(f"{first.label} failed ({first.reason}); restart {runner.attempt + 1} of {job.max_restarts}")
            verdict = _recorded(runner.run_once(signals), record)
        code = verdict.failure.exit_code if verdict.failure else 0
        record.event("end", code=code, signals=list(signals.received))
        runner.last_words(verdict.failure, signals, time.monotonic() - start)
    return code


def _recorded(verdict: Verdict, record: JobRecord) -> Verdict:
    if verdict.failure is not None:
        record.failure(verdict.failure, verdict.again)
    return verdict


def _alone(job: Job, clock: Callable[[], float]) -> "_Runner":
    check_alone()
    return _Runner(job, clock)


class _Runner:
    """Runner of a local job. `record` is set before the first run."""

    record: JobRecord

    def __init__(self, job: Job, clock: Callable[[], float], host: int = 0):
        self.job, self.host, self.secret = job, host, secret.fresh()
        self._clock = clock
        self.attempt = -1

    def run_once(self, signals: Signals) -> Verdict:
        """Return one run of the whole gang, and how it ended."""
        self.attempt += 1
        return self._supervise(local_gang(self.job), signals)

    def _supervise(self, members: Sequence[Member], signals: Signals, peers: PeerLaunchers | None = None) -> Verdict:
        more = ProcessEnvironment(restarts=self.attempt).to_env() | self.record.variables()
        environments = [{**member.env, **(member.env_again if self.attempt else {}), **more} for member in members]
        members = [
            replace(member, env={**env, **startup.variables(env)})
            for member, env in zip(members, environments, strict=True)
        ]
        grace = self.job.server_grace if isinstance(self.job, ParameterServerJob) else 0.0
        console = self._console(members)
        if self.attempt == 0:
            self.record.begin(members)
        with ExitStack() as stack:
            logs = [
                stack.enter_context(
                    Log(
                        member.log,
                        self.attempt > 0,
                        self.job.log_max_bytes,
                        self.job.log_backups,
                        console.note,
                        self.job.log_times,
                    )
                )
                for member in members
            ]
            if self.attempt == 0:
                announce(f"{self.job.name} starts: {self._started(members)}")
            failure = Supervisor(
                members,
                console,
                logs,
                signals,
                self.job.stall_timeout,
                peers,
                grace,
                self.record,
                self._clock,
            ).run()
        if peers is not None and peers.verdict is not None:
            return peers.verdict
        return Verdict(failure, again=peers is None and self.attempt < self.job.max_restarts)

    def share(self, record: JobRecord) -> None:
        """Let the other hosts' launchers know of the record."""

    def _started(self, members: Sequence[Member]) -> str:
        """Return the processes, their devices and the places to look at."""
        return f"one process; log: {members[0].log}{self._page()}"

    def _page(self) -> str:
        """Return the command that shows the job's page, where it leaves a record."""
        return f"; its page: jfluid dashboard {self.job.log_dir}" if self.record.is_on else ""

    def _console(self, members: Sequence[Member]) -> Console:
        return Console(shows=lambda member: True, prefixed=False, alone=True)

    def last_words(self, failure: Failure | None, signals: Signals, seconds: float) -> None:
        log = Path(self.job.log_dir) / "workerlog.0"
        outcome = f"ended with {failure.reason}" if failure else "finished"
        announce(f"{self.job.name} {outcome} after {seconds:.1f} s; log: {log}")


class _GangRunner(_Runner):
    """Runs the processes on this host of a job that has several."""

    job: GangJob

    def __init__(self, job: GangJob, options: NodeOptions, stack: ExitStack, clock: Callable[[], float]):
        self.node: Node = find_node(job, options)
        super().__init__(job, clock, self.node.rank)
        self._reservations = stack
        self.gpus = [] if job.gpus is None else assigned_gpus(job.gpus, visible_gpus(), self.node.task, self.node.tasks)
        self.secret = _secret(job, self.node)
        _check_snapshots(job, self.secret)
        self.peers: Head | Follower | None = None
        if self.node.count > 1:
            self.peers = (
                Follower(self.node, job.name, self.secret, clock)
                if self.node.rank
                else Head(self.node, job.name, job.max_restarts, self.secret, clock)
            )
            stack.callback(self.peers.close)

    def share(self, record: JobRecord) -> None:
        if self.peers is not None:
            self.peers.share(record)

    def run_once(self, signals: Signals) -> Verdict:
        ports = _ports(_number_of_ports(self.job, self.gpus), self.node, self._reservations)
        if self.peers is None:
            members = RunMembers([[f"{self.node.host or '127.0.0.1'}:{port}" for port in ports]], self.attempt + 1)
        else:
            agreed = self.peers.rendezvous(ports, interrupted=lambda: bool(signals.received))
            if agreed is None:
                return Verdict(interruption(self.node.rank, signals.received[0]))
            members = agreed
        self.attempt = members.attempt
        try:
            here = self._members(members)
            if self.peers is not None:
                self.peers.begin(members, named(here))
                ahead = ProcessEnvironment(clock_ahead=members.ahead).to_env()
                here = [replace(member, env={**member.env, **ahead}) for member in here]
            return self._supervise(here, signals, self.peers)
        finally:
            if self.peers is not None:
                self.peers.part()

    def _members(self, members: RunMembers) -> list[Member]:
        job = self.job
        if isinstance(job, CollectiveJob):
            self.record.trainers = sum(map(len, members.endpoints))
            return collective_gang(job, members.endpoints, self.node.rank, self.gpus, self.secret)
        assert isinstance(job, ParameterServerJob)  # there are no other jobs of several processes
        servers, trainers = _places(job, members.endpoints)
        self.record.trainers = len(trainers)
        here = members.endpoints[self.node.rank]
        if job.is_listed:
            here = [own for own in servers + trainers if self.peers is None or host_and_port(own)[0] == self.node.host]
        return parameter_server_gang(job, servers, trainers, here, self.gpus, self.secret)

    def _started(self, members: Sequence[Member]) -> str:
        roles = Counter(member.role for member in members)
        processes = ", ".join(f"{count} {role}{'s' * (count > 1)}" for role, count in sorted(roles.items()))
        hosts = f" on host {self.node.rank} of {self.node.count}" if self.node.count > 1 else ""
        devices = f"GPU {', '.join(self.gpus)}" if self.gpus else "CPU"
        return f"{processes}{hosts}, on {devices}; logs: {self.job.log_dir}/*log.*{self._page()}"

    def _console(self, members: Sequence[Member]) -> Console:
        shown = self.job.console
        return Console(
            shows=lambda member: shown == "all" or (member.role == "trainer" and member.rank in shown),
            prefixed=shown == "all" or len(shown) > 1,
            alone=len(members) == 1 == self.node.count,
        )

    def last_words(self, failure: Failure | None, signals: Signals, seconds: float) -> None:
        logs = f"logs: {self.job.log_dir}/*log.*"
        if failure is None:
            return announce(f"{self.job.name} finished after {seconds:.1f} s; {logs}")
        if signals.received:
            name = signal.Signals(signals.received[0]).name
            return announce(f"{self.job.name} was ended by {name} after {seconds:.1f} s; {logs}")
        if failure.excerpt:
            say(textwrap.indent(failure.excerpt, "    "))
        announce(
            f"{self.job.name}: {failure.label} failed first ({failure.reason}) after {seconds:.1f} s; all processes "
            f"were ended; {f'its log: {failure.log}' if failure.log else logs}"
        )
        if isinstance(self.job, ParameterServerJob) and self.job.snapshots is not None:
            announce("the job goes on from its snapshots when it is started with --set snapshots.resume=true")


def _secret(job: GangJob, node: Node) -> str:
    """Return the job's secret: from its file, the environment, or a new secret on a single host.

    Raises JobError on several hosts without a secret.
    """
    try:
        found = secret.from_file(job.secret_file) if job.secret_file is not None else secret.given()
        if found is not None:
            return found
        if node.count == 1:
            return secret.fresh()
        assert node.coordinator is not None  # find_node saw to it
        if secret.is_loopback(node.coordinator[0]):  # so all launchers are on this machine
            return secret.of_this_user()
    except errors.SecretError as error:
        raise JobError(f"jfluid-launch: {error}") from None
    raise JobError(
        "jfluid-launch: a job on several hosts needs a secret, by which its processes know each other: set "
        f"{secret.VARIABLE} to the same random text on all hosts (`python -m jfluid.security new` prints one), "
        "or name a file that has it: --set secret_file=PATH"
    )


def _places(job: ParameterServerJob, endpoints: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return the endpoints of all servers and all trainers, from the job file or from each host."""
    found: tuple[list[str], list[str]] = [], []
    for own in endpoints:
        given = iter(own)
        for places, all_of_them in zip((job.servers, job.trainers), found, strict=True):
            all_of_them += [next(given) for _ in range(places)] if isinstance(places, int) else []
    servers, trainers = (
        places if isinstance(places, list) else all_of_them
        for places, all_of_them in zip((job.servers, job.trainers), found, strict=True)
    )
    return servers, trainers


def _check_snapshots(job: Job, secret: str) -> None:
    """Raise JobError if the snapshot folder belongs to a running job or holds snapshots of an earlier job."""
    snapshots = job.snapshots if isinstance(job, ParameterServerJob) else None
    if snapshots is None:
        return
    folders = sorted(Path(snapshots.folder).glob("server-*"))
    if (owner := snapshot_owner.of_another_job(folders, secret)) is not None:
        raise JobError(
            f"jfluid-launch: snapshots.folder: {snapshots.folder} belongs to {owner}, which is running: two jobs "
            "cannot write their snapshots into one folder; name a different folder, or end that job"
        )
    if not snapshots.resume and any(Path(snapshots.folder).glob("server-*/*.json")):
        raise JobError(
            f"jfluid-launch: snapshots.folder: {snapshots.folder} holds snapshots of an earlier job; resume with "
            "--set snapshots.resume=true, or name a different folder"
        )


def _number_of_ports(job: GangJob, gpus: Sequence[str]) -> int:
    """Return the number of ports for processes on this host without endpoints in the job."""
    if isinstance(job, ParameterServerJob):
        return sum(places for places in (job.servers, job.trainers) if isinstance(places, int))
    assert isinstance(job, CollectiveJob)  # there are no other jobs of several processes
    return job.processes or len(gpus)


def _ports(count: int, node: Node, reservations: ExitStack) -> list[int]:
    """Return ports for this launcher's processes: from `first_port` on, or free ports."""
    if node.ports is not None:
        if len(node.ports) < count:
            raise JobError(f"jfluid-launch: {count} processes need {count} ports; there are {len(node.ports)}")
        return list(node.ports[:count])
    if node.first_port is not None:
        first = node.first_port + node.task * count
        return list(range(first, first + count))
    return free_ports(count, reservations)
