"""Runs a gang: starts its members, passes on their output, and ends all members together.

The first member that fails, stalls or is killed ends the gang: SIGTERM to every member's process
group, SIGKILL to members that still run some seconds later. A member with restarts left is restarted
instead, while the others keep running. Servers that still run some time after all trainers have
ended are ended. A member that has ended is not reaped before the gang is over, so that the number
of its process group is not reused. Processes that a member has started end with it, in other sessions too
(`strays`), unless the gang has finished its work. A member whose last error
is RollbackError of the parameter servers ends the gang even if it has restarts left, since all have to restart.
"""

import contextlib
import functools
import os
import queue
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any, Protocol

from jfluid.environment import GANG_MEMBER, PROGRESS_CHANNEL
from jfluid.launch import strays
from jfluid.launch.failure import Failure, excerpt_of, how_ended
from jfluid.launch.gang import Member
from jfluid.launch.guard import Guard
from jfluid.launch.memory_kills import MemoryKills
from jfluid.launch.output import Console, MemberOutput
from jfluid.launch.recording import JobRecord
from jfluid.launch.rendezvous import Verdict

SECONDS_TO_END = 5.0
# How long a member may take to end after it has failed, and how long the kernel may take to clean
# up one that was killed, while others already fail because its connections are closed.
_SECONDS_TO_EXIT = 2.0
_SECONDS_TO_CLEAR = 1.0
# Signals that are never the consequence of another member's failure (SIGABRT is: XLA aborts without
# its peers).
_SUDDEN = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_SECONDS_TO_DRAIN = 2.0
_SECONDS_TO_READ = 0.2
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_USAGES = 10.0  # at first shorter


class Signals:
    """Records the signals that ask the launcher to end, for the supervisor."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __enter__(self) -> "Signals":
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)


class PeerLaunchers(Protocol):
    """The launchers of the job's other hosts."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on all hosts, once it is known: then the gang on this host must end, too."""

    def connections(self) -> Sequence[Any]:
        """Return the sockets to select on."""

    def receive(self, connection: Any) -> None:
        """Receive from a connection."""

    def failed(self, failure: Failure, age: float) -> None:
        """Report that the gang on this host failed, `age` seconds ago."""

    def interrupted(self, number: int) -> None:
        """Report that a signal asked the launcher on this host to end."""

    def finished(self) -> None:
        """Report that the gang on this host has finished."""

    def look(self) -> None:
        """Act on the reports so far."""


class _Running:
    """A member that was started."""

    def __init__(
        self,
        member: Member,
        process: "subprocess.Popen[bytes]",
        output: MemberOutput,
        mark: str,
        now: float,
    ):
        self.member = member
        self.process = process
        self.output = output
        self.mark = mark
        self.code: int | None = None
        self.how = ""  # the code as text, with the reason of a kill
        # the exit code that it has reported that it will end with
        self.ending_with: int | None = None
        self.restarts_all = False  # has reported that it cannot continue unless all restart
        self.last_sign = now
        self.counts_steps = False

    def signal_group(self, number: int) -> None:
        """Send a signal to the member's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Supervisor:
    """A run of a gang, from start to end."""

    def __init__(
        self,
        members: Sequence[Member],
        console: Console,
        logs: Sequence[Any],
        signals: Signals,
        stall_timeout: float | None = None,
        peers: PeerLaunchers | None = None,
        server_grace: float = 0.0,
        record: JobRecord | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._members = list(zip(members, logs))
        self._console = console
        self._signals = signals
        self._signals_seen = 0
        self._stall_timeout = stall_timeout
        self._peers = peers
        self._server_grace = server_grace
        self._record = record
        self._usage_at, self._usage_every = clock(), 1.0
        self._clock = clock
        self._kills = MemoryKills()
        # in the environment of all that members start
        self._mark = f"{GANG_MEMBER}={secrets.token_hex(8)}."
        self._running: list[_Running] = []
        self._replaced: list[_Running] = []  # members that failed and were restarted
        self._end_servers_at = float("inf")
        self._exits: queue.SimpleQueue[tuple[_Running, int, float]] = queue.SimpleQueue()
        self._suspects: dict[_Running, float] = {}  # those that failed, and when
        self._suspected_at = 0.0
        self._first: tuple[_Running, str] | None = None
        self._failed_at = self._decided_at = 0.0
        self._told = ""
        self._ending = False
        self._kill_at = float("inf")
        self._killed = False

    def run(self) -> Failure | None:
        """Run the gang to its end; the first failure, of any host, or None when all trainers ended with 0."""
        with (
            selectors.DefaultSelector() as selector,
            Guard(self._mark) as guard,
            ExitStack() as stack,
        ):
            self._selector, self._guard, self._stack = selector, guard, stack
            try:
                for member, log in self._members:
                    self._running.append(self._start(member, log))
                for connection in self._peers.connections() if self._peers else ():
                    selector.register(connection, selectors.EVENT_READ, self._peers)
                while not self._over():
                    ended = self._ends()  # what these wrote is read before they are judged
                    self._pass_on(selector, 0.0 if ended else _SECONDS_BETWEEN_LOOKS)
                    self._look(ended)
            except BaseException:
                self._ending = True
                raise
            finally:
                # After success, processes that the script left in the background stay.
                if self._ending:
                    self._signal_groups(signal.SIGKILL)
                    strays.end(self._mark)
                # A process that left its group may keep the pipes open: read what has arrived, not
                # to their end.
                deadline = time.monotonic() + _SECONDS_TO_DRAIN
                while (
                    selector.get_map()
                    and self._pass_on(selector, _SECONDS_BETWEEN_LOOKS, members_only=True)
                    and time.monotonic() < deadline
                ):
                    pass
                for running in self._running + self._replaced:
                    running.process.wait()
                self._console.close()
                for running in self._running + self._replaced:
                    running.output.close()
        return self._outcome()

    # ---- starting and listening ------------------------------------------------------------------

    def _start(self, member: Member, log: Any) -> _Running:
        reports, channel = os.pipe()
        self._stack.callback(os.close, reports)
        try:
            # the same of no two members
            mark = f"{self._mark}{len(self._running) + len(self._replaced)}"
            environment = {
                "PYTHONUNBUFFERED": "1",
                PROGRESS_CHANNEL: f"{channel}:{os.getpid()}",
                GANG_MEMBER: mark.partition("=")[2],
            }
            process = subprocess.Popen(
                member.command,
                env={**member.env, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=None if len(self._members) == 1 else subprocess.DEVNULL,
                pass_fds=(channel,),
                start_new_session=True,
            )
        finally:
            os.close(channel)
        assert process.stdout and process.stderr  # both are pipes
        self._guard.watch(process.pid)
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.stderr.close)
        output = MemberOutput(member, log, self._console)
        running = _Running(member, process, output, f"{mark}\0", self._clock())
        for source, take in (
            (process.stdout, functools.partial(self._text, running, 1)),
            (process.stderr, functools.partial(self._text, running, 2)),
            (reports, functools.partial(self._reports, running)),
        ):
            self._selector.register(source, selectors.EVENT_READ, take)
        threading.Thread(target=self._wait_for, args=(running,), daemon=True).start()
        self._note("start", member, pid=process.pid)
        return running

    def _note(self, event: str, member: Member, **fields: Any) -> None:
        if self._record is not None:
            self._record.event(event, member, **fields)

    def _wait_for(self, running: _Running) -> None:
        """Record the end of a member without reaping it: the order separates the first failure from consequences."""
        try:
            result = os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # reaped, because the launcher itself failed
            return
        assert result is not None  # only WNOHANG gives None
        exited = result.si_code == os.CLD_EXITED
        self._exits.put((running, result.si_status if exited else -result.si_status, self._clock()))

    def _ends(self) -> list[tuple[_Running, int, float]]:
        """Return the members that have ended since the last call, with exit code and time."""
        return [self._exits.get_nowait() for _ in range(self._exits.qsize())]

    def _pass_on(self, selector: selectors.BaseSelector, wait: float, members_only: bool = False) -> bool:
        """Pass on output after waiting at most `wait` seconds for it; return True if there was output."""
        if not selector.get_map():
            time.sleep(wait)
            return False
        ready = selector.select(timeout=wait)
        for key, _ in ready:
            if key.data is self._peers:
                if members_only:
                    selector.unregister(key.fileobj)
                elif self._peers is not None:
                    self._peers.receive(key.fileobj)
                    if key.fileobj not in self._peers.connections():
                        selector.unregister(key.fileobj)
                continue
            data = os.read(key.fd, 1 << 16)
            if data:
                key.data(data)
            else:
                selector.unregister(key.fileobj)
        return bool(ready)

    def _text(self, running: _Running, descriptor: int, data: bytes) -> None:
        if not running.counts_steps:
            running.last_sign = self._clock()
        running.output.text(descriptor, data)

    def _reports(self, running: _Running, data: bytes) -> None:
        for report in running.output.reports(data):
            if "step" in report:
                # Between two loops (saving, evaluating) nothing counts steps.
                running.counts_steps = not report["done"]
                running.last_sign = self._clock()
            elif len(self._running) > 1 or self._peers is not None:
                # (A single script may spend any time in exit handlers.)
                running.ending_with = report["ending"]
                running.restarts_all = report["restarts_all"]
                self._suspect(running, report["time"])

    # ---- deciding --------------------------------------------------------------------------------

    def _over(self) -> bool:
        if any(running.code is None for running in self._running):
            return False
        # Peers that do not answer must not hold a launcher that was asked to end.
        return self._peers is None or self._peers.verdict is not None or self._killed

    def _look(self, ended: Sequence[tuple[_Running, int, float]]) -> None:
        """Act on the events since the last call, including the ends in `ended`."""
        for end in ended:
            self._ended(*end)
        now = self._clock()
        for number in self._signals.received[self._signals_seen :]:
            self._signals_seen += 1
            self._end(signal.SIGKILL if self._signals_seen > 1 else number)
        self._judge(now)
        if self._stall_timeout is not None and not self._ending and not self._suspects:
            self._look_for_stall(now, self._stall_timeout)
        if self._peers is not None and self._peers.verdict is not None and self._peers.verdict.failure is not None:
            self._end_what_is_left()
        elif self._job_is_done():
            self._see_servers_off(now)
        if now > self._kill_at and not self._killed:
            self._signal_groups(signal.SIGKILL)
            self._killed = True
        if self._peers is not None:
            self._tell(self._peers, now)
        if self._record is not None and now >= self._usage_at:
            self._usage_at = now + self._usage_every
            self._usage_every = min(2 * self._usage_every, _SECONDS_BETWEEN_USAGES)
            self._record.usage(
                {running.member.label: running.process.pid for running in self._running if running.code is None}
            )

    def _ended(self, running: _Running, code: int, moment: float) -> None:
        running.code, running.how = code, how_ended(code)
        if code == -signal.SIGKILL and not self._ending:
            running.how += self._kills.explain()
        self._note("exit", running.member, code=code, reason=running.how)
        if code == 0:
            self._suspects.pop(running, None)  # it did not fail: its exception was caught
        elif self._job_is_done():
            if not self._ending:
                self._console.note(
                    f"{running.member.label} ended with {running.how} after all trainers had finished; "
                    f"its log: {running.member.log}"
                )
        elif not (self._ending and self._work_is_done()):
            self._suspect(running, moment - _SECONDS_TO_CLEAR if -code in _SUDDEN else moment)

    def _suspect(self, running: _Running, moment: float) -> None:
        """Record that a member failed, when that is first seen."""
        if not self._suspects:
            self._suspected_at = self._clock()
        self._suspects.setdefault(running, moment)

    def _judge(self, now: float) -> None:
        """Find the member that failed first, once all earlier failures must have been seen."""
        if self._job_is_done():
            self._suspects.clear()  # servers whose work is done
        if self._first is not None or not self._suspects:
            return
        first = min(self._suspects, key=self._suspects.__getitem__)
        if first.code is None:
            wait = _SECONDS_TO_EXIT
        else:
            wait = 0.0 if -first.code in _SUDDEN else _SECONDS_TO_CLEAR
        if now >= self._suspected_at + wait or all(running.code is not None for running in self._running):
            if first.member.restarts and not first.restarts_all and not self._ending:
                self._start_again(first)
                return
            self._failed_at = self._suspects[first]
            self._fail(first)

    def _start_again(self, failed: _Running) -> None:
        """Replace a failed process by a new one, once it has ended."""
        # the processes that it started, and itself if it hangs in its exit handlers
        failed.signal_group(signal.SIGKILL)
        if failed.code is None:
            return
        strays.end(failed.mark)
        del self._suspects[failed]
        self._suspected_at = self._clock()
        failed.output.close()
        lives = int(failed.member.env.get("JFLUID_RESTARTS", "0")) + 1
        member = replace(
            failed.member,
            restarts=failed.member.restarts - 1,
            env={**failed.member.env, **failed.member.env_again, "JFLUID_RESTARTS": str(lives)},
        )
        self._console.note(
            f"{member.label} failed ({failed.how}) and is started again; {member.restarts} more "
            f"{'restart' if member.restarts == 1 else 'restarts'} of it; its log: {member.log}"
        )
        self._note(
            "restart",
            member,
            reason=failed.how,
            excerpt=excerpt_of(failed.output.tail()),
            left=member.restarts,
        )
        place = self._running.index(failed)
        self._replaced.append(failed)
        self._running[place] = self._start(member, self._members[place][1])

    def _work_is_done(self) -> bool:
        """Return True if all trainers on this host have ended with 0."""
        return all(running.code == 0 for running in self._running if running.member.role == "trainer")

    def _job_is_done(self) -> bool:
        """Return True if all trainers of all hosts have ended with 0."""
        if self._peers is not None:
            return self._peers.verdict is not None and self._peers.verdict.failure is None
        return self._work_is_done()

    def _fail(self, running: _Running, reason: str = "", first_signal: int = signal.SIGTERM) -> None:
        """End the gang because this member failed first, unless the gang is ending already."""
        self._first = running, reason
        self._decided_at = self._clock()
        if not self._ending:
            if first_signal != signal.SIGTERM:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.process.pid, first_signal)
            self._end(signal.SIGTERM, leave_out=running if first_signal != signal.SIGTERM else None)

    def _look_for_stall(self, now: float, timeout: float) -> None:
        working = [running for running in self._running if running.code is None and running.member.role == "trainer"]
        # In a synchronous job all stall when one does: the first to stall is the cause.
        silent = min(working, key=lambda running: running.last_sign, default=None)
        if silent is not None and now - silent.last_sign > timeout:
            # SIGABRT: Python's fault handler then writes the stack of each thread.
            self._failed_at = silent.last_sign
            self._fail(silent, f"no step for {timeout:g} s", signal.SIGABRT)

    # ---- ending ----------------------------------------------------------------------------------

    def _see_servers_off(self, now: float) -> None:
        """All trainers have ended: servers end by themselves, or are ended after their grace period."""
        left = [running for running in self._running if running.code is None]
        self._end_servers_at = min(self._end_servers_at, now + self._server_grace)
        if left and not self._ending and now >= self._end_servers_at:
            names = " and ".join(running.member.label for running in left)
            self._console.note(
                f"{names} still ran {self._server_grace:g} s after all trainers had finished, and "
                f"{'was' if len(left) == 1 else 'were'} ended; does the script call fleet.stop_worker()?"
            )
            self._end_what_is_left()

    def _end_what_is_left(self) -> None:
        """End the gang because the job is over: the members of a run that failed elsewhere, or servers without work."""
        if not self._ending and any(running.code is None for running in self._running):
            self._end(signal.SIGTERM)

    def _end(self, number: int, leave_out: _Running | None = None) -> None:
        self._ending = True
        self._kill_at = min(self._kill_at, self._clock() + SECONDS_TO_END)
        self._signal_groups(number, leave_out)

    def _signal_groups(self, number: int, leave_out: _Running | None = None) -> None:
        for running in self._running:
            if running is not leave_out:
                running.signal_group(number)
        strays.send(self._mark, number, {running.process.pid for running in self._running})

    def _tell(self, peers: PeerLaunchers, now: float) -> None:
        """Report to the other hosts: a failure at once, but not before its output has been read."""
        peers.look()
        if self._told == "failed" or peers.verdict is not None:
            return
        failure = self._own_failure()
        if self._signals_seen:
            self._told = "failed"
            peers.interrupted(self._signals.received[0])
        elif self._first is not None and failure is not None:
            running = self._first[0]
            if (
                running.code is not None or running.ending_with is not None
            ) and now >= self._decided_at + _SECONDS_TO_READ:
                self._told = "failed"
                peers.failed(failure, now - self._failed_at)
        elif not self._told and self._work_is_done():
            self._told = "finished"
            peers.finished()

    def _own_failure(self) -> Failure | None:
        if self._first is None:
            return None
        running, reason = self._first
        code = running.code if running.code is not None else -signal.SIGKILL
        if running.ending_with is not None and code <= 0:
            # It hung in its exit handlers, and the launcher ended it.
            code = running.ending_with
        reason = reason or (running.how if code == running.code else how_ended(code))
        return Failure(
            running.member.label,
            code,
            reason,
            str(running.member.log),
            excerpt_of(running.output.tail()),
        )

    def _outcome(self) -> Failure | None:
        if self._peers is not None and self._peers.verdict is not None:
            return self._peers.verdict.failure
        return self._own_failure()
