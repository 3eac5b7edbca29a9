"""Plays a plan: a job, and what is done to it."""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos import check, entry
from tests.chaos.disk import Disk
from tests.chaos.plan import PROCESSES, SERVERS, TRAINERS, Action, Plan
from tests.chaos.processes import Forked, Launched, Supervisor, role_of
from tests.faults.relay import Network, Relay
from tests.ports import free_ports

LIMIT_S, LAUNCHER_LIMIT_S = 300.0, 600.0  # the launcher's processes import everything each time
_LOOK_S = 0.01
_ON_ITS_WAY_S = 5.0  # an answer, also to a trainer that stands still or over a slow network


@dataclass
class Outcome:
    """How a plan ended.

    Attributes:
        failures: what was wrong; none where all is well.
        seconds: how long it took.
        kills: processes that were killed, by signal and role.
        done: other things that were done, by kind.
        restarts, rollbacks, notes: of the supervisor.
    """

    plan: Plan
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    rollbacks: int = 0
    notes: list[str] = field(default_factory=list)


class Player:
    """Plays plans.

    Args:
        folder: in which each plan gets a folder for as long as it is played.
        mounts: whether file systems may be mounted.
        keep: where the folders of plans that failed are kept; None for nowhere.
        meanwhile: is called all the time.
    """

    def __init__(
        self,
        folder: Path,
        mounts: bool,
        keep: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ):
        self._folder, self._mounts, self._keep, self._meanwhile = folder, mounts, keep, meanwhile
        self._wanted: dict[str, check.Final] = {}
        self._played = 0

    def play(self, plan: Plan) -> Outcome:
        """Play one plan, and see how the job has ended."""
        wanted = None
        if plan.synchronous:
            key = plan.undisturbed().model_dump_json()
            if key not in self._wanted:
                self._wanted[key] = self._undisturbed(plan.undisturbed())
            wanted = self._wanted[key]
        return self._play(plan, lambda folder, pasts: check.failures(plan, folder, wanted, pasts))

    def _undisturbed(self, plan: Plan) -> check.Final:
        found: list[check.Final] = []

        def take(folder: Path, pasts: Sequence[check.Past]) -> list[str]:
            found.append(check.final(folder))
            return []

        outcome = self._play(plan, take)
        if outcome.failures:
            raise RuntimeError(f"a job to which nothing was done has failed: {outcome.failures}")
        return found[0]

    def _play(self, plan: Plan, checked: Callable[[Path, Sequence[check.Past]], list[str]]) -> Outcome:
        self._played += 1
        folder = self._folder / f"plan-{self._played}"
        folder.mkdir(parents=True)
        outcome, start_s = Outcome(plan), time.monotonic()
        try:
            with _Performance(plan, folder, self._mounts) as performance:
                performance.run(outcome, self._meanwhile)
                if not outcome.failures:
                    outcome.failures += checked(folder, performance.pasts)
            if outcome.failures and self._keep is not None:
                (folder / "plan.json").write_text(plan.model_dump_json(indent=1))
                (folder / "failures").write_text("\n".join(outcome.failures) + "\n")
                shutil.copytree(folder, self._keep / f"{folder.name}-seed-{plan.seed}", dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        outcome.seconds = round(time.monotonic() - start_s, 1)
        return outcome


class _Performance:
    """One plan while it is played.

    Attributes:
        pasts: of each server.
    """

    def __init__(self, plan: Plan, folder: Path, mounts: bool):
        self._plan, self._folder, self._mounts = plan, folder, mounts
        self._log = open(folder / "chaos.log", "w", buffering=1)
        self._start_s = time.monotonic()
        self._limit_s = LAUNCHER_LIMIT_S if plan.launcher else LIMIT_S
        self._due: list[tuple[float, Callable[[], None], str]] = []
        self._done: dict[str, int] = {}
        self._random = random.Random(f"what is damaged {plan.seed}")
        self._snapshots = folder / "disk" / "snapshots"
        self.pasts = [check.Past() for _ in range(SERVERS)]

    def __enter__(self) -> "_Performance":
        with ExitStack() as stack:
            stack.callback(self._log.close)
            self._disk = stack.enter_context(Disk(self._folder / "disk", self._mounts, self._server_pids))
            network = stack.enter_context(Network(self._plan.seed))
            ports = [f"127.0.0.1:{port}" for port in free_ports(SERVERS + TRAINERS)]
            servers, trainers = ports[:SERVERS], ports[SERVERS:]
            self._relays = (
                {
                    f"trainer {t} - server {s}": network.relay(servers[s], f"{t} {s}")
                    for t in range(TRAINERS)
                    for s in range(SERVERS)
                }
                if self._harms_network()
                else {}
            )
            self._supervisor = self._supervised(servers, trainers)
            stack.callback(self._supervisor.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _harms_network(self) -> bool:
        return any(" - " in who for action in self._plan.actions for who in action.who)

    def _supervised(self, servers: list[str], trainers: list[str]) -> Supervisor:
        plan, snapshots = self._plan, self._snapshots
        through = [
            [self._relays[f"trainer {t} - server {s}"].endpoint if self._relays else servers[s] for s in range(SERVERS)]
            for t in range(TRAINERS)
        ]
        environment = {
            "JFLUID_JOB_TOKEN": secrets.token_urlsafe(24),
            "JAX_PLATFORMS": "cpu",
        }
        spec: dict[str, Any] = {
            "folder": str(self._folder),
            "job": plan.job,
            "steps": plan.steps,
            "trainers": TRAINERS,
            "endpoints": servers,
            "trainer_endpoints": trainers,
            "through": through,
            "environment": environment,
        }
        for who in PROCESSES:
            self._set_clock(who, 0.0)
        keep_bytes = 256 << 20 if plan.keep else 0
        if plan.launcher:
            return Launched(
                self._folder,
                spec,
                {"folder": str(snapshots), "every_s": plan.every_s, "keep_bytes": keep_bytes},
            )
        environment |= {
            "JFLUID_PS_SNAPSHOT_FOLDER": str(snapshots),
            "JFLUID_PS_SNAPSHOT_EVERY_S": str(plan.every_s),
            "JFLUID_PS_KEEP_BYTES": str(keep_bytes),
        }
        return Forked(self._folder, spec)

    # ---- the course of it ----

    def run(self, outcome: Outcome, meanwhile: Callable[[], None]) -> None:
        """Play the plan until the job has ended, or failed."""
        moments = sorted({action.step for action in self._plan.actions})
        self._let_go([*moments, self._plan.steps][0])
        self._supervisor.start()
        while not self._supervisor.over():
            meanwhile()
            self._supervisor.look()
            self._do_what_is_due()
            if self._supervisor.failure or time.monotonic() - self._start_s > self._limit_s:
                outcome.failures.append(self._supervisor.failure or self._late())
                break
            if moments and not self._due and self._all_at(moments[0]):
                self._begin(
                    [action for action in self._plan.actions if action.step == moments[0]],
                    [*moments, self._plan.steps][1],
                )
                del moments[0]
            calm = self._folder / "calm"
            if not (moments or self._due or calm.exists()) and all(
                (self._folder / f"done-{n}").exists() for n in range(TRAINERS)
            ):
                entry.publish(calm, "")
            time.sleep(_LOOK_S)
        outcome.kills, outcome.done = dict(self._supervisor.kills), self._done
        outcome.restarts, outcome.rollbacks, outcome.notes = (
            self._supervisor.restarts,
            self._supervisor.rollbacks,
            self._supervisor.notes,
        )

    def _begin(self, actions: list[Action], until: int) -> None:
        """Let what is done at one step come, and the trainers go on until another."""
        before_s = -min(0.0, *(action.after_s for action in actions))
        self._later(before_s, partial(self._let_go, until), f"trainers go on, until step {until}")
        for action in actions:
            self._later(
                before_s + action.after_s,
                partial(self._act, action),
                f"{action.do} {', '.join(action.who)}",
            )

    def _late(self) -> str:
        """Why it takes so long: where each process stands goes to its log."""
        for who in PROCESSES:
            if (pid := self._supervisor.pid(who)) is not None:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1)  # until they have written
        at = {who: self._at(role_of(who)[1]) for who in PROCESSES if who.startswith("trainer")}
        return f"the job has not ended within {self._limit_s:g} s; trainers stand before steps {at}"

    def _at(self, trainer: int) -> int:
        try:
            return int((self._folder / f"at-{trainer}").read_text())
        except FileNotFoundError:
            return -1

    def _all_at(self, step: int) -> bool:
        return all(self._at(number) >= step for number in range(TRAINERS))

    def _let_go(self, step: int) -> None:
        entry.publish(self._folder / "go", str(step))

    def _later(self, after_s: float, function: Callable[[], None], what: str) -> None:
        self._due.append((time.monotonic() + after_s, function, what))

    def _do_what_is_due(self) -> None:
        for each in sorted(self._due, key=lambda due: due[0]):
            if each[0] <= time.monotonic():
                self._due.remove(each)
                at = [self._at(number) for number in range(TRAINERS)]
                self._log.write(f"{time.monotonic() - self._start_s:.3f} s, trainers at {at}: {each[2]}\n")
                each[1]()

    # ---- what is done ----

    def _act(self, action: Action) -> None:
        if action.do in ("kill", "terminate"):
            self._end(action)
            return
        self._done[action.do] = self._done.get(action.do, 0) + 1
        if action.do == "stop":
            for who in action.who:
                self._stop(who, action.for_s)
        elif action.do == "shift clock":
            for who in action.who:
                self._set_clock(who, action.amount)
        elif action.do == "damage":
            for who in action.who:
                self._damage(role_of(who)[1])
        elif action.do == "fill disk":
            self._disk.fill()
            self._later(action.for_s, self._disk.free, "the disk has room again")
        else:
            for who in action.who:
                self._harm(self._relays[who], action)

    def _manifests(self, server: int) -> list[Path]:
        """A server's snapshots, the oldest first."""
        found = (self._snapshots / f"server-{server}").glob("*-of-*.json")
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    def _end(self, action: Action) -> None:
        ending = [number for number in range(SERVERS) if {"launcher", f"server {number}"} & set(action.who)]
        begins_s = [self._before_newest_s(number) for number in ending]
        self._supervisor.end(action.who, signal.SIGKILL if action.do == "kill" else signal.SIGTERM, action.for_s)
        for number, begin_s in zip(ending, begins_s, strict=True):
            self.pasts[number].dangers.append((begin_s, time.time() + _ON_ITS_WAY_S))

    def _before_newest_s(self, server: int) -> float:
        """When the snapshot was there that a server wrote before its newest; 0 without one."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # the server goes on, and removes them
                found = [path.stat().st_mtime for path in self._manifests(server)]
                return found[-2] if len(found) > 1 else 0.0

    def _damage(self, server: int) -> None:
        """Alter a byte of a file of a server's newest snapshot, as a disk may. What was in that one
        alone is in danger.

        Servers of a synchronous job have none in common when one loses its only one: they refuse to
        start then.
        """
        manifests = self._manifests(server)
        if self._plan.synchronous and len(manifests) < 2:
            self._log.write(f"server {server} has {len(manifests)} snapshots: none is damaged\n")
            return
        for manifest in manifests[-1:]:
            files = sorted(manifest.parent.glob(f"{manifest.stem}.*"))
            victim = self._random.choice([path for path in files if path.stat().st_size])
            place = self._random.randrange(victim.stat().st_size)
            data = bytearray(victim.read_bytes())
            data[place] ^= 1 << self._random.randrange(8)
            victim.write_bytes(data)
            self._log.write(f"byte {place} of {victim.name} is another now\n")
            self.pasts[server].damaged = True
            self.pasts[server].dangers.append((0.0, time.time()))

    def _stop(self, who: str, for_s: float) -> None:
        if (pid := self._supervisor.pid(who)) is not None:
            os.kill(pid, signal.SIGSTOP)

            def go_on() -> None:
                if self._supervisor.pid(who) == pid:
                    os.kill(pid, signal.SIGCONT)

            self._later(for_s, go_on, f"{who} goes on")

    def _harm(self, relay: Relay, action: Action) -> None:
        match action.do:
            case "cut":
                relay.cut()
                return
            case "delay":
                relay.delay(0.0, action.amount)
            case "throttle":
                relay.throttle(action.amount)
            case "dribble":
                relay.dribble(200, action.amount)
            case "partition" | "refuse":
                relay.partition(refuse=action.do == "refuse")
        self._later(action.for_s, relay.heal, f"{relay.name} is well again")

    def _set_clock(self, who: str, shift_s: float) -> None:
        path = self._folder / f"clock-{who.replace(' ', '-')}"
        if not path.exists():
            path.write_bytes(struct.pack("<d", shift_s))
        with open(path, "r+b") as file:  # the same file: processes have it mapped
            file.write(struct.pack("<d", shift_s))

    def _server_pids(self) -> list[int]:
        pids = [self._supervisor.pid(who) for who in PROCESSES if who.startswith("server")]
        return [pid for pid in pids if pid is not None]


def line(outcome: Outcome) -> str:
    """An outcome in one line of JSON; the plan only of one that failed."""
    told = {
        "seed": outcome.plan.seed,
        "job": outcome.plan.job,
        "ok": not outcome.failures,
        "seconds": outcome.seconds,
        "kills": outcome.kills,
        "done": outcome.done,
        "restarts": outcome.restarts,
        "rollbacks": outcome.rollbacks,
    }
    told |= {name: True for name in ("launcher",) if outcome.plan.launcher}
    told |= {"notes": outcome.notes} if outcome.notes else {}
    if outcome.failures:
        told |= {
            "failures": outcome.failures[:20],
            "plan": json.loads(outcome.plan.model_dump_json()),
        }
    return json.dumps(told)
